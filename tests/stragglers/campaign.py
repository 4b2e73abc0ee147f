"""Faults drawn by chance in simulated launches of several programs, and what the detector says of them.

`python -m tests.stragglers.campaign --faults 60 --clean 40 --seed 0`: how often the first cause is the fault, and how
many series without one raise an alarm. A fault lasts from some launch on, or it is there in some launches of its time
alone. Clean series are of ranks that are alike and of ranks that are not by their plan; the work of all ranks may
change, at once or slowly.
"""

from __future__ import annotations

import argparse
import pickle
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np

from tilelink import compiler
from tilelink.planning.plan import Plan
from tilelink.simulator.machine import Deviation, load_machine
from tilelink.stragglers import Row, Series, Traces, table_of
from tilelink.stragglers.report import Verdict, verdict

MACHINE = load_machine("8xH200")
POOL = 30
"""Different launches of a kind, of which series are drawn."""
HEADS = {"H": 2, "G": 2, "B": 16, "D": 16, "scale": 0.25}
PROGRAMS: tuple[tuple[str, str, tuple[dict[str, float], ...]], ...] = (
    ("ag_gemm", "h200", ({"Ms": 512, "N": 1024, "K": 512}, {"Ms": 256, "N": 1024, "K": 512})),
    ("ag_gemm_in_place", "copy_sms", ({"Ms": 128, "N": 256, "K": 256}, {"Ms": 256, "N": 256, "K": 256})),
    ("gemm_rs_ring", "h200_few", ({"Ms": 256, "N": 512, "K": 512}, {"Ms": 384, "N": 512, "K": 512})),
    ("all_reduce_two_shot", "h200", ({"Ms": 128, "N": 1024}, {"Ms": 192, "N": 1024})),
    ("m2n", "copy_sms", ({"Ms": 128, "N": 128, "K": 128, "A": 1}, {"Ms": 96, "N": 128, "K": 128, "A": 1})),
    ("zigzag_attention", "default", ({**HEADS, "N": 4}, {**HEADS, "N": 6})),
)  # fmt: skip
KINDS = ("rank", "sms", "link", "port", "copy engine", "host", "signals")


@dataclass(frozen=True, kw_only=True)
class Case:
    """A series of launches. expected: kind, rank, peer of the fault; None if there is none. cost: of a mean launch."""

    what: str
    traces: Traces
    expected: tuple[str, int, int | None] | None = None
    cost: float = 0.0


@cache
def plan_of(name: str, schedule: str, ranks: int, dims: tuple[tuple[str, float], ...]) -> Plan:
    module = compiler.load(name)
    program = module.program(name)
    options = {"dims": dict(dims), "dtype": "bf16", "target": MACHINE.processor}
    chosen = module.schedule(schedule, program)
    return compiler.plan(program, chosen, ranks=ranks, **options)  # pyright: ignore[reportArgumentType]


def pool(
    rng: np.random.Generator, plan: Plan, faults: Sequence[Deviation] = (), late: tuple[int, float] | None = None,
    *, alone: bool = False, drift: float = 0.0,
) -> list[Row]:  # fmt: skip
    """Different launches, of ranks that differ by some percent each time. alone: a launch with faults, then one well.

    drift: how much slower the SMs of all ranks are in the last one, as a logarithm.
    """
    ranks = plan.bound.ranks
    series, rows = Series(plan, MACHINE), list[Row]()
    for number in range(POOL * (2 if alone or drift else 1)):
        clocks = np.exp(0.01 * rng.standard_normal(ranks) - drift * number / POOL / 2).tolist()
        own = [Deviation(field="clock", factor=clock, rank=rank) for rank, clock in enumerate(clocks)]
        hosts = rng.exponential(1e-6, ranks)
        ill = number % 2 == 0 or not alone
        if late is not None and ill:
            hosts[late[0]] += late[1]
        row = series.launch(replace(MACHINE, deviations=(*own, *(faults if ill else ()))), late=hosts.tolist())
        if ill:
            rows.append(row)
    return rows


def traces_of(rng: np.random.Generator, plan: Plan, rows: Sequence[Row]) -> Traces:
    """Return launches with noise on each number, of which some are wild."""
    table = table_of(rows)
    shape = table.values.shape
    factor = np.exp(float(rng.choice([0.02, 0.05, 0.1])) * rng.standard_normal(shape))
    factor *= np.where(rng.random(shape) < 0.005, rng.uniform(1.5, 8, shape), 1.0)
    table = replace(table, values=(table.values * factor).astype(np.float32))
    norm = table_of([Series(plan, MACHINE).launch()])
    return Traces(program=plan.bound.source.name, ranks=plan.bound.ranks, stages=tuple(plan.bound.stages), recipe={},
                  tables={}, machine=None, table=table, norm=norm)  # fmt: skip


def fault(rng: np.random.Generator, plan: Plan, took: float) -> tuple[tuple[str, int, int | None], list[Deviation],
                                                                     tuple[int, float] | None]:  # fmt: skip
    ranks = plan.bound.ranks
    kind, rank = str(rng.choice(KINDS)), int(rng.integers(ranks))
    peer = int((rank + rng.integers(1, ranks)) % ranks)
    rate = float(rng.uniform(0.35, 0.75))
    if kind == "host":
        return (kind, rank, None), [], (rank, float(rng.uniform(0.2, 1.0)) * took)
    if kind == "rank":
        return (kind, rank, None), [Deviation(field="clock", factor=rate, rank=rank)], None
    if kind == "sms":
        first = int(rng.integers(0, 8))
        sms = (first, first + int(rng.integers(7, 24)))
        return (kind, rank, None), [Deviation(field="clock", factor=rate, rank=rank, sms=sms)], None
    if kind == "signals":
        return (kind, rank, None), [Deviation(field="signal_latency", factor=4 / rate, rank=rank)], None
    if kind == "copy engine":
        names = ("copy_start", "copy_call", "copy_signal", "copy_wait")
        return (kind, rank, None), [Deviation(field=name, factor=2 / rate, rank=rank) for name in names], None
    whom = peer if kind == "link" else None
    return (kind, rank, whom), [Deviation(field="link_bandwidth", factor=rate * 0.7, rank=rank, peer=whom)], None


