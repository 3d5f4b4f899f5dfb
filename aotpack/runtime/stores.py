"""Places: where a process that serves finds kernels, and what it is to expect there.

Three kinds: a cache directory that bundles were installed in, whose receipts say what lies where; a store, whose
cache keys are computed here, for this process's Triton and against the engine that serves; and a bundle, which is
unpacked to a store once. Triton is not imported before a store is first asked for a key.
"""

import os
import stat
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import EntryPoint
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

from aotpack.admission import admit_bundle, admit_installed, admit_store
from aotpack.archive import MANIFEST
from aotpack.bundle import SUFFIX, open_bundle
from aotpack.cachedirectory import receipt_paths
from aotpack.digests import hex_of
from aotpack.elf import release
from aotpack.engines import Engine, find_engine, installed_engine
from aotpack.errors import AotpackError, BundleError, CacheError
from aotpack.fitting import Fit, fit_manifest
from aotpack.gpus import current_gpu, read_archs
from aotpack.helpers import local_glibc
from aotpack.receipts import HELPERS, Receipt, read_receipt
from aotpack.runtime.candidates import Candidates
from aotpack.runtime.lock import Lock
from aotpack.runtime.trouble import LOG, tolerated, warn
from aotpack.runtime.trust import Demanded, refuse_writers
from aotpack.store import SHARED_OBJECT, TUNED, Store, is_store, open_store, unpack_store
from aotpack.targets import Target
from aotpack.tritoncache import GROUP_PREFIX, directory_name, group_file, group_root, stem_of

STORE = "store"
"""The directory of a wheel's package that is its store."""


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
            files = admit_installed(receipt, demanded.get())
        except AotpackError:
            if demanded:
                self.refused += tuple(self.cache / file.path for file in receipt.files)
            raise
        self.bundles += (receipt.bundle,)
        for file in files:
            self._digests.setdefault(file.directory, {})[file.name] = file.digest

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


class StorePlace:
    """A store, under the keys that this process's Triton asks for; they are computed once, when first needed."""

    def __init__(self, store: Store, targets: tuple[Target, ...]) -> None:
        """Prepare.

        Args:
            store: the store.
            targets: those of its targets that this process may need.
        """
        self.identity = store.identity
        self.refused: tuple[Path, ...] = ()
        self.store = store
        self.targets = targets
        self._fit: Fit | None = None
        self._entries: dict[str, dict[str, File]] | None = None
        self._results: dict[str, dict[str, dict[str, File]]] = {}

    def __str__(self) -> str:
        """For the log."""
        manifest = self.store.manifest
        keys = sum(entry.key.target in self.targets for entry in manifest.entries)
        archs = " ".join(target.short for target in self.targets)
        return f"{keys} keys of {manifest.engine} {manifest.engine_version} for {archs} in {self.store.directory}"

    def fit(self) -> Fit | None:
        """What of the store serves in this process; None where nothing does, of which there was a warning.

        Raises:
            AotpackError: with ``AOTPACK_STRICT=1``, instead of the warning.
        """
        self.entry("")
        return self._fit

    def entry(self, directory: str) -> Mapping[str, File]:
        """The files of an entry by name."""
        entries = self._entries
        if entries is None:
            with _LOCK.held():
                entries = self._entries
                if entries is None:
                    entries = self._entries = self._place()
        results = self._results.get(directory)
        if results is not None:
            # Which device it is for is known where a thread launches on it, and Triton's key does not say.
            return results.get(current_gpu() or "", {})
        return entries.get(directory, {})

    def _place(self) -> dict[str, dict[str, File]]:
        manifest, name = self.store.manifest, str(self.store.directory)
        fit = None
        with tolerated("kernels are compiled, since a bundle does not fit"):
            fit = fit_manifest(manifest, name, targets=self.targets, engine=_serving_engine(manifest.engine))
        if fit is None:
            return {}
        for finding in fit.refused[:1]:
            more = f" (and {len(fit.refused) - 1} more)" if len(fit.refused) > 1 else ""
            warn(f"{name}: some kernels are compiled: {finding}{more}")
        self._fit = fit
        for result in fit.results:
            for cache_key in result.cache_keys:
                artifact = result.kept.artifact
                file = File(path=self.store.path(artifact, TUNED), digest=artifact.digest)
                devices = self._results.setdefault(directory_name(cache_key), {})
                devices[result.kept.result.device] = {result.kept.name: file}
        return {
            directory_name(cache_key): {
                f"{placement.entry.name}.{kind}": File(path=self.store.path(artifact, kind), digest=artifact.digest)
                for kind, artifact in placement.entry.artifacts
            }
            for placement in fit.placements
            for cache_key in placement.cache_keys
        }

    def helper(self, source: str, file: str) -> File | None:
        """A native helper that this machine's C library can load."""
        local = local_glibc()
        for helper in self.store.manifest.helpers:
            if (helper.source, helper.file, helper.machine) == (source, file, os.uname().machine):
                if local is None or release(local) < release(helper.glibc):
                    warn(f"{self.store.directory}: {file} is compiled: the one here needs glibc {helper.glibc}")
                    return None
                path = self.store.path(helper.artifact, SHARED_OBJECT)
                return File(path=path, digest=helper.artifact.digest)
        return None


