"""What one rank proves of rings is true of all; and wrong classes are seen.

The oracle is the program on all ranks, one by one: its plan, its rules, and the notifies of its counters.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

import tilelink
from tests.compiler import library
from tests.tiers import thorough
from tests.verifier.mutations import Case, mutants
from tests.verifier.test_cutoff import Whole
from tests.verifier.test_families import case_of
from tilelink import compiler
from tilelink.errors import ScheduleError, TileLinkError
from tilelink.ir.program import Region
from tilelink.ir.scalar import Compare, Scalar, walk
from tilelink.lowering.bound import Bound
from tilelink.lowering.limits import MAX_TILES
from tilelink.lowering.orders import TILE
from tilelink.planning import cutoff as cutoffs
from tilelink.planning import rotation as turns
from tilelink.planning.copy_queues import own_copies
from tilelink.planning.cutoff import cutoff
from tilelink.planning.plan import Plan, make_plan
from tilelink.planning.queue_order import with_queue_order
from tilelink.planning.rotation import Rotation
from tilelink.verifier import cutoff as proofs
from tilelink.verifier.cutoff import safe_plan

RANKS = 6
NAMES = [name for name in map(str, map(library.name, library.cases())) if "_ring" in name]


@pytest.fixture(autouse=True)
def of_one_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many ranks as can be enumerated are many."""
    monkeypatch.setattr(cutoffs, "MANY_RANKS", 4)


def turned(bound: Bound) -> bool:
    """True if one rank may stand for all."""
    part = cutoff(bound)
    return part is not None and part.rotation is not None


def by_one(whole: Whole) -> bool:
    """True if one rank proves a program."""
    return turned(whole.plan.bound) and whole.verdict() is True


def wrong(whole: Whole) -> str | None:
    """How what is proved differs from what is true, or None."""
    part = cutoff(whole.plan.bound)
    found = None if part is None else proofs.by_small(part)
    if found is None or part is None or part.rotation is None:
        return whole.wrong()
    order = [[(one.own_copies_first, one.waits_aside) for one in plan.bound.kernels] for plan in (whole.plan, found)]
    return whole.wrong() if order[0] == order[1] else "another order of queues"


@pytest.mark.parametrize("ranks", [5, 8])
@pytest.mark.parametrize("name", NAMES)
def test_rings_of_the_library_are_proved_by_one_rank(name: str, ranks: int) -> None:
    case = next(one for one in library.cases() if library.name(one) == name)
    bound = compiler.bound(*case, ranks=ranks, dims=dict(library.sizes(case, ranks)), dtype="f32")
    whole = Whole(plan=with_queue_order(make_plan(bound)))
    assert wrong(whole) is None
    assert by_one(whole)


@thorough(unless=lambda name: name in ("ag_gemm_ring-copy_sms", "gemm_rs_ring-ring"))
@pytest.mark.parametrize("name", NAMES)
def test_what_one_rank_proves_of_mutants_is_true(name: str) -> None:
    case = next(one for one in library.cases() if library.name(one) == name)
    for mutant in mutants(case_of(*case, RANKS), 3):
        try:
            whole = Whole(plan=with_queue_order(mutant.make())) if mutant.level != "plan" else None
        except TileLinkError:
            continue
        assert whole is None or not turned(whole.plan.bound) or wrong(whole) is None, f"{mutant.kind} {mutant.what}"


