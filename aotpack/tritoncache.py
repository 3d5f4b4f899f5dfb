"""Triton's cache directory: where it is, how an entry lies in it, and whether one there is whole.

An entry is a directory named after the cache key in base32 (triton/runtime/cache.py, ``_base32``). Launching
needs three files of it: the cubin, the metadata, and a group file that names the two by absolute path and so is
written for the directory where it lands. Triton takes an entry for complete when the group file and every file
that it names exist, and checks nothing else.
"""

import base64
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

GROUP_PREFIX = "__grp__"


def effective_directory(given: Path | None = None, environment: Mapping[str, str] | None = None) -> Path:
    """The directory that Triton will look in: ``given``, else as its knobs resolve it.

    ``TRITON_CACHE_DIR``, else ``$TRITON_HOME/.triton/cache``, else ``~/.triton/cache`` (triton/knobs.py,
    ``cache_knobs``); an empty variable counts as unset.

    Args:
        given: what the user asked for.
        environment: to read instead of the process's.
    """
    variables = os.environ if environment is None else environment
    if given is not None:
        return Path(os.path.abspath(given))  # noqa: PTH100  # resolve() would follow links that mounts rely on
    if directory := variables.get("TRITON_CACHE_DIR"):
        return Path(os.path.abspath(directory))  # noqa: PTH100
    home = variables.get("TRITON_HOME") or os.path.expanduser("~")  # noqa: PTH111  # as Triton does
    return Path(os.path.abspath(home)) / ".triton" / "cache"  # noqa: PTH100


def directory_name(cache_key: str) -> str:
    """The name of an entry's directory.

    >>> directory_name("00" * 32)
    'AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA'

    Args:
        cache_key: 64 hex digits.
    """
    return base64.b32encode(bytes.fromhex(cache_key)).decode().rstrip("=")


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheEntry:
    """One entry as it should lie in a cache directory.

    Attributes:
        cache_key: 64 hex digits.
        name: the stem of its files.
        cubin: the machine code.
        metadata: Triton's metadata as the bundle has it.
    """

    cache_key: str
    name: str
    cubin: bytes
    metadata: bytes

    @property
    def directory(self) -> str:
        """The name of its directory."""
        return directory_name(self.cache_key)

    def files(self, cache: Path) -> dict[str, bytes]:
        """Its files by name, for a cache directory; the group file comes last.

        Args:
            cache: where the entry lands; the group file names its files by absolute path there.
        """
        metadata = {**json.loads(self.metadata), "hash": self.cache_key}
        children = {name: str(cache / self.directory / name) for name in (f"{self.name}.cubin", f"{self.name}.json")}
        return {
            f"{self.name}.cubin": self.cubin,
            f"{self.name}.json": json.dumps(metadata, sort_keys=True).encode(),
            f"{GROUP_PREFIX}{self.name}.json": json.dumps({"child_paths": children}, sort_keys=True).encode(),
        }


def is_whole(directory: Path, name: str) -> bool:
    """Whether Triton would load the entry in a directory, whoever put it there.

    Args:
        directory: the entry's directory.
        name: the stem of its files.
    """
    try:
        children = json.loads((directory / f"{GROUP_PREFIX}{name}.json").read_bytes())["child_paths"]
        metadata = json.loads((directory / f"{name}.json").read_bytes())
        return (
            isinstance(metadata, dict)
            and {f"{name}.cubin", f"{name}.json"} <= set(children)
            and all(Path(path).parent == directory and Path(path).stat().st_size > 0 for path in children.values())
        )
    except (OSError, ValueError, KeyError, TypeError):
        return False
