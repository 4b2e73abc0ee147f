# pyright: basic, reportArgumentType=false
"""Pointers, signals and fences as Triton compiles them: PTX for NVIDIA, atomics for AMD.

The functions that tell one program to signal or wait are called by all of its threads, and each is one signal.
"""

import triton
import triton.language as tl

from tilelink.runtime.device.assembly import (
    ADD_GPU,
    ADD_GPU_TMA,
    ADD_SYS,
    ADD_SYS_TMA,
    AMD_CLOCK,
    AMD_CLOCK_NS,
    AMD_FENCE,
    AMD_RELEASE_GPU,
    AMD_RELEASE_SYS,
    AMD_TOKEN,
    BARRIER,
    BARRIER_TMA,
    FENCE,
    HOLD,
    POLL,
    POLL_ALL,
    POLL_ALL_TMA,
    POLL_DEADLINE,
    POLL_DEADLINE_TMA,
    POLL_TMA,
    QUIET_TMA,
    READ,
    SET_GPU,
    SET_GPU_TMA,
    SET_SYS,
    SET_SYS_TMA,
)
from tilelink.runtime.device.mode import isa


@triton.jit
def symm_at(table, rank, like):
    """Where `rank`'s copy of a symmetric tensor begins.

    table: pointer to int64[ranks], the base addresses; they are multiples of 16 bytes.
    like: a pointer whose element type the result takes.
    """
    base = tl.load(table + rank)
    return tl.multiple_of(base.to(like.dtype), 16)


@triton.jit
def wait(signals, channel, target, debug, STAGE: tl.constexpr, t):
    """Waits until counter `channel` of the own pad has reached `target`, with acquire at system scope.

    signals: pointer to int32, the own pad. target: integer, taken modulo 2**32 as the counters are.
    debug: None, or a pointer to the rank's debug block (see debug.py): then a wait that outlives the block's budget
    writes itself there and returns, and so does every later wait at once. (A kernel's own parameter cannot be named
    debug: Triton's launcher keeps that name for itself.)
    STAGE, t: stage and tile, for that report.
    Returns an int32 zero that the compiler takes for unknown: pass it to `consume_token`.
    """
    if isa() == "amdgcn":
        token = _wait_amd(signals + channel, tl.cast(target, tl.int32), channel, debug, STAGE, t)
    elif debug is None:
        token = _wait_ptx(signals + channel, tl.cast(target, tl.int32))
    else:
        token = _wait_ptx_deadline(signals + channel, tl.cast(target, tl.int32), channel, debug, STAGE, t)
    # Still zero and unknown, but now of known divisibility: loads behind it remain vector loads.
    return token * 1024


@triton.jit
def wait_all(signals, first, COUNT: tl.constexpr, target, debug, STAGE: tl.constexpr, t, STEP: tl.constexpr = 1):
    """Waits until COUNT counters, every STEP-th from `first` on, have all reached `target`; else as `wait`."""
    if isa() == "amdgcn":
        token = _wait_each(signals, first, COUNT, target, debug, STAGE, t, STEP)
    elif debug is None:
        token = _wait_all_ptx(signals + first, tl.cast(target, tl.int32), COUNT, STEP) * 1024
    else:
        token = _wait_each(signals, first, COUNT, target, debug, STAGE, t, STEP)
    return token


@triton.jit
def _wait_each(signals, first, COUNT: tl.constexpr, target, debug, STAGE: tl.constexpr, t, STEP: tl.constexpr):
    token = tl.full((), 0, tl.int32)
    for number in range(0, COUNT):
        token += wait(signals, first + number * STEP, target, debug, STAGE, t)
    return token


@triton.jit
def _wait_all_ptx(pointer, target, COUNT: tl.constexpr, STEP: tl.constexpr):
    arguments = [pointer, target, COUNT, STEP]
    if isa() == "ptx90":
        token = tl.inline_asm_elementwise(
            POLL_ALL_TMA, "=r,l,r,r,r", arguments, dtype=tl.int32, is_pure=False, pack=1
        )  # fmt: skip
    else:
        token = tl.inline_asm_elementwise(POLL_ALL, "=r,l,r,r,r", arguments, dtype=tl.int32, is_pure=False, pack=1)
    return token


@triton.jit
def _wait_ptx(pointer, target):
    if isa() == "ptx90":
        token = tl.inline_asm_elementwise(POLL_TMA, "=r,l,r", [pointer, target], dtype=tl.int32, is_pure=False, pack=1)
    else:
        token = tl.inline_asm_elementwise(POLL, "=r,l,r", [pointer, target], dtype=tl.int32, is_pure=False, pack=1)
    return token


