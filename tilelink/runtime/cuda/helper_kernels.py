# pyright: basic, reportArgumentType=false
"""Helper kernels of a GPU rank: a small kernel before a launch, if peers read its inputs, and one after it.

The number of the launch is in device memory, and only kernels change it: these, or a launch's own kernels that perform
the handshake (device/handshake.py). So a launch that was captured into a CUDA graph can be replayed.
Where the host's copies address buffers, a replay uses those that it was captured with (Artifact.replays_in_turn). It
first skips launches, as if they had happened, until it uses these buffers. Afterwards it skips as many as restore the
slot. For launches outside of the graph nothing has changed.
"""

import triton
import triton.language as tl

from tilelink import device as dl
from tilelink.device import handshake


@triton.jit
def _number(epoch_pointer, PROGRAMS: tl.constexpr):
    """Return the number of the launch, int64. PROGRAMS: programs of a launch that kernels count, or 0.

    device/handshake.py describes the counting.
    """
    launch = tl.load(epoch_pointer + handshake.NUMBER)
    if PROGRAMS:
        launch += tl.load(epoch_pointer + handshake.COUNTED) // PROGRAMS
    return launch


@triton.jit(do_not_specialize=["rank"])
def open_launch(
    signals, signal_table, epoch_pointer, debug_block, rank,
    RANKS: tl.constexpr, BLOCK: tl.constexpr, ENTERED: tl.constexpr, WAIT: tl.constexpr, STAGE: tl.constexpr,
):  # fmt: skip
    """Announce to all peers that this rank has entered its launch. WAIT: also wait until all have entered it.

    signals, signal_table, debug_block: as generated kernels take them. BLOCK: a power of two, at least RANKS. If
    programs are counted, WAIT is False.
    """
    peers = tl.arange(0, BLOCK)
    handshake.tell(signal_table, ENTERED + rank, 1, peers < RANKS, peers)
    if WAIT:
        launch = tl.load(epoch_pointer + handshake.NUMBER)
        handshake.wait_counters(signals, ENTERED + peers, launch + peers * 0, peers < RANKS, debug_block, STAGE)
        dl.fence()


@triton.jit
def await_outputs(signals, epoch_pointer, debug_block, exits, EXITS: tl.constexpr, STAGE: tl.constexpr):
    """Wait for peers' writes to outputs. These can then be copied before `close_launch` announces the end."""
    handshake.await_exits(signals, tl.load(epoch_pointer + handshake.NUMBER), exits, EXITS, debug_block, STAGE)


@triton.jit(do_not_specialize=["rank"])
def close_launch(
    signals, signal_table, epoch_pointer, debug_block, exits, counters, flags, flag_values, rank,
    RANKS: tl.constexpr, BLOCK: tl.constexpr, ENTERED: tl.constexpr, FINISHED: tl.constexpr,
    EXITS: tl.constexpr, COUNTERS: tl.constexpr, FLAGS: tl.constexpr,
    LAG: tl.constexpr, ENTRY: tl.constexpr, STAGE: tl.constexpr, PROGRAMS: tl.constexpr, CYCLE: tl.constexpr,
):  # fmt: skip
    """Wait for peers' writes to outputs, announce to peers that the launch is finished, and prepare the next one.

    epoch_pointer: int64 [4], as generated kernels take it.
    PROGRAMS: number of programs that kernels count in a launch, or 0.
    exits: int32 [EXITS, 4], rows (first counter, buffers, counters of a buffer, threshold) of outputs' counters.
    counters: int32 [COUNTERS, 3], rows (threshold, buffer, buffers) of the pad's counters, for skipped launches.
    flags: int32 [FLAGS, 5], rows (step, count, buffers, counter, counters of a buffer) of the copy engine's notifies.
        The counter (of the first buffer) is named if it is the rank's own and its copy comes before the kernels: then
        it is set here. Otherwise it is -1.
    flag_values: values of the flags in the next launch.
    LAG: the next launch may begin once peers have finished launch (next - LAG); 0: at once.
    CYCLE: for a captured launch, the number of launches after which the buffers repeat; 0 if it is not captured.
    """
    launch = _number(epoch_pointer, PROGRAMS)
    handshake.await_exits(signals, launch, exits, EXITS, debug_block, STAGE)
    skipped = 0
    if CYCLE:
        skipped = CYCLE - 1 - tl.load(epoch_pointer + handshake.SKIPPED)
    _advance(
        signals, signal_table, epoch_pointer, debug_block, counters, flags, flag_values, rank, launch + 1, skipped, 1,
        RANKS, BLOCK, ENTERED, FINISHED, COUNTERS, FLAGS, LAG, ENTRY, STAGE, PROGRAMS, CYCLE,
    )  # fmt: skip


