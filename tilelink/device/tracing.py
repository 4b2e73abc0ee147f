# pyright: basic, reportArgumentType=false, reportRedeclaration=false
"""Spans of time that a program records: start and end of a tile, a wait, a notify or a transfer.

A program's spans go to its track (see device/spans.py). On a GPU a track is an address that is derived from the debug
block (see debug.py). Thread 0 reads %globaltimer, the one clock that all SMs of a GPU share. %clock64 counts the cycles
of one SM, whose length changes with power. Interpreted, the process's monitor keeps the spans, and a track is its
number.

If `trace`, the track, is None, nothing is recorded, and nothing is compiled.
"""

import triton
import triton.language as tl

from tilelink.device import monitor
from tilelink.device.assembly import (
    TRACE_BEGIN,
    TRACE_END,
    TRACE_END_ALL,
    WARP_TRACE_BEGIN,
    WARP_TRACE_END,
)
from tilelink.device.debug import STRIDE, TRACE
from tilelink.device.mode import INTERPRETED, WARP, number
from tilelink.device.spans import KINDS

TILE, WAIT, NOTIFY, TRANSFER = (tl.constexpr(KINDS.index(kind)) for kind in ("tile", "wait", "notify", "transfer"))
_TRACE = tl.constexpr(TRACE)
_STRIDE = tl.constexpr(STRIDE)

if INTERPRETED:

    def trace_track(debug_block, program):
        return program

    def begin(trace, KIND, scope):
        if trace is not None:
            monitor.begin(KINDS[number(KIND)])

    def end(trace, KIND, stage, tile, a, b, scope):
        if trace is not None:
            monitor.end(number(trace), KINDS[number(KIND)], number(stage), number(tile), number(a), number(b))

else:

    @triton.jit
    def trace_track(debug_block, program):
        """Return the address (int64) of the track of a rank's program `program`.

        debug_block: the rank's debug block, not None.
        """
        return tl.load(debug_block + _TRACE) + tl.load(debug_block + _STRIDE) * program

    @triton.jit
    def begin(trace, KIND: tl.constexpr, scope: tl.constexpr):
        """Record the start of an operation of a kind."""
        if trace is not None:
            if scope == WARP:
                _note(WARP_TRACE_BEGIN, trace, KIND)
            else:
                _note(TRACE_BEGIN, trace, KIND)

    @triton.jit
    def _note(TEXT: tl.constexpr, trace, KIND: tl.constexpr):
        tl.inline_asm_elementwise(TEXT, "=r,l,r", [trace, KIND], dtype=tl.int32, is_pure=False, pack=1)

    @triton.jit
    def end(trace, KIND: tl.constexpr, stage: tl.constexpr, tile, a, b, scope: tl.constexpr):
        """Record the span of the last begun operation of this kind.

        For tiles and transfers all threads have arrived here.
        """
        if trace is not None:
            if scope == WARP:
                _write(WARP_TRACE_END, trace, KIND, stage, tile, a, b)
            elif KIND == TILE or KIND == TRANSFER:  # noqa: SIM109
                _write(TRACE_END_ALL, trace, KIND, stage, tile, a, b)
            else:
                _write(TRACE_END, trace, KIND, stage, tile, a, b)

    @triton.jit
    def _write(TEXT: tl.constexpr, trace, KIND: tl.constexpr, stage: tl.constexpr, tile, a, b):
        numbers = [trace, KIND, stage, tl.cast(tile, tl.int32), tl.cast(a, tl.int32), tl.cast(b, tl.int32)]
        tl.inline_asm_elementwise(TEXT, "=r,l,r,r,r,r,r", numbers, dtype=tl.int32, is_pure=False, pack=1)
