# pyright: basic
"""Mode of the kernels, the instruction set that is being compiled for, and the threads of a program."""

from collections.abc import Callable
from typing import Any

import triton
import triton.language as tl
from triton import knobs

# triton.jit reads the same knob when a function is decorated; the device library reads it once.
INTERPRETED = tl.constexpr(bool(knobs.runtime.interpret))


BLOCK, WARP = tl.constexpr("block"), tl.constexpr("warp")
"""Threads of a program: a whole block, or one warp of a block with several programs."""


def number(value: Any) -> int:
    """Return the Python integer in a scalar of the interpreter: a tensor of one element, a constexpr, or an int."""
    if isinstance(value, tl.tensor):
        return int(value.handle.data.item())
    return int(value.value if isinstance(value, tl.constexpr) else value)


def portable(function: Callable[..., Any]) -> Any:
    """Decorate a function whose one body serves both modes.

    Interpreted, it stays a Python function: kernels call it without the cost of an interpreted jit function.
    """
    return function if INTERPRETED.value else triton.jit(function)


def _lanes(count: Any, _semantic: Any = None) -> Any:
    """Return the numbers 0, 1, ... below a power of two, as `tl.arange` does, also in a function that Gluon compiles.

    Gluon wants to be told which thread has which number. Those of a block of threads have them in turn.
    """
    size = int(getattr(count, "value", count))
    if not hasattr(_semantic, "convert_layout"):  # plain Triton
        return _semantic.arange(0, size)
    from triton.experimental.gluon.language import BlockedLayout

    warps = int(_semantic.builder.options.num_warps)
    return _semantic.arange(0, size, BlockedLayout([1], [32], [warps], [0]))


def _interpreted_lanes(count: Any) -> Any:
    """Return the same numbers in a function that Triton interprets."""
    return tl.arange(0, number(count))


lanes: Any = _interpreted_lanes if INTERPRETED.value else tl.core.builtin(_lanes)


@tl.core.builtin
def isa(_semantic: Any = None) -> tl.constexpr:
    """Return the instruction set that is being compiled for: "ptx90" (sm_90 and later, with TMA), "ptx" or "amdgcn".

    It is a property of the compilation, not of the machine: a kernel may be compiled on a machine without a GPU.
    """
    architecture = str(_semantic.builder.options.arch)
    if architecture.startswith("gfx"):
        return tl.constexpr("amdgcn")
    capability = int("".join(filter(str.isdigit, architecture)))
    return tl.constexpr("ptx90" if capability >= 90 else "ptx")


@tl.core.builtin
def block_threads(_semantic: Any = None) -> tl.constexpr:
    """Return the number of threads of a block that is being compiled for NVIDIA."""
    return tl.constexpr(32 * int(_semantic.builder.options.num_warps))
