"""Probes of Triton, its assemblers, Python and the engine."""

import hashlib
import os
import platform
import re
import subprocess
import sysconfig
from base64 import urlsafe_b64encode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import Distribution
from pathlib import Path

from aotpack.bundle import Bundle
from aotpack.doctor.sections import Findings, Section, files_found, find_distribution, package
from aotpack.engines import DEFAULT
from aotpack.errors import ToolchainError
from aotpack.findings import Finding
from aotpack.targets import Target
from aotpack.toolchain import Toolchain, local_toolchain

_TRUE = ("1", "true", "on", "y", "yes")  # what Triton's getenv_bool takes for true, in any case

_SHOWN_VARIABLES = (
    "TRITON_ALWAYS_COMPILE",
    "TRITON_CACHE_MANAGER",
    "TRITON_INTERPRET",
    "TRITON_KERNEL_OVERRIDE",
    "TRITON_LIBCUDA_PATH",
    "TRITON_MOCK_PTX_VERSION",
    "TRITON_OVERRIDE_DIR",
    "TRITON_REMOTE_CACHE_BACKEND",
    "TRITON_STORE_BINARY_ONLY",
)

_BLACKWELL = 100  # from this arch on Triton takes ptxas-blackwell (triton/backends/nvidia/compiler.py, get_ptxas)


def find_toolchain(targets: Sequence[Target]) -> Toolchain | str:
    """The toolchain of this process, or why there is none."""
    try:
        return local_toolchain(targets)
    except ToolchainError as error:
        return str(error)
    except Exception as error:  # noqa: BLE001  # a broken Triton may fail in any way; the doctor says so
        return f"Triton fails: {type(error).__name__}: {error}"


def probe_triton(environment: Mapping[str, str], local: Toolchain | str, *, needed: bool) -> Section:
    """Which Triton is here, whether it is what its wheel holds, and which variables steer it.

    Args:
        environment: the variables that it would read.
        local: its toolchain, or why that could not be had.
        needed: whether a bundle waits for it.
    """
    root, found = package("triton"), find_distribution("triton", "pytorch-triton")
    findings: list[Finding] = []
    say = Findings(findings, "Triton")
    if root is None:
        if needed:
            say("D106", "is not installed in this environment", "run aotpack with the Python that serves")
        return Section(title="Triton", rows=(("release", "none in this environment"),), findings=tuple(findings))
    rows = [("release", found.version if found else "unknown"), ("at", str(root))]
    if isinstance(local, str):
        say("D106", local, "reinstall it")
    if found is None or found.files is None:
        rows.append(("sources", "unknown: no RECORD of its wheel to compare with"))
    elif changed := list(changed_files(found, root)):
        listed = ", ".join(changed[:3]) + (f" and {len(changed) - 3} more" if len(changed) > 3 else "")  # noqa: PLR2004
        rows.append(("sources", f"{len(changed)} not as in its wheel: {listed}"))
        say(
            "D204",
            f"its own files are not those of its wheel: {listed}; they enter every key",
            f"reinstall {found.name} {found.version}, or build the bundle with this Triton",
        )
    else:
        rows.append(("sources", "as in its wheel"))
    keyed = dict(local.environment) if isinstance(local, Toolchain) else {}
    rows.append(("in the key", _assignments(keyed)))
    shown = {name: environment[name] for name in _SHOWN_VARIABLES if environment.get(name)}
    rows.append(("variables", _assignments(shown)))
    if shown.get("TRITON_ALWAYS_COMPILE", "").lower() in _TRUE:
        say("D107", "TRITON_ALWAYS_COMPILE makes every first launch compile, whatever the cache holds", "unset it")
    if shown.get("TRITON_INTERPRET", "").lower() in _TRUE:
        say("D107", "TRITON_INTERPRET interprets kernels, and loads none from the cache", "unset it")
    if manager := shown.get("TRITON_CACHE_MANAGER"):
        say("D205", f"TRITON_CACHE_MANAGER={manager} decides where entries come from, not the directory", "unset it")
    return Section(title="Triton", rows=tuple(rows), findings=tuple(findings))


def _assignments(variables: Mapping[str, str]) -> str:
    return " ".join(f"{name}={value}" for name, value in sorted(variables.items())) or "none"


def changed_files(found: Distribution, root: Path) -> Iterator[str]:
    """The files of a package that are not as its wheel's RECORD says, and Python files that it does not name.

    Only what ``triton_key`` walks can be in the way unnamed: the directories below, of which it hashes every module
    (triton/runtime/cache.py). Files other than Python's are compared by size alone: libtriton.so has half a gigabyte.

    Args:
        found: the distribution.
        root: its package's directory.
    """
    named = set()
    for file in found.files or ():
        path = Path(str(found.locate_file(file)))
        if not path.is_relative_to(root) or file.hash is None:
            continue
        named.add(path)
        if not _as_recorded(path, file.hash.mode, file.hash.value, file.size):
            yield str(path.relative_to(root.parent))
    for walked in ("compiler", "backends", "language"):
        for path in files_found(root / walked, "**/*.py"):
            if path not in named:
                yield str(path.relative_to(root.parent))


