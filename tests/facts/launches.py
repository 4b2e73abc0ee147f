"""Questions about small index tensors, and their answers by trying all launches, elements and positions of lists."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from random import Random

from tilelink.facts.questions import At, Facts
from tilelink.facts.regions import Begun, Chosen, Ended, Guard, GuardPart, Listed, Place, Segment
from tilelink.ir.intervals import Bounds
from tilelink.ir.program import Tensor
from tilelink.ir.scalar import Binary, Compare, Coordinate, Int, Lookup, Scalar, const

Entry = tuple[str, int]
Launch = dict[Entry, int]
SIZE, DIMS = 5, 2
LENGTHS = {"n": 1, "c": 2, "a": 3}
LARGEST = {"n": 2, "c": 1, "a": 2}
PROMISES: tuple[tuple[str, ...], ...] = ((), ("distinct",), ("rising",), ("offsets",))
BOUNDS: tuple[Scalar | None, ...] = (
    None,
    Lookup(table="n", coords=(), launch=True),
    Lookup(table="c", coords=(Binary(op="min", left=Coordinate(dim=0), right=Int(value=1)),), launch=True),
)


@dataclass(frozen=True, kw_only=True)
class Question:
    """Is what is in `given` in `asked`, or apart from it? words, bound: what `a` promises. box: where elements are."""

    kind: str
    given: Guard
    asked: Guard
    words: tuple[str, ...]
    bound: Scalar | None
    box: At = ()

    @property
    def _regions(self) -> list[Guard]:
        """Those of which one is to cover what is given."""
        return [one for one in (self.asked[:2], self.asked[2:]) if one]

    def facts(self) -> Facts:
        tensors = {
            name: Tensor(name=name, space="in", shape=(), bound=self.bound if name == "a" else const(4),
                         properties=self.words if name == "a" else ())
            for name in LENGTHS
        }  # fmt: skip
        return Facts(bounds=Bounds(ranks=1, tables={name: (0, n) for name, n in LARGEST.items()}), tensors=tensors)

    def answer(self) -> bool:
        """What the package says."""
        if self.kind == "inside":
            return all(self.facts().inside([self.given], part, self.box) for part in self.asked)
        if self.kind == "covered":
            return self.facts().covered(self.given, self._regions)
        return self.facts().apart([self.given], [self.asked])

    def true(self) -> bool:
        """What all launches say."""
        dims = {getattr(part, "dim", None) for part in (*self.given, *self.asked)} | {dim for dim, _, _ in self.box}
        for launch in launches(self.words):
            for x in product(*(range(SIZE if dim in dims else 1) for dim in range(DIMS))):
                if not all(lo <= x[dim] < hi for dim, lo, hi in self.box):
                    continue
                if not any(self._there(launch, named) for named in _ways(self.given, launch, x)):
                    continue
                ways = [*_ways(self.asked, launch, x)]
                if self.kind == "inside" and not ways:
                    return False
                if self.kind == "covered" and not any([*_ways(one, launch, x)] for one in self._regions):
                    return False
                if self.kind == "apart" and any(self._there(launch, named) for named in ways):
                    return False
        return True

    def _there(self, launch: Launch, named: frozenset[Entry]) -> bool:
        """True if entries that an access names are below their bound."""
        for table, at in named:
            if table == "a" and self.bound is not None:
                end = launch["n", 0] if self.bound == BOUNDS[1] else launch["c", min(at, 1)]
                if launch["a", at] >= end:
                    return False
        return True


@cache
def launches(words: tuple[str, ...]) -> list[Launch]:
    """All entries that keep their promises."""
    keys = [(table, at) for table, length in LENGTHS.items() for at in range(length)]
    every = (dict(zip(keys, one, strict=True)) for one in product(*(range(LARGEST[t] + 1) for t, _ in keys)))
    return [one for one in every if _kept(words, [one["a", at] for at in range(LENGTHS["a"])])]


def _kept(words: tuple[str, ...], entries: list[int]) -> bool:
    rises = entries == sorted(entries)
    return (
        ("distinct" not in words or len({*entries}) == len(entries))
        and (rises or not {"rising", "offsets"} & {*words})
        and (entries[0] == 0 or "offsets" not in words)
    )


def _ways(guard: Guard, launch: Launch, x: tuple[int, ...]) -> Iterator[frozenset[Entry]]:
    """Yield the entries that name an element of a region, for each position of its lists by which it does."""
    lists = [part for part in guard if isinstance(part, Listed)]
    for places in product(*(range(part.first, part.last) for part in lists)):
        named: set[Entry] = set()
        at = dict(zip(map(id, lists), places, strict=True))
        if all([_in(part, launch, x, at.get(id(part), 0), named) for part in guard]):
            yield frozenset(named)


def _in(part: GuardPart, launch: Launch, x: tuple[int, ...], at: int, named: set[Entry]) -> bool:
    def value(expr: Scalar) -> int:
        return _value(expr, launch, named)

    match part:
        case Ended(dim=dim, stop=stop):
            return x[dim] < value(stop)
        case Begun(dim=dim, start=start):
            return x[dim] >= value(start)
        case Segment(dim=dim, start=start, stop=stop, offset=offset, size=size):
            begin = value(start) + offset
            return begin <= x[dim] < begin + size and (stop is None or x[dim] < value(stop))
        case Place(dim=dim, at=place):
            return x[dim] == value(place)
        case Listed(dim=dim, stop=stop):
            named.add(("a", at))
            return x[dim] == launch["a", at] and (stop is None or at < value(stop))
        case Chosen(condition=condition, holds=holds):
            return bool(value(condition)) == holds


def _value(expr: Scalar, launch: Launch, named: set[Entry]) -> int:
    match expr:
        case Int(value=number):
            return number
        case Lookup(table=table, coords=coords):
            at = _value(coords[1], launch, named) if len(coords) > 1 and isinstance(coords[1], Scalar) else 0
            named.add((table, at))
            return launch[table, at]
        case Binary(op=op, left=left, right=right) | Compare(op=op, left=left, right=right):
            a, b = _value(left, launch, named), _value(right, launch, named)
            return {
                "+": lambda: a + b, "-": lambda: a - b, "*": lambda: a * b, "//": lambda: a // b, "%": lambda: a % b,
                "min": lambda: min(a, b), "max": lambda: max(a, b), "<": lambda: a < b, "<=": lambda: a <= b,
                ">": lambda: a > b, ">=": lambda: a >= b, "==": lambda: a == b, "!=": lambda: a != b,
            }[op]()  # fmt: skip
        case _:
            raise TypeError(expr)


def drawn(seed: int) -> Question:
    """Draw a question: often about regions that differ by little."""
    draw = Random(seed)
    given = tuple(_part(draw) for _ in range(draw.randint(1, 3)))
    kind = draw.choice(["inside", "inside", "covered", "apart"])
    number = draw.randint(1, 3 if kind == "covered" else 2)
    asked = tuple(_near(draw, draw.choice(given)) if draw.random() < 0.6 else _part(draw) for _ in range(number))
    question = Question(kind=kind, given=given, asked=asked, words=draw.choice(PROMISES), bound=draw.choice(BOUNDS))
    return replace(question, box=_box(Random(f"box {seed}"))) if kind == "inside" else question


def _box(draw: Random) -> At:
    """Return what is known of elements: nothing, or a part of one dimension or of each."""
    parts = [(dim, lo := draw.randrange(SIZE), draw.randint(lo + 1, SIZE)) for dim in range(DIMS)]
    return tuple(draw.choice([(), (), parts[:1], parts]))


def _entry(draw: Random) -> Lookup:
    table = draw.choice(["n", "c", "a", "a"])
    coords = () if table == "n" else (const(draw.randrange(LENGTHS[table])),)
    return Lookup(table=table, coords=(const(0), *coords), launch=True)


def _integer(draw: Random) -> Scalar:
    entry, number = _entry(draw), const(draw.randint(0, 3))
    match draw.randrange(8):
        case 0:
            return number
        case 1:
            return Binary(op=draw.choice("+-"), left=entry, right=number)
        case 2:
            return Binary(op=draw.choice(["min", "max"]), left=entry, right=draw.choice([number, _entry(draw)]))
        case 3:
            return Binary(op=draw.choice(["//", "%"]), left=entry, right=const(draw.randint(1, 3)))
        case 4:
            return Binary(op="*", left=entry, right=const(2))
        case _:
            return entry


def _part(draw: Random) -> GuardPart:
    dim = draw.choice([0, 0, 1])
    match draw.randrange(7):
        case 0 | 1:
            return Ended(dim=dim, stop=_integer(draw))
        case 2:
            return Begun(dim=dim, start=_integer(draw))
        case 3:
            at, table = draw.randrange(2), Lookup(table="a", coords=(const(0),), launch=True)
            start, stop = (Lookup(table="a", coords=(*table.coords, const(n)), launch=True) for n in (at, at + 1))
            offset = draw.randint(0, 2)
            return Segment(
                dim=dim, start=start, stop=draw.choice([stop, stop, None]), offset=offset, size=draw.randint(1, 3)
            )
        case 4:
            return Place(dim=dim, at=_integer(draw))
        case 5:
            entries, first = Lookup(table="a", coords=(const(0), const(0)), launch=True), draw.randint(0, 1)
            stop = draw.choice([None, _entry(draw)])
            return Listed(dim=dim, entries=entries, along=0, first=first, last=draw.randint(first + 1, 3), stop=stop)
        case _:
            op = draw.choice(["<", "<=", ">", ">=", "==", "!="])
            condition = Compare(op=op, left=_entry(draw), right=_integer(draw))
            return Chosen(condition=condition, holds=draw.random() < 0.7)


def _near(draw: Random, part: GuardPart) -> GuardPart:
    """Return a part that is like another one, or a little more or less."""
    more = draw.choice([-1, 0, 1])

    def near(expr: Scalar) -> Scalar:
        return Binary(op="+", left=expr, right=const(more)) if more else expr

    match part:
        case Ended(dim=dim, stop=stop):
            return Ended(dim=dim, stop=near(stop))
        case Begun(dim=dim, start=start):
            return Begun(dim=dim, start=near(start))
        case Place(dim=dim, at=at) if draw.random() < 0.7:
            return Ended(dim=dim, stop=near(at))
        case Listed(dim=dim) if draw.random() < 0.4:
            return Ended(dim=dim, stop=near(Lookup(table="n", coords=(const(0),), launch=True)))
        case Listed(dim=dim, entries=entries, first=first, last=last):
            stop, begin = draw.choice([None, _entry(draw)]), draw.choice([first, (first + 1) % 3])
            end = max(begin + 1, min(last + more, LENGTHS["a"]))
            return Listed(dim=dim, entries=entries, along=0, first=begin, last=end, stop=stop)
        case Chosen(condition=Compare(op=op, left=left, right=right), holds=holds):
            return Chosen(condition=Compare(op=op, left=left, right=near(right)), holds=holds)
        case _:
            return part