@triton.jit(do_not_specialize=["rank"])
def skip_launches(
    signals, signal_table, epoch_pointer, debug_block, counters, flags, flag_values, rank,
    RANKS: tl.constexpr, BLOCK: tl.constexpr, ENTERED: tl.constexpr, FINISHED: tl.constexpr,
    COUNTERS: tl.constexpr, FLAGS: tl.constexpr, LAG: tl.constexpr, ENTRY: tl.constexpr, STAGE: tl.constexpr,
    PROGRAMS: tl.constexpr, CYCLE: tl.constexpr, SLOT: tl.constexpr,
):  # fmt: skip
    """Skip launches until the next one, counted from 0, has slot SLOT of its cycle. Parameters as of close_launch."""
    launch = _number(epoch_pointer, PROGRAMS)
    skipped = (SLOT + CYCLE - (launch - 1) % CYCLE) % CYCLE
    tl.store(epoch_pointer + handshake.SKIPPED, skipped)
    _advance(
        signals, signal_table, epoch_pointer, debug_block, counters, flags, flag_values, rank, launch, skipped, 0,
        RANKS, BLOCK, ENTERED, FINISHED, COUNTERS, FLAGS, LAG, ENTRY, STAGE, PROGRAMS, CYCLE,
    )  # fmt: skip


@triton.jit
def _advance(
    signals, signal_table, epoch_pointer, debug_block, counters, flags, flag_values, rank, first, skipped, done,
    RANKS: tl.constexpr, BLOCK: tl.constexpr, ENTERED: tl.constexpr, FINISHED: tl.constexpr,
    COUNTERS: tl.constexpr, FLAGS: tl.constexpr, LAG: tl.constexpr, ENTRY: tl.constexpr, STAGE: tl.constexpr,
    PROGRAMS: tl.constexpr, CYCLE: tl.constexpr,
):  # fmt: skip
    """End `done` launches and `skipped` ones from number `first` on, and prepare the launch after them.

    The stream waits for this kernel. So local data is loaded and written before peers are notified: then a single fence
    follows all of it, and few of the loads wait for another.
    """
    peers = tl.arange(0, BLOCK)
    following = first + skipped
    if CYCLE:
        begin = first - 1
        for start in range(0, COUNTERS, 128):
            at = start + tl.arange(0, 128)
            there = at < COUNTERS
            buffer = tl.load(counters + at * 3 + 1, mask=there, other=0)
            buffers = tl.load(counters + at * 3 + 2, mask=there, other=1)
            # count of numbers in [begin, begin + skipped) whose remainder by `buffers` is `buffer`
            times = (begin + skipped - 1 - buffer + buffers) // buffers - (begin - 1 - buffer + buffers) // buffers
            step = tl.load(counters + at * 3, mask=there, other=0)
            tl.atomic_add(signals + at, (step * times).to(tl.int32), mask=there, sem="relaxed", scope="sys")
        tl.debug_barrier()  # some flags below are among these counters
        if ENTRY:
            handshake.tell(signal_table, ENTERED + rank, skipped, peers < RANKS, peers)
    handshake.set_flags(signals, flags, flag_values, following, FLAGS)
    finished = done + skipped
    if PROGRAMS:
        finished = (
            following - 1 - tl.load(epoch_pointer + handshake.ANNOUNCED)
        )  # kernels announce a launch's end in the next one
    handshake.tell(signal_table, FINISHED + rank, finished, peers < RANKS, peers)
    if LAG:
        handshake.wait_counters(
            signals, FINISHED + peers, following - LAG + peers * 0, peers < RANKS, debug_block, STAGE
        )
    tl.debug_barrier()
    tl.store(epoch_pointer + handshake.NUMBER, following)
    if PROGRAMS:
        tl.store(epoch_pointer + handshake.COUNTED, tl.zeros((), tl.int64))
        tl.store(epoch_pointer + handshake.ANNOUNCED, following - 1)
