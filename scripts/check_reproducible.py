#!/usr/bin/env python3
"""Prove that the same input gives the same bytes: build a bundle and its wheels several times, and compare digests.

    scripts/check_reproducible.py [--all] [--each] [--engine ENGINE] [--python PYTHON]... [--keep DIRECTORY]

The second build differs from the first in all that must not matter, at once: directory, home and temporary directory,
umask, locale, time zone, the seed of hashes, the number of workers, whether SOURCE_DATE_EPOCH is set, and an engine
whose files were copied in another order and have other times. With --each there is one build more for each of these
alone, which tells which one a difference comes from. Wheels are made twice in each: as they are, and with
SOURCE_DATE_EPOCH, which is meant to change them, and to the same bytes everywhere.

Another minor of Python builds too where it has torch and Triton. Where it lacks them, the table says under "how" what
it does instead, in an environment made for it with the same zstandard, whose libzstd decides the compressed bytes:
"compiled" means that every key of the first bundle is compiled anew with that minor's own Triton and packed (see
compile_anew.py; tracing alone needs torch), and "written", with --all, that the first bundle is read and written anew.
By default it is the first other minor that is found here.

Without --all: two families for one model on sm90, which takes a minute or two. With it: all families for several
models on two architectures. Prints one table; where something differs, what aotpack diff says of it, and exits with 1.
"""

import argparse
import os
import random
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Literal

import zstandard

from aotpack.diff import compare, open_side
from aotpack.digests import digest_bytes, digest_file, hex_of
from aotpack.engines import Engine, find_engine
from aotpack.errors import AotpackError
from aotpack.interpreters import running_minor
from aotpack.report.bundles import show_diff

ROOT = Path(__file__).resolve().parent.parent
MOMENT = "1700000000"
"""A SOURCE_DATE_EPOCH: in November 2023, and on another day in the time zones that are tried."""

SMALL = "--arch sm90 --model qwen3.5-27b --tp 1 --gdn-prefill triton --family layernorm --family mrope"
LARGE = "--arch sm90,sm100 --model qwen3.5-27b --model qwen3-vl-2b --tp 1,4"

COMPILE_ANEW = ROOT / "scripts" / "compile_anew.py"

LIBRARIES = ("click", "packaging", "platformdirs")
COMPILING = ("triton", "einops", "numpy", "regex")
"""What the extra ``build`` names, but for torch."""

WRITE_ANEW = """
import sys
from pathlib import Path
from aotpack.bundle import open_bundle, write_bundle
given, path = map(Path, sys.argv[1:])
bundle = open_bundle(given)
print(write_bundle(path / given.name, bundle.manifest, dict(bundle.blobs())).path)
"""


