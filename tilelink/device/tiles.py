"""Tile mathematics for generated kernels: what the language has and Triton has not, or not with the same meaning."""

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
