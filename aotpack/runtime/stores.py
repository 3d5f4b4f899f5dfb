"""Stores as places to serve from: their cache keys are computed here, for this process's Triton.

They are computed against the engine that serves, when a store is first asked for a key. A packed bundle that is for
this process is unpacked to a store, once for each user.
"""

import os
import stat
import tempfile
from collections.abc import Iterator, Mapping
from functools import lru_cache
from importlib.metadata import EntryPoint
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from aotpack.admission import admit_bundle, admit_store
from aotpack.archive import MANIFEST
from aotpack.bundle import SUFFIX, Bundle, open_bundle
from aotpack.cachedirectory import receipt_paths
from aotpack.digests import hex_of
from aotpack.elf import release
from aotpack.errors import BundleError, CacheError
from aotpack.gpus import current_gpu, read_archs
from aotpack.manifest import Manifest
from aotpack.packed import packed_bundles
from aotpack.runtime.candidates import Candidates
from aotpack.runtime.installed import InstalledPlace
from aotpack.runtime.lock import Lock
from aotpack.runtime.places import File, Place
from aotpack.runtime.trouble import LOG, complain, tolerated, warn
from aotpack.runtime.trust import Demanded, refuse_writers
from aotpack.signatures import Signatures
from aotpack.store import SHARED_OBJECT, TUNED, Store, is_store, open_store, unpack_store
from aotpack.targets import Target
from aotpack.tritoncache import directory_name

if TYPE_CHECKING:  # a process that launches nothing never asks for a key, and does not pay for what computes them
    from aotpack.engines import Engine
    from aotpack.fitting import Fit

STORE = "store"
"""The directory of a wheel's package that is its store."""


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

    def fit(self) -> "Fit | None":
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
        from aotpack.fitting import fit_manifest

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
        from aotpack.helpers import local_glibc

        local = local_glibc()
        for helper in self.store.manifest.helpers:
            if (helper.source, helper.file, helper.machine) == (source, file, os.uname().machine):
                if local is None or release(local) < release(helper.glibc):
                    warn(f"{self.store.directory}: {file} is compiled: the one here needs glibc {helper.glibc}")
                    return None
                path = self.store.path(helper.artifact, SHARED_OBJECT)
                return File(path=path, digest=helper.artifact.digest)
        return None

    def manifests(self) -> Iterator[Manifest]:
        """The store's manifest."""
        yield self.store.manifest


_LOCK = Lock()


def _serving_engine(name: str) -> "Engine | None":
    """The engine of that name in this process, installed or merely on the path; it is not imported."""
    from aotpack.engines import find_engine, installed_engine

    with tolerated("the engine's files are not compared with the bundle"):
        found = installed_engine(name)
        if found is not None:
            return found
        spec = find_spec(name)
        for place in (spec and spec.submodule_search_locations) or ():
            return find_engine(place, LOG.debug)
    return None


# Finding


def find_stores(candidates: Candidates, demanded: Demanded) -> Iterator[Place]:
    """What ``AOTPACK_BUNDLE_PATH`` names, then the stores of wheels; what cannot be used is left out with a warning."""
    for path in candidates.named:
        with tolerated("an element of AOTPACK_BUNDLE_PATH is not served"):
            yield from _named_place(path, demanded)
    for point in candidates.wheels:
        with tolerated(f"the bundle of the package {point.value} is not served"):
            yield from _store_place(store_of(point), demanded)


def _named_place(path: Path, demanded: Demanded) -> Iterator[InstalledPlace | StorePlace]:
    if is_store(path):
        yield from _store_place(path, demanded)
        return
    installed = path.is_dir() and bool(receipt_paths(path))
    packed = [path] if path.is_file() and path.name.endswith(SUFFIX) else packed_bundles(path)
    if not installed and not packed:
        found = "a directory of something else" if path.is_dir() else "another file" if path.exists() else "nothing"
        raise BundleError(
            f"{path}: expected a store, a cache directory with installed bundles, a bundle{SUFFIX}, or a directory of "
            f"these, found {found}; correct AOTPACK_BUNDLE_PATH"
        )
    if installed:
        yield InstalledPlace(path, demanded)
    for bundle in packed:
        with tolerated("a packed bundle is not served"):
            yield from _packed_place(bundle, demanded)


def _store_place(directory: Path, demanded: Demanded) -> Iterator[StorePlace]:
    """The store in a directory, which nobody else may write and whose signatures satisfy what is demanded."""
    refuse_writers(directory / MANIFEST)
    store = open_store(directory)
    admit_store(store, demanded.get())
    if targets := _served_targets(store.manifest, directory):
        yield StorePlace(store, targets)


def _packed_place(path: Path, demanded: Demanded) -> Iterator[StorePlace]:
    """The store of a bundle file, as ``_store_place``; one that is for other processes is not unpacked."""
    refuse_writers(path)
    bundle = open_bundle(path)
    signatures = admit_bundle(bundle, demanded.get())
    if targets := _served_targets(bundle.manifest, path):
        yield StorePlace(_unpacked(bundle, signatures), targets)


def _served_targets(manifest: Manifest, place: Path) -> tuple[Target, ...]:
    """Those of a manifest's targets that are this process's devices, as far as they can be known; none is told."""
    archs = _archs()
    targets = tuple(target for target in manifest.targets if archs is None or target.arch in archs)
    if not targets:
        LOG.info("%s is for %s, and is left alone here", place, " ".join(target.short for target in manifest.targets))
    return targets if targets and _is_for_this_triton(manifest, place) else ()


def _is_for_this_triton(manifest: Manifest, place: Path) -> bool:
    import triton

    wanted, found = manifest.toolchain.triton, str(triton.__version__)
    if wanted != found:
        complain(
            f"{place}: is for Triton {wanted} and this process has {found}, so kernels are compiled; "
            f"use a bundle for Triton {found}"
        )
    return wanted == found


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


def _unpacked(bundle: Bundle, signatures: Signatures | None) -> Store:
    """The store of a bundle, below a directory of this user alone; it is unpacked once for each digest."""
    home = Path(tempfile.gettempdir()) / f"aotpack-{os.getuid()}"
    home.mkdir(mode=0o700, exist_ok=True)
    seen = home.lstat()
    if not stat.S_ISDIR(seen.st_mode) or seen.st_uid != os.getuid() or seen.st_mode & 0o077:
        raise CacheError(
            f"{home}: {bundle.path} is unpacked there, and others may write in it or it is not a directory of "
            f"user {os.getuid()}; remove it, or set TMPDIR"
        )
    refuse_writers(home)
    directory = home / hex_of(bundle.digest)
    store = open_store(directory) if is_store(directory) else unpack_store(bundle, directory, signatures)
    if store.digest != bundle.digest:
        raise CacheError(f"{directory}: is not the store of {bundle.path}; remove it")
    return store
