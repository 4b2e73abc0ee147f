# pyright: basic, reportArgumentType=false
"""Helper kernels of a rank of several nodes: before a launch, if peers read its inputs, and after it.

The number of the launch is in device memory, and only `close_launch` changes it. The buffers of a launch follow from
that number on the device, copies into them and out of them too. So a launch that was captured into a CUDA graph may be
replayed at any time, in any order with other launches of all ranks: each replay is the next launch.

They announce entry and end as runtime/cuda/helper_kernels.py does inside a node, with a signal of the network to each
rank of another node. A program's kernels have waited for all they sent, so a rank that announces its end has nothing on
its way.
"""

import triton
import triton.language as tl

from tilelink import device as dl
from tilelink.device import handshake


@triton.jit
def _tell(signals, signal_table, rank, counter, RANKS: tl.constexpr, NODE: tl.constexpr):
    """Add 1 to a counter in the pads of all ranks. NODE: ranks of a node."""
    for peer in range(0, RANKS):
        if NODE == RANKS:  # known at compile time: without other nodes the library is not linked
            dl.signal_add(dl.symm_at(signal_table, peer, signals) + counter, 1, True)
        else:
            _tell_one(signals, signal_table, rank, peer, counter, NODE)


@triton.jit
def _tell_one(signals, signal_table, rank, peer, counter, NODE: tl.constexpr):
    if peer // NODE == rank // NODE:
        dl.signal_add(dl.symm_at(signal_table, peer, signals) + counter, 1, True)
    else:
        dl.network_notify(signals, signal_table, rank, peer, counter, debug_block=None, stage=0, tile=0)


@triton.jit(do_not_specialize=["rank", "entered"])
def open_launch(signals, signal_table, rank, entered, RANKS: tl.constexpr, NODE: tl.constexpr):
    """Announce to all ranks that this one has entered its launch. entered: the counter of rank 0."""
    _tell(signals, signal_table, rank, entered + rank, RANKS, NODE)


@triton.jit(do_not_specialize=["count"])
def await_outputs(signals, epoch_pointer, debug_block, exits, count, STAGE: tl.constexpr):
    """Wait for peers' writes to outputs, which can then be copied. exits, count: as for `close_launch`."""
    handshake.await_exits(signals, tl.load(epoch_pointer + handshake.NUMBER), exits, count, debug_block, STAGE)


@triton.jit(do_not_specialize=["rank", "count", "finished", "lag"])
def close_launch(
    signals, signal_table, epoch_pointer, debug_block, exits, rank, count, finished, lag,
    RANKS: tl.constexpr, BLOCK: tl.constexpr, NODE: tl.constexpr, STAGE: tl.constexpr,
):  # fmt: skip
    """Wait for peers' writes to outputs, announce that the launch is finished, and prepare the next one.

    exits: int32 [count, 4], rows as for close_launch of one node. finished: the counter of rank 0.
    lag: the next launch may begin once all ranks have finished launch (next - lag); 0: at once.

    What differs between programs is an argument, so that they share a kernel: linking one takes seconds.
    """
    launch = tl.load(epoch_pointer + handshake.NUMBER)
    handshake.await_exits(signals, launch, exits, count, debug_block, STAGE)
    _tell(signals, signal_table, rank, finished + rank, RANKS, NODE)
    if lag > 0:
        peers = tl.arange(0, BLOCK)
        handshake.wait_counters(
            signals, finished + peers, launch + 1 - lag + peers * 0, peers < RANKS, debug_block, STAGE
        )
    tl.debug_barrier()
    tl.store(epoch_pointer + handshake.NUMBER, launch + 1)


@triton.jit
def fill_buffer(tensor, buffers, epoch_pointer, COUNT: tl.constexpr, BUFFERS: tl.constexpr, BLOCK: tl.constexpr):
    """Copy an input of COUNT elements into the buffer of the launch. buffers: BUFFERS times COUNT elements."""
    at = _elements(BLOCK)
    there = at < COUNT
    tl.store(_buffer(buffers, epoch_pointer, COUNT, BUFFERS) + at, tl.load(tensor + at, mask=there), mask=there)


@triton.jit
def empty_buffer(tensor, buffers, epoch_pointer, COUNT: tl.constexpr, BUFFERS: tl.constexpr, BLOCK: tl.constexpr):
    """Copy an output of COUNT elements out of the buffer of the launch. buffers: as of `fill_buffer`."""
    at = _elements(BLOCK)
    there = at < COUNT
    tl.store(tensor + at, tl.load(_buffer(buffers, epoch_pointer, COUNT, BUFFERS) + at, mask=there), mask=there)


@triton.jit
def _elements(BLOCK: tl.constexpr):
    return tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)


@triton.jit
def _buffer(buffers, epoch_pointer, COUNT: tl.constexpr, BUFFERS: tl.constexpr):
    return buffers + (tl.load(epoch_pointer + handshake.NUMBER) - 1) % BUFFERS * COUNT
