# pyright: basic, reportArgumentType=false, reportAssignmentType=false, reportCallIssue=false
# pyright: reportGeneralTypeIssues=false, reportAttributeAccessIssue=false
"""Rings of buffers in shared memory between warps with roles, and products of groups of four warps.

They are written in Gluon, Triton's language with explicit control of shared memory. They need sm_90. What the roles do,
and why it is right, is described in lowering/rings.py and checked by verifier/rings.py.

A position in a ring has the number of a `buffer` and a `phase`, 0 in the first round and then 1 and 0 in turn. PHASE
arguments are the parity for which a barrier is waited.
"""

import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

__all__ = [
    "across", "arrive", "barriers", "columns", "expect", "fence", "filled", "filled_rows", "filled_rows_of",
    "following", "gathered", "halves", "largest", "load", "load_by_thread", "load_parts", "meet", "multiply",
    "multiply_rows", "numbers", "of_rows", "operand", "partial_sums", "pieces", "retire", "row_max", "row_min",
    "row_sum", "rows", "receive", "segments", "send", "smallest", "spread", "store_by_thread", "store_part",
    "store_rows", "stored", "take", "wait", "whole_sums", "zeros",
]  # fmt: skip

# Names since Triton 3.9.
_load = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
_store = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global
# A name since Triton 3.7.
_threads_meet = getattr(gl, "barrier", None) or getattr(gl, "thread_barrier")  # noqa: B009


@gluon.jit
def barriers(COUNT: gl.constexpr, ARRIVALS: gl.constexpr):
    """Return COUNT barriers, whose phases last until ARRIVALS arrivals."""
    made = gl.allocate_shared_memory(gl.int64, [COUNT, 1], mbarrier.MBarrierLayout())
    for one in gl.static_range(COUNT):
        mbarrier.init(made.index(one), count=ARRIVALS)
    return made


@gluon.jit
def segments(COUNT: gl.constexpr):
    """Return the numbers 0, 1, ... below a power of two, all of them in each of the role's warps."""
    return gl.arange(0, COUNT, layout=gl.BlockedLayout([max(1, COUNT // 32)], [32], [gl.num_warps()], [0]))


@gluon.jit
def numbers(COUNT: gl.constexpr):
    """Return room for COUNT integers in shared memory."""
    return gl.allocate_shared_memory(gl.int32, [COUNT, 1], gl.SwizzledSharedLayout(1, 1, 1, [0]))


@gluon.jit
def send(numbers, place, value):
    """Store an integer."""
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [gl.num_warps()], [0])
    numbers.index(place).store(gl.full([1], value, gl.int32, layout))


@gluon.jit
def receive(numbers, place):
    """Return an integer that another role has stored. Meet before the role's next arrival."""
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [gl.num_warps()], [0])
    return gl.max(numbers.index(place).load(layout), 0)


@gluon.jit
def meet():
    """Wait for all threads of the role: they have made their earlier accesses then."""
    _threads_meet()


@gluon.jit
def following(buffer, phase, BUFFERS: gl.constexpr):
    """Return the next position of a ring: its buffer and its phase."""
    buffer += 1
    around = buffer == BUFFERS
    return gl.where(around, 0, buffer), phase ^ around.to(gl.int32)


@gluon.jit
def wait(barriers, buffer, phase):
    """Wait until the phase of this parity is over."""
    mbarrier.wait(barriers.index(buffer), phase)


@gluon.jit
def arrive(barriers, buffer):
    """Arrive once, after all earlier accesses of the role's threads."""
    mbarrier.arrive(barriers.index(buffer))


@gluon.jit
def expect(barriers, buffer, BYTES: gl.constexpr):
    """Arrive, and let the phase last until loads have brought BYTES more."""
    mbarrier.expect(barriers.index(buffer), BYTES)


@gluon.jit
def load(boxes, row, column, full, buffer):
    """Start to load a box into a buffer. row, column: of the box's first element. full: the buffer's barrier."""
    _load(boxes, [row, column], full, buffer)


@gluon.jit
def load_parts(
    boxes, row, column, full, buffer, ring, PARTS: gl.constexpr, ROWS: gl.constexpr, FIRST: gl.constexpr = 0
):
    """Start to load PARTS boxes of ROWS rows, one below another: the parts of a buffer, one for each consumer.

    FIRST: the number of parts of other operands before these.
    """
    for part in gl.static_range(PARTS):
        _load(boxes, [row + part * ROWS, column], full.index(buffer), ring.index(FIRST + buffer * PARTS + part))


@gluon.jit
def zeros(ROWS: gl.constexpr, COLUMNS: gl.constexpr, ELEMENT_BITS: gl.constexpr = 16):
    """Return an accumulator of a consumer's products. ELEMENT_BITS: of an operand."""
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, COLUMNS, 256 // ELEMENT_BITS])
    return gl.zeros([ROWS, COLUMNS], gl.float32, layout)


@gluon.jit
def filled(VALUE: gl.constexpr, ROWS: gl.constexpr, COLUMNS: gl.constexpr):
    """Return a tile like an accumulator, of a number."""
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, COLUMNS, 16])
    return gl.full([ROWS, COLUMNS], VALUE, gl.float32, layout)


