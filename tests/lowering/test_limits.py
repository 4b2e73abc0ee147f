"""Programs that are too large to plan are refused before memory is asked for."""

import tracemalloc
from typing import Any

import pytest

from tests.compiler.test_compiler import TEXT
from tilelink import compiler
from tilelink.errors import BindingError, ScheduleError
from tilelink.lowering import walk
from tilelink.planning.plan import make_plan
from tilelink.scheduling.schedule import Schedule
from tilelink.verifier import cells

SCHEDULES = """
schedule rows for shift:
    send tile(i=1)
    add tile(i=1000, j=64)

schedule channels for shift:
    send tile(i=1000)
    left channel(i=1)
    add tile(i=1000, j=64)
"""
RING = TEXT.partition("schedule ")[0] + SCHEDULES
MODULE = compiler.parse(RING.replace("@ (rank + 1)", "@ (ranks - 1 - rank)"))
"""No rank of it stands for others, as one of a ring does."""


def refused(schedule: str | None, ranks: int, m: int, n: int = 64) -> ScheduleError:
    program = MODULE.program()
    chosen = MODULE.schedule(schedule, program) if schedule else None
    compiler.check(program)
    tracemalloc.start()
    try:
        with pytest.raises(ScheduleError) as caught:
            compiler.plan(program, chosen, ranks=ranks, dims={"M": m, "N": n})
        assert tracemalloc.get_traced_memory()[1] < 50e6
    finally:
        tracemalloc.stop()
    return caught.value


@pytest.mark.parametrize(("ranks", "hint"), [("3", "an integer, as in ranks=4"), (0, "at least one rank")])
def test_ranks_are_a_number(ranks: Any, hint: str) -> None:
    with pytest.raises(BindingError, match="ranks") as caught:
        compiler.plan(MODULE.program(), None, ranks=ranks, dims={"M": 3000, "N": 64})
    assert hint in (caught.value.hint or "")


@pytest.mark.parametrize(("ranks", "m"), [(2, 4_200_000), (100, 100_000), (1, 60_000_000)])
def test_tiles(ranks: int, m: int) -> None:
    error = refused("rows", ranks, m)
    assert error.message == f"stage send has {m:,} tiles on each of {ranks:,} ranks"
    assert error.location is not None and error.location.line == 7


def test_many_ranks() -> None:
    assert "on each of 60,000 ranks" in refused(None, 60_000, 10_000).message


def test_of_a_ring_of_many_ranks_one_is_planned() -> None:
    module = compiler.parse(RING)
    tracemalloc.start()
    try:
        plan = compiler.plan(module.program(), None, ranks=60_000, dims={"M": 10_000, "N": 64})
        assert tracemalloc.get_traced_memory()[1] < 100e6  # 600 million tiles
    finally:
        tracemalloc.stop()
    assert plan.bound.ranks == 60_000


@pytest.mark.parametrize("ranks", [65_537, 1_000_000])
def test_more_ranks_than_there_are(ranks: int) -> None:
    """Also with so few tiles that a plan would hold them."""
    with pytest.raises(BindingError, match=f"{ranks:,} ranks") as caught:
        compiler.compile(MODULE.program(), ranks=ranks, dims={"M": 8, "N": 8})
    assert caught.value.hint == "a program runs on 65,536 ranks at most"


def test_channels() -> None:
    error = refused("channels", 1000, 100_000)
    assert error.message == "tensor left has 100,000 channels on each of 1,000 ranks"
    assert error.location is not None and error.location.line == 4


LOOPS = """program summed(M, Q):
    x : in [M]
    y : out [M]

    compute add(i: M):
        acc = x[i]
        {loop}
        y[i] = acc
"""


def loop_refused(loop: str, ranks: int, m: int, q: int) -> ScheduleError:
    """The refusal of the plan of all tiles and ranks, which a proof by few blocks need not make."""
    program = compiler.parse(LOOPS.format(loop=loop)).program()
    tracemalloc.start()
    try:
        with pytest.raises(ScheduleError) as caught:
            schedule = Schedule(name="s", program="summed").tile("add", i=8)
            make_plan(compiler.bound(program, schedule, ranks=ranks, dims={"M": m, "Q": q}))
        assert tracemalloc.get_traced_memory()[1] < 50e6
    finally:
        tracemalloc.stop()
    assert caught.value.location is not None and caught.value.location.line == 7
    return caught.value


