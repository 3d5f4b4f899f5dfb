"""The parts of a cache key in which a launch differs from a bundle's entry: of its toolchain and its source."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from aotpack import sources
from aotpack.digests import hex_of
from aotpack.errors import ToolchainError
from aotpack.manifest import Manifest
from aotpack.record import Function, Source
from aotpack.targets import Target
from aotpack.toolchain import Toolchain, local_libtriton

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


def libtriton_differences(theirs: str) -> Iterator[Difference]:
    """Whether a launch had another ``libtriton.so`` than the Triton of this Python, where there is one."""
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


def toolchain_differences(ours: Toolchain, theirs: Toolchain, target: Target) -> Iterator[Difference]:
    """What of Triton differs; where the release does, nothing else is compared."""
    if ours.triton != theirs.triton:
        yield Difference(part="triton", name="release", bundle=ours.triton, here=theirs.triton)
        return
    for name, bundle, here in unequal(ours.sources, theirs.sources):
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
    for name, bundle, here in unequal(ours.environment, theirs.environment):
        yield Difference(part="environment", name=name, bundle=_variable(bundle), here=_variable(here))


def _variable(value: str | None) -> str:
    return _UNSET if value is None else repr(value)


def unequal(
    ours: Iterable[tuple[str, Any]], theirs: Iterable[tuple[str, Any]]
) -> Iterator[tuple[str, Any | None, Any | None]]:
    """The names under which two mappings hold different values, and both values."""
    bundle, here = dict(ours), dict(theirs)
    for name in sorted(bundle.keys() | here.keys()):
        if repr(bundle.get(name)) != repr(here.get(name)):  # 1 is not True to Triton's hash either
            yield name, bundle.get(name), here.get(name)


def source_differences(manifest: Manifest, kernel: str, source: Source) -> list[Difference]:
    """What of a kernel's source differs: texts and constants by function; lines only where these are the same."""
    cache_keys = next((item.cache_keys for item in manifest.kernels if item.name == kernel), (source.cache_key,))
    if source.cache_key in cache_keys:
        return []
    ours = {function.name: function for function in manifest.sources.closure(kernel)}
    theirs = {function.name: function for function in source.functions}
    found = []
    for name, bundle, here in unequal(_texts(ours.values()), _texts(theirs.values())):
        texts = [_short(text) if text else "not reached" for text in (bundle, here)]
        found.append(Difference(part="source", name=name, bundle=texts[0], here=texts[1]))
    for name in filter(theirs.__contains__, ours):
        keyed = [(value.spelling, value.shown) for value in ours[name].globals if value.keyed]
        for spelling, bundle, here in unequal(keyed, theirs[name].constants):
            values = [value or "not read" for value in (bundle, here)]
            found.append(Difference(part="constant", name=f"{spelling} of {name}", bundle=values[0], here=values[1]))
    if found:
        return found
    lines = {function.name: function.line for function in source.functions}
    texts = [_short(cache_keys[0]), _short(source.cache_key)]
    unseen = Difference(part="source", name=f"{kernel}, in what is not recorded", bundle=texts[0], here=texts[1])
    return list(line_differences(kernel, ours.values(), lines)) or [unseen]


def line_differences(
    kernel: str, functions: Iterable[sources.Function], lines: Mapping[str, int]
) -> tuple[Difference, ...]:
    """Whether functions begin on other lines; ``lines`` has each by name."""
    moved = [(function.line, lines[function.name]) for function in functions if function.line != lines[function.name]]
    if not moved:
        return ()
    bundle, here = (", ".join(map(str, side)) for side in zip(*moved, strict=True))
    return (Difference(part="line", name=kernel, bundle=f"line {bundle}", here=f"line {here}"),)


def _texts(functions: Iterable[Function | sources.Function]) -> list[tuple[str, str]]:
    return [(function.name, function.text) for function in functions]
