"""Two compile keys of one kernel held against each other: target, options, and arguments one by one."""

import re
from dataclasses import dataclass

from aotpack.keys import CompileKey, Constant, DType, Path, Type
from aotpack.misses.differences import Difference, unequal

_ARCH_OPTIONS = ("arch", "supported_fp8_dtypes", "deprecated_fp8_dot_operand_dtypes", "max_num_imprecise_acc_default")
"""Options that the back end derives from the architecture (triton/backends/nvidia/compiler.py, ``parse_options``)."""


def key_differences(ours: CompileKey, theirs: CompileKey) -> tuple[Difference, ...]:
    """The parts in which two compile keys of one kernel differ.

    What follows from another part is left out: the options that the architecture fixes, and the parameters that a
    changed source has or lacks.
    """
    found = []
    derived: tuple[str, ...] = ()
    if ours.target != theirs.target:
        derived = _ARCH_OPTIONS
        found.append(Difference(part="architecture", name="", bundle=ours.target.short, here=theirs.target.short))
    found += [
        Difference(part="option", name=name, bundle=repr(bundle), here=repr(here))
        for name, bundle, here in unequal(ours.options, theirs.options)
        if name not in derived
    ]
    bundle_leaves, here_leaves = _leaves(ours), _leaves(theirs)
    for name, leaf in bundle_leaves.items():
        if name in here_leaves:
            found += _argument_differences(name, leaf, here_leaves[name])
    return tuple(found)


@dataclass(frozen=True, slots=True)
class _Leaf:
    """One argument as the key has it: its type, and its value as Python spells it where that is constant."""

    type: str
    constant: str
    attrs: tuple[tuple[str, int], ...]

    @property
    def is_integer(self) -> bool:
        return re.fullmatch(r"[iu]\d+", self.type) is not None

    @property
    def is_constant(self) -> bool:
        return self.type == "constexpr"

    def __str__(self) -> str:
        if self.is_constant:
            return self.constant
        return f"{self.type}, {'a multiple of 16' if self.attrs else 'not known as a multiple of 16'}"


def _leaves(key: CompileKey) -> dict[str, _Leaf]:
    constants, attrs = dict(key.constexprs), dict(key.attrs)
    found: dict[str, _Leaf] = {}

    def visit(name: str, type_: Type, place: Path) -> None:
        if isinstance(type_, tuple):
            for index, item in enumerate(type_):
                visit(f"{name}[{index}]", item, (*place, index))
        else:
            found[name] = _Leaf(type_, _spelled(constants.get(place)), attrs.get(place, ()))

    for index, (name, type_) in enumerate(key.signature):
        visit(name, type_, (index,))
    return found


def _spelled(value: Constant) -> str:
    return value.name if isinstance(value, DType) else repr(value)


def _argument_differences(name: str, ours: _Leaf, theirs: _Leaf) -> list[Difference]:
    if ours.is_constant and theirs.is_constant:
        parts = ["constexpr"] if ours.constant != theirs.constant else []
    elif ours.is_constant or theirs.is_constant:
        constant, other = (ours, theirs) if ours.is_constant else (theirs, ours)
        parts = ["optional" if constant.constant == "None" else "integer" if other.is_integer else "constexpr"]
    elif ours.is_integer and theirs.is_integer:
        parts = ["integer"] if ours != theirs else []
    else:
        parts = ["type"] if ours.type != theirs.type else []
        parts += ["alignment"] if ours.attrs != theirs.attrs else []
    return [Difference(part=part, name=name, bundle=str(ours), here=str(theirs)) for part in parts]
