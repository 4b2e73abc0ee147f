"""`tilelink.simulate`: one call from a program to its predicted time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import tilelink
from tests.simulator.cases import H200S, SHIFT, Fixed
from tilelink.errors import MachineError, VerificationError
from tilelink.simulator import simulate as simulate_plan
from tilelink.simulator.machine import save_machine

MODULE = tilelink.parse(SHIFT)
PROGRAM = MODULE.program()
ENGINE = MODULE.schedule("engine", PROGRAM)
DIMS = {"M": 256, "N": 128}


def test_it_plans_for_the_machine_and_simulates(tmp_path: Path) -> None:
    result = tilelink.simulate(PROGRAM, ENGINE, ranks=3, dims=DIMS, dtype="f16")
    plan = tilelink.plan(PROGRAM, ENGINE, ranks=3, dims=DIMS, dtype="f16", target="sm_90")
    assert result == simulate_plan(plan, H200S)
    save_machine(replace(H200S, target="sm_80", sms=108, link_bandwidth=1e9), tmp_path / "mine.json")
    slower = tilelink.simulate(PROGRAM, ENGINE, ranks=3, dims=DIMS, dtype="f16", machine=tmp_path / "mine.json")
    assert slower.seconds > result.seconds
    assert slower.plan.bound.target.name == "sm_80"


def test_costs_and_offsets_are_handed_on() -> None:
    machine = replace(H200S, kernel_start=0.0)
    result = tilelink.simulate(
        PROGRAM, ENGINE, ranks=2, dims=DIMS, machine=machine, cost=Fixed(seconds=7.0), offsets=[0.0, 5.0]
    )
    assert result.seconds == pytest.approx(12.0, rel=1e-3)


def test_nothing_is_simulated_that_is_not_proved() -> None:
    unsafe = tilelink.parse(SHIFT.replace("        consumer_tile_wait(h[i, :])\n", "")).program()
    with pytest.raises(VerificationError):
        tilelink.simulate(unsafe, ranks=2, dims=DIMS)
    with pytest.raises(MachineError, match="8xNothing"):
        tilelink.simulate(PROGRAM, ranks=2, dims=DIMS, machine="8xNothing")


@pytest.mark.parametrize("name", ["all_gather_ring", "gemm_rs_ring", "two_level_all_gather"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_stages_without_a_tile_take_no_time(name: str, ranks: int) -> None:
    """Of few ranks nothing is passed on: the run ends, and numpy has no mean of nothing to warn of."""
    module = tilelink.load(name if name != "gemm_rs_ring" else "gemm_rs")
    program = module.program(name)
    dims = {p.name: 256 if p.kind == "dim" else 1 for p in program.params}
    for schedule in (None, *module.schedules_of(program)):
        assert 0 < tilelink.simulate(program, schedule, ranks=ranks, dims=dims).seconds < 1e-3


def test_between_nodes_is_the_network() -> None:
    program = tilelink.load("two_level_all_gather").program()
    dims = {"Ms": 512, "K": 1024, "g": 2}
    one, two = (tilelink.simulate(program, ranks=4, nodes=n, dims=dims, machine="8xH100") for n in (1, 2))
    assert two.machine.node_ranks == 2 and one.machine.node_ranks == 8
    assert two.seconds > one.seconds
    assert any("put" in str(statement) for _, statement in two.plan.statements)


def test_messages_between_nodes_have_their_price() -> None:
    """docs/multi_node.md has these figures."""
    module = tilelink.load("gemm_rs")
    program = module.program("gemm_rs_local_last")
    dims = {"Ms": 4096, "N": 4096, "K": 5504}
    parts, rows = (
        tilelink.simulate(program, module.schedule(name, program), ranks=2, nodes=2, dims=dims, machine="8xH100")
        for name in ("h200_copy_sms", "network")
    )  # fmt: skip
    assert (round(parts.seconds * 1e3, 1), round(rows.seconds * 1e3, 1)) == (16.6, 0.9)
