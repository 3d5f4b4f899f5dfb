"""Source keys: what Triton hashes of a kernel's source, its ``cache_key``, in every form that it can take.

Triton's own code computes each of them here (triton/runtime/jit.py, ``JITCallable.cache_key``); nothing of its rule
is repeated. Where an engine's files are at hand and the engine must not be imported, Triton is given functions that
stand where the real ones stand and refer to what the real ones refer to, which is all that it hashes.

Up to Triton 3.7 a kernel's key depends on what the process hashed before: a caller's key holds the constexpr globals
of a helper only if the helper had been hashed by then (``DependenciesFinder._update_hash`` merges them first), and
constexprs of one name in two modules stand in the order of two addresses. So one kernel has several keys, and
``source_keys`` finds every one that some history reaches.
"""

import ast
import importlib
import inspect
import itertools
import types
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aotpack.digests import digest_bytes
from aotpack.errors import ToolchainError
from aotpack.sources import EngineSources, Function, Global, Same, Sources

MOST_STATES = 4096
"""States of a process that are told apart in the search for one kernel's histories; vLLM 0.33.0's need 392."""

_LIBDEVICE = "triton.language.extra.libdevice"


@dataclass(frozen=True, slots=True)
class _Reference:
    """One reference in a function's text.

    Attributes:
        spelling: how the text spells it.
        value: what it refers to.
        scope: the ``id`` of the dictionary that holds it, where Triton keeps the value in mind; else None.
    """

    spelling: str
    value: Any
    scope: int | None

    @property
    def keyed(self) -> bool:
        """Whether it is a constexpr that Triton hashes into the key."""
        return self.scope is not None and _is_constexpr(self.value)


def _references(callable_: Any) -> list[_Reference]:
    """What a ``JITCallable`` refers to, in the order of Triton's own walk, as often as it comes by.

    Modules, Triton's builtins and what is not there are left out, as Triton ignores them.
    """
    from triton.runtime.jit import DependenciesFinder

    found: list[_Reference] = []

    class Walk(DependenciesFinder):  # type: ignore[misc]  # triton has no stubs
        spelled = ""

        def visit_Attribute(self, node: ast.Attribute) -> Any:  # noqa: N802  # ast.NodeVisitor's spelling
            outer, self.spelled = self.spelled, ast.unparse(node)
            value = super().visit_Attribute(node)
            self.spelled = outer
            return value

        def record_reference(self, val: Any, var_dict: Any = None, name: str | None = None) -> None:
            ambient = val is None or isinstance(val, types.ModuleType) or getattr(val, "__triton_builtin__", False)
            if ambient or getattr(val, "__module__", "") == _LIBDEVICE:
                return
            kept = var_dict is not None and not self.visiting_arg_default_value
            found.append(_Reference(name or self.spelled, val, id(var_dict) if kept else None))

    nonlocals = inspect.getclosurevars(callable_.fn).nonlocals
    walk = Walk(name=callable_.__name__, globals=callable_.__globals__, nonlocals=nonlocals, src=callable_.src)
    walk.visit(callable_.parse())
    return found


def record_sources(kernels: Iterable[Any], engine: EngineSources) -> Sources:
    """What kernels are made of, held against the files that they were imported from.

    Args:
        kernels: ``JITFunction`` objects of an engine that was really imported.
        engine: the same engine's files.

    Raises:
        ToolchainError: reading the files does not give what importing them gave.
    """
    found: dict[str, Function] = {}
    for name, callable_, references in reached(kernels):
        calls = {reference.spelling: reference.value for reference in references if _is_callable(reference.value)}
        found[name] = Function(
            name=name,
            line=callable_.starting_line_number,
            text=digest_bytes(callable_.src.encode()),
            noinline=getattr(callable_, "noinline", False),
            calls=tuple((spelling, _name_of(called)) for spelling, called in sorted(calls.items())),
            globals=_globals(callable_.__module__, references, engine),
        )
        if engine.compare([found[name]]) != Same():
            raise ToolchainError(f"{name} is not in the engine's files as Triton has it; it may be made at run time")
    return Sources(functions=tuple(function for _, function in sorted(found.items())), modules=engine.modules)


def reached(kernels: Iterable[Any]) -> Iterator[tuple[str, Any, list[_Reference]]]:
    """Kernels and all that they reach outside of Triton, by name and each once, with what each refers to."""
    seen = set()
    waiting = list(kernels)
    while waiting:
        callable_ = waiting.pop(0)
        name = _name_of(callable_)
        if name not in seen and not name.startswith("triton."):
            seen.add(name)
            references = _references(callable_)
            waiting += [reference.value for reference in references if _is_callable(reference.value)]
            yield name, callable_, references


