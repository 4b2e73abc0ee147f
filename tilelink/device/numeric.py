# pyright: basic, reportArgumentType=false, reportAssignmentType=false
"""Integer and tile arithmetic with the same results when compiled for any target and when interpreted."""

import triton.language as tl

from tilelink.device.mode import INTERPRETED, isa, portable

IEEE = tl.constexpr("ieee")  # Triton 3.6 accepts no plain string as a default


def _to_pairs(kind):
    """Return the assembly that makes four numbers of 8 bits of four f32, the first one in the lowest bits."""
    convert = f"cvt.rn.satfinite.{kind}x2.f32"
    lines = f"{convert} low, $2, $1; {convert} high, $4, $3; mov.b32 $0, {{low, high}};"
    return tl.constexpr("{ .reg .b16 low, high; " + lines + " }")


TO_E4M3, TO_E5M2 = _to_pairs("e4m3"), _to_pairs("e5m2")


@portable
def mod(a, n):
    """Return a modulo n, with the sign of n as in Python, for any integers (Triton's own % takes the sign of a)."""
    rest = a % tl.where(n == -1, 1, n)  # the least integer has no quotient by -1, and a remainder may use one
    return tl.where((rest != 0) & ((rest < 0) != (n < 0)), rest + n, rest)


@portable
def entry(pointer, last: tl.constexpr):
    """Return the integer at a pointer, clamped to 0, ..., last: what an index tensor of that bound holds."""
    return tl.minimum(tl.maximum(tl.load(pointer), 0), last)


@portable
def entries(pointers, mask, last: tl.constexpr):
    """Return the integers at pointers, each clamped to 0, ..., last; 0 where `mask` does not hold."""
    return tl.minimum(tl.maximum(tl.load(pointers, mask=mask, other=0), 0), last)


@portable
def compact(number, there, ends, across):
    """Return the segment of a compact number, its place in the segment, and the tiles of the index that are there.

    there, ends: for each segment the tiles of the index that are there, and the number after its last one. across:
    numbers for each tile of the index.
    """
    before = ends - there * across
    is_own = (before <= number) & (number < ends)
    segment = tl.sum((ends <= number).to(tl.int32), 0)
    first, own = tl.sum(tl.where(is_own, before, 0), 0), tl.sum(tl.where(is_own, there, 0), 0)
    return segment, number - first, own


@portable
def floordiv(a, n):
    """Return the floor of a / n as in Python, if it is representable (Triton's own // rounds towards zero)."""
    quotient = a // n
    rest = a - quotient * n
    return tl.where((rest != 0) & ((rest < 0) != (n < 0)), quotient - 1, quotient)


@portable
def quotient(a, n):
    """Return the floor of a / n as in Python, 0 where n is 0, modulo 2**32, for tiles of integers."""
    usual = floordiv(a, tl.where((n == 0) | (n == -1), 1, n))  # the least integer has no quotient by -1
    return tl.where(n == 0, 0, tl.where(n == -1, 0 - usual, usual))


@portable
def remainder(a, n):
    """Return a modulo n with the sign of n as in Python, 0 where n is 0, for tiles of integers."""
    return tl.where(n == 0, 0, mod(a, tl.where(n == 0, 1, n)))


@portable
def shift_left(a, n):
    """Return a * 2**(n % bits) modulo 2**bits, for tiles of integers of 32 or 64 bits."""
    return a << (n & ((a + n).dtype.primitive_bitwidth - 1))


@portable
def shift_right(a, n):
    """Return the floor of a / 2**(n % bits), for tiles of integers of 32 or 64 bits."""
    return a >> (n & ((a + n).dtype.primitive_bitwidth - 1))


@portable
def first_of(x, value, AXIS: tl.constexpr):
    """Return the first position along an axis at which `x` is `value`, which has no such axis; the last one if none."""
    steps = tl.arange(0, x.shape[AXIS])
    if len(x.shape) == 2:
        steps = tl.expand_dims(steps, 1 - AXIS)
    elif len(x.shape) == 3:
        steps = tl.expand_dims(tl.expand_dims(steps, 0 if AXIS > 0 else 1), 1 if AXIS > 1 else 2)
    return tl.min(tl.where(x == tl.expand_dims(value, AXIS), steps, x.shape[AXIS] - 1), axis=AXIS)


@portable
def reduce_any(x, AXIS: tl.constexpr):
    """Return True where some condition along an axis holds."""
    return tl.max(tl.cast(x, tl.int32), axis=AXIS) != 0


@portable
def reduce_all(x, AXIS: tl.constexpr):
    """Return True where all conditions along an axis hold."""
    return tl.min(tl.cast(x, tl.int32), axis=AXIS) != 0


@portable
def from_bits(BITS: tl.constexpr):
    """Return the f32 of these bits. Triton changes -0.0 to another number, and makes subnormal numbers f64."""
    return tl.full((), BITS, tl.int32).to(tl.float32, bitcast=True)


