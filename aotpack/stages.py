"""Stages: the steps of Triton's pipeline, each run once for keys whose module is the same at that point.

Autotuned kernels have a compile key for each number of pipeline stages, and where no loop can be pipelined those
keys have the same TTGIR: what follows (LLVM, ptxas) is then done once. Nothing of Triton's pipeline is repeated
here: ``triton.compile`` runs as ever, with the functions that its back end names as stages wrapped.

A stage is a function of the module, the back end's options, and the metadata so far. Which options and metadata it
reads is watched while it runs, so a result is taken again only for a key whose module, spelled without locations,
and whose values of all that was read are the same. A release whose stages read more shares less, and never wrongly.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from aotpack.digests import digest_bytes

_Stage = Callable[[Any, dict[str, Any]], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Done:
    """A stage that ran.

    Attributes:
        options: the options that it read, with their values.
        read: the metadata that it read.
        written: the metadata that it wrote.
        result: the text or machine code that it gave.
    """

    options: tuple[tuple[str, Any], ...]
    read: tuple[tuple[str, Any], ...]
    written: dict[str, Any]
    result: str | bytes

    def fits(self, options: Any, metadata: dict[str, Any]) -> bool:
        """Whether the stage would do the same with these."""
        return all(getattr(options, name, None) == value for name, value in self.options) and all(
            metadata.get(name) == value for name, value in self.read
        )


class _Metadata(dict[str, Any]):
    """Metadata that notes what of it is read and written."""

    def __init__(self, known: dict[str, Any]) -> None:
        super().__init__(known)
        self.read: dict[str, Any] = {}
        self.written: dict[str, Any] = {}

    def _note(self, name: str) -> None:
        if name not in self.written:
            self.read[name] = super().get(name)

    def __getitem__(self, name: str) -> Any:
        self._note(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        """The value of a name, noted."""
        self._note(name)
        return super().get(name, default)

    def __contains__(self, name: object) -> bool:
        self._note(str(name))
        return super().__contains__(name)

    def __setitem__(self, name: str, value: Any) -> None:
        self.written[name] = value
        super().__setitem__(name, value)


def _watched(options: Any, read: set[str]) -> Any:
    """The back end's options, equal in every field, with the names that are read put into ``read``."""

    class Watched(type(options)):  # type: ignore[misc]  # whatever class the back end has
        # By identity: Triton caches functions of options, and a cached answer would hide what was read for it.
        __eq__ = object.__eq__
        __hash__ = object.__hash__

        def __getattribute__(self, name: str) -> Any:
            read.add(name)
            return object.__getattribute__(self, name)

    watched = object.__new__(Watched)
    for name, value in vars(options).items():
        object.__setattr__(watched, name, value)  # past a frozen dataclass's own
    return watched


@contextmanager
def shared_stages(backend: Any) -> Iterator[list[str]]:
    """Let ``triton.compile`` run each stage of a back end once for equal input, while the block lasts.

    Stages that give modules, which later stages change, run always; those that give text or machine code are
    shared.

    Args:
        backend: Triton's compiler back end; its class is what is changed.

    Yields:
        The names of the stages that were not run again, as they come.
    """
    done: dict[tuple[str, str], list[_Done]] = {}
    unshared: set[str] = set()
    skipped: list[str] = []
    owner = type(backend)
    original = owner.add_stages

    def add_stages(self: Any, stages: dict[str, _Stage], options: Any, language: Any) -> None:
        read: set[str] = set()
        original(self, stages, _watched(options, read), language)
        for name, stage in list(stages.items()):
            stages[name] = wrap(name, stage, options, read)

    def wrap(name: str, stage: _Stage, options: Any, read: set[str]) -> _Stage:
        def run(module: Any, metadata: dict[str, Any]) -> Any:
            if name in unshared:
                return stage(module, metadata)
            known = done.setdefault((name, digest_bytes(_text(module).encode())), [])
            for one in known:
                if one.fits(options, metadata):
                    metadata.update(one.written)
                    skipped.append(name)
                    return one.result
            read.clear()
            noting = _Metadata(metadata)
            result = stage(module, noting)
            metadata.update(noting.written)
            if isinstance(result, str | bytes):
                values = tuple((option, getattr(options, option, None)) for option in sorted(read))
                read_metadata = tuple(noting.read.items())
                known.append(_Done(options=values, read=read_metadata, written=noting.written, result=result))
            else:
                unshared.add(name)
            return result

        return run

    owner.add_stages = add_stages
    try:
        yield skipped
    finally:
        owner.add_stages = original


def _text(module: Any) -> str:
    """A module without locations, which change no code while line info is off."""
    if isinstance(module, str):
        return module
    return str(module.str_nodebug())
