"""Compile keys: all that decides the bytes which Triton's compiler gives for one kernel.

A key is what Triton's ``ASTSource`` and ``triton.compile`` are handed: kernel, target, signature, constexprs,
attrs and options. It prints to one canonical JSON line and reads back; the digest of that line names it in
manifests, locks and logs. Keys come from Triton's own binder (see ``aotpack.tracing``), never from rules of ours.

Left out on purpose: ``extern_libs``, the one option that is a path. Its content belongs to the toolchain.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from aotpack.digests import canonical_json, digest_bytes
from aotpack.documents import Node
from aotpack.errors import DocumentError, UsageError
from aotpack.targets import Target

Path = tuple[int, ...]
"""Where a value stands among a kernel's arguments: (3,) is the fourth, (3, 0) the first of a tuple there."""


@dataclass(frozen=True, slots=True)
class DType:
    """A ``triton.language`` dtype used as a value (a constexpr), by its name: ``bf16``."""

    name: str


LaunchOptions = tuple[tuple[str, Any], ...]
"""The options that a launch gives itself, in its own order."""

Constant = bool | int | float | str | None | DType | tuple["Constant", ...]
Type = str | tuple["Type", ...]


def spell_constant(value: Constant) -> Any:
    """The JSON spelling of a constexpr; ``read_constant`` undoes it."""
    match value:
        case DType(name):
            return {"dtype": name}
        case tuple():
            return {"tuple": [spell_constant(item) for item in value]}
        case float() if value != value or value in (float("inf"), float("-inf")):  # noqa: PLR0124
            return {"float": repr(value)}
        case _:
            return value


def read_constant(node: Node) -> Constant:
    """The constexpr that ``spell_constant`` spelled.

    Raises:
        DocumentError: it is none.
    """
    match node.value:
        case {"dtype": _}:
            return DType(node.only("dtype").field("dtype").text())
        case {"tuple": _}:
            return tuple(read_constant(item) for item in node.only("tuple").field("tuple").items())
        case {"float": _}:
            return float(node.only("float").field("float").one_of("nan", "inf", "-inf"))
        case None | bool() | int() | float() | str():
            return node.value
        case _:
            raise node.error("a constexpr")


def _spell_type(value: Type) -> Any:
    return value if isinstance(value, str) else [_spell_type(item) for item in value]


def _read_type(node: Node) -> Type:
    return node.line() if isinstance(node.value, str) else tuple(_read_type(item) for item in node.items())


def _spell_option(value: Any) -> Any:
    return [_spell_option(item) for item in value] if isinstance(value, tuple) else spell_constant(value)


def _read_option(node: Node) -> Any:
    if isinstance(node.value, list):
        return tuple(_read_option(item) for item in node.items())
    value = read_constant(node)
    if isinstance(value, tuple | DType):
        raise node.error("an option's value")
    return value


@dataclass(frozen=True, kw_only=True)
class CompileKey:
    """All that decides the compiled bytes of one kernel.

    Attributes:
        kernel: ``module:qualname`` of the ``@triton.jit`` function.
        target: what it is compiled for.
        signature: parameter names and Triton types in the kernel's own order; "constexpr" for constants.
        constexprs: the values of the constants by path, in path order.
        attrs: what the compiler may assume of an argument (``tt.divisibility``) by path, in path order.
        options: every field of the back end's options but ``extern_libs``, by name.
    """

    kernel: str
    target: Target
    signature: tuple[tuple[str, Type], ...]
    constexprs: tuple[tuple[Path, Constant], ...]
    attrs: tuple[tuple[Path, tuple[tuple[str, int], ...]], ...]
    options: tuple[tuple[str, Any], ...]

    @property
    def module(self) -> str:
        """The module that defines the kernel."""
        return self.kernel.partition(":")[0]

    @property
    def function(self) -> str:
        """The kernel's qualified name in its module."""
        return self.kernel.partition(":")[2]

    def to_json(self) -> dict[str, Any]:
        """The key as a JSON value; ``from_json`` undoes it."""
        return {
            "kernel": self.kernel,
            "target": str(self.target),
            "signature": spell_signature(self.signature),
            "constexprs": [spell_constexpr(constexpr) for constexpr in self.constexprs],
            "attrs": spell_attrs(self.attrs),
            "options": spell_options(self.options),
        }

    @classmethod
    def from_json(cls, node: Node) -> "CompileKey":
        """The key of a JSON value.

        Raises:
            DocumentError: a field is missing, unknown, or of the wrong kind; the message says where.
        """
        node.only("kernel", "target", "signature", "constexprs", "attrs", "options")
        return cls(
            kernel=read_kernel(node.field("kernel")),
            target=read_target(node.field("target")),
            signature=read_signature(node.field("signature")),
            constexprs=tuple(read_constexpr(pair) for pair in node.field("constexprs").items()),
            attrs=read_attrs(node.field("attrs")),
            options=read_options(node.field("options")),
        )

    @cached_property
    def line(self) -> str:
        """The key in one canonical line of JSON."""
        return canonical_json(self.to_json())

    @cached_property
    def digest(self) -> str:
        """The digest of the canonical line: the key's name."""
        # Without keeping the line, which takes more memory than all else of a key.
        return digest_bytes(canonical_json(self.to_json()).encode())

    def known_by(self, line: bytes) -> "CompileKey":
        """This key, whose canonical line is ``line``: so it need not be spelled for its digest."""
        self.__dict__["digest"] = digest_bytes(line)
        return self

    def describe(self) -> str:
        """The key for people: arguments as Triton sees them, and the options that launches set."""
        constants = {path[0]: value for path, value in self.constexprs if len(path) == 1}
        divisible = {path[0] for path, attrs in self.attrs if attrs}
        arguments = []
        for index, (name, type_) in enumerate(self.signature):
            if type_ == "constexpr":
                arguments.append(f"{name}={constants.get(index)!r}")
            else:
                arguments.append(f"{name}: {type_}{'%16' if index in divisible else ''}")
        options = dict(self.options)
        shown = ", ".join(f"{name}={options[name]!r}" for name in ("num_warps", "num_stages") if name in options)
        return f"{self.kernel}({', '.join(arguments)}) [{self.target}, {shown}]"


