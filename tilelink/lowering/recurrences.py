"""Recurrences of a loop over tiles: their results must not depend on the tile size.

Each iteration reduces one tile, so it computes a partial result for the whole index. Partial results must be combined
with the operation of the reduction:

    acc = acc + dot(x[i, k], w[k, j])        m = maximum(m, max(x[i, k], axis=1))

The values of an iteration are classified from the first statement to the last, as dependent on its tile or not. A name
that an iteration reads before it assigns it has its value from an earlier iteration: that name is carried. At the end
of the iteration it must be that value combined with partial results. A name whose iterations also depend on other
carried names, as in a softmax with a running maximum, is a recurrence of the program itself: the analysis cannot tell
if its result is the same for all tile sizes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum, auto
from functools import cached_property

from tilelink.errors import TileSizeError
from tilelink.ir.mapping import tile_index
from tilelink.ir.program import (
    INTEGERS,
    ITEM_BYTES,
    Apply,
    Assign,
    Attend,
    Cast,
    Dot,
    Expand,
    For,
    Full,
    If,
    Literal,
    Local,
    Read,
    Reduce,
    Region,
    Scan,
    Statement,
    Store,
    Transfer,
    Transpose,
    Value,
)
from tilelink.ir.scalar import Scalar
from tilelink.ir.sizes import power_of_two
from tilelink.ir.typing import StageTyping
from tilelink.ir.visitor import local_names, operands, read_unassigned, statements, value_of
from tilelink.lowering.bound import BoundStage


class Dependence(Enum):
    """Dependence of a value on the tile of its iteration."""

    WHOLE = auto()
    """Independent of the tile."""
    ZERO = auto()
    """Independent of the tile, and zero."""
    SUM = auto()
    """A partial sum."""
    MAX = auto()
    MIN = auto()
    MIXED = auto()
    """Any other dependence."""


STEADY = frozenset({Dependence.WHOLE, Dependence.ZERO})
"""The kinds that do not depend on the tile."""
REDUCED = {"sum": Dependence.SUM, "max": Dependence.MAX, "min": Dependence.MIN}
PUT_TOGETHER = {
    "add": (Dependence.SUM, {Dependence.SUM, Dependence.ZERO}),
    "sub": (Dependence.SUM, {Dependence.SUM, Dependence.ZERO}),
    "maximum": (Dependence.MAX, {Dependence.MAX, *STEADY}),
    "minimum": (Dependence.MIN, {Dependence.MIN, *STEADY}),
}
"""Operation -> the reduction that it combines, and the kinds of operands that it may combine."""


NARROWEST = 2
"""Fewest bytes of an element of the type that a compilation chooses."""


@dataclass(frozen=True, kw_only=True)
class Made:
    """The analysis result for a value.

    carried: carried names that the value depends on. total: True if it is the value of the one such name combined with
    partial results of this dependence, or with none for WHOLE. A value that depends on carried names in another way is
    MIXED. rounded: True if such a value has been rounded to a narrower type, which maxima and minima do not notice.
    """

    dependence: Dependence
    carried: frozenset[str] = frozenset()
    total: bool = False
    rounded: bool = False

    @property
    def steady(self) -> bool:
        return self.dependence in STEADY and not self.carried


State = dict[str, Made]
"""Names -> analysis results for their values."""
_WHOLE = Made(dependence=Dependence.WHOLE)


def check_iterations(stage: BoundStage, typing: StageTyping, loop: For, index: str) -> None:
    """Raise TileSizeError if the result of a loop may depend on the tile size of one of its indices."""
    _Recurrence(stage, typing, loop, index).check()


def holds_all(stage: BoundStage, index: str) -> str:
    """Return a remedy for an index that needs one tile."""
    return f"tile({index}={power_of_two(stage.extents[index])}) holds all of it"


class _Recurrence:
    def __init__(self, stage: BoundStage, typing: StageTyping, loop: For, index: str) -> None:
        self.stage, self.typing, self.loop, self.index = stage, typing, loop, index
        self.old = frozenset(read_unassigned(loop.body, iterations=True) & self.assigned.keys())
        self.carried = self.old
        self._entered: dict[int, State] = {}
        """State at the start of the iterations of each inner loop, by the loop's identity."""
        self._end: State = {}
        self._checks = False

    @cached_property
    def assigned(self) -> dict[str, list[Assign]]:
        """Return all assignments of an iteration, by name."""
        assignments: dict[str, list[Assign]] = {}
        for statement in statements(self.loop.body):
            if isinstance(statement, Assign):
                assignments.setdefault(statement.name, []).append(statement)
        return assignments

    @cached_property
    def written(self) -> frozenset[str]:
        """Return the tensors that an iteration writes."""
        inside = statements(self.loop.body)
        return frozenset(
            (s.region if isinstance(s, Store) else s.target).tensor for s in inside if isinstance(s, Store | Transfer)
        )

    def check(self) -> None:
        """Raise TileSizeError for a result that depends on the tile size."""
        end = self._settled()
        while stale := {name for name in self.carried if name not in _sources(name, end)}:
            self.carried -= stale  # the previous iteration computed them from its own tile alone
            end = self._settled()
        self._end, self._checks = end, True
        self._round()
        for name in sorted(self.carried):
            if not end[name].total and end[name].carried <= {name}:
                raise self._error(f"combines them in {name} in a way that depends on it", self.assigned[name][-1])
        for name in self._seen_afterwards():
            if not (name in self.carried or end.get(name, _WHOLE).steady or self._is_carried_on(name)):
                raise self._error(f"keeps in {name} what it made of the last one", self.assigned[name][-1])

    def _error(self, what: str, statement: Statement) -> TileSizeError:
        size = self.stage.tiles[self.index]
        message = f"stage {self.stage.name} loops over tiles of {self.index}, of {size} elements each, and {what}"
        hint = f"{holds_all(self.stage, self.index)}; or put sums, products, maxima or minima of tiles together as such"
        return TileSizeError(message, location=statement.location, hint=hint)

    # Statements ----------------------------------------------------------------------------------------------

    def _settled(self) -> State:
        """Return the state at the end of an iteration, once further iterations of its inner loops do not change it."""
        self._entered = {}
        while True:
            before, end = dict(self._entered), self._round()
            if before == self._entered:
                return end

    def _round(self) -> State:
        begin = dict.fromkeys(self.old, _mixed())
        begin |= {
            name: Made(dependence=Dependence.WHOLE, carried=frozenset({name}), total=True) for name in self.carried
        }
        return self._block(self.loop.body, begin)

    def _block(self, body: tuple[Statement, ...], state: State) -> State:
        for statement in body:
            match statement:
                case Assign(name=name, value=value):
                    if self._checks and name in self.carried:
                        self._check_step(name, value, statement, state)
                    state = {**state, name: self._made(value, state)}
                case If(then=then, orelse=orelse):
                    state = _either(self._block(then, state), self._block(orelse, state))
                case For(indices=indices, body=inner) if all(self.stage.count(d.name) for d in indices):
                    entered = _either(self._entered.get(id(statement), state), state)
                    state = self._block(inner, entered)
                    self._entered[id(statement)] = _either(entered, state)
                case Store(value=value) | Transfer(source=value) if self._checks:
                    self._check_stored(self._made(value, state), statement)
                case _:
                    pass
        return state

    def _check_step(self, name: str, value: Value, statement: Statement, state: State) -> None:
        """Raise TileSizeError if a carried value is combined with anything other than partial results."""
        while isinstance(value, Apply) and value.op in PUT_TOGETHER:
            sides = [(self._made(a, state), a) for a in value.args]
            (old, rest), (new, _) = sorted(sides, key=lambda side: (name not in side[0].carried, not side[0].carried))
            if not old.carried:
                return
            fits = new.dependence in PUT_TOGETHER[value.op][1]
            if new.carried:  # totals so far of other names, unless those depend on this name in turn
                fits = not old.total or any(name in _sources(one, self._end) for one in new.carried)
            if not fits:
                raise self._error(f"combines them in {name} in a way that depends on it", statement)
            value = rest

    def _check_stored(self, made: Made, statement: Statement) -> None:
        if made.carried:
            raise self._error("stores what it made of some of them", statement)
        if not made.steady:
            raise self._error("stores what it made of one of them", statement)

    # Values --------------------------------------------------------------------------------------------------

    def _made(self, value: Value, state: State) -> Made:
        match value:
            case Local(name=name):
                return state.get(name, _WHOLE)
            case Literal(value=number) | Full(value=number):
                return Made(dependence=Dependence.ZERO) if number == 0 else _WHOLE
            case Read(region=region):
                return _mixed() if region.tensor in self.written and not self._along(region) else _WHOLE
            case Cast(value=inner, dtype=dtype):
                return _cast(self._made(inner, state), self.typing.type_of(inner).dtype, dtype)
            case Expand(value=inner) | Transpose(value=inner):
                return self._made(inner, state)
            case Apply(op=op, args=args):
                return _applied(op, [self._made(a, state) for a in args])
            case Attend():
                return self._attention(value, state)
            case _:
                return self._reduced(value, state)

    def _reduced(self, value: Value, state: State) -> Made:
        made = [self._made(v, state) for v in operands(value)]
        match value:
            case Reduce(op=op, value=inner, axis=axis) if not made[0].carried:
                along = self._is_own(inner, axis)
                return Made(dependence=_reduction(made[0].dependence, REDUCED.get(op, Dependence.MIXED), along))
            case Scan(value=inner, axis=axis) if self._is_own(inner, axis):  # sums begin anew in each tile
                return _mixed(made[0].carried)
            case Dot(left=left) if not made[0].carried and not made[1].carried:
                along = self._is_own(left, -1)
                return Made(
                    dependence=_reduction(_product(made[0].dependence, made[1].dependence), Dependence.SUM, along)
                )
            case _:
                return _used(made)

    def _attention(self, value: Attend, state: State) -> Made:
        """Classify attention. Keys are added to its state in any order; a tile of the features is an error."""
        old, *rest = (self._made(v, state) for v in operands(value))
        used = _used([old, *rest])
        features, keys = self._is_own(value.k, -1), self._is_own(value.k, -2)
        if keys and not features and old.total and not old.rounded and all(one.steady for one in rest):
            return Made(dependence=Dependence.SUM, carried=old.carried, total=True)
        return _mixed(used.carried) if keys or features else used

    def _is_own(self, value: Value, axis: int) -> bool:
        """True if an axis of a value runs along the tiles of the index."""
        return self.typing.type_of(value).axes[axis].index == self.index

    def _along(self, region: Region) -> bool:
        """True if a region is that of the iteration's tile."""
        tiles = (tile_index(c, self.stage.scalar_indices) for c in region.coords if isinstance(c, Scalar))
        return any(tile is not None and tile[1] == self.index for tile in tiles)

    # After the loop ------------------------------------------------------------------------------------------

    def _seen_afterwards(self) -> Iterator[str]:
        """Yield the names that the loop assigns and that a later statement of its stage reads before assigning them."""
        body, inside = self.stage.stage.body, {id(s) for s in statements((self.loop,))}
        every = list(statements(body))
        at = next(n for n, s in enumerate(every) if s is self.loop)
        around = next((n for n, s in enumerate(every[:at]) if isinstance(s, For) and self._is_in(s)), at)
        gone: set[str] = set()
        # Inside an outer loop, statements before this loop run again in the next iteration of the outer one.
        for statement in [*every[at:], *every[around:at]]:
            if id(statement) in inside:
                continue
            value = value_of(statement)
            yield from sorted((local_names(value) & self.assigned.keys()) - gone if value is not None else ())
            if isinstance(statement, Assign) and any(statement is s for s in body):
                gone.add(statement.name)

    def _is_in(self, loop: For) -> bool:
        return any(s is self.loop for s in statements(loop.body))

    def _is_carried_on(self, name: str) -> bool:
        """True if a name ends each iteration as a copy of a carried name's final value."""
        order = {id(s): position for position, s in enumerate(statements(self.loop.body))}
        last = order[id(self.assigned[name][-1])]
        return any(
            isinstance(s, Assign)
            and s.value == Local(name=name)
            and s.name in self.carried
            and s is self.assigned[s.name][-1]
            and last < order[id(s)]
            for s in self.loop.body
        )


