"""Fingerprints: what the work of a build follows from, told without importing any of it.

Two kinds of work, two fingerprints. What tracing finds follows from the engine's files, aotpack's own, the families'
packages, every distribution that is installed, Triton's files, and the environment: anything of that may be read
while wrappers run, so all of it counts, and tracing is done anew rather than once too rarely. What compiling gives
follows from the compile key, the kernel's source, Triton's files and the few modules of aotpack that hand the key over.

Native helpers follow from their C text, the C compiler with what it calls, and headers; what of that is the system's,
its C library, counts by its release.

Files count by content: a size and a time of change can be those of another file. Reading an engine and Triton whole
takes half a second.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path

from aotpack.digests import PREFIX, digest_bytes, digest_file, digest_json
from aotpack.engines import Engine
from aotpack.errors import ToolchainError
from aotpack.families import GROUP
from aotpack.helpers import c_compiler, local_glibc
from aotpack.interpreters import Interpreter
from aotpack.sources import Sources
from aotpack.tracing import KEPT, dropped

_COMPILING = ("compiler.py", "stages.py", "toolchain.py", "keys.py", "tracing/__init__.py", "kept.py")
"""aotpack's modules that decide what a compile key compiles to, and how that is kept."""

_SESSION = (
    *("_", "COLUMNS", "HOME", "HOSTNAME", "LINES", "LOGNAME", "LS_COLORS", "MAIL", "NO_COLOR", "OLDPWD", "PATH", "PWD"),
    *("SHLVL", "TERM", "TMPDIR", "USER"),
)
_SESSION_PREFIXES = ("AOTPACK_", "DBUS_", "LC_", "SSH_", "XDG_")
"""Variables that differ between sessions, and that neither engines nor Triton ask for what they compile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Basis:
    """What a build's work follows from.

    Attributes:
        tracing: the digest of all that tracing follows from, but for target and deployment.
        compiling: the digest of all that compiling follows from, but for the key and its kernel's source.
    """

    tracing: str
    compiling: str


def basis_of(engine: Engine, families: Iterable[str]) -> Basis:
    """What tracing an engine with some families, and compiling what they reach, follows from on this machine.

    Raises:
        OSError: a file cannot be read.
        ToolchainError: Triton is not installed.
    """
    triton = triton_fingerprint()
    others = {point.module.partition(".")[0] for point in entry_points(group=GROUP)} - {"aotpack"}
    tracing = {
        "engine": [engine.name, engine.version, str(engine.root), tree_digest(engine.package)],
        "families": sorted(families),
        "own": own_digest(),
        "others": {name: _code_digest(name) for name in sorted(others)},
        "distributions": _distributions(),
        "python": sys.version,
        "triton": triton,
        "environment": _environment(),
    }
    own = {name: digest_file(_package("aotpack") / name) for name in _COMPILING}
    return Basis(tracing=digest_json(tracing), compiling=digest_json({"own": own, "triton": triton}))


def own_digest() -> str:
    """The digest of aotpack's own files.

    Raises:
        OSError: one of them cannot be read.
    """
    return tree_digest(_package("aotpack"))


def source_fingerprint(sources: Sources, kernel: str) -> str:
    """The digest of all that a kernel is made of in its engine, without line numbers.

    Unlike ``Sources.digest`` it holds the globals that Triton's key ignores too.
    """
    parts = []
    for function in sources.closure(kernel):
        described = function.to_json()
        del described["line"]
        parts.append([function.name, described])
    return digest_json(parts)


def triton_fingerprint() -> str:
    """The digest of Triton's files that decide code: its sources, its libraries, ptxas and libdevice.

    Raises:
        OSError: one of them cannot be read.
        ToolchainError: Triton is not installed.
    """
    root = _package("triton")
    files = [
        *root.rglob("*.py"),
        *(root / "_C").glob("libtriton*.so"),
        *(root / "backends").glob("*/bin/ptxas*"),
        *(root / "backends").glob("*/lib/*.bc"),
    ]
    found = [[str(path.relative_to(root)), digest_file(path)] for path in sorted(files)]
    chosen = {name: Path(os.environ[name]) for name in KEPT if os.environ.get(name)}
    # One that is not there is for the worker to complain of.
    return digest_json([found, {name: digest_file(path) if path.is_file() else None for name, path in chosen.items()}])


def helper_fingerprint(interpreter: Interpreter) -> str:
    """The digest of what compiling a native helper for a Python follows from, but for its C text and aotpack's code.

    Raises:
        OSError: a file cannot be read.
        ToolchainError: Triton is not installed.
    """
    compiler = shutil.which(c_compiler() or "gcc")
    called = [compiler, *(_program(compiler, name) for name in ("cc1", "as", "collect2", "ld"))] if compiler else []
    headers = [tree_digest(path, (".h",)) for path in sorted((_package("triton") / "backends").glob("*/include"))]
    return digest_json(
        {
            "interpreter": [interpreter.minor, interpreter.suffix, tree_digest(interpreter.include, (".h",))],
            "headers": headers,
            "compiler": [digest_file(Path(path)) for path in called if path],
            "libc": local_glibc(),
        }
    )


def _program(compiler: str, name: str) -> str | None:
    """A program that a C compiler calls; None where it has it built in, or does not tell."""
    done = subprocess.run(  # noqa: S603  # the compiler that is about to be run
        [compiler, f"-print-prog-name={name}"], capture_output=True, text=True, check=False
    )
    return shutil.which(done.stdout.strip())


def tree_digest(root: Path, kinds: tuple[str, ...] = (".py", ".json")) -> str:
    """The digest of a directory's files of some kinds, by relative path.

    Args:
        root: the directory.
        kinds: what their names end in; by default what an engine's code reads.

    Raises:
        OSError: one of them cannot be read.
    """
    hasher = hashlib.sha256()
    top = os.fspath(root)
    # Plain strings: for an engine's thousands of files pathlib would nearly double the time.
    for folder, folders, names in os.walk(top):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        below = folder[len(top) :]
        for name in sorted(names):
            if name.endswith(kinds):
                with open(f"{folder}/{name}", "rb") as file:  # noqa: PTH123
                    content = file.read()
                hasher.update(f"{below}/{name}\0{digest_bytes(content)}\0".encode())
    return PREFIX + hasher.hexdigest()


def _code_digest(name: str) -> str | None:
    """The digest of a top-level package or module, or None where it is not installed, so that none of it is used."""
    spec = find_spec(name)
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin)
    return tree_digest(path.parent) if spec.submodule_search_locations else digest_file(path)


def _package(name: str) -> Path:
    """The directory of an installed package, which is not imported."""
    spec = find_spec(name)
    if spec is None or spec.origin is None:
        raise ToolchainError(f"the package {name} is not installed in this environment; install aotpack[build]")
    return Path(spec.origin).parent


def _distributions() -> list[str]:
    """Names and versions of all that is installed, as their directories spell them."""
    found = set()
    for entry in map(Path, sys.path):
        if entry.is_dir():
            found |= {path.name for pattern in ("*.dist-info", "*.egg-info") for path in entry.glob(pattern)}
    return sorted(found)


def _environment() -> dict[str, str]:
    return {
        name: value
        for name, value in sorted(os.environ.items())
        if not dropped(name) and name not in _SESSION and not name.startswith(_SESSION_PREFIXES)
    }