def read_kernel(node: Node) -> str:
    """The kernel's name that a document spells.

    Raises:
        DocumentError: it is none.
    """
    if node.line().count(":") != 1:
        raise node.error("module:qualname")
    return node.text()


def spell_signature(signature: Iterable[tuple[str, Type]]) -> list[Any]:
    """The JSON spelling of a key's signature; ``read_signature`` undoes it."""
    return [[name, _spell_type(type_)] for name, type_ in signature]


def read_signature(node: Node) -> tuple[tuple[str, Type], ...]:
    """The signature that ``spell_signature`` spelled.

    Raises:
        DocumentError: it is none.
    """
    return tuple((name.line(), _read_type(type_)) for name, type_ in map(Node.pair, node.items()))


def spell_constexpr(constexpr: tuple[Path, Constant]) -> list[Any]:
    """The JSON spelling of one of a key's constexprs; ``read_constexpr`` undoes it."""
    path, value = constexpr
    return [list(path), spell_constant(value)]


def read_constexpr(node: Node) -> tuple[Path, Constant]:
    """The constexpr that ``spell_constexpr`` spelled.

    Raises:
        DocumentError: it is none.
    """
    path, value = node.pair()
    return _read_path(path), read_constant(value)


def spell_attrs(attrs: Iterable[tuple[Path, tuple[tuple[str, int], ...]]]) -> list[Any]:
    """The JSON spelling of a key's attrs; ``read_attrs`` undoes it."""
    return [[list(path), [list(attr) for attr in found]] for path, found in attrs]


def read_attrs(node: Node) -> tuple[tuple[Path, tuple[tuple[str, int], ...]], ...]:
    """The attrs that ``spell_attrs`` spelled.

    Raises:
        DocumentError: they are none.
    """
    return tuple(
        (_read_path(path), tuple((name.line(), value.integer()) for name, value in map(Node.pair, attrs.items())))
        for path, attrs in map(Node.pair, node.items())
    )


def spell_options(options: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """The JSON spelling of a key's options; ``read_options`` undoes it."""
    return {name: _spell_option(value) for name, value in options}


def read_options(node: Node) -> tuple[tuple[str, Any], ...]:
    """The options that ``spell_options`` spelled.

    Raises:
        DocumentError: they are none.
    """
    return tuple(sorted((name, _read_option(value)) for name, value in node.fields()))


def read_target(node: Node) -> Target:
    """The target that a document spells.

    Raises:
        DocumentError: it is none.
    """
    try:
        return Target.parse(node.text())
    except UsageError:
        raise node.error('a target such as "cuda:90"') from None


def _read_path(node: Node) -> Path:
    path = tuple(index.integer(high=10_000) for index in node.items())
    if not path:
        raise node.error("a path of argument positions")
    return path


def options_to_key(options: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    """The options of a key from a back end's options object's fields.

    Raises:
        DocumentError: an option is of a kind that a key cannot spell.
    """
    kept = {name: value for name, value in options.items() if name != "extern_libs"}
    for name, value in kept.items():
        _check_option(name, value)
    return tuple(sorted(kept.items()))


def spell_launch_options(options: LaunchOptions) -> list[list[Any]]:
    """The JSON spelling of a launch's options; ``read_launch_options`` undoes it."""
    return [[name, _spell_option(value)] for name, value in options]


def read_launch_options(node: Node) -> LaunchOptions:
    """The launch's options that ``spell_launch_options`` spelled.

    Raises:
        DocumentError: they are none, or one is there twice.
    """
    options = tuple((name.line(), _read_option(value)) for name, value in map(Node.pair, node.items()))
    if len(dict(options)) != len(options):
        raise node.error("each option once")
    return options


def are_launch_options(options: Mapping[str, Any]) -> bool:
    """Whether ``spell_launch_options`` can spell options: values that a key can hold, and no path."""
    try:
        return len(options_to_key(options)) == len(options)
    except DocumentError:
        return False


def _check_option(name: str, value: object) -> None:
    match value:
        case None | bool() | int() | float() | str():
            return
        case tuple():
            for item in value:
                _check_option(name, item)
        case _:
            raise DocumentError(f"option {name}: a key cannot spell {value!r}")
