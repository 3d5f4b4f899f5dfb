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
from aotpack.results import ResultFile, read_text
from aotpack.targets import Target, parse_arch
from aotpack.tuning import Configuration, Measured, Result, Tuning
from tests.manifests import lines

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


finite = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**40), 2**40), st.floats(allow_nan=False, allow_infinity=False), st.text()
)
configurations = st.builds(
    Configuration,
    arguments=st.lists(st.tuples(names, finite), max_size=3).map(tuple),
    num_warps=st.integers(1, 64),
    num_stages=st.integers(0, 64),
    num_ctas=st.integers(1, 16),
    maxnreg=st.one_of(st.none(), st.integers(1, 255)),
)
moments = st.floats(0, 1e6).map(lambda value: round(value, 6))


@st.composite
def results(draw: st.DrawFn) -> Result:
    tuning = Tuning(
        kernel="{}.{}:{}".format(*draw(st.tuples(names, names, names))),
        target=draw(targets),
        key=tuple(draw(st.lists(finite, min_size=1, max_size=6))),
        configurations=tuple(draw(st.lists(configurations, min_size=2, max_size=5, unique=True))),
    )
    timed = st.one_of(st.none(), st.tuples(moments, moments, moments))
    rest = [draw(timed) for _ in tuning.configurations[1:]]
    told = draw(st.tuples(lines, lines, lines, lines, lines))
    measured = Measured(date="2026-11-30", aotpack=told[0], triton=told[1], torch=told[2], cuda=told[3], input=told[4])
    times = (draw(st.tuples(moments, moments, moments)), *rest)
    return Result(tuning=tuning, device=draw(lines), times=times, measured=measured)


@given(results())
def test_a_result_reads_back_from_a_manifest_and_from_its_file(result: Result) -> None:
    assert Result.from_json(parse_document(canonical_json(result.to_json()))) == result
    text = ResultFile(engine="vllm", engine_version="0.33.0", results=(result,)).to_text()
    assert read_text(text).results == (result,)
    assert read_text(text).to_text() == text
