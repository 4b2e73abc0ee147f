# pyright: basic, reportArgumentType=false, reportRedeclaration=false
"""Device primitives that write down when they began and ended: what kernels call that were generated to be traced.

A program's spans go to its lane (see runtime/spans.py). On a GPU a lane is an address that the debug block leads to
(see debug.py). Thread 0 reads %globaltimer, the one clock that all SMs of a GPU share; %clock64 counts the cycles of
one SM, whose length changes with power. Interpreted, the process's monitor keeps the spans; a lane is its number.
"""

import triton
import triton.language as tl

from tilelink.runtime import device as dl
from tilelink.runtime import monitor
from tilelink.runtime.device.assembly import TRACE_BEGIN, TRACE_END, TRACE_END_ALL
from tilelink.runtime.device.debug import STRIDE, TRACE
from tilelink.runtime.device.mode import INTERPRETED, portable
from tilelink.runtime.spans import KINDS

TILE, WAIT, NOTIFY, TRANSFER = (tl.constexpr(KINDS.index(kind)) for kind in ("tile", "wait", "notify", "transfer"))
_TRACE = tl.constexpr(TRACE)
_STRIDE = tl.constexpr(STRIDE)

if INTERPRETED:
    from tilelink.runtime.device.interpreted import number

    def lane(debug, program):
        return program

    def begin(lane, KIND):
        monitor.begin(KINDS[number(KIND)])

    def end(lane, KIND, STAGE, t, a, b):
        monitor.end(number(lane), KINDS[number(KIND)], number(STAGE), number(t), number(a), number(b))

else:

    @triton.jit
    def lane(debug, program):
        """The address (int64) of the lane of a rank's program `program`. debug: the rank's debug block, not None."""
        return tl.load(debug + _TRACE) + tl.load(debug + _STRIDE) * program

    @triton.jit
    def begin(lane, KIND: tl.constexpr):
        """Notes that something begins."""
        tl.inline_asm_elementwise(TRACE_BEGIN, "=r,l,r", [lane, KIND], dtype=tl.int32, is_pure=False, pack=1)

    @triton.jit
    def end(lane, KIND: tl.constexpr, STAGE: tl.constexpr, t, a, b):
        """Writes the record of what was begun last of this kind. Of tiles and transfers all threads have come here."""
        tile = tl.cast(t, tl.int32)
        first = tl.cast(a, tl.int32)
        second = tl.cast(b, tl.int32)
        if KIND == TILE or KIND == TRANSFER:  # noqa: SIM109
            tl.inline_asm_elementwise(
                TRACE_END_ALL,
                "=r,l,r,r,r,r,r",
                [lane, KIND, STAGE, tile, first, second],
                dtype=tl.int32,
                is_pure=False,
                pack=1,
            )
        else:
            tl.inline_asm_elementwise(
                TRACE_END,
                "=r,l,r,r,r,r,r",
                [lane, KIND, STAGE, tile, first, second],
                dtype=tl.int32,
                is_pure=False,
                pack=1,
            )


@portable
def tile_begin(lane, debug, STAGE: tl.constexpr, t):
    """dl.tile_begin."""
    dl.tile_begin(debug, STAGE, t)
    begin(lane, TILE)


@portable
def tile_end(lane, STAGE: tl.constexpr, t):
    """The end of tile `t`."""
    end(lane, TILE, STAGE, t, 0, 0)


@portable
def wait(lane, signals, channel, target, debug, STAGE: tl.constexpr, t):
    """dl.wait."""
    begin(lane, WAIT)
    token = dl.wait(signals, channel, target, debug, STAGE, t)
    end(lane, WAIT, STAGE, t, channel, 0)
    return token


@portable
def notify(lane, pad, channel, rank, debug, STAGE: tl.constexpr, t, REMOTE: tl.constexpr, TMA: tl.constexpr):
    """dl.notify."""
    begin(lane, NOTIFY)
    dl.notify(pad, channel, rank, debug, STAGE, t, REMOTE, TMA)
    end(lane, NOTIFY, STAGE, t, rank, channel)


@portable
def transfer_begin(lane):
    """The begin of a transfer, before its first load."""
    begin(lane, TRANSFER)


@portable
def transfer(lane, debug, STAGE: tl.constexpr, t, TENSOR: tl.constexpr, rank, offset):
    """dl.transfer, behind the last store; those need not have arrived, which a notify waits for."""
    dl.transfer(debug, STAGE, t, TENSOR, rank, offset)
    end(lane, TRANSFER, STAGE, t, rank, TENSOR)
