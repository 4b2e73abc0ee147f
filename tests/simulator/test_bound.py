"""The bound: the same for every schedule of a program, and what can be worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.simulator.cases import H200S, IDEAL, SCALE, SHIFT, planned
from tests.simulator.test_properties import cases, planned_with_launches
from tests.tiers import one_in, thorough
from tilelink.simulator import Simulated, simulate

PRODUCT = """\
program product(M, N, K):
    x : in  [M, K]
    w : in  [N, K]
    y : out [M, N]

    compute product(i: M, j: N):
        acc = dot(x[i, :], w[j, :].T)
        if rank == 0:
            y[i, j] = exp(acc)
        else:
            y[i, j] = acc

schedule large for product:
    product on sm, tile(i=128, j=256, k=64), num_warps 8

schedule small for product:
    product on sm, tile(i=32, j=64, k=32)
"""


def product(schedule: str = "large", dtype: str = "bf16", m: int = 1000, machine=H200S) -> Simulated:  # pyright: ignore
    plan = planned(PRODUCT, ranks=2, schedule=schedule, dtype=dtype, M=m, N=1376, K=4096)
    return simulate(plan, machine)


@pytest.mark.parametrize("schedule", ["large", "small"])
def test_tiles_cut_at_an_edge_count_as_much_as_there_is_of_them(schedule: str) -> None:
    assert product(schedule).bound.compute == pytest.approx(2 * 1000 * 1376 * 4096 / H200S.matmul_flops)
    assert product(schedule, dtype="f32").bound.compute == pytest.approx(4 * 1000 * 1376 * 4096 / H200S.matmul_flops)


def test_a_measured_tile_may_be_faster_than_the_rest() -> None:
    fast = replace(H200S, tile_flops={"128x256": 2 * H200S.matmul_flops})
    assert product(machine=fast).bound.compute == pytest.approx(product().bound.compute / 2)


def test_few_rows_are_bound_by_memory() -> None:
    touched = 2 * (16 * 4096 + 1376 * 4096 + 16 * 1376)
    assert product(m=16).bound.compute == pytest.approx(touched / H200S.memory_bandwidth)


def test_special_functions_count_on_the_ranks_that_have_them() -> None:
    slow = replace(H200S, special_rate=1e9)
    assert product(machine=slow).bound.compute == pytest.approx(1000 * 1376 / 1e9)


def test_what_is_read_twice_comes_from_memory_once() -> None:
    assert simulate(planned(SCALE, ranks=1, M=100, N=40), IDEAL).bound.compute == pytest.approx(8 * 4000 / 1e12)
    twice = SCALE.replace("x[i, j] * 2.0", "x[i, j] + sum(x[i, :], axis=1)[:, None]")
    assert simulate(planned(twice, ranks=1, M=100, N=40), IDEAL).bound.compute == pytest.approx(8 * 4000 / 1e12)


def test_what_is_not_read_is_not_counted() -> None:
    part = SCALE.replace("x : in  [M, N]", "x : in [8, M, N]").replace(
        "x[i, j] * 2.0", "sum(x[3, i, :], axis=1)[:, None]"
    )
    assert simulate(planned(part, ranks=1, M=100, N=40), IDEAL).bound.compute == pytest.approx(8 * 4000 / 1e12)


def test_the_busiest_link() -> None:
    bound = simulate(planned(SHIFT, ranks=3, schedule="copy_sms", M=64, N=256), IDEAL).bound
    assert bound.transfer == bound.seconds == pytest.approx(64 * 256 * 4 / 1e9)
    far = simulate(planned(SHIFT, ranks=3, schedule="copy_sms", M=64, N=256), replace(IDEAL, node_ranks=2)).bound
    assert far.transfer == pytest.approx(64 * 256 * 4 / 1e8)


@thorough(unless=lambda name: one_in(8, name))
@pytest.mark.parametrize("name", list(dict.fromkeys(program.name for program, schedule in cases() if schedule)))
def test_it_is_the_same_for_every_schedule(name: str) -> None:
    first, *others = (planned_with_launches(*case) for case in cases() if case[0].name == name)
    assert others
    found = simulate(**first, machine=H200S).bound
    for one in others:
        bound = simulate(**one, machine=H200S).bound
        assert bound.transfer == pytest.approx(found.transfer)
        masked = any(stage.masks for stage in one["plan"].bound.stages.values())
        # Roles leave out masks where all of a tile is seen: less is computed, but the products.
        assert bound.compute == pytest.approx(found.compute, rel=0.2 if masked else 1e-6)
