"""Links that serve their transfers one by one, against max-min fairness over all links at once, which is slow."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from tests.simulator.cases import IDEAL, Fixed, planned
from tilelink.simulator import simulate
from tilelink.simulator.script import MOVE, Script

RANKS = 8
Link = tuple[str, int]

SPREAD = """\
program spread(M, N):
    x : in        [ranks, M, N]
    h : symmetric [ranks, ranks, M, N]
    y : out       [ranks, ranks, M, N]

    comm send(p: ranks, i: M):
        tile_push_data(h[rank, p, i, :] @ {target}, x[p, i, :])
        producer_tile_notify(h[rank, p, i, :] @ {target})

    compute take(s: ranks, p: ranks, i: M):
        y[s, p, i, :] = x[p, i, :]

schedule copy_sms for spread:
    send on sm({programs}), tile(i=16), order({order})
    take on sm, tile(i=64)
"""


def fair_rates(active: list[int], links: dict[int, tuple[Link, ...]], bandwidth: float, own: float) -> dict[int, float]:
    """Max-min fair rates (Bertsekas and Gallager, 1992): the fullest link fixes the rate of its transfers first."""
    rates = {t: own for t in active if not links[t]}
    free = dict.fromkeys({link for t in active for link in links[t]}, bandwidth)
    while len(rates) < len(active):
        users = Counter(link for t in active if t not in rates for link in links[t])
        share, fullest = min((free[link] / count, link) for link, count in users.items())
        for t in active:
            if t not in rates and (fullest in links[t] or own <= share):
                rates[t] = min(own, share)
                for link in links[t]:
                    free[link] -= rates[t]
    return rates


def fair_seconds(script: Script, own: float) -> float:
    """When the last transfer ends if each worker does its own one after the other, all at max-min fair rates."""
    moves, bandwidth = script.moves, script.machine.link_bandwidth
    ends = enumerate(zip(moves.source.tolist(), moves.target.tolist(), strict=True))
    links: dict[int, tuple[Link, ...]] = {m: (("out", a), ("in", b)) if a != b else () for m, (a, b) in ends}
    queues: dict[int, list[int]] = {}
    for worker, move in zip(script.worker[script.kind == MOVE], script.what[script.kind == MOVE], strict=True):
        queues.setdefault(int(worker), []).append(int(move))
    left = {m: float(moves.size[m]) for m in links}
    now = 0.0
    while queues:
        active = [queue[0] for queue in queues.values()]
        rates = fair_rates(active, links, bandwidth, own)
        step = min(left[m] / rates[m] for m in active)
        now += step
        for worker in list(queues):
            head = queues[worker][0]
            left[head] -= rates[head] * step
            if left[head] <= 1e-9 * float(moves.size[head]):
                queues[worker].pop(0)
                if not queues[worker]:
                    del queues[worker]
    return now


def both(target: str, order: str, programs: int, own: float) -> tuple[float, float]:
    """(simulated, exact) seconds of the transfers of a program that spreads its rows."""
    text = SPREAD.format(target=target, order=order, programs=programs)
    plan = planned(text, ranks=RANKS, M=64, N=64)
    result = simulate(plan, replace(IDEAL, memory_bandwidth=1e30), cost=Fixed(seconds=0.0, rate=own))
    return float(result.timeline.moved.max()), fair_seconds(result.timeline.script, own)


@pytest.mark.parametrize("programs", [1, 4])
def test_to_a_neighbour_it_is_exact(programs: int) -> None:
    simulated, exact = both("(rank + 1)", "p, i", programs, own=1e12)
    assert simulated == pytest.approx(exact, rel=1e-9)


def test_into_one_rank_it_is_exact() -> None:
    simulated, exact = both("((rank + 1) * 0)", "p, i", 4, own=1e12)
    assert simulated == pytest.approx(exact, rel=0.01)


@pytest.mark.parametrize("own", [1e12, 3e8, 1e8])
@pytest.mark.parametrize("programs", [1, 3, 5])
@pytest.mark.parametrize(
    "order", ["p = rank + 1 step +1, i", "p, i", "i, p = rank xor", "i, p = [3, 1, 4, 0, 5, 2, 6, 7]"]
)
def test_whatever_the_order_it_is_near(order: str, programs: int, own: float) -> None:
    simulated, exact = both("p", order, programs, own)
    assert 0.85 * exact <= simulated <= 1.1 * exact
