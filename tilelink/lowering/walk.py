"""Walks over the bodies of stages: the executions of each statement on all ranks and tiles, as NumPy columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilelink.errors import ScheduleError
from tilelink.ir.program import For, If, IndexDecl, Statement
from tilelink.ir.scalar import Env, Scalar, evaluate
from tilelink.ir.visitor import leading_waits, on_ranks, statements
from tilelink.lowering.bound import Bound, BoundStage
from tilelink.lowering.columns import Ints
from tilelink.lowering.events import SUBSTEPS
from tilelink.lowering.hulls import truth
from tilelink.lowering.orders import TILE

MAX_EXECUTIONS = 1 << 25
"""Largest number of executions of statements in loops, of all tiles and ranks. Such a plan takes minutes and gigabytes.
Outside of loops the number of tiles is limited (limits.py)."""


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Executions of a statement: one row per (task, loop iteration). guard: the branches that a launch decides.

    begin: the position of the innermost part around it that a launch may leave out, a branch or an iteration; None for
    all of the task.
    """

    task: Ints
    position: Ints
    rank: Ints
    indices: dict[str, Ints]
    guard: Ints
    begin: Ints | None = None

    def pick(self, mask: NDArray[np.bool_] | Ints) -> Rows:
        indices = {k: v[mask] for k, v in self.indices.items()}
        return Rows(
            task=self.task[mask],
            position=self.position[mask],
            rank=self.rank[mask],
            indices=indices,
            guard=self.guard[mask],
            begin=None if self.begin is None else self.begin[mask],
        )


