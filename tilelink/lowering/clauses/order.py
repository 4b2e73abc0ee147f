"""`order(s = rank + 1 step +1, i, group(i, 8))`: the order in which the tiles of a stage are executed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilelink.errors import OrderError, ParseError, did_you_mean
from tilelink.ir.program import Program
from tilelink.ir.scalar import Env, Scalar, evaluate
from tilelink.ir.visitor import all_indices
from tilelink.lowering.clauses.clause import Clause, Numbers, ratio
from tilelink.lowering.transform import whole_dim
from tilelink.scheduling.schedule import IndexOrder, Order
from tilelink.scheduling.words import SchedulePart


def _read(_: str, children: Sequence[Any]) -> Order:
    groups = [one for one in children if isinstance(one, tuple)]
    if len(groups) > 1:
        raise ParseError("more than one group in an order", hint="one group walks the two innermost indices")
    nest = tuple(one for one in children if isinstance(one, IndexOrder))
    return Order(nest=nest, group=groups[0] if groups else None)


def _valid(owner: str, order: Order | None) -> None:
    group: Any = order.group if order is not None else None
    pair = isinstance(group, tuple) and len(group) == 2 and isinstance(group[0], str)  # callers may pass any type
    if group is not None and not (pair and type(group[1]) is int and group[1] > 0):
        raise OrderError(f"group {group!r} of {owner}", hint='an index and how many of its tiles: group=("i", 8)')
    if order is not None and not all(isinstance(term, IndexOrder) for term in order.nest):  # pyright: ignore
        raise OrderError(f"order {order.nest!r} of {owner}", hint="names of indices, or IndexOrders")


def _inner(order: Order | None) -> Sequence[tuple[str, str]]:
    if order is None:
        return []
    return [*((term.index, term.index) for term in order.nest), *([("group", "group")] if order.group else [])]


def _check(program: Program, part: SchedulePart) -> None:
    order = part[ORDER]
    if order is None:
        return
    stage = program.stage(part.name)
    names = list(dict.fromkeys(d.name for d in stage.indices))
    for name in [*(term.index for term in order.nest), *([order.group[0]] if order.group else [])]:
        # A tile size may still turn a dimension that a communication stage moves as a whole into an index.
        sliced = stage.kind == "comm" and whole_dim(program, stage, name) is not None
        if name not in names and not sliced:
            hint = did_you_mean(name, names, f"indices: {', '.join(names)}")
            if name in {d.name for d in all_indices(stage)}:
                hint = f"{name} is the index of a loop, which runs as written; indices: {', '.join(names)}"
            raise OrderError(f"order of unknown index {name!r}", location=part.at(f"order.{name}"), hint=hint)


def _apart(one: Order | None, other: Order | None, dims: Numbers, ranks: int) -> float:
    mine, theirs = one or Order(), other or Order()
    groups = [order.group[1] if order.group else 1 for order in (mine, theirs)]
    return float(_terms(mine, dims, ranks) != _terms(theirs, dims, ranks)) + ratio(*groups)


def _terms(order: Order, dims: Numbers, ranks: int) -> set[tuple[object, ...]]:
    """Return the parts of an order, with numbers in place of expressions."""

    def start(value: Scalar | None) -> tuple[int, ...]:
        environments = (Env(rank=rank, ranks=ranks, params=dict(dims), indices={}) for rank in range(ranks))
        return tuple(int(evaluate(value, env)) for env in environments) if value is not None else ()

    def said(term: IndexOrder) -> tuple[object, ...]:
        return (term.index, term.kind, start(term.start), term.step, term.values, term.group)

    return {said(term) for term in order.nest if term.kind != "natural"}


ORDER: Clause[Order | None] = Clause(
    name="order",
    default=None,
    rules={"order": '"order" "(" term ("," term)* ")"'},
    syntax="order(..)",
    read=_read,
    show=str,
    valid=_valid,
    inner=_inner,
    check=_check,
    apart=_apart,
    written="`order(s = rank + 1 step +1, i, group(i, 8))`",
    manual=(
        "nest of the stage's own indices, outermost first, and each one's sequence: `= start step n`; `= rank "
        "xor`, step t of which is at `rank ^ t`, for powers of two; `= rank hier(4)`, first the 4 ranks of the "
        "own group of 4, then those of the next groups; `= [2, 0, 1]`; `group(i, 8)` walks the two innermost "
        "indices in groups of 8 tiles of `i`. A loop inside a tile runs as written"
    ),
)