@gluon.jit
def filled_rows(VALUE: gl.constexpr, ROWS: gl.constexpr, COLUMNS: gl.constexpr):
    """Return a number for each row of an accumulator of so many columns."""
    return filled_rows_of(VALUE, gl.float32, ROWS, COLUMNS)


@gluon.jit
def filled_rows_of(VALUE: gl.constexpr, DTYPE: gl.constexpr, ROWS: gl.constexpr, COLUMNS: gl.constexpr):
    """Return a number of some type for each row of an accumulator of so many columns."""
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, COLUMNS, 16])
    return gl.full([ROWS], VALUE, DTYPE, gl.SliceLayout(1, layout))


@gluon.jit
def of_rows(x, like):
    """Return a number for each row of some tile as one for each row of the tile `like`."""
    return gl.convert_layout(x, gl.SliceLayout(1, like.type.layout))


@gluon.jit
def largest(x):
    """Return the largest element of a vector."""
    return gl.reduce(x, 0, _larger)


@gluon.jit
def smallest(x):
    """Return the smallest element of a vector."""
    return gl.reduce(x, 0, _smaller)


@gluon.jit
def multiply(left, right, acc, FIRST: gl.constexpr, N_MAJOR: gl.constexpr = False):
    """Start acc + left @ right.T, or left @ right.T if it is the first product of a tile.

    N_MAJOR: left @ right, for right is [K, N]. Pass the result to `retire` before anything else.
    """
    if not N_MAJOR:
        right = right.permute((1, 0))
    return warpgroup_mma(left, right, acc, use_acc=not FIRST, is_async=True)


@gluon.jit
def multiply_rows(left, right, acc):
    """Start acc + left @ right. left: as of `operand`. Pass the result to `retire` before anything else."""
    return warpgroup_mma(left, right, acc, is_async=True)


@gluon.jit
def operand(x, acc, DTYPE: gl.constexpr):
    """Return a tile as the left operand of products that are added to `acc`. No thread has elements of others."""
    return gl.convert_layout(x.to(DTYPE), gl.DotOperandLayout(0, acc.type.layout, 2))


@gluon.jit
def across(x, like):
    """Return a number for each row as a column that broadcasts along the rows of the tile `like`."""
    return gl.convert_layout(x, gl.SliceLayout(1, like.type.layout))[:, None]


@gluon.jit
def _larger(a, b):
    return gl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@gluon.jit
def _smaller(a, b):
    return gl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)


@gluon.jit
def row_max(x):
    """Return the largest of each row, or NaN if any is NaN."""
    return gl.reduce(x, 1, _larger)


@gluon.jit
def row_min(x):
    """Return the smallest of each row, or NaN if any is NaN."""
    return gl.reduce(x, 1, _smaller)


@gluon.jit
def row_sum(x):
    """Return the sum of each row."""
    return gl.sum(x, 1)


