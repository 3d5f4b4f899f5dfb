"""The recorder: stands in for Triton's launch, and notes the compile key that each launch would have asked for.

``JITFunction.run`` is replaced, and of ``Autotuner.run`` the part that decides, so everything before them is real: the
engine's wrappers, ``triton.heuristics``, ``kernel.warmup`` (which calls ``run``). The key is computed by Triton's own
binder and ``_pack_args``, and the tuning key by its own autotuner, since the rules move between releases.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from aotpack.autotuner import configuration_of
from aotpack.errors import TracingError
from aotpack.keys import CompileKey, Constant, DType, LaunchOptions, Type, are_launch_options, options_to_key
from aotpack.memorykeys import jit_function, launch_options, with_knobs
from aotpack.targets import Target
from aotpack.tracing.trials import Grid, Trial, capture
from aotpack.tuning import Tuning

Quantities = tuple[tuple[str, int | str | bool], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """One key, and the first input that reached it.

    Attributes:
        key: the compile key.
        reached: the run-time quantities of that input.
        launches: the options of each launch that asks for the key with another in-memory key.
    """

    key: CompileKey
    reached: Quantities
    launches: tuple[LaunchOptions, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """A decision of an autotuner, and what is compiled for it.

    Attributes:
        tuning: the decision.
        keys: what launches ask for where a configuration is the fastest, for each of the tuning's in their order.
    """

    tuning: Tuning
    keys: tuple[frozenset[CompileKey], ...]


class _Decided(Exception):  # noqa: N818  # no error: it leaves Triton's autotuner where that would launch
    """The configurations are known."""


class Recorder:
    """Notes keys while a family drives; one for a process."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._input: Quantities = ()
        self._recorded: dict[CompileKey, Quantities] = {}
        self._launches: dict[CompileKey, dict[LaunchOptions, None]] = {}
        # The binder's answer decides the key, so an answer seen before needs no second look.
        self._seen: dict[tuple[int, str, str], CompileKey] = {}
        # What an autotuner's configurations launch, while one decides: a grid holds the launch's tensors.
        self._met: list[tuple[CompileKey, Callable[[], Grid]]] | None = None
        self._decisions: dict[Tuning, tuple[frozenset[CompileKey], ...]] = {}
        self._captured: dict[Tuning, Trial] | None = None

    def install(self) -> None:
        """Replace Triton's launch in this process."""
        from triton.runtime.autotuner import Autotuner
        from triton.runtime.jit import JITFunction

        def run(function: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
            del warmup
            self._launch(function, args, kwargs, grid)

        decide = Autotuner.run

        def tune(tuner: Any, *args: Any, **kwargs: Any) -> None:
            tuner.cache.clear()
            tuner.cache_results = True
            tuner.check_disk_cache = partial(self._tune, tuner, args, kwargs)
            with suppress(_Decided):
                decide(tuner, *args, **kwargs)

        JITFunction.run = run
        Autotuner.run = tune

    @contextmanager
    def input(self, **quantities: int | str | bool) -> Iterator[None]:
        """Name the input that is tried in the block."""
        self._input = tuple(sorted(quantities.items()))
        try:
            yield
        finally:
            self._input = ()

    def take(self) -> list[Recorded]:
        """What was recorded since the last time, in the order met."""
        taken = [
            Recorded(key=key, reached=reached, launches=tuple(self._launches.get(key, ())))
            for key, reached in self._recorded.items()
        ]
        self._recorded.clear()
        self._launches.clear()
        self._seen.clear()
        return taken

    def take_decisions(self) -> list[Decision]:
        """What autotuners decided since the last time, in the order met."""
        taken = [Decision(tuning=tuning, keys=keys) for tuning, keys in self._decisions.items()]
        self._decisions.clear()
        return taken

    @contextmanager
    def capturing(self) -> Iterator[Mapping[Tuning, Trial]]:
        """Keep the first launch that asks for each decision in the block."""
        self._captured = {}
        try:
            yield self._captured
        finally:
            self._captured = None

    def _tune(
        self,
        tuner: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        tuning_key: tuple[Any, ...],
        configs: list[Any],
        _bench: Any,
    ) -> None:
        """Stands in for ``Autotuner.check_disk_cache``. Which configuration wins is known on a device alone."""
        met = [self._launched(tuner.fn, args, {**kwargs, **config.all_kwargs()}) for config in configs]
        tuning = self._tuning(tuner, tuning_key, configs)
        if tuning is not None:
            before = self._decisions.get(tuning, (frozenset(),) * len(met))
            keys = (frozenset(key for key, _ in launched) for launched in met)
            self._decisions[tuning] = tuple(one | other for one, other in zip(before, keys, strict=True))
            if self._captured is not None and tuning not in self._captured:
                grids = tuple(grid() for launched in met for _, grid in launched[:1])
                self._captured[tuning] = self._capture(tuning, args, kwargs, grids)
        raise _Decided

    def _launched(
        self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> list[tuple[CompileKey, Callable[[], Grid]]]:
        """The keys that a configuration asks for, each with its grid."""
        self._met = []
        try:
            function.run(*args, **kwargs)
            return self._met
        finally:
            self._met = None

    def _meet(self, key: CompileKey, grid: Callable[[], Grid]) -> None:
        if self._met is not None:
            self._met.append((key, grid))

    def _tuning(self, tuner: Any, tuning_key: tuple[Any, ...], configs: list[Any]) -> Tuning | None:
        """The decision as a value; None where Triton does not keep it, or it cannot be spelled."""
        configurations = [configuration_of(config) for config in configs]
        plain = all(value is None or isinstance(value, bool | int | float | str) for value in tuning_key)
        if not tuning_key or not plain or None in configurations:
            return None
        return Tuning(
            kernel=kernel_name(jit_function(tuner)),
            target=self._target,
            key=tuning_key,
            configurations=tuple(one for one in configurations if one is not None),
        )

    def _capture(self, tuning: Tuning, args: tuple[Any, ...], kwargs: dict[str, Any], grids: tuple[Grid, ...]) -> Trial:
        return Trial(
            tuning=tuning,
            positional=tuple(capture(value, tuning.kernel) for value in args),
            named=tuple(
                (name, capture(value, tuning.kernel))
                for name, value in kwargs.items()
                if name not in ("grid", "warmup")
            ),
            grids=grids,
            input=", ".join(f"{name}={value}" for name, value in self._input),
        )

    def _launch(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], grid: Any) -> None:
        from triton.runtime.jit import compute_cache_key

        given = tuple(kwargs)
        kwargs = with_knobs(function, kwargs)
        _, _, _, backend, binder = function.device_caches[0]
        bound, specialization, options = binder(*args, **kwargs)
        seen = (id(function), repr(specialization), repr(options))
        if seen in self._seen:
            self._meet(self._seen[seen], partial(_evaluate, grid, bound))
            return
        packed, signature, constexprs, attrs = function._pack_args(backend, kwargs, bound, specialization, options)  # noqa: SLF001
        key = compile_key_of(function, self._target, signature, constexprs, attrs, vars(packed))
        self._seen[seen] = key
        self._meet(key, partial(_evaluate, grid, bound))
        self._recorded.setdefault(key, self._input)
        if are_launch_options(options):
            found = compute_cache_key({}, specialization, options)
            launch = launch_options(function, key, options, given, found)
            if launch is not None:
                self._launches.setdefault(key, {})[launch] = None


def compile_key_of(
    function: Any, target: Target, signature: Any, constexprs: Any, attrs: Any, options: Mapping[str, Any]
) -> CompileKey:
    """The compile key of what Triton hands to its compiler.

    Args:
        function: the ``JITFunction``.
        target: what it is compiled for.
        signature: as ``ASTSource`` holds it, and so are ``constexprs`` and ``attrs``.
        constexprs: constants by path.
        attrs: attributes by path.
        options: every field of the back end's options, by name.

    Raises:
        TracingError: a constexpr is of a kind that a compile key cannot spell.
        DocumentError: an option is.
    """
    kernel = kernel_name(function)
    return CompileKey(
        kernel=kernel,
        target=target,
        signature=tuple((name, _type(type_)) for name, type_ in signature.items()),
        constexprs=tuple((path, _constant(value, kernel)) for path, value in sorted(constexprs.items())),
        attrs=tuple(
            (path, tuple((str(name), int(value)) for name, value in values)) for path, values in sorted(attrs.items())
        ),
        options=options_to_key(options),
    )


def _evaluate(grid: Any, bound: Mapping[str, Any]) -> Grid:
    """The grid of a launch, as ``JITFunction.run`` evaluates it."""
    sizes = grid(bound) if callable(grid) else grid
    return tuple(int(size) for size in sizes)


def kernel_name(function: Any) -> str:
    """``module:qualname`` of a ``JITFunction`` or another callable that Triton compiles."""
    return f"{function.fn.__module__}:{function.fn.__qualname__}"


def _type(value: Any) -> Type:
    return tuple(_type(item) for item in value) if isinstance(value, tuple | list) else str(value)


def _constant(value: Any, kernel: str) -> Constant:
    from triton.language import constexpr, dtype

    match value:
        case constexpr():
            return _constant(value.value, kernel)
        case dtype():
            return DType(value.name)
        case tuple() | list():
            return tuple(_constant(item, kernel) for item in value)
        case None | bool() | int() | float() | str():
            return value
        case _:
            raise TracingError(f"{kernel}: a constexpr is {value!r}, which a compile key cannot spell")
