"""Masks of a loop that carries a state: which iterations need them.

A choice by positions, such as the mask of causal attention, takes its first value for all elements of most iterations.
A consumer applies it only where the condition may be false for an element of its part. If it is proved that no
iteration after the first one needs it, as in a loop that begins with the diagonal, the others have neither mask nor
branch. The least and the largest element of a consumer's part of a vector of integers stand for what a launch decides,
such as where the documents of rows begin.

before: for t in iterations:  masked = where(rows >= columns, scores, -inf)
after:  masked = where(rows >= columns, scores, -inf)            # first iteration
        for t in further iterations:  masked = scores
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum, auto

from tilelink.facts.questions import Facts
from tilelink.ir.intervals import Bounds
from tilelink.ir.program import Apply, Expand, FromScalar, Literal, Local, Positions, Value
from tilelink.ir.scalar import Compare, Index, Logic, Scalar, add, binary, const, mul, substitute
from tilelink.ir.simplify import simplify
from tilelink.lowering.bound import Bound, BoundStage
from tilelink.lowering.carried import Carried, Mask
from tilelink.lowering.iterations import Range, loop_of, range_of
from tilelink.lowering.rings import Roles

PART = "PART"
"""Index of the consumer that has a part of a tile's rows."""
BEFORE, AFTER = "iterations before", "iterations after"
"""Indices of the number of iterations between the first one and a later one, and between that and the last one."""
SCALAR_OPS = {"add": "+", "sub": "-", "mul": "*", "minimum": "min", "maximum": "max"}
"""Elementwise operations that expressions have, too."""


def masks_of(bound: Bound, stage: BoundStage, roles: Roles) -> tuple[Mask, ...]:
    """Return the masks that a stage needs whose warps have roles in such a loop."""
    tile, bounds = loop_of(stage), bound.bounds(stage.name)
    iterations = range_of(stage, bounds)
    assert not isinstance(iterations, str)
    row_index = bound.typing.stage(stage.name).region_type(tile.kept[0]).axes[0].index
    masks = Masks(
        stage=stage, tile=tile, iterations=iterations, rows=roles.rows, consumers=roles.consumers, row_index=row_index,
        bounds=bounds, extremes={(one.vector, one.most): name for name, one in extremes_of(bound, stage).items()},
    )  # fmt: skip
    peeled = roles.operands.reader.first is not None
    found: list[Mask] = []
    for number, statement in enumerate(tile.compute):
        kinds = (Iterations.FIRST, Iterations.LATER) if peeled else (Iterations.ALL, Iterations.ALL)
        first, further = (masks.condition(statement.value, kind) for kind in kinds)
        if first is not None and further is not None:
            found.append(Mask(statement=number, first=first, further=further))
    return tuple(found)


@dataclass(frozen=True, kw_only=True)
class Extreme:
    """The least element of a consumer's part of a vector of rows, or the largest one."""

    vector: str
    most: bool


def extremes(names: Iterable[str]) -> dict[str, Extreme]:
    """Return index -> what it stands for in conditions of masks, for vectors of some names."""
    words = (("least", False), ("most", True))
    return {f"{word}_{name}": Extreme(vector=name, most=most) for name in names for word, most in words}


def extremes_of(bound: Bound, stage: BoundStage) -> dict[str, Extreme]:
    """Return those of the vectors of integers that a tile computes once, without indices that are names of others."""
    typing = bound.typing.stage(stage.name).locals
    taken = {*bound.tensors, *bound.stages, *stage.extents, *(p.name for p in bound.program.params), *typing}
    kinds = {one.name: typing[one.name] for one in loop_of(stage).vectors}
    found = extremes(name for name, kind in kinds.items() if kind.dtype == "i32" and len(kind.axes) == 1)
    return {index: one for index, one in found.items() if index not in taken}


class Iterations(Enum):
    """The iterations of a tile for which statements are: the first one, those after it, or all of them."""

    FIRST = auto()
    LATER = auto()
    ALL = auto()


