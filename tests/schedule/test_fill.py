"""Rounds of a kernel that are filled with tiles of what comes behind: which, whose, and where that cannot be."""

from __future__ import annotations

from dataclasses import replace

import pytest

import tilelink
from tilelink.errors import ParseError, ScheduleError
from tilelink.frontend.schedule_parser import parse_schedule
from tilelink.schedule.bind import bind
from tilelink.schedule.bound import Bound
from tilelink.schedule.machine import load_machine
from tilelink.schedule.plan import Plan, make_plan
from tilelink.schedule.simulate import simulate
from tilelink.schedule.simulate.work import WorkOf
from tilelink.schedule.values import Schedule
from tilelink.schedule.verify import verify
from tilelink.target import CPU

PROGRAM = """\
program two(M, N, K):
    x : in    [M, K]
    w : in    [N, K]
    z : local [M, N]
    y : out   [M, N]

    compute make(i: M, j: N):
        z[i, j] = dot(x[i, :], w[j, :].T)
        producer_tile_notify(z[i, j])

    compute after(j: N):
        consumer_tile_wait(z[:, j])
        y[:, j] = 2.0 * z[:, j]

schedule one for two:
    make on sm, tile(i=16, j=16, k=8){make}
    after in make epilogue, tile(j=16){after}
"""

PRODUCT_BEHIND = (
    PROGRAM.replace("    y : out   [M, N]", "    u : in    [K, N]\n    y : out   [M, K]")
    .replace("after(j: N)", "after(i: M, l: K)")
    .replace("wait(z[:, j])", "wait(z[i, :])")
    .replace("y[:, j] = 2.0 * z[:, j]", "y[i, l] = dot(z[i, :], u[l, :].T)")
    .replace("tile(j=16){after}", "tile(i=16, l=16, n=8){after}")
)


def two(tiles: int, programs: int, after: str = "", make: str = "", text: str = PROGRAM) -> Bound:
    """So many tiles of 16 columns, and as many behind them."""
    module = tilelink.parse(text.replace("{make}", make).replace("{after}", after))
    dims = {"M": 16, "N": 16 * tiles - 5, "K": 64}
    processor = replace(CPU, sms=programs, max_programs=None)
    return bind(module.programs[0], module.schedules[0], dims, 1, processor)


def totals(bound: Bound) -> dict[str, int]:
    return {stage.name: stage.total for stage in bound.stages.values()}


def programs_of(plan: Plan, stage: str) -> list[int]:
    """The program of each of its tiles on rank 0."""
    first = plan.first_task[stage]
    return [plan.lanes[lane][2] for lane in plan.lane[first : first + plan.bound.stages[stage].total].tolist()]