def _as_recorded(path: Path, mode: str, value: str, size: int | None) -> bool:
    try:
        if path.suffix != ".py":
            return size is None or path.stat().st_size == size
        digest = hashlib.new(mode, path.read_bytes()).digest()
    except (OSError, ValueError):
        return False
    return urlsafe_b64encode(digest).decode().rstrip("=") == value


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """An assembler as Triton would choose it (triton/knobs.py, ``env_nvidia_tool``).

    Attributes:
        name: "ptxas", or "ptxas-blackwell" for sm100 and above.
        path: the file, or None where none answers.
        chosen_by: the variable that names it, or "the wheel".
        release: of CUDA, "12.9".
        ignored: what the variable names, where that does not run and Triton silently takes the wheel's.
    """

    name: str
    path: Path | None = None
    chosen_by: str = ""
    release: str = ""
    ignored: str = ""


def find_tool(name: str, environment: Mapping[str, str]) -> Tool:
    """The assembler of that name that Triton would take."""
    variable = f"TRITON_{name.upper().replace('-', '_')}_PATH"
    asked = environment.get(variable)
    if asked and (release := _release_of(Path(asked))):
        return Tool(name=name, path=Path(asked), chosen_by=variable, release=release)
    root = package("triton")
    path = root / "backends" / "nvidia" / "bin" / name if root else None
    if path is None or not (release := _release_of(path)):
        return Tool(name=name, ignored=asked or "")
    return Tool(name=name, path=path, chosen_by="the wheel", release=release, ignored=asked or "")


def _release_of(tool: Path) -> str:
    try:
        done = subprocess.run([tool, "--version"], capture_output=True, text=True, timeout=10, check=True)  # noqa: S603
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return ""
    return _release(done.stdout)


def _release(text: str) -> str:
    found = re.search(r"release (\d+\.\d+)", text)
    return found[1] if found else ""


def probe_ptxas(tools: Sequence[Tool], environment: Mapping[str, str], bundle: Bundle | None) -> Section:
    """The assemblers, who chose them, and what the bundle was built with."""
    rows: list[tuple[str, str]] = []
    findings: list[Finding] = []
    for tool in tools:
        blackwell = tool.name != "ptxas"
        rows.append((tool.name, f"{tool.release} at {tool.path}, from {tool.chosen_by}" if tool.path else "none"))
        for target, text in bundle.manifest.toolchain.assemblers if bundle else ():
            if (Target.parse(target).arch >= _BLACKWELL) == blackwell:
                rows.append((Target.parse(target).short, f"the bundle's kernels were assembled with {_release(text)}"))
        if tool.path is None and package("triton"):
            detail = "neither the one asked for nor the wheel's runs, and Triton asks for its release even on a hit"
            findings.append(Finding(code="D118", subject=tool.name, detail=detail, hint="reinstall Triton"))
        elif tool.ignored:
            now = "correct the variable, or unset it"
            detail = f"{tool.ignored} was asked for and does not run; Triton says nothing and takes its own"
            findings.append(Finding(code="D206", subject=tool.name, detail=detail, hint=now))
    torch = package("torch")
    inductors = torch / "bin" / "ptxas" if torch else None
    if inductors and os.access(inductors, os.X_OK) and not environment.get("TRITON_PTXAS_PATH"):
        release = _release_of(inductors)
        rows.append(("Inductor's", f"{release} at {inductors}"))
        if release != tools[0].release:
            detail = f"Inductor sets TRITON_PTXAS_PATH to its own of {release}, and the keys change with it"
            findings.append(
                Finding(code="D206", subject="ptxas", detail=detail, hint=f"set TRITON_PTXAS_PATH={tools[0].path}")
            )
    return Section(title="assembler", rows=tuple(rows), findings=tuple(findings))


def toolkit_of(target: Target, tools: Sequence[Tool], bundle: Bundle | None) -> str:
    """The CUDA release that assembled a target's kernels: the bundle's, else what would here."""
    if bundle:
        return _release(dict(bundle.manifest.toolchain.assemblers).get(str(target), ""))
    return tools[target.arch >= _BLACKWELL].release


def probe_python() -> Section:
    """What native helpers depend on."""
    try:
        glibc = os.confstr("CS_GNU_LIBC_VERSION") or "unknown"
    except (ValueError, OSError):
        glibc = "not glibc"
    rows = (
        ("release", platform.python_version()),
        ("ABI", str(sysconfig.get_config_var("SOABI"))),
        ("C library", glibc),
        ("machine", platform.machine()),
    )
    return Section(title="Python", rows=rows)


def probe_engine(bundle: Bundle | None) -> Section:
    """The engine that is installed, and whether it is the bundle's."""
    name = bundle.manifest.engine if bundle else DEFAULT
    found = find_distribution(name)
    here = f"{name} {found.version}" if found else f"{name} is not installed in this environment"
    rows = [("installed", here)]
    if bundle:
        rows.append(("the bundle's", f"{name} {bundle.manifest.engine_version}"))
    return Section(title="engine", rows=tuple(rows))
