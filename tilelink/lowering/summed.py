"""Products that the iterations of a loop add up, as one product of a tile whose warps have roles.

A position of the ring of operands holds contracted elements of an iteration, and the iterations of a tile follow one
another there: `ranks * K` contracted elements need no tensor of this length. Where an iteration scales its product, a
position holds all that it contracts, and consumers compute what they add to the sums.

    total = zeros(f32)
    for (p: ranks, k: KB):
        wait(x[p, k, i, :])
        total = total + dot(x[p, k, i, :], w[p, k, j, :].T) * u[p, k, i][:, None]
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from math import prod

from tilelink.ir.products import products_of
from tilelink.ir.program import (
    Apply,
    Assign,
    Dot,
    For,
    FromScalar,
    Full,
    Local,
    Positions,
    Read,
    Reduce,
    Region,
    Statement,
    Transpose,
    Value,
    Wait,
)
from tilelink.ir.scalar import Index, walk
from tilelink.ir.visitor import local_names, operands, reads, statements, value_of, values, without_names
from tilelink.lowering.bound import Bound, BoundStage, once_a_stage, with_bodies
from tilelink.lowering.straight_epilogue import is_zero


@dataclass(frozen=True, kw_only=True)
class SummedProduct:
    """A product of an iteration. waits: before it. name: of the sums. added: what the iteration adds to them."""

    loop: For
    waits: tuple[Wait, ...]
    name: str
    dot: Dot
    added: Value

    @property
    def scaled(self) -> bool:
        """True if an iteration adds something else than its product."""
        return self.added != self.dot

    @property
    def reads(self) -> tuple[Region, ...]:
        """Return what consumers compute with in an iteration."""
        multiplied = {region for operand in (self.dot.left, self.dot.right) for region in reads(operand)}
        return tuple(dict.fromkeys(region for region in reads(self.added) if region not in multiplied))

    @property
    def factors(self) -> tuple[Value, ...]:
        """Return the largest parts of what is added that are computed from reads alone, without the product."""
        found: list[Value] = []
        left = [self.added]
        while left:
            part = left.pop()
            if self.dot in values(part):
                left += operands(part) if part != self.dot else []
            elif reads(part):
                found.append(part)
        return tuple(found)

    @property
    def reads_alone(self) -> bool:
        """True if what an iteration adds depends on its number by what it reads and multiplies alone."""
        own = {decl.name for decl in self.loop.indices}
        places = [one.index for one in values(self.added) if isinstance(one, Positions)]
        numbers = [e for one in values(self.added) if isinstance(one, FromScalar) for e in walk(one.scalar)]
        return not own & {*places, *(e.name for e in numbers if isinstance(e, Index))}

    @property
    def statement(self) -> Assign:
        """Return the statement of an iteration after its waits."""
        last = self.loop.body[-1]
        assert isinstance(last, Assign)
        return last

    def count(self, stage: BoundStage) -> int:
        """Return the number of iterations."""
        return prod(stage.count(decl.name) for decl in self.loop.indices)


def summed_product(stage: BoundStage, statement: Statement) -> SummedProduct | None:
    """Return the product that a loop of a stage adds up, or None for any other statement."""
    if isinstance(statement, For) and statement.indices[0].name in stage.sums:
        return _summed(statement)
    return None


@once_a_stage
def summed_of(stage: BoundStage) -> SummedProduct | None:
    """Return the product that the tiles of a stage add up in a loop, or None."""
    return next(filter(None, (summed_product(stage, one) for one in stage.stage.body)), None)


def with_sums(bound: Bound, name: str) -> Bound:
    """Return the bound program with a stage whose loop, if it adds up products, is known as such."""
    stage = bound.stages[name]
    body, sums = summed_body(stage.stage.body)
    if not sums or sums[0] in stage.slices:  # a loop over the slices of one product is that product
        return bound
    bound = with_bodies(bound, {name: body})
    return replace(bound, stages={**bound.stages, name: replace(bound.stages[name], sums=frozenset(sums))})


def summed_body(body: tuple[Statement, ...]) -> tuple[tuple[Statement, ...], tuple[str, ...]]:
    """Return the statements of a tile, and the first index of its loop if that adds up products; no index if not."""
    first = next((n for n, s in enumerate(body) if not isinstance(s, Wait) and not is_zero(s)), len(body))
    if first == len(body) or not isinstance(loop := body[first], For):
        return body, ()
    outside = {name for s in body for one in statements((s,)) if s is not loop and (value := value_of(one))
               for name in local_names(value)}  # fmt: skip
    made = _inlined(loop, outside)
    found = _summed(made)
    begun = [s.value for s in body[:first] if isinstance(s, Assign) and found is not None and s.name == found.name]
    if found is None or not any(isinstance(one, Full) and one.value == 0 for one in begun):
        return body, ()
    return (*body[:first], made, *body[first + 1 :]), (loop.indices[0].name,)


def _inlined(loop: For, outside: Collection[str]) -> For:
    """Return a loop in which names that an iteration gives a value once, and that it alone reads, are these values."""
    assigned = [s.name for s in loop.body if isinstance(s, Assign)]

    def own(_: int, one: Assign) -> bool:
        return assigned.count(one.name) == 1 and one.name not in {*outside, *local_names(one.value)}

    done = without_names(loop.body, own)
    waits = [s for s in done if isinstance(s, Wait)]
    return replace(loop, body=(*waits, *(s for s in done if not isinstance(s, Wait))))


def _summed(loop: For) -> SummedProduct | None:
    *waits, last = loop.body
    awaited = tuple(one for one in waits if isinstance(one, Wait))
    if len(awaited) < len(waits) or any(decl.counted for decl in loop.indices):
        return None
    match last:
        case Assign(name=name, value=Apply(op="add", args=(Local(name=old), added))) if name == old:
            dots = products_of(added)
            reduced = any(isinstance(one, Reduce) and products_of(one) for one in values(added))
            if len(dots) == 1 and _of_regions(dots[0]) and not reduced and name not in local_names(added):
                return SummedProduct(loop=loop, waits=awaited, name=name, dot=dots[0], added=added)
        case _:
            pass
    return None


def _of_regions(dot: Dot) -> bool:
    right = dot.right.value if isinstance(dot.right, Transpose) else None
    return isinstance(dot.left, Read) and isinstance(right, Read)
