"""Probes of the cache directory: where it is, who moves it, whether it can do its work."""

import errno
import os
import pwd
import tempfile
from collections.abc import Mapping
from pathlib import Path

from aotpack.bundle import Bundle
from aotpack.cachedirectory import resolved_directory
from aotpack.doctor.sections import Findings, Section
from aotpack.findings import Finding
from aotpack.mounts import mount_of

_SPARE_BYTES, _SPARE_INODES = 16 << 20, 256
"""What should be free beside what is installed: about thirty kernels that are compiled there, IR and all."""

_SEVERAL_NODES = (
    "a directory of its own on each node or in each pod (a local disk, emptyDir, the image itself), never a shared one"
)

_BLOCK = 4096

_FILES_PER_ENTRY = 4  # the directory, the cubin, the metadata, the group file


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
    say = Findings(findings, str(cache))
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


def _chooser(given: Path | None, environment: Mapping[str, str], say: Findings) -> str:
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


def _mover(cache: Path, environment: Mapping[str, str], say: Findings) -> str:
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


def _free(directory: Path, bundle: Bundle | None, say: Findings, hint: str) -> str:
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
