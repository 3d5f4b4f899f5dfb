"""The toy engine, imported for real, and copies of it that are changed on purpose."""

import importlib
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from aotpack.memorykeys import jit_function
from aotpack.sourcekeys import record_sources
from aotpack.sources import EngineSources, Sources
from tests.conftest import ROOT

TOY = ROOT / "tests" / "packages" / "toy-engine"
KERNELS = (
    "lonely",
    "calls",
    "calls_tritons_own",
    "reads_through_helpers",
    "reads_one_name_of_two_modules",
    "reads_a_derived_constant",
    "reads_a_dtype",
    "reads_an_attribute",
    "reads_a_default",
    "decorated",
)


@contextmanager
def imported(root: Path) -> Iterator[dict[str, Any]]:
    """The kernels of a toy engine by ``module:qualname``, from modules that are new to this process."""
    before = {name for name in sys.modules if name.partition(".")[0] == "toy"}
    assert not before
    sys.path.insert(0, str(root))
    importlib.invalidate_caches()
    try:
        module = importlib.import_module("toy.kernels")
        yield {f"toy.kernels:{name}": jit_function(getattr(module, name)) for name in KERNELS}
    finally:
        sys.path.remove(str(root))
        for name in [name for name in sys.modules if name.partition(".")[0] == "toy"]:
            del sys.modules[name]


def record(root: Path) -> Sources:
    """What a build would record of a toy engine."""
    with imported(root) as kernels:
        return record_sources(kernels.values(), EngineSources(root))


def changed_copy(folder: Path, module: str = "", old: str = "", new: str = "") -> Path:
    """A copy of the toy engine with text of one module replaced; the text must be there."""
    shutil.copytree(TOY, folder, ignore=shutil.ignore_patterns("__pycache__"))
    if module:
        path = folder.joinpath(*module.split(".")).with_suffix(".py")
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))
    return folder
