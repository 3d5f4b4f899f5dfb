"""The recorder: stands in for Triton's launch, and notes the compile key that each launch would have asked for.

``JITFunction.run`` and ``Autotuner.run`` are replaced, so everything before them is real: the engine's wrappers,
``triton.heuristics``, ``kernel.warmup`` (which calls ``run``). The key is computed by Triton's own binder and
``_pack_args``, since the rules move between releases.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from aotpack.errors import TracingError
from aotpack.keys import CompileKey, Constant, DType, LaunchOptions, Type, are_launch_options, options_to_key
from aotpack.memorykeys import launch_options, with_knobs
from aotpack.targets import Target

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


class Recorder:
    """Notes keys while a family drives; one for a process."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._input: Quantities = ()
        self._recorded: dict[CompileKey, Quantities] = {}
        self._launches: dict[CompileKey, dict[LaunchOptions, None]] = {}
        # The binder's answer decides the key, so an answer seen before needs no second look.
        self._seen: set[tuple[int, str, str]] = set()

    def install(self) -> None:
        """Replace Triton's launch in this process."""
        from triton.runtime.autotuner import Autotuner
        from triton.runtime.jit import JITFunction

        def run(function: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
            del grid, warmup
            self._launch(function, args, kwargs)

        def tune(tuner: Any, *args: Any, **kwargs: Any) -> None:
            # Which configuration wins is known on a device alone, so each is a key.
            tuner.nargs = dict(zip(tuner.arg_names, args, strict=False))
            for config in tuner.prune_configs(kwargs):
                tuner.fn.run(*args, **{**kwargs, **config.all_kwargs()})

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

    def _launch(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        from triton.runtime.jit import compute_cache_key

        given = tuple(kwargs)
        kwargs = with_knobs(function, kwargs)
        _, _, _, backend, binder = function.device_caches[0]
        bound, specialization, options = binder(*args, **kwargs)
        seen = (id(function), repr(specialization), repr(options))
        if seen in self._seen:
            return
        self._seen.add(seen)
        packed, signature, constexprs, attrs = function._pack_args(backend, kwargs, bound, specialization, options)  # noqa: SLF001
        key = compile_key_of(function, self._target, signature, constexprs, attrs, vars(packed))
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
