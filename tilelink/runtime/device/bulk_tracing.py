# pyright: basic, reportArgumentType=false
"""`runtime/device/tracing.py` for programs of one warp: lane 0 of it writes."""

import triton
import triton.language as tl

from tilelink.runtime.device import bulk
from tilelink.runtime.device.assembly import WARP_TRACE_BEGIN, WARP_TRACE_END
from tilelink.runtime.device.tracing import NOTIFY, TILE, TRANSFER, WAIT, lane

__all__ = ["lane", "notify", "tile_begin", "tile_end", "transfer", "transfer_begin", "wait"]


@triton.jit
def begin(lane, KIND: tl.constexpr):
    tl.inline_asm_elementwise(WARP_TRACE_BEGIN, "=r,l,r", [lane, KIND], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def end(lane, KIND: tl.constexpr, STAGE: tl.constexpr, t, a, b):
    numbers = [lane, KIND, STAGE, tl.cast(t, tl.int32), tl.cast(a, tl.int32), tl.cast(b, tl.int32)]
    tl.inline_asm_elementwise(WARP_TRACE_END, "=r,l,r,r,r,r,r", numbers, dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def tile_begin(lane, debug, STAGE: tl.constexpr, t):
    begin(lane, TILE)


@triton.jit
def tile_end(lane, STAGE: tl.constexpr, t):
    end(lane, TILE, STAGE, t, 0, 0)


@triton.jit
def wait(lane, signals, channel, target, debug, STAGE: tl.constexpr, t):
    begin(lane, WAIT)
    token = bulk.wait(signals, channel, target, debug, STAGE, t)
    end(lane, WAIT, STAGE, t, channel, 0)
    return token


@triton.jit
def notify(lane, pad, channel, rank, debug, STAGE: tl.constexpr, t, REMOTE: tl.constexpr, TMA: tl.constexpr):
    begin(lane, NOTIFY)
    bulk.notify(pad, channel, rank, debug, STAGE, t, REMOTE, TMA)
    end(lane, NOTIFY, STAGE, t, rank, channel)


@triton.jit
def transfer_begin(lane):
    begin(lane, TRANSFER)


@triton.jit
def transfer(lane, debug, STAGE: tl.constexpr, t, TENSOR: tl.constexpr, rank, offset):
    end(lane, TRANSFER, STAGE, t, rank, TENSOR)
