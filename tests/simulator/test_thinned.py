"""A launch of many tiles by some of them: the time of all, and of few tiles nothing else than all."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from math import inf
from typing import Any

import pytest

from tilelink import compiler
from tilelink.compiler.samples import completed, draw
from tilelink.errors import ProgressError
from tilelink.lowering.bound import Bound
from tilelink.planning.plan import make_plan
from tilelink.planning.queue_order import with_queue_order
from tilelink.simulator import seconds_by_few, simulate
from tilelink.simulator.machine import load_machine
from tilelink.simulator.sampled import Sample, launch_tensors
from tilelink.simulator.thinned import ThinnedPlan, few_taken, thinned

MACHINE = load_machine("8xH200")
NEAR = 0.04
"""Difference of the times of some tiles and of all, relative to the latter."""

TEXT = """
program moved(M, N, K):
    x : in        [M, K]
    w : in        [N, K]
    p : symmetric [ranks, M, N]
    y : out       [M, N]

    compute product(s: ranks, i: M, j: N):
        tile_push_data(p[rank, i, j] @ s, dot(x[i, :], w[j, :].T))
        producer_tile_notify(p[rank, i, j] @ s)

    compute add(i: M, j: N):
        consumer_tile_wait(p[:, i, j])
        y[i, j] = sum(p[:, i, j], axis=0)

schedule persistent for moved:
    product on sm, tile(i=64, j=64, k=64), order(s = rank + 1 step +1)
    add     on sm, tile(i=32, j=64)

schedule by_tile for moved:
    product on sm, tile(i=64, j=64, k=64), order(s = rank + 1 step +1), program_per_tile
    add     on sm, tile(i=32, j=64)

schedule by_counter for moved:
    product on sm, tile(i=64, j=64, k=64), order(s = rank + 1 step +1), dynamic
    add     on sm(16), tile(i=32, j=64)

schedule few for moved:
    product on sm, tile(i=64, j=64, k=64), order(s = rank + 1 step +1)
    add     on sm(4), tile(i=16, j=64)
"""
FORMS = ("persistent", "by_tile", "by_counter", "few")
DIMS = {"M": 2048, "N": 2048, "K": 512}


@dataclass(frozen=True, kw_only=True)
class Case:
    file: str
    program: str
    schedule: str
    dims: dict[str, Any]
    ranks: int = 4


ROWS = {"M": 1024, "F": 512, "H": 1024, "E": 8, "B": 24, "T": 128, "k": 2}
HEADS: dict[str, Any] = {"H": 8, "G": 1, "M": 4096, "D": 128, "scale": 0.1}
CASES = [
    *(Case(file="", program="moved", schedule=one, dims=DIMS) for one in FORMS),
    Case(file="ag_gemm", program="ag_gemm", schedule="copy_engine", dims={"Ms": 2048, "N": 4096, "K": 1024}),
    Case(file="benchmarks/check_cost.tl", program="moe_rs", schedule="gpu", dims=ROWS),
    Case(file="ag_attention", program="ag_attention", schedule="gpu_roles", dims=HEADS),
]


def bound_of(case: Case) -> tuple[Bound, Sample]:
    module = compiler.load(case.file) if case.file else compiler.parse(TEXT)
    program = module.program(case.program)
    schedule = module.schedule(case.schedule, program)
    bound = compiler.bound(
        program, schedule, ranks=case.ranks, dims=case.dims, dtype="bf16", target=MACHINE.processor
    )  # fmt: skip
    return bound, draw(program, ranks=case.ranks, dims=case.dims, draws=1)[0]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.program}-{case.schedule}")
def test_some_tiles_take_as_long_as_all(case: Case) -> None:
    bound, sample = bound_of(case)
    some = thinned(bound, {}, sample)
    assert some is not None and (some.repeats > 0).sum() < some.tasks / 2
    found = seconds_by_few(bound, MACHINE, inf, samples=[sample])
    whole = with_queue_order(make_plan(bound))
    samples = completed(whole, [sample], routing="uniform") if launch_tensors(bound) else ()
    expected = simulate(whole, MACHINE, samples=samples).seconds
    assert found is not None and abs(found / expected - 1) < NEAR, (found, expected)


ZIGZAG = """
schedule counted for zigzag_attention:
    attn tile(i=64, j=64), num_warps 4, num_stages 3, dynamic
    gather on sm(16), order(p = rank - 1 step -1), num_warps 16
    ks buffers 2
    vs buffers 2