@triton.jit
def _wait_ptx_deadline(pointer, target, channel, debug, STAGE: tl.constexpr, t):
    # Inline assembly takes pointers of one type only.
    block = debug.to(tl.int64)
    tile = tl.cast(t, tl.int32)
    channel = tl.cast(channel, tl.int32)
    if isa() == "ptx90":
        token = tl.inline_asm_elementwise(
            POLL_DEADLINE_TMA,
            "=r,l,r,l,r,r,r",
            [pointer, target, block, STAGE, tile, channel],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )
    else:
        token = tl.inline_asm_elementwise(
            POLL_DEADLINE,
            "=r,l,r,l,r,r,r",
            [pointer, target, block, STAGE, tile, channel],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )
    return token


@triton.jit
def _wait_amd(pointer, target, channel, debug, STAGE: tl.constexpr, t):
    # Triton performs a scalar atomic on one thread and hands its result to all: no gate is needed.
    seen = tl.atomic_add(pointer, 0, sem="acquire", scope="sys")
    if debug is None:
        while seen - target < 0:
            seen = tl.atomic_add(pointer, 0, sem="acquire", scope="sys")
    else:
        start = _clock_amd()
        budget = tl.load(debug)
        late = tl.atomic_add(debug + 1, 0, sem="relaxed", scope="sys") != 0
        while (seen - target < 0) & (late == 0):
            seen = tl.atomic_add(pointer, 0, sem="acquire", scope="sys")
            late = (_clock_amd() - start) * AMD_CLOCK_NS >= budget
            late = late | (tl.atomic_add(debug + 1, 0, sem="relaxed", scope="sys") != 0)
        if seen - target < 0:
            _trip(debug, STAGE, t, channel, seen, target)
    tl.debug_barrier()
    return tl.inline_asm_elementwise(AMD_TOKEN, "=s,v", [seen], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def _trip(debug, STAGE: tl.constexpr, t, channel, seen, target):
    one = tl.full((), 1, tl.int64)
    if tl.atomic_cas(debug + 1, one - 1, one, sem="relaxed", scope="sys") == 0:
        tl.store(debug + 2, STAGE)
        tl.store(debug + 3, t)
        tl.store(debug + 4, channel)
        tl.store(debug + 5, seen)
        tl.store(debug + 6, target)
        tl.store(debug + 7, tl.program_id(0))


@triton.jit
def _clock_amd():
    return tl.inline_asm_elementwise(AMD_CLOCK, "=s", [], dtype=tl.int64, is_pure=False, pack=1)


@triton.jit
def consume_token(value, token):
    """`value` (an integer or pointer, or a tile of them), made to depend on a wait.

    Pass what the guarded load takes its address from: a coordinate, an offset, a pointer. Inside a software-pipelined
    loop nothing else keeps the load after the wait.
    """
    return value + token


@triton.jit
def hold(value):
    """`value`, an integer of 32 bits, as it is where this stands, for a later tile of a program.

    Triton makes one loop of two without asking when a number that is carried by the outer one was assigned; it does not
    move this.
    """
    value = tl.cast(value, tl.int32)
    if isa() == "amdgcn":
        held = value
    else:
        held = tl.inline_asm_elementwise(HOLD, "=r,r", [value], dtype=tl.int32, is_pure=False, pack=1)
    return held


@triton.jit
def notify(
    pad,
    channel,
    rank,
    debug,
    STAGE: tl.constexpr,
    t,
    REMOTE: tl.constexpr,
    TMA: tl.constexpr = True,
):
    """Adds one to counter `channel` of the pad of `rank`, after all that the program has stored so far.

    pad: pointer to int32, that rank's pad (`symm_at(signal_table, rank, signals)`, or the own one).
    REMOTE: another GPU reads the data or the counter; else the release reaches this GPU alone.
    TMA: the program may have stored through descriptors; False saves the wait for those (before sm_90 it is nothing).
    It may stand in a software-pipelined loop, which stays pipelined: there it publishes stores before that loop.
    """
    signal_add(pad + channel, 1, REMOTE, TMA)


@triton.jit
def notify_each(signals, table, ranks, channels, mask, debug, STAGE: tl.constexpr, t):
    """A notify of several counters at once: of counter `channels` in the pad of each of `ranks` where `mask` holds.

    table: pointer to int64[ranks], the addresses of all pads. ranks, channels: vectors of at most 32 integers as `mask`
    is, or numbers. Else as `notify`, with REMOTE and without TMA. Each release is a thread's own; all are under way
    together.
    """
    none = mask.to(tl.int32) * 0
    pads = tl.load(table + (ranks + none), mask=mask, other=0).to(signals.dtype)
    if isa() == "amdgcn":
        _release_amd(True)
    else:
        tl.inline_asm_elementwise(BARRIER, "=r", [], dtype=tl.int32, is_pure=False, pack=1)
    tl.atomic_add(pads + (channels + none), none + 1, mask=mask, sem="release", scope="sys")


@triton.jit
def signal_add(pointer, value, REMOTE: tl.constexpr, TMA: tl.constexpr = True):
    """Adds `value` to the int32 at `pointer` once, with release (arguments as for `notify`)."""
    value = tl.cast(value, tl.int32)
    if isa() == "amdgcn":
        _release_amd(REMOTE)
        tl.atomic_add(pointer, value, sem="release", scope="sys" if REMOTE else "gpu")
    elif isa() == "ptx90" and TMA:
        if REMOTE:
            _signal_ptx(pointer, value, ADD_SYS_TMA)
        else:
            _signal_ptx(pointer, value, ADD_GPU_TMA)
    elif REMOTE:
        _signal_ptx(pointer, value, ADD_SYS)
    else:
        _signal_ptx(pointer, value, ADD_GPU)


@triton.jit
def signal_set(pointer, value, REMOTE: tl.constexpr, TMA: tl.constexpr = True):
    """Writes `value` to the int32 at `pointer` once, with release (arguments as for `notify`)."""
    value = tl.cast(value, tl.int32)
    if isa() == "amdgcn":
        _release_amd(REMOTE)
        tl.atomic_xchg(pointer, value, sem="release", scope="sys" if REMOTE else "gpu")
    elif isa() == "ptx90" and TMA:
        if REMOTE:
            _signal_ptx(pointer, value, SET_SYS_TMA)
        else:
            _signal_ptx(pointer, value, SET_GPU_TMA)
    elif REMOTE:
        _signal_ptx(pointer, value, SET_SYS)
    else:
        _signal_ptx(pointer, value, SET_GPU)


@triton.jit
def _signal_ptx(pointer, value, TEXT: tl.constexpr):
    tl.inline_asm_elementwise(TEXT, "=r,l,r", [pointer, value], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def _release_amd(REMOTE: tl.constexpr):
    if REMOTE:
        tl.inline_asm_elementwise(AMD_RELEASE_SYS, "=s", [], dtype=tl.int32, is_pure=False, pack=1)
    else:
        tl.inline_asm_elementwise(AMD_RELEASE_GPU, "=s", [], dtype=tl.int32, is_pure=False, pack=1)
    tl.debug_barrier()


@triton.jit
def signal_read(pointer):
    """The int32 at `pointer` as it is now, with acquire at system scope (for the calling threads alone)."""
    if isa() == "amdgcn":
        seen = tl.atomic_add(pointer, 0, sem="acquire", scope="sys")
    else:
        seen = tl.inline_asm_elementwise(READ, "=r,l", [pointer], dtype=tl.int32, is_pure=False, pack=1)
    return seen


@triton.jit
def fence():
    """Orders what each thread stored before it against what it stores after it, for every GPU that looks."""
    if isa() == "amdgcn":
        tl.inline_asm_elementwise(AMD_FENCE, "=s", [], dtype=tl.int32, is_pure=False, pack=1)
    else:
        tl.inline_asm_elementwise(FENCE, "=r", [], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def quiet():
    """Waits until every store of the program, through descriptors too, is written and visible to every GPU."""
    if isa() == "amdgcn":
        tl.inline_asm_elementwise(AMD_FENCE, "=s", [], dtype=tl.int32, is_pure=False, pack=1)
    elif isa() == "ptx90":
        tl.inline_asm_elementwise(QUIET_TMA, "=r", [], dtype=tl.int32, is_pure=False, pack=1)
    else:
        tl.inline_asm_elementwise(FENCE, "=r", [], dtype=tl.int32, is_pure=False, pack=1)
    tl.debug_barrier()


@triton.jit
def publish():
    """A barrier of the program's threads: what they stored before it all of them load behind it, descriptors too."""
    if isa() == "amdgcn":
        _release_amd(False)
    elif isa() == "ptx90":
        tl.inline_asm_elementwise(BARRIER_TMA, "=r", [], dtype=tl.int32, is_pure=False, pack=1)
    else:
        tl.inline_asm_elementwise(BARRIER, "=r", [], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def tile_begin(debug, STAGE: tl.constexpr, t):
    """Marks the begin of tile `t`; a trace event when interpreted, nothing when compiled."""
    pass


@triton.jit
def transfer(debug, STAGE: tl.constexpr, t, TENSOR: tl.constexpr, rank, offset):
    """Marks that tile `t` moves data of a tensor to or from `rank`, at element `offset` of its copy; as tile_begin."""
    pass