@pytest.mark.parametrize("body", ["acc = 1.0", "acc += x[i]"], ids=["no access", "an access"])
@pytest.mark.parametrize("q", [40_000_000, 2_000_000_000])
def test_iterations(body: str, q: int) -> None:
    error = loop_refused(f"for (q: Q by 1):\n            {body}", 1, 8, q)
    assert error.message == f"the loop over q of stage add has {q:,} iterations"
    assert error.hint is not None and "a plan holds 33,554,432 executions of statements in loops" in error.hint


def test_iterations_of_all_tiles_and_ranks() -> None:
    error = loop_refused("for (q: Q by 1):\n            acc += x[i]", 50, 800, 10_000)
    assert error.message == "the loop over q of stage add has 10,000 iterations, and is executed 5,000 times"


def test_iterations_of_several_indices_and_nested_loops() -> None:
    error = loop_refused("for (q: Q by 1, r: Q by 1):\n            acc += x[i]", 1, 8, 100_000)
    assert "the loop over q, r of stage add has 10,000,000,000 iterations" in error.message
    inner = "for (q: Q by 1):\n            for (r: Q by 1):\n                acc += x[i]"
    program = compiler.parse(LOOPS.format(loop=inner)).program()
    with pytest.raises(ScheduleError, match=r"over r of stage add has 9,000 iterations, and is executed 9,000 times"):
        compiler.plan(program, ranks=1, dims={"M": 8, "Q": 9_000})


def test_statements_of_loops_are_counted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two loops after one another, of which each would fit."""
    one = "for (q: Q by 1):\n            acc += x[i]"
    program = compiler.parse(LOOPS.format(loop=f"{one}\n        {one.replace('q:', 'r:')}")).program()
    monkeypatch.setattr(walk, "MAX_EXECUTIONS", 1000)
    assert compiler.plan(program, ranks=1, dims={"M": 8, "Q": 500}).tasks == 1
    with pytest.raises(ScheduleError, match="the loop over r"):
        compiler.plan(program, ranks=1, dims={"M": 8, "Q": 501})


def test_dimensions() -> None:
    def plan(n: int) -> int:
        names = ", ".join(f"i{k}: M" for k in range(n))
        at, shape = ", ".join(f"i{k}" for k in range(n)), ", ".join(["M"] * n)
        text = f"program p(M = 2):\n    x : in [{shape}]\n    y : out [{shape}]\n\n    compute a({names}):\n"
        program = compiler.parse(f"{text}        y[{at}] = x[{at}]\n").program()
        return compiler.plan(program, ranks=1, dims={"M": 2}).tasks

    assert plan(8) == 1
    with pytest.raises(ScheduleError, match="tensor x has 17 dimensions") as caught:
        plan(17)
    assert caught.value.location is not None and caught.value.location.line == 2


def test_parts_between_the_edges_of_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of one stage and columns of another cut a tensor into its elements."""
    text = """program crossed(M):
    x : in    [M, M]
    h : local [M, M]
    y : out   [M, M]

    compute rows(i: M):
        h[i, :] = x[i, :]
        producer_tile_notify(h[i, :])

    compute columns(j: M):
        consumer_tile_wait(h[:, j])
        y[:, j] = h[:, j]

schedule s for crossed:
    rows tile(i=1)
    columns tile(j=1)
"""
    module = compiler.parse(text)

    def plan(m: int) -> int:
        return compiler.plan(module.program(), module.schedules[0], ranks=2, dims={"M": m}).tasks

    monkeypatch.setattr(cells, "MAX_CELLS", 1024)
    assert plan(32) == 128
    with pytest.raises(ScheduleError, match="the edges of tiles cut h into 1,089 parts") as caught:
        plan(33)
    assert caught.value.location is not None and caught.value.location.line == 3


def test_what_is_large_but_fits_is_planned() -> None:
    schedule = MODULE.schedule("rows", MODULE.program())
    assert compiler.plan(MODULE.program(), schedule, ranks=2, dims={"M": 3000, "N": 64}).tasks == 2 * (3000 + 3)


@pytest.mark.parametrize("m", [2**31, 10**20, float("inf"), 1e300, 0, -1, 2.5, True])
def test_sizes_that_are_none(m: float) -> None:
    with pytest.raises(BindingError, match=r"positive integer, below 2\*\*31"):
        compiler.plan(MODULE.program(), ranks=2, dims={"M": m, "N": 64})


def test_a_float_that_is_whole_is_an_integer() -> None:
    numbers = compiler.plan(MODULE.program(), ranks=2, dims={"M": 80.0, "N": 64}).bound.numbers
    assert repr(numbers["M"]) == "80"
