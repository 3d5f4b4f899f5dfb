"""Manifests that no build made: everything that the format can say, for hypothesis."""

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from aotpack.digests import digest_bytes, hex_of
from aotpack.keys import CompileKey, DType
from aotpack.manifest import (
    HELPER_NAMES,
    Artifact,
    Entry,
    Helper,
    Kernel,
    Manifest,
    Missing,
    Reached,
    Unknown,
    launches_in_order,
)
from aotpack.sources import Function, Global, Sources
from aotpack.targets import Target
from aotpack.toolchain import Toolchain

KERNELS = ("engine.a:kernel", "engine.b:outer.<locals>.kernel")
TARGETS = (Target("cuda", 80), Target("cuda", 90), Target("cuda", 90, 64))

texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=6)
lines = st.text(st.characters(exclude_categories=["C", "Z"], include_characters=" "), min_size=1, max_size=6)
digests = st.binary(max_size=4).map(digest_bytes)
scalars = st.none() | st.booleans() | st.integers(-(2**63), 2**64) | st.floats(allow_nan=False) | texts
constants = st.recursive(
    scalars | st.builds(DType, texts), lambda inner: st.lists(inner, max_size=2).map(tuple), max_leaves=4
)
types = st.recursive(lines, lambda inner: st.lists(inner, max_size=2).map(tuple), max_leaves=3)
options = scalars | st.lists(scalars, max_size=2).map(tuple)
paths = st.lists(st.integers(0, 40), min_size=1, max_size=2).map(tuple)
json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | lines,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(lines, inner, max_size=2),
    max_leaves=4,
)


def several(of: st.SearchStrategy[Any], *, most: int = 2) -> st.SearchStrategy[Any]:
    return st.lists(of, max_size=most).map(tuple)


def named(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Pairs of names and values, by name."""
    return st.dictionaries(lines, values, max_size=2).map(lambda found: tuple(sorted(found.items())))


# A digest's size is always the same, as in what a build makes.
artifacts = digests.map(lambda digest: Artifact(digest=digest, size=int(hex_of(digest)[:4], 16) + 1))

keys = st.builds(
    CompileKey,
    kernel=st.sampled_from(KERNELS),
    target=st.sampled_from(TARGETS),
    signature=several(st.tuples(lines, types)),
    constexprs=several(st.tuples(paths, constants)),
    attrs=several(st.tuples(paths, several(st.tuples(lines, st.integers(0, 64))))),
    options=named(options),
)

entries = st.builds(
    Entry,
    key=keys,
    name=st.sampled_from(["kernel", "_", "größe", "k" * 150]),
    reached=st.builds(Reached, deployment=st.just(0), input=named(st.booleans() | st.integers(0, 2**53) | texts)),
    launches=st.lists(named(options), max_size=2).map(launches_in_order),
    artifacts=st.tuples(st.tuples(st.just("cubin"), artifacts), st.tuples(st.just("json"), artifacts)),
)

helpers = st.builds(
    Helper,
    name=st.sampled_from(HELPER_NAMES),
    source=digests,
    machine=st.sampled_from(["x86_64", "aarch64"]),
    suffix=st.sampled_from([".cpython-311-x86_64-linux-gnu.so", ".abi3.so"]),
    glibc=st.sampled_from(["2.17", "2.34"]),
    artifact=artifacts,
)

functions = st.builds(
    Function,
    name=st.just(""),
    line=st.integers(1, 9999),
    text=digests,
    noinline=st.none() | st.booleans(),
    calls=several(st.tuples(st.sampled_from(["f", "a.f"]), texts)),
    globals=several(
        st.builds(
            Global,
            spelling=st.sampled_from(["X", "a.X"]),
            shown=texts | st.just(""),
            keyed=st.booleans(),
            definition=digests,
        )
    ),
)


@st.composite
def manifests(draw: Callable[..., Any]) -> Manifest:
    """A manifest that holds together."""
    return Manifest(
        engine=draw(st.sampled_from(["vllm", "a_b-c.d"])),
        engine_version=draw(st.sampled_from(["0.33.0", "1!2.0+local"[2:]])),
        toolchain=Toolchain(
            triton=draw(st.sampled_from(["3.8.0", "3.9.0+git1a2b"])),
            sources=draw(named(digests)),
            libdevice=draw(digests),
            assemblers=tuple((str(target), draw(texts)) for target in TARGETS),
            environment=draw(named(lines | st.just(""))),
        ),
        targets=TARGETS,
        families=draw(several(lines)),
        deployments=({}, *draw(st.lists(st.dictionaries(lines, json_values, max_size=2), max_size=2))),
        kernels=tuple(
            Kernel(name=name, family=draw(lines), cache_keys=(draw(digests.map(hex_of)),)) for name in KERNELS
        ),
        sources=Sources(
            functions=tuple(
                Function(
                    name=name,
                    line=made.line,
                    text=made.text,
                    noinline=made.noinline,
                    calls=made.calls,
                    globals=made.globals,
                )
                for name, made in zip(KERNELS, draw(st.tuples(functions, functions)), strict=True)
            ),
            modules=(("engine.a", draw(digests)),),
        ),
        entries=tuple(draw(st.lists(entries, max_size=3, unique_by=lambda entry: entry.key.digest))),
        helpers=tuple(
            sorted(draw(st.lists(helpers, max_size=2, unique_by=lambda one: one.order)), key=lambda one: one.order)
        ),
        missing=draw(several(st.builds(Missing, key=keys, reason=lines))),
        unknowns=draw(several(st.builds(Unknown, family=lines, name=lines, fixed_by=lines))),
        built_by=draw(lines),
    )
