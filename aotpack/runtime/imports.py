"""Imports that are awaited: what is to be done with a module once something imports it, without importing it here."""

import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

from aotpack.runtime.trouble import tolerated

Action = Callable[[ModuleType], object]


def when_imported(name: str, action: Action) -> None:
    """Call ``action`` with a module when it has been imported: at once where it has been, and never where it will not.

    It is called in the thread that imports the module, before that thread gets it, and what it raises is one warning.

    Args:
        name: of the module.
        action: given twice for one module, it is called once.
    """
    module = sys.modules.get(name)
    if module is not None:
        _act(action, module)
        return
    if _WATCH not in sys.meta_path:
        sys.meta_path.insert(0, _WATCH)
    actions = _WATCH.awaited.setdefault(name, [])
    if action not in actions:
        actions.append(action)


def _act(action: Action, module: ModuleType) -> None:
    with tolerated(f"{module.__name__} is left as it is"):
        action(module)


class _Watch(MetaPathFinder):
    """Sees the import of what is awaited, and finds nothing itself.

    Attributes:
        awaited: what is to be done, by the module's name.
    """

    def __init__(self) -> None:
        self.awaited: dict[str, list[Action]] = {}

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name not in self.awaited:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader.exec_module = self._then_act(name, spec.loader.exec_module)  # type: ignore[method-assign,assignment]
                return spec
        return None

    def _then_act(self, name: str, execute: Callable[[ModuleType], None]) -> Callable[[ModuleType], None]:
        def executed(module: ModuleType) -> None:
            execute(module)
            for action in self.awaited.pop(name, []):
                _act(action, module)

        return executed


_WATCH = _Watch()
