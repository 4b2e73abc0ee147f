"""Reductions need all of what they reduce: a tile of it would make the result depend on the schedule.

Over an index of the stage's domain a sum, a product or attention takes one tile alone, so the index must have one.
Over an index of a loop each round gives a part, and parts have to be put together as the reduction does:

    acc = acc + dot(x[i, k], w[k, j])        m = maximum(m, max(x[i, k], axis=1))

What is put together in other ways, or is seen before it is, depends on the tile. A name whose rounds depend on each
other in more than that, as in a softmax with a running maximum, is a recurrence of the program's own: whether it gives
the same for all tiles is not known here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from tilelink.errors import TileSizeError
from tilelink.ir.program import (
    Apply,
    Assign,
    Attend,
    Cast,
    Dot,
    Expand,
    For,
    Full,
    Literal,
    Local,
    Reduce,
    Statement,
    Store,
    Transfer,
    Transpose,
    UserCall,
    Value,
)
from tilelink.ir.typing import StageTyping, Typing
from tilelink.ir.visitor import local_names, operands, read_unassigned, statements, value_of, values
from tilelink.schedule.bound import BoundStage
from tilelink.schedule.defaults import padded

WHOLE, CONSTANT, SUM, MAX, MIN, RUNNING, MIXED = range(7)
"""How a value depends on the tile of a loop's index: not, not and it is zero, as a part of a sum, of a maximum or of a
minimum, through a name that rounds carry on, in another way."""
PUT_TOGETHER = {"add": {SUM}, "sub": {SUM}, "maximum": {MAX, WHOLE, CONSTANT}, "minimum": {MIN, WHOLE, CONSTANT}}
"""Operation -> the parts that it may add to what rounds carry on."""
PARTS = {"sum": SUM, "max": MAX, "min": MIN}


def check_reductions(stages: Mapping[str, BoundStage], typing: Typing) -> None:
    """Raises TileSizeError for a reduction whose result would depend on how large the tiles of an index are."""
    for name, stage in stages.items():
        known = typing.stage(name)
        _check_domain(stage, known)
        for loop in statements(stage.stage.body):
            if isinstance(loop, For):
                for decl in loop.indices:
                    if stage.count(decl.name) > 1 and decl.name not in known.scalar_indices:
                        _Rounds(stage=stage, typing=known, loop=loop, index=decl.name).check()


def reduced_indices(value: Value, typing: StageTyping) -> Iterator[tuple[str, str]]:
    """(what is taken, index) for each index along an axis that a value reduces."""
    match value:
        case Reduce(op=op, value=inner, axis=axis):
            found = [(f"the {op}", typing.type_of(inner).axes[axis])]
        case Dot(left=left):
            found = [("a product", typing.type_of(left).axes[-1])]
        case Attend(q=q, k=k, v=v):
            along = (typing.type_of(q).axes[-1], *typing.type_of(k).axes[-2:], typing.type_of(v).axes[-2])
            found = [("attention", axis) for axis in along]
        case _:
            found = []
    yield from ((what, axis.index) for what, axis in found if axis.index is not None)


def _check_domain(stage: BoundStage, typing: StageTyping) -> None:
    domain = {decl.name for decl in stage.stage.indices}
    for statement in statements(stage.stage.body):
        value = value_of(statement)
        for part in values(value) if value is not None else ():
            for what, index in reduced_indices(part, typing):
                if index in domain and stage.count(index) > 1:
                    message = (
                        f"stage {stage.name} takes {what} over tiles of {index}, of {stage.tiles[index]} elements each"
                    )
                    hint = f"{_holds_all(stage, index)}; or write `:`, or loop over {index} and add up"
                    raise TileSizeError(message, location=part.location or statement.location, hint=hint)


def _holds_all(stage: BoundStage, index: str) -> str:
    return f"tile({index}={padded(stage.extents[index])}) holds all of it"


@dataclass(kw_only=True)
class _Rounds:
    """One index of a loop: how the values of a round depend on which of its tiles the round has."""

    stage: BoundStage
    typing: StageTyping
    loop: For
    index: str
    _classes: dict[str, int] = field(default_factory=dict[str, int])

    def check(self) -> None:
        for statement in statements(self.loop.body):
            match statement:
                case Assign(name=name, value=value) if name in self.carried:
                    self._check_step(name, value, statement)
                case Store(value=value) | Transfer(source=value):
                    if self._class(value) in (SUM, MAX, MIN, MIXED):
                        raise self._error("stores what it made of one of them", statement)
                case _:
                    pass
        for name in self._seen_afterwards():
            if name not in self.carried and self._of_name(name) in (SUM, MAX, MIN, MIXED):
                raise self._error(f"keeps in {name} what it made of the last one", self.assigned[name][-1])

    def _error(self, what: str, statement: Statement) -> TileSizeError:
        size = self.stage.tiles[self.index]
        message = f"stage {self.stage.name} loops over tiles of {self.index}, of {size} elements each, and {what}"
        hint = (
            f"{_holds_all(self.stage, self.index)}; or put sums, products, maxima or minima of tiles together as such"
        )
        return TileSizeError(message, location=statement.location, hint=hint)

    def _check_step(self, name: str, value: Value, statement: Statement) -> None:
        match value:
            case Apply(op="add" | "sub" | "maximum" | "minimum" as op, args=(left, right)):
                new = right if local_names(left) & self.carried else left
                if not local_names(new) & self.running and self._class(new) not in PUT_TOGETHER[op]:
                    raise self._error(f"combines them in {name} in a way that depends on it", statement)
            case _:
                if not local_names(value) & self.running and self._class(value) in (SUM, MAX, MIN, MIXED):
                    raise self._error(f"keeps in {name} what it made of one of them", statement)

    def _reduces(self, value: Value) -> bool:
        return any(index == self.index for _, index in reduced_indices(value, self.typing))

    @cached_property
    def assigned(self) -> dict[str, list[Assign]]:
        """What a round assigns to every name."""
        found: dict[str, list[Assign]] = {}
        for statement in statements(self.loop.body):
            if isinstance(statement, Assign):
                found.setdefault(statement.name, []).append(statement)
        return found

    @cached_property
    def carried(self) -> frozenset[str]:
        """Names whose value comes, directly or through others, of their own in the round before."""
        return frozenset(name for name in self.assigned if name in self._sources(name))

    @cached_property
    def running(self) -> frozenset[str]:
        """Names that are carried, or come of such."""
        return self.carried | {name for name in self.assigned if self._sources(name) & self.carried}

    @cached_property
    def stale(self) -> frozenset[str]:
        """Names that a round reads as the round before left them."""
        first = read_unassigned(self.loop.body, rounds=True)
        return frozenset(first & self.assigned.keys()) - self.carried

    def _sources(self, name: str) -> set[str]:
        """The names that the loop assigns and that a name comes of."""
        found: set[str] = set()
        fresh = [name]
        while fresh:
            for statement in self.assigned[fresh.pop()]:
                new = (local_names(statement.value) & self.assigned.keys()) - found
                found |= new
                fresh += new
        return found

    def _of_name(self, name: str) -> int:
        if name in self.running:
            return RUNNING
        if name not in self.assigned:
            return WHOLE
        if name in self.stale:
            return MIXED
        if name not in self._classes:
            self._classes[name] = WHOLE
            self._classes[name] = _joined({self._class(s.value) for s in self.assigned[name]})
        return self._classes[name]

    def _class(self, value: Value) -> int:
        match value:
            case Local(name=name):
                return self._of_name(name)
            case Literal(value=number) | Full(value=number):
                return CONSTANT if number == 0 else WHOLE
            case Cast(value=inner, dtype=dtype):
                found = self._class(inner)
                return MIXED if found in (SUM, MAX, MIN) and dtype in ("i32", "bool") else found
            case Expand(value=inner) | Transpose(value=inner):
                return self._class(inner)
            case Reduce(op=op, value=inner):
                return self._reduction(self._class(inner), PARTS[op], self._reduces(value))
            case Dot(left=left, right=right):
                return self._reduction(_product(self._class(left), self._class(right)), SUM, self._reduces(value))
            case Apply(op=op, args=args):
                return _applied(op, [self._class(a) for a in args])
            case _:
                return _any_use([self._class(v) for v in operands(value)], isinstance(value, UserCall | Attend))

    def _reduction(self, inner: int, part: int, along: bool) -> int:
        if inner in (WHOLE, CONSTANT):
            return part if along else inner
        return inner if inner == RUNNING or (inner == part and not along) else MIXED

    def _seen_afterwards(self) -> Iterator[str]:
        """Names that the loop assigns and that a later statement of its stage reads first."""
        body, inside = self.stage.stage.body, {id(s) for s in statements((self.loop,))}
        every = list(statements(body))
        at = next(n for n, s in enumerate(every) if s is self.loop)
        nested = all(s is not self.loop for s in body)
        gone: set[str] = set()
        for statement in [*every[at:], *(every[:at] if nested else ())]:
            if id(statement) in inside:
                continue
            value = value_of(statement)
            yield from sorted((local_names(value) & self.assigned.keys()) - gone if value is not None else ())
            if isinstance(statement, Assign) and any(statement is s for s in body):
                gone.add(statement.name)


def _joined(classes: set[int]) -> int:
    """The class of one of several values."""
    rest = classes - {CONSTANT}
    if not rest:
        return CONSTANT
    if len(rest) == 1 and (CONSTANT not in classes or rest <= {SUM, WHOLE, RUNNING, MIXED}):
        return rest.pop()
    return RUNNING if RUNNING in rest else MIXED


def _product(left: int, right: int) -> int:
    if CONSTANT in (left, right):
        return CONSTANT
    if RUNNING in (left, right):
        return RUNNING
    if WHOLE in (left, right):
        other = right if left == WHOLE else left
        return other if other in (WHOLE, SUM) else MIXED
    return MIXED


def _applied(op: str, args: list[int]) -> int:
    """The class of an elementwise operation."""
    if op == "mul":
        return _product(*args)
    if op == "div" and args[1] in (WHOLE, CONSTANT):
        return _product(args[0], WHOLE)
    if op == "neg":
        return {MAX: MIN, MIN: MAX}.get(args[0], args[0])
    if (op in ("add", "sub") and set(args) <= {SUM, CONSTANT}) or (op == "where" and args[0] in (WHOLE, CONSTANT)):
        return _joined(set(args[1:] if op == "where" else args))
    if op in ("maximum", "minimum") and set(args) <= PUT_TOGETHER[op]:
        return (MAX if op == "maximum" else MIN) if set(args) & {MAX, MIN} else WHOLE
    return _any_use(args, False)


def _any_use(args: list[int], needs_all: bool) -> int:
    """The class of what takes its operands in a way of its own."""
    if RUNNING in args:
        return RUNNING
    return WHOLE if set(args) <= {WHOLE, CONSTANT} else MIXED
