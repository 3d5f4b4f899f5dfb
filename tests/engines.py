"""Small engines on disk: the few real files of vLLM that the families load, unchanged or changed on purpose."""

import shutil
from pathlib import Path

from aotpack.engines import Engine
from aotpack.families import load_families
from aotpack.tracing.vllm import REAL


def copy_engine(engine: Engine, folder: Path, version: str | None = None) -> Path:
    """A source tree with just the modules that tracing loads; ``version`` makes it say another release."""
    modules = {*REAL, *(module for family in load_families() for module in (*family.modules, *family.optional))}
    for name in filter(engine.has, modules):
        relative = Path(*name.split("."))
        source = engine.root / relative
        source, target = (
            (source / "__init__.py", folder / relative / "__init__.py")
            if source.is_dir()
            else (source.with_suffix(".py"), (folder / relative).with_suffix(".py"))
        )
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)
    (folder / "vllm" / "__init__.py").write_text("")
    (folder / "vllm" / "_version.py").write_text(f"__version__ = version = '{version or engine.version}'\n")
    return folder


def change(folder: Path, module: str, old: str, new: str) -> None:
    """Replace text in a module of a copied engine; the text must be there."""
    path = folder.joinpath(*module.split(".")).with_suffix(".py")
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
