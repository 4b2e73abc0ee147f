"""What is said of all tiles of two statements is true of each pair of their accesses; and wrong questions are seen.

The oracle is the enumeration: all pairs of a write and a read that overlap, each searched for in happens-before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pytest

import tilelink
from tests.campaign.case import Case as Drawn
from tests.campaign.combined import combined_case
from tests.campaign.drawing import case
from tests.campaign.launches import launch_case
from tests.compiler import library
from tests.tiers import thorough
from tests.verifier.mutations import Case, mutants
from tilelink import compiler
from tilelink.errors import CoverageError, TileLinkError
from tilelink.facts.linear import ONE, All, Formula, at_least, either, equal, plus
from tilelink.ir.program import Program
from tilelink.ir.scalar import Index, Scalar
from tilelink.lowering.events import READ
from tilelink.planning.plan import Plan, make_plan
from tilelink.planning.queue_order import in_queue_order, with_queue_order
from tilelink.scheduling.schedule import Schedule
from tilelink.target import CPU, target
from tilelink.verifier import questions, refusals
from tilelink.verifier.by_schedule import by_schedule
from tilelink.verifier.cells import of_tensors, parts
from tilelink.verifier.families import APART, BY_PROGRAM, REASONS, Families, Pair
from tilelink.verifier.ordering import Orders
from tilelink.verifier.overlaps import pairs

RANKS = 3


@dataclass(frozen=True, kw_only=True)
class Enumerated:
    """A plan with the reads that enumeration does not find after all writes of their elements, or, of a tensor that is
    written in place, in order with them: in the plan, or with its threads in between, and by signals alone. met: the
    pairs of statements of which some accesses share an element."""

    plan: Plan
    open: np.ndarray
    untold: np.ndarray
    met: frozenset[Pair]

    @classmethod
    def of(cls, plan: Plan) -> Enumerated:
        a, order = plan.accesses, Orders(pairwise(plan))
        found, met = np.zeros((2, len(a.task)), bool), set[Pair]()
        for part in parts(plan, ~of_tensors(plan, "in", "table")):
            write, read = pairs(part, READ)
            both = {*zip(a.statement[write].tolist(), a.statement[read].tolist(), strict=True)}
            met |= {Pair(tensor=part.name, write=one, read=other) for one, other in both}
            told = order.by_signals(write, read) | order.awaited.before(write, read)
            if plan.bound.tensors[part.name].decl.in_place:
                told |= order.by_signals(read, write)
                early = told
            else:
                early = told | order.planned.before(a.task[write], a.position[write], a.task[read], a.position[read])
            found[0, read[~early | order.threads.apart(write, read)]] = True
            found[1, read[~told]] = True
        return cls(plan=plan, open=found[0], untold=found[1], met=frozenset(met))

    def wrong(self) -> list[str]:
        """The stages of reads that families say are after all writes, and are not; or apart from them, and are not."""
        asked, a = Families(self.plan), self.plan.accesses
        wrong = (asked.after(REASONS) & self.open) | (asked.after(BY_PROGRAM) & self.untold)
        met = {pair.read for pair, reason in asked.answers.items() if reason == APART and pair in self.met}
        return sorted({self.plan.statements[number][0] for number in {*np.unique(a.statement[wrong]).tolist(), *met}})


def pairwise(plan: Plan) -> Plan:
    """The plan as one of which nothing is known but its columns: each pair of accesses is asked by itself."""
    return replace(plan, enumerated=())


def case_of(program: Program, schedule: Schedule | None, ranks: int = RANKS) -> Case:
    """A case for mutants. Warps with roles have no operands of 32 bits, which these are."""
    numbers, roles = library.dims(program, ranks), "roles" in str(schedule)
    return Case(
        program=program, schedule=schedule, numbers=numbers, ranks=ranks, target=target("cpu" if roles else "sm_90")
    )


def plan_in_library(program: Program, schedule: Schedule | None, ranks: int = RANKS) -> Plan:
    """Raises as `compiler.bound` does. Its tables are those of one launch."""
    sizes = library.sizes((program, schedule), ranks)
    bound = compiler.bound(program, schedule, ranks=ranks, dims=sizes, dtype="bf16", target="sm_90")
    return with_queue_order(make_plan(bound))


def said(plan: Plan) -> list[str]:
    return [str(error) for error in refusals(plan)]


@thorough(unless=lambda spread: library.is_featured(spread[0]))
@pytest.mark.parametrize("spread", library.spread(library.cases(), 2, 3, 4, 5), ids=lambda one: library.name(one[0]))
def test_families_and_pairs_agree_on_the_library(spread: Any) -> None:
    (program, schedule), ranks = spread
    plan = plan_in_library(program, schedule, ranks)
    assert plan.as_enumerated and not pairwise(plan).as_enumerated
    assert Enumerated.of(plan).wrong() == []
    assert said(plan) == said(pairwise(plan))
    assert [*map(str, by_schedule(plan))] == [*map(str, by_schedule(pairwise(plan)))]


@pytest.mark.parametrize("ranks", [2, RANKS])
def test_no_pair_of_the_library_is_left_to_enumeration(ranks: int) -> None:
    """On 2 ranks a loop over all ranks but two has no iterations, whose accesses nobody makes."""
    answered: Counter[str | None] = Counter()
    left: set[tuple[str, str]] = set()
    for program, schedule in library.featured(library.cases()):
        asked = Families(plan_in_library(program, schedule, ranks))
        answered.update(asked.answers.values())
        left |= {(program.name, pair.tensor) for pair, reason in asked.answers.items() if reason is None}
    assert not left
    assert set(REASONS) == answered.keys() and answered.total() > 100, "each reason is one of some pair"


@cache
def mutated(name: str) -> tuple[tuple[str, Plan], ...]:
    """The plans of mutants of a program of the library."""
    found: list[tuple[str, Plan]] = []
    for program, schedule in library.cases():
        if library.name((program, schedule)) != name:
            continue
        for mutant in mutants(case_of(program, schedule), 2):
            try:
                if mutant.level != "plan":
                    found.append((f"{mutant.level} {mutant.kind} {mutant.what}", with_queue_order(mutant.make())))
            except TileLinkError:
                continue
    return tuple(found)


NAMES = [library.name(case) for case in library.in_turn(library.cases())]
SEEN = (
    "all_reduce_one_shot_pushed-words", "ag_gemm-small", "all_gather-default", "gemm_ar_pulled-copy_engine",
    "gemm_rs_ring-default",
)  # fmt: skip
"""Cases of whose mutants wrong questions are asked, too: words, copy engines, pushes, pulls and loops."""


@thorough(unless=lambda name: name in SEEN)
@pytest.mark.parametrize("name", dict.fromkeys((*SEEN, *NAMES)))
def test_families_and_pairs_agree_on_mutants(name: str) -> None:
    for what, plan in mutated(name):
        assert said(plan) == said(pairwise(plan)), what


FEW, MANY = 12, 1200


def of_campaign(draw: Callable[[int], Drawn], number: int) -> Plan | None:
    """The plan of a random program, or of a mutant; None where there is none."""
    one = draw(number)
    try:
        module = compiler.parse(one.text)
        schedule = module.schedules[0] if module.schedules else None
        processor = replace(CPU, sms=one.sms, max_programs=one.programs)
        where: dict[str, Any] = {"ranks": one.ranks, "nodes": one.nodes, "target": processor, "dtype": one.dtype}
        bound = compiler.bound(module.program(), schedule, dims=one.dims, **where)
        return with_queue_order(make_plan(bound, {name: np.asarray(rows) for name, rows in one.tables.items()}))
    except TileLinkError:
        return None


@thorough(unless=lambda draw, first: first == 0)
@pytest.mark.parametrize("first", range(0, MANY, FEW))
@pytest.mark.parametrize("draw", [case, launch_case, combined_case])
def test_families_and_pairs_agree_on_random_programs(draw: Callable[[int], Drawn], first: int) -> None:
    for number in range(first, first + FEW):
        if (plan := of_campaign(draw, number)) is not None:
            assert said(plan) == said(pairwise(plan)), number


def test_a_plan_that_was_changed_is_asked_pair_by_pair() -> None:
    """What is proved is the program: of columns that are not its own nothing is known."""
    plan = plan_in_library(*library.cases()[0])
    s = plan.signals
    for changed in (replace(plan, signals=replace(s, position=s.position)), replace(plan, worker=plan.worker + 0)):
        assert Orders(plan).families is not None and Orders(changed).families is None


# Wrong questions ---------------------------------------------------------------------------------------------

HEAD = """program p(M = 8, N = 4):
    x : in        [M, N]
    z : in        [M, N]
    h : symmetric [M, N]
    t : symmetric [M, N]
    c : local     [M, N]
    y : out       [M, N]

    compute make(i: M):
{make}

    compute take(i: M):
{take}

