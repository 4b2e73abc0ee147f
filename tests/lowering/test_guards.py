"""Guards of many accesses at once: those that each has alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

import tilelink
from tilelink.lowering import enumerate as enumerator
from tilelink.lowering.bind import bind
from tilelink.lowering.columns import Ints
from tilelink.lowering.guards import Branch, Chosen, Deciding, Guards, settled
from tilelink.planning.plan import make_plan
from tilelink.target import CPU

TEXT = """program p(N, B, T):
    n    : in [N, B] <= T
    a    : in [N] < N
    rows : in [N, T] < T
    x    : in [N, B, T]
    h    : local [N, B, T]
    y    : out [N, B, T]

    compute fill(i: N by 1, b: B by 1, t: T[: n[a[i], b]]):
        h[i, b, t] = x[a[i], b, rows[i, t]]

    compute take(i: N by 1, b: B by 1, t: T):
        v = zeros(f32)
        if (i * B + b) % 3 >= n[i, b]:
            if min(i, b) - rank < n[a[i], (b + 1) % B]:
                v = v + x[i, b, t]
        else:
            v = v + 1.0
        y[i, b, t] = v
"""


def one_by_one(
    guards: Guards, templates: Sequence[Deciding], rank: Ints, indices: Mapping[str, Ints], outer: Ints
) -> Ints:
    """As `numbered`, access by access, with all that is known of each."""
    numbers: list[int] = []
    for row, (own, around) in enumerate(zip(rank.tolist(), outer.tolist(), strict=True)):
        values = {name: int(column[row]) for name, column in indices.items()}
        parts = guards.known[around]
        for one in templates:
            match one:
                case Branch(condition=condition, holds=holds):
                    parts = (*parts, Chosen(condition=settled(condition, own, values), holds=holds))
                case _:
                    parts = (*parts, *one.parts(own, values))
        numbers.append(guards.number(parts))
    return np.array(numbers, np.int64)


def test_many_accesses_have_the_guards_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    program = tilelink.parse(TEXT).programs[0]
    bound = bind(program, None, {"N": 5, "B": 4, "T": 70}, 3, CPU)
    plan = make_plan(bound)
    monkeypatch.setattr(enumerator, "numbered", one_by_one)
    alone = make_plan(bound)
    for ours, theirs in ((plan.accesses, alone.accesses), (plan.signals, alone.signals)):
        found = [plan.guards.known[number] for number in ours.guard.tolist()]
        assert found == [alone.guards.known[number] for number in theirs.guard.tolist()]
    assert len(plan.guards.known) > 100