def _sources(name: str, end: State) -> set[str]:
    """Return the carried names that a name's value at the end of an iteration depends on.

    Their values are those at the start of this iteration or of earlier ones.
    """
    sources, fresh = set[str](), {name}
    while fresh:
        fresh = set[str]().union(*(end[one].carried for one in fresh)) - sources
        sources |= fresh
    return sources


def _mixed(carried: frozenset[str] = frozenset()) -> Made:
    return Made(dependence=Dependence.MIXED, carried=carried)


def _either(one: State, other: State) -> State:
    """Merge the states of two branches. A name that only one branch assigns is later read only after that branch."""
    both = {name: _joined(one[name], other[name]) for name in one.keys() & other.keys()}
    return {**one, **other, **both}


def _joined(one: Made, other: Made) -> Made:
    if one == other:
        return one
    carried = one.carried | other.carried
    if one.total and other.total and one.carried == other.carried:
        kinds = {one.dependence, other.dependence} - {Dependence.WHOLE}
        rounded = one.rounded or other.rounded
        if len(kinds) != 1 or (rounded and Dependence.SUM in kinds):
            return _mixed(carried)
        return Made(dependence=kinds.pop(), carried=carried, total=True, rounded=rounded)
    return _mixed(carried) if carried else Made(dependence=_one_of(one.dependence, other.dependence))


