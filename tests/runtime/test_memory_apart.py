# pyright: basic
"""What kernels have in memory, without a GPU: nothing of a kernel shares a byte with anything else."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
import torch

from tests.runtime.fake_gpu import FakeGpu
from tests.runtime.test_order import case_of

CASES = ("all_reduce_one_shot_pushed-words", "all_reduce_one_shot_pushed-few", "ag_gemm-h200", "all_gather_kept-few")


def parts(kernel: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """All memory that launches of a kernel use, by name: of words, of data, counters, and the state of launches."""
    memory, driver = kernel._memory, kernel._driver
    yield from memory.own.items()
    yield "the pad", memory.pad
    yield "the debug block", memory.heap.debug
    yield "the board", memory.heap.board
    yield "the state", memory.epoch
    usual, none = kernel._arguments._handshake, next(iter(driver._apart.values()))
    yield "the handshake", usual
    if none is not usual:
        yield "no handshake", none
    yield from ((f"the counter of {name}", counter) for name, counter in memory.counters.items())


@pytest.mark.parametrize("rank", [0, 1])
def test_words_data_counters_and_states_of_kernels_lie_apart(rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The flag of a word is the number of its kernel's launch: data, or another kernel's words, could look like it."""
    gpu, found = FakeGpu(monkeypatch), list[tuple[int, int, str]]()
    kernels = [gpu.built(case_of(case), rank) for case in (*CASES, *CASES)]
    for number, kernel in enumerate(kernels):
        for name, tensor in parts(kernel):
            begin = tensor.data_ptr()
            if tensor.numel():
                found.append((begin, begin + tensor.numel() * tensor.element_size(), f"{name} of kernel {number}"))
    assert any("parts of kernel 0" in name for *_, name in found)
    for (_, end, one), (begin, _, other) in pairwise(sorted(found)):
        assert end <= begin, f"{one} and {other} share memory"


def test_a_peer_addresses_the_same_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = FakeGpu(monkeypatch).built(case_of(CASES[0]), 1)
    heap, base = kernel._memory.heap, kernel._memory.heap.memory.data_ptr()
    for peer, of_peer in enumerate(heap.pads):
        for own, theirs in (
            (heap.board, heap.boards),
            (heap.debug, heap.debugs),
            (heap.tensors["parts"], heap.addresses("parts")),
        ):
            assert theirs[peer] - of_peer == own.data_ptr() - base