schedule s for p:
    make on {resource}, tile(i={tile})
    take on sm(4), tile(i={taken})
"""
PUSH, TOLD = "tile_push_data(h[i, :] @ (rank + 1), x[i, :])", "producer_tile_notify(h[i, :] @ (rank + 1))"
WAIT, READ_H = "consumer_tile_wait(h[i, :])", "y[i, :] = h[i, :]"
LOCAL, TOLD_C, WAIT_C, READ_C = (
    "c[i, :] = x[i, :]", "producer_tile_notify(c[i, :])", "consumer_tile_wait(c[i, :])", "y[i, :] = c[i, :]",
)  # fmt: skip


def plan_of(make: list[str], take: list[str], *, resource: str = "sm(4)", tile: int = 2, taken: int = 2) -> Plan:
    """The plan of two stages, whether or not it is safe."""
    bodies = ("\n".join(f"        {line}" for line in body) for body in (make, take))
    text = HEAD.format(make=next(bodies), take=next(bodies), resource=resource, tile=tile, taken=taken)
    module = tilelink.parse(text)
    case = Case(
        program=module.program(), schedule=module.schedules[0], numbers={"M": 8, "N": 4}, ranks=RANKS,
        target=target("sm_90"),
    )  # fmt: skip
    return with_queue_order(case.plan())


WITHIN = """program p(M = 4, N = 4):
    x : in        [M, N]
    c : local     [M, N]
    d : local     [M, N]
    v : inout     [M, N]
    y : out       [M, N]
    z : out       [M, N]
    w : out       [M, N]

    compute make(i: M by 1):
        c[i, :] = x[i, :]
        y[i, :] = sum(c[i, :], axis=0) + x[i, :]
        v[i, :] = v[i, :] + x[i, :]

    compute take(i: M by 1):
        z[i, :] = sum(c[i, :], axis=0) + x[i, :]

    compute turn(a: 1):
        for (k: M by 1):
            d[k, :] = x[k, :]
            w[k, :] = sum(d[k, :], axis=0) + x[k, :]