def _globals(module: str, references: Iterable[_Reference], engine: EngineSources) -> tuple[Global, ...]:
    found: dict[str, Global] = {}
    for reference in references:
        if not _is_callable(reference.value):
            keyed = reference.keyed
            found[reference.spelling] = Global(
                spelling=reference.spelling,
                shown=repr(reference.value),
                # A name that is read both as a default value and in the body is not kept in mind for the first.
                keyed=keyed and (reference.spelling not in found or found[reference.spelling].keyed),
                definition=engine.definition(module, reference.spelling),
            )
    return tuple(value for _, value in sorted(found.items()))


def _is_callable(value: Any) -> bool:
    from triton.runtime.jit import JITCallable

    return isinstance(value, JITCallable)


def _name_of(callable_: Any) -> str:
    return f"{callable_.__module__}:{callable_.__qualname__}"


class SourceKeys:
    """Computes the ``cache_key`` of kernels out of an engine's files. Needs Triton, not the engine."""

    def __init__(self, recorded: Sources, engine: EngineSources) -> None:
        """Prepare.

        Args:
            recorded: the kernels and all that they reach.
            engine: the engine's files.
        """
        self._recorded = recorded
        self._engine = engine

    def of(self, kernel: str, lines: Mapping[str, int] | None = None) -> tuple[str, ...]:
        """Every ``cache_key`` that a kernel can have, the one of a fresh process first.

        Args:
            kernel: ``module:qualname``.
            lines: where functions start here, where that is not where they were recorded.

        Raises:
            ToolchainError: a function is not where it should be, or too many histories lead to the kernel.
        """
        functions = [
            function.at((lines or {}).get(function.name, function.line)) for function in self._recorded.closure(kernel)
        ]
        found: dict[str, None] = {}
        for modules in _orders(functions):
            jit_functions = self._rebuild(functions, modules)
            found |= dict.fromkeys(_keys_of(jit_functions[kernel], list(jit_functions.values())))
        return tuple(found)

    def stand_in(self, kernel: str) -> Any:
        """A ``JITFunction`` that Triton hashes as it hashes the kernel, and that it could not compile.

        Args:
            kernel: ``module:qualname``, in the lines where it was recorded.

        Raises:
            ToolchainError: a function is not where it should be.
        """
        functions = self._functions(kernel, {})
        return self._rebuild(functions, next(_orders(functions)))[kernel]

    def _functions(self, kernel: str, lines: Mapping[str, int]) -> list[Function]:
        """A kernel and all that it reaches, where they stand here."""
        return [function.at(lines.get(function.name, function.line)) for function in self._recorded.closure(kernel)]

    def _rebuild(self, functions: Sequence[Function], modules: Sequence[str]) -> dict[str, Any]:
        """The functions as Triton sees them, with one dictionary of globals for each module.

        Args:
            functions: a kernel and all that it reaches.
            modules: their modules, in the order that the addresses of their globals shall have.
        """
        scopes: dict[str, dict[str, Any]] = dict(zip(modules, sorted(({} for _ in modules), key=id), strict=True))
        rebuilt = {function.name: self._stand_in(function, scopes[function.module]) for function in functions}
        for function in functions:
            scope = scopes[function.module]
            for spelling, name in function.calls:
                _bind(scope, spelling, rebuilt.get(name) or _tritons_own(name))
            for value in function.globals:
                _bind(scope, value.spelling, _shown_constexpr(value.shown) if value.keyed else _Unkeyed())
        return rebuilt

    def _stand_in(self, function: Function, scope: dict[str, Any]) -> Any:
        """A ``JITFunction`` whose source is the function's lines in the engine's file."""
        from triton.runtime.jit import JITFunction

        path = self._engine.path(function.module)
        if path is None:
            raise ToolchainError(f"{function.module} is not among the files in {self._engine.root}")
        name = function.name.rpartition(":")[2]
        code = _nothing.__code__.replace(
            co_filename=str(path), co_firstlineno=function.line, co_name=name.rpartition(".")[2]
        )
        stand_in = types.FunctionType(code, scope, name.rpartition(".")[2])
        stand_in.__module__, stand_in.__qualname__ = function.module, name
        try:
            rebuilt = JITFunction(stand_in, noinline=function.noinline)
        except (ValueError, AttributeError, OSError, SyntaxError) as error:
            raise ToolchainError(f"{path}, line {function.line}: no function {function.name} starts there") from error
        if rebuilt.starting_line_number != function.line or digest_bytes(rebuilt.src.encode()) != function.text:
            raise ToolchainError(f"{path}, line {function.line}: {function.name} is not what was recorded")
        return rebuilt


def _nothing() -> None:
    """Lend its code object to stand-ins; nobody calls it."""


class _Unkeyed:
    """Stands for a global that Triton does not hash."""


def _shown_constexpr(shown: str) -> Any:
    """A constexpr that prints as the recorded one did, which is all that Triton hashes of it."""
    from triton.language import constexpr

    class Shown(constexpr):  # type: ignore[misc]  # triton has no stubs
        def __repr__(self) -> str:
            return str(self.value)

    return Shown(shown)


