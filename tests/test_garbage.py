"""The search for garbage is put off, and is as it was afterwards, however the block ends."""

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

from aotpack.garbage import searched_later


@pytest.fixture(params=[True, False])
def was_on(request: pytest.FixtureRequest) -> Iterator[bool]:
    before = gc.isenabled()
    (gc.enable if request.param else gc.disable)()
    yield request.param
    (gc.enable if before else gc.disable)()


def test_the_search_is_off_in_the_block_and_as_it_was_after_it(*, was_on: bool) -> None:
    with searched_later(), searched_later():
        during = gc.isenabled()
    assert (during, gc.isenabled()) == (False, was_on)


def test_the_search_is_as_it_was_after_a_block_that_fails(*, was_on: bool) -> None:
    with pytest.raises(FileNotFoundError), searched_later():
        Path("/nowhere/at/all").stat()
    assert gc.isenabled() is was_on