schedule s for p:
    make on sm(2)
    take in make epilogue
    c, d kernel_order
"""
OTHERS = [
    ("z[i, :] = sum(c[i, :]", "z[i, :] = sum(c[M - 1 - i, :]"),  # of another tile
    ("y[i, :] = sum(c[i, :]", "y[i, :] = sum(c[M - 1 - i, :]"),
    ("v[i, :] = v[i, :]", "v[i, :] = v[M - 1 - i, :]"),
    ("w[k, :] = sum(d[k, :]", "w[k, :] = sum(d[M - 1 - k, :]"),  # of a later iteration
]


def within() -> Iterator[Plan]:
    """Plans of programs whose tasks and programs read what they have written, and of mutants of one."""
    for old, new in [("", ""), *OTHERS]:
        module = tilelink.parse(WITHIN.replace(old, new))
        case = Case(
            program=module.program(), schedule=module.schedules[0], numbers={"M": 4, "N": 4}, ranks=RANKS,
            target=target("sm_90"),
        )  # fmt: skip
        for mutant in mutants(case, 3) if not old else ():
            if mutant.level in ("program", "lowered"):
                with suppress(TileLinkError):
                    yield with_queue_order(mutant.make())
        yield with_queue_order(case.plan())


@cache
def corpus() -> tuple[Enumerated, ...]:
    """Plans in which some reads are in no order after a write, each next to one that is safe."""
    plans = [
        plan_of([PUSH, TOLD], [WAIT, READ_H]),
        plan_of([TOLD, PUSH], [WAIT, READ_H]),  # notified before the write
        plan_of([PUSH, TOLD], [READ_H, WAIT]),
        plan_of([PUSH, TOLD], ["consumer_tile_wait(h[0, :])", READ_H], tile=4, taken=4),  # of the first of two channels
        plan_of([PUSH, "producer_tile_notify(h[i, :])"], [WAIT, READ_H]),  # another rank is told
        plan_of([PUSH, TOLD], ["consumer_tile_wait(h[i, :] @ (rank + 1))", READ_H]),
        plan_of([PUSH, "if rank == 0:", f"    {TOLD}"], [WAIT, READ_H]),
        plan_of([PUSH, "if rank == 0:", f"    {TOLD}", "else:", f"    {TOLD}"], [WAIT, READ_H]),
        plan_of([PUSH, TOLD], ["if rank > 0:", f"    {WAIT}", READ_H]),
        plan_of([PUSH, "for (q: ranks - 1):", "    producer_tile_notify(h[i, :] @ (rank + 2 + q))"], [WAIT, READ_H]),
        plan_of([PUSH, "for (q: ranks):", "    producer_tile_notify(h[i, :] @ (rank + 1 + q))"], [WAIT, READ_H]),
        plan_of([LOCAL, TOLD_C], [WAIT_C, READ_C]),
        plan_of([LOCAL], [READ_C]),
        plan_of(["h[i, :] = x[i, :]"], ["y[i, :] = h[i, :] @ (rank + 1)"]),  # a kernel before it, of another rank
        plan_of([PUSH, TOLD], [WAIT, "y[i, :] = h[i, :] @ (rank + 1)"]),
    ]  # fmt: skip
    queue = plan_of([PUSH, "tile_push_data(c[i, :], z[i, :])", TOLD], [WAIT, READ_H], resource="copy_engine", tile=4)
    plans.append(in_queue_order(queue, own_first=True, waits_aside=False))  # the notify overtakes the push
    plans += within()
    for name in SEEN:
        plans += [plan for _, plan in mutated(name)]
    return tuple(
        Enumerated.of(plan) for plan in plans if all(e.rule in ("ordering", "words") for e in refusals(pairwise(plan)))
    )


def test_the_corpus_has_both_kinds() -> None:
    bad = [plan for plan in corpus() if plan.open.any()]
    assert len(bad) >= 8 and len(corpus()) - len(bad) >= 8
    assert [plan.wrong() for plan in corpus()] == [[]] * len(corpus())
    found = [Families(plan.plan).answers.values() for plan in corpus() if not plan.open.any()]
    assert sum(all(reason is not None for reason in one) for one in found) >= 8, "it is not silence"


Question = questions.Question


def _one_later(self: Any, value: Scalar, end: Scalar, names: Any) -> Formula | None:
    own = questions._named(end, names)
    return None if own is None else at_least(plus(self._sum(own), {ONE: 1}), self._sum(value))


def _no_rank(self: Any, expr: Scalar, names: Any, value: Scalar, own: Any = Question._equal) -> Formula | None:
    return All(()) if value == Index(name=questions._on()) else own(self, expr, names, value)


def _any_iteration(self: Any, *args: Any, own: Any = Question._witnesses) -> Iterator[Any]:
    return ((names, []) for names, _ in own(self, *args))


def _nowhere(self: Any, access: Any, own: Any = Question.domain) -> list[Formula]:
    return [*own(self, access), at_least({ONE: -1}, {})]


def _less_often(self: Any, expr: Scalar, own: Any = Question._noted) -> Scalar:
    own(self, expr)
    for quotient in self._turns:
        self._turns[quotient] = either([equal(self._encoder.sum(quotient), {ONE: 0})])
    return expr


WRONG: dict[str, tuple[object, str, Callable[..., Any] | property]] = {
    "both sides are one tile": (questions.Access, "side", property(lambda _: "reader")),
    "an end one element late": (Question, "_below", _one_later),
    "signals of any rank": (Question, "_equal", _no_rank),
    "branches forgotten": (Question, "_truth", lambda *_: All(())),
    "any iteration of a loop": (Question, "_witnesses", _any_iteration),
    "no element at all": (Question, "domain", _nowhere),
    "signals in any order": (questions.Place, "before", lambda *_: True),
    "copies in any order": (Families, "_in_queue", lambda *_: True),
    "kernels of any rank": (Question, "same_rank", lambda _: All(())),
    "tiles of any number": (Question, "same_tile", lambda _: All(())),
    "iterations in any order": (Question, "iterations", lambda *_: []),
    "threads that meet anywhere": (Families, "_met", lambda *_: True),
    "words that nobody waits for": (Families, "_by_word", lambda *_: True),
    "quotients are 0": (Question, "_noted", _less_often),
    "the last tile forgotten": (
        Question, "_symbol", lambda self, name, count=None, own=Question._symbol: own(self, name, count and count - 1)
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_question_is_seen(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, name, wrong = WRONG[what]
    monkeypatch.setattr(owner, name, wrong)
    assert any(plan.wrong() for plan in corpus())


NEGATIVE = """program p(E = 8, T = 16, N = 4):
    x    : in    [T, N]
    n    : in    [1] < 4
    ends : in    [E + 1] <= T rising
    g    : local [T, N]
    y    : out   [8, N]

    compute make(r: T[: ends[n[0]]], j: N):
        g[r, j] = x[r, j]
        producer_tile_notify(g[r, j])

    compute take(i: 8 by 1, j: N):
        total = zeros(f32)
        for (r: T[: ends[max(n[0] - min(n[0], i - 2), 0)]]):
            consumer_tile_wait(g[r, j])
            total += sum(g[r, j], axis=0)
        y[i, j] = total

schedule s for p:
    make on sm(1), tile(r=16)
    take on sm(1), tile(r=16)
"""


def test_indices_of_families_stand_for_no_negative_numbers() -> None:
    """`n[0] - min(n[0], -2)` is more than `n[0]`, which that of a number from 0 on is not."""
    module = compiler.parse(NEGATIVE)
    with pytest.raises(CoverageError, match=r"reads up to ends\[n\[0\] \+ 2\]"):
        compiler.plan(module.program(), module.schedules[0], ranks=2, dims={"E": 8, "T": 16, "N": 4})
