"""`dynamic`: programs that take tiles by a counter, the proof of it, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest

from tests.lowered import parse_lowered
from tests.traces import differences
from tests.verifier import dynamic as checker
from tilelink import compiler
from tilelink.artifact import TileCounterPointer
from tilelink.backend.emit import emit
from tilelink.compiler.cuda import gpu_artifact
from tilelink.errors import OrderingError, ProgressError, ScheduleError, TilesError
from tilelink.lowering.bound import Bound
from tilelink.lowering.listing import listing
from tilelink.planning.any_program import of_any_program, together
from tilelink.planning.plan import Plan, make_plan
from tilelink.reference.trial import compared, random_inputs, relative_error
from tilelink.scheduling.schedule import Schedule
from tilelink.target import target
from tilelink.verifier import refusals, verify

PROGRAMS = {"ag_gemm": "gemm", "gemm_rs_slots": "gemm", "all_gather": "gather", "gemm_rs_ring": "ring"}
DIMS = {"Ms": 32, "M": 96, "N": 48, "K": 32}


def stage_of(name: str) -> str:
    program = compiler.load(name).program(name)
    names = [stage.name for stage in program.stages]
    return PROGRAMS[name] if PROGRAMS[name] in names else names[0]


def bound(name: str, on: str = "cpu", schedule: Schedule | None = None, **options: Any) -> Bound:
    program = compiler.load(name).program(name)
    stage = stage_of(name)
    chosen = (schedule or Schedule(name="taken", program=name).tile(stage, i=16)).dynamic(stage)
    machine = target(on) if on == "cpu" else replace(target(on), sms=4)
    dims = {p.name: DIMS[p.name] for p in program.params}
    return compiler.bound(program, chosen, ranks=3, dims=dims, dtype="f32", target=machine, **options)


def dealt(plan: Plan, seed: int) -> Plan:
    """Return the plan of a launch in which programs take tiles as chance has it, each in rising order."""
    chance = Random(seed)
    worker, sequence = plan.worker.copy(), plan.sequence.copy()
    tasks = np.flatnonzero(of_any_program(plan))
    programs: dict[tuple[int, int], list[int]] = {}
    for number, (kernel, rank, _) in enumerate(plan.workers):
        programs.setdefault((kernel, rank), []).append(number)
    for task in tasks.tolist():
        kernel, rank, _ = plan.workers[plan.worker[task]]
        worker[task], sequence[task] = chance.choice(programs[kernel, rank]), task
    return replace(plan, worker=worker, sequence=sequence)


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_that_take_tiles_compute_what_the_program_says(name: str) -> None:
    program = compiler.load(name).program(name)
    stage = stage_of(name)
    schedule = Schedule(name="taken", program=name).tile(stage, i=8).dynamic(stage)
    dims = {p.name: DIMS[p.name] for p in program.params}
    kernel = compiler.compile(program, schedule, ranks=3, dims=dims, dtype="f32")
    assert any(one.dynamic for one in kernel.bound.kernels) and "dl.take_tile(" in kernel.source
    inputs = random_inputs(program, ranks=3, dims=dims, dtype="f32", launches=3, seed=5)
    result = kernel.run(inputs, seed=3, max_delay_s=0.001, trace=True)
    for given, outputs in zip(inputs, result.outputs, strict=True):
        expected = kernel.reference(given)
        for tensor in outputs[0]:
            assert relative_error(*compared(outputs, expected, tensor)) < 1e-5
    workers = {(one.rank, one.stream, one.program): list(one.events) for one in result.traces}
    assert differences(kernel.plan, workers, 3) == []
    number = kernel.bound.stages[stage].number
    key, last = next((k, e[-1]) for k, own in workers.items() if (e := [one for one in own if one.stage == number]))
    lost = [one for one in workers[key] if (one.stage, one.tile, one.epoch) != (number, last.tile, last.epoch)]
    assert any("not each of its tiles once" in line for line in differences(kernel.plan, {**workers, key: lost}, 3))


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_choice_of_programs_is_right(name: str) -> None:
    """An explorer of interleavings that shares nothing with the verifier finds no failure of what it accepts."""
    plan = make_plan(bound(name))
    verify(plan)
    for seed in range(6):
        assert checker.check(dealt(plan, seed), seeds=range(seed, seed + 2)) == []


def test_the_lowered_text_says_it() -> None:
    made = bound("ag_gemm", on="sm_90")
    assert made.kernel_of["gemm"].dynamic
    assert listing(parse_lowered(listing(made))) == listing(made)
    one = together(make_plan(made))
    first, total = one.first_task["gemm"], made.stages["gemm"].total
    assert len(np.unique(one.worker[first : first + total * 3])) == 3


def test_kernels_are_passed_a_counter_of_their_own() -> None:
    artifact = gpu_artifact(make_plan(bound("gemm_rs_slots", on="sm_90")), {})
    having = {one.name for one in artifact.kernels if TileCounterPointer() in one.parameters}
    assert having == {"gemm"}


@pytest.mark.parametrize("machine", ["sm_90", "sm_80", "gfx942"])
def test_it_compiles(machine: str) -> None:
    program = compiler.load("ag_gemm").program("ag_gemm")
    dims = {"Ms": 512, "N": 512, "K": 512}
    schedule = Schedule(name="taken", program="ag_gemm").tile("gemm", i=64, j=64, k=32).dynamic("gemm")
    small = replace(target(machine), sms=4)
    text = compiler.assembly(program, schedule, ranks=2, dims=dims, target=small)
    added = [line for line in text.splitlines() if "atom" in line and "add" in line and "f32" not in line]
    assert len(added) >= 2  # before the loop and in it


def test_a_dialect_without_counters_takes_tiles_in_turn() -> None:
    made = bound("ag_gemm", on="sm_90", dialect="triton_dist")
    assert not made.kernel_of["gemm"].dynamic and "take_tile" not in emit(made, make_plan(made).thresholds).text


def refused(text: str, **dims: int) -> Iterator[Exception]:
    module = compiler.parse(text, "carried.tl")
    made = compiler.bound(module.program(), module.schedules[0], ranks=1, dims=dims, dtype="f32", target="cpu")
    yield from refusals(make_plan(made))


BACKWARDS = """program backwards(M, N):
    x : in    [M, N]
    h : local [M, N]
    y : out   [M, N]

    compute both(s: 2, i: M):
        if s == {first}:
            h[i, :] = x[i, :] * 2.0
            producer_tile_notify(h[i, :])
        else:
            consumer_tile_wait(h[i, :])
            y[i, :] = h[i, :] + 1.0

