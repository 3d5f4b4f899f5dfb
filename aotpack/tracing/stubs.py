"""Import stubs: an engine's kernel modules load for real, everything else of the engine is a stand-in.

A finder in front of the import system decides by name: a module that a family declared is loaded from its file;
a substitute is handed out as given; any other module of the engine is a stand-in whose every name is inert.

Inert objects have two lives. While modules are being imported they take part in whatever an import does with a
name that it only passes on: base classes, decorators, annotations. Once driving begins, or as soon as a decision
would hang on one (a truth value, a comparison, arithmetic), using one raises: a key must never depend on a
stand-in. The error names who used what.

The engine need not be installed; where it asks for the version of its own distribution, the finder answers that too.
"""

import importlib.abc
import importlib.machinery
import importlib.metadata
import importlib.util
import sys
from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from aotpack.errors import TracingError

STAND_IN = "<stand-in for "
"""How the ``repr`` of a stand-in starts."""


class Inert:
    """A stand-in for a name of a module that is not loaded."""

    def __init__(self, name: str, stubs: "Stubs") -> None:
        self._aotpack_name = name
        self._aotpack_stubs = stubs

    def _refuse(self) -> NoReturn:
        raise TracingError(f"{_user()} uses {self._aotpack_name}, of a module that is stubbed")

    def __repr__(self) -> str:
        return f"{STAND_IN}{self._aotpack_name}>"

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        """As a base class it gives an empty one, of its own: a class may have several, in any order with real ones."""
        return (type("InertBase", (InertBase,), {}),)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """While importing, a decorator gives what it is given; anything else gives another stand-in."""
        if self._aotpack_stubs.frozen:
            self._refuse()
        if len(args) == 1 and not kwargs and callable(args[0]) and not isinstance(args[0], Inert):
            return args[0]
        return Inert(f"{self._aotpack_name}(...)", self._aotpack_stubs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if self._aotpack_stubs.frozen:
            self._refuse()
        return Inert(f"{self._aotpack_name}.{name}", self._aotpack_stubs)

    def __getitem__(self, item: object) -> Any:
        if self._aotpack_stubs.frozen:
            self._refuse()
        return self

    def __or__(self, other: object) -> Any:
        return self

    def __ror__(self, other: object) -> Any:
        return self

    def _decide(self, *_: object) -> NoReturn:
        self._refuse()

    __lt__ = __le__ = __gt__ = __ge__ = __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _decide
    __truediv__ = __floordiv__ = __mod__ = __int__ = __float__ = __index__ = __iter__ = __len__ = __contains__ = _decide
    __bool__ = __enter__ = __instancecheck__ = _decide


class InertBase:
    """What a class has for a base where its real base is not loaded."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        del kwargs
        super().__init_subclass__()


def _user() -> str:
    depth = 1
    while (name := sys._getframe(depth).f_globals.get("__name__", "?")) == __name__:  # noqa: SLF001
        depth += 1
    return str(name)


class StandIn(ModuleType):
    """A module that is not loaded: every name in it is inert."""

    def __init__(self, name: str, path: Sequence[str], stubs: "Stubs") -> None:
        super().__init__(name)
        self.__path__ = list(path)
        self._aotpack_stubs = stubs

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = Inert(f"{self.__name__}.{name}", self._aotpack_stubs)
        setattr(self, name, value)
        return value


class Release(importlib.metadata.Distribution):
    """The distribution of an engine's package as far as its name, its version, and where its files are."""

    def __init__(self, name: str, version: str, root: Path) -> None:
        self._root = root
        self._metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"

    def read_text(self, filename: str) -> str | None:
        """The metadata, and no other file."""
        return self._metadata if filename == "METADATA" else None

    def locate_file(self, path: str | PathLike[str]) -> Path:
        """Where a file of it is, as in an environment."""
        return self._root / path


class Stubs(importlib.metadata.DistributionFinder, importlib.abc.Loader):
    """The finder: answers for every module of one engine's package, and of packages that it can do without.

    Attributes:
        frozen: whether driving has begun; set it when the last import is done.
    """

    def __init__(
        self,
        root: Path,
        package: str,
        version: str,
        real: Iterable[str],
        substitutes: Mapping[str, Mapping[str, Any]],
        spared: Iterable[str] = (),
    ) -> None:
        """Prepare for one engine.

        Args:
            root: the directory that holds the package.
            package: its name.
            version: its release.
            real: modules to load from their files; a package among them runs its ``__init__``.
            substitutes: names that are given instead, by module: decisions made on purpose.
            spared: other packages that the engine's modules import; they need not be installed, since each
                module of theirs is a stand-in too.
        """
        self.frozen = False
        self._spared = frozenset(spared)
        self._root = root
        self._package = package
        self._release = Release(package, version, root)
        self._real = set(real)
        self._substitutes = substitutes

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The spec of a module of the engine or of a spared package; None for every other module."""
        del path, target
        if fullname.partition(".")[0] in self._spared:
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        if fullname != self._package and not fullname.startswith(self._package + "."):
            return None
        place = self._root.joinpath(*fullname.split("."))
        if fullname in self._real:
            if place.is_dir():
                return importlib.util.spec_from_file_location(
                    fullname, place / "__init__.py", submodule_search_locations=[str(place)]
                )
            file = place.with_suffix(".py")
            if not file.is_file():
                raise TracingError(f"the engine has no module {fullname}")
            return importlib.util.spec_from_file_location(fullname, file)
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def find_distributions(
        self, context: importlib.metadata.DistributionFinder.Context | None = None
    ) -> Iterable[importlib.metadata.Distribution]:
        """The engine's distribution, where that one is asked for."""
        return [self._release] if context is not None and context.name == self._package else []

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        """A stand-in that has the substitutes of its name."""
        place = self._root.joinpath(*spec.name.split("."))
        module = StandIn(spec.name, [str(place)] if place.is_dir() else [], self)
        for name, value in self._substitutes.get(spec.name, {}).items():
            setattr(module, name, value)
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Nothing is run."""
