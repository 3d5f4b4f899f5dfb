"""The doctor: this machine against its bundles, one row for each thing that decides hit, miss or failure.

Each probe looks at one subject and answers with a ``Section``. None raises because a thing is absent or broken:
no Triton, no engine, no GPU, no cache directory are rows, and findings only where a bundle needs them.

Codes D1xx are errors: kernels would not be found, or a launch would fail. Codes D2xx are warnings.
"""

import errno
import hashlib
import json
import os
import platform
import pwd
import re
import shutil
import subprocess
import sysconfig
import tempfile
from base64 import urlsafe_b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path

from packaging.version import Version

from aotpack.bundle import Bundle
from aotpack.digests import hex_of
from aotpack.documents import parse_document
from aotpack.engines import DEFAULT, installed_engine, same_release
from aotpack.errors import CacheError, DocumentError, IncompatibleError, ToolchainError
from aotpack.findings import Finding
from aotpack.fitting import fit_bundle
from aotpack.gpus import Driver, read_driver
from aotpack.mounts import mount_of, read_table
from aotpack.receipts import OURS, Receipt, read_receipt
from aotpack.targets import Target
from aotpack.toolchain import Toolchain, local_toolchain
from aotpack.tritoncache import GROUP_PREFIX, directory_name, is_whole, resolved_directory, same_directory

_SPARE_BYTES, _SPARE_INODES = 16 << 20, 256
"""What should be free beside what is installed: about thirty kernels that are compiled there, IR and all."""

_SEVERAL_NODES = (
    "a directory of its own on each node or in each pod (a local disk, emptyDir, the image itself), never a shared one"
)