"""


def test_few_tiles_by_a_counter_are_all_simulated_where_their_launch_is_among_the_fastest() -> None:
    """Of 128 tiles on 116 programs the last twelve begin where others end: eight programs say nothing of that."""
    program = compiler.load("benchmarks/check_cost.tl").program("zigzag_attention")
    dims = {"Q": 8, "G": 2, "B": 4, "T": 128, "D": 128, "scale": 0.25}
    way = compiler.parse(ZIGZAG).schedules[0]
    bound = compiler.bound(program, way, ranks=8, dims=dims, dtype="bf16", target=MACHINE.processor)
    sample = draw(program, ranks=8, dims=dims, draws=1)[0]
    assert few_taken(bound) and not few_taken(bound_of(CASES[2])[0])
    some = seconds_by_few(bound, MACHINE, inf, close=0.0, samples=[sample])
    every = seconds_by_few(bound, MACHINE, inf, samples=[sample])
    assert some is not None and every == seconds_by_few(bound, MACHINE, inf, close=1.1 * some, samples=[sample])
    whole = with_queue_order(make_plan(bound))
    expected = simulate(whole, MACHINE, samples=completed(whole, [sample], routing="uniform")).seconds
    assert every is not None and abs(every / expected - 1) < NEAR < abs(some / expected - 1), (some, every, expected)


SPREAD = """
schedule spread for zigzag_attention:
    attn tile(i=64, j=64), num_warps 4, num_stages 3
    gather on sm(8), order(p = rank - 1 step -1), num_warps 16
"""


def test_some_iterations_take_as_long_as_all(monkeypatch: pytest.MonkeyPatch) -> None:
    program = compiler.load("benchmarks/check_cost.tl").program("zigzag_attention")
    dims = {"Q": 8, "G": 2, "B": 8, "T": 128, "D": 128, "scale": 0.25}
    (way,) = compiler.parse(SPREAD).schedules
    bound = compiler.bound(program, way, ranks=8, dims=dims, dtype="bf16", target=MACHINE.processor)
    sample = draw(program, ranks=8, dims=dims, draws=1)[0]
    with monkeypatch.context() as patch:
        patch.setattr(sys.modules[thinned.__module__], "VERY_MANY", 1 << 40)
        some = thinned(bound, {}, sample)
        assert some is not None and not some.loops
        expected = seconds_by_few(bound, MACHINE, inf, samples=[sample])
    fewer = thinned(bound, {}, sample)
    assert fewer is not None and len(fewer.accesses.task) < len(some.accesses.task) / 2
    assert [(name, one.times) for name, one in fewer.loops.items()] == [("attn", 4.0)]
    found = seconds_by_few(bound, MACHINE, inf, samples=[sample])
    assert found is not None and expected is not None and abs(found / expected - 1) < NEAR, (found, expected)


def test_a_first_look_says_only_what_is_far_slower(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it takes to be twice as slow as the limit gets no second look; what it does not is rated as without it."""
    looks = list[int]()

    def looked(bound: Bound, tables: object, sample: Sample, tiles: int, *, all_taken: bool) -> ThinnedPlan | None:
        looks.append(tiles)
        return thinned(bound, {}, sample, tiles, all_taken=all_taken)

    bound, sample = bound_of(CASES[0])
    whole = seconds_by_few(bound, MACHINE, inf, samples=[sample])
    assert whole is not None
    monkeypatch.setattr("tilelink.simulator.VERY_MANY", 1 << 14)
    monkeypatch.setattr("tilelink.simulator.thinned", looked)
    assert seconds_by_few(bound, MACHINE, whole / 2, clear=whole / 4, samples=[sample]) == inf and looks == [1]
    looks.clear()
    slower = seconds_by_few(bound, MACHINE, 3 * whole, clear=whole / 4, samples=[sample])
    assert slower is not None and slower < inf and looks == [1, 4]
    looks.clear()
    near = seconds_by_few(bound, MACHINE, 6 * whole, clear=1.05 * whole, samples=[sample])
    assert near == whole and looks == [1, 4, 32]
    looks.clear()
    assert seconds_by_few(bound, MACHINE, 6 * whole, clear=2 * whole, samples=[sample]) == whole and looks == [1, 32]
    looks.clear()
    monkeypatch.setattr("tilelink.simulator.COSTLY", 10)
    fewer = seconds_by_few(bound, MACHINE, 6 * whole, clear=2 * whole, samples=[sample])
    assert fewer is not None and abs(fewer / whole - 1) < 0.05 and looks == [1, 8]


def test_what_takes_longer_than_a_limit_is_not_said() -> None:
    bound, sample = bound_of(CASES[0])
    whole = seconds_by_few(bound, MACHINE, inf, samples=[sample])
    assert whole is not None and seconds_by_few(bound, MACHINE, whole * 0.9, samples=[sample]) == inf
    assert seconds_by_few(bound, MACHINE, whole * 1.1, samples=[sample]) == whole


def test_few_tiles_are_all_simulated() -> None:
    bound, sample = bound_of(Case(file="", program="moved", schedule="persistent", dims={"M": 64, "N": 64, "K": 64}))
    assert thinned(bound, {}, sample) is None and seconds_by_few(bound, MACHINE, inf, samples=[sample]) is None


STUCK = """
schedule late for moved:
    add     on sm, tile(i=32, j=64)
    product in add epilogue, tile(i=32, j=64, k=64)
"""


def test_some_tiles_wait_for_ever_where_all_do() -> None:
    module = compiler.parse(TEXT + STUCK)
    program = module.program("moved")
    bound = compiler.bound(
        program, module.schedule("late", program), ranks=4, dims=DIMS, dtype="bf16", target=MACHINE.processor
    )  # fmt: skip
    with pytest.raises(ProgressError):
        seconds_by_few(bound, MACHINE, inf, samples=[{}])
