# pyright: basic
"""Additions of floats of 16 bits on CPU ranks: none is lost, and each is rounded once."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
import triton.language as tl
from triton._C.libtriton import interpreter as interpreted
from triton._C.libtriton import ir
from triton.runtime.interpreter import TensorHandle

from tilelink.runtime.cpu import interpreter

KINDS = {torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}


def add(memory: torch.Tensor, places: torch.Tensor, terms: torch.Tensor, mask: torch.Tensor | None = None) -> None:
    """Add terms to elements of memory as a kernel does."""
    kind = KINDS[memory.dtype]
    held = terms.view(torch.int16).numpy().view(np.float16 if kind == tl.float16 else np.uint16)
    there = np.ones(places.shape, bool) if mask is None else mask.numpy()
    interpreter._Atomics(lambda *_: pytest.fail("the interpreter's own"))(
        ir.ATOMIC_OP.FADD,
        TensorHandle((memory.data_ptr() + 2 * places.numpy()).astype(np.uint64), tl.pointer_type(kind)),
        TensorHandle(held, kind),
        TensorHandle(there, tl.int1),
        ir.MEM_SEMANTIC.RELAXED,
        None,
    )


@pytest.mark.parametrize("kind", KINDS)
def test_what_others_add_at_the_same_time_stays(kind: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another one adds to an element just before each of the first attempts to exchange it for its sum."""
    memory, attempts = torch.ones(4, dtype=kind), 0

    def exchange(places: np.ndarray, *others: object) -> np.ndarray:
        nonlocal attempts
        attempts += 1
        if attempts < 6:
            memory[2] += 1
        return interpreted.atomic_cas(places, *others)

    monkeypatch.setattr(interpreter, "_interpreter", SimpleNamespace(atomic_cas=exchange))
    mask = torch.tensor([True, True, True, False, True])
    add(memory, torch.tensor([2, 2, 0, 3, 1]), torch.tensor([3, 4, 5, 6, 7]).to(kind), mask)
    assert memory.tolist() == [6, 8, 13, 1] and attempts > 5


@pytest.mark.parametrize("kind", KINDS)
def test_sums_are_rounded_as_torch_rounds_them(kind: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    pair = torch.randint(-(2**15), 2**15, (2, 200_000), dtype=torch.int16, generator=generator).view(kind)  # any bits
    memory, wanted = pair[0].clone(), pair[0] + pair[1]
    add(memory, torch.arange(memory.numel()), pair[1])
    same = (memory.view(torch.int16) == wanted.view(torch.int16)) | (memory.isnan() & wanted.isnan())
    assert bool(same.all())
