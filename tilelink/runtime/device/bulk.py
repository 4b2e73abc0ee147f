# pyright: basic, reportArgumentType=false
"""What programs of one warp call that copy by the tensor memory accelerator, several of them on an SM.

Signals are those of `runtime/device/compiled.py`, of a warp instead of all of a kernel's threads: a barrier of these
would wait for the other programs too. Boxes are in Gluon, Triton's language for what a kernel does with shared memory.
Needs sm_90. A late wait names the block of threads as its program.

Box `number` of a program, counted over all its tiles, goes through buffer `number % BUFFERS` of its own. One thread of
the warp, always the same, gives all orders to the accelerator, so that waiting for what it ordered is enough.
"""

import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

from tilelink.runtime.device.assembly import (
    WARP_ADD_GPU,
    WARP_ADD_SYS,
    WARP_COUNT,
    WARP_POLL,
    WARP_POLL_ALL,
    WARP_POLL_DEADLINE,
    WARP_PUBLISH,
)
from tilelink.runtime.device.compiled import tile_begin, transfer
from tilelink.runtime.device.meeting import COUNTED, ON

__all__ = [
    "barriers", "count_program", "idle", "load_box", "loaded", "notify", "prepare", "publish", "store_box",
    "tile_begin", "transfer", "wait", "wait_all",
]  # fmt: skip

# Triton 3.9 names them so.
_load = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
store_box = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global
barriers, prepare = mbarrier.MBarrierLayout, mbarrier.init


@triton.jit
def wait(signals, channel, target, debug, STAGE: tl.constexpr, t):
    """dl.wait."""
    aim = tl.cast(target, tl.int32)
    if debug is None:
        token = tl.inline_asm_elementwise(
            WARP_POLL, "=r,l,r", [signals + channel, aim], dtype=tl.int32, is_pure=False, pack=1
        )  # fmt: skip
    else:
        token = tl.inline_asm_elementwise(
            WARP_POLL_DEADLINE,
            "=r,l,r,l,r,r,r",
            [signals + channel, aim, debug.to(tl.int64), STAGE, tl.cast(t, tl.int32), tl.cast(channel, tl.int32)],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )
    return token * 1024


@triton.jit
def wait_all(signals, first, COUNT: tl.constexpr, target, debug, STAGE: tl.constexpr, t, STEP: tl.constexpr = 1):
    """dl.wait_all."""
    token = tl.cast(0, tl.int32)
    if debug is None:
        arguments = [signals + first, tl.cast(target, tl.int32), COUNT, STEP]
        token += tl.inline_asm_elementwise(
            WARP_POLL_ALL, "=r,l,r,r,r", arguments, dtype=tl.int32, is_pure=False, pack=1
        )  # fmt: skip
    else:
        for number in range(0, COUNT):
            token += wait(signals, first + number * STEP, target, debug, STAGE, t)
    return token * 1024


@triton.jit
def notify(pad, channel, rank, debug, STAGE: tl.constexpr, t, REMOTE: tl.constexpr, TMA: tl.constexpr = True):
    """dl.notify: what the program ordered so far is written before it is told of."""
    if REMOTE:
        tl.inline_asm_elementwise(WARP_ADD_SYS, "=r,l,r", [pad + channel, 1], dtype=tl.int32, is_pure=False, pack=1)
    else:
        tl.inline_asm_elementwise(WARP_ADD_GPU, "=r,l,r", [pad + channel, 1], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def publish():
    """dl.publish: what the program stored before it loads behind it. It ends so: nothing reads its boxes any more."""
    tl.inline_asm_elementwise(WARP_PUBLISH, "=r", [], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def count_program(edge, epoch_at):
    """dl.count_program."""
    if edge is not None:
        tl.inline_asm_elementwise(
            WARP_COUNT, "=r,l,l", [epoch_at + COUNTED, tl.load(edge + ON)], dtype=tl.int32, is_pure=False, pack=1
        )  # fmt: skip


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
