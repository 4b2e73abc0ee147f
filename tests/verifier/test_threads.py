"""Which accesses of a program's threads the rule of ordering lets stand without a barrier between them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tilelink.frontend.parser import parse_text
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
