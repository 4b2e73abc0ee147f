"""Plans that fail when they run and that the verifier once accepted, each by a gap of one rule; and safe neighbours."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from tests.verifier.dynamic import check
from tilelink.errors import AccountingError, OrderingError, ProgressError, ReuseError, VerificationError
from tilelink.frontend.parser import parse_text
from tilelink.lowering.bind import bind
from tilelink.lowering.events import NOTIFY, Signals
from tilelink.planning.plan import Plan, make_plan
from tilelink.target import CPU
from tilelink.verifier import refusals

HEAD = "program p(M, N):\n    x : in [M, N]\n    y : out [M, N]\n"
TWICE = """    c : local [M, N]

    compute a(i: M):
        {first}
        {second}
"""
HALVES = """    c : local [2, M, N]
    d : local [M, N]

    compute first(i: M):
        c[0, i, :] = x[i, :]
        producer_tile_notify(c[0, i, :])

    compute middle(i: M):
        consumer_tile_wait(c[0, i, :])
        y[i, :] = sum(c[{read}, i, :], axis=0)
        d[i, :] = x[i, :]
        producer_tile_notify(d[i, :])

    compute last(i: M):
        consumer_tile_wait(d[i, :])
        c[1, i, :] = d[i, :]
"""
LATE = """    h : symmetric [M, N]
    g : symmetric [M, N]

    compute fill(i: M):
        h[i, :] = x[i, :]
        rank_notify(h[i, :])

    compute use(i: M):
        rank_wait(h[i, :])
        y[i, :] = h[i, :]
        producer_tile_notify(g[i, :] @ (rank + 1))

    comm push(i: M):
        consumer_tile_wait(g[i, :])
        tile_push_data(h[i, :] @ (rank - 1), x[i, :])

schedule s for p:
    fill on sm(1)
    use on sm
    push on sm(1)
"""
MIXED = """    z : out [M, N]
    c : local [M, N]
    d : local [M, N]

    compute a(i: M):
        if i == 0:
            consumer_tile_wait(d[1, :])
        else:
            c[i, :] = x[i, :]
            producer_tile_notify(c[i, :])
        y[i, :] = x[i, :]

    compute b(i: M):
        if i == 0:
            consumer_tile_wait(c[1, :])
        else:
            d[i, :] = x[i, :]
            producer_tile_notify(d[i, :])
        z[i, :] = x[i, :]

schedule s for p:
    a on sm(2)
    b on sm(2)
"""
CROWD = """    c : local [M, N]

    compute make(i: M):
        c[i, :] = x[i, :]
        producer_tile_notify(c[i, :])

    compute use(i: M):
        consumer_tile_wait(c[i, :])
        y[i, :] = c[i, :]
"""
BYSTANDER = """
    compute other{n}(i: M):
        z{n}[i, :] = x[i, :]
"""
THIRD = """    h : symmetric [M, N]
    z : symmetric [M, N]
    w : symmetric [M, N]

    compute a(i: M):
        if rank == 0:
            tile_push_data(h[i, :] @ 1, x[i, :])
            producer_tile_notify(w[i, :] @ 2)
            producer_tile_notify(z[i, :] @ 1)
            consumer_tile_wait(z[i, :])
        if rank == 1:
            consumer_tile_wait(z[i, :])
            producer_tile_notify(z[i, :] @ 0)
        y[i, :] = x[i, :]

    compute b(i: M):
        if rank == 2:
            consumer_tile_wait(w[i, :])
            w[i, :] = h[i, :] @ 1

schedule s for p:
    b on sm(1)
    reuse_wait off
"""


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A program that fails, its safe neighbour, and what the refusal says."""

    kind: type[VerificationError]
    words: str
    bad: str
    good: str


PAIRS = {
    "a task that reads before it writes": Pair(
        kind=OrderingError,
        words="of rank 0 before rank 0, a tile (i=0) writes c[",
        bad=TWICE.format(first="y[i, :] = c[i, :]", second="c[i, :] = x[i, :]"),
        good=TWICE.format(first="c[i, :] = x[i, :]", second="y[i, :] = c[i, :]"),
    ),
    "a read that half is written before": Pair(
        kind=OrderingError,
        words="of rank 0 before rank 0, last tile (i=0) writes c[",
        bad=HALVES.format(read=":"),
        good=HALVES.format(read="0").replace("sum(c[0, i, :], axis=0)", "c[0, i, :]"),
    ),
    "a rank whose third partner is not waited for": Pair(
        kind=ReuseError,
        words="accesses a buffer of h that rank 2 may still use for the launch 2 before",
        bad=THIRD,
        good=THIRD.replace("    reuse_wait off\n", ""),
    ),
}


def planned(text: str, sms: int = 8, size: int = 20) -> Plan:
    module = parse_text(HEAD + text, "test.tl")
    schedule = module.schedules[0] if module.schedules else None
    return make_plan(bind(module.programs[0], schedule, {"M": size, "N": 3}, 3, replace(CPU, grows=False, sms=sms)))


@pytest.mark.parametrize("case", PAIRS, ids=str)
def test_what_fails_is_refused_and_its_neighbour_is_not(case: str) -> None:
    pair = PAIRS[case]
    bad, good = planned(pair.bad), planned(pair.good)
    assert check(bad, range(30))
    found = refusals(bad)
    assert found
    assert isinstance(found[0], pair.kind)
    assert pair.words in found[0].message
    assert refusals(good) == []
    assert check(good, range(30)) == []


