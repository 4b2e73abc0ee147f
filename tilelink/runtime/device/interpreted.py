# pyright: basic, reportArgumentType=false
"""Pointers, signals and fences in Triton's interpreter: compiled.py's functions in Python, over real atomics.

Each rank (and each resident program) is a process there, and symmetric memory is shared between them. Every event
is reported to monitor.py, which traces, delays, and ends a wait that outlives its deadline.
"""

from typing import Any

import numpy as np
import triton.language as tl

from tilelink.runtime import monitor


def number(value: Any) -> int:
    """The Python integer in a scalar as the interpreter passes it: a tensor of one element, a constexpr, an int."""
    if isinstance(value, tl.tensor):
        return int(value.handle.data.item())
    return int(value.value if isinstance(value, tl.constexpr) else value)


def wrapped(value: int) -> int:
    """`value` modulo 2**32 as an int32, which is how counters behave."""
    return (value + 2**31) % 2**32 - 2**31


def symm_at(table, rank, like):
    base = tl.load(table + rank)
    return base.to(like.dtype)


def wait(signals, channel, target, debug, STAGE, t):
    expected = wrapped(number(target))
    where = {"channel": number(channel), "expected": expected, "stage": number(STAGE), "tile": number(t)}
    monitor.record("wait", where["stage"], where["tile"], where["channel"], expected)
    pointer = signals + channel
    while wrapped((seen := number(signal_read(pointer))) - expected) < 0:
        monitor.poll(seen=seen, **where)
    return 0


def wait_all(signals, first, COUNT, target, debug, STAGE, t, STEP=1):
    for one in range(number(COUNT)):
        wait(signals, first + one * number(STEP), target, debug, STAGE, t)
    return 0


def consume_token(value, token):
    return value + token


def hold(value):
    return value


def notify(pad, channel, rank, debug, STAGE, t, REMOTE, TMA=True):
    monitor.record("notify", number(STAGE), number(t), number(rank), number(channel))
    signal_add(pad + channel, 1, REMOTE, TMA)


def notify_each(signals, table, ranks, channels, mask, debug, STAGE, t):
    chosen = np.atleast_1d(mask.handle.data).astype(bool)  # where a part of it is a number, they are 0 and 1
    every = (np.broadcast_to(_numbers(one), chosen.shape)[chosen] for one in (ranks, channels))
    for rank, channel in zip(*every, strict=True):
        notify(symm_at(table, int(rank), signals), int(channel), int(rank), debug, STAGE, t, True, False)


def _numbers(value: Any) -> Any:
    return value.handle.data if isinstance(value, tl.tensor) else number(value)


def signal_add(pointer, value, REMOTE, TMA=True):
    tl.atomic_add(pointer, wrapped(number(value)), sem="release", scope="sys")


def signal_set(pointer, value, REMOTE, TMA=True):
    tl.atomic_xchg(pointer, wrapped(number(value)), sem="release", scope="sys")


def signal_read(pointer):
    return tl.atomic_add(pointer, 0, sem="acquire", scope="sys")


def fence():
    # A process's stores reach the shared memory in order with its atomics; nothing is in flight between calls.
    pass


def quiet():
    pass


def publish():
    pass


def tile_begin(debug, STAGE, t):
    monitor.record("tile", number(STAGE), number(t), 0, 0)


def transfer(debug, STAGE, t, TENSOR, rank, offset):
    monitor.record("transfer", number(STAGE), number(t), number(TENSOR), number(rank), number(offset))
