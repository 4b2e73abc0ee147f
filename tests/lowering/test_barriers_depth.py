"""Barriers of loops inside loops: found in time that depth does not multiply, and the same as by asking every round."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field, replace

import pytest

from tests.tiers import thorough
from tilelink import compiler
from tilelink.ir.program import For, If, Statement
from tilelink.ir.visitor import statements
from tilelink.lowering.insert_barriers import Pending, _RepeatedRegions, pending_at, scratch_memories  # pyright: ignore[reportPrivateUsage]

HEAD = """\
program p(M):
    x : in [M]
    a : local [4, M]
    b : local [4, M]
    y : out [M]
    compute f(i: M):
"""
LINES = (
    "a[0, i] = x[i]", "b[0, i] = x[i]", "v = v + a[0, i]", "v = v + b[0, i]", "a[1, i] = b[0, i]", "b[1, i] = a[1, i]",
)  # fmt: skip


@dataclass(kw_only=True)
class EveryRound(Pending):
    """The rule as it reads: a loop's body is asked three times, in time that each level multiplies."""

    asked: int = field(default=0)

    def _loop(self, loop: For) -> bool:
        alone = replace(self)
        alone._clear()
        needed = replace(self).barriers(loop.body) > alone.barriers(loop.body)
        if needed:
            self._clear()
        around = replace(self)
        around.barriers(loop.body)
        parts = _RepeatedRegions(ranks=self.ranks)
        parts.note(loop.body, {decl.name: self.counts[decl.name] for decl in loop.indices})
        self.stored |= around.stored - parts.apart
        self.loaded |= around.loaded - parts.apart
        return needed


def _nest(chance: random.Random, depth: int, names: list[str]) -> list[str]:
    lines: list[str] = []
    for _ in range(chance.randint(1, 3)):
        kind = chance.random()
        if depth == 0 or kind < 0.4:
            lines.append(chance.choice(LINES))
            continue
        if kind < 0.55:
            lines.append(f"if rank == {chance.randint(0, 1)}:")
        else:
            names.append(f"s{len(names)}")
            lines += [f"for ({names[-1]}: 4):"]
            if chance.random() < 0.5:
                lines.append(f"    {chance.choice('ab')}[{names[-1]}, i] = x[i]")
        lines += ["    " + line for line in _nest(chance, depth - 1, names)]
    return lines


def _program(lines: list[str]) -> str:
    body = ["v = zeros(f32)", "a[0, i] = x[i]", "b[0, i] = x[i]", *lines, "y[i] = v"]
    return HEAD + "".join(f"        {line}\n" for line in body)


def _answers(pending: Pending, body: tuple[Statement, ...]) -> list[tuple[bool, frozenset[str], frozenset[str]]]:
    """What every statement is answered as a tile is rendered, in order."""
    found: list[tuple[bool, frozenset[str], frozenset[str]]] = []
    for statement in body:
        found.append((pending.barrier(statement), pending.stored, pending.loaded))
        if isinstance(statement, For):
            found += _answers(pending, statement.body)
        elif isinstance(statement, If):
            other = replace(pending)
            found += _answers(pending, statement.then) + _answers(other, statement.orelse)
            pending.join(other)
    return found


@thorough(unless=lambda seed: seed < 8)
@pytest.mark.parametrize("seed", range(25))
def test_every_statement_is_answered_as_by_asking_every_round(seed: int) -> None:
    text = _program(_nest(random.Random(seed), 3, []))
    bound = compiler.bound(compiler.parse(text).program(), ranks=2, dims={"M": 64})
    body = bound.stages["f"].stage.body
    new = pending_at(bound, "f", scratch_memories(bound))
    old = EveryRound(
        ranks=new.ranks, counts=new.counts, scratch=new.scratch, left_out=new.left_out, stored=new.stored,
        loaded=new.loaded,
    )  # fmt: skip
    assert _answers(new, body) == _answers(old, body)
    assert len(list(statements(body))) == len(_answers(pending_at(bound, "f", scratch_memories(bound)), body))


def test_loops_inside_loops_are_emitted_in_seconds() -> None:
    lines: list[str] = []
    for depth in range(12):
        lines += ["    " * depth + f"for (s{depth}: 1):", "    " * (depth + 1) + LINES[depth % len(LINES)]]
    began = time.process_time()
    text = compiler.source(compiler.parse(_program(lines)).program(), ranks=2, dims={"M": 64})
    assert "for s11 in" in text
    assert time.process_time() - began < 3
