"""Entries that a compile left in a cache directory: constants and sources are guessed, and a guess may be proven."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from aotpack.bundle import Bundle
from aotpack.errors import ToolchainError
from aotpack.keys import CompileKey, Constant
from aotpack.keys import Path as Place
from aotpack.leftovers import Leftover, guess_key, is_of, root_of
from aotpack.manifest import Entry, Manifest
from aotpack.misses.arguments import key_differences
from aotpack.misses.differences import Difference, line_differences, toolchain_differences
from aotpack.misses.miss import Miss, driven_kernels, not_installed, not_packed
from aotpack.sourcekeys import SourceKeys
from aotpack.sources import Changed, EngineSources, Same, Shifted
from aotpack.toolchain import KeyMaker, Toolchain, local_toolchain

_COMMON: list[Constant] = [False, True, *(1 << power for power in range(17))]

_VARIED = 3
"""Constants that are tried where an entry does not tell its own, and in how many of the bundle's nearest entries."""

_MOST_HISTORIES = 8
"""Source keys of one kernel that are tried; up to Triton 3.7 there can be hundreds."""


def explain_leftovers(bundle: Bundle, entries: Sequence[Leftover]) -> tuple[Miss, ...]:
    """Why Triton compiled each of the entries.

    Where Triton is there, of the release that compiled them, it is taken for the one that did.

    Raises:
        CacheError: a receipt in the cache of one is damaged.
    """
    try:
        local = local_toolchain({entry.target for entry in entries})
    except ToolchainError:
        local = None
    return tuple(_explain_leftover(bundle, entry, local) for entry in entries)


def _explain_leftover(bundle: Bundle, left: Leftover, local: Toolchain | None) -> Miss:
    manifest = bundle.manifest
    theirs = replace(local or manifest.toolchain, environment=left.environment)
    maker = KeyMaker(dict(left.environment)) if local and local.triton == left.triton else None
    if maker is None:
        theirs = replace(manifest.toolchain, triton=left.triton, environment=left.environment)
    around = tuple(toolchain_differences(manifest.toolchain, theirs, left.target))
    guesses = [
        (entry, guess_key(entry.key, left))
        for entry in manifest.entries
        if entry.name == left.name and is_of(left, entry.key.kernel)
    ]
    guesses.sort(key=lambda guess: len(key_differences(guess[0].key, guess[1])))
    driven = (kernel for kernel, _ in driven_kernels() if kernel.endswith(f":{left.name}") and is_of(left, kernel))
    kernel = next(driven, left.name)
    miss = Miss(
        kernel=kernel,
        cache_key=left.cache_key,
        cache=left.directory.parent,
        milliseconds=None,
        nearest=None,
        differences=(not_packed(manifest, kernel, ""),),
        unknown=(),
    )
    if not guesses:
        return miss
    grounds = _grounds(manifest, guesses[0][0].key.kernel, left)
    tried = ((*guess, ground) for guess in chain(guesses, _varied(guesses)) for ground in grounds)
    proven = next((one for one in tried if maker and _hashes_to(maker, one[1], one[2], left.cache_key)), None)
    nearest, key, ground = proven or (*guesses[0], grounds[-1])
    differences = (*around, *ground.differences, *key_differences(nearest.key, key))
    if proven and not differences:
        differences = (not_installed(bundle, miss.cache, miss.cache_key),)
    return replace(
        miss,
        kernel=nearest.key.kernel,
        nearest=nearest,
        differences=differences,
        unknown=() if proven else _unknown(left),
    )


@dataclass(frozen=True, slots=True)
class _Ground:
    """What the kernel's source may have been: the source keys that it gives, and how it differs from the bundle's."""

    source_keys: tuple[str, ...]
    differences: tuple[Difference, ...]


def _grounds(manifest: Manifest, kernel: str, left: Leftover) -> list[_Ground]:
    """The bundle's own source, and after it what lies now in the file that the entry was compiled from."""
    grounds = [_Ground(manifest.kernel(kernel).cache_keys[:_MOST_HISTORIES], ())]
    root = root_of(left, kernel)
    if root is None:
        return grounds
    files = EngineSources(root)
    closure = manifest.sources.closure(kernel)
    match files.compare(closure):
        case Shifted(lines):
            try:
                source_keys = SourceKeys(manifest.sources, files).of(kernel, dict(lines))
            except ToolchainError:
                source_keys = ()
            grounds.append(_Ground(source_keys[:_MOST_HISTORIES], line_differences(kernel, closure, dict(lines))))
        case Changed(what):
            differs = Difference(part="source", name=kernel, bundle=what, here=f"not so in {root}")
            grounds.append(_Ground((), (differs,)))
        case Same():
            pass
    return grounds


def _varied(guesses: Sequence[tuple[Entry, CompileKey]]) -> Iterator[tuple[Entry, CompileKey]]:
    """The nearest guesses with one constant changed: to what the bundle has elsewhere, or what is common."""
    seen: dict[Place, list[Constant]] = {}
    for _, key in guesses:
        for place, value in key.constexprs:
            seen.setdefault(place, []).append(value)
    for entry, key in guesses[:_VARIED]:
        for index, (place, value) in enumerate(key.constexprs):
            others = _COMMON if isinstance(value, int) else []
            for other in dict.fromkeys([*seen[place], *others]):
                constexprs = (*key.constexprs[:index], (place, other), *key.constexprs[index + 1 :])
                yield entry, replace(key, constexprs=constexprs)


def _unknown(left: Leftover) -> tuple[str, ...]:
    return (*(() if left.arguments else ("arguments",)), "constexprs", "source and line", "libtriton")


def _hashes_to(maker: KeyMaker, key: CompileKey, ground: _Ground, cache_key: str) -> bool:
    try:
        return any(maker.key_of(key, source_key) == cache_key for source_key in ground.source_keys)
    except ToolchainError:
        return False
