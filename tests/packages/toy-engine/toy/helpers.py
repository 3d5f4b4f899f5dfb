"""Functions that kernels call."""

import triton
from triton import language as tl

SALT = tl.constexpr(7)
ROUNDS = tl.constexpr(3)


@triton.jit
def salted(x):
    return x + SALT


@triton.jit
def rounded(x):
    return salted(x) * ROUNDS


@triton.jit(noinline=True)
def plain(x):
    return x + 1