DECLARED = """program p(M = 4):
    x : in        [M]
    h : symmetric [ranks, M]
    g : symmetric [ranks, M]
    b : symmetric [M]
    y : out       [ranks, M]
    z : out symmetric [M]

"""
SCHEDULED = """
schedule s for p:
    {0}
    {1}
    {2}
    {3}
"""
HANDED = """    comm hand(q: ranks - 1, i: M):
        if q == 0:
            tile_push_data(h[rank, i] @ (rank + 1), x[i])
        else:
            consumer_tile_wait(h[rank - q, i])
            tile_push_data(h[rank - q, i] @ (rank + 1), h[rank - q, i])
        producer_tile_notify(h[rank - q, i] @ (rank + 1))

    compute own(i: M):
        y[rank, i] = x[i]

    compute take(q: ranks - 1, i: M):
        consumer_tile_wait(h[rank - 1 - q, i])
        y[rank - 1 - q, i] = h[rank - 1 - q, i]

    compute done(i: M):
        tile_push_data(z[i], x[i])
"""
ADDED = """    compute take(s: ranks, i: M):
        acc = x[i]
        if rank != s + 1:
            consumer_tile_wait(h[s, i])
            acc += h[s, i]
        if rank != s:
            tile_push_data(h[s, i] @ (rank + 1), acc)
            producer_tile_notify(h[s, i] @ (rank + 1))
        y[s, i] = acc

    compute done(i: M):
        tile_push_data(z[i], x[i])
"""
ADDED_LATER = """    compute take(s: ranks, i: M):
        acc = x[i]
        if rank != s:
            consumer_tile_wait(h[s, i])
            acc += h[s, i]
        if rank != s - 2:
            tile_push_data(h[s - 1, i] @ (rank + 1), acc)
            producer_tile_notify(h[s - 1, i] @ (rank + 1))
        y[s, i] = acc

    compute done(i: M):
        tile_push_data(z[i], x[i])
"""
STEPPED = """    comm start(i: M):
        h[0, i] = x[i]
        producer_tile_notify(h[0, i])

    comm hand(q: ranks - 1, i: M):
        consumer_tile_wait(h[q, i])
        tile_push_data(h[q + 1, i] @ (rank + 1), h[q, i])
        producer_tile_notify(h[q + 1, i] @ (rank + 1))

    compute take(q: ranks, i: M):
        consumer_tile_wait(h[q, i])
        y[(rank + ranks - q) % ranks, i] = h[q, i]

    compute done(i: M):
        tile_push_data(z[i], x[i])
"""
BESIDE = """    comm hand(i: M):
        tile_push_data(h[rank, i] @ (rank + 1), x[i])
        producer_tile_notify(h[rank, i] @ (rank + 1))
        tile_push_data(h[rank, i] @ (rank - 1), x[i])
        producer_tile_notify(h[rank, i] @ (rank - 1))

    compute take(q: ranks, i: M):
        value = x[i]
        if q == 1:
            consumer_tile_wait(h[rank + 1, i])
            value += h[rank + 1, i]
        if q == ranks - 1:
            consumer_tile_wait(h[rank - 1, i])
            value += h[rank - 1, i]
        y[rank + q, i] = value

    compute done(i: M):
        tile_push_data(z[i], x[i])
"""
TURNED_BACK = """    comm hand(i: M):
        tile_push_data(b[i] @ (rank + 1), x[i])
        producer_tile_notify(b[i] @ (rank + 1))

    compute back(i: M):
        consumer_tile_wait(b[i])
        g[rank, i] = b[i]
        producer_tile_notify(g[rank, i] @ (rank - 1))

    comm again(i: M):
        consumer_tile_wait(g[rank + 1, i])
        tile_push_data(b[i] @ (rank + 1), x[i])
        producer_tile_notify(h[rank, i] @ (rank + 1))

    compute take(q: ranks, i: M):
        consumer_tile_wait(h[rank - 1, i])
        y[rank + q, i] = b[i]

    compute done(i: M):
        tile_push_data(z[i], x[i])
"""
QUEUED = """    comm hand(q: 2, i: M):
        if q == 0:
            tile_push_data(h[rank, i], x[i])
            producer_tile_notify(h[rank, i])
        else:
            tile_push_data(h[rank, i] @ (rank + 1), x[i])
            producer_tile_notify(h[rank, i] @ (rank + 1))

    compute take(q: ranks, i: M):
        consumer_tile_wait(h[rank, i])
        consumer_tile_wait(h[rank - 1, i])
        y[rank + q, i] = h[rank, i] + h[rank - 1, i]

    compute done(i: M):
        tile_push_data(z[i], x[i])
"""
REPLACED = """    a : inout [M]

    comm hand(i: M):
        tile_push_data(h[rank, i] @ (rank + 1), a[i])
        producer_tile_notify(h[rank, i] @ (rank + 1))
        tile_push_data({copied}[i], x[i])
        producer_tile_notify({copied}[i])

    compute take(q: ranks, i: M):
        consumer_tile_wait(h[rank - 1, i])
        y[rank + q, i] = h[rank - 1, i]

    compute done(i: M):
        consumer_tile_wait({copied}[i])
        z[i] = x[i]{more}
"""
OVERWRITTEN = REPLACED.format(copied="a", more=" + a[i]")
OVERWRITTEN_LATER = REPLACED.format(copied="b", more="\n        a[i] = b[i]")
ENGINE_FIRST = ("hand on copy_engine", "take on sm", "done on sm(1)", "")
BASES = {
    "own copies first": (QUEUED, ("hand on copy_engine, order(q = 1 step -1, i)", "take on sm", "done on sm(1)", "")),
    "overwritten": (OVERWRITTEN, ENGINE_FIRST),
    "overwritten later": (OVERWRITTEN_LATER, ENGINE_FIRST),
    "handed": (HANDED, ("hand on sm(2), tile(i=2), order(q, i)", "own on sm", "take on sm(3)", "done on sm(1)")),
    "in one kernel": (HANDED, ("hand on sm(2), order(q, i)", "own in take prologue", "take on sm(2)", "done on sm(1)")),
    "by an engine": (HANDED, ("hand on copy_engine, order(q, i)", "own on sm", "take on sm", "done on sm(1)")),
    "queued": (QUEUED, ("hand on copy_engine, order(q, i)", "take on sm", "done on sm(1)", "")),
    "added": (ADDED, ("take on sm(2), order(s = rank - 1 step -1)", "done on sm(1)", "", "")),
    "added in one order": (ADDED, ("take on sm(1)", "done on sm(1)", "", "")),
    "added by all": (ADDED, ("take on sm(2), order(s = ranks - 1 step -1)", "done on sm(1)", "", "")),
    "stepped": (STEPPED, ("start on sm", "hand on sm(2)", "take on sm", "done in take epilogue")),
    "beside": (BESIDE, ("hand on sm(1)", "take on sm", "done on sm(1)", "h buffers 1")),
    "turned back": (TURNED_BACK, ("hand on sm(1)", "back on sm(1)", "again on sm(1)", "take on sm")),
}  # fmt: skip
CHANGES = [
    ("rank + 1", "rank - 1"), ("rank + 1", "rank + 2"), ("rank + 1", "rank"), ("rank - 1", "rank + 1"),
    ("rank - q", "rank - q - 1"), ("rank - q", "rank + q"), ("rank - 1 - q", "rank - 2 - q"), ("rank - 1 - q", "q"),
    ("rank - q", "rank"), ("[q, i]", "[q + 1, i]"), ("[q + 1, i]", "[q, i]"), ("[q, i]", "[0, i]"),
    ("q: ranks - 1", "q: ranks - 2"), ("q: ranks - 1", "q: ranks"), ("q: ranks,", "q: ranks - 1,"),
    ("q == 0", "q == 1"), ("q == 0", "q <= 1"), ("q == 0", "rank == 0"), ("q == 0", "rank == q"),
    ("q == 1", "q == 2"), ("q == ranks - 1", "q == ranks - 2"), ("rank != s", "rank != s + 2"),
    ("rank != s + 1", "rank != s"), ("rank != s + 1", "s != 0"), ("@ (rank + 1)", "@ 0"), ("@ (rank + 1)", ""),
    ("h[rank, i]", "h[0, i]"), ("h[", "g["), ("g[", "h["), ("y[rank", "y[0 * rank"), ("rank - 1", "rank - ranks"),
    ("step -1", "step +1"), ("on sm(2)", "on sm(1)"), ("on sm(2)", "on sm"), ("tile(i=2)", "tile(i=4)"),
    (", order(q, i)", ""), ("order(q, i)", "order(i, q)"), ("rank - 1 step", "rank step"),
    ("on sm(2)", "on copy_engine"), ("on sm,", "on copy_engine,"),
    ("q = 0", "q = 1"), ("order(q, i)", "order(q = 1 step -1, i)"),
    ("on sm(1)", "on copy_engine"),
    ("(rank + ranks - q) % ranks", "(rank - q + 1) % ranks"), ("tile_push_data(b[i]", "tile_push_data(z[i]"),
    ("i: M", "i: M, n: 2"), ("buffers 1", "buffers 2"), ("h buffers", "reuse_wait off\n    h buffers"),
]  # fmt: skip
"""Small mistakes, and changes that are none."""


