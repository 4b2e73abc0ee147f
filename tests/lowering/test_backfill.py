"""Rounds of a kernel that are filled with tiles of what comes behind: which, whose, and where that cannot be."""

from __future__ import annotations

import re
from dataclasses import replace
from types import SimpleNamespace

import pytest

import tilelink
from tests.backend.samples import numbered
from tilelink.backend.emit import emit
from tilelink.errors import ParseError, ScheduleError
from tilelink.frontend.schedule_parser import parse_schedule
from tilelink.lowering.bind import bind
from tilelink.lowering.bound import Bound
from tilelink.lowering.clauses import backfill
from tilelink.lowering.clauses.backfill import BACKFILL
from tilelink.planning.plan import Plan, make_plan
from tilelink.scheduling.schedule import Schedule
from tilelink.simulator import simulate
from tilelink.simulator.machine import load_machine
from tilelink.simulator.work import WorkOf
from tilelink.target import CPU
from tilelink.verifier import verify

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
    return bound_of(text.replace("{make}", make).replace("{after}", after), programs, {"N": 16 * tiles - 5})


def bound_of(text: str, programs: int, dims: dict[str, int]) -> Bound:
    """A program of one row of tiles, on a processor for so many programs."""
    module = tilelink.parse(text)
    processor = replace(CPU, grows=False, sms=programs, max_programs=None)
    return bind(module.programs[0], module.schedules[0], {"M": 16, "K": 64, **dims}, 1, processor)


def totals(bound: Bound) -> dict[str, int]:
    return {stage.name: stage.total for stage in bound.stages.values()}


def programs_of(plan: Plan, stage: str) -> list[int]:
    """The program of each of its tiles on rank 0."""
    first = plan.first_task[stage]
    return [plan.workers[worker][2] for worker in plan.worker[first : first + plan.bound.stages[stage].total].tolist()]


