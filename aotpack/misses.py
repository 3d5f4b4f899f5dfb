"""Misses: why Triton compiled a kernel although there is a bundle, told by the parts of its cache key that differ.

A miss is known from a record, which has all that its cache key was made of, or from the entry that the compile left
in a cache directory, which has the options, the variables and the code, but neither constants nor sources. Of an
entry the rest is guessed from the bundle's own entries; where a guess hashes to the entry's cache key it is no guess
any more, and where none does, the explanation says what it cannot know.

The answer is the nearest entry of the bundle, the one with the fewest differing parts, and each of these by name.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from aotpack import sources
from aotpack.bundle import Bundle
from aotpack.digests import hex_of
from aotpack.errors import ToolchainError
from aotpack.families import usable_families
from aotpack.keys import CompileKey, Constant, DType, Type
from aotpack.keys import Path as Place
from aotpack.leftovers import Leftover, find_leftovers, guess_key, is_of, read_leftover, root_of
from aotpack.manifest import Entry, Manifest
from aotpack.receipts import read_receipts
from aotpack.record import Function, Launch, Source, read_launches
from aotpack.sourcekeys import SourceKeys
from aotpack.sources import Changed, EngineSources, Same, Shifted
from aotpack.targets import Target
from aotpack.toolchain import KeyMaker, Toolchain, local_libtriton, local_toolchain
from aotpack.tritoncache import directory_name

PARTS = {
    "kernel": "build a bundle that packs it, where a family of aotpack drives it",
    "missing": "it did not compile at the build either: see what the build said",
    "architecture": "build with --arch for this architecture too, and install the bundle that has it",
    "triton": "use the bundle for this Triton release, or the image that the bundle was built for",
    "triton source": "this Triton is patched or rebuilt: build with it, or serve with the release as published",
    "libtriton": "install with the Python that serves, so that the keys are those of its libtriton.so",
    "libdevice": "unset TRITON_LIBDEVICE_PATH, or build with the same libdevice",
    "assembler": "unset TRITON_PTXAS_PATH and TRITON_PTXAS_BLACKWELL_PATH, or build with the same ptxas",
    "environment": "give the serving process the variable as the bundle has it; set to its default is not unset",
    "source": "serve the engine release that the bundle was built from, or build from the files that serve",
    "constant": "serve the engine release that the bundle was built from, or build from the files that serve",
    "line": "install with --engine where the patched engine lies, so that its keys get the new lines",
    "option": "launch or decorate the kernel as the engine's release does; else build from the engine that serves",
    "type": "build with the deployment's own dtypes (--dtype, --kv-cache-dtype, --ssm-dtype)",
    "alignment": "the tensor is a view that starts elsewhere: report the input, a family should try it",
    "integer": "report the size that was passed, a family should try one of its class",
    "optional": "build with the deployment's own features: what is None here is given there, or the reverse",
    "constexpr": "build with the deployment's own model, --tp, limits and --set values",
    "installation": "install into the directory that the process uses before it starts; TRITON_CACHE_DIR may move it",
}
"""What can keep a kernel from being found, and what to do about each."""

_ARCH_OPTIONS = ("arch", "supported_fp8_dtypes", "deprecated_fp8_dot_operand_dtypes", "max_num_imprecise_acc_default")
"""Options that the back end derives from the architecture (triton/backends/nvidia/compiler.py, ``parse_options``)."""

_COMMON: list[Constant] = [False, True, *(1 << power for power in range(17))]
_VARIED = 3
"""Constants that are tried where an entry does not tell its own, and in how many of the bundle's nearest entries."""

_MOST_HISTORIES = 8
"""Source keys of one kernel that are tried; up to Triton 3.7 there can be hundreds."""

_INDUCTOR = re.compile(r"triton_([a-z]{3}_|mm|bmm|flex)")
"""How Inductor names the kernels that it writes (torch/_inductor/codegen/triton.py): triton_poi_fused_add_0."""

