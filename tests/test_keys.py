"""Compile keys are spelled in one line, and read back."""

import json
from typing import Any

import pytest

from aotpack.documents import Node, parse_document
from aotpack.errors import DocumentError
from aotpack.keys import CompileKey, DType, options_to_key, read_constant, spell_constant
from aotpack.targets import Target

KEY = CompileKey(
    kernel="engine.module:kernel",
    target=Target("cuda", 90),
    signature=(("x", "*bf16"), ("n", "i32"), ("flag", "constexpr"), ("pair", ("i32", "constexpr"))),
    constexprs=(((2,), True), ((3, 1), DType("bf16"))),
    attrs=(((0,), (("tt.divisibility", 16),)), ((1,), ())),
    options=(("fp8", ("fp8e5", "fp8e4nv")), ("maxnreg", None), ("num_warps", 4)),
)


def test_a_key_reads_back_from_its_line() -> None:
    assert CompileKey.from_json(parse_document(KEY.line)) == KEY


def test_a_keys_line_does_not_change_unnoticed() -> None:
    assert KEY.digest == "sha256:94854cede25ac3930971b7f16540fd8feaa0dee271b75f4131f59b8dd1ec8ef5"


def test_true_and_one_are_different_keys() -> None:
    other = CompileKey(**{**vars_of(KEY), "constexprs": (((2,), 1), ((3, 1), DType("bf16")))})
    assert other.digest != KEY.digest


def vars_of(key: CompileKey) -> dict[str, Any]:
    return {name: getattr(key, name) for name in key.__dataclass_fields__}


def test_a_key_for_people_shows_types_constants_and_what_is_divisible() -> None:
    assert KEY.describe() == (
        "engine.module:kernel(x: *bf16%16, n: i32, flag=True, pair: ('i32', 'constexpr')) [cuda:90, num_warps=4]"
    )


@pytest.mark.parametrize(
    "value", [None, True, 1, -1.5, "silu", float("inf"), DType("fp32"), (1, (None, "x"), DType("u8"))]
)
def test_every_kind_of_constexpr_reads_back(value: Any) -> None:
    spelled = parse_document(json.dumps(spell_constant(value)))
    assert read_constant(spelled) == value
    assert type(read_constant(spelled)) is type(value)


@pytest.mark.parametrize("value", [{"dtype": 3}, {"tuple": 3}, {"float": "1.0"}, {"other": 1}, [1]])
def test_what_is_no_constexpr_is_refused(value: Any) -> None:
    with pytest.raises(DocumentError):
        read_constant(Node(value, "here"))


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("kernel", "module.kernel", "kernel: expected module:qualname"),
        ("target", "90", "target: expected a target"),
        ("signature", [["x"]], r"signature\[0\]: expected a pair"),
        ("constexprs", [[[], 1]], r"constexprs\[0\]\[0\]: expected a path"),
        ("attrs", [[[0], [["tt.divisibility", "x"]]]], r"attrs\[0\].*expected a whole number"),
        ("options", {"x": {}}, "options.x: expected a constexpr"),
        ("options", {"x": {"dtype": "bf16"}}, "options.x: expected an option's value"),
        ("extra", 1, "extra: no such field"),
    ],
)
def test_a_key_that_is_spelled_wrongly_is_refused_with_its_place(field: str, value: Any, message: str) -> None:
    with pytest.raises(DocumentError, match=message):
        CompileKey.from_json(Node({**KEY.to_json(), field: value}))


def test_the_path_of_libdevice_is_no_part_of_a_key() -> None:
    assert options_to_key({"num_warps": 4, "extern_libs": (("libdevice", "/somewhere"),)}) == (("num_warps", 4),)


def test_an_option_that_a_key_cannot_spell_is_refused() -> None:
    with pytest.raises(DocumentError, match="option hook: a key cannot spell"):
        options_to_key({"hook": object()})
