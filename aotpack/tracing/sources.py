"""The identity of a kernel's source: as Triton hashes it, and without line numbers.

Triton's ``cache_key`` hashes the source from ``def`` on, each helper's own ``cache_key``, the line where the
kernel starts, and the constexpr globals it reaches (triton/runtime/jit.py, ``JITCallable.cache_key``). Up to
3.7 it also depends on which helpers were hashed before, so it is taken cold: with every hash forgotten first.
"""

from typing import Any

from aotpack.digests import digest_json
from aotpack.errors import TracingError
from aotpack.tracing.stubs import Inert


def source_of(function: Any) -> tuple[str, str]:
    """A kernel's ``cache_key``, taken cold, and the digest of its source without line numbers.

    Args:
        function: a ``JITFunction``.

    Raises:
        TracingError: it reaches a constant of a module that is stubbed.
    """
    for callable_ in _reached(function):
        callable_.hash = None
        callable_.used_global_vals = {}
    cache_key = function.cache_key
    for callable_ in _reached(function):
        for (name, _), (value, _) in callable_.used_global_vals.items():
            if isinstance(getattr(value, "value", value), Inert):
                raise TracingError(f"its constant {name} is a stand-in")
    return cache_key, _unplaced(function)


def _unplaced(function: Any) -> str:
    from triton.language import constexpr

    parts = []
    for callable_ in _reached(function):
        constants = sorted(
            (name, repr(value))
            for (name, _), (value, _) in callable_.used_global_vals.items()
            if isinstance(value, constexpr)
        )
        parts.append([callable_.__name__, callable_.src, bool(getattr(callable_, "noinline", False)), constants])
    return digest_json(parts)


def _reached(function: Any) -> list[Any]:
    """The function and every callable that it reaches, each once, in the order of Triton's own walk."""
    import inspect

    from triton.runtime.jit import DependenciesFinder

    found: list[Any] = []

    class Walk(DependenciesFinder):  # type: ignore[misc]  # triton has no stubs
        def _update_hash(self, func: Any) -> None:
            visit(func)

    def visit(callable_: Any) -> None:
        if any(known is callable_ for known in found):
            return
        found.append(callable_)
        nonlocals = inspect.getclosurevars(callable_.fn).nonlocals
        Walk(name=callable_.__name__, globals=callable_.__globals__, nonlocals=nonlocals, src=callable_.src).visit(
            callable_.parse()
        )

    visit(function)
    return found
