"""Engines: where the files of an engine's release are. Nothing here imports an engine.

An engine is an installed distribution (``vllm``), a release on the package index (``vllm==0.33.0``, fetched by
pip without its dependencies and kept under the user's cache, Python files alone), a wheel, or a directory.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path, PurePosixPath

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version
from platformdirs import user_cache_path

from aotpack.atomic import directory_that_lands
from aotpack.digests import digest_file, hex_of
from aotpack.errors import EngineError, UsageError
from aotpack.findings import Finding

KNOWN = {"vllm": {"0.26.0": "3.6", "0.33.0": "3.8"}}
"""Releases that aotpack has been tested with, oldest first, and the Triton series that each runs with.

vLLM 0.33.0 requires torch 2.14.0, whose own requirement is triton 3.8; 0.26.0 torch 2.11.0, and that triton 3.6.0.
"""

DEFAULT = "vllm"
_VERSION_FILE = "_version.py"
_UNKNOWN_VERSION = "0+unknown"

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """One release of an engine, on disk.

    Attributes:
        name: the distribution's name, also the name of its package: "vllm".
        version: its release, or "0+unknown" for a tree that does not say.
        root: the directory that holds the package.
        origin: where it came from, for people.
    """

    name: str
    version: str
    root: Path
    origin: str

    @property
    def package(self) -> Path:
        """The package's own directory."""
        return self.root / self.name

    @property
    def version_files(self) -> tuple[Path, ...]:
        """The files by which its release is told, whether or not they are there."""
        described = self.root.glob(f"{self.name}-*.dist-info/METADATA")
        return (*sorted(described), self.package / _VERSION_FILE)

    def has(self, module: str) -> bool:
        """Whether this release has a module, or a package, of that dotted name."""
        place = self.root.joinpath(*module.split("."))
        return place.with_suffix(".py").is_file() or (place / "__init__.py").is_file()

    def __str__(self) -> str:
        """``vllm 0.33.0``."""
        return f"{self.name} {self.version}"

    def check(self, triton: str) -> list[Finding]:
        """What speaks against this release with this Triton: nothing that must stop a build.

        Args:
            triton: the release of the Triton that will compile.
        """
        known = KNOWN[self.name]
        if self.version not in known:
            return [
                Finding(
                    code="E101",
                    subject=str(self),
                    detail=f"aotpack has been tested with {', '.join(known)}; of this release only the kernels' "
                    "parameters were checked against what the families expect",
                    hint="compare with keys recorded from it before you rely on the bundle",
                )
            ]
        if not triton.startswith(known[self.version] + "."):
            return [
                Finding(
                    code="E102",
                    subject=str(self),
                    detail=f"it runs with Triton {known[self.version]}, and this bundle is for {triton}",
                    hint=f"only containers that have Triton {triton} will find these kernels",
                )
            ]
        return []


def same_release(one: str, other: str) -> bool:
    """Whether two spellings mean one public release: 0.33.0+cu130 is 0.33.0, and 0.6.10 is not 0.6.1.

    >>> same_release("0.33.0+cu130", "0.33.0"), same_release("0.6.10", "0.6.1")
    (True, False)
    """
    try:
        return Version(Version(one).public) == Version(Version(other).public)
    except InvalidVersion:
        return one == other


def cache_root() -> Path:
    """Where aotpack keeps what it downloads: ``AOTPACK_CACHE_DIR``, else the platform's user cache."""
    given = os.environ.get("AOTPACK_CACHE_DIR")
    return Path(given) if given else user_cache_path("aotpack")


def installed_engine(name: str) -> Engine | None:
    """The engine that is installed in this environment, or None where there is none, or one unknown to aotpack."""
    try:
        return _installed(name) if name in KNOWN else None
    except EngineError:
        return None


def find_engine(spec: str | None, say: Say) -> Engine:
    """The engine that ``spec`` means; None means vllm if it is installed, else the newest known release.

    Args:
        spec: ``vllm``, ``vllm==0.33.0``, a wheel's path, or a directory's.
        say: told what takes time, in one line each.

    Raises:
        UsageError: ``spec`` is none of these.
        EngineError: it cannot be found, downloaded, read, or unpacked.
    """
    if spec is None:
        return installed_engine(DEFAULT) or _released(DEFAULT, list(KNOWN[DEFAULT])[-1], say)
    path = Path(spec)
    if spec and path.is_dir():
        return _directory(path)
    if spec.endswith(".whl"):
        return _wheel(path, say)
    try:
        requirement = Requirement(spec)
    except InvalidRequirement:
        requirement = None
    if requirement is None or canonicalize_name(requirement.name) not in KNOWN or os.sep in spec:
        raise UsageError(
            f"{spec!r} is no engine: expected {', '.join(KNOWN)}, a release such as vllm==0.33.0, a wheel, "
            "or a directory that exists"
        )
    name = canonicalize_name(requirement.name)
    if not requirement.specifier:
        return _installed(name)
    pins = list(requirement.specifier)
    if len(pins) != 1 or pins[0].operator != "==" or "*" in pins[0].version:
        raise UsageError(f"{spec!r} must name one release; write {name}==0.33.0")
    return _released(name, pins[0].version, say)


