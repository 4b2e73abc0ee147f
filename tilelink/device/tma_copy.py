# pyright: basic, reportArgumentType=false
"""Boxes of shared memory through which programs of one warp copy by the tensor memory accelerator, several on an SM.

They are in Gluon, Triton's language for what a kernel does with shared memory. Needs sm_90.

Box `number` of a program, counted over all its tiles, goes through buffer `number % BUFFERS` of its own. One thread of
the warp, always the same, gives all orders to the accelerator, so that waiting for what it ordered is enough.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

__all__ = ["barriers", "idle", "load_box", "loaded", "prepare", "store_box"]

# Triton 3.9 names them so.
_load = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
store_box = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global
barriers, prepare = mbarrier.MBarrierLayout, mbarrier.init


@gluon.jit
def idle():
    """What the warps do that Gluon gives every kernel, beside those of the programs."""
    pass


@gluon.jit
def load_box(boxes, row, column, room, full, first, number, BUFFERS: gl.constexpr, AHEAD: gl.constexpr):
    """Begins to load a box, once its buffer's last one was stored.

    boxes: descriptor; row, column: of the box's first element. room: boxes in shared memory, of all programs of the
    SM; full: a barrier for each. first: the program's first buffer. number: of the box.
    AHEAD: loads that are ordered before the first of them is stored, fewer than BUFFERS.
    """
    tma.store_wait(BUFFERS - AHEAD - 1)
    buffer = first + number % BUFFERS
    mbarrier.expect(full.index(buffer), boxes.block_type.nbytes)
    _load(boxes, [row, column], full.index(buffer), room.index(buffer))


@gluon.jit
def loaded(full, first, number, BUFFERS: gl.constexpr):
    """The buffer of a box, once that was loaded; arguments as of load_box."""
    buffer = first + number % BUFFERS
    mbarrier.wait(full.index(buffer), number // BUFFERS & 1)
    return buffer
