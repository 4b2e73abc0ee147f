"""Which accesses of a program's threads the rule of ordering lets stand without a barrier between them."""

from __future__ import annotations

from dataclasses import replace

import pytest

import tilelink
from tilelink.frontend.parser import parse_text
from tilelink.ir.program import Barrier
from tilelink.lowering.bind import bind
from tilelink.lowering.bound import Bound
from tilelink.planning.plan import make_plan
from tilelink.target import CPU
from tilelink.verifier import refusals

HEAD = """program p(M):
    x : in    [M, M]
    h : local [M, M]
    d : local [M, M]
    y : out   [M, M]

    {kind} f(b: 1):
        {body}
"""
TOTAL = "sum(h[:, :], axis=1)[:, None]"


def before_barriers(kind: str, body: str) -> Bound:
    """The program as it is before barriers are placed, of which the rule is told that its programs are threads."""
    reached: dict[str, Bound] = {}
    text = HEAD.format(kind=kind, body=body.replace("; ", "\n        "))
    bind(parse_text(text, "test.tl").programs[0], None, {"M": 8}, 2, CPU, on_step=reached.__setitem__)
    return replace(reached["sink_waits"], many_threads=True)


@pytest.mark.parametrize(
    ("body", "safe"),
    [
        ("h[:, :] = x[:, :]; y[:, :] = h[:, :]", False),  # another statement has its elements in other threads
        ("h[:, :] = x[:, :]; program_barrier(); y[:, :] = h[:, :]", True),
        ("h[:, :] = x[:, :]; producer_tile_notify(h[:, :]); y[:, :] = h[:, :]", False),  # it may be given later
        ("h[:, :] = x[:, :]; producer_tile_notify(h[:, :]); consumer_tile_wait(h[:, :]); y[:, :] = h[:, :]", True),
        ("h[:, :] = x[:, :]; program_barrier(); h[:, :] = h[:, :] * 2.0; program_barrier(); y[:, :] = h[:, :]", True),
        (f"h[:, :] = x[:, :]; program_barrier(); h[:, :] = h[:, :] + {TOTAL}; y[:, :] = x[:, :]", False),
        ("h[:, :] = x[:, :]; program_barrier(); h[:, :] = h[:, :].T; program_barrier(); y[:, :] = h[:, :]", False),
        ("for (s: ranks):;     h[:, :] = x[:, :] * s; program_barrier(); y[:, :] = h[:, :]", False),  # two rounds write
        ("for (s: ranks):;     h[:, :] = x[:, :] * s;     program_barrier(); y[:, :] = h[:, :]", True),
    ],
)  # fmt: skip
def test_two_accesses_of_an_element_by_one_program_need_a_meeting_of_its_threads(body: str, safe: bool) -> None:
    found = refusals(make_plan(before_barriers("compute", body)))
    assert (found == []) is safe
    assert all("no barrier is in between" in one.message for one in found)


def test_a_copy_engine_is_no_threads() -> None:
    body = "rank_copy_data(h[:, :], x[:, :]); rank_copy_data(d[:, :], h[:, :]); rank_copy_data(y[:, :], d[:, :])"
    bound = before_barriers("comm", body)
    assert bound.kernels[0].on_copy_engine
    assert refusals(make_plan(bound)) == []


LAUNCH = """program p(M, T):
    n : in        [] <= M
    r : in        [T] < M
    x : in        [M, M]
    g : symmetric [M, M]
    h : local     [M, M]
    d : local     [M, M]
    y : out       [M, M]

    comm send(i: M):
        tile_push_data(g[i, :] @ (rank + 1), x[i, :])
        producer_tile_notify(g[i, :] @ (rank + 1))

    compute f(b: 1):
        {body}
"""
BEFORE, AFTER = "h[:, :] = x[:, :]; ", "y[:, :] = h[:, :]"
SORTED = "y[:, :] = sort(h[:, :], axis=0)"
USE = ";     d[q, :] = sum(h[:, :], axis=0); y[:, :] = x[:, :]"
OWN = "d[q, :] = sort(h[q, :], axis=0); y[:, :] = x[:, :]"
LOOP = "for (q: M[: n] by 1):;     "


def with_entries(body: str, step: str) -> Bound:
    reached: dict[str, Bound] = {}
    program = parse_text(LAUNCH.format(body=body.replace("; ", "\n        ")), "test.tl").programs[0]
    schedule = tilelink.schedule(program).tile("send", i=2)
    bind(program, schedule, {"M": 8, "T": 4}, 2, CPU, on_step=reached.__setitem__)
    return replace(reached[step], many_threads=True)


@pytest.mark.parametrize(
    ("body", "safe"),
    [
        (BEFORE + LOOP + "program_barrier(); " + AFTER, False),  # of which there may be none
        (BEFORE + "if n > 2:;     program_barrier(); " + AFTER, False),
        (BEFORE + "if n > 2:;     d[:, :] = x[:, :];     program_barrier(); " + AFTER, False),
        (LOOP + "h[q, :] = x[q, :];     program_barrier();     " + OWN, True),
        (BEFORE + LOOP + "program_barrier()" + USE, True),
        (BEFORE + LOOP + "for (k: 2):;         program_barrier()" + USE, True),
        (BEFORE + LOOP + "if n > q + 1:;         program_barrier()" + USE, False),
        (BEFORE + "consumer_tile_wait(g[r[0], :]); " + AFTER, False),  # a launch decides for which channels
        (BEFORE + "consumer_tile_wait(g[0, :]); " + AFTER, True),
        (BEFORE + LOOP + "consumer_tile_wait(g[0, :]); " + AFTER, True),  # also where the iteration is not there
    ],
)  # fmt: skip
def test_threads_meet_where_a_launch_executes_it(body: str, safe: bool) -> None:
    found = refusals(make_plan(with_entries(body, "sink_waits")))
    assert (found == []) is safe
    assert all("no barrier is in between" in one.message for one in found)


@pytest.mark.parametrize(
    "body",
    [
        BEFORE + "consumer_tile_wait(g[r[0], :]); " + SORTED,
        BEFORE + LOOP + "d[q, :] = x[q, :];     d[q, :] = sort(d[q, :], axis=0); " + SORTED,
        BEFORE + "if n > 2:;     d[0, :] = x[0, :];     d[1, :] = sort(d[0, :], axis=0); " + SORTED,
    ],
)
def test_the_pass_places_barriers_that_every_launch_executes(body: str) -> None:
    bound = with_entries(body, "barriers")
    assert any(isinstance(one, Barrier) for one in bound.stages["f"].stage.body)
    assert refusals(make_plan(bound)) == []
