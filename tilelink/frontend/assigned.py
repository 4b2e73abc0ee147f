"""Check for reads of names that may have no value: assigned in one branch only, or in a loop that has ended.

Inside and after a loop, a name may have a value from an earlier iteration, which is known only at run time: this is
accepted. A loop that may have no iterations, for example over `ranks - 1`, does not surely assign any name. If a
condition or its negation is tested again, the names assigned in its branch have values again. The condition that a loop
has iterations is treated in the same way.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tilelink.errors import Mistakes, ShapeError, UnknownNameError
from tilelink.ir.parameters import least
from tilelink.ir.printer import print_scalar
from tilelink.ir.program import Assign, For, If, IndexDecl, Local, Program, Stage, Statement
from tilelink.ir.scalar import Compare, Int, Logic, Scalar
from tilelink.ir.typing import StageTyping
from tilelink.ir.visitor import statements, value_of, values

OPPOSITE = {"!=": "==", ">=": "<", ">": "<="}
Branch = tuple[Scalar, bool]


@dataclass(frozen=True, kw_only=True)
class _Known:
    """The state of names at a statement.

    names: names that surely have a value. branches: (condition, outcome) -> names with a value after that branch.
    ended: name -> index of the ended loop whose tile the name's value was.
    """

    names: frozenset[str] = frozenset()
    branches: Mapping[Branch, frozenset[str]] = field(default_factory=dict[Branch, frozenset[str]])
    ended: Mapping[str, IndexDecl] = field(default_factory=dict[str, IndexDecl])


def check_assigned(stage: Stage, typing: StageTyping, mistakes: Mistakes) -> None:
    """Add an UnknownNameError for each read of an unassigned name, a ShapeError for one of a tile of an ended loop."""
    _Walk(stage=stage, typing=typing, mistakes=mistakes).body(stage.body, _Known(), frozenset())


@dataclass(frozen=True, kw_only=True)
class _Walk:
    stage: Stage
    typing: StageTyping
    mistakes: Mistakes

    def body(self, body: tuple[Statement, ...], known: _Known, earlier: frozenset[str]) -> _Known:
        """Return the state after a body. earlier: names that an earlier iteration of a loop may have assigned."""
        for statement in body:
            self._reads(statement, known, earlier)
            match statement:
                case Assign(name=name):
                    ended = {n: d for n, d in known.ended.items() if n != name}
                    known = _Known(names=known.names | {name}, branches=known.branches, ended=ended)
                case If():
                    known = self._branches(statement, known, earlier)
                case For():
                    known = self._loop(statement, known, earlier)
                case _:
                    pass
        return known

    def _branches(self, statement: If, known: _Known, earlier: frozenset[str]) -> _Known:
        condition, positive = _normal(statement.condition)
        after: dict[bool, _Known] = {}
        for branch, body in ((positive, statement.then), (not positive, statement.orelse)):
            names = known.names | known.branches.get((condition, branch), frozenset())
            inside = _Known(names=names, branches=known.branches, ended=known.ended)
            after[branch] = self.body(body, inside, earlier)
        return _Known(
            names=after[True].names & after[False].names,
            branches={**known.branches, **{(condition, b): k.names for b, k in after.items()}},
            ended={**after[True].ended, **after[False].ended},
        )

    def _loop(self, loop: For, known: _Known, earlier: frozenset[str]) -> _Known:
        inside = frozenset(s.name for s in statements(loop.body) if isinstance(s, Assign))
        iterations = _iterations(loop, self.typing.program)
        before = (
            known.names | known.branches.get((iterations, True), frozenset()) if iterations is not None else known.names
        )
        within = _Known(names=before, branches=known.branches, ended=known.ended)
        after = self.body(loop.body, within, earlier | inside)
        indices = {d.name: d for d in loop.indices}
        ended = dict(after.ended)
        for name in inside:
            kind = self.typing.locals.get(name)
            for axis in kind.axes if kind is not None else ():
                if axis.index in indices:
                    ended[name] = indices[axis.index]
        names = (after.names | inside) - ended.keys()
        if iterations is None:
            return _Known(names=names, branches=known.branches, ended=ended)
        branches = {**known.branches, (iterations, True): names}
        return _Known(names=known.names - ended.keys(), branches=branches, ended=ended)

    def _reads(self, statement: Statement, known: _Known, earlier: frozenset[str]) -> None:
        value = value_of(statement)
        for part in values(value) if value is not None else ():
            if not isinstance(part, Local) or part.name in known.names:
                continue
            if part.name in known.ended:
                self._lost(part, known.ended[part.name])
            elif part.name not in earlier:
                self._unassigned(part)

    def _lost(self, value: Local, index: IndexDecl) -> None:
        message = f"{value.name} is a tile of {index.name}, whose loop has ended"
        name = f"all_{value.name}"
        hint = f"use it in the loop; or add it up: {name} = zeros(f32) before the loop, {name} += {value.name} in it"
        self.mistakes.add(ShapeError(message, location=value.location, related=index.location, hint=hint))

    def _unassigned(self, value: Local) -> None:
        within = [s for s in statements(self.stage.body) if isinstance(s, If) and _assigns(s, value.name)]
        places = [s.location for s in statements(self.stage.body) if isinstance(s, Assign) and s.name == value.name]
        hint = f"assign {value.name} before the if, or in both of its branches"
        message = f"{value.name} has no value yet"
        loops = [s for s in statements(self.stage.body) if isinstance(s, For) and _assigns(s, value.name)]
        if (iterations := _iterations(loops[-1], self.typing.program) if loops else None) is not None:
            message = f"{value.name} has a value only where the loop that assigns it has iterations: "
            message += print_scalar(iterations)
            hint = f"assign {value.name} before the loop"
        if within:
            message = f"{value.name} has a value in one branch of 'if {print_scalar(within[-1].condition)}' only"
        error = UnknownNameError(message, location=value.location, related=places[0] if places else None, hint=hint)
        self.mistakes.add(error)


def _assigns(statement: Statement, name: str) -> bool:
    return any(isinstance(s, Assign) and s.name == name for s in statements((statement,)))


def _iterations(loop: For, program: Program) -> Scalar | None:
    """The condition that a loop has iterations; None if its extents are positive for all parameters and ranks."""
    kinds = {p.name: p.kind for p in program.params}
    open_ones = [d.extent for d in loop.indices if (least(d.extent, kinds) or 0) < 1]
    conditions = tuple(Compare(op=">", left=extent, right=Int(value=0)) for extent in open_ones)
    return Logic(op="and", args=conditions) if len(conditions) > 1 else conditions[0] if conditions else None


def _normal(condition: Scalar) -> Branch:
    """Normalise a condition: (expression, outcome), with the same expression for a condition and its negation."""
    match condition:
        case Logic(op="not", args=(inner,)):
            expr, holds = _normal(inner)
            return expr, not holds
        case Compare(op=op, left=left, right=right) if op in OPPOSITE:
            return Compare(op=OPPOSITE[op], left=left, right=right), False
        case _:
            return condition, True
