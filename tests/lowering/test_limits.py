"""Programs that are too large to plan are refused before memory is asked for."""

import tracemalloc
from typing import Any

import pytest

from tests.compiler.test_compiler import TEXT
from tilelink import compiler
from tilelink.errors import BindingError, ScheduleError

SCHEDULES = """
schedule rows for shift:
    send tile(i=1)
    add tile(i=1000, j=64)

schedule channels for shift:
    send tile(i=1000)
    left channel(i=1)
    add tile(i=1000, j=64)
"""
MODULE = compiler.parse(TEXT.partition("schedule ")[0] + SCHEDULES)


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


@pytest.mark.parametrize(("ranks", "m"), [(2, 2_100_000), (100, 50_000), (1, 2**31 - 1)])
def test_tiles(ranks: int, m: int) -> None:
    error = refused("rows", ranks, m)
    assert error.message == f"stage send has {m:,} tiles on each of {ranks:,} ranks"
    assert error.location is not None and error.location.line == 7


def test_many_ranks() -> None:
    assert "on each of 5,000,000 ranks" in refused(None, 5_000_000, 64).message


def test_channels() -> None:
    error = refused("channels", 1000, 100_000)
    assert error.message == "tensor left has 100,000 channels on each of 1,000 ranks"
    assert error.location is not None and error.location.line == 4


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