def mean_took(rows: Sequence[Row]) -> float:
    """Return the mean of what launches take with the gaps before them, in seconds."""
    table = table_of(rows)
    names = np.array([column.metric for column in table.columns])
    return float(table.values[:, names == "took"].mean() + table.values[:, names == "gap"].mean())


def sick(rng: np.random.Generator, number: int) -> Case:
    """Return a series with a fault that costs at least 3 % of a launch where it is; draws again if one costs less."""
    while True:
        name, schedule, sizes = PROGRAMS[int(rng.integers(len(PROGRAMS)))]
        plan = plan_of(name, schedule, int(rng.choice([2, 3, 4])), tuple(sizes[0].items()))
        good = pool(rng, plan)
        usual = mean_took(good)
        expected, faults, late = fault(rng, plan, usual)
        seldom = number % 2 == 1
        bad = pool(rng, plan, faults, late, alone=seldom)
        cost = mean_took(bad) / usual - 1
        share = float(rng.uniform(0.05, 0.3)) if seldom else 1.0
        if cost * share < 0.02:
            continue
        launches = int(rng.choice([400, 800]))
        since = int(rng.choice([0.0, 0.3, 0.5]) * launches)
        until = launches if rng.random() < 0.7 else since + launches // 3
        ill = np.zeros(launches, bool)
        every = round(1 / share)
        periodic = seldom and rng.random() < 0.5
        ill[since:until] = np.arange(until - since) % every == 0 if periodic else rng.random(until - since) < share
        pick = rng.integers(POOL, size=launches).tolist()
        rows = [(bad if now else good)[at] for now, at in zip(ill.tolist(), pick, strict=True)]
        times = f"in {share:.0%} " + ("regularly" if periodic else "by chance") if seldom else "steady"
        what = f"{expected[0]} of {name} on {plan.bound.ranks}, {times}, {since} to {until} of {launches}"
        return Case(what=what, traces=traces_of(rng, plan, rows), expected=expected, cost=cost * share)


def clean(rng: np.random.Generator, number: int) -> Case:
    name, schedule, sizes = PROGRAMS[int(rng.integers(len(PROGRAMS)))]
    ranks = int(rng.choice([2, 3, 4]))
    plan, other = (plan_of(name, schedule, ranks, tuple(size.items())) for size in sizes)
    launches, good = int(rng.choice([400, 800])), pool(rng, plan)
    pick = rng.integers(POOL, size=launches).tolist()
    how = ("plain", "batch", "plain", "drift")[number % 4]
    rows = [good[at] for at in pick]
    if how == "batch":
        after = pool(rng, other)
        rows = [*rows[: launches // 2], *(after[at] for at in pick[launches // 2 :])]
    if how == "drift":
        slower = pool(rng, plan, drift=0.4)
        near = np.clip(np.arange(launches) * 2 * POOL // launches + rng.integers(-12, 13, launches), 0, 2 * POOL - 1)
        rows = [slower[at] for at in near.tolist()]
    return Case(what=f"clean {how} {name} on {ranks}, {launches}", traces=traces_of(rng, plan, rows))


def cases(faults: int, clean_ones: int, seed: int) -> list[Case]:
    rng = np.random.default_rng(seed)
    return [*(sick(rng, n) for n in range(faults)), *(clean(rng, n) for n in range(clean_ones))]


def right(case: Case, found: Verdict) -> bool:
    """True if the first cause is the fault. On two ranks a link is a port."""
    if case.expected is None or not found.causes:
        return case.expected is None and not found.causes
    kind, rank, peer = case.expected
    one = found.causes[0].suspect
    if kind in ("link", "port") and case.traces.ranks == 2 and one.kind in ("link", "port", "copy engine"):
        return rank in (one.rank, one.peer)
    if kind == "signals":
        return one.kind == kind and rank in (one.rank, one.peer)
    return one.rank == rank and one.kind == kind and (kind != "link" or one.peer == peer)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--faults", type=int, default=60)
    parser.add_argument("--clean", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", help="a file that keeps the series")
    given = parser.parse_args()
    kept = Path(given.keep) if given.keep else None
    if kept is not None and kept.exists():
        every: list[Case] = pickle.loads(kept.read_bytes())  # of this very program
    else:
        every = cases(given.faults, given.clean, given.seed)
        if kept is not None:
            kept.write_bytes(pickle.dumps(every))
    score: dict[str, list[bool]] = defaultdict(list)
    for case in every:
        found = verdict(case.traces)
        good = right(case, found)
        group = case.what.split()[:2] if case.expected is None else ["steady" if "steady" in case.what else "seldom"]
        score[" ".join(group)].append(good)
        if not good:
            print(f"WRONG {case.what}, {case.expected}, {case.cost:.1%}\n    {found!s}")
    for group, goods in sorted(score.items()):
        print(f"{group}: {sum(goods)} of {len(goods)} right")


if __name__ == "__main__":
    main()