def _one_of(one: Dependence, other: Dependence) -> Dependence:
    """Merge the kinds of two branches: a partial sum may be combined with zero or WHOLE, but not with a maximum."""
    kinds = {one, other} - {Dependence.ZERO}
    if len(kinds) == 1 and (one == other or kinds <= {Dependence.SUM, Dependence.WHOLE}):
        return kinds.pop()
    return Dependence.MIXED if kinds else Dependence.ZERO


def _applied(op: str, args: list[Made]) -> Made:
    """Classify an elementwise operation."""
    if op == "where" and args[0].steady:
        return _joined(args[1], args[2])
    if not any(a.carried for a in args):
        return Made(dependence=_elementwise(op, [a.dependence for a in args]))
    if op in PUT_TOGETHER:
        kind, fitting = PUT_TOGETHER[op]
        old, new = args if args[0].total or op == "sub" else reversed(args)
        if old.total and old.dependence in (Dependence.WHOLE, kind) and not new.carried and new.dependence in fitting:
            return _used(args) if old.rounded and kind == Dependence.SUM else replace(old, dependence=kind)
    return _used(args)


def _cast(made: Made, of: str, to: str) -> Made:
    """Classify a conversion. Each iteration rounds what it carries, and narrow types have ends that sums reach."""
    if to in INTEGERS:
        return made if of == to else _used([made])
    size = ITEM_BYTES.get(to, NARROWEST)
    if made.steady or of == to or of in INTEGERS or size > ITEM_BYTES.get(of, size):
        return made
    if made.dependence == Dependence.SUM and (made.carried or size == 1):
        return _used([made])
    return replace(made, rounded=bool(made.carried))