def program(body: str, schedule: tuple[str, ...], ranks: int = RANKS) -> Whole:
    """The plan of a program, whether or not it is safe."""
    module = tilelink.parse(DECLARED + body + SCHEDULED.format(*schedule))
    case = Case(program=module.program(), schedule=module.schedules[0], numbers={"M": 4}, ranks=ranks)
    return Whole(plan=with_queue_order(make_plan(case.bound())))


def changed(number: int) -> tuple[str, Whole] | None:
    """A program with some changes, if it is one, with its text."""
    rng = random.Random(number)
    name = rng.choice([*BASES])
    body, lines = BASES[name]
    text = body + SCHEDULED.format(*lines)
    for _ in range(rng.choice((1, 1, 2, 3))):
        kind = rng.random()
        if kind < 0.7:
            old, new = rng.choice([one for one in CHANGES if one[0] in text])
            at = rng.choice([n for n in range(len(text)) if text.startswith(old, n)])
            text = text[:at] + new + text[at + len(old) :]
            continue
        rows = text.split("\n")
        at = rng.choice([n for n, row in enumerate(rows) if row.startswith("        ") and not row.endswith(":")])
        indent = rows[at][: len(rows[at]) - len(rows[at].lstrip())]
        guard = rng.choice(["q != 1", "rank != 3", "q < ranks - 2", "rank + 1 != 0", "i < 2", "rank + 1 != rank"])
        rows[at : at + 1] = (
            [] if kind < 0.8 else [rows[at]] * 2 if kind < 0.85 else [f"{indent}if {guard}:", f"    {rows[at]}"]
        )
        text = "\n".join(rows)
    try:
        module = tilelink.parse(DECLARED + text)
        case = Case(
            program=module.program(), schedule=module.schedules[0], numbers={"M": 4}, ranks=rng.choice((4, 6, 7))
        )
        return DECLARED + text, Whole(plan=with_queue_order(make_plan(case.bound())))
    except TileLinkError:
        return None