@dataclass(frozen=True, kw_only=True)
class Masks:
    """The masks of a stage's tiles. rows: of a consumer's part. row_index: of the tile's rows. bounds: of the stage.
    extremes: (vector, whether its largest element is meant) -> index."""

    stage: BoundStage
    tile: Carried
    iterations: Range | None
    rows: int
    consumers: int
    row_index: str | None
    bounds: Bounds
    extremes: Mapping[tuple[str, bool], str]

    def condition(self, value: Value, which: Iterations) -> Scalar | bool | None:
        """Return when a choice may not take its first value alone: never (False), always (True), or an expression.

        Return None for what is no choice by positions: it is computed in each iteration.
        """
        match value:
            case Apply(op="where", args=(condition, Local(), _)):
                some = self._some_false(condition)
                return None if some is None else self._known(some, which)
            case _:
                return None

    def _known(self, condition: Scalar, which: Iterations) -> Scalar | bool:
        """Return whether a condition is proved to hold, or not to hold, in these iterations of all tiles, or itself."""
        match condition:
            case Logic(op="or", args=args):
                sides = [self._known(one, which) for one in args]
                if True in sides:
                    return True
                open_sides = tuple(one for one in sides if isinstance(one, Scalar))
                if len(open_sides) > 1:
                    return Logic(op="or", args=open_sides)
                return open_sides[0] if open_sides else False
            case Compare(left=left, right=right):
                bounds = self._bounds()
                facts = Facts(bounds=bounds)
                for least, most in self._in_iterations(left, right, which, bounds):
                    if facts.at_most(most, least):
                        return False
                    if facts.at_most(add(least, const(1)), most):
                        return True
                return Compare(op="<", left=simplify(binary("-", left, right), bounds), right=const(0))
            case _:
                return condition

    def _in_iterations(
        self, left: Scalar, right: Scalar, which: Iterations, bounds: Bounds
    ) -> Iterator[tuple[Scalar, Scalar]]:
        """Yield both sides of a comparison by what is known of the loop's index in some iterations.

        An iteration after the first one is `start + 1 + BEFORE`, and also `stop - 1 - AFTER`.
        """
        known = self._index_values(which)
        left, right = (simplify(substitute(one, known), bounds) for one in (left, right))
        yield left, right
        if which is Iterations.LATER:
            last = binary("-", self._stop, add(self._start, const(2)))
            counted = {BEFORE: binary("-", last, Index(name=AFTER))}
            yield substitute(left, counted), substitute(right, counted)

    def _bounds(self) -> Bounds:
        most = self.stage.count(self._index) - 1
        indices = {**self.bounds.indices, PART: (0, self.consumers - 1), BEFORE: (0, most), AFTER: (0, most)}
        indices |= dict.fromkeys(self.extremes.values(), (-(2**31), 2**31 - 1))
        return Bounds(ranks=self.bounds.ranks, indices=indices, tables=self.bounds.tables)

    @property
    def _start(self) -> Scalar:
        return self.iterations.start if self.iterations is not None else const(0)

    @property
    def _stop(self) -> Scalar:
        return self.iterations.stop if self.iterations is not None else const(self.stage.count(self._index))

    @property
    def _index(self) -> str:
        """Return the first index of the loop that has several values, or the first one."""
        if self.iterations is not None:
            return self.iterations.index
        names = [decl.name for decl in self.tile.loop.indices]
        return next((name for name in names if self.stage.count(name) > 1), names[0])

    def _index_values(self, which: Iterations) -> dict[str, Scalar]:
        """Return what is known of the loop's indices in some iterations: index -> its value."""
        if which is Iterations.ALL:
            return {}
        others = [decl.name for decl in self.tile.loop.indices if decl.name != self._index]
        if which is Iterations.FIRST:
            return {self._index: self._start, **{name: const(0) for name in others}}
        if any(self.stage.count(name) > 1 for name in others):
            return {}
        return {self._index: add(add(self._start, const(1)), Index(name=BEFORE))}

    def _some_false(self, value: Value) -> Scalar | None:
        """Return when a condition on positions is false for some of a part, or None.

        `(pos(i) + a)[:, None] >= (pos(j) + b)[None, :]` is true for all if no row is before the last column.
        """
        match value:
            case Apply(op="and" | "bitand", args=(one, other)):
                first, second = self._some_false(one), self._some_false(other)
                return None if first is None or second is None else Logic(op="or", args=(first, second))
            case Apply(op="ge" | "gt" | "le" | "lt" as op, args=(one, other)):
                large, small = (one, other) if op in ("ge", "gt") else (other, one)
                least, most = self._end(large, most=False), self._end(small, most=True)
                if least is None or most is None:
                    return None
                return Compare(op="<", left=least, right=most if op in ("ge", "le") else add(most, const(1)))
            case _:
                return None

    def _end(self, value: Value, *, most: bool) -> Scalar | None:
        """Return the least or the largest of some positions plus a number, of a consumer's part, or None."""
        match value:
            case Expand(value=inner):
                return self._end(inner, most=most)
            case Local(name=name) if (name, most) in self.extremes:
                return Index(name=self.extremes[name, most])
            case Positions(index=index):
                first, size = mul(Index(name=index), const(self.stage.tiles[index])), self.stage.tiles[index]
                if index == self.row_index:
                    first, size = add(first, mul(Index(name=PART), const(self.rows))), self.rows
                return add(first, const(size - 1)) if most else first
            case Apply(op="add" | "sub" as op, args=(a, b)):
                first, second = self._end(a, most=most), self._end(b, most=most if op == "add" else not most)
                return None if first is None or second is None else binary(SCALAR_OPS[op], first, second)
            case _:
                return expression_of(value)


def expression_of(value: Value) -> Scalar | None:
    """Return an integer value without axes as an expression, or None for another value."""
    match value:
        case FromScalar(scalar=scalar):
            return scalar
        case Literal(value=int(number)):
            return const(number)
        case Apply(op=op, args=(a, b)) if op in SCALAR_OPS:
            left, right = expression_of(a), expression_of(b)
            return None if left is None or right is None else binary(SCALAR_OPS[op], left, right)
        case _:
            return None