_UNSET = "not set"


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One part of a cache key in which a launch differs from a bundle's entry.

    Attributes:
        part: a key of ``PARTS``.
        name: which of its kind: an option, an argument, a variable, a module; "" where there is one.
        bundle: what the bundle has.
        here: what the launch had.
    """

    part: str
    name: str
    bundle: str
    here: str

    @property
    def advice(self) -> str:
        """What to do about it."""
        return PARTS[self.part]


@dataclass(frozen=True, slots=True, kw_only=True)
class Miss:
    """A kernel that Triton compiled, and why.

    Attributes:
        kernel: ``module:qualname``, or the name alone where the module is not known.
        cache_key: what Triton looked up, 64 hex digits.
        cache: the cache directory.
        milliseconds: how long the compile took; None where it is not known.
        nearest: the bundle's entry with the fewest differing parts; None where the bundle lacks the kernel.
        differences: the parts that differ.
        unknown: what may differ beside them and cannot be known.
    """

    kernel: str
    cache_key: str
    cache: Path
    milliseconds: float | None
    nearest: Entry | None
    differences: tuple[Difference, ...]
    unknown: tuple[str, ...]


def explain_misses(bundle: Bundle, records: Sequence[Path], entries: Sequence[Path], cache: Path) -> tuple[Miss, ...]:
    """Why each miss of files of records and of entries was one; without either, of what is left in a cache directory.

    Args:
        bundle: what should have been found.
        records: files that a listener wrote.
        entries: directories in a cache directory.
        cache: a cache directory.

    Raises:
        AotpackError: one of the records or entries cannot be read.
        CacheError: a receipt in a cache is damaged.
    """
    launches = [launch for path in records for launch in read_launches(path)]
    left = [read_leftover(path) for path in entries]
    if not records and not entries:
        left = find_leftovers(cache, {entry.name for entry in bundle.manifest.entries})
    return (*explain_launches(bundle, launches), *explain_leftovers(bundle, left))


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
        *_toolchain_differences(manifest.toolchain, launch.build.toolchain, launch.target),
        *_source_differences(manifest, launch.kernel, launch.source),
    )
    candidates = [
        (entry, (*around, *key_differences(entry.key, launch.key)))
        for entry in manifest.entries
        if launch.key and entry.key.kernel == launch.kernel
    ]
    nearest, differences = min(candidates, key=lambda found: len(found[1]), default=(None, ()))
    if nearest is None or launch.key is None:
        nearest, differences = None, (_not_packed(manifest, launch.kernel, launch.problem),)
    elif failed := next((item.reason for item in manifest.missing if item.key == launch.key), None):
        differences = (Difference(part="missing", name="", bundle=failed, here="compiled"),)
    elif not differences:
        differences = (
            *_libtriton_differences(launch.build.libtriton),
            _not_installed(bundle, launch.cache, launch.cache_key),
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


def _driven() -> list[tuple[str, str]]:
    """The kernels that aotpack's families drive, each with its family."""
    return [(kernel.name, family.name) for family in usable_families()[0] for kernel in family.kernels]


def _not_packed(manifest: Manifest, kernel: str, problem: str) -> Difference:
    module, _, function = kernel.rpartition(":")
    family = next((family for name, family in _driven() if name == kernel), None)
    if problem:
        text = f"is not packed: {problem}"
    elif _INDUCTOR.match(function) and not module.startswith(manifest.engine):
        text = "is not packed: Inductor wrote it when it compiled the model's graph"
    elif kernel in {packed.name for packed in manifest.kernels}:
        text = "is packed, but not one key of it"
    elif family:
        text = f"is not packed: it belongs to family {family}, and the bundle has {', '.join(manifest.families)}"
    else:
        text = "is not packed: no family of aotpack drives it"
    return Difference(part="kernel", name=kernel, bundle=text, here="launched")


def _not_installed(bundle: Bundle, cache: Path, cache_key: str) -> Difference:
    listed = [
        {file.path.partition("/")[0] for file in receipt.files}
        for receipt in read_receipts(cache)
        if receipt.bundle == bundle.digest
    ]
    if not listed:
        text = f"holds this key, and is not installed in {cache}"
    elif directory_name(cache_key) in listed[0]:
        text = f"is installed in {cache} with this entry: later than the compile, or the entry was broken"
    else:
        text = f"is installed in {cache} and left the entry that Triton had compiled there before"
    return Difference(part="installation", name="", bundle=text, here="compiled")


