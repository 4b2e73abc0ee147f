"""Orders: the indices of a tile from its number in the order of its stage, as one symbolic expression per index."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import gcd

from tilelink.errors import Location, OrderError, did_you_mean
from tilelink.ir.parameters import Numbers
from tilelink.ir.scalar import Choose, Index, Param, Ranks, Scalar, add, binary, const, mul, rewrite
from tilelink.scheduling.schedule import IndexOrder, Order
from tilelink.scheduling.words import StageSchedule

TILE = Index(name="tile")
"""Number of a tile in the order of its stage."""


def decode(order: Order | None, counts: Mapping[str, int], part: StageSchedule) -> dict[str, Scalar]:
    """Return index -> expression over the tile number `tile` (and `rank`), for a domain of `counts` tiles per index."""
    terms = nest(order, counts, part)
    parts = _mixed_radix([term.index for term in terms], counts)
    if order and order.group:
        _group(parts, [term.index for term in terms], order.group, counts, part.at("order.group"))
    return {
        term.index: _sequence(term, parts[term.index], counts[term.index], part.at(f"order.{term.index}"))
        for term in terms
    }


def nest(order: Order | None, counts: Mapping[str, int], part: StageSchedule) -> list[IndexOrder]:
    """Return the indices of a domain with the sequence of each, outermost first."""
    named = list(order.nest) if order else []
    names = [term.index for term in named]
    for name in names:
        if name not in counts:
            hint = did_you_mean(name, counts, f"indices: {', '.join(counts)}")
            raise OrderError(f"order of unknown index {name!r}", location=part.at(f"order.{name}"), hint=hint)
        if names.count(name) > 1:
            location, hint = part.at(f"order.{name}"), "name each index once"
            raise OrderError(f"index {name!r} is ordered twice", location=location, hint=hint)
    return named + [IndexOrder(index=name) for name in counts if name not in names]


def _mixed_radix(names: list[str], counts: Mapping[str, int]) -> dict[str, Scalar]:
    """Return the digits of the tile number. The last name runs fastest."""
    parts: dict[str, Scalar] = {}
    below = 1
    for position in range(len(names) - 1, -1, -1):
        name = names[position]
        digit = binary("//", TILE, const(below))
        if position > 0:
            digit = binary("%", digit, const(counts[name]))
        parts[name] = digit
        below *= counts[name]
    return parts


def _group(
    parts: dict[str, Scalar],
    names: list[str],
    group: tuple[str, int],
    counts: Mapping[str, int],
    location: Location | None,
) -> None:
    """Walk the two innermost indices in groups of `size` tiles of one of them (Triton's grouped ordering)."""
    name, size = group
    if len(names) < 2 or name not in names[-2:]:
        hint = "put the grouped index and its partner last in the nest"
        message = f"group({name}, {size}) needs {name} among the two innermost indices"
        raise OrderError(message, location=location, hint=hint)
    if size < 1:
        raise OrderError(f"group({name}, {size})", location=location, hint="a band is at least one tile high")
    other = names[-1] if names[-2] == name else names[-2]
    rows, cols = counts[name], counts[other]
    inner = TILE if len(names) == 2 else binary("%", TILE, const(rows * cols))
    band = binary("//", inner, const(size * cols))
    first = mul(band, const(size))
    height = binary("min", binary("-", const(rows), first), const(size))
    within = binary("%", inner, const(size * cols))
    parts[name] = add(first, binary("%", within, height))
    parts[other] = binary("//", within, height)


def _sequence(term: IndexOrder, t: Scalar, n: int, location: Location | None) -> Scalar:
    start = term.start if term.start is not None else const(0)
    match term.kind:
        case "natural":
            return t
        case "sequence":
            if gcd(term.step, n) != 1 and n > 1:
                hint = f"a step that shares no factor with {n}, such as +1 or -1"
                message = f"step {term.step:+d} does not reach every one of {n} values"
                raise OrderError(message, location=location, hint=hint)
            return binary("%", add(start, mul(t, const(term.step))), const(n))
        case "xor":
            if n & (n - 1):
                hint = "pairwise order needs a power of two"
                raise OrderError(f"xor order over {n} values", location=location, hint=hint)
            return binary("^", binary("%", start, const(n)), t)
        case "permutation":
            if sorted(term.values) != list(range(n)):
                hint = f"name each of 0..{n - 1} once"
                message = f"[{', '.join(map(str, term.values))}] is no permutation"
                raise OrderError(message, location=location, hint=hint)
            return Choose(selector=t, values=term.values)
        case "hierarchical":
            return _hierarchical(term.group, start, t, n, location)
        case _:
            hint = "natural, step, xor, hier or a list"
            raise OrderError(f"unknown order {term.kind!r}", location=location, hint=hint)


def _hierarchical(group: int, start: Scalar, t: Scalar, n: int, location: Location | None) -> Scalar:
    """Return the rank for step t: the local group of ranks first, beginning at `start`, then the other groups."""
    if group < 1 or n % group:
        raise OrderError(f"hier({group}) over {n} values", location=location, hint=f"a divisor of {n}")
    node = binary("%", add(binary("//", start, const(group)), binary("//", t, const(group))), const(n // group))
    local = binary("%", add(start, t), const(group))
    return add(mul(node, const(group)), local)


def concrete_order(order: Order | None, part: StageSchedule, numbers: Numbers, ranks: int) -> Order | None:
    """Return an order of a stage with numbers for parameters and ranks. part: what the schedule says of the stage.

    Raises OrderError for a name that the program does not have.
    """
    if order is None:
        return None
    terms: list[IndexOrder] = []
    for term in order.nest:
        location = part.at(f"order.{term.index}")

        def change(expr: Scalar, location: Location | None = location) -> Scalar | None:
            if isinstance(expr, Ranks):
                return const(ranks)
            name = getattr(expr, "name", getattr(expr, "table", None))
            if name is not None and not (isinstance(expr, Param) and name in numbers):
                names = ["rank", "ranks", *numbers]
                hint = did_you_mean(name, names, f"known: {', '.join(names)}")
                raise OrderError(f"unknown name {name!r} in an order", location=location, hint=hint)
            return const(int(numbers[expr.name])) if isinstance(expr, Param) else None

        terms.append(term if term.start is None else replace(term, start=rewrite(term.start, change)))
    return replace(order, nest=tuple(terms))
