# pyright: basic, reportArgumentType=false
"""Boxes in shared memory for programs of one warp that copy by TMA, several on an SM.

They are written in Gluon, Triton's language with explicit control of shared memory. They need sm_90.

Box `number` of a program, counted over all its tiles, uses the program's buffer `number % BUFFERS`. One thread of the
warp, always the same, issues all TMA operations, so waiting for its own operations is sufficient.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

__all__ = ["barriers", "idle", "load_box", "loaded", "prepare", "store_box"]

# Name since Triton 3.9.
_load = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
store_box = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global
barriers, prepare = mbarrier.MBarrierLayout, mbarrier.init


@gluon.jit
def idle():
    """Body of the warps that Gluon gives every kernel, in addition to those of the programs."""
    pass


@gluon.jit
def load_box(boxes, row, column, room, full, first, number, BUFFERS: gl.constexpr, AHEAD: gl.constexpr):
    """Start loading a box, after the previous box of its buffer was stored.

    boxes: descriptor. row, column: of the box's first element.
    room: boxes in shared memory, of all programs of the SM. full: a barrier for each.
    first: the program's first buffer. number: of the box.
    AHEAD: loads that are issued before the first of them is stored, fewer than BUFFERS.
    """
    tma.store_wait(BUFFERS - AHEAD - 1)
    buffer = first + number % BUFFERS
    mbarrier.expect(full.index(buffer), boxes.block_type.nbytes)
    _load(boxes, [row, column], full.index(buffer), room.index(buffer))


@gluon.jit
def loaded(full, first, number, BUFFERS: gl.constexpr):
    """Wait until a box is loaded and return its buffer. Arguments as for load_box."""
    buffer = first + number % BUFFERS
    mbarrier.wait(full.index(buffer), number // BUFFERS & 1)
    return buffer