_BLOCK = 4096
_FILES_PER_ENTRY = 4  # the directory, the cubin, the metadata, the group file

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """What one probe saw.

    Attributes:
        title: its subject.
        rows: names and values, in order.
        findings: what is wrong with it.
    """

    title: str
    rows: tuple[tuple[str, str], ...]
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """All that the doctor saw, in the order in which a launch depends on it."""

    sections: tuple[Section, ...]

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What is wrong, in order."""
        return tuple(finding for section in self.sections for finding in section.findings)

    @property
    def errors(self) -> tuple[Finding, ...]:
        """The findings with which kernels would not be found, or launches would fail."""
        return tuple(finding for finding in self.findings if is_error(finding))


def is_error(finding: Finding) -> bool:
    """Whether a finding of the doctor is more than a warning: one of its own, or of what an install would refuse."""
    return finding.code.startswith(("D1", "I"))


def diagnose(bundle: Bundle | None = None, given: Path | None = None) -> Diagnosis:
    """Look at this machine.

    Args:
        bundle: the bundle that is to serve here; without one, the bundles installed in the cache directory count.
        given: the cache directory to look at, in place of the one that Triton would take.
    """
    environment = dict(os.environ)
    cache = resolved_directory(given)
    receipts, installed = probe_receipts(cache)
    held = {target for target, _ in installed_for(cache, receipts)}
    targets = bundle.manifest.targets if bundle else tuple(sorted(held))
    there = bundle is not None and bundle.digest in {receipt.bundle for receipt in receipts}
    local = _local(targets)
    tools = [_tool(name, environment) for name in ("ptxas", "ptxas-blackwell")]
    sections = [
        probe_cache(cache, given, environment, read_table(), None if there else bundle),
        probe_triton(environment, local, needed=bundle is not None or bool(receipts)),
        probe_ptxas(tools, environment, bundle),
        _probe_python(),
        probe_engine(bundle),
        probe_gpus(read_driver(), targets, {target: _toolkit(target, tools, bundle) for target in targets}),
        probe_helpers(cache, environment, bundle),
        installed,
    ]
    if bundle:
        sections.append(_probe_bundle(bundle, cache, local, installed=there))
    return Diagnosis(sections=tuple(sections))


# --- the cache directory


def probe_cache(
    cache: Path,
    given: Path | None,
    environment: Mapping[str, str],
    mounts: str,
    bundle: Bundle | None = None,
) -> Section:
    """Where the cache directory is, who says so, who would move it, and whether it can do its work.

    Args:
        cache: the directory.
        given: what the user asked for, if that is why.
        environment: the variables that Triton would read.
        mounts: the table of mounts, as ``read_table`` gives it.
        bundle: what has to fit into it.
    """
    findings: list[Finding] = []
    say = _Findings(findings, str(cache))
    nearest = _nearest(cache)
    hint = _elsewhere(environment, mounts)
    rows = [
        ("directory", f"{cache}{'' if nearest == cache else ' (not there yet)'}"),
        ("set by", _chooser(given, environment, say)),
        ("moved by", _mover(cache, environment, say)),
    ]
    trouble = _write_trouble(nearest)
    readable = nearest != cache or os.access(cache, os.R_OK | os.X_OK)
    full = trouble is not None and trouble.errno in (errno.ENOSPC, errno.EDQUOT)
    if trouble and not full:
        what = "cannot be written" if nearest == cache else f"cannot be created in {nearest}"
        say("D101", f"{what} by uid {os.geteuid()}: {trouble.strerror}; a launch that has to compile fails there", hint)
    if not readable:
        say("D102", f"cannot be read by uid {os.geteuid()}", f"make it readable (chmod a+rX), or {hint}")
    access = ("readable" if readable else "not readable", "not writable" if trouble else "writable")
    rows.append(("access", ", ".join(access)))

    mount = mount_of(Path(os.path.realpath(nearest)), mounts)
    if mount:
        rows.append(("file system", f"{mount.kind} on {mount.point} ({','.join(mount.options)})"))
        if "noexec" in mount.options:
            say("D103", f"{mount.point} is mounted noexec, so Triton's native helpers (.so) cannot be loaded", hint)
        if mount.network:
            say(
                "D201",
                f"{mount.point} is a network file system ({mount.kind}); renames fail there with EBUSY and ESTALE, "
                "and machines share what they should not",
                hint,
            )
    else:
        rows.append(("file system", "unknown"))
    rows.append(("free", _free(nearest, bundle, say, hint)))
    rows.append(("several nodes", _SEVERAL_NODES))
    return Section(title="cache", rows=tuple(rows), findings=tuple(findings))


class _Findings:
    """Adds findings about one subject to a list."""

    def __init__(self, findings: list[Finding], subject: str) -> None:
        self._findings = findings
        self._subject = subject

    def __call__(self, code: str, detail: str, hint: str = "") -> None:
        self._findings.append(Finding(code=code, subject=self._subject, detail=detail, hint=hint))


def _chooser(given: Path | None, environment: Mapping[str, str], say: _Findings) -> str:
    """Who decides where the cache is, as ``triton/knobs.py`` and ``os.path.expanduser`` do.

    Triton takes a ``TRITON_CACHE_DIR`` that is set to nothing at its word and refuses to work ("Could not create or
    locate cache dir", triton/runtime/cache.py, in 3.6 to 3.9); vLLM 0.33 fails to create it.
    """
    directory = environment.get("TRITON_CACHE_DIR")
    if directory == "":
        say("D105", "TRITON_CACHE_DIR is set to nothing, which Triton takes for no directory at all", "unset it")
    if given is not None:
        return "--cache-dir"
    for name in ("TRITON_CACHE_DIR", "TRITON_HOME", "HOME"):
        if value := environment.get(name):
            if not os.path.isabs(value):  # noqa: PTH117  # Path would not tell an empty one
                say("D203", f"{name}={value} is relative, so each process looks below its own working directory")
            return f"{name}={value}"
    if "HOME" in environment:
        return "HOME, which is set to nothing and so means /"
    try:
        return f"the passwd entry of uid {os.getuid()}: {pwd.getpwuid(os.getuid()).pw_dir}"
    except KeyError:
        say("D203", f"HOME is not set and uid {os.getuid()} has no passwd entry, so ~ is a name like any other")
        return f"nothing: HOME is not set, and uid {os.getuid()} has no passwd entry"


def _mover(cache: Path, environment: Mapping[str, str], say: _Findings) -> str:
    """Who would make a serving process look elsewhere.

    vLLM 0.33 sets ``TRITON_CACHE_DIR`` where it compiles models, unless it is set (vllm/compilation/
    compiler_interface.py, ``initialize_inductor_cache``), and so does Inductor for its own kernels (torch/_inductor/
    runtime/triton_heuristics.py).
    """
    directory = environment.get("TRITON_CACHE_DIR")
    if directory and resolved_directory(Path(directory)) == cache:
        return "nothing, while TRITON_CACHE_DIR is set"
    now = f"set TRITON_CACHE_DIR={cache} for the process that serves"
    own = resolved_directory(None, environment)
    if own != cache:
        say("D202", f"a process that serves with this environment looks in {own}", now)
        return f"the environment, to {own}"
    say("D202", "vLLM, where it compiles models, and Inductor look elsewhere unless TRITON_CACHE_DIR is set", now)
    return "vLLM (to triton_cache below its own compile cache) and Inductor, since TRITON_CACHE_DIR is not set"


def _nearest(path: Path) -> Path:
    """The path itself, or the nearest directory above it that is there."""
    while not os.path.lexists(path) and path != path.parent:
        path = path.parent
    return path


def _write_trouble(directory: Path) -> OSError | None:
    """What writing a file in a directory fails with; the file has no name, or is gone again."""
    try:
        with tempfile.TemporaryFile(dir=directory) as file:
            file.write(b"\0" * _BLOCK)
            file.flush()
    except OSError as error:
        return error
    return None


def _elsewhere(environment: Mapping[str, str], mounts: str) -> str:
    """What to do where a directory will not do: the next one that will."""
    bases = [environment.get("XDG_CACHE_HOME"), environment.get("TMPDIR"), "/tmp", "/var/tmp", "/dev/shm"]  # noqa: S108
    for base in filter(None, bases):
        mount = mount_of(Path(os.path.realpath(base)), mounts)
        unfit = mount is not None and (mount.network or "noexec" in mount.options)
        if not unfit and _write_trouble(Path(base)) is None:
            return f"set TRITON_CACHE_DIR={Path(base) / f'triton-{os.geteuid()}'}, which can be written here"
    return "set TRITON_CACHE_DIR to a local directory that can be written; none was found here"


def _free(directory: Path, bundle: Bundle | None, say: _Findings, hint: str) -> str:
    try:
        space = os.statvfs(directory)
    except OSError as error:
        return f"unknown: {error.strerror}"
    free = space.f_bavail * space.f_frsize
    need, inodes = _need(bundle) if bundle else (_SPARE_BYTES, _SPARE_INODES)
    if free < need:
        say("D104", f"has {free:,} bytes free and needs {need:,}", f"free some, or {hint}")
    # A file system without a limit on inodes says 0 of 0.
    limited = space.f_files > 0
    if limited and space.f_favail < inodes:
        say("D104", f"has {space.f_favail:,} inodes free and needs {inodes:,}", f"free some, or {hint}")
    return f"{free:,} bytes, {f'{space.f_favail:,} inodes' if limited else 'inodes without a limit'}"


def _need(bundle: Bundle) -> tuple[int, int]:
    """Bytes and inodes that a bundle's entries take, each file in whole blocks."""
    entries = bundle.manifest.entries
    files = sum(-(-artifact.size // _BLOCK) for entry in entries for _, artifact in entry.artifacts)
    size = (files + 2 * len(entries)) * _BLOCK  # the group file and the directory take a block each
    return size + _SPARE_BYTES, _FILES_PER_ENTRY * len(entries) + _SPARE_INODES


# --- Triton and its tools


def _local(targets: Sequence[Target]) -> Toolchain | str:
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
    root, found = _package("triton"), _distribution("triton", "pytorch-triton")
    findings: list[Finding] = []
    say = _Findings(findings, "Triton")
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


def _package(name: str) -> Path | None:
    """Where a package lies, without importing it."""
    try:
        spec = find_spec(name)
    except (ImportError, ValueError):
        return None
    return Path(spec.origin).parent if spec is not None and spec.origin else None


def _distribution(*names: str) -> Distribution | None:
    for name in names:
        try:
            return distribution(name)
        except PackageNotFoundError:
            continue
    return None


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
        for path in _found(root / walked, "**/*.py"):
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


def _tool(name: str, environment: Mapping[str, str]) -> Tool:
    variable = f"TRITON_{name.upper().replace('-', '_')}_PATH"
    asked = environment.get(variable)
    if asked and (release := _release_of(Path(asked))):
        return Tool(name=name, path=Path(asked), chosen_by=variable, release=release)
    root = _package("triton")
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
        if tool.path is None and _package("triton"):
            detail = "neither the one asked for nor the wheel's runs, and Triton asks for its release even on a hit"
            findings.append(Finding(code="D118", subject=tool.name, detail=detail, hint="reinstall Triton"))
        elif tool.ignored:
            now = "correct the variable, or unset it"
            detail = f"{tool.ignored} was asked for and does not run; Triton says nothing and takes its own"
            findings.append(Finding(code="D206", subject=tool.name, detail=detail, hint=now))
    torch = _package("torch")
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


def _toolkit(target: Target, tools: Sequence[Tool], bundle: Bundle | None) -> str:
    """The CUDA release that assembled a target's kernels: the bundle's, else what would here."""
    if bundle:
        return _release(dict(bundle.manifest.toolchain.assemblers).get(str(target), ""))
    return tools[target.arch >= _BLACKWELL].release


# --- Python and the engine


def _probe_python() -> Section:
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
    found = _distribution(name)
    here = f"{name} {found.version}" if found else f"{name} is not installed in this environment"
    rows = [("installed", here)]
    if bundle:
        rows.append(("the bundle's", f"{name} {bundle.manifest.engine_version}"))
    return Section(title="engine", rows=tuple(rows))


# --- GPUs


def probe_gpus(driver: Driver | None, targets: Sequence[Target], toolkits: Mapping[Target, str]) -> Section:
    """The GPUs here, each against the kernels' targets, and the driver against the CUDA that assembled them.

    A driver loads what any toolkit of its own major release or of an older one made, given the first driver of that
    major: "minor version compatibility" and binary backward compatibility (NVIDIA, CUDA Compatibility, "Minor
    Version Compatibility": https://docs.nvidia.com/deploy/cuda-compatibility/). It promises nothing of a newer major.

    Args:
        driver: what was asked of it, or None where there is none.
        targets: of the bundle, or of what is installed.
        toolkits: the CUDA release that assembled each target's kernels, "12.9".
    """
    if driver is None:
        return Section(title="GPU", rows=(("driver", "none (no libcuda.so.1): nothing can be launched here"),))
    findings: list[Finding] = []
    say = _Findings(findings, "driver")
    cuda = f"CUDA {driver.cuda[0]}.{driver.cuda[1]}" if driver.cuda else "of an unknown release"
    rows = [("driver", cuda)]
    if driver.trouble:
        say("D112", driver.trouble, "run nvidia-smi on the host; in a container, mount the driver that matches it")
    archs = list(dict.fromkeys(gpu.arch for gpu in driver.gpus))
    counts = {gpu: driver.gpus.count(gpu) for gpu in driver.gpus}
    rows += [("GPU", f"{count} x {gpu.name} (sm{gpu.arch})") for gpu, count in counts.items()]
    if not driver.gpus:
        rows.append(("GPU", "unknown" if driver.trouble else "none that this process may see"))
    available = {target.arch: target for target in targets}
    for arch in archs if available else ():
        if arch not in available:
            held = ", ".join(target.short for target in targets)
            findings.append(
                Finding(
                    code="D110",
                    subject=next(gpu.name for gpu in driver.gpus if gpu.arch == arch),
                    detail=f"is sm{arch}, and the kernels are for {held}; it will compile its own",
                    hint=f"build a bundle with --arch sm{arch}",
                )
            )
            continue
        toolkit = toolkits.get(available[arch], "")
        if toolkit and driver.cuda and int(toolkit.split(".")[0]) > driver.cuda[0]:
            say(
                "D111",
                f"supports {cuda}, and the kernels of sm{arch} were assembled with CUDA {toolkit}, of a newer major",
                f"update the driver to one of CUDA {toolkit.split('.')[0]}, or add cuda-compat to the image",
            )
        elif toolkit:
            rows.append((f"sm{arch}", f"assembled with CUDA {toolkit}, which this driver loads"))
    return Section(title="GPU", rows=tuple(rows), findings=tuple(findings))


# --- native helpers


def probe_helpers(cache: Path, environment: Mapping[str, str], bundle: Bundle | None) -> Section:
    """Whether Triton's native helpers are there, or can be built here.

    Every release builds ``cuda_utils`` with a C compiler when the driver is first used, and up to 3.6 one
    ``__triton_launcher`` for each signature as well (triton/backends/nvidia/driver.py). ``/sbin/ldconfig`` is run
    before, even where all is in the cache, unless ``TRITON_LIBCUDA_PATH`` is set. Whether ``file`` is there enters
    the helpers' keys (triton/runtime/build.py, ``platform_key``).
    """
    findings: list[Finding] = []
    say = _Findings(findings, "native helpers")
    compiler, trouble = _compiler(environment)
    file, ldconfig = shutil.which("file"), Path("/sbin/ldconfig")
    rows = [("C compiler", compiler or trouble), ("file", file or "none")]
    rows.append(("ldconfig", str(ldconfig) if ldconfig.exists() else "none"))
    found = _distribution("triton", "pytorch-triton")
    if found is None:
        return Section(title="native helpers", rows=tuple(rows), findings=tuple(findings))
    held = helpers_held(cache, found.version, bundle)
    launchers = " and one launcher for each signature" if _has_launchers(found.version) else ""
    rows.append((f"Triton {Version(found.version).public}", f"needs cuda_utils{launchers}"))
    rows.append(("helpers", held or "none yet for this Python: a C compiler is needed"))
    if not held and trouble:
        say(
            "D113",
            f"none are here for this Python, and none can be built: {trouble}",
            "install gcc and Python's headers",
        )
    if not ldconfig.exists() and not environment.get("TRITON_LIBCUDA_PATH"):
        say(
            "D114",
            "Triton runs /sbin/ldconfig to find the driver, and it is not there",
            f"set TRITON_LIBCUDA_PATH=/usr/lib/{platform.machine()}-linux-gnu, or where libcuda.so.1 lies",
        )
    return Section(title="native helpers", rows=tuple(rows), findings=tuple(findings))


def helpers_held(cache: Path, triton: str, bundle: Bundle | None) -> str:
    """Where this Python's helpers are, or "" where they are not: in the bundle, or in the cache directory.

    Args:
        cache: the cache directory.
        triton: the release of Triton.
        bundle: the bundle that is to serve here.
    """
    names = ("cuda_utils", "__triton_launcher") if _has_launchers(triton) else ("cuda_utils",)
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    if all(_found(cache, f"*/{name}{suffix}") for name in names):
        return "in the cache directory, for this Python"
    if bundle is not None and any(helper.suffix == suffix for helper in bundle.manifest.helpers):
        return "in the bundle, for this Python"
    return ""


def _has_launchers(triton: str) -> bool:
    return Version(triton) < Version("3.7")


def _compiler(environment: Mapping[str, str]) -> tuple[str, str]:
    """The compiler that Triton would call, and what stands in its way (triton/runtime/build.py)."""
    asked = environment.get("CC")
    path = shutil.which(asked) if asked is not None else shutil.which("gcc") or shutil.which("clang")
    if path is None:
        return "", f"CC={asked} is not there" if asked is not None else "no gcc and no clang on PATH"
    header = Path(sysconfig.get_paths()["include"]) / "Python.h"
    if not os.access(header, os.R_OK):  # Path.is_file raises where a directory above it is closed
        return "", f"{path} is there, and {header} is not"
    return path, ""


# --- what is installed, and what is to be


def probe_receipts(cache: Path) -> tuple[list[Receipt], Section]:
    """The bundles installed in a cache directory."""
    here = _distribution("triton", "pytorch-triton")
    receipts: list[Receipt] = []
    rows: list[tuple[str, str]] = []
    findings: list[Finding] = []
    for path in _found(cache / OURS / "receipts", "*.json"):
        try:
            receipt = read_receipt(path, cache)
            before = Path(parse_document(path.read_bytes()).field("cache").text())
        except (CacheError, DocumentError, OSError) as error:
            findings.append(Finding(code="D115", subject=str(path), detail=str(error)))
            continue
        receipts.append(receipt)
        entries = sum(f"/{GROUP_PREFIX}" in file.path for file in receipt.files)
        digest = hex_of(receipt.bundle)[:12]
        kinds = installed_for(cache, [receipt])
        whose = ", ".join(f"{target.short} with Triton {triton}" for target, triton in kinds) or "none that can be read"
        rows.append((digest, f"{receipt.name}: {entries} kernels, {whose}"))
        others = sorted({triton for _, triton in kinds if here and not same_release(here.version, triton)})
        if here and others:
            findings.append(
                Finding(
                    code="D108",
                    subject=digest,
                    detail=f"its kernels are of Triton {', '.join(others)}, and this environment has {here.version}",
                    hint=f"install a bundle for Triton {here.version}",
                )
            )
        if not same_directory(before, cache):
            findings.append(
                Finding(
                    code="D116",
                    subject=digest,
                    detail=f"was installed into {before}, and lies in {cache} now; its entries name the old place",
                    hint="aotpack verify --fix writes them for this place",
                )
            )
    return receipts, Section(title="installed", rows=tuple(rows) or (("bundles", "none"),), findings=tuple(findings))


def _found(directory: Path, pattern: str) -> list[Path]:
    """The files of a pattern, none where this user may not look, which is a finding of its own."""
    try:
        return sorted(directory.glob(pattern))
    except OSError:
        return []


def installed_for(cache: Path, receipts: Iterable[Receipt]) -> tuple[tuple[Target, str], ...]:
    """The targets and Triton releases of what receipts list, as Triton's own metadata beside each cubin says."""
    found = set()
    for receipt in receipts:
        for file in receipt.files:
            if file.path.endswith(".json") and f"/{GROUP_PREFIX}" not in file.path:
                try:
                    metadata = json.loads((cache / file.path).read_bytes())
                    target = metadata["target"]
                    target = Target(str(target["backend"]), int(target["arch"]), int(target["warp_size"]))
                    found.add((target, str(metadata["triton_version"])))
                except (OSError, ValueError, KeyError, TypeError):
                    continue  # verify's business
    return tuple(sorted(found))


def _probe_bundle(bundle: Bundle, cache: Path, local: Toolchain | str, *, installed: bool) -> Section:
    """Whether an install of a bundle would take it here, and whether its kernels lie where Triton will look."""
    manifest = bundle.manifest
    rows = [
        ("file", str(bundle.path)),
        ("digest", bundle.digest),
        ("holds", f"{len(manifest.entries)} kernels of {manifest.engine} {manifest.engine_version}"),
        ("for", f"{', '.join(target.short for target in manifest.targets)}, Triton {manifest.toolchain.triton}"),
    ]
    if isinstance(local, str):  # a finding of Triton's own section
        return Section(title="bundle", rows=(*rows, ("installs here", "no: there is no Triton to ask for its keys")))
    findings: list[Finding] = []
    say = _Findings(findings, bundle.path.name)
    try:
        fit = fit_bundle(bundle, engine=installed_engine(manifest.engine))
    except (IncompatibleError, ToolchainError) as error:
        say("D108", str(error))
        return Section(title="bundle", rows=(*rows, ("installs here", "no")), findings=tuple(findings))
    findings += fit.refused
    serving = [(entry.entry.name, key) for entry in fit.placements for key in entry.cache_keys]
    missing = sum(not is_whole(cache / directory_name(key), name) for name, key in serving)
    rows += [
        ("installs here", f"yes, {len(fit.placements)} of {len(manifest.entries)} kernels"),
        ("in the cache", f"{len(serving) - missing} of {len(serving)}"),
    ]
    if installed and missing:
        detail = f"{missing} of its kernels are not where this Triton will look, though it was installed"
        say("D117", f"{detail}: with another Python or engine, or damaged since", "install it again with this Python")
    return Section(title="bundle", rows=tuple(rows), findings=tuple(findings))