# Which tiles, and whose --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tiles", "programs", "most", "found"),
    [
        (13, 4, 2, {"make": 13, "after": 6, "after_rest": 7}),  # one tile in the last round: three programs are free
        (14, 4, 2, {"make": 14, "after": 4, "after_rest": 10}),
        (14, 4, 50, {"make": 14, "after": 12, "after_rest": 2}),  # the last two wait for the last round
        (16, 4, 2, {"make": 16, "after": 16}),  # nobody is free
        (3, 3, 2, {"make": 3, "after": 3}),
        (5, 4, 1, {"make": 5, "after": 3, "after_rest": 2}),
    ],
)
def test_free_programs_begin_early(tiles: int, programs: int, most: int, found: dict[str, int]) -> None:
    bound = two(tiles, programs, f", fill {most}")
    assert totals(bound) == found
    plan = make_plan(bound)
    verify(plan)
    if "after_rest" in found:
        free = set(range(programs)) - set(programs_of(plan, "make")[tiles // programs * programs :])
        early = programs_of(plan, "after")
        assert set(early) == free
        assert max(early.count(program) for program in free) <= most


def test_all_tiles_are_done_in_the_order_that_they_had() -> None:
    plans = [make_plan(two(14, 4, f", order(j = 3 step +1){fill}")) for fill in ("", ", fill 1")]
    done = [
        [
            plan.tile_indices(plan.first_task[name] + tile)["j"]
            for name in ("after", "after_rest") if name in plan.first_task
            for tile in range(plan.bound.stages[name].total)
        ]
        for plan in plans
    ]  # fmt: skip
    assert done[0] == done[1] == [(3 + tile) % 14 for tile in range(14)]
    assert len(plans[1].first_task) == 3


def test_the_rest_goes_on_behind_the_products() -> None:
    plan = make_plan(two(14, 4, ", fill 1"))
    assert programs_of(plan, "after") == [2, 3]
    assert programs_of(plan, "after_rest") == [(14 + 2 + tile) % 4 for tile in range(12)]
    for name in ("after", "after_rest"):
        assert plan.sequence[plan.first_task[name]] >= 4  # behind all of the products' rounds


def test_tiles_that_wait_for_the_last_round_fill_nothing() -> None:
    backwards = ", order(j = 13 step -1), fill 4"
    assert totals(two(14, 4, backwards)) == {"make": 14, "after": 14}


def test_all_of_it_may_fill_the_round() -> None:
    """What is behind waits for nothing of the kernel."""
    text = PROGRAM.replace("        consumer_tile_wait(z[:, j])\n", "").replace("2.0 * z", "2.0 * v")
    text = text.replace("        producer_tile_notify(z[i, j])\n", "")
    text = text.replace("    y : out ", "    v : in    [M, N]\n    y : out ")
    bound = two(14, 4, ", fill 50", text=text)
    assert totals(bound) == {"make": 14, "after": 14}
    plan = make_plan(bound)
    verify(plan)
    assert set(programs_of(plan, "after")) == {2, 3}


def test_what_fills_a_round_is_done_tile_by_tile() -> None:
    """Some programs have nothing of it, and a pipeline through no tiles is none."""
    text = PRODUCT_BEHIND.replace("        consumer_tile_wait(z[i, :])\n", "").replace("dot(z[i", "dot(x[i")
    bound = two(
        14, 4, ", fill 1, flat", text=text.replace("u : in    [K, N]", "u : in    [K, K]").replace("n=8", "k=8")
    )
    assert [bound.stages[name].flat for name in ("after", "after_rest")] == [False, True]
    verify(make_plan(bound))


def test_names_of_the_program_are_left_alone() -> None:
    text = PROGRAM.replace("z ", "after_rest ").replace("z[", "after_rest[")
    assert "after_rest_" in two(14, 4, ", fill 2", text=text).stages


def test_flat_tiles_and_deferred_notifies_before_it_stay_what_they_are() -> None:
    bound = two(14, 4, ", fill 2", make=", flat, defer_notify")
    assert bound.stages["make"].flat and bound.stages["make"].defer_notify
    verify(make_plan(bound))


# What it is good for -----------------------------------------------------------------------------------------


def test_sums_of_a_large_product_are_done_earlier() -> None:
    """By the model; on two H200s that stand for eight it took 1.5 % off this."""
    module = tilelink.load("gemm_rs")
    program = module.program("gemm_rs_sums_last")
    machine = load_machine("8xH200")
    seconds = []
    for fill in (None, 2):
        schedule = module.schedule("h200", program).fill("sums", fill)
        dims = {"Ms": 1024, "N": 8192, "K": 3584}
        plan = tilelink.plan(program, schedule, ranks=8, dims=dims, dtype="bf16", target=machine.target)
        seconds.append(simulate(plan, machine).seconds)
    assert 0.95 < seconds[1] / seconds[0] < 0.98


def test_what_memory_gives_is_shared_by_those_who_fill() -> None:
    assert WorkOf(make_plan(two(14, 4, ", fill 2"))).programs == {"make": 4, "after": 2, "after_rest": 4}


# What cannot be ----------------------------------------------------------------------------------------------

TOGETHER = (
    PROGRAM.replace("after(j: N)", "after(i: M, j: N)").replace("[:, j]", "[i, j]").replace("tile(j", "tile(i=16, j")
)
TABLED = PROGRAM.replace("    y : out", "    t : table [1] < M\n    y : out").replace("wait(z[:,", "wait(z[t[0],")


@pytest.mark.parametrize(
    ("stage", "why", "text", "parts"),
    [
        ("make", "no tiles on SMs come before its own", PROGRAM, ", fill 2"),
        ("after", "its last tiles are divided", PRODUCT_BEHIND, ", fill 2, split_tail 2"),
        ("after", "other stages do its tiles with it", TOGETHER, ", fill 2"),
        ("after", "a table says what its tiles wait for", TABLED, ", fill 2"),
    ],
    ids=["first", "divided", "together", "tabled"],
)
def test_what_cannot_fill_says_why(stage: str, why: str, text: str, parts: str) -> None:
    with pytest.raises(ScheduleError, match=f"{stage} cannot fill a round of other tiles: {why}") as refused:
        two(14, 4, **{stage: parts}, text=text)
    assert refused.value.location is not None
    assert refused.value.hint == "take `fill` away"


def test_copies_by_the_engine_fill_nothing() -> None:
    module = tilelink.load("gemm_rs")
    program = module.program("gemm_rs_sums_last")
    schedule = module.schedule("copy_engine", program).fill("scatter", 2)
    with pytest.raises(ScheduleError, match="scatter cannot fill a round"):
        bind(program, schedule, {"Ms": 64, "N": 64, "K": 64}, 2, CPU)


# Text --------------------------------------------------------------------------------------------------------


def test_it_is_written_and_read() -> None:
    text = "schedule a for b:\n    sums in gemm epilogue, fill 8\n"
    assert str(parse_schedule(text)) == text
    assert parse_schedule(text).stage("sums").fill == 8
    assert parse_schedule(text).fill("sums", None).stage("sums").fill is None


@pytest.mark.parametrize("wrong", ["fill", "fill 0", "fill -1", "fill 2, fill 3"])
def test_what_is_no_number_of_tiles(wrong: str) -> None:
    with pytest.raises(ParseError):
        parse_schedule(f"schedule a for b:\n    sums in gemm epilogue, {wrong}\n")
    if wrong == "fill 0":
        with pytest.raises(ScheduleError, match="at least one tile"):
            Schedule(name="a", program="b").fill("sums", 0)
