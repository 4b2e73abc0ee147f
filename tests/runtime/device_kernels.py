# pyright: basic, reportArgumentType=false
"""Kernels that the device library's tests compile or interpret.

The debug block is not called `debug`, because Triton's launcher keeps that name for itself.
"""

import triton
import triton.language as tl

from tilelink import device as dl


@triton.jit
def push(
    x, y, table, signal_table, signals, epoch, debug_block, rank, ranks, n,
    BLOCK: tl.constexpr, REMOTE: tl.constexpr, TMA: tl.constexpr,
):  # fmt: skip
    """Waits for counter 3, pushes a block of x into the next rank's y and notifies that rank's counter 4."""
    dl.tile_begin(debug_block, 7, 5)
    token = dl.wait(signals, 3, 2 * tl.load(epoch), debug_block, 7, 5)
    lane = tl.arange(0, BLOCK)
    value = tl.load(x + dl.consume_token(lane, token))
    peer = dl.mod(rank + 1, ranks)
    there = dl.symm_at(table, peer, y)
    dl.transfer(debug_block, 7, 5, 1, peer, n)
    tl.store(there + lane, value)
    dl.notify(dl.symm_at(signal_table, peer, signals), 4, peer, debug_block, 7, 5, REMOTE, TMA)


@triton.jit
def gemm_descriptors(
    a_desc, b_desc, c_desc, signals, epoch, debug_block, tiles, n_tiles, k_tiles,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, EVERY: tl.constexpr, DEFERRED: tl.constexpr,
):  # fmt: skip
    """A persistent GEMM through descriptors: waits every EVERY-th step of its K loop, notifies after each tile, or
    (DEFERRED) inside the K loop of the next."""
    first = tl.program_id(0)
    for t in range(first, tiles, tl.num_programs(0)):
        m = t // n_tiles
        n = t % n_tiles
        acc = tl.zeros((BM, BN), tl.float32)
        for k in range(k_tiles):
            token = 0
            if k % EVERY == 0:
                token = dl.wait(signals, k // EVERY, epoch, debug_block, 0, t)
            if DEFERRED:  # noqa: SIM102
                if (k == 2) & (t > first):
                    dl.notify(signals, 100 + t - tl.num_programs(0), 0, debug_block, 0, t, False)
            a = a_desc.load([dl.consume_token(m * BM, token), k * BK])
            b = b_desc.load([n * BN, k * BK])
            acc = dl.dot(a, b.T, acc)
        c_desc.store([m * BM, n * BN], dl.cast(acc, tl.bfloat16))
        if not DEFERRED:
            dl.notify(signals, 100 + t, 0, debug_block, 0, t, False)


@triton.jit
def gemm_pointers(
    a, b, c, signals, epoch, debug_block, k_tiles,
    K: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, EVERY: tl.constexpr,
):  # fmt: skip
    """One tile of a GEMM through pointers, with waits in its K loop."""
    rows = tl.arange(0, BM)[:, None] * K
    columns = tl.arange(0, BN)[:, None] * K
    lane = tl.arange(0, BK)[None, :]
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(k_tiles):
        token = 0
        if k % EVERY == 0:
            token = dl.wait(signals, k // EVERY, epoch, debug_block, 0, 0)
        start = dl.consume_token(k * BK, token)
        acc = dl.dot(tl.load(a + rows + start + lane), tl.load(b + columns + k * BK + lane).T, acc)
    where = tl.arange(0, BM)[:, None] * BN + tl.arange(0, BN)[None, :]
    tl.store(c + where, dl.cast(acc, tl.bfloat16))
    dl.notify(signals, 100, 0, debug_block, 0, 0, False)


@triton.jit
def low_level(signals, out):
    dl.signal_add(signals, 33, True)
    dl.signal_add(signals, 2, False)
    dl.fence()
    dl.quiet()
    tl.store(out, tl.load(signals))


@triton.jit
def await_one(signals, channel, target, debug_block, t):
    dl.wait(signals, channel, target, debug_block, 2, t)


@triton.jit
def await_all(signals, out, first, target, debug_block, COUNT: tl.constexpr, STEP: tl.constexpr = 1):
    token = dl.wait_all(signals, first, COUNT, target, debug_block, 2, 0, STEP)
    tl.store(out, dl.consume_token(tl.load(out) + 1, token))


@triton.jit
def await_each(signals, out, first, target, debug_block, COUNT: tl.constexpr):
    """Waits for COUNT counters, of which every third one is left out, then adds 1 to a number."""
    places = tl.arange(0, COUNT)
    token = dl.wait_each(signals, first + places, places % 3 != 2, target, debug_block, 2, 0)
    tl.store(out, dl.consume_token(tl.load(out) + 1, token))


@triton.jit
def tell_each(x, signals, signal_table, debug_block, first, skipped, COUNT: tl.constexpr, BLOCK: tl.constexpr):
    """Stores a tile, then adds to a counter of each of COUNT ranks but one: to counter 2 of rank 0, 3 of rank 1, ...

    A part of the condition is the same for all of them.
    """
    lane = tl.arange(0, 1024)
    tl.store(x + lane, lane + first)
    rank = tl.arange(0, BLOCK)
    chosen = (rank < COUNT) & (rank != skipped) & (first > 0)
    dl.notify_each(signals, signal_table, rank, first + rank, chosen, debug_block, 7, 5)


@triton.jit
def tell_one(x, signals, signal_table, debug_block, rank, first):
    """The same to one rank and counter, which are no vectors."""
    lane = tl.arange(0, 1024)
    tl.store(x + lane, lane + first)
    dl.notify_each(signals, signal_table, rank, first, tl.arange(0, 4) < 2, debug_block, 7, 5)


@triton.jit
def launch(
    x, handshake_block, signals, signal_table, epoch_pointer, debug_block, rank,
    ENTERED: tl.constexpr, FINISHED: tl.constexpr, RANKS: tl.constexpr, BLOCK: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """A launch that begins and ends by itself: each program stores N elements, the number of the launch."""
    epoch = tl.load(epoch_pointer).to(tl.int32)
    dl.announce_entry(handshake_block, signal_table, rank, ENTERED, RANKS, BLOCK)
    tl.store(x + tl.program_id(0) * N + tl.arange(0, N), epoch + tl.zeros((N,), tl.int32))
    programs = tl.num_programs(0)
    dl.finish_launch(
        handshake_block, signals, signal_table, epoch_pointer, debug_block, rank, programs, FINISHED, RANKS, BLOCK, 3
    )


@triton.jit
def counted_launch(
    x, handshake_block, signal_table, epoch_pointer, rank,
    ENTERED: tl.constexpr, FINISHED: tl.constexpr, RANKS: tl.constexpr, BLOCK: tl.constexpr, PROGRAMS: tl.constexpr,
    N: tl.constexpr,
):  # fmt: skip
    """The same for a launch whose programs are counted."""
    launch = dl.launch_number(epoch_pointer, handshake_block, PROGRAMS)
    epoch = launch.to(tl.int32)
    dl.announce_entry(handshake_block, signal_table, rank, ENTERED, RANKS, BLOCK)
    dl.announce_finished(handshake_block, signal_table, epoch_pointer, launch, rank, FINISHED, RANKS, BLOCK)
    tl.store(x + tl.program_id(0) * N + tl.arange(0, N), epoch + tl.zeros((N,), tl.int32))
    dl.count_program(handshake_block, epoch_pointer)


@triton.jit
def copying_launch(
    x, handshake_block, signals, signal_table, epoch_pointer, debug_block, rank,
    FINISHED: tl.constexpr, RANKS: tl.constexpr, BLOCK: tl.constexpr, PROGRAMS: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """The same for one that lets a copy engine begin."""
    launch = dl.launch_number(epoch_pointer, handshake_block, PROGRAMS)
    dl.begin_copies(
        handshake_block,
        signals,
        signal_table,
        epoch_pointer,
        debug_block,
        launch,
        rank,
        FINISHED,
        RANKS,
        BLOCK,
        3,
        N > 64,
    )
    tl.store(x + tl.program_id(0) * N + tl.arange(0, N), launch.to(tl.int32) + tl.zeros((N,), tl.int32))
    dl.count_program(handshake_block, epoch_pointer)


@triton.jit
def integers(a, n, quotient, remainder, COUNT: tl.constexpr):
    """Scalars and a tile, by run-time and by constant divisors."""
    lane = tl.arange(0, COUNT)
    x = tl.load(a + lane)
    divisor = tl.load(n)
    tl.store(quotient + lane, dl.floordiv(x, divisor))
    tl.store(remainder + lane, dl.mod(x, divisor))
    for i in range(COUNT):
        scalar = tl.load(a + i)
        tl.store(quotient + COUNT + i, dl.floordiv(scalar, divisor))
        tl.store(remainder + COUNT + i, dl.mod(scalar, divisor))
        tl.store(quotient + 2 * COUNT + i, dl.floordiv(i - COUNT, 5))
        tl.store(remainder + 2 * COUNT + i, dl.mod(i - COUNT, 5))


@triton.jit
def elementwise(x, out, N: tl.constexpr):
    lane = tl.arange(0, N)
    value = tl.load(x + lane)
    tl.store(out + lane, dl.sigmoid(value))
    tl.store(out + N + lane, dl.silu(value))
    tl.store(out + 2 * N + lane, dl.tanh(value))
    tl.store(out + 3 * N + lane, dl.gelu(value))
    tl.store(out + 4 * N + lane, dl.gelu_tanh(value))
    tl.store(out + 5 * N + lane, dl.relu(value))
    tl.store(out + 6 * N + lane, dl.rsqrt(tl.abs(dl.cast(value, tl.float32)) + 0.5))


@triton.jit
def extremes(x, y, out, M: tl.constexpr, N: tl.constexpr):
    """Of x and y [M, N]: the larger and the smaller ones, and of each row of x the largest and the smallest."""
    lane = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    a, b = tl.load(x + lane), tl.load(y + lane)
    tl.store(out + lane, dl.maximum(a, b))
    tl.store(out + M * N + lane, dl.minimum(a, b))
    tl.store(out + 2 * M * N + tl.arange(0, M), dl.reduce_max(a, 1))
    tl.store(out + 2 * M * N + M + tl.arange(0, M), dl.reduce_min(a, 1))


@triton.jit
def convert(x, out, N: tl.constexpr, DTYPE: tl.constexpr):
    lane = tl.arange(0, N)
    tl.store(out + lane, dl.cast(tl.load(x + lane), DTYPE))


@triton.jit
def product(a, b, c, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    """c [M, N] f32 = c + a [M, K] @ b [N, K].T"""
    rows = tl.arange(0, M)[:, None]
    columns = tl.arange(0, N)[:, None]
    lane = tl.arange(0, K)[None, :]
    where = rows * N + tl.arange(0, N)[None, :]
    first = dl.dot(tl.load(a + rows * K + lane), tl.load(b + columns * K + lane).T)
    tl.store(c + where, dl.dot(tl.load(a + rows * K + lane), tl.load(b + columns * K + lane).T, first))


@triton.jit
def attend(scores, v, out, pieces, M: tl.constexpr, N: tl.constexpr, D: tl.constexpr):
    """out [M, D] from scores [pieces, M, N] and v [pieces, N, D]."""
    m, total, acc = dl.attend_begin(M, D)
    rows = tl.arange(0, M)[:, None]
    keys = tl.arange(0, N)
    columns = tl.arange(0, D)[None, :]
    for piece in range(pieces):
        score = tl.load(scores + (piece * M + rows) * N + keys[None, :])
        value = tl.load(v + (piece * N + keys[:, None]) * D + columns)
        m, total, acc = dl.attend_step(m, total, acc, score, value)
    tl.store(out + rows * D + columns, dl.attend_finish(m, total, acc))


@triton.jit
def sweep(words, epoch, COUNT: tl.constexpr, PERIOD: tl.constexpr, WINDOW: tl.constexpr):
    dl.sweep_words(words, tl.load(epoch), COUNT, PERIOD, WINDOW)
