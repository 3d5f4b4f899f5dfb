"""Triton's cache directory: where it is, and whether anything of ours was installed in it.

Each process that could be served asks that, and most find nothing: so this needs little more than ``os``.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from aotpack.errors import CacheError

RECEIPTS = ".aotpack/receipts"
"""Where the receipts of installs lie in a cache directory, each named after its bundle's digest."""


def effective_directory(given: Path | None = None, environment: Mapping[str, str] | None = None) -> Path:
    """The directory that Triton will look in: ``given``, else as its knobs resolve it.

    ``TRITON_CACHE_DIR``, else ``$TRITON_HOME/.triton/cache``, else ``~/.triton/cache`` (triton/knobs.py,
    ``cache_knobs``); an empty variable counts as unset.

    Args:
        given: what the user asked for.
        environment: to read instead of the process's.

    Raises:
        CacheError: there is no home directory, so Triton would look below whatever directory it is started in.
    """
    variables = os.environ if environment is None else environment
    if given is None and not variables.get("TRITON_CACHE_DIR") and _home(variables).startswith("~"):
        raise CacheError(
            f"no home directory: HOME is unset and user {os.getuid()} has no passwd entry, so Triton would look below "
            f"the directory that it is started in; {advice()}"
        )
    return resolved_directory(given, environment)


def resolved_directory(given: Path | None = None, environment: Mapping[str, str] | None = None) -> Path:
    """As ``effective_directory``, even where it depends on the directory that a process is started in."""
    variables = os.environ if environment is None else environment
    directory = given or variables.get("TRITON_CACHE_DIR")
    # resolve() would follow links that mounts rely on.
    if directory:
        return Path(os.path.abspath(directory))  # noqa: PTH100
    return Path(os.path.abspath(_home(variables))) / ".triton" / "cache"  # noqa: PTH100


def _home(variables: Mapping[str, str]) -> str:
    return variables.get("TRITON_HOME") or os.path.expanduser("~")  # noqa: PTH111  # as Triton does


def receipt_paths(cache: Path) -> list[Path]:
    """Where the receipts of a cache directory lie, by bundle digest; whether they can be read is not asked.

    Raises:
        CacheError: the directory cannot be listed.
    """
    place = cache / RECEIPTS
    try:
        return sorted(path for path in place.iterdir() if path.name.endswith(".json"))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise CacheError(
            f"{place}: cannot be listed: {error.strerror}; run this as a user who may read {cache}, "
            "or name another directory with --cache-dir"
        ) from None


def advice() -> str:
    """What works instead of a directory that does not: the next that can be written, and how Triton finds it too."""
    home = os.path.expanduser("~/.cache")  # noqa: PTH111  # without a home directory it stays as it is
    temporary = os.environ.get("TMPDIR") or "/tmp"  # noqa: S108  # tempfile.gettempdir raises where none can be written
    mine = f"triton-{os.getuid()}"
    places = [(os.environ.get("VLLM_CACHE_ROOT", ""), "triton"), (os.environ.get("XDG_CACHE_HOME", ""), "triton")]
    for parent, name in [*places, (home, "triton"), (temporary, mine)]:
        if parent.startswith("/") and _can_be_made(Path(parent)):
            return (
                "choose a writable directory with --cache-dir, and give the server the same one: "
                f"TRITON_CACHE_DIR={Path(parent) / name} works here"
            )
    return "mount a writable directory, name it with --cache-dir, and give it to the server as TRITON_CACHE_DIR"


def _can_be_made(path: Path) -> bool:
    # os.path, since pathlib raises where a directory on the way may not be searched.
    existing = next(place for place in (path, *path.parents) if os.path.exists(place))  # noqa: PTH110
    return os.path.isdir(existing) and os.access(existing, os.W_OK | os.X_OK)  # noqa: PTH112
