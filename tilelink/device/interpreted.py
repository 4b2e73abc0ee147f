# pyright: basic, reportArgumentType=false
"""Pointers, signals and fences in Triton's interpreter: compiled.py's functions in Python, with real atomics.

Each rank (and each resident program) is a process there, and the processes share symmetric memory. Every event is
reported to monitor.py, which traces, delays, and ends a wait that exceeds its deadline.
"""

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import triton.language as tl
from triton._C.libtriton import interpreter

from tilelink.device import monitor, network, tracing
from tilelink.device.mode import BLOCK, number


def wrapped(value: int) -> int:
    """Return `value` modulo 2**32 as an int32, as counters wrap."""
    return (value + 2**31) % 2**32 - 2**31


def symm_at(table, rank, like):
    base = tl.load(table + rank)
    return base.to(like.dtype)


def wait(signals, channel, target, debug_block, stage, tile, trace=None, scope=BLOCK):
    tracing.begin(trace, tracing.WAIT, scope)
    expected = wrapped(number(target))
    where = {"channel": number(channel), "expected": expected, "stage": number(stage), "tile": number(tile)}
    monitor.record("wait", where["stage"], where["tile"], where["channel"], expected)
    read = reader(signals + channel)
    while wrapped((seen := read()) - expected) < 0:
        monitor.poll(seen=seen, **where)
    tracing.end(trace, tracing.WAIT, stage, tile, channel, 0, scope)
    return 0


def wait_all(signals, first, count, target, debug_block, stage, tile, step=1, scope=BLOCK):
    for one in range(number(count)):
        wait(signals, first + one * number(step), target, debug_block, stage, tile)
    return 0


def wait_each(signals, channels, mask, target, debug_block, stage, tile):
    chosen = np.atleast_1d(mask.handle.data).astype(bool)
    every = (np.broadcast_to(_numbers(one), chosen.shape)[chosen].tolist() for one in (channels, target))
    for channel, wanted in sorted(set(zip(*every, strict=True))):
        wait(signals, channel, wanted, debug_block, stage, tile)
    return 0


def consume_token(value, token):
    return value + token


def opaque(value):
    return value


def notify(pad, channel, rank, debug_block, stage, tile, remote, tma=True, trace=None, scope=BLOCK):
    tracing.begin(trace, tracing.NOTIFY, scope)
    monitor.record("notify", number(stage), number(tile), number(rank), number(channel))
    signal_add(pad + channel, 1, remote, tma)
    tracing.end(trace, tracing.NOTIFY, stage, tile, rank, channel, scope)


def notify_each(signals, table, ranks, channels, mask, debug_block, stage, tile):
    chosen = np.atleast_1d(mask.handle.data).astype(bool)  # if part of it is a number, the values are 0 and 1
    every = (np.broadcast_to(_numbers(one), chosen.shape)[chosen] for one in (ranks, channels))
    for rank, channel in zip(*every, strict=True):
        notify(symm_at(table, int(rank), signals), int(channel), int(rank), debug_block, stage, tile, True, False)


def _numbers(value: Any) -> Any:
    return value.handle.data if isinstance(value, tl.tensor) else number(value)


def signal_add(pointer, value, remote, tma=True):
    tl.atomic_add(pointer, wrapped(number(value)), sem="release", scope="sys")


def reader(pointer: Any) -> Callable[[], int]:
    """Reads of one counter, again and again: the interpreter's atomic operation, whose operands are made once.

    A wait looks many times, and the interpreter would check the types of the same operands each time.
    """
    place = np.array([number(pointer)], np.uint64)
    nothing, always = np.zeros(1, f"i{pointer.dtype.element_ty.primitive_bitwidth // 8}"), np.ones(1, bool)
    add, acquire = interpreter.RMW_OP.ADD, interpreter.MEM_SEMANTIC.ACQUIRE
    return lambda: int(interpreter.atomic_rmw(add, place, nothing, always, acquire)[0])


def fence():
    # A process's stores and atomics reach the shared memory in order; nothing is in flight between calls.
    pass


def trap():
    raise RuntimeError("the GPU ends all work of this process")


def quiet():
    pass


def publish(scope=BLOCK):
    pass


def tile_begin(debug_block, stage, tile, trace=None, scope=BLOCK):
    monitor.record("tile", number(stage), number(tile), 0, 0)
    tracing.begin(trace, tracing.TILE, scope)


def tile_end(stage, tile, trace, scope=BLOCK):
    tracing.end(trace, tracing.TILE, stage, tile, 0, 0, scope)


def transfer_begin(trace, scope=BLOCK):
    tracing.begin(trace, tracing.TRANSFER, scope)


def transfer(debug_block, stage, tile, tensor, rank, offset, trace=None, scope=BLOCK):
    monitor.record("transfer", number(stage), number(tile), number(tensor), number(rank), number(offset))
    tracing.end(trace, tracing.TRANSFER, stage, tile, rank, tensor, scope)


def put(peers, rank, peer, offset, source, count):
    network.installed().put(*_message(peers, peer, offset, source, count))


def put_signal(
    peers, rank, peer, offset, source, count, signals, signal_table, channel, debug_block, stage, tile, trace=None
):  # fmt: skip
    tracing.begin(trace, tracing.NOTIFY, BLOCK)
    monitor.record("notify", number(stage), number(tile), number(peer), number(channel))
    counter = number(symm_at(signal_table, peer, signals) + channel)
    network.installed().put(*_message(peers, peer, offset, source, count), counter)
    tracing.end(trace, tracing.NOTIFY, stage, tile, peer, channel, BLOCK)


def get(target, peers, rank, peer, offset, count):
    _, source, address, size = _message(peers, peer, offset, target, count)
    ctypes.memmove(address, source, size)


def _message(peers, peer, offset, own, count):
    """(peer, address of an element of its tensor, address `own`, bytes)."""
    width = max(1, own.dtype.element_ty.primitive_bitwidth // 8)
    far = number(tl.load(peers + peer)) + number(offset) * width
    return number(peer), far, number(own), number(count) * width


def network_notify(signals, signal_table, rank, peer, channel, debug_block, stage, tile, trace=None):
    tracing.begin(trace, tracing.NOTIFY, BLOCK)
    monitor.record("notify", number(stage), number(tile), number(peer), number(channel))
    network.installed().signal(number(peer), number(symm_at(signal_table, peer, signals) + channel))
    tracing.end(trace, tracing.NOTIFY, stage, tile, peer, channel, BLOCK)


def network_fence():
    network.installed().fence()


def network_quiet():
    network.installed().quiet(monitor.installed().poll_network)