@portable
def cast(x, DTYPE: tl.constexpr):
    """Return `x` in another element type, rounded to nearest even. Types of 8 bits and integers saturate.

    The interpreter keeps bf16 as words of 16 bits. Its own casts from f32 truncate instead of rounding, and those to
    f32 lose subnormals. It performs arithmetic, reductions and products of bf16 tiles on the raw words. So kernels
    widen with `cast(x, tl.float32)` before they compute.
    """
    if tl.float8e4nv == DTYPE or tl.float8e5 == DTYPE:
        result = _to_f8(cast(x, tl.float32), DTYPE) if x.dtype != DTYPE else x
    elif x.dtype == tl.float8e4nv or x.dtype == tl.float8e5:
        result = cast(_from_f8(x), DTYPE)
    elif tl.int8 == DTYPE or tl.uint8 == DTYPE:
        result = _to_small(x, -128, 127, DTYPE) if tl.int8 == DTYPE else _to_small(x, 0, 255, DTYPE)
    elif INTERPRETED and x.dtype != tl.bfloat16 and DTYPE == tl.bfloat16:  # noqa: SIM300
        bits = x.to(tl.float32).to(tl.int32, bitcast=True)
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        quiet_nan = 0x7FC0
        kept = tl.where((bits & 0x7FFFFFFF) > 0x7F800000, quiet_nan, rounded)
        result = (kept & 0xFFFF).to(tl.uint16).to(tl.bfloat16, bitcast=True)
    elif INTERPRETED and x.dtype == tl.bfloat16 and DTYPE != tl.bfloat16:  # noqa: SIM300
        bits = x.to(tl.uint16, bitcast=True).to(tl.uint32) << 16
        result = cast(bits.to(tl.float32, bitcast=True), DTYPE)
    elif x.dtype.is_floating() and (
        tl.int64 == DTYPE or (INTERPRETED and tl.int32 == DTYPE)
    ):  # processors saturate i32
        result = _to_integer(x.to(tl.float32), DTYPE)
    else:
        result = x.to(DTYPE)
    return result


@portable
def _to_integer(x, DTYPE: tl.constexpr):
    """Return the nearest integers that i32 or i64 holds, without what is after the point; 0 for NaN. x: f32."""
    beyond = 2.0**63 if tl.int64 == DTYPE else 2.0**31
    most = 2**63 - 1 if tl.int64 == DTYPE else 2**31 - 1
    inside = tl.where((x < beyond) & (x >= -beyond), x, 0.0).to(DTYPE)
    return tl.where(x >= beyond, most, tl.where(x < -beyond, -most - 1, inside)).to(DTYPE)


@portable
def zero_beyond(x, mask):
    """Return numbers of 8 bits, and 0 where the mask does not hold: Triton makes no 8-bit float of a number."""
    if x.dtype == tl.int8:
        result = tl.where(mask, x, 0)
    else:
        result = tl.where(mask, x.to(tl.int8, bitcast=True), 0).to(x.dtype, bitcast=True)
    return result


@portable
def _to_small(x, LEAST: tl.constexpr, MOST: tl.constexpr, DTYPE: tl.constexpr):
    """Return the nearest numbers that an integer of 8 bits holds, without what is after the point; 0 for NaN."""
    if x.dtype.is_floating():
        x = cast(x, tl.float32)
        x = tl.where(x == x, tl.minimum(tl.maximum(x, LEAST), MOST), 0.0).to(tl.int32)
    elif x.dtype == tl.int1:
        x = x.to(tl.int32)
    return tl.minimum(tl.maximum(x, LEAST), MOST).to(DTYPE)


@portable
def _to_f8(x, DTYPE: tl.constexpr):
    """Return an f32 in a type of 8 bits. For sm_89 Triton's own cast rounds twice, the first time towards zero."""
    if INTERPRETED:
        result = _to_f8_by_bits(x, DTYPE)
    elif isa() == "ptx":
        if tl.float8e4nv == DTYPE:
            bits = tl.inline_asm_elementwise(TO_E4M3, "=r,r,r,r,r", [x], dtype=tl.int8, is_pure=True, pack=4)
        else:
            bits = tl.inline_asm_elementwise(TO_E5M2, "=r,r,r,r,r", [x], dtype=tl.int8, is_pure=True, pack=4)
        result = bits.to(DTYPE, bitcast=True)
    else:
        result = x.to(DTYPE)
    return result


@portable
def _to_f8_by_bits(x, DTYPE: tl.constexpr):
    """Return an f32 in a type of 8 bits. The interpreter's own cast rounds halves up, and does not saturate."""
    bits = x.to(tl.int32, bitcast=True)
    size = bits & 0x7FFFFFFF
    kept, bias, largest = (3, 7, 0x43E00000) if tl.float8e4nv == DTYPE else (2, 15, 0x47600000)
    dropped = 23 - kept
    held = tl.minimum(size, largest)
    normal = ((held + ((1 << (dropped - 1)) - 1) + ((held >> dropped) & 1)) >> dropped) - ((127 - bias) << kept)
    unit = (127 - bias + dropped + 1) << 23  # an f32 whose last bit is the step of the numbers below the normal ones
    step = tl.full((), unit, tl.int32).to(tl.float32, bitcast=True)
    below = (held.to(tl.float32, bitcast=True) + step).to(tl.int32, bitcast=True) - unit
    result = tl.where(held < ((127 - bias + 1) << 23), below, normal) | ((bits >> 24) & 0x80)
    return tl.where(size > 0x7F800000, 0x7F, result).to(tl.uint8).to(DTYPE, bitcast=True)


