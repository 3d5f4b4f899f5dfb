"""Installed bundles as a place to serve from: a cache directory, whose receipts say what lies where.

What the receipts say is all that a launch needs. Manifests are read for a preload, and what reads them is imported
then.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from aotpack.cachedirectory import receipt_paths
from aotpack.digests import digest_bytes, hex_of
from aotpack.errors import AotpackError, CacheError
from aotpack.receipts import HELPERS, InstalledFile, Receipt, manifest_path, read_receipt
from aotpack.runtime.places import File
from aotpack.runtime.trouble import tolerated
from aotpack.runtime.trust import Demanded, refuse_writers
from aotpack.tritoncache import GROUP_PREFIX, group_file, group_root, stem_of

if TYPE_CHECKING:
    from aotpack.manifest import Manifest


class InstalledPlace:
    """A cache directory that bundles were installed in, as its receipts said when it was found.

    Attributes:
        cache: the cache directory.
        bundles: the digests of those that may serve.
        refused: the files of those that do not satisfy what is demanded of signatures.
    """

    def __init__(self, cache: Path, demanded: Demanded) -> None:
        """Read the receipts; one that is damaged, or may not be served, is left out with a warning."""
        self.identity = str(cache)
        self.cache = cache
        self.bundles: tuple[str, ...] = ()
        self.refused: tuple[Path, ...] = ()
        self._digests: dict[str, dict[str, str]] = {}
        for path in receipt_paths(cache):
            with tolerated("what was installed is not served"):
                self._add(read_receipt(path, cache), demanded)

    def _add(self, receipt: Receipt, demanded: Demanded) -> None:
        try:
            refuse_writers(receipt.path)
            files = self._admitted(receipt, demanded)
        except AotpackError:
            if demanded:
                self.refused += tuple(self.cache / file.path for file in receipt.files)
            raise
        self.bundles += (receipt.bundle,)
        for file in files:
            self._digests.setdefault(file.directory, {})[file.name] = file.digest

    def _admitted(self, receipt: Receipt, demanded: Demanded) -> tuple[InstalledFile, ...]:
        if not demanded:
            return receipt.files  # and what reads manifests is not imported
        from aotpack.admission import admit_installed

        return admit_installed(receipt, demanded.get())

    def __str__(self) -> str:
        """For the log."""
        kernels = sum(any(name.startswith(GROUP_PREFIX) for name in files) for files in self._digests.values())
        return f"{kernels} keys installed in {self.cache}"

    def entry(self, directory: str) -> Mapping[str, File]:
        """The files of an entry by name; none where Triton has compiled it anew since it was installed."""
        digests = self._digests.get(directory, {})
        groups = [name for name in digests if name.startswith(GROUP_PREFIX)]
        if any(not self._is_ours(directory, name) for name in groups):
            return {}
        return {name: self._file(directory, name) for name in digests if name not in groups}

    def _file(self, directory: str, name: str) -> File:
        return File(path=self.cache / directory / name, digest=self._digests[directory][name])

    def _is_ours(self, directory: str, group: str) -> bool:
        try:
            content = (self.cache / directory / group).read_bytes()
        except OSError:
            return False  # taken out since, or not for this user
        stem = stem_of(group)
        as_written = group_file(self.cache, directory, stem)
        return content == as_written or group_root(content, directory, stem) is not None  # a cache may be moved

    def helper(self, source: str, file: str) -> File | None:
        """A native helper."""
        directory = f"{HELPERS}/{hex_of(source)}"
        return self._file(directory, file) if file in self._digests.get(directory, {}) else None

    def manifests(self) -> "Iterator[Manifest]":
        """The manifests that were laid beside the receipts."""
        from aotpack.manifest import read_manifest

        for bundle in self.bundles:
            with tolerated("what was installed is not preloaded"):
                kept = manifest_path(self.cache, bundle)
                if not kept.exists():
                    continue  # an install by an older aotpack
                data = kept.read_bytes()
                if digest_bytes(data) != bundle:
                    raise CacheError(f"{kept} is not what was installed: aotpack verify --fix lays it anew")
                yield read_manifest(data)
