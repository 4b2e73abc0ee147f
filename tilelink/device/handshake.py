# pyright: basic, reportArgumentType=false
"""Launch handshake between ranks, in helper kernels between launches or in the kernels of a launch.

If the kernels of a launch run one after the other, the runtime launches no helper kernels. The first kernel announces
to the peers that the rank has entered (`announce_entry`), and the last program of the last kernel announces that it has
finished (`finish_launch`).

If no rank waits for the end of a launch, announcing it would only make every launch longer. Then each program adds 1 to
a counter when it ends (`count_program`), and no rank waits for that. The number of a launch follows from the count
(`launch_number`), and the next launch announces to peers that the previous one is finished (`announce_finished`). There
may be several kernels, or one kernel with a copy engine in parallel, which that kernel releases (`begin_copies`): its
flags then have the values of the launch, and peers have finished the launches whose buffers it writes to. No work is
left when the kernels have ended.

The kernels' argument for the handshake is a block, `handshake_block`, int64:

    0   1 if kernels perform the handshake; 0 in a graph whose replays skip launches, and if outputs are copied first
        (HELPER_KERNELS of tilelink/artifact.py); on CPU ranks the runtime performs it, and `handshake_block` is None
    1   number of programs that have left, in all launches
    2   lag: the next launch may begin once peers have finished launch (next - lag); 0: at once
    3   rows of the table of symmetric outputs' counters
    4   address of that table: int32 rows (first counter, buffers, counters of a buffer, threshold)
    5   rows of the table of the copy engine's flags (runtime/cuda/helper_kernels.py), if a kernel releases it
    6   address of that table
    7   address of the values of the flags, int32
    8   address of the word, int32, that the copy engine waits for: a kernel sets it to 1, and the copy engine to 0
        after its wait

and `epoch_pointer`, the state of launches, int64:

    0   number of the launch, without those that programs have counted since
    1   number of launches skipped before it (runtime/cuda/helper_kernels.py)
    2   number of programs counted
    3   number of launches announced to peers as finished, if programs are counted
"""

import triton
import triton.language as tl

from tilelink.device.assembly import WARP_COUNT
from tilelink.device.mode import BLOCK, INTERPRETED, WARP, isa, lanes

if INTERPRETED:
    from tilelink.device.interpreted import fence
    from tilelink.device.interpreted import wait_each as poll_each
else:
    from tilelink.device.compiled import fence, poll_each

ON, LEFT, LAG, EXITS, TABLE, FLAGS, FLAG_TABLE, FLAG_VALUES, READY = (tl.constexpr(n) for n in range(9))
NUMBER, SKIPPED, COUNTED, ANNOUNCED = (tl.constexpr(n) for n in range(4))


@triton.jit
def announce_entry(
    handshake_block, signal_table, rank, ENTERED: tl.constexpr, RANKS: tl.constexpr, BLOCK: tl.constexpr
):
    """Announce to all peers, from the first program, that this rank has entered its launch.

    ENTERED: the counter of rank 0. BLOCK: a power of two, at least RANKS.
    """
    if handshake_block is not None:
        pads = _pads(signal_table, RANKS, BLOCK)  # loaded while the condition below is evaluated
        if (tl.program_id(0) == 0) & (tl.load(handshake_block + ON) != 0):
            _tell_each(pads, ENTERED + rank, 1, RANKS, BLOCK)


@triton.jit
def launch_number(epoch_pointer, handshake_block, PROGRAMS: tl.constexpr):
    """Return the number (int64) of a launch whose programs, PROGRAMS in all, are counted as they end.

    This program has not been counted yet. So the quotient is that of the previous launches, however many of the other
    programs have been counted.
    """
    launch = tl.load(epoch_pointer + NUMBER)
    if handshake_block is not None:
        launch += tl.load(epoch_pointer + COUNTED, volatile=True) // PROGRAMS
    return launch


@triton.jit
def announce_finished(
    handshake_block,
    signal_table,
    epoch_pointer,
    launch,
    rank,
    FINISHED: tl.constexpr,
    RANKS: tl.constexpr,
    BLOCK: tl.constexpr,
    FIRST: tl.constexpr = False,
):
    """Announce to peers, from the last program, the launches that have finished before this one.

    FIRST: True for the first program: it runs whenever any program does.
    """
    if handshake_block is not None:  # noqa: SIM102
        if tl.program_id(0) == (0 if FIRST else tl.num_programs(0) - 1):
            _announce_finished(handshake_block, signal_table, epoch_pointer, launch, rank, FINISHED, RANKS, BLOCK)


