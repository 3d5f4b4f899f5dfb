"""What is spelled reads back, whatever it is."""

import json
from contextlib import suppress
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from aotpack.digests import canonical_json
from aotpack.documents import parse_document
from aotpack.errors import AotpackError, UsageError
from aotpack.keys import CompileKey, DType, read_constant, spell_constant
from aotpack.manifest import read_manifest
from aotpack.targets import Target, parse_arch

names = st.from_regex(r"[a-z_][a-z0-9_]{0,8}", fullmatch=True)
targets = st.builds(Target, st.just("cuda"), st.integers(10, 999), st.sampled_from([32, 64]))
scalars = st.one_of(st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(allow_nan=False), st.text())
constants = st.recursive(
    st.one_of(scalars, st.builds(DType, names)), lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=6
)
types = st.recursive(
    st.sampled_from(["*bf16", "i32", "constexpr"]), lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=4
)
paths = st.lists(st.integers(0, 30), min_size=1, max_size=3).map(tuple)
options = st.dictionaries(names, st.one_of(scalars, st.lists(scalars, max_size=3).map(tuple)), max_size=5)
keys = st.builds(
    CompileKey,
    kernel=st.builds("{}.{}:{}".format, names, names, names),
    target=targets,
    signature=st.lists(st.tuples(names, types), max_size=5).map(tuple),
    constexprs=st.lists(st.tuples(paths, constants), max_size=4).map(tuple),
    attrs=st.lists(
        st.tuples(paths, st.lists(st.tuples(names, st.integers(0, 64)), max_size=2).map(tuple)), max_size=4
    ).map(tuple),
    options=options.map(lambda value: tuple(sorted(value.items()))),
)


@given(targets)
def test_targets(target: Target) -> None:
    assert Target.parse(str(target)) == target


@given(constants)
def test_constants(value: Any) -> None:
    back = read_constant(parse_document(json.dumps(spell_constant(value))))
    assert repr(back) == repr(value)


@given(keys)
def test_keys(key: CompileKey) -> None:
    assert CompileKey.from_json(parse_document(key.line)).line == key.line


@given(st.dictionaries(st.text(), st.integers(), max_size=6))
def test_a_spelling_does_not_depend_on_the_order_of_a_dict(value: dict[str, int]) -> None:
    assert canonical_json(value) == canonical_json(dict(reversed(value.items())))


@given(st.text(max_size=12))
def test_any_text_is_an_architecture_or_a_usage_error(text: str) -> None:
    with suppress(UsageError):
        assert parse_arch(text).backend == "cuda"


documents = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(), inner, max_size=4)),
    max_leaves=12,
)


@given(st.one_of(st.binary(max_size=200), documents.map(lambda value: json.dumps(value).encode())))
def test_no_bytes_make_the_manifest_reader_fail_otherwise_than_by_saying_so(data: bytes) -> None:
    with suppress(AotpackError):
        read_manifest(data)
