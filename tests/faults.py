"""Acts on a cache under faults, and Triton as the judge of what is left: a process with faults.c preloaded.

For each call of an act that changes the file system: a fork that is killed there, or whose call fails; then Triton's
own lookup of every entry, which must hit with the right bytes or miss, and never raise; then Triton's own compile,
as far as the cache sees it; then the act once more, which must end as one that nothing happened to.
"""

import argparse
import ctypes
import json
import os
import shutil
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from triton import knobs
from triton.compiler.compiler import CompiledKernel
from triton.runtime.cache import FileCacheManager

from aotpack import landing
from aotpack.bundle import Bundle, open_bundle
from aotpack.errors import CacheError
from aotpack.heal import heal
from aotpack.install import install_bundle, uninstall
from aotpack.receipts import OURS, read_receipts
from aotpack.tritoncache import GROUP_PREFIX, cache_key_of
from tests.archives import tree

DONE, REFUSED, ESCAPED, KILLED = 0, 10, 11, -9


@dataclass(frozen=True)
class Expected:
    """One entry as it should lie there."""

    directory: str
    name: str
    cubin: bytes
    metadata: bytes


def expected(cache: Path) -> list[Expected]:
    found = []
    for group in sorted(cache.glob(f"*/{GROUP_PREFIX}*.json")):
        stem = group.name.removeprefix(GROUP_PREFIX).removesuffix(".json")
        cubin, metadata = (group.with_name(f"{stem}.{kind}").read_bytes() for kind in ("cubin", "json"))
        found.append(Expected(group.parent.name, stem, cubin, metadata))
    return found


def lookup(entry: Expected) -> bool:
    """Triton's own lookup, as ``triton.compile`` does it: whether it hits; raises where Triton would."""
    manager = FileCacheManager(entry.directory)
    group = manager.get_group(f"{entry.name}.json") or {}
    if f"{entry.name}.json" not in group:
        return False
    kernel = CompiledKernel(None, group, cache_key_of(entry.directory))
    assert bytes(kernel.kernel).startswith(entry.cubin), "a hit with other machine code"
    return True


def compile_it(entry: Expected) -> None:
    """What a compile of Triton's does to the cache after a miss."""
    manager = FileCacheManager(entry.directory)
    files = {"ttir": "text", "cubin": entry.cubin + b"line info", "json": entry.metadata}
    group = {f"{entry.name}.{kind}": manager.put(data, f"{entry.name}.{kind}") for kind, data in files.items()}
    manager.put_group(f"{entry.name}.json", group)


Act = Callable[[], None]


class Stage:
    """A cache directory, states to begin from, and acts on it."""

    def __init__(self, bundle: Bundle, scratch: Path) -> None:
        self.bundle, self.scratch, self.cache = bundle, scratch, scratch / "cache"
        # Installed from a copy that is gone, so that healing has no bundle but the one that it is given.
        gone = Path(shutil.copy(bundle.path, scratch / "gone"))
        install_bundle(open_bundle(gone), self.cache)
        gone.unlink()
        self.entries = expected(self.cache)
        shutil.copytree(self.cache, scratch / "installed")
        self.begin_empty()

    def begin_empty(self) -> None:
        shutil.rmtree(self.cache, ignore_errors=True)

    def begin_installed(self) -> None:
        shutil.rmtree(self.cache, ignore_errors=True)
        shutil.copytree(self.scratch / "installed", self.cache)
        (self.cache / "OTHER").mkdir()
        (self.cache / "OTHER" / "kernel.cubin").write_bytes(b"theirs")

    def begin_damaged(self) -> None:
        self.begin_installed()
        shutil.rmtree(self.cache / "OTHER")
        first, second, third = (self.cache / entry.directory for entry in self.entries[:3])
        next(first.glob(f"{GROUP_PREFIX}*")).write_text('{"child_')
        next(second.glob("*.cubin")).unlink()
        shutil.rmtree(third)
        third.mkdir()  # as Triton leaves it after a lookup that missed

    def begin_moved(self) -> None:
        self.begin_installed()
        shutil.rmtree(self.cache / "OTHER")
        for group in self.cache.glob(f"*/{GROUP_PREFIX}*"):
            group.write_text(group.read_text().replace(str(self.cache), "/elsewhere"))

    def install(self) -> None:
        install_bundle(self.bundle, self.cache)

    def uninstall(self) -> None:
        for receipt in read_receipts(self.cache):
            uninstall(receipt)

    def fix(self) -> None:
        heal(self.cache, bundle=self.bundle)

    def fix_alone(self) -> None:
        heal(self.cache)

    def fix_then_install(self) -> None:
        heal(self.cache)
        self.install()

    def acts(self, name: str) -> tuple[Act, Act, Act, bool]:
        """How it begins, the act, what follows it, and whether a done act leaves every entry a hit."""
        return {
            "install": (self.begin_empty, self.install, self.install, True),
            "install again from elsewhere": (self.begin_installed, self.install, self.install, True),
            "install over damage": (self.begin_damaged, self.install, self.install, True),
            "uninstall": (self.begin_installed, self.uninstall, self.uninstall, False),
            "fix": (self.begin_damaged, self.fix, self.fix_then_install, True),
            "fix without the bundle": (self.begin_damaged, self.fix_alone, self.install, False),
            "fix a moved cache": (self.begin_moved, self.fix_alone, self.fix_then_install, True),
        }[name]


