"""Places: where a process that serves finds kernels and native helpers, and what it is to expect there."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:  # a launch needs none
    from aotpack.manifest import Manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """A file that can be served.

    Attributes:
        path: where it lies.
        digest: what its content should have.
    """

    path: Path
    digest: str


class Place(Protocol):
    """Where kernels and helpers can be served from.

    Attributes:
        identity: what no other place has.
        refused: what must not be handed out to Triton, although its own cache directory may have it.
    """

    identity: str
    refused: tuple[Path, ...]

    def entry(self, directory: str) -> Mapping[str, File]:
        """The files of an entry by name, without its group file; none where the place does not have it.

        Args:
            directory: what Triton would call its directory, see ``tritoncache.directory_name``.
        """

    def helper(self, source: str, file: str) -> File | None:
        """A native helper.

        Args:
            source: the digest of its C text.
            file: its file name, which tells the Python.
        """

    def manifests(self) -> "Iterator[Manifest]":
        """The manifests of the bundles that it serves; what cannot be read is left out with a warning."""