_LOCK = Lock()


def _serving_engine(name: str) -> Engine | None:
    """The engine of that name in this process, installed or merely on the path; it is not imported."""
    with tolerated("the engine's files are not compared with the bundle"):
        found = installed_engine(name)
        if found is not None:
            return found
        spec = find_spec(name)
        for place in (spec and spec.submodule_search_locations) or ():
            return find_engine(place, LOG.debug)
    return None


# Finding


def find_places(candidates: Candidates) -> Iterator[Place]:
    """Every place that this process can be served from, the cheapest to ask first; each once.

    What cannot be used is left out with a warning.
    """
    seen: set[str] = set()
    for place in _all_places(candidates):
        if place.identity not in seen:
            seen.add(place.identity)
            yield place


def _all_places(candidates: Candidates) -> Iterator[InstalledPlace | StorePlace]:
    demanded = Demanded()
    for cache in candidates.caches:
        with tolerated("what is installed in Triton's cache is not served"):
            yield InstalledPlace(cache, demanded)
    for path in candidates.named:
        with tolerated("an element of AOTPACK_BUNDLE_PATH is not served"):
            yield from _named_place(path, demanded)
    for point in candidates.wheels:
        with tolerated(f"the bundle of the package {point.value} is not served"):
            yield from _store_place(_trusted_store(store_of(point), demanded))


def _named_place(path: Path, demanded: Demanded) -> Iterator[InstalledPlace | StorePlace]:
    if is_store(path):
        yield from _store_place(_trusted_store(path, demanded))
    elif path.is_dir() and receipt_paths(path):
        yield InstalledPlace(path, demanded)
    elif path.is_file() and path.name.endswith(SUFFIX):
        yield from _store_place(_unpacked(path, demanded))
    else:
        found = "a directory of something else" if path.is_dir() else "another file" if path.exists() else "nothing"
        raise BundleError(
            f"{path}: expected a store, a cache directory with installed bundles, or a bundle{SUFFIX}, "
            f"found {found}; correct AOTPACK_BUNDLE_PATH"
        )


def _trusted_store(directory: Path, demanded: Demanded) -> Store:
    """The store in a directory, which nobody else may write and whose signatures satisfy what is demanded."""
    refuse_writers(directory / MANIFEST)
    store = open_store(directory)
    admit_store(store, demanded.get())
    return store


def _store_place(store: Store) -> Iterator[StorePlace]:
    """The store as a place, where this process's devices, as far as they can be known, are among its targets."""
    archs = _archs()
    targets = tuple(target for target in store.manifest.targets if archs is None or target.arch in archs)
    if targets:
        yield StorePlace(store, targets)
    else:
        had = " ".join(target.short for target in store.manifest.targets)
        LOG.info("%s is for %s, and is left alone here", store.directory, had)


@lru_cache(maxsize=1)
def _archs() -> frozenset[int] | None:
    return read_archs()


def store_of(point: EntryPoint) -> Path:
    """The store of a wheel's package, which is not imported.

    Raises:
        BundleError: there is no such package.
    """
    if point.dist is not None:
        located = Path(str(point.dist.locate_file(point.module.replace(".", "/")))) / STORE
        if is_store(located):
            return located
    spec = find_spec(point.module)  # an editable install lies elsewhere
    for place in (spec and spec.submodule_search_locations) or ():
        return Path(place) / STORE
    raise BundleError(f"{point.value}: there is no such package; install the wheel again")


def _unpacked(path: Path, demanded: Demanded) -> Store:
    """The store of a bundle, below a directory of this user alone; it is unpacked once for each digest."""
    refuse_writers(path)
    bundle = open_bundle(path)
    signatures = admit_bundle(bundle, demanded.get())
    home = Path(tempfile.gettempdir()) / f"aotpack-{os.getuid()}"
    home.mkdir(mode=0o700, exist_ok=True)
    seen = home.lstat()
    if not stat.S_ISDIR(seen.st_mode) or seen.st_uid != os.getuid() or seen.st_mode & 0o077:
        raise CacheError(
            f"{home}: {path} is unpacked there, and others may write in it or it is not a directory of "
            f"user {os.getuid()}; remove it, or set TMPDIR"
        )
    refuse_writers(home)
    directory = home / hex_of(bundle.digest)
    store = open_store(directory) if is_store(directory) else unpack_store(bundle, directory, signatures)
    if store.digest != bundle.digest:
        raise CacheError(f"{directory}: is not the store of {path}; remove it")
    return store
