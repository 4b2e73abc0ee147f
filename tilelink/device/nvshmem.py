# pyright: basic, reportArgumentType=false
"""Puts, gets and signals between nodes as Triton compiles them: calls of NVSHMEM's device library.

A kernel that calls these is linked with the library's bitcode (runtime/nvshmem/bitcode.py), and its module is
registered with NVSHMEM before its first launch. A rank's number is that of its PE. Addresses are those of the own rank:
NVSHMEM finds the peer's copy. Counters are words of 64 bits, to which NVSHMEM adds. Their low half counts.

All threads of a program call a function together, and one message, signal, fence or quiet is what comes of it. What the
threads have stored before is visible to the network: each call begins with a fence and a barrier.
"""

import triton
import triton.language as tl
from triton.language import core

from tilelink.device.compiled import fence, symm_at
from tilelink.device.mode import BLOCK
from tilelink.device.tracing import NOTIFY, begin, end

SIGNAL_ADD = tl.constexpr(10)
"""NVSHMEM's value for a signal that adds. Another number would end the transport's thread."""
FIRST_THREAD = tl.constexpr("mov.u32 $0, %tid.x;")


def _call(name, types, arguments, _semantic):
    given = [core.cast(one, kind, _semantic=_semantic) for one, kind in zip(arguments, types, strict=True)]
    return core.extern_elementwise(
        "", "", given, {tuple(types): (name, core.dtype("int32"))}, is_pure=False, _semantic=_semantic
    )


@core.extern
def _putmem(target, source, size, pe, _semantic=None):
    types = (tl.int64, tl.int64, tl.int64, tl.int32)
    return _call("nvshmemx_putmem_nbi_block", types, (target, source, size, pe), _semantic)


@core.extern
def _putmem_signal(target, source, size, signal, value, operation, pe, _semantic=None):
    types = (tl.int64, tl.int64, tl.int64, tl.int64, tl.int64, tl.int32, tl.int32)
    arguments = (target, source, size, signal, value, operation, pe)
    return _call("nvshmemx_putmem_signal_nbi_block", types, arguments, _semantic)


@core.extern
def _getmem(target, source, size, pe, _semantic=None):
    types = (tl.int64, tl.int64, tl.int64, tl.int32)
    return _call("nvshmemx_getmem_block", types, (target, source, size, pe), _semantic)


@core.extern
def _signal_op(signal, value, operation, pe, _semantic=None):
    types = (tl.int64, tl.int64, tl.int32, tl.int32)
    return _call("nvshmemx_signal_op", types, (signal, value, operation, pe), _semantic)


@core.extern
def _fence(_semantic=None):
    return _call("nvshmem_fence", (), (), _semantic)


@core.extern
def _quiet(_semantic=None):
    return _call("nvshmem_quiet", (), (), _semantic)


@triton.jit
def _bytes(pointer, count):
    return tl.cast(count, tl.int64) * ((pointer.dtype.element_ty.primitive_bitwidth + 7) // 8)


@triton.jit
def put(peers, rank, peer, offset, source, count):
    """Put `count` elements from `source` to element `offset` of a peer's copy. It arrives late and in any order.

    Of no elements nothing is sent.

    peers: addresses of a symmetric tensor's copies; that of the own rank is used. source: pointer into memory that
    NVSHMEM has registered.
    """
    fence()
    tl.debug_barrier()
    target = symm_at(peers, rank, source) + offset
    if count > 0:
        _putmem(target.to(tl.int64), source.to(tl.int64), _bytes(source, count), peer)


@triton.jit
def put_signal(
    peers, rank, peer, offset, source, count, signals, signal_table, channel, debug_block, stage: tl.constexpr, tile,
    trace=None,
):  # fmt: skip
    """Put as `put`, and add 1 to counter `channel` of the peer after the data has arrived, or at once for no data."""
    begin(trace, NOTIFY, BLOCK)
    fence()
    tl.debug_barrier()
    target = symm_at(peers, rank, source) + offset
    counter = (signals + channel).to(tl.int64)
    if count > 0:
        _putmem_signal(target.to(tl.int64), source.to(tl.int64), _bytes(source, count), counter, 1, SIGNAL_ADD, peer)
    elif _thread() == 0:
        _signal_op(counter, 1, SIGNAL_ADD, peer)
    end(trace, NOTIFY, stage, tile, peer, channel, BLOCK)


@triton.jit
def get(target, peers, rank, peer, offset, count):
    """Get `count` elements from element `offset` of a peer's copy. They are there when it returns."""
    fence()
    tl.debug_barrier()
    source = symm_at(peers, rank, target) + offset
    if count > 0:
        _getmem(target.to(tl.int64), source.to(tl.int64), _bytes(target, count), peer)
    tl.debug_barrier()


@triton.jit
def network_notify(
    signals, signal_table, rank, peer, channel, debug_block, stage: tl.constexpr, tile, trace=None
):  # fmt: skip
    """Add 1 to counter `channel` of a peer. It follows what a fence is between, and nothing else that was put."""
    begin(trace, NOTIFY, BLOCK)
    fence()
    tl.debug_barrier()
    if _thread() == 0:
        _signal_op((signals + channel).to(tl.int64), 1, SIGNAL_ADD, peer)
    end(trace, NOTIFY, stage, tile, peer, channel, BLOCK)


@triton.jit
def network_fence():
    """Deliver what the program sends to a rank after this, after what it has sent there before."""
    tl.debug_barrier()
    if _thread() == 0:
        _fence()
    tl.debug_barrier()


@triton.jit
def network_quiet():
    """Wait until all that the program has sent has arrived."""
    tl.debug_barrier()
    if _thread() == 0:
        _quiet()
    tl.debug_barrier()


@triton.jit
def _thread():
    return tl.inline_asm_elementwise(FIRST_THREAD, "=r", [], dtype=tl.int32, is_pure=True, pack=1)
