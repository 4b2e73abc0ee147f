# pyright: basic, reportArgumentType=false, reportGeneralTypeIssues=false
"""Sorting along the last axis of a tile, by a bitonic network of 64-bit integers.

An element becomes an integer whose upper half orders numbers and whose lower half is its position. So no two are alike,
the network is stable, and its result tells both the numbers and where they were. 0.0 and -0.0 are equal: the last bit,
on which no order depends, tells them apart.
"""

import triton.language as tl

from tilelink.device.mode import portable


@portable
def sort_keys(x):
    """Return an integer of 64 bits for each number of 32 bits, in its upper half in the order of numbers, NaN last.

    Its lower half is the position along the last axis, and a bit that is 1 for -0.0, which is ordered as 0.0 is.
    """
    if x.dtype == tl.float32:
        bits = tl.where(x == 0.0, 0.0, x).to(tl.int32, bitcast=True)
        order = tl.where(x == x, bits ^ ((bits >> 31) & 0x7FFFFFFF), 0x7FFFFFFF)
    else:
        order = x.to(tl.int32)
    place = tl.arange(0, x.shape[len(x.shape) - 1]) * 2
    keys = order.to(tl.int64) * 4294967296 + tl.reshape(place, [1] * (len(x.shape) - 1) + [place.shape[0]])
    if x.dtype == tl.float32:
        keys += ((x == 0.0) & (x.to(tl.int32, bitcast=True) < 0)).to(tl.int64)
    return keys


@portable
def keyed_numbers(keys, DTYPE: tl.constexpr):
    """Return the numbers of such integers, f32 or i32. Any NaN is the same NaN."""
    order = (keys >> 32).to(tl.int32)
    if DTYPE == tl.float32:  # noqa: SIM300
        order -= (keys & 1).to(tl.int32)  # -1 stands for -0.0
        order = (order ^ ((order >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)
    return order


@portable
def keyed_places(keys):
    """Return the positions of such integers."""
    return ((keys & 0xFFFFFFFF) >> 1).to(tl.int32)


@portable
def _along(DIMS: tl.constexpr, AT: tl.constexpr):
    """Return 0 and 1 along one of the axes of a hypercube. AT: the number of axes after it."""
    return tl.reshape(tl.arange(0, 2), [1] * (DIMS - 1 - AT) + [2] + [1] * AT)


@portable
def sorted_keys(x, DIMS: tl.constexpr, STEPS: tl.constexpr):
    """Return integers of 64 bits in rising order along the last axis.

    DIMS, STEPS: the numbers of elements of the tile and of that axis are these powers of two.
    """
    h = tl.reshape(x, [2] * DIMS)
    for stage in tl.static_range(1, STEPS + 1):
        for back in tl.static_range(stage):
            other = tl.sum(h, axis=DIMS - stage + back, keep_dims=True) - h  # of each pair, modulo 2**64
            swaps = _along(DIMS, stage - 1 - back)
            if stage < STEPS:
                swaps = swaps ^ _along(DIMS, stage)  # every other run is in falling order, for the next stage
            h = tl.where((h > other) == (swaps == 0), other, h)
    return tl.reshape(h, x.shape)
