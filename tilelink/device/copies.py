# pyright: basic, reportArgumentType=false
"""Block copies between ranks through peer pointers, in the manner of OpenSHMEM, for kernels written by hand.

All threads of a program copy together, so each function and its `_block` name are the same. Source and destination have
the same element type; n is a number of elements, any integer >= 0. The pointers are local addresses from `symm_at` or
`remote_ptr`. Puts to other nodes are in nvshmem.py.
"""

import triton.language as tl

from tilelink.device.mode import INTERPRETED, portable

if INTERPRETED:
    from tilelink.device.interpreted import quiet, signal_add, signal_set
else:
    from tilelink.device.compiled import quiet, signal_add, signal_set

# NVSHMEM's values.
SIGNAL_SET = tl.constexpr(9)
SIGNAL_ADD = tl.constexpr(10)


@portable
def remote_ptr(pointer, table, rank, peer):
    """Return the address on `peer` that corresponds to `pointer` in the copy of `rank`, the local rank.

    table: pointer to int64[ranks], the base addresses of that symmetric tensor.
    """
    distance = tl.load(table + peer) - tl.load(table + rank)
    return (pointer.to(tl.int64) + distance).to(pointer.dtype)


@portable
def _copy(destination, source, n, BLOCK: tl.constexpr, ALIGNED: tl.constexpr):
    if ALIGNED:
        destination = tl.multiple_of(destination, 16)
        source = tl.multiple_of(source, 16)
    lane = tl.arange(0, BLOCK)
    whole = n // BLOCK * BLOCK
    # If the alignment is known, the unmasked loop moves 16 bytes per thread and instruction; a mask would prevent that.
    for first in range(0, whole, BLOCK):
        tl.store(destination + first + lane, tl.load(source + first + lane))
    if whole < n:
        rest = whole + lane
        tl.store(destination + rest, tl.load(source + rest, mask=rest < n), mask=rest < n)


@portable
def putmem(destination, source, n, BLOCK: tl.constexpr = 4096, ALIGNED: tl.constexpr = False):
    """Copy n elements from `source` (local memory) to `destination` (a peer's). `quiet` or a signal completes the copy.

    BLOCK: elements per step, a power of two. ALIGNED: True if both pointers are known to be multiples of 16 bytes.
    """
    _copy(destination, source, n, BLOCK, ALIGNED)


@portable
def getmem(destination, source, n, BLOCK: tl.constexpr = 4096, ALIGNED: tl.constexpr = False):
    """Copy n elements from `source` (a peer's memory) to `destination` (local). The copy is complete on return."""
    _copy(destination, source, n, BLOCK, ALIGNED)
    quiet()


@portable
def putmem_signal(
    destination,
    source,
    n,
    signal,
    value,
    OPERATION: tl.constexpr,
    BLOCK: tl.constexpr = 4096,
    ALIGNED: tl.constexpr = False,
):
    """Copy as putmem, then set or add to the int32 at `signal`, on the peer, with release.

    A rank that sees the signal sees the data. OPERATION: SIGNAL_SET or SIGNAL_ADD.
    """
    _copy(destination, source, n, BLOCK, ALIGNED)
    tl.static_assert((OPERATION == SIGNAL_SET) | (OPERATION == SIGNAL_ADD), "OPERATION is SIGNAL_SET or SIGNAL_ADD")
    if OPERATION == SIGNAL_SET:
        signal_set(signal, value, True)
    else:
        signal_add(signal, value, True)


putmem_block = putmem
getmem_block = getmem
putmem_signal_block = putmem_signal
