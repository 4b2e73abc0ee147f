# pyright: basic
"""Accesses that meet are found for all ranks together, whatever their boxes, as by looking at every two of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.compiler import library
from tilelink import compiler
from tilelink.lowering.events import READ, WRITE, Accesses
from tilelink.planning.plan import Plan, make_plan
from tilelink.verifier import cells, overlaps, refusals

RANKS = 3
TEXT = """program p(M, N):
    x : in [M, N]
    h : symmetric [M, N]
    y : out [M, N]
    comm send(i: M):
        tile_push_data(h[i, :] @ (rank + 1), x[i, :])
        producer_tile_notify(h[i, :] @ (rank + 1))
    compute add(i: M, j: N):
        consumer_tile_wait(h[i, j])
        y[i, j] = x[i, j] + h[i, j]
"""


def planned(ranks: int = RANKS) -> Plan:
    return make_plan(compiler.bound(compiler.parse(TEXT).program(), ranks=ranks, dims={"M": 12, "N": 8}))


def random_boxes(plan: Plan, rows: int, largest: int, own_edges: bool, seed: int) -> Plan:
    """The plan with other accesses of `h`; own_edges: those of a rank begin where no others do."""
    chance = np.random.default_rng(seed)
    peer = chance.integers(0, RANKS, rows)
    size = chance.integers(0, largest + 1, (rows, 2))
    lo = chance.integers(0, (12, 8), (rows, 2))
    lo = lo // RANKS * RANKS + peer[:, None] if own_edges else lo // 2 * 2
    found = Accesses(
        task=chance.integers(0, plan.tasks, rows),
        position=np.zeros(rows, np.int64),
        kind=chance.choice([READ, WRITE], rows),
        peer=peer,
        tensor=np.full(rows, plan.bound.tensors["h"].number),
        statement=np.zeros(rows, np.int64),
        guard=np.zeros(rows, np.int64),
        lo=lo,
        hi=np.minimum(lo + size, (12, 8)),
    )
    return replace(plan, accesses=found)


def every_two(plan: Plan, kind: int) -> set[tuple[int, int]]:
    a = plan.accesses
    found: set[tuple[int, int]] = set()
    for first in np.flatnonzero(a.kind == WRITE).tolist():
        for second in np.flatnonzero(a.kind == kind).tolist():
            same = a.peer[first] == a.peer[second] and (kind == READ or a.task[first] != a.task[second])
            lo, hi = np.maximum(a.lo[first], a.lo[second]), np.minimum(a.hi[first], a.hi[second])
            if same and (lo < hi).all():
                found.add((first, second))
    return found


def test_no_more_is_looked_at_together_than_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overlaps, "MAX_CELLS", 10)
    sizes = np.array([10, 3, 3, 3, 10, 25, 1, 1, 12])
    portions = [some.tolist() for some in overlaps.portions(sizes)]
    assert [at for some in portions for at in some] == list(range(len(sizes)))
    assert all(sizes[some].sum() <= 10 + sizes[some[0]] for some in portions)


@pytest.mark.parametrize("most", [1, 2**22])
@pytest.mark.parametrize("own_edges", [False, True])
@pytest.mark.parametrize("largest", [2, 12])
def test_the_pairs_that_meet_are_those_of_looking_at_every_two(
    largest: int, own_edges: bool, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overlaps, "MAX_CELLS", most)
    for seed in range(8):
        plan = random_boxes(planned(), 40, largest, own_edges, seed)
        (part,) = cells.parts(plan, np.ones(40, bool))
        for kind in (READ, WRITE):
            pairs = zip(*(rows.tolist() for rows in overlaps.pairs(part, kind)), strict=True)
            assert set(pairs) == every_two(plan, kind), (seed, kind)


def test_ranks_are_apart_where_their_tiles_have_edges_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = random_boxes(planned(), 40, 4, True, 0)
    monkeypatch.setattr(cells, "ROOMY", 0)
    found = list(cells.parts(plan, np.ones(40, bool)))
    assert [part.ranks.tolist() for part in found] == [[rank] for rank in range(RANKS)]
    assert sorted(np.concatenate([part.every for part in found]).tolist()) == list(range(40))


@pytest.mark.parametrize("change", ["write", "read", "repeat"])
def test_what_is_wrong_on_some_ranks_is_told_as_of_each_alone(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = planned(5)
    a = plan.accesses
    where = {"write": ("h", WRITE), "read": ("h", READ), "repeat": ("y", WRITE)}[change]
    rows = np.flatnonzero((a.tensor == plan.bound.tensors[where[0]].number) & (a.kind == where[1]) & (a.peer > 1))
    kept = np.delete(np.arange(len(a.task)), rows[::2]) if change != "repeat" else np.r_[: len(a.task), rows[::2]]
    if change == "read":
        kept, a = np.arange(len(a.task)), replace(a, peer=np.where(np.isin(np.arange(len(a.peer)), rows), 2, a.peer))
    plan = replace(plan, accesses=a.pick(kept))
    together = [str(error) for error in refusals(plan, limit=100)]
    monkeypatch.setattr(cells, "MAX_ROWS", 0)
    assert together == [str(error) for error in refusals(plan, limit=100)] != []


def test_twice_the_ranks_are_no_more_looks_at_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []
    plain = cells.Cells.paint

    def counted(*args: object) -> object:
        looks[-1] += 1
        return plain(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(cells.Cells, "paint", counted)
    for program in ("ag_gemm", "gemm_rs"):
        for ranks in (4, 8):
            looks.append(0)
            found = compiler.load(program).programs[0]
            compiler.plan(found, ranks=ranks, dims=library.dims(found, ranks))
    assert looks[0] == looks[1] and looks[2] == looks[3] and all(looks)
