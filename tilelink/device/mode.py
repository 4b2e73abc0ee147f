# pyright: basic
"""Which mode kernels run in, for which instruction set they are being compiled, and which threads a program has."""

from collections.abc import Callable
from typing import Any

import triton
import triton.language as tl
from triton import knobs

# triton.jit decides by the same knob, when a function is decorated; so does the device library, once.
INTERPRETED = tl.constexpr(bool(knobs.runtime.interpret))


BLOCK, WARP = tl.constexpr("block"), tl.constexpr("warp")
"""The threads of a program: all of its block, or one warp of a block that has several programs."""


def number(value: Any) -> int:
    """The Python integer in a scalar as the interpreter passes it: a tensor of one element, a constexpr, an int."""
    if isinstance(value, tl.tensor):
        return int(value.handle.data.item())
    return int(value.value if isinstance(value, tl.constexpr) else value)


def portable(function: Callable[..., Any]) -> Any:
    """Decorates a function whose one body serves both modes.

    Interpreted, it stays a Python function: kernels call it without the cost of an interpreted jit function.
    """
    return function if INTERPRETED.value else triton.jit(function)


@tl.core.builtin
def isa(_semantic: Any = None) -> tl.constexpr:
    """What the kernel is being compiled for: "ptx90" (sm_90 and later, which have TMA), "ptx" or "amdgcn".

    It asks the compilation, not the machine: a kernel may be compiled on a machine without a GPU.
    """
    architecture = str(_semantic.builder.options.arch)
    if architecture.startswith("gfx"):
        return tl.constexpr("amdgcn")
    capability = int("".join(filter(str.isdigit, architecture)))
    return tl.constexpr("ptx90" if capability >= 90 else "ptx")
