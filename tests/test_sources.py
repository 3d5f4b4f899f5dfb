"""An engine's files are held against what was recorded, to the last character and the last global."""

from pathlib import Path

import pytest

from aotpack.documents import Node
from aotpack.sources import Changed, Comparison, EngineSources, Same, Shifted, Sources
from tests import toy
from tests.conftest import needs_compiler


@pytest.fixture(scope="module")
def recorded() -> Sources:
    needs_compiler()
    return toy.record(toy.TOY)


def compare(recorded: Sources, root: Path) -> dict[str, Comparison]:
    files = EngineSources(root)
    return {name: files.compare(recorded.closure(f"toy.kernels:{name}")) for name in toy.KERNELS}


def changed(recorded: Sources, root: Path) -> dict[str, str]:
    return {name: found.what for name, found in compare(recorded, root).items() if isinstance(found, Changed)}


def test_the_files_that_were_recorded_are_the_same(recorded: Sources) -> None:
    assert EngineSources(toy.TOY).holds(recorded)
    assert set(compare(recorded, toy.TOY).values()) == {Same()}


def test_sources_that_are_spelled_can_be_read_back(recorded: Sources) -> None:
    assert Sources.from_json(Node(recorded.to_json())) == recorded


def test_a_copy_elsewhere_is_the_same(recorded: Sources, tmp_path: Path) -> None:
    root = toy.changed_copy(tmp_path / "copy")
    assert EngineSources(root).holds(recorded)


def test_a_line_above_shifts_what_stands_below(recorded: Sources, tmp_path: Path) -> None:
    root = toy.changed_copy(tmp_path / "copy", "toy.kernels", "@triton.jit\ndef calls(", "\n@triton.jit\ndef calls(")
    assert not EngineSources(root).holds(recorded)
    found = compare(recorded, root)
    assert found.pop("lonely") == Same()
    assert all(isinstance(shift, Shifted) for shift in found.values())
    before = {function.name: function.line for function in recorded.functions}
    shift = found["calls"]
    assert isinstance(shift, Shifted)
    assert dict(shift.lines)["toy.kernels:calls"] == before["toy.kernels:calls"] + 1
    assert dict(shift.lines)["toy.helpers:plain"] == before["toy.helpers:plain"]


def test_another_decorator_shifts_the_start(recorded: Sources, tmp_path: Path) -> None:
    root = toy.changed_copy(
        tmp_path / "copy", "toy.kernels", "\n\n\n@triton.heuristics", "\n\n@note\n@triton.heuristics"
    )
    assert isinstance(compare(recorded, root)["decorated"], Shifted)


@pytest.mark.parametrize(
    ("module", "old", "new", "kernels", "what"),
    [
        ("toy.helpers", "return x + 1", "return x + 2", {"calls"}, "the text of toy.helpers:plain"),
        ("toy.helpers", "return x + 1", "return x + 1  # one", {"calls"}, "the text of toy.helpers:plain"),
        (
            "toy.helpers",
            "ROUNDS = tl.constexpr(3)",
            "ROUNDS = tl.constexpr(4)",
            {"reads_through_helpers", "reads_one_name_of_two_modules"},
            "the definition of ROUNDS that toy.helpers:rounded reads",
        ),
        (
            "toy.limits",
            "WIDTH = tl.constexpr(16)",
            "WIDTH = tl.constexpr(32)",
            {"reads_a_derived_constant", "reads_an_attribute"},
            "the definition of",
        ),
        (
            "toy.limits",
            "value.bit_length() - 1",
            "value.bit_length()",
            {"reads_a_derived_constant"},
            "the definition of SHIFT that toy.kernels:reads_a_derived_constant reads",
        ),
        (
            "toy.limits",
            "SALT = tl.constexpr(70)",
            "SALT = tl.constexpr(71)",
            {"reads_one_name_of_two_modules", "reads_a_default"},
            "the definition of SALT",
        ),
        ("toy.kernels", "if True:", "if False:", {"reads_a_dtype"}, "the definition of DTYPE"),
        (
            "toy.kernels",
            "from .limits import SALT, SHIFT",
            "from .limits import SALT\nSHIFT = tl.constexpr(4)",
            {"reads_a_derived_constant"},
            "the definition of SHIFT",
        ),
        ("toy.kernels", "def lonely(", "def alone(", {"lonely"}, "the text of toy.kernels:lonely"),
    ],
)
def test_what_changed_is_named_for_the_kernels_that_reach_it(
    recorded: Sources, tmp_path: Path, module: str, old: str, new: str, kernels: set[str], what: str
) -> None:
    found = changed(recorded, toy.changed_copy(tmp_path / "copy", module, old, new))
    assert set(found) == kernels
    assert all(text.startswith(what) for text in found.values())


def test_a_file_that_is_gone_or_unreadable_has_nothing_in_it(recorded: Sources, tmp_path: Path) -> None:
    root = toy.changed_copy(tmp_path / "copy")
    (root / "toy" / "helpers.py").unlink()
    (root / "toy" / "limits.py").write_text("WIDTH = (")
    assert set(changed(recorded, root)) == {*toy.KERNELS} - {
        "lonely",
        "calls_tritons_own",
        "decorated",
        "reads_a_dtype",
    }


def test_a_global_that_triton_does_not_hash_is_recorded_as_such(recorded: Sources) -> None:
    unkeyed = {value.spelling for function in recorded.functions for value in function.globals if not value.keyed}
    assert unkeyed == {"DTYPE", "limits.WIDTH", "SALT"}
    assert {
        value.keyed for function in recorded.functions for value in function.globals if value.spelling == "SALT"
    } == {
        True,
        False,
    }
