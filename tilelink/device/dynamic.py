# pyright: basic, reportArgumentType=false
"""Tiles that programs take by a counter (lowering/clauses/dynamic.py)."""

import triton
import triton.language as tl


@triton.jit
def take_tile(counter, total, programs):
    """Return the number of the next tile that no program has taken, or at least `total` if there is none.

    Every program of the kernel calls it until there is none. The last of these calls sets the counter, int32, to 0 for
    the next launch of the kernel, which begins when this one has ended.

    total: number of tiles. programs: number of programs of the kernel.
    """
    taken = tl.atomic_add(counter, 1, sem="relaxed", scope="gpu")
    if taken == total + programs - 1:
        tl.store(counter, 0)
    return taken
