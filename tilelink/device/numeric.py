# pyright: basic, reportArgumentType=false
"""Integer and tile arithmetic that means the same compiled for any target and interpreted."""

import triton.language as tl

from tilelink.device.mode import INTERPRETED, portable

IEEE = tl.constexpr("ieee")  # Triton 3.6 takes no bare string for a default


@portable
def mod(a, n):
    """a modulo n, of the sign of n as in Python, of any integers (Triton's own % takes the sign of a)."""
    rest = a % tl.where(n == -1, 1, n)  # the least integer has no quotient by -1, and processors may divide for a rest
    return tl.where((rest != 0) & ((rest < 0) != (n < 0)), rest + n, rest)


@portable
def floordiv(a, n):
    """The floor of a / n as in Python, of integers whose quotient is one (Triton's own // rounds towards zero)."""
    quotient = a // n
    rest = a - quotient * n
    return tl.where((rest != 0) & ((rest < 0) != (n < 0)), quotient - 1, quotient)


@portable
def from_bits(BITS: tl.constexpr):
    """The f32 of these bits: Triton makes another number of -0.0, and an f64 of what is not normal."""
    return tl.full((), BITS, tl.int32).to(tl.float32, bitcast=True)


@portable
def cast(x, DTYPE: tl.constexpr):
    """`x` in another element type, rounded to nearest even.

    The interpreter keeps bf16 as words of 16 bits. Its own casts from f32 cut the rest off instead of rounding, and
    those to f32 lose subnormals; arithmetic, reductions and products of bf16 tiles are done on the raw words there.
    So kernels widen with `cast(x, tl.float32)` before they compute.
    """
    if INTERPRETED and x.dtype != tl.bfloat16 and DTYPE == tl.bfloat16:  # noqa: SIM300
        bits = x.to(tl.float32).to(tl.int32, bitcast=True)
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        quiet_nan = 0x7FC0
        kept = tl.where((bits & 0x7FFFFFFF) > 0x7F800000, quiet_nan, rounded)
        result = (kept & 0xFFFF).to(tl.uint16).to(tl.bfloat16, bitcast=True)
    elif INTERPRETED and x.dtype == tl.bfloat16 and DTYPE != tl.bfloat16:  # noqa: SIM300
        bits = x.to(tl.uint16, bitcast=True).to(tl.uint32) << 16
        result = bits.to(tl.float32, bitcast=True).to(DTYPE)
    else:
        result = x.to(DTYPE)
    return result


@portable
def dot(a, b, acc=None, PRECISION: tl.constexpr = IEEE):
    """acc + a @ b: a [M, K], b [K, N] of one type, acc [M, N] f32 (None: zero).

    PRECISION: how f32 operands are multiplied: "ieee", or "tf32" on tensor cores that have it.
    The interpreter would multiply the raw words of bf16, so operands are widened there.
    """
    if INTERPRETED:
        result = tl.dot(cast(a, tl.float32), cast(b, tl.float32), acc, input_precision="ieee")
    else:
        result = tl.dot(a, b, acc, input_precision=PRECISION)
    return result


@portable
def sigmoid(x):
    """1 / (1 + exp(-x)) in f32, without overflow at either end."""
    x = cast(x, tl.float32)
    e = tl.exp(-tl.abs(x))
    return tl.where(x >= 0, 1.0, e) / (1.0 + e)


@portable
def silu(x):
    """x * sigmoid(x) in f32."""
    return cast(x, tl.float32) * sigmoid(x)


@portable
def tanh(x):
    """Hyperbolic tangent in f32, to about 1e-7 absolutely."""
    x = cast(x, tl.float32)
    e = tl.exp(-2.0 * tl.abs(x))
    magnitude = (1.0 - e) / (1.0 + e)
    return tl.where(x >= 0, magnitude, -magnitude)


@portable
def gelu(x):
    """x * Phi(x) in f32, by the error function."""
    x = cast(x, tl.float32)
    return 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))


@portable
def gelu_tanh(x):
    """The usual approximation of gelu by tanh, in f32."""
    x = cast(x, tl.float32)
    return 0.5 * x * (1.0 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))


@portable
def relu(x):
    """max(x, 0) in f32; NaN stays NaN."""
    x = cast(x, tl.float32)
    return tl.where(x < 0, 0.0, x)


@portable
def maximum(a, b):
    """The larger one of two numbers; nan where one of them is."""
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@portable
def minimum(a, b):
    """The smaller one of two numbers; nan where one of them is."""
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)


@portable
def reduce_max(x, AXIS: tl.constexpr):
    """The largest along an axis; nan where one is. The interpreter's own passes nan over."""
    if not INTERPRETED:
        result = tl.reduce(x, AXIS, maximum)
    elif x.dtype.is_floating():
        result = _or_nan(x, tl.max(tl.where(x == x, x, float("-inf")), AXIS), AXIS)
    else:
        result = tl.max(x, AXIS)
    return result


@portable
def reduce_min(x, AXIS: tl.constexpr):
    """The smallest along an axis; nan where one is. The interpreter's own passes nan over."""
    if not INTERPRETED:
        result = tl.reduce(x, AXIS, minimum)
    elif x.dtype.is_floating():
        result = _or_nan(x, tl.min(tl.where(x == x, x, float("inf")), AXIS), AXIS)
    else:
        result = tl.min(x, AXIS)
    return result


@portable
def _or_nan(x, result, AXIS: tl.constexpr):
    """A result of a reduction, or nan where one of the numbers is."""
    return tl.where(tl.max((x != x).to(tl.int32), AXIS) != 0, float("nan"), result)


@portable
def rsqrt(x):
    """1 / sqrt(x) in f32."""
    return tl.rsqrt(cast(x, tl.float32))