def _libtriton_differences(theirs: str) -> Iterator[Difference]:
    try:
        here = local_libtriton()
    except ToolchainError:
        return
    if theirs and here != theirs:
        yield Difference(
            part="libtriton", name="", bundle=f"{_short(here)}, where this Python installs", here=_short(theirs)
        )


def _short(digest: str) -> str:
    return hex_of(digest)[:12]


def _toolchain_differences(ours: Toolchain, theirs: Toolchain, target: Target) -> Iterator[Difference]:
    if ours.triton != theirs.triton:
        yield Difference(part="triton", name="release", bundle=ours.triton, here=theirs.triton)
        return
    for name, bundle, here in _unequal(ours.sources, theirs.sources):
        yield Difference(
            part="triton source",
            name=name,
            bundle=_short(bundle) if bundle else "no such module",
            here=_short(here) if here else "no such module",
        )
    if ours.libdevice != theirs.libdevice:
        yield Difference(part="libdevice", name="", bundle=_short(ours.libdevice), here=_short(theirs.libdevice))
    assemblers = (dict(ours.assemblers).get(str(target)), dict(theirs.assemblers).get(str(target)))
    if None not in assemblers and assemblers[0] != assemblers[1]:
        bundle, here = (" ".join(str(text).split()) for text in assemblers)
        yield Difference(part="assembler", name=str(target), bundle=bundle, here=here)
    for name, bundle, here in _unequal(ours.environment, theirs.environment):
        yield Difference(part="environment", name=name, bundle=_variable(bundle), here=_variable(here))


def _variable(value: str | None) -> str:
    return _UNSET if value is None else repr(value)


def _unequal(
    ours: Iterable[tuple[str, Any]], theirs: Iterable[tuple[str, Any]]
) -> Iterator[tuple[str, Any | None, Any | None]]:
    """The names under which two mappings hold different values, and both values."""
    bundle, here = dict(ours), dict(theirs)
    for name in sorted(bundle.keys() | here.keys()):
        if repr(bundle.get(name)) != repr(here.get(name)):  # 1 is not True to Triton's hash either
            yield name, bundle.get(name), here.get(name)


def _source_differences(manifest: Manifest, kernel: str, source: Source) -> list[Difference]:
    """What of a kernel's source differs: texts and constants by function; lines only where these are the same."""
    cache_keys = next((item.cache_keys for item in manifest.kernels if item.name == kernel), (source.cache_key,))
    if source.cache_key in cache_keys:
        return []
    ours = {function.name: function for function in manifest.sources.closure(kernel)}
    theirs = {function.name: function for function in source.functions}
    found = []
    for name, bundle, here in _unequal(_texts(ours.values()), _texts(theirs.values())):
        texts = [_short(text) if text else "not reached" for text in (bundle, here)]
        found.append(Difference(part="source", name=name, bundle=texts[0], here=texts[1]))
    for name in filter(theirs.__contains__, ours):
        keyed = [(value.spelling, value.shown) for value in ours[name].globals if value.keyed]
        for spelling, bundle, here in _unequal(keyed, theirs[name].constants):
            values = [value or "not read" for value in (bundle, here)]
            found.append(Difference(part="constant", name=f"{spelling} of {name}", bundle=values[0], here=values[1]))
    if found:
        return found
    lines = {function.name: function.line for function in source.functions}
    texts = [_short(cache_keys[0]), _short(source.cache_key)]
    unseen = Difference(part="source", name=f"{kernel}, in what is not recorded", bundle=texts[0], here=texts[1])
    return list(_line_differences(kernel, ours.values(), lines)) or [unseen]


def _line_differences(
    kernel: str, functions: Iterable[sources.Function], lines: Mapping[str, int]
) -> tuple[Difference, ...]:
    moved = [(function.line, lines[function.name]) for function in functions if function.line != lines[function.name]]
    if not moved:
        return ()
    bundle, here = (", ".join(map(str, side)) for side in zip(*moved, strict=True))
    return (Difference(part="line", name=kernel, bundle=f"line {bundle}", here=f"line {here}"),)