schedule one for backwards:
    both on sm, tile(i=16), dynamic
    h channel(i=16)
"""


def test_a_tile_that_waits_for_an_earlier_one_is_accepted() -> None:
    assert list(refused(BACKWARDS.format(first=0), M=64, N=16)) == []


def test_a_tile_that_waits_for_a_later_one_is_refused() -> None:
    """With one program alone it would never come to it, however many there are."""
    found = list(refused(BACKWARDS.format(first=1), M=64, N=16))
    assert any(isinstance(one, ProgressError) for one in found)


WAITING = """program p(M, N):
    x : in        [M, N]
    h : symmetric [M, N]
    y : out       [M, N]
    compute take(i: M):
        consumer_tile_wait(h[i, :])
        y[i, :] = h[i, :]
    comm send(i: M):
        tile_push_data(h[i, :] @ (rank + 1), x[i, :])
        producer_tile_notify(h[i, :] @ (rank + 1))
schedule one for p:
    take on sm(4), tile(i=2), dynamic
    send on sm(2), tile(i=2)
"""


def test_programs_that_may_all_wait_leave_room_for_those_that_they_wait_for() -> None:
    """Any of the four may have a tile that waits: on four SMs there is no place for a program that sends."""
    module = compiler.parse(WAITING)

    def planned(sms: int) -> Plan:
        on = replace(target("sm_90"), sms=sms)
        return compiler.plan(module.program(), module.schedules[0], ranks=2, dims={"M": 16, "N": 4}, target=on)

    assert of_any_program(planned(5)).any()
    with pytest.raises(ProgressError, match=r"take tile .* waits for ever for h"):
        planned(4)


IN_TURN = """program in_turn(M, N):
    x : in    [M, N]
    h : local [M, N]
    y : out   [M, N]

    compute both(s: 2, i: M):
        if s == 0:
            h[i, :] = x[i, :] * 2.0
        else:
            y[i, :] = h[i, :] + 1.0

schedule one for in_turn:
    both on sm, tile(i=16){more}
"""


def test_the_order_of_a_program_is_not_relied_on() -> None:
    """Tiles 0 and 4 are program 0's in turn, so that the second reads what the first wrote; a counter may part them."""
    assert list(refused(IN_TURN.format(more=""), M=32, N=16)) == []
    found = list(refused(IN_TURN.format(more=", dynamic"), M=32, N=16))
    assert any(isinstance(one, OrderingError) for one in found)


REFUSED = {
    "tile(i=128, j=128, k=64), roles(consumers=2, buffers=4)": "its warps have roles",
    "flatten": "its pipeline goes through all tiles",
    "defer_notify": "a tile is notified by the next one",
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_kernel_that_cannot_is_refused(case: str) -> None:
    name = "gemm_rs_local_last" if case == "defer_notify" else "ag_gemm"
    program = compiler.load(name).program(name)
    stage = program.stages[1 if name == "ag_gemm" else 0].name
    module = compiler.parse(f"{program}\nschedule s for {name}:\n    {stage} on sm, {case}, dynamic\n", "refused.tl")
    dims = {p.name: 1024 for p in program.params}
    with pytest.raises(
        ScheduleError, match=f"the programs of .* cannot take tiles by a counter: {REFUSED[case]}"
    ) as caught:
        compiler.bound(program, module.schedules[0], ranks=2, dims=dims, dtype="bf16", target="sm_90")
    assert "take `dynamic` away" in str(caught.value.hint) and caught.value.location is not None


@pytest.mark.parametrize("on", ["cpu", "sm_90"])
@pytest.mark.parametrize("rows", [32, 4096])
@pytest.mark.parametrize("dialect", ["triton", "triton_dist"])
def test_a_program_for_each_tile_takes_none_by_a_counter(on: str, rows: int, dialect: str) -> None:
    """Also where one of the clauses would have no effect: a schedule that is accepted is so on other machines."""
    program = compiler.load("ag_gemm").program("ag_gemm")
    text = f"{program}\nschedule s for ag_gemm:\n    gather on copy_engine\n    gemm on sm, dynamic, program_per_tile\n"
    module = compiler.parse(text, "refused.tl")
    dims = {"Ms": rows, "N": 256, "K": 64}
    with pytest.raises(ScheduleError, match="`program_per_tile` gives each tile a program of its own") as caught:
        compiler.bound(program, module.schedules[0], ranks=2, dims=dims, dtype="bf16", target=on, dialect=dialect)
    assert caught.value.hint == "take `dynamic` away" and caught.value.location is not None


def test_a_lowered_program_that_cannot_is_refused() -> None:
    made = bound("ag_gemm", on="sm_90")
    kernels = tuple(replace(k, program_per_tile=True) if k.dynamic else k for k in made.kernels)
    found = [one for one in refusals(make_plan(replace(made, kernels=kernels))) if isinstance(one, TilesError)]
    assert any("it has a program for each tile" in one.message for one in found)