@gluon.jit
def partial_sums(x):
    """Return four sums of each row. Each thread of a row has those of its own elements, so that none are exchanged."""
    return gl.sum(gl.sum(x.reshape([x.shape[0], x.shape[1] // 8, 4, 2]), 3), 1)


@gluon.jit
def whole_sums(sums, COLUMNS: gl.constexpr):
    """Return the sum of each row from its partial sums, as a number for each row of a tile of so many columns."""
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, COLUMNS, 16])
    return gl.convert_layout(gl.sum(sums, 1), gl.SliceLayout(1, layout))


@gluon.jit
def retire(acc, FLYING: gl.constexpr):
    """Wait until at most FLYING products are in flight, and return the accumulator."""
    return warpgroup_mma_wait(FLYING, deps=[acc])


@gluon.jit
def halves(x):
    """Return the left and the right half of the columns. No thread has more than its own elements of them."""
    return gl.split(x.reshape([x.shape[0], 2, x.shape[1] // 2]).permute((0, 2, 1)))


@gluon.jit
def pieces(x, COUNT: gl.constexpr):
    """Return a tuple of COUNT pieces, side by side, of a consumer's result."""
    if COUNT == 1:
        result = (x,)
    elif COUNT == 2:
        left, right = halves(x)
        result = (left, right)
    else:
        left, right = halves(x)
        result = pieces(left, COUNT // 2) + pieces(right, COUNT // 2)
    return result


@gluon.jit
def columns(like):
    """Return the numbers of the columns of a piece, with which vectors are loaded that a consumer computes with."""
    return gl.arange(0, like.shape[1], layout=gl.SliceLayout(0, like.type.layout))


@gluon.jit
def spread(like):
    """Return the numbers of the columns of a tile, one in each of the role's threads or, if there are more, a few."""
    COLUMNS: gl.constexpr = like.shape[1]
    THREADS: gl.constexpr = 32 * gl.num_warps()
    return gl.arange(0, COLUMNS, layout=gl.BlockedLayout([max(1, COLUMNS // THREADS)], [32], [gl.num_warps()], [0]))


@gluon.jit
def gathered(x, like):
    """Return a vector that is spread over threads as one of the columns of a tile: each thread has those of its own.

    That goes through shared memory. Loaded as it is needed, each thread would load all of its columns.
    """
    return gl.convert_layout(x, gl.SliceLayout(0, like.type.layout))


@gluon.jit
def rows(like):
    """Return the numbers of the rows of a tile."""
    return gl.arange(0, like.shape[0], layout=gl.SliceLayout(1, like.type.layout))


@gluon.jit
def take(buffer, like):
    """Return what a buffer holds, in registers as a piece. All threads of the role have read it then."""
    held = buffer.load(like.type.layout)
    _threads_meet()
    return held


@gluon.jit
def store_rows(pointers, value, mask):
    """Store the elements of a piece that there are to memory, before the role's next arrival."""
    gl.store(pointers, value, mask=mask)
    _threads_meet()


@gluon.jit
def _by_thread(x):
    """Return the elements of a piece as a vector in which each thread has four in a row, and each warp 128.

    That only renames registers: a thread of an accumulator has two columns in a row, and the same two of each 8 (PTX
    ISA, register fragments of wgmma).
    """
    ROWS: gl.constexpr = x.shape[0] // 64
    COLUMNS: gl.constexpr = x.shape[1] // 16
    # group of 64 rows, warp, half of its rows, row of 8; 16 columns, half of them, thread of a row, column
    parts = x.reshape([ROWS, 4, 2, 8, COLUMNS, 2, 4, 2])
    layout: gl.constexpr = gl.BlockedLayout([4], [32], [gl.num_warps()], [0])
    return gl.convert_layout(parts.permute((0, 4, 2, 1, 3, 6, 5, 7)).reshape([x.shape[0] * x.shape[1]]), layout)


@gluon.jit
def store_by_thread(pointer, x):
    """Store a piece for `load_by_thread`, before the role's next arrival. pointer: to its first element."""
    own = _by_thread(x)
    gl.store(pointer + gl.arange(0, own.shape[0], layout=own.type.layout), own)
    _threads_meet()


@gluon.jit
def load_by_thread(pointer, like):
    """Load a piece that `store_by_thread` has stored, in registers as the piece `like`: the inverse of `_by_thread`."""
    own = _by_thread(like)
    held = gl.load(pointer + gl.arange(0, own.shape[0], layout=own.type.layout))
    ROWS: gl.constexpr = like.shape[0] // 64
    COLUMNS: gl.constexpr = like.shape[1] // 16
    parts = held.reshape([ROWS, COLUMNS, 2, 4, 8, 4, 2, 2]).permute((0, 3, 2, 4, 1, 6, 5, 7))
    return gl.convert_layout(parts.reshape([like.shape[0], like.shape[1]]), like.type.layout)


@gluon.jit
def fence():
    """Make what the role's threads have written to shared memory visible to the tensor memory accelerator.

    Barriers are written, too, when they are made: the accelerator arrives at them (CUDA C++ Programming Guide, tensor
    memory access, which has the same fence there).
    """
    fence_async_shared()


@gluon.jit
def store_part(boxes, row, column, box):
    """Start to store a box. All stores of a warp are issued by the same thread."""
    _store(boxes, [row, column], box)


@gluon.jit
def stored(FLYING: gl.constexpr):
    """Wait until at most FLYING of the warp's stores still read shared memory."""
    tma.store_wait(FLYING)
