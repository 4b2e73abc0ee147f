"""What is asked once for all reads at places, against the same asked of each read, each write and each channel.

The oracles are the forms without families: a row of the plan for each channel that a wait may be for, and each pair of
a write and a read that overlap.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import tilelink
from tests.compiler import library
from tests.tiers import one_in, thorough
from tests.traces import planned_events
from tests.verifier.dynamic import each_channel
from tests.verifier.mutations import Case, mutants
from tilelink.errors import TileLinkError
from tilelink.facts.regions import Listed, Place
from tilelink.ir.scalar import Index, Int, Lookup
from tilelink.lowering.events import NOTIFY, WAIT
from tilelink.lowering.guards import Guard, Guards, families
from tilelink.planning.plan import Plan
from tilelink.planning.segment_tiles import segments_of
from tilelink.planning.traces import most_spans
from tilelink.verifier import refusals, undefined_reads
from tilelink.verifier.awaited import Awaited
from tilelink.verifier.cells import TensorAccesses, of_tensors, parts
from tilelink.verifier.overlaps import pairs

READ = 0
MODELS = Path(__file__).parents[2] / "benchmarks" / "check_cost.tl"
RANKS = 3
PLACES = """
program p(M = 8, N = 12, C = 8):
    n  : in        [] <= C
    x  : in        [C, N]
    at : in        [M] < n
    h  : local     [C, N]
    y  : out       [M, N]

    compute put(c: C[: n], j: N):
        h[c, j] = x[c, j]
        producer_tile_notify(h[c, j])

    compute take(i: M by 1):
        for (j: N):
            consumer_tile_wait(h[at[i], j])
        y[i, :] = h[at[i], :]

schedule s for p:
    put tile(c=4, j=4)
    take tile(j=4)