@triton.jit
def begin_copies(
    handshake_block, signals, signal_table, epoch_pointer, debug_block, launch, rank,
    FINISHED: tl.constexpr, RANKS: tl.constexpr, BLOCK: tl.constexpr, STAGE: tl.constexpr, FIRST: tl.constexpr,
):  # fmt: skip
    """Announce to peers the launches that have finished before this one, and release the copy engine.

    One program does so. The previous launch has ended, because this launch began after it. FIRST: True for the first
    program, which runs whenever any program does. False for the last one, which has the fewest tiles, but runs only if
    all do.
    """
    if handshake_block is not None:  # noqa: SIM102
        if tl.program_id(0) == (0 if FIRST else tl.num_programs(0) - 1):
            _announce_finished(handshake_block, signal_table, epoch_pointer, launch, rank, FINISHED, RANKS, BLOCK)
            if tl.load(handshake_block + ON) != 0:
                count, lag = tl.load(handshake_block + FLAGS).to(tl.int32), tl.load(handshake_block + LAG)
                flags = tl.load(handshake_block + FLAG_TABLE).to(tl.pointer_type(tl.int32))
                values = tl.load(handshake_block + FLAG_VALUES).to(tl.pointer_type(tl.int32))
                set_flags(signals, flags, values, launch, count)
                if lag > 0:
                    peers = lanes(BLOCK)
                    wait_counters(
                        signals, FINISHED + peers, launch - lag + peers * 0, peers < RANKS, debug_block, STAGE
                    )
                tl.debug_barrier()
                if isa() == "amdgcn":
                    fence()
                ready = tl.load(handshake_block + READY).to(tl.pointer_type(tl.int32))
                tl.atomic_add(ready, 1, sem="release", scope="sys")


