"""Source keys are Triton's own, without the engine being imported, and all that some history reaches."""

import importlib
import itertools
from pathlib import Path

import pytest

from aotpack.errors import ToolchainError
from aotpack.sourcekeys import SourceKeys, _histories, _name_of, _orders
from aotpack.sources import EngineSources, Shifted, Sources
from tests import toy
from tests.conftest import needs_compiler

HISTORIC = {"reads_through_helpers", "reads_one_name_of_two_modules"}
"""Kernels whose helpers read constexpr globals."""


@pytest.fixture(scope="module")
def recorded() -> Sources:
    needs_compiler()
    return toy.record(toy.TOY)


def depends_on_history() -> bool:
    import triton

    return tuple(map(int, triton.__version__.split(".")[:2])) < (3, 8)


@pytest.mark.parametrize("name", toy.KERNELS)
def test_the_first_key_is_what_triton_hashes_in_a_fresh_process(recorded: Sources, name: str) -> None:
    keys = SourceKeys(recorded, EngineSources(toy.TOY)).of(f"toy.kernels:{name}")
    with toy.imported(toy.TOY) as kernels:
        assert keys[0] == kernels[f"toy.kernels:{name}"].cache_key


@pytest.mark.parametrize("name", toy.KERNELS)
def test_the_keys_are_just_those_that_some_history_reaches(recorded: Sources, name: str) -> None:
    keys = SourceKeys(recorded, EngineSources(toy.TOY)).of(f"toy.kernels:{name}")
    reached = set()
    for length in range(4):
        for order in itertools.permutations(("salted", "rounded", "plain"), length):
            with toy.imported(toy.TOY) as kernels:
                helpers = importlib.import_module("toy.helpers")

                for helper in order:
                    assert getattr(helpers, helper).cache_key
                reached.add(kernels[f"toy.kernels:{name}"].cache_key)
    assert reached <= set(keys)
    assert (len(keys) > 1) == (depends_on_history() and name in HISTORIC)
    # Where two modules have a constexpr of one name, addresses decide, and a few imports need not meet both orders.
    if name != "reads_one_name_of_two_modules":
        assert reached == set(keys)


@pytest.mark.parametrize("name", sorted(HISTORIC))
def test_histories_come_in_one_order_wherever_functions_lie_in_memory(recorded: Sources, name: str) -> None:
    maker, kernel = SourceKeys(recorded, EngineSources(toy.TOY)), f"toy.kernels:{name}"
    functions = maker._functions(kernel, {})
    modules = next(_orders(functions))
    rebuilt = [maker._rebuild(functions, modules) for _ in range(40)]  # all kept, so that no two lie in one place
    orders = {
        tuple(tuple(map(_name_of, history)) for history in _histories(one[kernel], list(one.values())))
        for one in rebuilt
    }
    (order,) = orders
    assert len(order) > 1


@pytest.mark.parametrize("name", toy.KERNELS)
def test_a_shifted_kernel_gets_the_key_that_triton_gives_it_there(recorded: Sources, tmp_path: Path, name: str) -> None:
    root = toy.changed_copy(tmp_path / "copy", "toy.helpers", '"""\n', '"""\n\n\n')
    kernels = root / "toy" / "kernels.py"
    kernels.write_text("# shifted\n" + kernels.read_text())
    files = EngineSources(root)
    found = files.compare(recorded.closure(f"toy.kernels:{name}"))
    assert isinstance(found, Shifted)
    keys = SourceKeys(recorded, files).of(f"toy.kernels:{name}", dict(found.lines))
    assert not set(keys) & set(SourceKeys(recorded, EngineSources(toy.TOY)).of(f"toy.kernels:{name}"))
    with toy.imported(root) as imported:
        assert keys[0] == imported[f"toy.kernels:{name}"].cache_key


def test_a_function_that_does_not_start_where_it_is_said_to_is_refused(recorded: Sources) -> None:
    maker = SourceKeys(recorded, EngineSources(toy.TOY))
    with pytest.raises(ToolchainError, match=r"kernels\.py, line 3: .*toy\.kernels:lonely"):
        maker.of("toy.kernels:lonely", {"toy.kernels:lonely": 3})


def test_an_engine_that_lacks_the_module_is_refused(recorded: Sources, tmp_path: Path) -> None:
    with pytest.raises(ToolchainError, match=r"toy\.kernels is not among the files"):
        SourceKeys(recorded, EngineSources(tmp_path)).of("toy.kernels:lonely")
