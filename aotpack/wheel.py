"""Wheels: a bundle as a Python package, so that ``pip install`` is all that it takes to have its kernels.

A wheel carries a store (see ``aotpack.store``), which serves from where pip puts it: nothing is unpacked when a
process loads. It is found through the entry point group ``aotpack.bundles``, whose entry points name packages with a
directory ``store`` in them. The manifest in it is the bundle's own, byte for byte, so its digest is the bundle's
identity even where the wheel carries the kernels of one architecture alone; ``store/carries.json`` says which those
are. ``python -m`` of the package checks it. The bundle's signatures go along, since its digest is what they are of.

Kernels serve every Python (``py3-none-any``); native helpers one of them on one machine, so a bundle with helpers
makes a wheel for each Python. A wheel requires aotpack and nothing else: a requirement of the engine or of Triton
would hold back an upgrade, while kernels that no longer fit are just not found.

The same bundle gives the same bytes, whoever makes the wheel, wherever and when; with another zlib the compressed
bytes may differ, and the files in them do not.
"""

import base64
import hashlib
import os
import re
import stat
import time
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

from packaging.utils import InvalidName, canonicalize_name
from packaging.version import InvalidVersion, Version

from aotpack import __version__, selftest
from aotpack.archive import MANIFEST
from aotpack.artifacts import refuse_unfit
from aotpack.atomic import write_atomically
from aotpack.bundle import Bundle
from aotpack.digests import canonical_json
from aotpack.elf import release
from aotpack.errors import OutputError, UsageError
from aotpack.fitting import wanted_targets
from aotpack.manifest import Helper, Manifest, narrow
from aotpack.signatures import IN_STORE, Signatures, find_signatures
from aotpack.store import blob_path, kinds_of
from aotpack.targets import Target

GROUP = "aotpack.bundles"
"""The entry point group of packages that carry a store."""

LEVEL = 6
"""Of deflate, the one compression that every installer reads; 9 takes six times as long and saves one per cent."""

_EARLIEST, _LATEST = 315532800, 4354819198
"""The times that a zip archive can hold, in seconds since the epoch: 1980-01-01 to 2107-12-31."""

_LOWEST_GLIBC = (2, 17)
"""Of the manylinux tags that every pip with Python 3.10 or later knows on all machines (PEP 599)."""

