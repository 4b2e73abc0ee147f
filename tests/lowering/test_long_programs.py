# pyright: basic
"""A long chain of stages is bound, planned, proved and emitted by work for each stage, not for every two of them."""

from __future__ import annotations

import cProfile
from itertools import pairwise

import pytest

from tilelink import compiler
from tilelink.ir.program import Stage
from tilelink.lowering import choose_kernels

STAGES = 60


def chain(count: int) -> str:
    names = ["x", *(f"h{n}" for n in range(1, count)), "y"]
    tensors = [f"    {name} : local [M]\n" for name in names[1:-1]]
    stages = [
        f"    compute f{n}(i: M):\n        {after}[i] = {before}[i] + 1.0\n"
        for n, (before, after) in enumerate(pairwise(names))
    ]
    return "".join(["program chain(M):\n    x : in [M]\n", *tensors, "    y : out [M]\n", *stages])


def test_reads_of_peers_are_looked_for_a_few_times_in_each_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    plain = choose_kernels.remote_reads

    def counted(stage: Stage) -> object:
        asked.append(stage.name)
        return plain(stage)

    monkeypatch.setattr(choose_kernels, "remote_reads", counted)
    compiler.bound(compiler.parse(chain(STAGES)).program(), ranks=2, dims={"M": 16})
    assert STAGES <= len(asked) <= 3 * STAGES


def calls(count: int) -> int:
    """Calls of functions, and rounds of generators, from the text of a chain to its source."""
    program = compiler.parse(chain(count), "work.tl").program()  # not one that has been checked for another test
    profile = cProfile.Profile()
    profile.runcall(compiler.source, program, ranks=2, dims={"M": 16})
    return sum(entry.callcount for entry in profile.getstats())


def test_twice_the_stages_take_twice_the_work() -> None:
    calls(2)  # what is made once for all programs
    assert calls(2 * STAGES) < 2.5 * calls(STAGES)
