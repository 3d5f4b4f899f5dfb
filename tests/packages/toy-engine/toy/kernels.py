"""Kernels, each named after what it reaches."""

import triton
from triton import language as tl
from triton.language.extra import libdevice

from . import limits
from .helpers import plain, rounded, salted
from .limits import SALT, SHIFT

if True:
    DTYPE = tl.float16
else:
    DTYPE = tl.bfloat16


@triton.jit
def lonely(out):
    tl.store(out, 1)


@triton.jit
def calls(out, x: tl.constexpr):
    tl.store(out, plain(x))


@triton.jit
def calls_tritons_own(out, n):
    tl.store(out, tl.cdiv(n, 2) + libdevice.log1p(1.0))


@triton.jit
def reads_through_helpers(out, x: tl.constexpr):
    tl.store(out, rounded(x) + salted(x))


@triton.jit
def reads_one_name_of_two_modules(out, x: tl.constexpr):
    tl.store(out, rounded(x) + SALT)


@triton.jit
def reads_a_derived_constant(out):
    tl.store(out, SHIFT)


@triton.jit
def reads_a_dtype(out):
    tl.store(out, tl.full((), 1, DTYPE))


@triton.jit
def reads_an_attribute(out):
    tl.store(out, limits.WIDTH)


@triton.jit
def reads_a_default(out, width: tl.constexpr = SALT):
    tl.store(out, width)


@triton.heuristics({"EVEN": lambda args: True})
@triton.jit
def decorated(out, EVEN: tl.constexpr):
    tl.store(out, EVEN)
