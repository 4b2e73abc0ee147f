"""Local tensors that a launch writes at places which it decides, and that are read elsewhere: packed rows by place, and
lists that are the inverse of a permutation."""

from __future__ import annotations

import pytest
import torch

import tilelink
from tilelink.errors import TileLinkError
from tilelink.ir.program import Program
from tilelink.scheduling.schedule import Schedule

EXPERTS = """program experts(M, B, E, T, K, N):
    x      : in    [M * B, K]
    ids    : in    [M, B] i32 from -1 to 3
    w      : in    [E, N, K]
    others : in    [E + 1] <= T offsets
    total  : local [E] i32
    starts : local [E + 1] <= T offsets
    place  : local [M, B] < M * B distinct
    rows   : local [M * B] < M * B
    c      : local [T, N]
    y      : out   [M, B, N]

    compute add():
        total[:] = sum(sum(i32(ids[:, :][:, :, None] == pos(E)[None, None, :]), axis=0), axis=0)

    compute begin():
        starts[0] = 0
        starts[1 : E + 1] = minimum(cumsum(total[:], axis=0), T)

    compute find(m: M by 1):
        here = i32(ids[m, :][:, None] == pos(E)[None, :])
        every = i32(ids[:, :][:, :, None] == pos(E)[None, None, :])
        before = sum(sum(where((pos(M) < m)[:, None, None], every, 0), axis=0), axis=0)
        first = cumsum(total[:], axis=0) - total[:] + before
        at = sum(here * (first[None, :] + cumsum(here, axis=0) - 1), axis=1)
        none = 1 - sum(here, axis=1)
        rest = sum(total[:], axis=0) + m * B - sum(before, axis=0) + cumsum(none, axis=0) - 1
        place[m, :] = where(none > 0, rest, at)

    compute turn(m: M by 1, b: B):
        rows[place[m, b]] = pos(b) + m * B
        notify(rows[:])

    compute product(e: E, r: T[starts[e] : starts[e + 1]], n: N):
        wait(rows[:])
        c[r, n] = dot(x[rows[0 + r], :], w[e, n, :].T)
        notify(c[:, n])

    compute back(m: M by 1, b: B by 1, n: N):
        wait(c[:, n])
        total_of = zeros(f32)
        if place[m, b] < starts[E]:
            total_of += c[min(place[m, b], T - 1), n]
        y[m, b, n] = total_of

schedule small for experts:
    turn    tile(b=4)
    product tile(r=4, n=8)
    back    tile(n=8)
"""
DIMS = {"M": 3, "B": 8, "E": 4, "T": 20, "K": 16, "N": 16}
RANGE = "starts[e] : starts[e + 1]]"


def program(old: str = "", new: str = "") -> tuple[Program, Schedule]:
    assert old in EXPERTS
    module = tilelink.parse(EXPERTS.replace(old, new) if old else EXPERTS)
    return module.program(), module.schedule("small", module.program())


@pytest.mark.parametrize("kind", ["drawn", "one", "none"])
def test_rows_come_back_from_where_they_are(kind: str) -> None:
    """What is beyond the room for rows is no row of any expert."""
    torch.manual_seed(1)
    shape = DIMS["M"], DIMS["B"]
    ids = {"drawn": torch.randint(-1, 4, shape), "one": torch.full(shape, 2), "none": torch.full(shape, -1)}[kind].int()
    x, w = torch.randn(24, 16), torch.randn(4, 16, 16)
    source, schedule = program()
    kernel = tilelink.compile(source, schedule, dims=DIMS, ranks=1)
    (found,) = kernel([{"x": x, "ids": ids, "w": w, "others": torch.zeros(5, dtype=torch.int32)}])
    chosen = ids.flatten().long()
    order = torch.where(chosen < 0, 4, chosen).argsort(stable=True)
    kept = torch.zeros(24, dtype=torch.bool)
    kept[order[: DIMS["T"]]] = True
    kept &= chosen >= 0
    want = torch.einsum("tk,tnk->tn", x, w[chosen.clamp(min=0)]) * kept[:, None]
    torch.testing.assert_close(found["y"].reshape(24, 16), want)


def apart(schedule: Schedule) -> Schedule:
    """Return a schedule in which no order of kernels stands for a signal."""
    return schedule.on("back", "sm(1)").on("product", "sm(1)").on("turn", "sm(1)")


MUTANTS = [
    ("if place[m, b] < starts[E]:", "if place[m, b] < starts[E] + 1:", "reads c elsewhere than in the segments"),
    ("if place[m, b] < starts[E]:", "if place[m, b] <= starts[E]:", "reads c elsewhere than in the segments"),
    ("if place[m, b] < starts[E]:", "if place[m, b] < others[E]:", "reads c elsewhere than in the segments"),
    ("if place[m, b] < starts[E]:", "if place[m, (b + 1) % B] < starts[E]:", "reads c elsewhere than in the segments"),
    ("if place[m, b] < starts[E]:", "if starts[0] <= place[m, b]:", "reads c elsewhere than in the segments"),
    ("c[min(place[m, b], T - 1), n]", "c[min(place[m, b] + 1, T - 1), n]", "reads c elsewhere than in the segments"),
    ("c[min(place[m, b], T - 1), n]", "c[m, n]", "reads c elsewhere than in the segments"),
    ("product(e: E, r", "product(e: E - 1, r", "reads c elsewhere than in the segments"),
    ("starts : local [E + 1] <= T offsets", "starts : local [E + 1] <= T rising", "reads c elsewhere"),
    ("starts : local [E + 1] <= T offsets", "starts : local [E + 1] <= T", "which may share elements"),
    ("        wait(c[:, n])\n", "", "nothing orders|only the schedule|no consumer_tile_wait"),
    ("        notify(c[:, n])\n", "", "which no producer_tile_notify"),
    ("place  : local [M, B] < M * B distinct", "place  : local [M, B] < M * B", "may name an element twice"),
    ("turn(m: M by 1, b", "turn(m: M - 1 by 1, b", "reads rows.* parts of which no stage writes"),
    ("rows   : local [M * B] < M * B", "rows   : local [M * B + 1] < M * B", "writes 24 of the 25 elements of rows"),
    ("rows[place[m, b]] = pos(b) + m * B", "rows[place[m, b]] = pos(b)\n        rows[place[m, b]] = m * B", "again"),
    ("        wait(rows[:])\n", "", "nothing orders|only the schedule|no consumer_tile_wait"),
    ("        notify(rows[:])\n", "", "which no producer_tile_notify"),
    ("rows[place[m, b]] = pos(b)", "rows[min(place[m, b] + 1, M * B - 1)] = pos(b)", "rows"),
    ("b: B):\n        rows", "b: B[: total[0]]):\n        rows", "rows|total"),
]


@pytest.mark.parametrize(("old", "new", "message"), MUTANTS)
def test_mutants_are_refused(old: str, new: str, message: str) -> None:
    with pytest.raises(TileLinkError, match=message):
        source, schedule = program(old, new)
        tilelink.plan(source, apart(schedule), dims=DIMS, ranks=1)


def test_what_mutants_change_is_accepted() -> None:
    source, schedule = program()
    tilelink.plan(source, apart(schedule), dims=DIMS, ranks=1)