class Walk:
    """Walks the bodies of stages, each once for all ranks, tiles and iterations together.

    Statements are numbered in the order of the walk, which is the same for every walk over a program. A subclass says
    what it does with the executions of a statement (`visit`), which executions there are (`reached`), and what it notes
    where a body begins (`enter`).
    """

    def __init__(self, bound: Bound, first_task: Mapping[str, int], tables: Mapping[str, NDArray[Any]]) -> None:
        self.bound, self.first_task, self.tables = bound, first_task, dict(tables)
        self.statements: list[tuple[str, Statement]] = []
        self._part = 0
        """Positions of the part that rows begin with, where they have such a part."""
        self._in_loops = 0
        """Executions of statements in loops so far."""

    def tiles(self, stage: BoundStage) -> Ints:
        """Return the tiles to walk, counted rank by rank: all of a stage."""
        return np.arange(self.bound.ranks * stage.total, dtype=np.int64)

    def visit(self, stage: BoundStage, number: int, statement: Statement, rows: Rows) -> None:
        """Take the executions of a statement without a body: neither an `if` nor a loop."""
        raise NotImplementedError

    def reached(self, number: int, statement: Statement, rows: Rows) -> Rows:
        """Return the executions of a statement that have no fault."""
        return rows

    def enter(self, stage: BoundStage, number: int, indices: tuple[IndexDecl, ...], rows: Rows) -> Rows:
        """Return the executions of a stage or a loop that have no fault where the ends of its indices are read.

        number: of the loop, or of the statement of the stage before which they are read.
        """
        return rows

    def steps(self, stage: BoundStage, loop: For) -> Ints | None:
        """Return the iterations of a loop to walk; None for all."""
        return None

    def chosen(
        self, stage: BoundStage, condition: Scalar, holds: bool, rows: Rows, open_rows: NDArray[np.bool_]
    ) -> Rows:
        """Return the executions in a branch. open_rows: those of which a launch decides whether they are in it."""
        return rows

    def stage(self, stage: BoundStage) -> None:
        """Walk the body of a stage."""
        total, ranks = stage.total, self.bound.ranks
        rank, t = np.divmod(self.tiles(stage), max(total, 1))
        env = Env(rank=rank, ranks=ranks, params={}, indices={TILE.name: t}, tables=self.tables)
        indices = {d.name: column(stage.order[d.name], env, len(t)) for d in stage.stage.indices}
        task = self.first_task[stage.name] + rank * total + t
        none = np.zeros_like(task)
        rows = Rows(task=task, position=none, rank=rank, indices=indices, guard=none)
        branch, body = on_ranks(stage.stage)
        if branch is not None:
            self.statements.append((stage.name, branch))
            rows = self.reached(len(self.statements) - 1, branch, rows)
            surely, _ = truth(branch.condition, self.env(rows), self.bound.entries)
            rows = rows.pick(np.broadcast_to(surely, rows.task.shape))
            if not len(rows.task):
                self._pass_over(stage, statements(body))
                return
        number = leading_waits(stage.stage)
        waits, body = body[:number], body[number:]
        self._block(stage, waits, rows)
        rows = replace(rows, position=rows.position + sum(length(stage, one) for one in waits))
        number = len(self.statements) if body else len(self.statements) - 1
        self._block(stage, body, self.enter(stage, number, stage.stage.indices, rows))

    def env(self, rows: Rows) -> Env:
        """Return what the scalar expressions of a statement refer to in its executions."""
        return Env(rank=rows.rank, ranks=self.bound.ranks, params={}, indices=rows.indices, tables=self.tables)

    def _block(self, stage: BoundStage, body: tuple[Statement, ...], rows: Rows) -> None:
        if not len(rows.task):
            self._pass_over(stage, statements(body))  # a constant position would be looked up even without rows
            return
        offset = 0
        for statement in body:
            self._statement(stage, statement, replace(rows, position=rows.position + offset))
            offset += length(stage, statement)

    def _pass_over(self, stage: BoundStage, missed: Iterable[Statement]) -> None:
        """Number the statements that no task reaches, because every walk over a program counts them."""
        self.statements.extend((stage.name, one) for one in missed)

    def _statement(self, stage: BoundStage, statement: Statement, rows: Rows) -> None:
        number = len(self.statements)
        self.statements.append((stage.name, statement))
        rows = self.reached(number, statement, rows)
        if not len(rows.task):
            self._pass_over(stage, [*statements((statement,))][1:])
            return
        match statement:
            case If(condition=condition, then=then, orelse=orelse):
                self._branches(stage, condition, then, orelse, rows)
            case For(indices=decls):
                self._loop(stage, statement, self.enter(stage, number, decls, rows))
            case _:
                self.visit(stage, number, statement, rows)

    def _branches(
        self,
        stage: BoundStage,
        condition: Scalar,
        then: tuple[Statement, ...],
        orelse: tuple[Statement, ...],
        rows: Rows,
    ) -> None:
        """Walk both branches. A row is in both of them if a launch decides which one is executed."""
        shape = rows.task.shape
        surely, may = (np.broadcast_to(one, shape) for one in truth(condition, self.env(rows), self.bound.entries))
        for body, mask, holds in ((then, may, True), (orelse, ~surely, False)):
            if not body:
                continue
            open_rows = (may & ~surely)[mask]
            inside = self.chosen(stage, condition, holds, rows.pick(mask), open_rows)
            self._enclosed(stage, body, inside, bool(open_rows.any()))

    def _enclosed(self, stage: BoundStage, body: tuple[Statement, ...], rows: Rows, left_out: bool) -> None:
        """Walk a branch or an iteration. left_out: True if a launch may leave it out."""
        around = self._part
        if left_out:
            rows, self._part = replace(rows, begin=rows.position), sum(length(stage, s) for s in body)
        self._block(stage, body, rows)
        self._part = around

    def _loop(self, stage: BoundStage, loop: For, rows: Rows) -> None:
        counts = [stage.count(d.name) for d in loop.indices]
        some = self.steps(stage, loop)
        steps = prod(counts) if some is None else len(some)
        self._count(stage, loop, len(rows.task), steps)
        step = np.tile(np.arange(steps, dtype=np.int64) if some is None else some, len(rows.task))
        indices = {k: np.repeat(v, steps) for k, v in rows.indices.items()}
        digits = np.unravel_index(step, counts)
        indices |= {d.name: np.asarray(v, dtype=np.int64) for d, v in zip(loop.indices, digits, strict=True)}
        body_length = sum(length(stage, s) for s in loop.body)
        inner = Rows(
            task=np.repeat(rows.task, steps),
            position=np.repeat(rows.position, steps) + step * body_length,
            rank=np.repeat(rows.rank, steps),
            indices=indices,
            guard=np.repeat(rows.guard, steps),
            begin=None if rows.begin is None else np.repeat(rows.begin, steps),
        )
        self._enclosed(stage, loop.body, inner, any(decl.counted for decl in loop.indices))

    def _count(self, stage: BoundStage, loop: For, times: int, steps: int) -> None:
        """Count what a loop executes. Raises ScheduleError if it is too much, before memory is asked for."""
        self._in_loops += times * steps * len(loop.body)
        if self._in_loops <= MAX_EXECUTIONS:
            return
        names = ", ".join(decl.name for decl in loop.indices)
        often = f", and is executed {times:,} times" if times > 1 else ""
        message = f"the loop over {names} of stage {stage.name} has {steps:,} iterations{often}"
        hint = f"a plan holds {MAX_EXECUTIONS:,} executions of statements in loops, of all tiles and ranks: take fewer "
        hint += f"iterations (larger tiles of {names}), smaller sizes or fewer ranks"
        raise ScheduleError(message, location=loop.location or stage.stage.location, hint=hint)


def column(expr: Scalar, env: Env, rows: int) -> Ints:
    """Return the value of an expression in each of some executions."""
    return np.broadcast_to(np.asarray(evaluate(expr, env), dtype=np.int64), (rows,))


def length(stage: BoundStage, statement: Statement) -> int:
    """Return the number of positions that a statement takes in its task's sequence."""
    match statement:
        case If(then=then, orelse=orelse):
            return max(sum(length(stage, s) for s in then), sum(length(stage, s) for s in orelse), SUBSTEPS)
        case For(indices=indices, body=body):
            return prod(stage.count(d.name) for d in indices) * sum(length(stage, s) for s in body)
        case _:
            return SUBSTEPS


def executions_of(stage: BoundStage) -> int:
    """Return how many executions of statements a tile of a stage has, at most."""
    return sum(length(stage, statement) for statement in stage.stage.body) // SUBSTEPS


def executions(bound: Bound) -> int:
    """Return how many executions of statements a program has on all ranks, at most."""
    return bound.ranks * sum(stage.total * executions_of(stage) for stage in bound.stages.values())