"""


@cache
def cases() -> list[Case]:
    """Programs whose launches decide what is accessed, with their schedules."""
    models, own = tilelink.load(str(MODELS)), tilelink.parse(PLACES)
    every = [*library.cases(), *((p, s) for m in (models, own) for p in m.programs for s in (None, *m.schedules_of(p)))]
    return [
        Case(program=program, schedule=schedule, numbers=library.dims(program, RANKS), ranks=RANKS)
        for program, schedule in every
        if any(tensor.bound is not None for tensor in program.tensors)
        and not any(tensor.space == "table" for tensor in program.tensors)
    ]


@cache
def few() -> frozenset[str]:
    """The names of the shortest cases that have between them what any of them has."""
    found = library.few((case.program, case.schedule) for case in cases())
    return frozenset(f"{library.name(one)}-{RANKS}" for one in found)


def plans(case: Case) -> Iterator[tuple[str, Plan]]:
    """The plan of a case, and those of some of its mutants."""
    yield "unchanged", case.plan()
    for mutant in mutants(case, 1):
        what = f"{mutant.level} {mutant.kind} {mutant.what}"
        if not one_in(10, case.name, what):
            continue
        try:
            yield what, mutant.make()
        except TileLinkError:
            continue


def said(plan: Plan) -> list[str]:
    return [str(error) for error in refusals(plan)]


def left_undefined(plan: Plan) -> str | None:
    """The first refusal of all pairs of a write and a read, each asked alone."""
    a = plan.accesses
    for part in parts(plan, ~of_tensors(plan, "in", "table", "inout", "kept")):
        for write, read in zip(*(ends.tolist() for ends in pairs(part, READ)), strict=True):
            named = undefined_reads._named(plan, plan.guards.known[int(a.guard[read])])
            if a.guard[write] and (left := undefined_reads._left_out(plan, write, named)) is not None:
                return str(undefined_reads._undefined(plan, part.name, write, read, left))
    return None


def awaited(plan: Plan, part: TensorAccesses, write: int, read: int) -> bool:
    """Whether the reader waits for all channels of what a pair shares, at the place that it reads, and all are notified
    after the write. plan: with a row for each channel."""
    a, s, dims = plan.accesses, plan.signals, part.dims
    if not a.guard[read]:
        return False
    theirs = plan.guards.of(int(a.guard[read]))
    waits = np.flatnonzero((s.task == a.task[read]) & (s.kind == WAIT) & (s.guard > 0) & (s.peer == a.peer[read]))
    waits = waits[s.position[waits] < a.position[read]]
    same = [row for row in waits.tolist() if {*plan.guards.of(int(s.guard[row]))} <= {*theirs}]
    told = np.asarray(s.task == a.task[write]) & (s.kind == NOTIFY) & (s.peer == a.peer[read]) & (s.later == 0)
    told &= s.position > a.position[write]
    known = set(s.channel[same].tolist()) & set(s.channel[told].tolist())
    for key, grid in plan.bound.channels.items():
        if key[0] == part.name:
            lo = np.maximum(a.lo[write, :dims], a.lo[read, :dims]) // grid.sizes
            hi = (np.minimum(a.hi[write, :dims], a.hi[read, :dims]) - 1) // grid.sizes + 1
            cells = np.indices(tuple(hi - lo)).reshape(dims, -1) + lo[:, None]
            channels = plan.channel_base[key] + np.atleast_1d(np.ravel_multi_index(tuple(cells), grid.counts))
            if {*map(int, channels)} <= known:
                return True
    return False


@thorough(unless=lambda case: case.name in few())
@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
def test_a_row_for_a_place_says_what_a_row_for_each_channel_says(case: Case) -> None:
    for what, plan in plans(case):
        apart = each_channel(plan)
        assert said(plan) == said(apart), what
        assert planned_events(plan) == planned_events(apart), what
        assert most_spans(plan) == most_spans(apart), what


@thorough(unless=lambda case: case.name in few() and one_in(2, case.name))
@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
def test_reads_at_places_are_settled_as_each_pair_is(case: Case) -> None:
    for what, plan in plans(case):
        known, apart = Awaited(plan), each_channel(plan)
        for part in parts(plan, ~of_tensors(plan, "in", "table")):
            writes, reads = pairs(part, READ)
            wanted = [awaited(apart, part, *pair) for pair in zip(writes.tolist(), reads.tolist(), strict=True)]
            assert known.before(writes, reads).tolist() == wanted, (what, part.name)
            unsettled = set(reads[~np.array(wanted, bool)].tolist())
            settled = set(known.after_all(part).tolist())
            assert settled <= set(part.rows[~part.written].tolist()) - unsettled, (what, part.name)


@thorough(unless=lambda case: case.name in few() and one_in(2, case.name))
@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
def test_families_of_reads_are_refused_as_their_members(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    if segments_of(case.plan().bound):
        # Rows that a launch packs are written by several stages' tiles together, which no pair of accesses shows:
        # tests/verifier/test_cutoff.py has their mutants.
        pytest.skip("rows of segments are read by place")
    monkeypatch.setattr(undefined_reads, "FEW", 0)
    for what, plan in plans(case):
        assert next(map(str, undefined_reads.undefined_reads(plan)), None) == left_undefined(plan), what


def test_most_reads_of_models_are_asked_of_in_families() -> None:
    """Else the tests above would say nothing."""
    (case,) = (one for one in cases() if one.program.name == "ep_ffn" and one.schedule is None)
    plan = case.plan()
    known = Awaited(plan)
    (part,) = (p for p in parts(plan, of_tensors(plan, "symmetric")) if p.name == "back")
    assert len(known.after_all(part)) == (~part.written).sum() > 0
    found = undefined_reads.meetings(part, undefined_reads.reads_of(part))
    assert len(found.box) and not len(undefined_reads._unproved(plan, found, {}).box)


def place(table: str, *coords: int) -> Place:
    return Place(dim=0, at=Lookup(table=table, coords=tuple(Int(value=n) for n in coords), launch=True))


def families_of(guards: Sequence[Guard]) -> list[Guard]:
    known = Guards()
    return known.families([known.number(one) for one in guards])


def test_a_family_keeps_ranks_and_what_is_equal() -> None:
    guards = [(place("a", 0, i, 5), place("b", 0, i), place("b", 0, i + 1)) for i in range(3)]
    alone = (place("a", 1, 7, 5), place("b", 1, 8), place("b", 1, 8))
    indices = {name: Index(name=f"#{name}") for name in (0, 2)}
    coords = (("a", indices[0], Int(value=5)), ("b", indices[0]), ("b", indices[2]))
    family = (Lookup(table=table, coords=(Int(value=0), *inner), launch=True) for table, *inner in coords)
    assert families_of([*guards, alone]) == [tuple(Place(dim=0, at=at) for at in family), alone]


def test_guards_that_are_asked_of_together_share_what_is_equal_in_each() -> None:
    asked = [((place("a", 0, i),), (place("b", 1, i, j),), (Place(dim=1, at=Int(value=j)),))
             for i in range(3) for j in (2 * i, 5)]  # fmt: skip
    one, other = Index(name="#0"), Index(name="#1")
    ((guards, members),) = families(asked)
    looked_up = (Lookup(table="a", coords=(Int(value=0), one), launch=True),
                 Lookup(table="b", coords=(Int(value=1), one, other), launch=True))  # fmt: skip
    assert guards == (*((Place(dim=0, at=at),) for at in looked_up), (Place(dim=1, at=other),))
    assert members == [*range(6)]


def test_lists_that_differ_in_where_they_are_in_their_tensor_are_a_family() -> None:
    def listed(row: int | Index, first: int) -> Listed:
        coords = (Int(value=0), row if isinstance(row, Index) else Int(value=row), Int(value=0))
        entries = Lookup(table="at", coords=coords, launch=True)
        stop = Lookup(table="count", coords=coords[:2], launch=True)
        return Listed(dim=0, entries=entries, along=1, first=first, last=first + 2, stop=stop)

    guards = [(listed(row, first),) for row in range(3) for first in (0, 2)]
    assert families_of(guards) == [(listed(Index(name="#0"), first),) for first in (0, 2)]


WAIT_ALL = "        for (j: N):\n            consumer_tile_wait(h[at[i], j])\n"
WAIT_SOME = "        consumer_tile_wait(h[at[i], 0 : 8])\n"


NOTIFY_LATE = "        h[c, j] = x[c, j]\n        producer_tile_notify(h[c, j])\n"
NOTIFY_EARLY = "        producer_tile_notify(h[c, j])\n        h[c, j] = x[c, j]\n"
CYCLE = """
program p(M = 8, N = 4):
    x  : in        [M, N]
    at : in        [M] < 2 * M
    h  : local     [2 * M, N]
    z  : local     [M, N]
    y  : out       [M, N]

    compute put(c: M):
        h[0 + c, :] = x[c, :]
        producer_tile_notify(h[0 + c, :])

    compute late(c: M):
        consumer_tile_wait(z[c, :])
        h[M + c, :] = z[c, :]
        producer_tile_notify(h[M + c, :])

    compute take(i: M by 1):
        consumer_tile_wait(h[at[i], :])
        y[i, :] = h[at[i], :]
        z[i, :] = x[i, :]
        producer_tile_notify(z[i, :])