@thorough(unless=lambda first: first == 0)
@pytest.mark.parametrize("first", range(0, 3000, 150))
def test_what_one_rank_proves_of_random_rings_is_true(first: int) -> None:
    found = Counter[tuple[bool, bool]]()
    for number in range(first, first + 150):
        if (one := changed(number)) is not None and turned(one[1].plan.bound):
            found[by_one(one[1]), not one[1].said()] += 1
            assert wrong(one[1]) is None, f"{number}\n{one[0]}"
    assert found[True, True] > 5 and found[False, False] > 5, found


NEXT = """    comm hand(i: M):
        {told}

    compute take(s: ranks, i: M):
        {takes}

    compute done(i: M):
        tile_push_data(z[i], x[i])
"""
TOLD = "tile_push_data(h[rank, i] @ {0}, x[i])\n        producer_tile_notify(h[rank, i] @ {0})"
TAKEN = "consumer_tile_wait(h[{0}, i])\n        y[rank + s, i] = h[{0}, i]"


def text(
    *, told: str = TOLD.format("(rank + 1)"), takes: str = TAKEN.format("rank - 1"), take: str = "take on sm",
    more: str = "",
) -> Whole:  # fmt: skip
    """What each rank gives the next one, or others."""
    return program(more + NEXT.format(told=told, takes=takes), ("hand on sm(1)", take, "done on sm(1)", ""))


def when(condition: str, then: str) -> str:
    return f"if {condition}:\n            " + then.replace("\n", "\n    ")


@cache
def corpus() -> dict[str, Whole]:
    """Programs on six ranks: safe ones, and such as are not in ways that one rank does not show."""
    turn = (
        "if s == 0:\n            producer_tile_notify(b[i])\n        else:\n            consumer_tile_wait(b[i])\n"
        "        y[s, i] = x[i]"
    )
    longer = {"told": TOLD.format("(rank + 1)"), "takes": TAKEN.format("(rank + ranks - 1) % ranks")}
    return {
        **{name: program(body, lines) for name, (body, lines) in BASES.items()},
        "given on": text(),
        "tiles in turn": text(takes=turn, take="take on sm(1)"),
        "a longer tensor": text(
            more="    t : symmetric [ranks + 1, M]\n\n", **{key: one.replace("h[", "t[") for key, one in longer.items()}
        ),
        # no others are safe
        "all to one": text(told=TOLD.format("0"), takes=TAKEN.format("rank")),
        "at one place": text(takes=TAKEN.format("rank - 1").replace("= h[rank - 1", "= h[5")),
        "at the own place": text(takes=TAKEN.format("rank")),
        "not written by one": text(takes=when("rank != 3", TAKEN.format("rank - 1"))),
        "tiles in another turn": text(takes=turn, take="take on sm(1), order(s = rank step +1)"),
        "written by two": text(
            told=TOLD.format("rank") + "\n        tile_push_data(b[i] @ (rank + 1), x[i])",
            takes=TAKEN.format("rank") + "\n        " + when("s == 0", "b[i] = x[i]"),
        ),
        "a circle of places": program(ADDED_LATER, ("take on sm(1)", "done on sm(1)", "", ""), ranks=5),
        "a circle": text(told="consumer_tile_wait(h[rank - 1, i])\n        " + TOLD.format("(rank + 1)")),
    }  # fmt: skip


SAFE = {*BASES, "given on", "tiles in turn"}


