"""What the schedule alone orders in a safe program is found, and nothing else."""

from __future__ import annotations

import pytest

import tilelink
from tests.compiler.library import Case, cases, dims, in_turn, name
from tests.tiers import one_in, thorough
from tilelink import compiler
from tilelink.ir.link import strip
from tilelink.verifier.by_schedule import by_schedule

TWO = """
program two(M = 64, N = 32):
    x : in    [M, N]
    h : local [M, N]
    y : out   [M, N]

    compute make(i: M, j: N):
        h[i, j] = x[i, j] * 2.0
        producer_tile_notify(h[i, j])

    compute use(i: M, j: N):
        consumer_tile_wait(h[i, j])
        y[i, j] = h[i, j] + 1.0

schedule one for two:
    make on sm, tile(i=16)
    use in make epilogue, tile(i=16)
"""
TILES = """
program tiles(M = 8, N = 16):
    x : in    [M, N]
    h : local [M + 1, N]
    y : out   [M, N]

    compute carry(i: M by 1):
        if i == 0:
            h[0, :] = x[0, :]
            peer_tile_notify(h[0, :])
        peer_tile_wait(h[i, :])
        total = h[i, :] + x[i, :]
        h[i + 1, :] = total
        peer_tile_notify(h[i + 1, :])
        y[i, :] = total
"""


def found(text: str, schedule: str | None = None, *, signals: bool = True, **clauses: str) -> list[str]:
    program = tilelink.parse(text).program()
    program = program if signals else strip(program)
    chosen = tilelink.schedule(program)
    for stage, where in clauses.items():
        chosen = chosen.on(stage, where)
    plan = tilelink.plan(program, schedule or chosen, ranks=2, dims=dims(program, 2))
    return [str(one) for one in by_schedule(plan)]


def test_what_signals_order_is_not_said() -> None:
    assert found(TWO) == found(TWO, "one") == found(TILES) == []


def test_stages_that_run_one_after_the_other() -> None:
    (said,) = found(TWO, signals=False)
    assert said.startswith("use reads h after make has written it, because their kernels run one after the other: ")
    (said,) = found(TWO, "one", signals=False)
    assert said.startswith("use reads h after make has written it, because both are in one kernel: no signal says so")


def test_what_it_says_of_another_schedule_is_true() -> None:
    with pytest.raises(tilelink.TileLinkError, match="nothing orders the two"):
        found(TWO, signals=False, make="sm(1)", use="sm(1)")


def test_tiles_of_one_stage() -> None:
    (said,) = found(TILES, signals=False, carry="sm(1)")
    assert said.startswith("tiles of carry read h after others have written it, because a program takes its tiles in")


def test_a_signal_that_orders_some_tiles_alone_is_not_enough() -> None:
    text = TWO.replace("        consumer_tile_wait(h[i, j])", "        consumer_tile_wait(h[0, 0])")
    assert found(text) == [] and len(found(text, "one")) == 1


@thorough(unless=lambda case: one_in(3, case[0].name))
@pytest.mark.parametrize("case", in_turn(cases()), ids=name)
def test_programs_of_the_library_are_safe_by_their_signals(case: Case) -> None:
    program, schedule = case
    assert by_schedule(compiler.plan(program, schedule, ranks=4, dims=dims(program, 4), tables={})) == []


RING = """program hand_on(M):
    x : in        [M]
    h : symmetric [ranks, M]
    l : local     [M]
    y : out       [ranks, M]

    compute first(i: M by 1):
        l[i] = x[i] * 2.0
        producer_tile_notify(l[i])

    comm hand(q: ranks - 1, i: M by 1):
        if q == 0:
            tile_push_data(h[rank, i] @ (rank + 1), l[i])
        else:
            consumer_tile_wait(h[rank - q, i])
            tile_push_data(h[rank - q, i] @ (rank + 1), h[rank - q, i])
        producer_tile_notify(h[rank - q, i] @ (rank + 1))

    compute take(q: ranks - 1, i: M by 1):
        consumer_tile_wait(h[rank - 1 - q, i])
        y[rank - 1 - q, i] = h[rank - 1 - q, i]

    compute own(i: M by 1):
        consumer_tile_wait(l[i])
        y[rank, i] = l[i]

schedule s for hand_on:
    first on sm
    hand on sm, order(q, i)
    take on sm
    own on sm
"""


def test_of_more_tiles_than_a_plan_holds_one_rank_is_asked() -> None:
    module = compiler.parse(RING)
    plan = compiler.plan(module.program(), module.schedules[0], ranks=512, dims={"M": 64}, tables={})
    assert "l" in {one.tensor for one in by_schedule(plan)}