schedule parallel for p:
    put on sm(1)
    late on sm(1)
    take on sm(2)
"""


def test_a_write_that_is_notified_before_it_settles_no_read() -> None:
    settled: list[int] = []
    for put in (NOTIFY_LATE, NOTIFY_EARLY):
        module = tilelink.parse(PLACES.replace(NOTIFY_LATE, put))
        case = Case(
            program=module.programs[0], schedule=module.schedules[0], numbers={"M": 8, "N": 12, "C": 8}, ranks=2
        )
        plan = case.plan()
        settled += [len(Awaited(plan).after_all(part)) for part in parts(plan, of_tensors(plan, "local"))]
    assert settled == [16, 0]


def test_without_a_wait_for_a_place_no_read_is_settled() -> None:
    """With channels of all of a tensor a wait is for no place: the other orders are asked."""
    plan = Case(
        program=tilelink.parse(PLACES).programs[0], schedule=None, numbers={"M": 8, "N": 12, "C": 8}, ranks=2
    ).plan()
    assert not len(plan.boxes)
    assert [len(Awaited(plan).after_all(part)) for part in parts(plan, of_tensors(plan, "local"))] == [0]


def of_cycle(text: str) -> Plan:
    (program,), (schedule,) = (module := tilelink.parse(text)).programs, module.schedules
    return Case(program=program, schedule=schedule, numbers={"M": 8, "N": 4}, ranks=1).plan()


@pytest.mark.parametrize(("at", "refused"), [("2 * M", True), ("M", False)])
def test_a_wait_for_a_place_lasts_until_all_channels_are_full(at: str, refused: bool) -> None:
    """A launch may choose those of `late`, which waits for the tiles that wait here; not if it has places of `put`."""
    plan = of_cycle(CYCLE.replace("< 2 * M", f"< {at}"))
    found = said(plan)
    assert found == said(each_channel(plan))
    assert bool(found) == refused and (plan.signals.box > 0).any() == refused
    waits = "late tile (c=0) waits for z, and rank 0, take tile (i=0) waits for h"
    assert not refused or waits in found[0]


def test_each_channel_of_a_place_is_notified() -> None:
    plan = of_cycle(CYCLE.replace("        producer_tile_notify(h[M + c, :])\n", ""))
    found = said(plan)
    assert found == said(each_channel(plan)) and len(found) == 8
    assert all("waits for h channel [1, 0] (tile signals), which no stage notifies" in one for one in found)


OTHER_PART = """
program p(M = 8, N = 12, C = 8):
    x  : in        [C, N]
    at : in        [M] < C
    h  : local     [C, N]
    y  : out       [M, N]

    compute put(c: C, j: N):
        h[c, j] = x[c, j]
        producer_tile_notify(h[c, j])

    compute take(i: M by 1):
        consumer_tile_wait(h[at[i], 0 : 4])
        y[i, 0 : 4] = h[at[i], 0 : 4]
        y[i, 4 : 12] = h[at[i], 4 : 12]

