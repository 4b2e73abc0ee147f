"""Positions that a stage uses twice are computed once, where they are the same."""

from __future__ import annotations

import re

import torch

from tests.backend.samples import Numbers, Sample, emitted
from tilelink import compiler
from tilelink.reference.trial import random_inputs

TWICE = """
program twice(M, N):
    x : in  [M, N]
    z : in  [M, N]
    y : out [M, N]
    compute f(i: M, j: N):
        if rank == 0:
            y[i, j] = x[i, j] + z[i, j]
        else:
            y[i, j] = x[i, j] - z[i, j]
"""
CROSSED = """
program crossed(M):
    x : in  [M, M]
    c : out [M, M]
    y : out [M, M]
    compute f(i: M, j: M):
        c[i, j] = x[i, j] * 2.0
    compute g(j: M, i: M):
        y[j, i] = x[i, j].T + 1.0

schedule s for crossed:
    f on sm, tile(i=8, j=8)
    g in f epilogue
"""
LOOPED = """
program looped(M, K):
    x : in  [K, M]
    y : out [M]
    compute f(i: M):
        acc = zeros(f32)
        most = full(-1000.0, f32)
        for (k: K):
            acc += sum(x[k, i], axis=0)
        for (k: K):
            most = maximum(most, max(x[k, i], axis=0))
        y[i] = acc + most

schedule s for looped:
    f on sm, tile(i=8, k=4)
"""


def lines(text: str, numbers: Numbers) -> list[str]:
    source = emitted(Sample(text=text, numbers=numbers).bound(ranks=2, target="cpu")).text
    return [line.strip() for line in source.splitlines() if re.match(r"\s*offs", line)]


def right(text: str, numbers: Numbers) -> None:
    module = compiler.parse(text)
    program, schedule = module.program(), next(iter(module.schedules), None)
    kernel = compiler.compile(program, schedule, ranks=2, dims=numbers)
    (inputs,) = random_inputs(program, ranks=2, dims=numbers, dtype="f32", launches=1, seed=1)
    for got, wanted in zip(kernel(inputs), kernel.reference(inputs), strict=True):
        for name, value in got.items():
            torch.testing.assert_close(value, wanted[name])


def test_a_position_is_computed_once_in_a_block_and_those_in_it() -> None:
    found = lines(TWICE, {"M": 32, "N": 32})
    assert len(found) == 4, "in each branch for itself"
    right(TWICE, {"M": 32, "N": 32})
    plain = TWICE.split("        if")[0] + "        y[i, j] = x[i, j] + z[i, j]\n"
    assert [line.split(" = ")[0] for line in lines(plain, {"M": 32, "N": 32})] == ["offs_i", "offs_j"]


def test_indices_of_the_next_stage_have_positions_of_their_own() -> None:
    """Its i runs along the host's j, and so is another tile."""
    found = lines(CROSSED, {"M": 48})
    assert len([line for line in found if line.startswith("offs_i")]) == 2
    right(CROSSED, {"M": 48})


def test_a_loop_has_positions_of_its_own() -> None:
    found = lines(LOOPED, {"M": 16, "K": 10})
    assert len([line for line in found if line.startswith("offs_k")]) == 2
    right(LOOPED, {"M": 16, "K": 10})