def run_forked(act: Act, faults: Any, nth: int, error: int, *, lasting: bool) -> int:
    """The act in a fork, with a fault at its n-th call: how it ended."""
    child = os.fork()
    if child == 0:
        code = DONE
        try:
            faults.faults_arm(nth, error, int(lasting))
            act()
        except CacheError:
            code = REFUSED
        except BaseException:  # noqa: BLE001  # whatever escapes is what the test is after
            code = ESCAPED
            faults.faults_arm(-1, 0, 0)
            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def count_calls(act: Act, faults: Any) -> int:
    """How many calls of the act change the file system."""
    faults.faults_arm(0, 0, 0)
    act()
    seen = int(faults.faults_seen())
    faults.faults_arm(-1, 0, 0)
    return seen


def judge(stage: Stage, began: dict[str, Any], *, all_hit: bool) -> None:
    """Let Triton look up every entry, compile what misses, and look again; the cache is left as it was.

    Where a Triton raises on damage that was there as the act began and is there still, it is not the act's doing.
    """
    saved = stage.scratch / "saved"
    shutil.rmtree(saved, ignore_errors=True)
    existed = stage.cache.exists()
    if existed:
        shutil.copytree(stage.cache, saved)
    for entry in stage.entries:
        try:
            hit = lookup(entry)
        except (ValueError, KeyError):
            if all_hit or content(stage.cache / entry.directory) != began[entry.directory]:
                raise
            continue
        if not hit:
            assert not all_hit, f"{entry.directory} misses after an act that was done"
            compile_it(entry)
            assert lookup(entry), f"{entry.directory} misses after a compile"
    shutil.rmtree(stage.cache)
    if existed:
        saved.rename(stage.cache)


def content(folder: Path) -> dict[str, Any]:
    """The tree without empty directories: those may stay where removing one was refused."""
    return {path: state for path, state in tree(folder).items() if not (folder / path).is_dir()}


def contents(folder: Path) -> dict[str, Any]:
    """The tree, but for our own directory where a kill came between the last receipt and its removal."""
    return {path: state for path, state in tree(folder).items() if path not in (OURS, f"{OURS}/receipts")}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("bundle", type=Path)
    parser.add_argument("scratch", type=Path)
    parser.add_argument("act")
    parser.add_argument("--error", type=int, default=0)
    parser.add_argument("--lasting", action="store_true")
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--deny-locks", type=int, default=0)
    parser.add_argument("--only", default="")
    parser.add_argument("--done-anyway", action="store_true")
    options = parser.parse_args()
    landing._PAUSES = (0.0, 0.0, 0.0, 0.0)
    stage = Stage(open_bundle(options.bundle), options.scratch)
    knobs.cache.dir = str(stage.cache)
    faults = ctypes.CDLL(os.environ["LD_PRELOAD"])
    faults.faults_deny_locks(options.deny_locks)
    faults.faults_only(options.only.encode())
    faults.faults_done_anyway(int(options.done_anyway))
    begin, act, follow, all_hit = stage.acts(options.act)
    begin()
    calls = count_calls(act, faults)
    follow()
    look = content if options.error else contents
    clean = look(stage.cache)
    problems: list[str] = []
    ends: list[int] = []
    for nth in range(1, calls + 1, options.every):
        begin()
        began = {entry.directory: content(stage.cache / entry.directory) for entry in stage.entries}
        end = run_forked(act, faults, nth, options.error, lasting=options.lasting)
        ends.append(end)
        try:
            assert end in ((KILLED,) if options.error == 0 else (DONE, REFUSED)), f"ended with {end}"
            judge(stage, began, all_hit=all_hit and end == DONE)
            follow()
            assert look(stage.cache) == clean, "what follows does not end as a clean one"
        except Exception as problem:  # noqa: BLE001  # each is reported, whatever it is
            problems.append(f"call {nth}: {type(problem).__name__}: {problem}")
    print(json.dumps({"calls": calls, "ends": ends, "problems": problems}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