def _installed(name: str) -> Engine:
    try:
        found = distribution(name)
    except PackageNotFoundError:
        raise EngineError(
            f"{name} is not installed in this environment; name a release such as {name}=={list(KNOWN[name])[-1]}, "
            "a wheel, or a directory"
        ) from None
    root = Path(str(found.locate_file("")))
    if not (root / name / "__init__.py").is_file():
        raise EngineError(f"{name} {found.version} is installed without a package at {root / name}; reinstall it")
    return Engine(name=name, version=found.version, root=root, origin="installed")


def _directory(path: Path) -> Engine:
    for name in KNOWN:
        for root in (path, path.parent):
            if (root / name / "__init__.py").is_file() and (root == path or path.name == name):
                return Engine(name=name, version=_version_in(root, name), root=root.resolve(), origin="directory")
    raise EngineError(f"{path}: no engine in this directory; expected one that holds {' or '.join(KNOWN)}")


def _version_in(root: Path, name: str) -> str:
    for info in sorted(root.glob(f"{name}-*.dist-info")):
        return info.name.removesuffix(".dist-info").partition("-")[2]
    version_file = root / name / _VERSION_FILE
    if version_file.is_file():
        match = re.search(
            r"^(?:__version__|version)\b[^'\"\n]*['\"]([^'\"]+)['\"]", version_file.read_text(), re.MULTILINE
        )
        if match:
            return match[1]
    return _UNKNOWN_VERSION


def _wheel(path: Path, say: Say) -> Engine:
    if not path.is_file():
        raise EngineError(f"{path}: no such wheel")
    try:
        name, version, _, _ = parse_wheel_filename(path.name)
    except InvalidWheelFilename as error:
        raise EngineError(f"{path}: {error}") from None
    if name not in KNOWN:
        raise EngineError(f"{path}: a wheel of {name}; expected one of {', '.join(KNOWN)}")
    try:
        digest = hex_of(digest_file(path))
    except OSError as error:
        raise EngineError(f"{path}: cannot be read: {error}") from None
    root = cache_root() / "engines" / f"{name}-{version}-{digest[:16]}"
    if not root.is_dir():
        say(f"unpacking the Python files of {path.name}")
        _unpack(path, name, root)
    return Engine(name=name, version=str(version), root=root, origin=path.name)


def _released(name: str, version: str, say: Say) -> Engine:
    root = cache_root() / "engines" / f"{name}-{version}"
    origin = f"{name}=={version}"
    if not root.is_dir():
        say(f"downloading {origin} (once; its Python files stay in {root})")
        try:
            with tempfile.TemporaryDirectory(prefix="aotpack-") as folder:
                wheel = _download(origin, Path(folder))
                say(f"unpacking the Python files of {wheel.name}")
                _unpack(wheel, name, root)
        except OSError as error:
            raise EngineError(f"{origin}: cannot be kept: {error}; set AOTPACK_CACHE_DIR to a writable place") from None
    return Engine(name=name, version=version, root=root, origin=origin)


def _download(requirement: str, folder: Path) -> Path:
    # pip's own progress bar is the progress; its words go to stderr, where ours go too.
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--only-binary=:all:",
        "--dest",
        str(folder),
    ]
    command += ["--disable-pip-version-check", requirement]
    if not sys.stderr.isatty():
        command.append("--quiet")
    done = subprocess.run(command, stdout=sys.stderr.fileno(), check=False)  # noqa: S603
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode or not wheels:
        raise EngineError(
            f"pip could not download {requirement} (exit {done.returncode}); check the release and the network, "
            "or give the wheel itself: --engine path/to/file.whl"
        )
    return wheels[0]


def _unpack(wheel: Path, name: str, root: Path) -> None:
    try:
        with directory_that_lands(root) as folder, zipfile.ZipFile(wheel) as archive:
            kept = 0
            for member in archive.infolist():
                parts = PurePosixPath(member.filename).parts
                if not parts or parts[0] != name or not member.filename.endswith(".py"):
                    continue
                if ".." in parts or "\\" in member.filename or "\0" in member.filename:
                    raise EngineError(f"{wheel}: refused a member with a path out of the wheel: {member.filename!r}")
                target = folder.joinpath(*parts)
                target.parent.mkdir(parents=True, exist_ok=True)
                with archive.open(member) as source, target.open("wb") as copy:
                    shutil.copyfileobj(source, copy)
                kept += 1
            if not kept:
                raise EngineError(f"{wheel}: holds no Python file of {name}")
    except (zipfile.BadZipFile, EOFError) as error:
        raise EngineError(f"{wheel}: not a readable wheel: {error}") from None
