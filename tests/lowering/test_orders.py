"""Orders visit every tile once, in the sequence they name."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilelink.errors import OrderError
from tilelink.ir.scalar import RANK, Env, add, const, evaluate
from tilelink.lowering.orders import TILE, decode
from tilelink.scheduling.schedule import IndexOrder, Order
from tilelink.scheduling.words import StageSchedule

PART = StageSchedule(name="f")


def visit(order: Order | None, counts: dict[str, int], rank: int = 0) -> list[tuple[int, ...]]:
    """The indices of every tile, in order."""
    total = int(np.prod(list(counts.values())))
    env = Env(rank=rank, ranks=4, params={}, indices={TILE.name: np.arange(total)})
    parts = decode(order, counts, PART)
    columns = [np.broadcast_to(np.asarray(evaluate(parts[name], env)), (total,)) for name in counts]
    return [tuple(int(c[t]) for c in columns) for t in range(total)]


def sequence(order: IndexOrder, n: int, rank: int = 0) -> list[int]:
    return [v for (v,) in visit(Order(nest=(order,)), {order.index: n}, rank)]


def test_natural_order_runs_the_last_index_fastest() -> None:
    assert visit(None, {"i": 2, "j": 3}) == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]


def test_the_nest_puts_named_indices_first() -> None:
    order = Order(nest=(IndexOrder(index="j"),))
    assert visit(order, {"i": 2, "j": 2}) == [(0, 0), (1, 0), (0, 1), (1, 1)]


def test_ring_order_starts_beside_the_own_rank() -> None:
    order = IndexOrder(index="s", kind="sequence", start=add(RANK, const(1)), step=1)
    assert sequence(order, 4, rank=2) == [3, 0, 1, 2]


def test_orders_without_a_start_begin_at_zero() -> None:
    kinds = (("sequence", -1, 1, [0, 3, 2, 1]), ("xor", 1, 1, [0, 1, 2, 3]), ("hierarchical", 1, 2, [0, 1, 2, 3]))
    for kind, step, group, values in kinds:
        assert sequence(IndexOrder(index="s", kind=kind, step=step, group=group), 4, rank=1) == values


def test_xor_order_pairs_ranks() -> None:
    order = IndexOrder(index="p", kind="xor", start=RANK)
    by_rank = [sequence(order, 4, rank=r) for r in range(4)]
    assert all(by_rank[by_rank[r][t]][t] == r for r in range(4) for t in range(4))


def test_hierarchical_order_takes_the_own_group_first() -> None:
    order = IndexOrder(index="p", kind="hierarchical", start=RANK, group=2)
    assert sequence(order, 4, rank=3) == [3, 2, 1, 0]


def test_groups_walk_in_bands() -> None:
    order = Order(group=("i", 2))
    assert visit(order, {"i": 3, "j": 2}) == [(0, 0), (1, 0), (0, 1), (1, 1), (2, 0), (2, 1)]


@given(
    counts=st.fixed_dictionaries({"s": st.integers(1, 5), "i": st.integers(1, 6), "j": st.integers(1, 6)}),
    band=st.integers(1, 7),
    step=st.sampled_from([1, -1]),
    rank=st.integers(0, 3),
    partner=st.sampled_from(["i", "j"]),
)
def test_every_order_is_a_permutation(counts: dict[str, int], band: int, step: int, rank: int, partner: str) -> None:
    ring = IndexOrder(index="s", kind="sequence", start=add(RANK, const(1)), step=step)
    tiles = visit(Order(nest=(ring,), group=(partner, band)), counts, rank)
    assert sorted(tiles) == sorted(np.ndindex(*counts.values()))


@pytest.mark.parametrize(
    ("order", "n", "text"),
    [
        (IndexOrder(index="s", kind="sequence", step=2), 4, "step +2 does not reach every one of 4 values"),
        (IndexOrder(index="s", kind="sequence", step=2), 2, "step +2 does not reach every one of 2 values"),
        (IndexOrder(index="s", kind="xor"), 3, "xor order over 3 values"),
        (IndexOrder(index="s", kind="permutation", values=(0, 0, 1)), 3, "[0, 0, 1] is no permutation"),
        (IndexOrder(index="s", kind="hierarchical", group=3), 4, "hier(3) over 4 values"),
    ],
)
def test_orders_that_are_no_permutation_are_refused(order: IndexOrder, n: int, text: str) -> None:
    with pytest.raises(OrderError) as caught:
        decode(Order(nest=(order,)), {"s": n}, PART)
    assert caught.value.message == text
    assert caught.value.hint


def test_an_unknown_index_is_refused_with_the_known_ones() -> None:
    with pytest.raises(OrderError) as caught:
        decode(Order(nest=(IndexOrder(index="q"),)), {"i": 2, "j": 2}, PART)
    assert caught.value.hint == "indices: i, j"


@pytest.mark.parametrize("counts", [{"i": 4}, {"i": 2, "j": 3, "k": 2}], ids=["alone", "outermost"])
def test_bands_are_of_one_of_the_two_innermost_indices(counts: dict[str, int]) -> None:
    order = Order(nest=tuple(IndexOrder(index=name) for name in counts), group=("i", 2))
    with pytest.raises(OrderError, match=r"group\(i, 2\) needs i among the two innermost indices"):
        visit(order, counts)
