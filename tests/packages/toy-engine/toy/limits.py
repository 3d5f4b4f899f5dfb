"""Constants that kernels of another module read."""

from triton import language as tl

WIDTH = tl.constexpr(16)
SALT = tl.constexpr(70)


def _exponent(value: int) -> int:
    return value.bit_length() - 1


SHIFT = tl.constexpr(_exponent(WIDTH.value))
