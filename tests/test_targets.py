"""Architectures are taken in every usual spelling, and nothing else is."""

import pytest

from aotpack.errors import UsageError
from aotpack.targets import DEVICES, Target, buildable_archs, parse_arch, parse_archs


@pytest.mark.parametrize("text", ["sm90", "sm_90", "90", "9.0", "sm_90a", "SM90", "cuda:90", " sm90 "])
def test_every_usual_spelling_means_the_same_target(text: str) -> None:
    assert parse_arch(text) == Target("cuda", 90)


@pytest.mark.parametrize("text", ["sm_9", "sm", "", "hopper", "9", "900", "sm90x", "-90", "sm70", "90,100", "9.0.0"])
def test_anything_else_is_refused_with_what_can_be_built(text: str) -> None:
    with pytest.raises(UsageError, match=r"choose from .*sm90"):
        parse_arch(text)


def test_comma_lists_and_repetition_are_merged_in_ascending_order() -> None:
    assert parse_archs(["100,9.0", "sm90", "sm_80"]) == (Target("cuda", 80), Target("cuda", 90), Target("cuda", 100))


def test_no_architecture_at_all_is_refused() -> None:
    with pytest.raises(UsageError, match="no architecture given"):
        parse_archs([])


def test_two_digit_majors_are_read_with_their_point() -> None:
    assert parse_arch("12.0") == Target("cuda", 120)


def test_what_can_be_built_is_what_this_tritons_assemblers_list() -> None:
    pytest.importorskip("triton")
    # sm70 is listed by ptxas, and nothing here knows a device for it; sm101 was renamed and is no product.
    assert {80, 90, 100, 120} <= set(buildable_archs()) <= set(DEVICES)


@pytest.mark.parametrize("text", ["cuda:90", "cuda:100", "cuda:90/64"])
def test_a_target_that_is_spelled_can_be_read_back(text: str) -> None:
    assert str(Target.parse(text)) == text


@pytest.mark.parametrize("text", ["90", "cuda", "cuda:", "cuda:90:32", "rocm:90"])
def test_other_text_is_no_target(text: str) -> None:
    with pytest.raises(UsageError, match="is not a target"):
        Target.parse(text)