@triton.jit
def _announce_finished(
    handshake_block,
    signal_table,
    epoch_pointer,
    launch,
    rank,
    FINISHED: tl.constexpr,
    RANKS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    pads = _pads(signal_table, RANKS, BLOCK)
    announced = tl.load(epoch_pointer + ANNOUNCED)
    if (tl.load(handshake_block + ON) != 0) & (announced < launch - 1):
        _tell_each(pads, FINISHED + rank, (launch - 1 - announced).to(tl.int32), RANKS, BLOCK)
        tl.store(epoch_pointer + ANNOUNCED, launch - 1)


@triton.jit
def set_flags(signals, flags, values, launch, count):
    """Set the values of the copy engine's flags in a launch, by its number (int64).

    flags: int32 [count, 5], rows (step, count, buffers, counter, counters of a buffer), see
        runtime/cuda/helper_kernels.py.
    values: int32 [count]. The local counters that are named in the rows are set here.
    """
    # A pipeline would take shared memory from a product's.
    for start in tl.range(0, count, 128, num_stages=1):  # pyright: ignore[reportGeneralTypeIssues]
        at = start + lanes(128)
        there = at < count
        buffers = tl.load(flags + at * 5 + 2, mask=there, other=1)
        step = tl.load(flags + at * 5, mask=there, other=0)
        number = tl.load(flags + at * 5 + 1, mask=there, other=0)
        counter = tl.load(flags + at * 5 + 3, mask=there, other=-1)
        width = tl.load(flags + at * 5 + 4, mask=there, other=0)
        value = ((launch - 1) // buffers * step + number).to(tl.int32)
        tl.store(values + at, value, mask=there)
        tl.store(signals + counter + (launch - 1) % buffers * width, value, mask=counter >= 0)


@triton.jit
def count_program(handshake_block, epoch_pointer, scope: tl.constexpr = BLOCK):
    """Count a program that ends.

    Later launches see the count, and this one does not wait for it. scope: as for `wait`.
    """
    if handshake_block is not None:
        on = tl.load(handshake_block + ON)
        if scope == WARP:
            _count_warp(epoch_pointer + COUNTED, on)
        else:
            tl.debug_barrier()  # all threads have read the number of the launch
            tl.atomic_add(epoch_pointer + COUNTED, on, sem="relaxed", scope="gpu")


@triton.jit
def _count_warp(counter, on):
    tl.inline_asm_elementwise(WARP_COUNT, "=r,l,l", [counter, on], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def finish_launch(
    handshake_block, signals, signal_table, epoch_pointer, debug_block, rank, programs,
    FINISHED: tl.constexpr, RANKS: tl.constexpr, BLOCK: tl.constexpr, STAGE: tl.constexpr,
):  # fmt: skip
    """End the launch from the last program that ends, as the helper kernel does after other launches."""
    if handshake_block is not None:
        # All data that the last program may need is loaded while the programs are counted. If no launch ends here, the
        # count goes to a block that is not read.
        on, lag, exits, table = (
            tl.load(handshake_block + ON),
            tl.load(handshake_block + LAG),
            tl.load(handshake_block + EXITS),
            tl.load(handshake_block + TABLE),
        )
        pads, launch = _pads(signal_table, RANKS, BLOCK), tl.load(epoch_pointer + NUMBER)
        tl.debug_barrier()  # all threads of the program have stored before one of them counts it
        left = tl.atomic_add(handshake_block + LEFT, tl.cast(1, tl.int64), sem="acq_rel", scope="gpu")
        if (on != 0) & ((left + 1) % programs == 0):
            exit_table = table.to(tl.pointer_type(tl.int32))
            await_exits(signals, launch, exit_table, exits.to(tl.int32), debug_block, STAGE)
            _end(pads, signals, epoch_pointer, launch, lag, debug_block, rank, FINISHED, RANKS, BLOCK, STAGE)


@triton.jit
def _end(
    pads, signals, epoch_pointer, launch, lag, debug_block, rank,
    FINISHED: tl.constexpr, RANKS: tl.constexpr, BLOCK: tl.constexpr, STAGE: tl.constexpr,
):  # fmt: skip
    _tell_each(pads, FINISHED + rank, 1, RANKS, BLOCK)
    if lag > 0:
        peers = lanes(BLOCK)
        wait_counters(signals, FINISHED + peers, launch + 1 - lag + peers * 0, peers < RANKS, debug_block, STAGE)
    tl.store(epoch_pointer + NUMBER, launch + 1)


@triton.jit
def _pads(signal_table, RANKS: tl.constexpr, BLOCK: tl.constexpr):
    """Return the addresses of all peers' pads."""
    peers = lanes(BLOCK)
    return tl.load(signal_table + peers, mask=peers < RANKS, other=0).to(tl.pointer_type(tl.int32))


@triton.jit
def _tell_each(pads, counter, value, RANKS: tl.constexpr, BLOCK: tl.constexpr):
    """Add to a counter in the pads of all peers. There must be no earlier stores through descriptors."""
    peers = lanes(BLOCK)
    there = peers < RANKS
    tl.debug_barrier()
    if isa() == "amdgcn":
        fence()
    tl.atomic_add(pads + counter, value + peers * 0, mask=there, sem="release", scope="sys")


@triton.jit
def await_exits(signals, launch, exits, count, debug_block, STAGE: tl.constexpr):
    """Wait for peers' writes to symmetric outputs in a launch, by its number (int64).

    exits: int32 [count, 4], rows as above.
    """
    for start in range(0, count, 128):
        at = start + lanes(128)
        there = at < count
        buffers = tl.load(exits + at * 4 + 1, mask=there, other=1)
        first = tl.load(exits + at * 4, mask=there, other=0)
        counter = first + (launch - 1) % buffers * tl.load(exits + at * 4 + 2, mask=there, other=0)
        target = tl.load(exits + at * 4 + 3, mask=there, other=0) * ((launch - 1) // buffers + 1)
        wait_counters(signals, counter, target, there, debug_block, STAGE)


@triton.jit
def tell(signal_table, counter, value, mask, peers):
    """Add to a counter in the pads of all peers, after all earlier stores of this GPU.

    It is for a kernel that stores nothing through descriptors. Earlier kernels have ended.
    """
    pads = tl.load(signal_table + peers, mask=mask, other=0).to(tl.pointer_type(tl.int32))
    tl.debug_barrier()
    fence()
    tl.atomic_add(pads + counter, tl.cast(value, tl.int32) + peers * 0, mask=mask, sem="relaxed", scope="sys")


@triton.jit
def wait_counters(signals, counters, targets, mask, debug_block, STAGE: tl.constexpr):
    """Wait until all local counters have their targets (modulo 2**32), or the budget of the debug block is spent.

    With a budget each thread polls its own counters: warps that read a counter or the clock at different times must not
    differ in the barriers that they come to, and a maximum of all counters may contain some.
    """
    targets = tl.cast(targets, tl.int32)
    if debug_block is None:
        missing = _missing(signals, counters, targets, mask)
        while missing > 0:
            missing = _missing(signals, counters, targets, mask)
    else:
        poll_each(signals, counters, mask, targets, debug_block, STAGE, 0)
    fence()
    tl.debug_barrier()


@triton.jit
def _missing(signals, counters, targets, mask):
    """Return the largest number of notifies that a counter still lacks. Loops carry this scalar, not a tile."""
    seen = tl.load(signals + counters, mask=mask, other=0, volatile=True).to(tl.int32)
    return tl.max(tl.where(mask, targets - seen, 0))