@portable
def _from_f8(x):
    """Return numbers of 8 bits as f32."""
    return _from_f8_by_bits(x) if INTERPRETED else x.to(tl.float32)


@portable
def _from_f8_by_bits(x):
    """Return numbers of 8 bits as f32. The interpreter's own cast makes numbers of infinities and NaN."""
    bits = x.to(tl.uint8, bitcast=True).to(tl.int32)
    if x.dtype == tl.float8e5:
        return (bits << 8).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
    size = ((bits & 0x7F) << 20).to(tl.float32, bitcast=True) * 2.0**120
    signed = size.to(tl.int32, bitcast=True) | ((bits & 0x80) << 24)  # the interpreter's -0.0 is 0.0
    return tl.where((bits & 0x7F) == 0x7F, float("nan"), signed.to(tl.float32, bitcast=True))


@portable
def dot(a, b, acc=None, PRECISION: tl.constexpr = IEEE):
    """Return acc + a @ b: a [M, K], b [K, N] of one type, acc [M, N] f32, or i32 for integers (None: zero).

    Tensor cores add products of 8-bit floats with fewer bits than f32 has: the sums of one step are added up in f32.

    PRECISION: multiplication of f32 operands: "ieee", or "tf32" on tensor cores that have it. The interpreter would
    multiply the raw words of bf16, so operands are widened there.
    """
    if a.dtype == tl.int8:
        result = tl.dot(a, b, acc, out_dtype=tl.int32)
    elif INTERPRETED:
        result = tl.dot(cast(a, tl.float32), cast(b, tl.float32), acc, input_precision="ieee")
    elif a.dtype == tl.float8e4nv or a.dtype == tl.float8e5:
        result = tl.dot(a, b, acc, max_num_imprecise_acc=a.shape[1])
    else:
        result = tl.dot(a, b, acc, input_precision=PRECISION)
    return result


@portable
def sigmoid(x):
    """Return 1 / (1 + exp(-x)) in f32, without overflow at either end."""
    x = cast(x, tl.float32)
    e = tl.exp(-tl.abs(x))
    return tl.where(x >= 0, 1.0, e) / (1.0 + e)


@portable
def silu(x):
    """Return x * sigmoid(x) in f32."""
    return cast(x, tl.float32) * sigmoid(x)


@portable
def tanh(x):
    """Return the hyperbolic tangent in f32, with an absolute error of about 1e-7."""
    x = cast(x, tl.float32)
    e = tl.exp(-2.0 * tl.abs(x))
    magnitude = (1.0 - e) / (1.0 + e)
    return tl.where(x >= 0, magnitude, -magnitude)


@portable
def gelu(x):
    """Return x * Phi(x) in f32, computed with the error function."""
    x = cast(x, tl.float32)
    return 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))


@portable
def gelu_tanh(x):
    """Return the usual approximation of gelu by tanh, in f32."""
    x = cast(x, tl.float32)
    return 0.5 * x * (1.0 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))


@portable
def relu(x):
    """Return max(x, 0) in f32. NaN stays NaN."""
    x = cast(x, tl.float32)
    return tl.where(x < 0, 0.0, x)


@portable
def maximum(a, b):
    """Return the larger of two numbers, or NaN if either is NaN."""
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@portable
def minimum(a, b):
    """Return the smaller of two numbers, or NaN if either is NaN."""
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)


@portable
def reduce_max(x, AXIS: tl.constexpr):
    """Return the largest along an axis, or NaN if any is NaN. The interpreter's own reduction ignores NaN."""
    if not INTERPRETED:
        result = tl.reduce(x, AXIS, maximum)
    elif x.dtype.is_floating():
        result = _or_nan(x, tl.max(tl.where(x == x, x, float("-inf")), AXIS), AXIS)
    else:
        result = tl.max(x, AXIS)
    return result


@portable
def reduce_min(x, AXIS: tl.constexpr):
    """Return the smallest along an axis, or NaN if any is NaN. The interpreter's own reduction ignores NaN."""
    if not INTERPRETED:
        result = tl.reduce(x, AXIS, minimum)
    elif x.dtype.is_floating():
        result = _or_nan(x, tl.min(tl.where(x == x, x, float("inf")), AXIS), AXIS)
    else:
        result = tl.min(x, AXIS)
    return result


@portable
def _or_nan(x, result, AXIS: tl.constexpr):
    """Return a result of a reduction, or NaN if any operand is NaN."""
    return tl.where(tl.max((x != x).to(tl.int32), AXIS) != 0, float("nan"), result)


@portable
def rsqrt(x):
    """Return 1 / sqrt(x) in f32."""
    return tl.rsqrt(cast(x, tl.float32))
