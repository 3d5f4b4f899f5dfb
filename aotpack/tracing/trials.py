"""Trials: what a wrapper handed to an autotuned kernel, as a value that another process can measure.

Tracing drives wrappers on the CPU, where nothing runs, so every number in a tensor of indices is one that the wrapper
computed itself or a zero; nothing is left to what stood in the memory. Those tensors are kept with their content, and
tensors of floats by their shape alone: how long a kernel takes does not depend on what it multiplies.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from aotpack.errors import TracingError
from aotpack.keys import DType
from aotpack.toolchain import to_triton
from aotpack.tuning import Scalar, Tuning

_MOST_NUMBERS = 1 << 22
"""Numbers that a tensor of indices may have; those of a step have a few thousand."""

_ALIGNMENT = 16
"""Bytes: what Triton's binder asks of a pointer."""

Grid = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorValue:
    """A tensor that a kernel was handed.

    Attributes:
        dtype: its name in torch.
        shape: its sizes.
        strides: in elements.
        offset: bytes past a multiple of 16 at which its data begins.
        numbers: its content in row-major order, where it is not of floats.
    """

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    numbers: tuple[int, ...] | None

    def make(self, device: str) -> Any:
        """Such a tensor; floats are normally distributed."""
        import torch

        dtype = getattr(torch, self.dtype)
        spanned = 1 + sum((size - 1) * stride for size, stride in zip(self.shape, self.strides, strict=True))
        skipped = self.offset // dtype.itemsize
        if self.numbers is None:
            memory = torch.randn(skipped + max(0, spanned), device=device).to(dtype)
        else:
            memory = torch.zeros(skipped + max(0, spanned), device=device, dtype=dtype)
        tensor = memory[skipped:].as_strided(self.shape, self.strides)
        if self.numbers is not None:
            tensor.copy_(torch.tensor(self.numbers, dtype=torch.int64).reshape(self.shape))
        return tensor


Value = TensorValue | DType | Scalar


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What a wrapper handed to an autotuner.

    Attributes:
        tuning: the decision that the launch asks for.
        positional: arguments by position.
        named: arguments and options by name, in the wrapper's order, which enters the tuning key.
        grids: of each configuration, in the tuning's order.
        input: the run-time quantities of the input that was driven, for people.
    """

    tuning: Tuning
    positional: tuple[Value, ...]
    named: tuple[tuple[str, Value], ...]
    grids: tuple[Grid, ...]
    input: str

    def arguments(self, device: str) -> tuple[list[Any], dict[str, Any]]:
        """The arguments for a launch on a device of torch's; one tensor may not stand for two."""
        positional = [_make(value, device) for value in self.positional]
        return positional, {name: _make(value, device) for name, value in self.named}

    def grid(self) -> Callable[[Mapping[str, Any]], Grid]:
        """The grid as Triton asks for it: of the arguments that a configuration sets."""
        names = [name for name, _ in self.tuning.configurations[0].arguments]
        known = {
            tuple(value for _, value in one.arguments): grid
            for one, grid in zip(self.tuning.configurations, self.grids, strict=True)
        }
        return lambda bound: known[tuple(bound[name] for name in names)]


def _make(value: Value, device: str) -> Any:
    match value:
        case TensorValue():
            return value.make(device)
        case DType():
            return to_triton(value)
        case _:
            return value


def capture(value: Any, kernel: str) -> Value:
    """An argument of a launch as a value.

    Raises:
        TracingError: it is of a kind that cannot be handed to another process.
    """
    import torch
    from triton.language import constexpr, dtype

    match value:
        case torch.Tensor():
            return _capture_tensor(value, kernel)
        case constexpr():
            return capture(value.value, kernel)
        case dtype():
            return DType(value.name)
        case None | bool() | int() | float() | str():
            return value
        case _:
            raise TracingError(f"{kernel}: an argument is {value!r}, which cannot be launched in another process")


def _capture_tensor(tensor: Any, kernel: str) -> TensorValue:
    numbers = None
    if not tensor.is_floating_point():
        if tensor.numel() > _MOST_NUMBERS:
            raise TracingError(f"{kernel}: a tensor of {tensor.numel()} indices is more than is kept")
        numbers = tuple(int(number) for number in tensor.flatten().tolist())
    return TensorValue(
        dtype=str(tensor.dtype).removeprefix("torch."),
        shape=tuple(tensor.shape),
        strides=tuple(tensor.stride()),
        offset=tensor.data_ptr() % _ALIGNMENT,
        numbers=numbers,
    )