def _elementwise(op: str, args: list[Dependence]) -> Dependence:
    """Classify an elementwise operation on values that depend on no carried name."""
    if op == "mul":
        return _product(*args)
    if op == "div" and args[1] in STEADY:
        return _product(args[0], Dependence.WHOLE)
    if op == "neg":
        return {Dependence.MAX: Dependence.MIN, Dependence.MIN: Dependence.MAX}.get(args[0], args[0])
    if op in ("add", "sub") and Dependence.SUM in args and {*args} <= {Dependence.SUM, Dependence.ZERO}:
        return Dependence.SUM
    if op in ("maximum", "minimum"):
        kind, fitting = PUT_TOGETHER[op]
        if kind in args and {*args} <= fitting:
            return kind
    return _used([Made(dependence=a) for a in args]).dependence


def _used(args: list[Made]) -> Made:
    """Classify an operation that combines its operands in any other way."""
    carried = frozenset[str]().union(*(a.carried for a in args))
    return _WHOLE if all(a.steady for a in args) else _mixed(carried)


def _product(left: Dependence, right: Dependence) -> Dependence:
    if Dependence.ZERO in (left, right):
        return Dependence.ZERO
    if Dependence.WHOLE in (left, right):
        other = right if left == Dependence.WHOLE else left
        return other if other in (Dependence.WHOLE, Dependence.SUM) else Dependence.MIXED
    return Dependence.MIXED


def _reduction(inner: Dependence, kind: Dependence, along: bool) -> Dependence:
    """Classify a reduction of a value. along: True if it reduces the axis of the tiles."""
    if inner in STEADY:
        return kind if along else inner
    return inner if inner == kind and not along else Dependence.MIXED