_SUFFIX = re.compile(r"\.cpython-(?P<major>\d)(?P<minor>\d+)(?P<abi>[a-z]*)-(?P<machine>\w+)-linux-gnu\.so", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wheel:
    """A wheel that was written.

    Attributes:
        path: the file.
        size: in bytes.
        entries: compile keys that it carries.
        helpers: native helpers that it carries.
    """

    path: Path
    size: int
    entries: int
    helpers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """What goes into one wheel.

    Attributes:
        bundle: where it comes from.
        part: what the bundle's manifest says of what it carries.
        signatures: the bundle's, where it has any.
    """

    bundle: Bundle
    part: Manifest
    signatures: Signatures | None

    @property
    def project(self) -> str:
        """The project: ``aotpack-kernels-vllm-sm90``."""
        engine = self.part.engine
        name = "-".join(["aotpack-kernels", engine, *(target.short for target in self.part.targets)])
        try:
            return canonicalize_name(name, validate=True)
        except InvalidName:
            raise UsageError(
                f"{self.bundle.path}: a wheel cannot be named after the engine {engine!r}: "
                "names of packages have ASCII letters, digits, '.', '-' and '_' alone; use the bundle itself"
            ) from None

    @property
    def package(self) -> str:
        """The package to import: ``aotpack_kernels_vllm_sm90``."""
        return self.project.replace("-", "_")

    @property
    def tag(self) -> str:
        """Python, ABI and platform that it is for: ``cp311-cp311-manylinux_2_17_x86_64``, or ``py3-none-any``."""
        if not self.part.helpers:
            return "py3-none-any"
        found = _python_of(self.part.helpers[0])
        glibc = max([_LOWEST_GLIBC, *(release(helper.glibc)[:2] for helper in self.part.helpers)])
        python = f"cp{found['major']}{found['minor']}"
        return f"{python}-{python}{found['abi']}-manylinux_{glibc[0]}_{glibc[1]}_{found['machine']}"


def write_wheels(
    bundle: Bundle,
    directory: Path,
    *,
    targets: Sequence[Target] = (),
    minors: Sequence[str] | None = None,
    max_size: int | None = None,
    signature: Path | None = None,
) -> tuple[Wheel, ...]:
    """Write the wheels of a bundle; each appears whole or not at all.

    Args:
        bundle: the bundle.
        directory: where they go, under their usual names.
        targets: of the bundle's, whose kernels go in; none means all.
        minors: the Pythons whose native helpers go in, a wheel for each, such as ``3.11``; none of them means one
            wheel without helpers. None means all that the bundle has helpers for.
        max_size: bytes that no wheel may exceed.
        signature: where the bundle's signatures lie, which the wheels carry along; None means beside it, if anywhere.

    Raises:
        AlteredError, TrustError: the signatures are damaged, of another bundle, or cannot be read.
        UsageError: the bundle has no such target or Python, or cannot be named or numbered as wheels are.
        BundleError: the bundle is damaged, or what it holds is not what it should be; nothing is written.
        OutputError: a wheel would exceed ``max_size``, and none is written; or it cannot be written.
    """
    if not directory.is_dir():
        raise OutputError(f"{directory}: no such directory; create it, or choose another --output")
    wanted = wanted_targets(bundle.manifest, str(bundle.path), targets)
    parts = [narrow(bundle.manifest, wanted, suffix) for suffix in _suffixes(bundle, minors)]
    signatures = find_signatures(bundle.path, bundle.digest, signature)
    plans = [_Plan(bundle=bundle, part=part, signatures=signatures) for part in parts]
    version = wheel_version(bundle)
    blobs = dict(refuse_unfit(bundle.path, bundle.manifest.entries, bundle.blobs()))
    wheels = [
        (directory / f"{plan.package}-{version}-{plan.tag}.whl", _archive(_files(plan, version, blobs)))
        for plan in plans
    ]
    for path, data in wheels:
        if max_size is not None and len(data) > max_size:
            raise OutputError(
                f"{path.name}: would have {len(data):,} bytes, more than the {max_size:,} allowed; nothing was "
                "written: make a wheel for each architecture with --arch, or allow more with --max-size"
            )
    for path, data in wheels:
        try:
            write_atomically(path, [data])
        except OSError as error:
            raise OutputError(
                f"{path}: cannot be written: {error.strerror}; nothing is left there; free space or use another "
                "--output"
            ) from None
    return tuple(
        Wheel(path=path, size=len(data), entries=len(part.entries), helpers=len(part.helpers))
        for part, (path, data) in zip(parts, wheels, strict=True)
    )


def _suffixes(bundle: Bundle, minors: Sequence[str] | None) -> list[str | None]:
    """Whose native helpers go in, a wheel for each; None stands for a wheel without any."""
    pythons = {helper.suffix: helper for helper in bundle.manifest.helpers}
    if minors is not None and not minors:
        return [None]
    known = {suffix: _python_of(helper).expand(r"\g<major>.\g<minor>\g<abi>") for suffix, helper in pythons.items()}
    for minor in minors or ():
        if minor not in known.values():
            listed = ", ".join(known.values()) or "none"
            raise UsageError(
                f"{bundle.path}: has no native helpers for Python {minor}; it has {listed}: choose from them with "
                "--python, or build the bundle with that Python"
            )
    return [suffix for suffix, minor in known.items() if minors is None or minor in minors] or [None]


def _python_of(helper: Helper) -> re.Match[str]:
    found = _SUFFIX.fullmatch(helper.suffix)
    if found is None:
        raise UsageError(
            f"{helper.file}: is for a Python that no wheel can be tagged for; leave native helpers out with "
            "--python none"
        )
    return found


def wheel_version(bundle: Bundle) -> str:
    """The version of a bundle's wheels: the engine's, with Triton's release as number of a post-release.

    ``0.33.0.post30800`` is vLLM 0.33.0 with Triton 3.8.0, so that ``==0.33.0.*`` finds it and newer engines, then
    newer Tritons, sort after older ones. Where the engine's release is a post-release or a development release, its
    number comes before Triton's: ``0.33.0.post1030800``. Local parts, which an index does not take, are left out.

    Raises:
        UsageError: the engine's or Triton's release is none that packages can have.
    """
    manifest = bundle.manifest
    try:
        engine, triton = Version(manifest.engine_version), Version(manifest.toolchain.triton)
    except InvalidVersion as error:
        raise UsageError(f"{bundle.path}: a wheel cannot be numbered: {error}; use the bundle itself") from None
    number = triton.major * 10_000 + triton.minor * 100 + triton.micro
    text = engine.public
    for name, given in (("post", engine.post), ("dev", engine.dev)):
        if given is not None:
            folded = f".{name}{given * 1_000_000 + number}"
            return str(Version(text.replace(f".{name}{given}", folded)))
    return f"{text}.post{number}"


def _files(plan: _Plan, version: str, blobs: Mapping[str, bytes]) -> dict[str, bytes]:
    """The files of a wheel and their contents, in their order: the package's, then those about it, RECORD last."""
    store = f"{plan.package}/store"
    carries = {
        "bundle": plan.bundle.digest,
        "targets": [str(target) for target in plan.part.targets],
        "helpers": plan.part.helpers[0].suffix if plan.part.helpers else None,
    }
    package = {
        f"{plan.package}/__init__.py": f'"""{_summary(plan)}."""\n'.encode(),
        f"{plan.package}/__main__.py": Path(selftest.__file__).read_bytes(),
        f"{store}/{selftest.CARRIES}": (canonical_json(carries) + "\n").encode(),
        f"{store}/{MANIFEST}": plan.bundle.manifest.to_bytes(),
    }
    if plan.signatures is not None:
        package[f"{store}/{IN_STORE}"] = plan.signatures.to_bytes()
    package |= {
        f"{store}/{blob_path(digest, kind)}": blobs[digest]
        for digest, kinds in kinds_of(plan.part).items()
        for kind in kinds
    }
    about = f"{plan.package}-{version}.dist-info"
    described = {
        f"{about}/METADATA": _metadata(plan, version).encode(),
        f"{about}/WHEEL": (
            f"Wheel-Version: 1.0\nGenerator: aotpack {__version__}\n"
            f"Root-Is-Purelib: {'false' if plan.part.helpers else 'true'}\nTag: {plan.tag}\n"
        ).encode(),
        f"{about}/entry_points.txt": f"[{GROUP}]\n{plan.package} = {plan.package}\n".encode(),
    }
    files = dict(sorted(package.items())) | dict(sorted(described.items()))
    record = "".join(f"{name},sha256={_record_digest(data)},{len(data)}\n" for name, data in files.items())
    return files | {f"{about}/RECORD": f"{record}{about}/RECORD,,\n".encode()}


def _record_digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def _summary(plan: _Plan) -> str:
    part, archs = plan.part, ", ".join(target.short for target in plan.part.targets)
    return (
        f"Triton kernels of {part.engine} {part.engine_version} for {archs}, "
        f"compiled ahead of time with Triton {part.toolchain.triton}"
    )


def _metadata(plan: _Plan, version: str) -> str:
    """The METADATA file (core metadata 2.1)."""
    part = plan.part
    pins = (f"{part.engine}=={part.engine_version}", f"triton=={part.toolchain.triton}")
    helpers = f"{len(part.helpers)}, for `{part.helpers[0].suffix}`" if part.helpers else "none"
    return f"""\
Metadata-Version: 2.1
Name: {plan.project}
Version: {version}
Summary: {_summary(plan)}
Keywords: {",".join(("aotpack", "triton", *pins, *(target.short for target in part.targets)))}
Classifier: Environment :: GPU :: NVIDIA CUDA
Classifier: Operating System :: POSIX :: Linux
Classifier: Programming Language :: Python :: 3
Requires-Python: >=3.10
Requires-Dist: aotpack>={Version(__version__).public}
Description-Content-Type: text/markdown

{_summary(plan)}.

`aotpack.activate()` finds and serves them in the process. With another engine or Triton they are not used, and
Triton compiles as ever.

| | |
|---|---|
| engine | `{pins[0]}` |
| Triton | `{pins[1]}` |
| entries | {len(part.entries)} |
| native helpers | {helpers} |
| families | {", ".join(part.families)} |
| bundle | `{plan.bundle.digest}` |

`python -m {plan.package}` checks the files against the bundle's manifest.
"""


def _archive(files: Mapping[str, bytes]) -> bytes:
    """A zip archive of files, whose bytes depend on nothing but them."""
    buffer, moment = BytesIO(), _moment()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in files.items():
            member = zipfile.ZipInfo(name, moment)
            member.create_system = 3  # Unix, wherever this runs
            member.external_attr = (stat.S_IFREG | 0o644) << 16
            archive.writestr(member, data, zipfile.ZIP_DEFLATED, LEVEL)
    return buffer.getvalue()


def _moment() -> tuple[int, int, int, int, int, int]:
    """When the files were made: ``SOURCE_DATE_EPOCH``, in seconds since the epoch, else the first day of zip."""
    text = os.environ.get("SOURCE_DATE_EPOCH") or str(_EARLIEST)
    if not text.isdecimal():
        raise UsageError(f"SOURCE_DATE_EPOCH: expected seconds since 1970, found {text!r}; correct or unset it")
    return time.gmtime(min(max(int(text), _EARLIEST), _LATEST))[:6]
