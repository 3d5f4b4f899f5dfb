"""Launches that were recorded: all that their cache keys were made of is known."""

from collections.abc import Iterable

from aotpack.bundle import Bundle
from aotpack.misses.arguments import key_differences
from aotpack.misses.differences import Difference, libtriton_differences, source_differences, toolchain_differences
from aotpack.misses.miss import Miss, not_installed, not_packed
from aotpack.record import Launch


def explain_launches(bundle: Bundle, launches: Iterable[Launch]) -> tuple[Miss, ...]:
    """Why each of the launches that missed did, each cache key once.

    Raises:
        CacheError: a receipt in the cache of one is damaged.
    """
    missed = {launch.cache_key: launch for launch in launches if not launch.hit}
    return tuple(_explain_launch(bundle, launch) for launch in missed.values())


def _explain_launch(bundle: Bundle, launch: Launch) -> Miss:
    manifest = bundle.manifest
    around = (
        *toolchain_differences(manifest.toolchain, launch.build.toolchain, launch.target),
        *source_differences(manifest, launch.kernel, launch.source),
    )
    candidates = [
        (entry, (*around, *key_differences(entry.key, launch.key)))
        for entry in manifest.entries
        if launch.key and entry.key.kernel == launch.kernel
    ]
    nearest, differences = min(candidates, key=lambda found: len(found[1]), default=(None, ()))
    if nearest is None or launch.key is None:
        nearest, differences = None, (not_packed(manifest, launch.kernel, launch.problem),)
    elif failed := next((item.reason for item in manifest.missing if item.key == launch.key), None):
        differences = (Difference(part="missing", name="", bundle=failed, here="compiled"),)
    elif not differences:
        differences = (
            *libtriton_differences(launch.build.libtriton),
            not_installed(bundle, launch.cache, launch.cache_key),
        )[:1]
    return Miss(
        kernel=launch.kernel,
        cache_key=launch.cache_key,
        cache=launch.cache,
        milliseconds=launch.milliseconds,
        nearest=nearest,
        differences=differences,
        unknown=() if launch.exact else ("what a hook of the process adds to its keys",),
    )