# Which tiles, and whose --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tiles", "programs", "most", "found"),
    [
        (13, 4, 2, {"make": 13, "after": 6, "after_rest": 7}),  # one tile in the last wave: three programs are free
        (14, 4, 2, {"make": 14, "after": 4, "after_rest": 10}),
        (14, 4, 50, {"make": 14, "after": 12, "after_rest": 2}),  # the last two wait for the last wave
        (16, 4, 2, {"make": 16, "after": 16}),  # nobody is free
        (3, 3, 2, {"make": 3, "after": 3}),
        (5, 4, 1, {"make": 5, "after": 3, "after_rest": 2}),
    ],
)
def test_free_programs_begin_early(tiles: int, programs: int, most: int, found: dict[str, int]) -> None:
    bound = two(tiles, programs, f", backfill {most}")
    assert totals(bound) == found
    plan = make_plan(bound)
    verify(plan)
    if "after_rest" in found:
        free = set(range(programs)) - set(programs_of(plan, "make")[tiles // programs * programs :])
        early = programs_of(plan, "after")
        assert set(early) == free
        assert max(early.count(program) for program in free) <= most


def test_all_tiles_are_done_in_the_order_that_they_had() -> None:
    plans = [make_plan(two(14, 4, f", order(j = 3 step +1){fill}")) for fill in ("", ", backfill 1")]
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
    plan = make_plan(two(14, 4, ", backfill 1"))
    assert programs_of(plan, "after") == [2, 3]
    assert programs_of(plan, "after_rest") == [tile % 4 for tile in range(12)]  # the wave is full
    ends = [int(plan.sequence[plan.first_task[name] :][:count].max()) for name, count in (("make", 14), ("after", 2))]
    for name, end in zip(("after", "after_rest"), ends, strict=True):
        assert plan.sequence[plan.first_task[name] :][: plan.bound.stages[name].total].min() > end


def test_tiles_that_wait_for_the_last_round_fill_nothing() -> None:
    backwards = ", order(j = 13 step -1), backfill 4"
    assert totals(two(14, 4, backwards)) == {"make": 14, "after": 14}


def test_signals_of_very_many_tiles_are_not_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backfill, "LISTED", 20)
    bound = two(14, 4, ", backfill 4")
    assert totals(bound) == {"make": 14, "after": 14}
    assert [one.reason for one in bound.left_out] == ["the program has too many waits and notifies to look at each"]


def test_all_of_it_may_fill_the_round() -> None:
    """What is behind waits for nothing of the kernel."""
    text = PROGRAM.replace("        consumer_tile_wait(z[:, j])\n", "").replace("2.0 * z", "2.0 * v")
    text = text.replace("        producer_tile_notify(z[i, j])\n", "")
    text = text.replace("    y : out ", "    v : in    [M, N]\n    y : out ")
    bound = two(14, 4, ", backfill 50", text=text)
    assert totals(bound) == {"make": 14, "after": 14}
    plan = make_plan(bound)
    verify(plan)
    assert set(programs_of(plan, "after")) == {2, 3}


def test_what_fills_a_round_is_done_tile_by_tile() -> None:
    """Some programs have nothing of it, and a pipeline through no tiles is none."""
    text = PRODUCT_BEHIND.replace("        consumer_tile_wait(z[i, :])\n", "").replace("dot(z[i", "dot(x[i")
    text = text.replace("u : in    [K, N]", "u : in    [K, K]").replace("l=16, n=8", "l=8, k=8")
    bound = two(14, 4, ", backfill 1, flatten", text=text)
    assert [bound.stages[name].flatten for name in ("after", "after_rest")] == [False, True]
    verify(make_plan(bound))


def test_names_of_the_program_are_left_alone() -> None:
    text = PROGRAM.replace("z ", "after_rest ").replace("z[", "after_rest[")
    assert "after_rest_" in two(14, 4, ", backfill 2", text=text).stages


THREE = """\
program three(M, N, K, B):
    x : in  [M, K]
    w : in  [N, K]
    a : in  [B, N]
    c : in  [B, B]
    z : out [M, N]
    s : out [B, B]
    y : out [B, N]

    compute make(i: M, j: N):
        z[i, j] = dot(x[i, :], w[j, :].T)

    compute mid(b: B, d: B):
        s[b, d] = 2.0 * c[b, d]

    compute after(b: B, j: N):
        y[b, j] = 2.0 * a[b, j]

schedule one for three:
    make on sm, tile(i=16, j=16, k=8)
    mid in make epilogue, tile(b=16, d=16){mid}
    after in make epilogue, tile(b=48, j=16){after}
"""


def three(mid: str, after: str, text: str = THREE) -> Bound:
    """13 products, 9 tiles behind them and 13 more, on 4 programs."""
    return bound_of(text.replace("{mid}", mid).replace("{after}", after), 4, {"N": 16 * 13, "B": 40})


@pytest.mark.parametrize(
    ("mid", "after", "found"),
    [
        ("", "", [9, 9, 9, 8]),
        (", backfill 3", "", [8, 9, 9, 9]),  # nothing is left of the second stage
        (", backfill 2", "", [8, 9, 9, 9]),
        (", backfill 3", ", backfill 2", [8, 9, 9, 9]),  # its own last wave is full: nobody is free for the third
        (", backfill 2", ", backfill 2", [8, 9, 9, 9]),
    ],
)
def test_what_comes_behind_a_full_round_is_dealt_out_evenly(mid: str, after: str, found: list[int]) -> None:
    bound = three(mid, after)
    plan = make_plan(bound)
    verify(plan)
    done = [program for name in bound.stages for program in programs_of(plan, name)]
    assert [done.count(program) for program in range(4)] == found


def test_lines_of_a_schedule_may_come_in_any_order() -> None:
    """Rounds are filled from the first loop to the last one: what one moves decides who is free for the next."""
    *lines, mid, after = THREE.splitlines(keepends=True)
    one, other = (
        three(", backfill 2", ", backfill 2", "".join([*lines, *last])) for last in ((mid, after), (after, mid))
    )
    assert other.schedule.stages != one.schedule.stages
    assert other.kernels == one.kernels and totals(other) == totals(one)


def test_what_filled_a_round_was_made_in_it() -> None:
    """The third stage waits for tiles of the second one that stood behind that wave, were they dealt out evenly."""
    text = THREE.replace("s : out [B, B]", "s : local [B, B]")
    text = text.replace("c[b, d]\n", "c[b, d]\n        producer_tile_notify(s[b, d])\n")
    text = text.replace("        y[b, j]", "        consumer_tile_wait(s[16, :])\n        y[b, j]")
    bound = three(", backfill 2", ", backfill 2", text)
    assert totals(bound) == {"make": 13, "mid": 6, "after": 2, "mid_rest": 3, "after_rest": 11}


def test_a_kernels_own_stage_may_fill_the_round_before_it() -> None:
    text = THREE.replace("mid in make epilogue", "mid in make prologue").replace("k=8)", "k=8), backfill 2")
    bound = three("", "", text)
    assert totals(bound) == {"make": 6, "mid": 9, "after": 13, "make_rest": 7}
    verify(make_plan(bound))


def emitted_tiles(bound: Bound) -> list[list[tuple[str, int]]]:
    """The tiles of each program of the first kernel, as the generated loops have them."""
    plan = make_plan(bound)
    heads = re.findall(r"for tile in tl\.range\((.*), num_stages=1", numbered(emit(bound, plan.thresholds).text))
    kernel = bound.kernels[0]
    assert len(heads) == len(kernel.loops)
    where = SimpleNamespace(where=lambda condition, one, other: one if condition else other)

    def of(program: int) -> list[tuple[str, int]]:
        known = {"tl": where, "pid": program, "num_programs": kernel.programs}
        loops = [(loop.stages[0], range(*eval(head, known))) for loop, head in zip(kernel.loops, heads, strict=True)]
        return [(name, tile) for name, tiles in loops for tile in tiles]

    return [of(program) for program in range(kernel.programs)]


@pytest.mark.parametrize(
    "bound", [two(14, 4, ", backfill 1"), two(17, 5, ", backfill 9"), three(", backfill 2", ", backfill 2")]
)
def test_generated_loops_have_the_tiles_of_the_plan(bound: Bound) -> None:
    plan = make_plan(bound)
    planned = [list[tuple[int, str, int]]() for _ in range(bound.kernels[0].programs)]
    for name, stage in bound.stages.items():
        for tile, program in enumerate(programs_of(plan, name)):
            planned[program].append((int(plan.sequence[plan.first_task[name] + tile]), name, tile))
        assert stage.total
    assert emitted_tiles(bound) == [[(name, tile) for _, name, tile in sorted(own)] for own in planned]


RELAYED = """program relayed(M, N, K):
    x : in    [M, K]
    w : in    [N, K]
    u : in    [48, 16]
    z : out   [M, N]
    a : local [48, 16]
    b : local [48, 16]
    y : out   [48, 16]

    compute make(i: M, j: N):
        z[i, j] = dot(x[i, :], w[j, :].T)

    compute after(r: 48):
        a[r, :] = 2.0 * u[r, :]
        producer_tile_notify(a[r, :])
        consumer_tile_wait(b[:, :])
        y[r, :] = 2.0 * b[r, :]

    comm relay(r: 48):
        consumer_tile_wait(a[r, :])
        b[r, :] = a[r, :]
        producer_tile_notify(b[r, :])

schedule one for relayed:
    make on sm, tile(i=16, j=16, k=8)
    after in make epilogue, tile(r=16), backfill 2
    relay on sm(1), tile(r=16)
"""


def test_tiles_that_wait_for_what_others_make_of_later_ones_fill_nothing() -> None:
    """Two of them in one program would wait for each other for ever."""
    bound = two(7, 5, text=RELAYED)
    assert totals(bound) == {"make": 7, "after": 3, "relay": 3}
    verify(make_plan(bound))


DEFERRED = """\
program own(M, N, K):
    x : in    [M, K]
    w : in    [N, K]
    u : in    [K, K]
    z : out   [M, N]
    v : local [M, K]
    y : out   [M, K]

    compute make(i: M, j: N):
        z[i, j] = dot(x[i, :], w[j, :].T)

    compute after(i: M, l: K):
        v[i, l] = dot(x[i, :], u[l, :].T)
        producer_tile_notify(v[i, l])

    compute last(i: M):
        consumer_tile_wait(v[i, :])
        y[i, :] = 2.0 * v[i, :]

schedule one for own:
    make on sm, tile(i=16, j=16, k=8)
    after in make epilogue, tile(i=16, l=16, k=8), defer_notify, backfill 1
    last in make epilogue, tile(i=16)
"""


def test_notifies_of_what_fills_a_round_are_not_deferred() -> None:
    bound = two(14, 4, text=DEFERRED)
    assert [bound.stages[name].defer_notify for name in ("after", "after_rest")] == [False, True]
    verify(make_plan(bound))


# What it is good for -----------------------------------------------------------------------------------------


def test_sums_of_a_large_product_are_done_earlier() -> None:
    """By the model; on two H200s that stand for eight it took 1.5 % off this."""
    module = tilelink.load("gemm_rs")
    program = module.program("gemm_rs_reduce_last")
    machine = load_machine("8xH200")
    seconds = []
    for fill in (None, 2):
        schedule = module.schedule("h200", program).backfill("sums", fill)
        dims = {"Ms": 1024, "N": 8192, "K": 3584}
        plan = tilelink.plan(program, schedule, ranks=8, dims=dims, dtype="bf16", target=machine.processor)
        seconds.append(simulate(plan, machine).seconds)
    assert 0.95 < seconds[1] / seconds[0] < 0.98


def test_what_memory_gives_is_shared_by_those_who_fill() -> None:
    assert WorkOf(make_plan(two(14, 4, ", backfill 2"))).programs == {"make": 4, "after": 2, "after_rest": 4}


# What cannot be ----------------------------------------------------------------------------------------------

TOGETHER = (
    PROGRAM.replace("after(j: N)", "after(i: M, j: N)").replace("[:, j]", "[i, j]").replace("tile(j", "tile(i=16, j")
)
TABLED = PROGRAM.replace("    y : out", "    t : table [1] < M\n    y : out").replace("wait(z[:,", "wait(z[t[0],")


@pytest.mark.parametrize(
    ("stage", "why", "text", "parts"),
    [
        ("make", "no tiles on SMs come before its own", PROGRAM, ", backfill 2"),
        ("after", "its last tiles are divided", PRODUCT_BEHIND, ", backfill 2, split_k_tail 2"),
        ("after", "make and its epilogues of the same ranges execute each tile together", TOGETHER, ", backfill 2"),
        ("after", "there is a table", TABLED, ", backfill 2"),
    ],
    ids=["first", "divided", "together", "tabled"],
)
def test_what_cannot_fill_says_why(stage: str, why: str, text: str, parts: str) -> None:
    with pytest.raises(ScheduleError, match=f"{stage} cannot fill a wave of other tiles: {why}") as refused:
        two(14, 4, **{stage: parts}, text=text)
    assert refused.value.location is not None
    other = ", or run the stage after another one in its kernel: in STAGE epilogue"
    assert refused.value.hint == "take `backfill` away" + (other if stage == "make" else "")


def test_copies_by_the_engine_fill_nothing() -> None:
    module = tilelink.load("gemm_rs")
    program = module.program("gemm_rs_reduce_last")
    schedule = module.schedule("copy_engine", program).backfill("scatter", 2)
    with pytest.raises(ScheduleError, match="scatter cannot fill a wave"):
        bind(program, schedule, {"Ms": 64, "N": 64, "K": 64}, 2, CPU)


# Text --------------------------------------------------------------------------------------------------------


def test_it_is_written_and_read() -> None:
    text = "schedule a for b:\n    sums in gemm epilogue, backfill 8\n"
    assert str(parse_schedule(text)) == text
    assert parse_schedule(text).stage("sums")[BACKFILL] == 8
    assert parse_schedule(text).backfill("sums", None).stage("sums")[BACKFILL] is None


@pytest.mark.parametrize("wrong", ["backfill", "backfill 0", "backfill -1", "backfill 2, backfill 3"])
def test_what_is_no_number_of_tiles(wrong: str) -> None:
    with pytest.raises(ParseError):
        parse_schedule(f"schedule a for b:\n    sums in gemm epilogue, {wrong}\n")
    if wrong == "backfill 0":
        with pytest.raises(ScheduleError, match="at least one tile"):
            Schedule(name="a", program="b").backfill("sums", 0)
