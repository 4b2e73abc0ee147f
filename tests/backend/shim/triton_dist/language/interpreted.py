# pyright: basic
"""The language for kernels in Triton's interpreter, on CPU ranks.

It learns who and where it is by standing between the runtime and its memory: generated kernels are given neither ranks
nor addresses.
"""

from typing import Any

import torch
import triton.language as tl

from tilelink.device import monitor
from tilelink.device.interpreted import number
from tilelink.runtime.cpu import launches
from tilelink.runtime.cpu.arena import Arena, size_for
from tilelink.runtime.cpu.memory import Memory

HERE: dict[str, Any] = {}


class Token:
    """What a wait returns: good for consume_token and nothing else."""


class WideMemory(Memory):
    """The memory of CPU ranks with counters of 64 bits."""

    def __init__(self, layout: Any, count: int) -> None:
        super().__init__(layout, count)
        shape = ((layout.pad_size,), torch.int64)
        arena = Arena(size_for([shape] * layout.ranks))
        self.pads = [arena.allocate(*shape) for _ in range(layout.ranks)]
        HERE["memory"] = self


def _step_of_rank(kernel: Any, module: Any, memory: Any, own: int, program: int) -> Any:
    step = _step(kernel, module, memory, own, program)

    def run(epoch: int) -> None:
        HERE["rank"] = own
        step(epoch)

    return run


_step = launches._step
launches.Memory = WideMemory
launches._step = _step_of_rank


def _narrow(value: Any) -> int:
    assert not isinstance(value, tl.tensor) or value.dtype == tl.int32, "ranks have 32 bits"
    return number(value)


def rank(axis: int = -1) -> Any:
    return tl.full((), HERE["rank"], tl.int32)


def num_ranks(axis: int = -1) -> Any:
    return tl.full((), HERE["memory"].layout.ranks, tl.int32)


def symm_at(ptr: Any, peer: Any) -> Any:
    """The place of the own pointer in the memory of a peer."""
    memory, own, there = HERE["memory"], HERE["rank"], _narrow(peer)
    address = int(ptr.handle.data.item())
    pairs = [(memory.pads[own], memory.pads[there])]
    pairs += [(tensor, memory.tensors[there][name]) for name, tensor in memory.tensors[own].items()]
    for mine, other in pairs:
        if mine.data_ptr() <= address < mine.data_ptr() + mine.numel() * mine.element_size():
            return ptr + (other.data_ptr() - mine.data_ptr()) // mine.element_size()
    raise ValueError(f"{address:#x} lies in no symmetric tensor of rank {own}")


def wait(ptr: Any, barriers: Any, scope: str, semantic: str, waitValue: Any = 1) -> Any:
    """Waits until each of `barriers` signals equals the value."""
    assert (scope, semantic) == ("sys", "acquire"), "peers signal"
    expected = number(waitValue)
    for at in range(number(barriers)):
        while (seen := read(ptr + at)) != expected:
            monitor.poll(seen=seen, channel=place(ptr) + at, expected=expected, stage=-1, tile=-1)
    return Token()


def place(ptr: Any) -> int:
    """Which counter of the own pad a pointer is."""
    return (int(ptr.handle.data.item()) - HERE["memory"].pads[HERE["rank"]].data_ptr()) // 8


def read(ptr: Any) -> int:
    assert ptr.dtype.element_ty in (tl.int64, tl.uint64), "signals have 64 bits"
    return number(tl.atomic_add(ptr, 0, sem="acquire", scope="sys"))


def consume_token(value: Any, token: Any) -> Any:
    """The value. token: of a wait, or an integer tensor that carries tokens."""
    assert isinstance(value, tl.tensor), "only tensors carry tokens"
    assert isinstance(token, Token) or token.dtype == tl.int32
    return value


def notify(ptr: Any, peer: Any, signal: Any = 1, sig_op: str = "set", comm_scope: str = "inter_node") -> None:
    assert ptr.dtype.element_ty in (tl.int64, tl.uint64), "signals have 64 bits"
    assert comm_scope in ("gpu", "intra_node", "inter_node")
    there = symm_at(ptr, peer)
    operation = {"add": tl.atomic_add, "set": tl.atomic_xchg}[sig_op]
    operation(there, number(signal), sem="release", scope="sys")
