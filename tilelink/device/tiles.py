"""Tile mathematics for generated kernels: functions that Triton lacks, or has with another meaning."""

from tilelink.device.attention import attend_begin, attend_finish, attend_step
from tilelink.device.numeric import (
    cast,
    dot,
    floordiv,
    from_bits,
    gelu,
    gelu_tanh,
    maximum,
    minimum,
    mod,
    reduce_max,
    reduce_min,
    relu,
    rsqrt,
    sigmoid,
    silu,
    tanh,
)

__all__ = [
    "attend_begin",
    "attend_finish",
    "attend_step",
    "cast",
    "dot",
    "floordiv",
    "from_bits",
    "gelu",
    "gelu_tanh",
    "maximum",
    "minimum",
    "mod",
    "reduce_max",
    "reduce_min",
    "relu",
    "rsqrt",
    "sigmoid",
    "silu",
    "tanh",
]
