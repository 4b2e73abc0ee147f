"""Questions about the order of events, answered along the signals in a row, have the answers of a search from each."""

from __future__ import annotations

import numpy as np
import pytest

from tests.compiler import library
from tests.tiers import one_in, thorough
from tilelink import compiler
from tilelink.planning import happens_before, signal_order
from tilelink.planning.copy_queues import own_copies
from tilelink.planning.happens_before import BySignals, HappensBefore
from tilelink.planning.plan import Plan
from tilelink.planning.signal_order import AFTER_ALL, topological_order
from tilelink.verifier import verify


def compared(order: HappensBefore, monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    """Return which drawn pairs of accesses of different workers are in order, the same by both searches."""
    a = order.plan.accesses
    one, other = np.random.default_rng(1).integers(len(a.task), size=(2, 300))
    some = order.plan.worker[a.task[one]] != order.plan.worker[a.task[other]]
    one, other = one[some], other[some]
    found: list[np.ndarray] = []
    for few in (len(one), 0):
        monkeypatch.setattr(happens_before, "FEW", few)
        found.append(order._search(a.task[one], a.position[one], a.task[other], a.position[other]))
    assert (found[0] == found[1]).all()
    return found[0]


@thorough(unless=lambda case, together: together == 5 or one_in(4, library.name(case)))
@pytest.mark.parametrize("together", [5, signal_order.TOGETHER])
@pytest.mark.parametrize("case", library.in_turn(library.unlike())[::4], ids=library.name)
def test_both_searches_have_the_same_answers(
    case: library.Case, together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = compiler.plan(*case, ranks=3, dims=library.dims(case[0], 3))
    monkeypatch.setattr(signal_order, "TOGETHER", together)
    found = [compared(HappensBefore(plan=plan), monkeypatch), compared(BySignals(plan), monkeypatch)]
    assert len(plan.workers) == 3 or not found[0].all()
    assert not found[1].all()


OVERTAKING = """program p(M, N):
    x : in        [M, N]
    h : symmetric [M, N]
    c : local     [M, N]
    y : out       [M, N]

    compute make(i: M):
        c[i, :] = x[i, :]
        producer_tile_notify(c[i, :])

    comm send(i: M):
        tile_push_data(h[i, :] @ (rank + 1), x[i, :])
        producer_tile_notify(h[i, :] @ (rank + 1))
        tile_push_data(y[i, :], x[i, :])

    comm take(i: M):
        consumer_tile_wait(h[i, :])
        consumer_tile_wait(c[i, :])
        tile_push_data(c[i, :], h[i, :])

schedule s for p:
    make on sm, tile(i=4)
    send on copy_engine, tile(i=4)
    take on copy_engine, tile(i=4)
"""


def engines() -> Plan:
    """A plan whose copies within a rank overtake the rest of their queues."""
    module = compiler.parse(OVERTAKING)
    plan = compiler.plan(module.program(), module.schedules[0], ranks=3, dims={"M": 12, "N": 4}, target="sm_90")
    return own_copies(plan).first


def test_events_that_overtake_others_are_in_the_line_before_their_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = engines()
    assert len(plan.overtaking)
    assert compared(HappensBefore(plan=plan), monkeypatch).any()


def test_signals_in_a_circle_have_no_line() -> None:
    """Two workers, of which each waits and then notifies; the other way round nothing waits for ever."""
    worker, channel = np.array([0, 0, 0, 1, 1, 1]), np.array([0, 1, 2, 1, 0, 3])
    place = np.array([5, 7, AFTER_ALL, 5, 7, AFTER_ALL])
    gives = np.array([False, True, True, False, True, True])
    assert topological_order(worker, place, gives, channel) is None
    found = topological_order(worker, np.array([7, 5, AFTER_ALL, 7, 5, AFTER_ALL]), gives, channel)
    assert found is not None
    assert len(found.worker) == 6


def test_many_steps_in_few_slots_are_proved_by_one_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search from each write took minutes for some thousand tiles."""
    module = compiler.library_module("fsdp")
    program = module.program("fsdp")
    dims = {"L": 6, "M": 64, "Ds": 32}
    plan = compiler.plan(program, module.schedule("two_slots", program), ranks=4, dims=dims, target="sm_90")
    searched: list[int] = []
    monkeypatch.setattr(HappensBefore, "reach", lambda _, worker, __: searched.append(worker))
    verify(plan)
    assert searched == []