def test_a_late_write_cannot_meet_the_owners_next_launch() -> None:
    """Nobody waits for the push: the kernel that fills the buffer again must wait for the end of the peer's launch."""
    plan = planned(LATE)
    assert refusals(plan) == []
    assert check(plan, range(30)) == []
    eager = tuple(replace(k, reuse_lag=0) if k.name == "fill" else k for k in plan.bound.kernels)
    plan = replace(plan, bound=replace(plan.bound, kernels=eager))
    assert check(plan, range(30))
    assert isinstance(refusals(plan)[0], ReuseError)


@pytest.mark.parametrize(("slots", "safe"), [(4, True), (3, True), (2, False), (1, False)])
def test_programs_of_two_kernels_may_start_in_any_mixture(slots: int, safe: bool) -> None:
    """With two slots, all of one kernel before the other goes well in both orders, and one program of each does not."""
    plan = planned(MIXED, slots, 2)
    found = refusals(plan)
    assert (found == []) is safe
    assert (check(plan, range(60)) == []) is safe
    assert all(isinstance(f, ProgressError) for f in found)


@pytest.mark.parametrize("others", [0, 1, 4])
@pytest.mark.parametrize(("slots", "safe"), [(2, False), (3, True)])
def test_programs_that_wait_may_come_before_all_others_however_many_streams_there_are(
    others: int, slots: int, safe: bool
) -> None:
    outs = "".join(f"    z{n} : out [M, N]\n" for n in range(others))
    stages = "".join(BYSTANDER.format(n=n) for n in range(others))
    own = "".join(f"    other{n} on sm(1), tile(i=1)\n" for n in range(others))
    schedule = f"\nschedule s for p:\n    make on sm(1), tile(i=1)\n    use on sm(2), tile(i=1)\n{own}"
    plan = planned(outs + CROWD + stages + schedule, slots, 4)
    found = refusals(plan)
    assert (found == []) is safe
    assert (check(plan, range(30)) == []) is safe
    assert all(isinstance(f, ProgressError) for f in found)


def test_the_end_of_a_launch_counts_notifies_too() -> None:
    text = "program p(M, N):\n    x : in [M, N]\n    y : out symmetric [M, N]\n    comm a(i: M):\n"
    text += (
        "        tile_push_data(y[i, :] @ (rank + 1), x[i, :])\n        producer_tile_notify(y[i, :] @ (rank + 1))\n"
    )
    program = parse_text(text, "test.tl").programs[0]
    plan = make_plan(bind(program, None, {"M": 20, "N": 3}, 3, CPU))
    assert refusals(plan) == []
    signals = {f: np.append(getattr(plan.signals, f), getattr(plan.signals, f)[:1]) for f in FIELDS}
    twice = replace(plan, signals=replace(plan.signals, **signals))
    assert (twice.signals.kind == NOTIFY).all()
    assert check(twice)
    (found,) = refusals(twice)
    assert isinstance(found, AccountingError)
    assert "the end of a launch on rank 1 waits for 1 notifies of y channel [0, 0]" in found.message


FIELDS = tuple(Signals.__dataclass_fields__)


ENTERED = """program p(M, N):
    x : in symmetric [M, N]
    h : symmetric [M, N]
    y : out [M, N]

    comm send(i: M):
        tile_push_data(h[i, :] @ (rank + 1), x[i, :] @ (rank - {distance}))
        producer_tile_notify(h[i, :] @ (rank + 1))

    compute use(i: M):
        consumer_tile_wait(h[i, :])
        y[i, :] = h[i, :]

schedule s for p:
    send on sm(1)
    x buffers 3
    reuse_wait off
"""
RETURNED = """program p(M, N):
    x : in [M, N]
    h : symmetric [M, N]
    y : out symmetric [M, N]
    z : out [M, N]

    comm send(i: M):
        tile_push_data(y[i, :] @ (rank + 1), x[i, :])
        producer_tile_notify(y[i, :] @ (rank + 1))

    comm back(i: M):
        tile_push_data(h[i, :] @ (rank - 1), x[i, :])
        producer_tile_notify(h[i, :] @ (rank - 1))

    compute use(i: M):
        consumer_tile_wait(h[i, :])
        z[i, :] = h[i, :]

schedule s for p:
    y buffers {buffers}
    h buffers {buffers}
    reuse_wait off
"""


@pytest.mark.parametrize(
    ("text", "safe"),
    [
        (ENTERED.format(distance=1), True),
        (ENTERED.replace(" @ (rank - {distance})", ""), False),
        (RETURNED.format(buffers=2), True),
        (RETURNED.format(buffers=1), False),
    ],
    ids=["waits for entry", "waits for nobody", "outputs come back", "outputs come back too late"],
)
def test_ranks_that_other_waits_keep_together_need_no_reuse_wait(text: str, safe: bool) -> None:
    module = parse_text(text, "test.tl")
    plan = make_plan(bind(module.programs[0], module.schedules[0], {"M": 20, "N": 3}, 3, CPU))
    found = refusals(plan)
    assert (found == []) is safe
    assert (check(plan, range(60)) == []) is safe
    assert all(isinstance(f, ReuseError) for f in found)
