"""In-memory keys: by what a launch finds a kernel that its process has loaded already.

``JITFunction.run`` looks in a dictionary of the device first, under the text of what its binder made of the arguments
and of the launch's own options (triton/runtime/jit.py, ``compute_cache_key``). What the binder made is all in the
compile key; the options are there with their values, and not as the launch spelled them: one left out and one given
its default are two in-memory keys of one compile key. So the spelling is what is recorded, while tracing.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from aotpack.keys import CompileKey, LaunchOptions, Path, Type
from aotpack.toolchain import to_triton

ADDED = ("instrumentation_mode", "fpsan_homomorphic_casts")
"""Options that Triton sets at each launch from its knobs, as far as the release has them."""

_INTEGERS = frozenset(f"{sign}{bits}" for sign in "iu" for bits in (8, 16, 32, 64))


def with_knobs(function: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """A launch's keyword arguments with what ``JITFunction.run`` adds before it binds (triton/runtime/jit.py).

    Args:
        function: the ``JITFunction``.
        options: the keyword arguments in the launch's own order, which enters the key.
    """
    from triton import knobs

    completed = dict(options)
    completed["debug"] = completed.get("debug", function.debug) or knobs.runtime.debug
    completed |= {name: getattr(knobs.compilation, name) for name in ADDED if hasattr(knobs.compilation, name)}
    return completed


def memory_key(function: Any, key: CompileKey, options: LaunchOptions) -> Any:
    """The in-memory key of a launch in this process; None where this process's knobs give it another compile key.

    Args:
        function: the ``JITFunction`` that is launched.
        key: the compile key that the launch has where it was recorded.
        options: its options as it spells them.

    Raises:
        ImportError: this Triton computes no such key.
    """
    from triton.runtime.jit import compute_cache_key

    completed = with_knobs(function, dict(options))
    compiled = dict(key.options)
    if any(name in completed and compiled.get(name) != completed[name] for name in ("debug", *ADDED)):
        return None
    constants = {path: to_triton(value) for path, value in key.constexprs}
    attrs: dict[Path, Any] = {path: "D" if value else "" for path, value in key.attrs}
    # A 1 for a parameter that is annotated with a type is of that type to the compiler, and still told apart.
    attrs |= {
        (param.num,): 1
        for param in function.params
        if param.annotation_type in _INTEGERS and not param.do_not_specialize and (param.num,) not in attrs
    }
    specialization = [_specialize(type_, (index,), constants, attrs) for index, (_, type_) in enumerate(key.signature)]
    return compute_cache_key({}, specialization, completed)


def _specialize(type_: Type, path: Path, constants: Mapping[Path, Any], attrs: Mapping[Path, Any]) -> tuple[Any, Any]:
    """What the binder gave for an argument of this type, constant and attrs."""
    if isinstance(type_, tuple):
        items = [_specialize(item, (*path, index), constants, attrs) for index, item in enumerate(type_)]
        return tuple(item for item, _ in items), tuple(value for _, value in items)
    return type_, constants[path] if type_ == "constexpr" else attrs.get(path)


def launch_options(
    function: Any, key: CompileKey, options: Mapping[str, Any], given: Iterable[str], found: Any
) -> LaunchOptions | None:
    """A launch's options as ``memory_key`` takes them; None where that would not give the key that Triton has.

    Args:
        function: the ``JITFunction``.
        key: the launch's compile key.
        options: what the binder made of the launch's keyword arguments, in their order.
        given: the names among them that the launch gave itself.
        found: the in-memory key that Triton has for the launch.
    """
    named = set(given)
    spelled = tuple((name, value) for name, value in options.items() if name in named)
    return spelled if memory_key(function, key, spelled) == found else None


def look_up(module: Any, qualname: str) -> Any:
    """What a module has under a qualified name, or None."""
    found: Any = module
    for part in qualname.split("."):
        found = getattr(found, part, None)
    return found


def jit_function(value: Any) -> Any:
    """The ``JITFunction`` under heuristics and autotuners, or None where there is none."""
    from triton.runtime.jit import JITFunction

    while value is not None and not isinstance(value, JITFunction):
        value = getattr(value, "fn", None)
    return value
