# pyright: basic, reportArgumentType=false
"""Pointers, signals and fences as Triton compiles them: PTX for NVIDIA, atomics for AMD.

All threads of a program call a function that signals or waits, and each call is one signal. A program is a block of
threads, or one warp of a block with several programs (scope WARP): there a barrier of the block would wait for the
others too.
"""

import triton
import triton.language as tl

from tilelink.device.assembly import (
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
    AMD_TRAP,
    BARRIER,
    BARRIER_TMA,
    FENCE,
    HOLD,
    POLL,
    POLL_ALL,
    POLL_ALL_TMA,
    POLL_DEADLINE,
    POLL_DEADLINE_TMA,
    POLL_EACH,
    POLL_EACH_DEADLINE,
    POLL_TMA,
    QUIET_TMA,
    TRAP,
    WARP_ADD_GPU,
    WARP_ADD_SYS,
    WARP_POLL,
    WARP_POLL_ALL,
    WARP_POLL_DEADLINE,
    WARP_PUBLISH,
)
from tilelink.device.mode import BLOCK, WARP, isa
from tilelink.device.tracing import NOTIFY, TILE, TRANSFER, WAIT, begin, end


@triton.jit
def symm_at(table, rank, like):
    """Return the address of `rank`'s copy of a symmetric tensor.

    table: pointer to int64[ranks], the base addresses, multiples of 16 bytes.
    like: a pointer whose element type the result takes.
    """
    base = tl.load(table + rank)
    return tl.multiple_of(base.to(like.dtype), 16)


@triton.jit
def wait(signals, channel, target, debug_block, stage: tl.constexpr, tile, trace=None, scope: tl.constexpr = BLOCK):
    """Wait until counter `channel` of the local pad has reached `target`, with acquire at system scope.

    Return an int32 zero that the compiler treats as unknown: pass it to `consume_token`.

    signals: pointer to int32, the local pad; on several nodes to int64, whose low half counts.
    target: integer, modulo 2**32 as the counters are.
    debug_block: None, or a pointer to the rank's debug block (see debug.py). With it a wait that exceeds its budget
        reports itself there and returns, and every later wait returns at once. The report names the block of threads
        as its program.
    stage, tile: for that report. trace: None, or the track to which its span is written (see tracing.py).
    scope: BLOCK, or WARP for a program that is one warp (sm_90).
    """
    begin(trace, WAIT, scope)
    aim = tl.cast(target, tl.int32)
    if isa() == "amdgcn":
        token = _wait_amd(signals + channel, aim, channel, debug_block, stage, tile)
    elif debug_block is None:
        if scope == WARP:
            token = _poll(WARP_POLL, signals + channel, aim)
        elif isa() == "ptx90":
            token = _poll(POLL_TMA, signals + channel, aim)
        else:
            token = _poll(POLL, signals + channel, aim)
    elif scope == WARP:
        token = _poll_with_deadline(WARP_POLL_DEADLINE, signals + channel, aim, channel, debug_block, stage, tile)
    elif isa() == "ptx90":
        token = _poll_with_deadline(POLL_DEADLINE_TMA, signals + channel, aim, channel, debug_block, stage, tile)
    else:
        token = _poll_with_deadline(POLL_DEADLINE, signals + channel, aim, channel, debug_block, stage, tile)
    end(trace, WAIT, stage, tile, channel, 0, scope)
    # Still zero and unknown, but now of known divisibility: loads after it remain vector loads.
    return token * 1024


