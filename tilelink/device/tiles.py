"""Tile mathematics for generated kernels: functions that Triton lacks, or has with another meaning."""

from tilelink.device.attention import attend_begin, attend_finish, attend_step
from tilelink.device.numeric import (
    cast,
    compact,
    dot,
    entries,
    entry,
    first_of,
    floordiv,
    from_bits,
    gelu,
    gelu_tanh,
    maximum,
    minimum,
    mod,
    quotient,
    reduce_all,
    reduce_any,
    reduce_max,
    reduce_min,
    relu,
    remainder,
    rsqrt,
    shift_left,
    shift_right,
    sigmoid,
    silu,
    tanh,
    zero_beyond,
)
from tilelink.device.sorting import keyed_numbers, keyed_places, sort_keys, sorted_keys

__all__ = [
    "attend_begin", "attend_finish", "attend_step", "cast", "compact", "dot", "entries", "entry", "floordiv",
    "from_bits", "gelu", "gelu_tanh", "keyed_numbers", "keyed_places", "maximum", "minimum", "mod", "first_of",
    "quotient", "reduce_all", "reduce_any", "reduce_max", "remainder", "shift_left", "shift_right", "reduce_min",
    "relu", "rsqrt", "sigmoid", "silu", "sort_keys", "sorted_keys", "tanh", "zero_beyond",
]  # fmt: skip