def _bind(scope: dict[str, Any], spelling: str, value: Any) -> None:
    *outer, last = spelling.split(".")
    space: Any = None
    for part in outer:
        inner = (scope if space is None else vars(space)).setdefault(part, types.ModuleType(part))
        space = inner
    (scope if space is None else vars(space))[last] = value


def _tritons_own(name: str) -> Any:
    module, _, qualname = name.partition(":")
    if module.partition(".")[0] != "triton":
        raise ToolchainError(f"{name} is neither the engine's nor Triton's own")
    found: Any = importlib.import_module(module)
    for part in qualname.split("."):
        found = getattr(found, part)
    return found


def _orders(functions: Sequence[Function]) -> Iterator[tuple[str, ...]]:
    """The orders in which the modules' globals can lie in memory, as far as they can matter."""
    modules = list(dict.fromkeys(function.module for function in functions))
    owners = {(value.spelling, function.module) for function in functions for value in function.globals if value.keyed}
    shared = {name for name, count in Counter(name for name, _ in owners).items() if count > 1}
    movable = [module for module in modules if any((name, module) in owners for name in shared)]
    rest = [module for module in modules if module not in movable]
    for order in itertools.permutations(movable):
        yield (*order, *rest)


def _keys_of(kernel: Any, callables: Sequence[Any]) -> Iterator[str]:
    """Every key of a kernel: after no history, and after each that changes what Triton merges."""
    cold = _key_after((), kernel, callables)
    yield cold
    if _key_after(list(reversed(callables)), kernel, callables) != cold:
        for history in _histories(kernel, callables):
            yield _key_after(history, kernel, callables)


def _key_after(history: Iterable[Any], kernel: Any, callables: Iterable[Any]) -> str:
    for callable_ in callables:
        callable_.hash = None
        callable_.used_global_vals = {}
    for callable_ in history:
        assert callable_.cache_key
    return str(kernel.cache_key)


_State = frozenset[tuple[int, frozenset[tuple[str, int]]]]
"""What a process has hashed: callables by ``id``, each with the globals that were merged into it."""


def _histories(kernel: Any, callables: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
    """For each distinct outcome of hashing the kernel, helpers to hash before so that it comes about.

    A search over what a process can have hashed, by the merges alone: which globals each function ends up with.
    The keys are left to Triton.
    """
    by_id = {id(callable_): callable_ for callable_ in callables}
    references = {
        id(callable_): [
            id(reference.value) if id(reference.value) in by_id else (reference.spelling, reference.scope)
            for reference in _references(callable_)
            if id(reference.value) in by_id or reference.keyed
        ]
        for callable_ in callables
    }

    def hashed(callable_: int, state: dict[int, frozenset[tuple[str, int]]]) -> None:
        merged: set[Any] = set()
        state[callable_] = frozenset()  # what a function that calls itself finds
        for reference in references[callable_]:
            if not isinstance(reference, int):
                merged.add(reference)
            elif reference in state:
                merged |= state[reference]
            else:
                hashed(reference, state)
        state[callable_] = frozenset(merged)

    def after(state: _State, callable_: int) -> _State:
        reached = dict(state)
        hashed(callable_, reached)
        return frozenset((name, merged) for name, merged in reached.items() if name in telling)

    helpers = [name for name in by_id if name != id(kernel)]
    telling = {id(kernel), *(name for name in helpers if _reads_constants(name, references))}
    histories: dict[_State, tuple[int, ...]] = {frozenset(): ()}
    outcomes: dict[_State, tuple[int, ...]] = {}
    waiting: list[_State] = [frozenset()]
    while waiting:
        state = waiting.pop(0)
        outcomes.setdefault(after(state, id(kernel)), histories[state])
        known = {name for name, _ in state}
        # In the order given: a set of addresses has another in each process, and the keys are listed as they come.
        for helper in (name for name in helpers if name in telling and name not in known):
            following = after(state, helper)
            if following not in histories:
                histories[following] = (*histories[state], helper)
                waiting.append(following)
        if len(histories) > MOST_STATES:
            raise ToolchainError(
                f"{_name_of(kernel)}: its cache key depends on what was hashed before in more than {MOST_STATES} ways; "
                "a Triton from 3.8 on has one key for each kernel"
            )
    return (tuple(by_id[name] for name in history) for history in outcomes.values())


def _is_constexpr(value: Any) -> bool:
    from triton.language import constexpr

    return isinstance(value, constexpr)


def _reads_constants(name: int, references: Mapping[int, Sequence[Any]]) -> bool:
    """Whether a function, or one that it reaches, reads a constexpr global."""
    seen = {name: None}
    while True:
        found = [reference for known in seen for reference in references[known]]
        if any(not isinstance(reference, int) for reference in found):
            return True
        following = [reference for reference in found if reference not in seen]
        if not following:
            return False
        seen |= dict.fromkeys(following)