USUAL = {"LC_ALL": "C", "TZ": "UTC", "PYTHONHASHSEED": "0"}
"""Variables of the first case."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """The circumstances of one build: each field is one that must not matter.

    Attributes:
        name: for the table.
        umask: of the process.
        environment: variables that are set.
        jobs: worker processes.
        place: where it works, below the scratch directory: home, temporary and current directory.
        shuffled: whether the engine is a copy whose files were made in another order, with other times.
        python: the interpreter.
        how: whether it is built, or made of the first case's bundle: compiled anew, or just written anew.
    """

    name: str
    umask: str = "022"
    environment: dict[str, str] = field(default_factory=lambda: dict(USUAL))
    jobs: int = 2
    place: str = "a"
    shuffled: bool = False
    python: str = sys.executable
    how: Literal["built", "compiled", "written"] = "built"


FIRST = Case(name="as usual")
PLACE = "somewhere else, in a directory with a long name and spaces"
OTHERWISE: dict[str, dict[str, object]] = {
    "directory": {"place": PLACE},
    "umask 077": {"umask": "077"},
    "locale": {"environment": USUAL | {"LC_ALL": "C.UTF-8"}},
    "time zone": {"environment": USUAL | {"TZ": "XXX-13:45"}},
    "hash seed": {"environment": USUAL | {"PYTHONHASHSEED": "4711"}},
    "SOURCE_DATE_EPOCH": {"environment": USUAL | {"SOURCE_DATE_EPOCH": "1"}},
    "1 worker": {"jobs": 1},
    "order of files": {"shuffled": True},
}
"""The fields of a case that are not as usual, by what is varied."""


def cases(*, each: bool) -> list[Case]:
    """The first case, the one that differs in everything, and, if asked for, one for each circumstance alone."""
    environment: dict[str, str] = {}
    everything: dict[str, object] = {}
    for changes in OTHERWISE.values():
        everything |= changes
        environment |= {
            name: value
            for name, value in dict(changes.get("environment", {})).items()  # type: ignore[call-overload]  # a dict
            if USUAL.get(name) != value
        }
    everything["environment"] = USUAL | environment
    found = [FIRST, replace(FIRST, name="all of it otherwise", **everything)]  # type: ignore[arg-type]  # its fields
    if each:
        found += [replace(FIRST, name=name, **changes) for name, changes in OTHERWISE.items()]  # type: ignore[arg-type]
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """What came of a case.

    Attributes:
        case: the case.
        python: the release of its Python.
        bundle: the bundle.
        digests: of the bundle, of its wheels, and of those with a date; what is compared.
    """

    case: Case
    python: str
    bundle: Path
    digests: tuple[str, str, str]


def make(case: Case, number: int, engine: Path, first: Path | None, selection: Sequence[str], scratch: Path) -> Made:
    """Build a bundle and its wheels in the circumstances of a case."""
    home = scratch / str(number) / case.place
    for name in ("bundle", "wheels", "dated"):
        (home / name).mkdir(parents=True)
    output = str(home / "bundle")
    build = ["-m", "aotpack", "build", "--quiet", *selection, "--python", running_minor(), "--jobs", str(case.jobs)]
    commands = {
        "built": [*build, "--engine", str(engine), "--output", output],
        "compiled": [str(COMPILE_ANEW), str(first), "--engine", str(engine), "--output", output],
        "written": ["-c", WRITE_ANEW, str(first), output],
    }
    command = [case.python, *commands[case.how]]
    bundle = Path(run(command, case, home).splitlines()[-1])
    wheels = [case.python, "-m", "aotpack", "wheel", "--quiet", str(bundle), "--output"]
    undated = replace(
        case, environment={name: value for name, value in case.environment.items() if name != "SOURCE_DATE_EPOCH"}
    )
    run([*wheels, str(home / "wheels")], undated, home)
    run(
        [*wheels, str(home / "dated")],
        replace(case, environment=case.environment | {"SOURCE_DATE_EPOCH": MOMENT}),
        home,
    )
    release = run([case.python, "-c", "import platform; print(platform.python_version())"], case, home).strip()
    digests = (digest_file(bundle), digest_files(home / "wheels"), digest_files(home / "dated"))
    return Made(case=case, python=release, bundle=bundle, digests=digests)


def run(command: Sequence[str], case: Case, home: Path) -> str:
    """What a command prints that is run in the circumstances of a case.

    Raises:
        SystemExit: it failed.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("LC_", "XDG_", "TRITON_"))}
    environment |= {name: str(home) for name in ("HOME", "TMPDIR", "XDG_CACHE_HOME", "AOTPACK_CACHE_DIR")}
    environment |= {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1", **case.environment}
    script = f"umask {case.umask} && exec {shlex.join(command)}"
    done = subprocess.run(["sh", "-c", script], cwd=home, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{case.name}: {shlex.join(command[:5])} ...: exit code {done.returncode}\n{done.stderr}")
    return done.stdout


def digest_files(folder: Path) -> str:
    """One digest of the names, modes and contents of files."""
    lines = [f"{path.name} {path.stat().st_mode:o} {digest_file(path)}\n" for path in sorted(folder.iterdir())]
    return digest_bytes("".join(lines).encode())


def shuffled_copy(engine: Engine, folder: Path) -> Path:
    """A copy of an engine's Python files, made in another order and with other times and modes."""
    order = random.Random(4711)  # noqa: S311  # no secret
    files = sorted(engine.package.rglob("*.py"))
    order.shuffle(files)
    for path in files:
        copy = folder / path.relative_to(engine.root)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
        copy.chmod(order.choice((0o600, 0o644, 0o755)))
        moment = order.randrange(10**9, 2 * 10**9)
        os.utime(copy, (moment, moment))
    return folder


def other_pythons() -> Iterator[str]:
    """The first Python here of another minor, found as those of native helpers are."""
    for minor in ("3.12", "3.11", "3.13", "3.10"):
        if minor != running_minor():
            for path in (
                f"python{minor}",
                *sorted(map(str, (Path.home() / ".pyenv/versions").glob(f"{minor}.*/bin/python"))),
            ):
                with suppress(OSError, subprocess.CalledProcessError):
                    subprocess.run([path, "-c", ""], check=True, capture_output=True)
                    yield path
                    return


def case_of(python: str, scratch: Path, otherwise: Literal["compiled", "written"]) -> Case:
    """The case of another Python: it builds if it can, and has an environment made for what it does otherwise."""
    asked = "import importlib.util as i; print(all(map(i.find_spec, ('torch', 'triton', 'click', 'zstandard'))))"
    done = subprocess.run([python, "-c", asked], capture_output=True, text=True, check=True)
    if done.stdout.strip() == "True":
        return replace(FIRST, name="another Python", python=python)
    made = scratch / "python"
    subprocess.run([python, "-m", "venv", made], check=True)
    pip = [str(made / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    wanted = [*LIBRARIES, "tomli", f"zstandard=={zstandard.__version__}"]
    if otherwise == "compiled":
        wanted += [f"{name}=={version(name)}" for name in COMPILING]
    subprocess.run([*pip, *wanted], check=True, stdout=sys.stderr)
    return replace(FIRST, name="another Python", python=str(made / "bin" / "python"), how=otherwise)


def show(made: Sequence[Made]) -> bool:
    """The table, then what differs; whether nothing does."""
    print(f"{'what':<22}{'python':<10}{'how':<10}{'bundle':<18}{'wheels':<18}{'wheels, dated':<18}")
    first = made[0]
    for one in made:
        cells = [
            f"{hex_of(digest)[:12]}{'' if digest == expected else ' !'}"
            for digest, expected in zip(one.digests, first.digests, strict=True)
        ]
        print(f"{one.case.name:<22}{one.python:<10}{one.case.how:<10}" + "".join(f"{cell:<18}" for cell in cells))
    differing = [one for one in made[1:] if one.digests != first.digests]
    for one in differing:
        print(f"\n{first.case.name} (a) and {one.case.name} (b):")
        show_diff(compare(open_side(first.bundle), open_side(one.bundle)), as_json=False)
    return not differing


def main() -> int:
    """Build in each case, and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true", help="all families, several models, two architectures")
    parser.add_argument("--each", action="store_true", help="one build more for each circumstance alone")
    parser.add_argument("--engine", default="vllm==0.33.0", help="as for aotpack build (default: vllm==0.33.0)")
    parser.add_argument("--python", action="append", default=[], help="another interpreter; may be repeated")
    parser.add_argument("--keep", type=Path, help="a directory that keeps what was made")
    options = parser.parse_args()
    try:
        engine = find_engine(options.engine, lambda line: print(line, file=sys.stderr))
    except AotpackError as error:
        parser.error(str(error))
    with tempfile.TemporaryDirectory() as temporary:
        scratch = (options.keep or Path(temporary)).resolve()
        scratch.mkdir(parents=True, exist_ok=True)
        copy = shuffled_copy(engine, scratch / "engine")
        wanted = cases(each=options.each)
        otherwise: Literal["compiled", "written"] = "written" if options.all else "compiled"
        wanted += [case_of(python, scratch, otherwise) for python in options.python or other_pythons()]
        if all(case.python == sys.executable for case in wanted):
            print("there is no Python of another minor here; name one with --python", file=sys.stderr)
        made: list[Made] = []
        for number, case in enumerate(wanted):
            print(f"{case.name} ...", file=sys.stderr)
            tree = copy if case.shuffled else engine.root
            first = made[0].bundle if made else None
            made.append(make(case, number, tree, first, shlex.split(LARGE if options.all else SMALL), scratch))
        return int(not show(made))


if __name__ == "__main__":
    sys.exit(main())