@triton.jit
def wait_all(
    signals, first, count: tl.constexpr, target, debug_block, stage: tl.constexpr, tile, step: tl.constexpr = 1,
    scope: tl.constexpr = BLOCK,
):  # fmt: skip
    """Wait until `count` counters, every `step`-th from `first` on, have all reached `target`; otherwise as `wait`."""
    token = tl.cast(0, tl.int32)  # Gluon has no `full` without a layout
    words: tl.constexpr = step * (signals.dtype.element_ty.primitive_bitwidth // 32)  # counters may have 64 bits
    if isa() == "amdgcn" or debug_block is not None:
        for number in range(0, count):
            token += wait(signals, first + number * step, target, debug_block, stage, tile, scope=scope)
    elif scope == WARP:
        token = _poll_all(WARP_POLL_ALL, signals + first, tl.cast(target, tl.int32), count, words)
    elif isa() == "ptx90":
        token = _poll_all(POLL_ALL_TMA, signals + first, tl.cast(target, tl.int32), count, words)
    else:
        token = _poll_all(POLL_ALL, signals + first, tl.cast(target, tl.int32), count, words)
    return token


@triton.jit
def wait_each(signals, channels, mask, target, debug_block, stage: tl.constexpr, tile):
    """Wait until each counter of `channels` for which `mask` holds has reached `target`; otherwise as `wait`.

    channels: vector of integers. mask: of its shape. target: one for all of them, or one for each.

    Each thread polls the counters of its elements, so that all are waited for in parallel, and a barrier follows.
    No thread branches on a counter that it has read: two warps that have read it at different times would go to
    different barriers.
    """
    token = poll_each(signals, channels, mask, target, debug_block, stage, tile)
    if isa() == "ptx90":
        token = tl.inline_asm_elementwise(BARRIER_TMA, "=r", [], dtype=tl.int32, is_pure=False, pack=1)
    elif isa() == "ptx":
        token = tl.inline_asm_elementwise(BARRIER, "=r", [], dtype=tl.int32, is_pure=False, pack=1)
    return token * 1024


@triton.jit
def poll_each(signals, channels, mask, target, debug_block, stage: tl.constexpr, tile):
    """Wait as `wait_each`, each thread for its own elements, without the barrier that must follow.

    The result is a token for AMD alone, where one counter after the other is waited for.
    """
    pointers = signals + tl.where(mask, channels, 0)
    aim = tl.where(mask, tl.cast(target, tl.int32), 0)
    token = tl.cast(0, tl.int32)
    if isa() == "amdgcn":
        token = _wait_each_amd(signals, channels, mask, aim, debug_block, stage, tile)
    else:
        chosen = tl.where(mask, 1, 0)
        if debug_block is None:
            arguments = [pointers, aim, chosen]
            tl.inline_asm_elementwise(POLL_EACH, "=r,l,r,r", arguments, dtype=tl.int32, is_pure=False, pack=1)
        else:
            where = tl.where(mask, channels, 0).to(tl.int32)
            arguments = [pointers, aim, debug_block.to(tl.int64), stage, tl.cast(tile, tl.int32), where, chosen]
            tl.inline_asm_elementwise(
                POLL_EACH_DEADLINE, "=r,l,r,l,r,r,r,r", arguments, dtype=tl.int32, is_pure=False, pack=1
            )
    return token


@triton.jit
def _wait_each_amd(signals, channels, mask, aim, debug_block, stage: tl.constexpr, tile):
    # One after the other, each by a scalar atomic, whose result all threads share.
    token = tl.cast(0, tl.int32)
    places = tl.arange(0, channels.numel)
    for number in range(0, channels.numel):
        here = (places == number) & mask
        if tl.max(tl.where(here, 1, 0), axis=0) != 0:
            channel = tl.max(tl.where(here, channels, 0), axis=0)
            wanted = tl.max(tl.where(here, aim, -2147483648), axis=0)
            token += _wait_amd(signals + channel, wanted, channel, debug_block, stage, tile)
    return token


@triton.jit
def _poll(TEXT: tl.constexpr, pointer, target):
    return tl.inline_asm_elementwise(TEXT, "=r,l,r", [pointer, target], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def _poll_all(TEXT: tl.constexpr, pointer, target, count: tl.constexpr, step: tl.constexpr):
    arguments = [pointer, target, count, step]
    token = tl.inline_asm_elementwise(TEXT, "=r,l,r,r,r", arguments, dtype=tl.int32, is_pure=False, pack=1)
    return token * 1024


@triton.jit
def _poll_with_deadline(TEXT: tl.constexpr, pointer, target, channel, debug_block, stage: tl.constexpr, tile):
    # Inline assembly takes pointers of one type only.
    arguments = [pointer, target, debug_block.to(tl.int64), stage, tl.cast(tile, tl.int32), tl.cast(channel, tl.int32)]
    return tl.inline_asm_elementwise(TEXT, "=r,l,r,l,r,r,r", arguments, dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def _wait_amd(pointer, target, channel, debug_block, stage: tl.constexpr, tile):
    # Triton performs a scalar atomic on one thread and hands its result to all: no gate is needed.
    seen = tl.atomic_add(pointer, 0, sem="acquire", scope="sys")
    if debug_block is None:
        while seen - target < 0:
            seen = tl.atomic_add(pointer, 0, sem="acquire", scope="sys")
    else:
        # Waves read their clocks at different times, and must not differ in the barriers of atomics that they come to:
        # the wave whose atomic it is decides for all that it is late, and marks the block for this program.
        start = _clock_amd()
        budget = tl.load(debug_block)
        mine = tl.cast(tl.program_id(0), tl.int64) + 1
        before = tl.atomic_add(debug_block + 1, 0, sem="relaxed", scope="sys")
        tripped = before
        while (seen - target < 0) & (tripped == 0):
            seen = tl.atomic_add(pointer, 0, sem="acquire", scope="sys")
            mark = tl.where((_clock_amd() - start) * AMD_CLOCK_NS >= budget, mine, 0)
            tl.atomic_cas(debug_block + 1, mine * 0, mark, sem="relaxed", scope="sys")
            tripped = tl.atomic_add(debug_block + 1, 0, sem="relaxed", scope="sys")
        if (seen - target < 0) & (before == 0) & (tripped == mine):
            _report_amd(debug_block, stage, tile, channel, seen, target)
    tl.debug_barrier()
    return tl.inline_asm_elementwise(AMD_TOKEN, "=s,v", [seen], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def _report_amd(debug_block, stage: tl.constexpr, tile, channel, seen, target):
    tl.store(debug_block + 2, stage)
    tl.store(debug_block + 3, tile)
    tl.store(debug_block + 4, channel)
    tl.store(debug_block + 5, seen)
    tl.store(debug_block + 6, target)
    tl.store(debug_block + 7, tl.program_id(0))


@triton.jit
def _clock_amd():
    return tl.inline_asm_elementwise(AMD_CLOCK, "=s", [], dtype=tl.int64, is_pure=False, pack=1)


@triton.jit
def consume_token(value, token):
    """Return `value` (an integer or pointer, or a tile of them), made to depend on a wait.

    Pass the base of the guarded load's address: a coordinate, an offset, a pointer. Inside a software-pipelined loop
    nothing else keeps the load after the wait.
    """
    return value + token


@triton.jit
def opaque(value):
    """Return `value`, an integer of 32 bits, evaluated at this point, for a later tile of a program.

    When Triton merges two loops into one, it does not check where a number that the outer loop carries was assigned. It
    does not move this.
    """
    value = tl.cast(value, tl.int32)
    if isa() == "amdgcn":
        held = value
    else:
        held = tl.inline_asm_elementwise(HOLD, "=r,r", [value], dtype=tl.int32, is_pure=False, pack=1)
    return held


@triton.jit
def notify(
    pad, channel, rank, debug_block, stage: tl.constexpr, tile, remote: tl.constexpr, tma: tl.constexpr = True,
    trace=None, scope: tl.constexpr = BLOCK,
):  # fmt: skip
    """Add 1 to counter `channel` of the pad of `rank`, after all earlier stores of the program, with release.

    pad: pointer to int32, that rank's pad (`symm_at(signal_table, rank, signals)`, or the local one).
    remote: True if another GPU reads the data or the counter; otherwise the release has the scope of this GPU.
    tma: True if the program may have stored through descriptors. False saves the wait for those stores (before sm_90
        there is none).
    trace, scope: as for `wait`. A program of one warp always waits for its stores through descriptors.

    It may be inside a software-pipelined loop, which stays pipelined: there it publishes stores before that loop.
    """
    begin(trace, NOTIFY, scope)
    if scope == WARP:
        _signal_ptx(pad + channel, 1, WARP_ADD_SYS if remote else WARP_ADD_GPU)
    else:
        signal_add(pad + channel, 1, remote, tma)
    end(trace, NOTIFY, stage, tile, rank, channel, scope)


@triton.jit
def notify_each(signals, table, ranks, channels, mask, debug_block, stage: tl.constexpr, tile):
    """Notify several counters at once: counter `channels` in the pad of each of `ranks` for which `mask` holds.

    table: pointer to int64[ranks], the addresses of all pads.
    ranks, channels: vectors of at most 32 integers with the shape of `mask`, or scalars.

    Otherwise as `notify`, remote and without tma. Each thread performs its own release; all are in flight together.
    """
    none = mask.to(tl.int32) * 0
    pads = tl.load(table + (ranks + none), mask=mask, other=0).to(signals.dtype)
    if isa() == "amdgcn":
        _release_amd(True)
    else:
        tl.inline_asm_elementwise(BARRIER, "=r", [], dtype=tl.int32, is_pure=False, pack=1)
    tl.atomic_add(pads + (channels + none), none + 1, mask=mask, sem="release", scope="sys")


@triton.jit
def signal_add(pointer, value, remote: tl.constexpr, tma: tl.constexpr = True):
    """Add `value` to the int32 at `pointer` once, with release (arguments as for `notify`)."""
    value = tl.cast(value, tl.int32)
    if isa() == "amdgcn":
        _release_amd(remote)
        tl.atomic_add(pointer, value, sem="release", scope="sys" if remote else "gpu")
    elif isa() == "ptx90" and tma:
        _signal_ptx(pointer, value, ADD_SYS_TMA if remote else ADD_GPU_TMA)
    else:
        _signal_ptx(pointer, value, ADD_SYS if remote else ADD_GPU)


@triton.jit
def _signal_ptx(pointer, value, TEXT: tl.constexpr):
    tl.inline_asm_elementwise(TEXT, "=r,l,r", [pointer, value], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def _release_amd(remote: tl.constexpr):
    if remote:
        tl.inline_asm_elementwise(AMD_RELEASE_SYS, "=s", [], dtype=tl.int32, is_pure=False, pack=1)
    else:
        tl.inline_asm_elementwise(AMD_RELEASE_GPU, "=s", [], dtype=tl.int32, is_pure=False, pack=1)
    tl.debug_barrier()


@triton.jit
def fence():
    """Order each thread's earlier stores before its later stores, for every GPU that observes them."""
    if isa() == "amdgcn":
        tl.inline_asm_elementwise(AMD_FENCE, "=s", [], dtype=tl.int32, is_pure=False, pack=1)
    else:
        tl.inline_asm_elementwise(FENCE, "=r", [], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def trap():
    """End all work of this process on its GPU with an error."""
    if isa() == "amdgcn":
        tl.inline_asm_elementwise(AMD_TRAP, "=s", [], dtype=tl.int32, is_pure=False, pack=1)
    else:
        tl.inline_asm_elementwise(TRAP, "=r", [], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def quiet():
    """Wait until every store of the program, also through descriptors, is complete and visible to every GPU."""
    if isa() == "amdgcn":
        tl.inline_asm_elementwise(AMD_FENCE, "=s", [], dtype=tl.int32, is_pure=False, pack=1)
    elif isa() == "ptx90":
        tl.inline_asm_elementwise(QUIET_TMA, "=r", [], dtype=tl.int32, is_pure=False, pack=1)
    else:
        tl.inline_asm_elementwise(FENCE, "=r", [], dtype=tl.int32, is_pure=False, pack=1)
    tl.debug_barrier()


@triton.jit
def publish(scope: tl.constexpr = BLOCK):
    """Execute a barrier of the program's threads: later loads of all threads see earlier stores, also by descriptors.

    A program of one warp also calls it at its end: it waits for the program's stores through descriptors.
    """
    if isa() == "amdgcn":
        _release_amd(False)
    elif scope == WARP:
        tl.inline_asm_elementwise(WARP_PUBLISH, "=r", [], dtype=tl.int32, is_pure=False, pack=1)
    elif isa() == "ptx90":
        tl.inline_asm_elementwise(BARRIER_TMA, "=r", [], dtype=tl.int32, is_pure=False, pack=1)
    else:
        tl.inline_asm_elementwise(BARRIER, "=r", [], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def tile_begin(debug_block, stage: tl.constexpr, tile, trace=None, scope: tl.constexpr = BLOCK):
    """Mark the start of a tile: an event when interpreted, and a span in traced programs."""
    begin(trace, TILE, scope)


@triton.jit
def tile_end(stage: tl.constexpr, tile, trace, scope: tl.constexpr = BLOCK):
    """Mark the end of a tile, in traced programs."""
    end(trace, TILE, stage, tile, 0, 0, scope)


@triton.jit
def transfer_begin(trace, scope: tl.constexpr = BLOCK):
    """Mark the start of a transfer before its first load, in traced programs."""
    begin(trace, TRANSFER, scope)


@triton.jit
def transfer(
    debug_block, stage: tl.constexpr, tile, tensor: tl.constexpr, rank, offset, trace=None, scope: tl.constexpr = BLOCK
):  # fmt: skip
    """Mark a transfer of a tensor's data to or from `rank`, at element `offset` of its copy; as tile_begin.

    It follows the last store. The stores need not have arrived; a notify waits for that.
    """
    end(trace, TRANSFER, stage, tile, rank, tensor, scope)