def _texts(functions: Iterable[Function | sources.Function]) -> list[tuple[str, str]]:
    return [(function.name, function.text) for function in functions]


def key_differences(ours: CompileKey, theirs: CompileKey) -> tuple[Difference, ...]:
    """The parts in which two compile keys of one kernel differ.

    What follows from another part is left out: the options that the architecture fixes, and the parameters that a
    changed source has or lacks.
    """
    found = []
    derived: tuple[str, ...] = ()
    if ours.target != theirs.target:
        derived = _ARCH_OPTIONS
        found.append(Difference(part="architecture", name="", bundle=ours.target.short, here=theirs.target.short))
    found += [
        Difference(part="option", name=name, bundle=repr(bundle), here=repr(here))
        for name, bundle, here in _unequal(ours.options, theirs.options)
        if name not in derived
    ]
    bundle_leaves, here_leaves = _leaves(ours), _leaves(theirs)
    for name, leaf in bundle_leaves.items():
        if name in here_leaves:
            found += _argument_differences(name, leaf, here_leaves[name])
    return tuple(found)


@dataclass(frozen=True, slots=True)
class _Leaf:
    """One argument as the key has it: its type, and its value as Python spells it where that is constant."""

    type: str
    constant: str
    attrs: tuple[tuple[str, int], ...]

    @property
    def is_integer(self) -> bool:
        return re.fullmatch(r"[iu]\d+", self.type) is not None

    @property
    def is_constant(self) -> bool:
        return self.type == "constexpr"

    def __str__(self) -> str:
        if self.is_constant:
            return self.constant
        return f"{self.type}, {'a multiple of 16' if self.attrs else 'not known as a multiple of 16'}"


def _leaves(key: CompileKey) -> dict[str, _Leaf]:
    constants, attrs = dict(key.constexprs), dict(key.attrs)
    found: dict[str, _Leaf] = {}

    def visit(name: str, type_: Type, place: Place) -> None:
        if isinstance(type_, tuple):
            for index, item in enumerate(type_):
                visit(f"{name}[{index}]", item, (*place, index))
        else:
            found[name] = _Leaf(type_, _spelled(constants.get(place)), attrs.get(place, ()))

    for index, (name, type_) in enumerate(key.signature):
        visit(name, type_, (index,))
    return found


def _spelled(value: Constant) -> str:
    return value.name if isinstance(value, DType) else repr(value)


def _argument_differences(name: str, ours: _Leaf, theirs: _Leaf) -> list[Difference]:
    if ours.is_constant and theirs.is_constant:
        parts = ["constexpr"] if ours.constant != theirs.constant else []
    elif ours.is_constant or theirs.is_constant:
        constant, other = (ours, theirs) if ours.is_constant else (theirs, ours)
        parts = ["optional" if constant.constant == "None" else "integer" if other.is_integer else "constexpr"]
    elif ours.is_integer and theirs.is_integer:
        parts = ["integer"] if ours != theirs else []
    else:
        parts = ["type"] if ours.type != theirs.type else []
        parts += ["alignment"] if ours.attrs != theirs.attrs else []
    return [Difference(part=part, name=name, bundle=str(ours), here=str(theirs)) for part in parts]


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
    around = tuple(_toolchain_differences(manifest.toolchain, theirs, left.target))
    guesses = [
        (entry, guess_key(entry.key, left))
        for entry in manifest.entries
        if entry.name == left.name and is_of(left, entry.key.kernel)
    ]
    guesses.sort(key=lambda guess: len(key_differences(guess[0].key, guess[1])))
    driven = (kernel for kernel, _ in _driven() if kernel.endswith(f":{left.name}") and is_of(left, kernel))
    kernel = next(driven, left.name)
    miss = Miss(
        kernel=kernel,
        cache_key=left.cache_key,
        cache=left.directory.parent,
        milliseconds=None,
        nearest=None,
        differences=(_not_packed(manifest, kernel, ""),),
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
        differences = (_not_installed(bundle, miss.cache, miss.cache_key),)
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
            grounds.append(_Ground(source_keys[:_MOST_HISTORIES], _line_differences(kernel, closure, dict(lines))))
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
