"""Which waits nothing comes after that others could see."""

from __future__ import annotations

import pytest

from tests.backend.samples import Sample
from tilelink.backend.last_waits import last_waits

TEXT = """
program waits(M):
    x : in [M, M]
    c : symmetric [M, M]
    y : out [M, M]
    compute make(i: M):
        c[i, :] = x[i, :]
        producer_tile_notify(c[i, :])
        y[i, :] = x[i, :]
    comm f(i: M):
"""
WAIT, OTHER, STORE = "consumer_tile_wait(c[i, :])", "consumer_tile_wait(c[i, 0])", "y[i, :] = x[i, :]"
LOOP, BRANCH = "for (s: 3):", "if i > 0:"
BODIES = [
    # lines, and which of the waits, from the first on, are the last of all
    ([WAIT], [0]),
    ([WAIT, OTHER], [0, 1]),
    ([WAIT, STORE, OTHER], [1]),
    ([WAIT, "tile_push_data(y[i, :], x[i, :])"], []),
    ([WAIT, "v = x[i, :]"], [0]),
    ([WAIT, "v = x[i, :]", STORE], []),
    ([LOOP, "    " + WAIT], [0]),
    ([LOOP, "    " + STORE, "    " + WAIT], []),
    ([LOOP, "    " + WAIT, OTHER], [0, 1]),
    ([LOOP, "    " + WAIT, STORE], []),
    ([WAIT, LOOP, "    " + STORE], []),
    ([BRANCH, "    " + WAIT, "else:", "    " + OTHER], [0, 1]),
    ([BRANCH, "    " + STORE, "    " + WAIT, "else:", "    " + OTHER, "    " + STORE], [0]),
    ([BRANCH, "    " + WAIT, "else:", "    " + OTHER, STORE], []),
    ([WAIT, BRANCH, "    " + STORE, OTHER], [1]),
]


@pytest.mark.parametrize(("lines", "last"), BODIES)
def test_a_wait_is_a_last_one_where_nothing_is_seen_of_what_follows(lines: list[str], last: list[int]) -> None:
    text = TEXT + "".join(f"        {line}\n" for line in lines)
    stage = Sample(text=text, numbers={}).module().programs[0].stages[1]
    found = sorted(wait.location.line for wait in last_waits(stage.body) if wait.location is not None)
    every = [n for n, line in enumerate(text.splitlines(), 1) if "consumer_tile_wait" in line]
    assert found == [every[n] for n in last]