schedule s for p:
    put on sm(1), tile(c=4, j=4)
    take on sm(1)
"""


def test_a_wait_for_another_part_at_a_place_is_named_with_all_of_that_part() -> None:
    module = tilelink.parse(OTHER_PART)
    numbers: dict[str, int | float | bool] = {"M": 8, "N": 12, "C": 8}
    plan = Case(program=module.programs[0], schedule=module.schedules[0], numbers=numbers, ranks=1).plan()
    found = said(plan)
    assert found == said(each_channel(plan))
    assert "waits for h[0:8, 0:4] of rank 0 and reads h[0:8, 4:12]" in found[0]


@pytest.mark.parametrize(("waits", "settled"), [(WAIT_ALL, 16), (WAIT_SOME, 0)])
def test_waits_in_a_loop_are_for_a_place_together(waits: str, settled: int) -> None:
    """No wait is for all channels of what is read: those of all iterations are."""
    text = PLACES.replace(WAIT_ALL, waits)
    module = tilelink.parse(text if "(j: N)" in text else text.replace("    take tile(j=4)\n", ""))
    program, (schedule,) = module.programs[0], module.schedules_of(module.programs[0])
    plan = Case(program=program, schedule=schedule, numbers={"M": 8, "N": 12, "C": 8}, ranks=2).plan()
    (part,) = (p for p in parts(plan, of_tensors(plan, "local")) if p.name == "h")
    assert len(Awaited(plan).after_all(part)) == settled
