"""Receipts: what an install wrote, kept beside the entries so that it can be verified and taken out.

A receipt lies in ``.aotpack/receipts`` of the cache directory, one for each bundle, named after the bundle's digest.
It is written before the first entry lands, so that even an install that was killed can be taken out.
"""

from dataclasses import dataclass
from pathlib import Path

from aotpack.cachedirectory import RECEIPTS, receipt_paths
from aotpack.digests import canonical_json, hex_of
from aotpack.documents import Node, parse_canonical, read_whole
from aotpack.errors import CacheError, DocumentError, UsageError

OURS = RECEIPTS.partition("/")[0]
"""The one directory of ours in a cache directory; Triton never looks there."""

HELPERS = f"{OURS}/helpers"
"""Where native helpers lie for the load-time path: each in a directory named after its C text's digest."""

MANIFESTS = f"{OURS}/manifests"
"""Where the bundles' manifests lie for the load-time path, each named after its digest."""

SIGNATURES = f"{OURS}/signatures"
"""Where the bundles' signatures lie, each named after its bundle's digest."""

RECEIPT_FORMAT = 1

MAX_RECEIPT = 64 << 20
"""Bytes that a receipt may have; an entry takes some 600, so that of the largest bundles stays under 10 MB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledFile:
    """One file that an install wrote.

    Attributes:
        path: below the cache directory.
        digest: of its content.
    """

    path: str
    digest: str

    @property
    def directory(self) -> str:
        """The name of its entry's directory."""
        return self.path.rpartition("/")[0]

    @property
    def name(self) -> str:
        """Its name in that directory."""
        return self.path.rpartition("/")[2]


_NO_FILES = '"files":[]'
"""No other field can spell that: quotes within a string are escaped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """What an install wrote, so that it can be verified and removed.

    Attributes:
        bundle: the bundle's digest.
        name: the bundle's file name.
        source: where the bundle was, if that is known; it may have gone or be another one since.
        cache: the cache directory.
        accepted: differences that were accepted on purpose, each with its reason.
        files: every file written, the group file of an entry last.
    """

    bundle: str
    name: str
    source: Path | None
    cache: Path
    accepted: tuple[str, ...]
    files: tuple[InstalledFile, ...]

    @property
    def path(self) -> Path:
        """Where the receipt lies."""
        return receipt_path(self.cache, self.bundle)

    @property
    def entries(self) -> dict[str, list[InstalledFile]]:
        """The files by the directory that they lie in."""
        found: dict[str, list[InstalledFile]] = {}
        for file in self.files:
            found.setdefault(file.directory, []).append(file)
        return found

    def to_bytes(self) -> bytes:
        """The receipt as a document; ``read_receipt`` undoes it."""
        document = {
            "format": RECEIPT_FORMAT,
            "bundle": self.bundle,
            "name": self.name,
            "source": None if self.source is None else str(self.source),
            "cache": str(self.cache),
            "accepted": list(self.accepted),
            "files": [],
        }
        # File by file: as one value, those of the largest bundles would take three times the memory meanwhile.
        files = ",".join(canonical_json({"path": file.path, "digest": file.digest}) for file in self.files)
        before, _, after = canonical_json(document).partition(_NO_FILES)
        return f'{before}"files":[{files}]{after}\n'.encode()


def receipt_path(cache: Path, bundle: str) -> Path:
    """Where the receipt of a bundle, by its digest, lies in a cache directory."""
    return cache / RECEIPTS / f"{hex_of(bundle)}.json"


def manifest_path(cache: Path, bundle: str) -> Path:
    """Where the manifest of a bundle, by its digest, lies in a cache directory that it was installed in."""
    return cache / MANIFESTS / f"{hex_of(bundle)}.json"


def signatures_path(cache: Path, bundle: str) -> Path:
    """Where the signatures of a bundle, by its digest, lie in a cache directory that it was installed in."""
    return cache / SIGNATURES / f"{hex_of(bundle)}.json"


def read_receipts(cache: Path) -> list[Receipt]:
    """The receipts in a cache directory, by bundle digest.

    Raises:
        CacheError: one of them is damaged, or they cannot be listed.
    """
    return [read_receipt(path, cache) for path in receipt_paths(cache)]


def read_receipt(path: Path, cache: Path) -> Receipt:
    """The receipt that lies at ``path``, of a cache directory that may have been moved since it was written.

    Raises:
        CacheError: it is damaged.
    """
    try:
        root = parse_canonical(read_whole(path, MAX_RECEIPT))
        if root.field("format").integer() != RECEIPT_FORMAT:
            raise root.field("format").error(f"format {RECEIPT_FORMAT}")
        root.only("format", "bundle", "name", "source", "cache", "accepted", "files")
        _file_name(root.field("cache"))
        return Receipt(
            bundle=root.field("bundle").digest(),
            name=_file_name(root.field("name")),
            source=Path(_file_name(root.field("source"))) if root.has("source") else None,
            cache=cache,
            accepted=tuple(accepted.text() for accepted in root.field("accepted").items()),
            files=tuple(
                InstalledFile(
                    path=_inside(file.only("path", "digest").field("path")),
                    digest=file.field("digest").digest(),
                )
                for file in root.field("files").items()
            ),
        )
    except (OSError, DocumentError) as error:
        raise CacheError(
            f"{path}: not a receipt: {error}; remove it, and install the bundle again: aotpack install BUNDLE"
        ) from None


def _file_name(node: Node) -> str:
    # Not ``text``: a name on disk may be no UTF-8, and Python then spells its bytes in halves of surrogate pairs.
    if not isinstance(node.value, str) or not node.value or "\0" in node.value:
        raise node.error("a file's name")
    return node.value


def _inside(node: Node) -> str:
    """The path of a file two levels below the cache directory or that of helpers, or of a manifest or signatures."""
    parts = node.text().removeprefix(f"{HELPERS}/").removeprefix(f"{OURS}/").split("/")
    if len(parts) != 2 or any(part in ("", ".", "..") or not part.isprintable() for part in parts):  # noqa: PLR2004
        raise node.error("an entry's directory and a file in it")
    return node.text()


def find_receipt(cache: Path, bundle: str) -> Receipt:
    """The receipt of a bundle, by the start of its digest's hex, or by its file name.

    Raises:
        UsageError: none, or more than one, is meant.
        CacheError: a receipt is damaged.
    """
    receipts = read_receipts(cache)
    wanted = hex_of(bundle)
    matching = [r for r in receipts if r.name == Path(bundle).name or (wanted and hex_of(r.bundle).startswith(wanted))]
    if len(matching) != 1:
        listed = ", ".join(f"{hex_of(r.bundle)[:12]} ({r.name})" for r in receipts) or "none"
        raise UsageError(
            f"{bundle!r} means {len(matching)} of the bundles installed in {cache}; installed are: {listed}"
        )
    return matching[0]
