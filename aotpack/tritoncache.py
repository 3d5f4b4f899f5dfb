"""Entries of Triton's cache directory: how one lies in it, and whether one there is whole.

An entry is a directory named after the cache key in base32 (triton/runtime/cache.py, ``_base32``). Launching
needs three files of it: the cubin, the metadata, and a group file that names the two by absolute path and so is
written for the directory where it lands. Triton takes an entry for complete when the group file and every file
that it names exist, and checks nothing else.
"""

import base64
import errno
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from aotpack.cachedirectory import advice
from aotpack.digests import canonical_json
from aotpack.documents import parse_document
from aotpack.elf import cuda_architecture
from aotpack.errors import CacheError
from aotpack.landing import Landing

GROUP_PREFIX = "__grp__"

_METADATA = json.JSONEncoder(sort_keys=True)


def group_name(stem: str) -> str:
    """The name of an entry's group file, by the stem of its files; ``stem_of`` undoes it."""
    return f"{GROUP_PREFIX}{stem}.json"


def stem_of(group: str) -> str:
    """The stem of an entry's files, by the name of its group file.

    >>> stem_of("__grp__kernel.json")
    'kernel'
    """
    return group.removeprefix(GROUP_PREFIX).removesuffix(".json")


def same_directory(one: Path, other: Path) -> bool:
    """Whether two paths lead to one directory, by whatever links; False where that cannot be told."""
    try:
        return one == other or one.samefile(other)
    except OSError:
        return False


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

        Raises:
            DocumentError: the metadata is no JSON object.
        """
        return {
            f"{self.name}.cubin": self.cubin,
            f"{self.name}.json": metadata_file(read_metadata(self.metadata), self.cache_key),
            group_name(self.name): group_file(cache, self.directory, self.name),
        }

    def landing(self, cache: Path) -> Landing:
        """The entry as it is to be laid into a cache directory; the group file is its commit mark."""
        return Landing(directory=self.directory, files=tuple(self.files(cache).items()))


@lru_cache(maxsize=1)
def read_metadata(metadata: bytes) -> Mapping[str, Any]:
    """Triton's metadata as the bundle has it; the last is kept, since it is checked first and laid then.

    Raises:
        DocumentError: it is no JSON object.
    """
    root = parse_document(metadata)
    root.fields()
    found: dict[str, Any] = root.value
    return found


def metadata_file(metadata: Mapping[str, Any], cache_key: str) -> bytes:
    """The content of an entry's metadata file, which has the cache key in it.

    Args:
        metadata: as ``read_metadata`` gives it.
        cache_key: 64 hex digits.
    """
    return _METADATA.encode({**metadata, "hash": cache_key}).encode()


def original_metadata(data: bytes, cache_key: str) -> bytes:
    """Triton's metadata as a bundle has it, in canonical spelling, by a metadata file of an entry.

    Nothing where ``metadata_file`` would not write ``data`` for it.

    Args:
        data: the content of the file.
        cache_key: 64 hex digits.
    """
    try:
        metadata = json.loads(data)
        del metadata["hash"]
        return canonical_json(metadata).encode() if metadata_file(metadata, cache_key) == data else b""
    except (ValueError, KeyError, TypeError):
        return b""


def group_file(cache: Path, directory: str, name: str) -> bytes:
    """The content of an entry's group file, which depends on where it lies.

    Args:
        cache: the cache directory.
        directory: the name of the entry's directory.
        name: the stem of its files.
    """
    # As ``json`` would spell the whole, out of pieces that it spells once for all entries.
    place, stem = f"{_within_string(f'{cache}/')}{directory}/", _within_string(name)
    files = ", ".join(f'"{stem}.{kind}": "{place}{stem}.{kind}"' for kind in ("cubin", "json"))
    return f'{{"child_paths": {{{files}}}}}'.encode()


@lru_cache(maxsize=256)
def _within_string(text: str) -> str:
    """A text as it stands between the quotes of a JSON string."""
    return json.dumps(text)[1:-1]


def cache_key_of(directory: str) -> str:
    """The cache key, 64 hex digits, that a directory's name spells; ``directory_name`` undoes it.

    Raises:
        ValueError: the name spells none.
    """
    return base64.b32decode(directory + "=" * (-len(directory) % 8)).hex()


def is_whole(directory: Path, name: str) -> bool:
    """Whether Triton would load the entry in a directory and could launch it, whoever put it there.

    Args:
        directory: the entry's directory.
        name: the stem of its files.
    """
    try:
        children = json.loads((directory / f"{GROUP_PREFIX}{name}.json").read_bytes())["child_paths"]
        metadata = json.loads((directory / f"{name}.json").read_bytes())
        return (
            {f"{name}.cubin", f"{name}.json"} <= set(children)
            and all(_lies_in(Path(path), directory) for path in children.values())
            and cuda_architecture((directory / f"{name}.cubin").read_bytes()) == metadata["target"]["arch"]
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def is_tritons(directory: Path, name: str) -> bool:
    """Whether Triton has compiled the entry in a directory there, and could launch it.

    Args:
        directory: the entry's directory.
        name: the stem of its files.
    """
    try:
        group = (directory / group_name(name)).read_bytes()
    except OSError:
        return False
    return group_root(group, directory.name, name) is None and is_whole(directory, name)


def _lies_in(path: Path, directory: Path) -> bool:
    return path.parent.samefile(directory) and path.stat().st_size > 0


def group_root(group: bytes, directory: str, name: str) -> Path | None:
    """The cache directory for which a group file of ours was written; None where it is not one of ours.

    Ours names two files. Triton's own names each stage of its compile, so the two can be told apart.

    Args:
        group: the content of the group file.
        directory: the name of the entry's directory.
        name: the stem of its files.
    """
    try:
        children = json.loads(group)["child_paths"]
        parents = {Path(children[file]).parent for file in children}
        if set(children) != {f"{name}.cubin", f"{name}.json"} or len(parents) != 1:
            return None
        place = parents.pop()
        same = all(Path(path) == place / file for file, path in children.items())
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    return place.parent if same and place.name == directory and place.is_absolute() else None


@contextmanager
def reported(cache: Path) -> Iterator[None]:
    """Turn what the file system refuses, while the cache is worked on, into one line.

    Raises:
        CacheError: in place of every OSError; it says where, what, and what would work.
    """
    try:
        yield
    except OSError as error:
        where = error.filename or cache
        raise CacheError(
            f"{where}: {error.strerror or error}; the cache {cache}{_why_there(cache)} holds no half entry: "
            f"{_remedy(error.errno)}{advice()}"
        ) from None


def _why_there(cache: Path) -> str:
    if os.environ.get("TRITON_CACHE_DIR") or os.environ.get("TRITON_HOME"):
        return ""
    if str(cache) != os.path.expanduser("~/.triton/cache"):  # noqa: PTH111  # as Triton does
        return ""
    return f" (where Triton looks, since TRITON_CACHE_DIR is unset and HOME is {os.environ.get('HOME', 'unset')})"


def _remedy(number: int | None) -> str:
    if number in (errno.ENOSPC, errno.EDQUOT):
        return "free space or inodes there, or "
    if number in (errno.ESTALE, errno.EBUSY, errno.EIO):
        return "run this again, or "
    return ""
