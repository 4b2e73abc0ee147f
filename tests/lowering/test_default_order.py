"""Where stages run by default, in whatever order a program has them."""

from __future__ import annotations

from dataclasses import replace

import pytest

import tilelink
from tilelink.errors import ProgressError
from tilelink.scheduling.schedule import Sm
from tilelink.target import CPU

TEXT = """
program chain(M, N):
    x : in    [M, N]
    a : local [M, N]
    b : local [M, N]
    y : out   [M, N]

    compute last(i: M, j: N):
        consumer_tile_wait(b[i, j])
        y[i, j] = b[i, j] + 1.0

    compute second(i: M, j: N):
        consumer_tile_wait(a[i, j])
        b[i, j] = a[i, j] * 2.0
        producer_tile_notify(b[i, j])

    compute first(i: M, j: N):
        a[i, j] = x[i, j]
        producer_tile_notify(a[i, j])

schedule said for chain:
    first on sm(1)
"""
SIZES = {"M": 40, "N": 24}


def stages(sms: int, schedule: bool = False, text: str = TEXT) -> dict[str, Sm]:
    """Where stages run, in the order in which kernels have them; on a processor with so many SMs."""
    module = tilelink.parse(text)
    machine = replace(CPU, grows=False, sms=sms, max_programs=None)
    said = module.schedules[0] if schedule else None
    plan = tilelink.plan(module.program(), said, ranks=2, dims=SIZES, target=machine)
    return {name: stage.resource for name, stage in plan.bound.stages.items()}  # type: ignore[misc]


def test_stages_that_earlier_ones_wait_for_have_an_sm_each() -> None:
    assert stages(3) == {"last": Sm(), "second": Sm(programs=1), "first": Sm(programs=1)}


def test_they_run_in_the_order_of_their_signals_where_there_are_not_so_many() -> None:
    found = stages(2)
    assert found == {"first": Sm(), "second": Sm(), "last": Sm()} and [*found] == ["first", "second", "last"]


def test_a_schedule_that_says_where_stages_run_is_followed() -> None:
    with pytest.raises(ProgressError, match="waits for ever"):
        stages(2, schedule=True)


def test_stages_that_wait_for_one_another_keep_their_order() -> None:
    both = TEXT.replace("        a[i, j] = x", "        peer_tile_wait(b[i, j])\n        a[i, j] = x")
    both = both.replace(
        "    b[i, j] = a[i, j] * 2.0\n", "    b[i, j] = a[i, j] * 2.0\n        peer_tile_notify(b[i, j])\n"
    )
    with pytest.raises(ProgressError):
        stages(2, text=both)
