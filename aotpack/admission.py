"""Admission: whether a bundle, a store or what was installed satisfies what is demanded of signatures here.

A signature is of a bundle's digest, which is that of its manifest. What is served must therefore be tied to the
manifest: a bundle's and a store's artifacts are found by it, and those of an install by a receipt, which nobody has
signed. So each file of a receipt is held against the manifest that lies beside it: machine code and metadata must be
one entry's, native helpers must be listed. Which cache key an entry has is the installer's word: it lies where nobody
but root and this user may write, see ``aotpack.writers``.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from aotpack.archive import MAX_MANIFEST
from aotpack.bundle import Bundle
from aotpack.digests import canonical_json, digest_bytes, hex_of
from aotpack.documents import read_start
from aotpack.errors import AlteredError, BundleError, DocumentError, UnsupportedFormatError
from aotpack.manifest import Manifest, read_manifest
from aotpack.policy import Demand, satisfy
from aotpack.receipts import (
    HELPERS,
    MANIFESTS,
    OURS,
    SIGNATURES,
    InstalledFile,
    Receipt,
    manifest_path,
    signatures_path,
)
from aotpack.signatures import IN_STORE, Signatures, find_signatures, read_signatures
from aotpack.store import Store
from aotpack.tritoncache import GROUP_PREFIX, cache_key_of, stem_of


def admit_bundle(bundle: Bundle, demands: Iterable[Demand], signature: Path | None = None) -> Signatures | None:
    """The signatures of a bundle file that satisfies every demand; None where it has none and needs none.

    Args:
        bundle: the bundle.
        demands: what must be satisfied.
        signature: where its signatures lie; None means beside it.

    Raises:
        SignatureError: a demand is not satisfied; where nothing is demanded, signatures must be the bundle's still.
        UnsupportedFormatError, TrustError, UsageError: as ``find_signatures``; TrustError as ``satisfy``.
    """
    return admit_file(bundle.path, bundle.digest, demands, signature)


def admit_file(path: Path, digest: str, demands: Iterable[Demand], signature: Path | None = None) -> Signatures | None:
    """As ``admit_bundle``, for a bundle of which no more is known than where it lies, and its digest."""
    found = find_signatures(path, digest, signature)
    satisfy(str(path), digest, found, demands)
    return found


@contextmanager
def as_signed(demands: Sequence[Demand]) -> Iterator[None]:
    """Read what a bundle holds whose signatures satisfy the demands.

    Raises:
        AlteredError: where anything is demanded, in place of a ``BundleError``: it is not what was signed.
    """
    try:
        yield
    except BundleError as error:
        if not demands:
            raise
        raise AlteredError(f"{error} (its manifest is what was signed, and its content is not)") from None


def admit_store(store: Store, demands: Sequence[Demand]) -> None:
    """Hold a store against every demand.

    Raises:
        SignatureError: a demand is not satisfied.
        UnsupportedFormatError, TrustError: its signatures cannot be read; TrustError as ``satisfy``.
    """
    if demands:
        satisfy(str(store.directory), store.digest, read_signatures(store.directory / IN_STORE), demands)


def admit_installed(receipt: Receipt, demands: Sequence[Demand]) -> tuple[InstalledFile, ...]:
    """The files of an install that satisfies every demand; whether they lie there as listed is not asked.

    Raises:
        SignatureError: a demand is not satisfied, or the receipt lists what the signed manifest does not.
        UnsupportedFormatError, TrustError: its signatures or its manifest cannot be read; TrustError as ``satisfy``.
    """
    if not demands:
        return receipt.files
    subject = f"{receipt.name} in {receipt.cache}"
    satisfy(subject, receipt.bundle, read_signatures(signatures_path(receipt.cache, receipt.bundle)), demands)
    return tuple(_tied(receipt, _manifest_of(receipt)))


def _manifest_of(receipt: Receipt) -> Manifest:
    path = manifest_path(receipt.cache, receipt.bundle)
    hint = "install the bundle again"
    try:
        data = read_start(path, MAX_MANIFEST)
        if digest_bytes(data) != receipt.bundle:
            raise AlteredError(f"{path}: is not the manifest that was signed; {hint}")
        return read_manifest(data)
    except OSError as error:
        raise AlteredError(f"{path}: the manifest that was signed cannot be read: {error.strerror}; {hint}") from None
    except DocumentError as error:
        raise UnsupportedFormatError(f"{path}: {error}; {hint}") from None


def _tied(receipt: Receipt, manifest: Manifest) -> Iterator[InstalledFile]:
    """The files of a receipt, each of which the manifest lists.

    Raises:
        AlteredError: the manifest does not list one.
    """
    listed = {(entry.name, entry.cubin.digest, entry.metadata.digest) for entry in manifest.entries}
    cubins = {(name, cubin) for name, cubin, _ in listed}
    helpers = {(helper.file, helper.artifact.digest) for helper in manifest.helpers}
    helpers |= {(f"{hex_of(helper.source)}/{helper.file}", helper.artifact.digest) for helper in manifest.helpers}
    results = {(kept.name, kept.artifact.digest) for kept in manifest.results}
    for directory, files in receipt.entries.items():
        by_name = {file.name: file for file in files}
        for stem in [stem_of(name) for name in by_name if name.startswith(GROUP_PREFIX)]:
            group, cubin, metadata = (
                by_name.pop(name, None) for name in (f"{GROUP_PREFIX}{stem}.json", f"{stem}.cubin", f"{stem}.json")
            )
            if group is None or cubin is None or metadata is None or (stem, cubin.digest) not in cubins:
                raise _untied(receipt, cubin or files[0])
            original = _original(receipt, metadata)
            if original is not None and (stem, cubin.digest, original) not in listed:
                raise _untied(receipt, metadata)
            yield from (cubin, metadata, group)
        for file in by_name.values():
            name = file.path.removeprefix(f"{HELPERS}/") if directory.startswith(OURS) else file.name
            if (name, file.digest) not in helpers | results and directory not in (MANIFESTS, SIGNATURES):
                raise _untied(receipt, file)
            yield file


def _untied(receipt: Receipt, file: InstalledFile) -> AlteredError:
    return AlteredError(
        f"{receipt.path}: lists {file.path}, which is not in the manifest that was signed; install the bundle again"
    )


def _original(receipt: Receipt, metadata: InstalledFile) -> str | None:
    """The digest of an entry's metadata as the bundle has it, which is without the key; "" where it was none.

    None where what lies there is not what the receipt lists, and so is not handed out to anyone.
    """
    try:
        data = (receipt.cache / metadata.path).read_bytes()
    except OSError:
        return None
    if digest_bytes(data) != metadata.digest:
        return None
    try:
        document = json.loads(data)
        if document.pop("hash") != cache_key_of(metadata.directory):
            return ""
        return digest_bytes(canonical_json(document).encode())
    except (ValueError, KeyError, AttributeError, TypeError):
        return ""