def test_own_copies_come_first_where_that_changes_nothing() -> None:
    names = ("own copies first", "overwritten", "overwritten later")
    wholes = [corpus()[name] for name in names]
    assert [len(whole.plan.overtaking) > 0 for whole in wholes] == [True, False, False]
    assert all(by_one(whole) and not whole.said() for whole in wholes)


def test_the_corpus_has_both_kinds() -> None:
    assert {name for name, whole in corpus().items() if not whole.said()} == SAFE | {"a longer tensor"}
    assert {name: wrong(whole) for name, whole in corpus().items()} == dict.fromkeys(corpus())
    assert {name for name, whole in corpus().items() if by_one(whole)} == SAFE, "it is not silence"


Search = turns._Search


def _kind(self: Any, expr: Scalar, own: Any = Search._kind) -> Any:
    return turns.SAME if isinstance(expr, Compare) else own(self, expr)


def _order(self: Any, expr: Scalar, own: Any = Search._kind) -> Any:
    return turns.SAME if TILE in walk(expr) else own(self, expr)


def _visit(self: Any, node: object, own: Any = Search._visit) -> None:
    own(self, replace(node, rank=None) if isinstance(node, Region) else node)


def _places(self: Any, node: object, own: Any = Search._visit) -> None:
    own(self, node)
    self._other.clear()


def _accesses(self: Rotation, a: Any, one: Any, users: Any, number: int, own: Any = Rotation._accesses) -> Any:
    found = own(self, a, one, users, number)
    return found.pick(np.full(len(found.task), number == 0))


def _unturned(bound: Bound, own: Any = turns.rotation) -> Rotation | None:
    found = own(bound)
    return None if found is None else replace(found, dims=frozenset())


def _in_queue(self: Rotation, plan: Plan, own: Any = Rotation.copies) -> Any:
    return replace(own(self, plan), events=np.zeros(0, np.int64), overtaken=np.zeros(0, np.int64))


def _of_one(self: Rotation, plan: Plan) -> Any:
    return own_copies(plan)


WRONG: dict[str, tuple[object, str, Any]] = {
    "conditions on ranks": (Search, "_kind", _kind),
    "orders on ranks": (Search, "_kind", _order),
    "ranks that do not turn": (Search, "_visit", _visit),
    "places that do not turn": (Search, "_visit", _places),
    "places of all ranks": (cutoffs, "rotation", _unturned),
    "more places than ranks": (Search, "_is_cut", lambda *_: True),
    "accesses of one rank": (Rotation, "_accesses", _accesses),
    "notifies of one rank": (Rotation, "of_all", lambda self, _, n: np.stack([n] * self.bound.ranks)),
    "copies that overtake nothing": (Rotation, "copies", _in_queue),
    "copies of one rank": (Rotation, "copies", _of_one),
    "progress not asked": (proofs, "in_rounds", lambda *_: True),
    "places not asked": (proofs, "waits_at_places", lambda *_: True),
    "places of another order": (Rotation, "places", lambda self, plan: np.zeros(plan.tasks, np.int64)),
    "rules not asked": (proofs, "RULES", {}),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_class_is_seen(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wholes = corpus()
    monkeypatch.setattr(*WRONG[what])
    assert any(wrong(whole) is not None for whole in wholes.values())


def test_a_ring_of_many_ranks_is_planned_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    module = tilelink.load("tilelink/programs/ag_gemm.tl")
    ring = module.program("ag_gemm_ring")
    for schedule in (None, *module.schedules_of(ring)):
        plan = compiler.plan(ring, schedule, ranks=512, dims={"Ms": 80, "N": 96, "K": 48})
        assert str(plan.representatives) == "each of 512 ranks does as rank 0" and plan.small.bound.ranks == 2
    large = {"Ms": 8192, "N": 96, "K": 48}
    plan = compiler.plan(ring, None, ranks=512, dims=large)
    held = plan.representatives
    assert plan.tasks > MAX_TILES and held.rotation == "each of 512 ranks does as rank 0"
    assert held.few.startswith("2 of 64 blocks")
    added, held = tilelink.load("tilelink/programs/gemm_rs.tl"), "a plan holds"
    coarse = next(one for one in added.schedules if one.name == "coarse")
    with pytest.raises(ScheduleError, match=held):  # its order names ranks, and is looked at on all of them
        compiler.plan(added.program("gemm_rs_ring"), coarse, ranks=512, dims=large)
    small = compiler.bound(ring, None, ranks=16, dims={"Ms": 80, "N": 96, "K": 48})
    assert not safe_plan(small).representatives, "few tiles are all asked"
