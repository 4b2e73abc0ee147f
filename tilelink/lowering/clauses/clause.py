"""Clauses of the schedule language as values: how one is written, whom it may be said of, what it does, what a search
may try, and its line in the manual. The package has one module for each of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import log2
from typing import Any, Generic, TypeVar

from tilelink.ir.program import Program, Stage
from tilelink.ir.typing import StageTyping
from tilelink.lowering.bound import Bound
from tilelink.scheduling.schedule import Schedule
from tilelink.scheduling.words import Part, Word, check_count, positive

T = TypeVar("T")
Numbers = Mapping[str, int | float | bool]
FAR = 8.0
"""How far apart two values are that have nothing in common; a doubled size is one apart."""


def _as_it_is(_: Program, stage: Stage, __: Part) -> Stage:
    return stage


def _unchanged(bound: Bound) -> Bound:
    return bound


def _both_or_neither(one: object, other: object, _: Numbers, __: int) -> float:
    return float(bool(one) != bool(other))


def _everywhere(_: Program, __: Schedule, ___: str) -> bool:
    return True


@dataclass(frozen=True, kw_only=True)
class Choices(Generic[T]):
    """What a search may try of a clause of stages.

    name: of the knob, after that of the stage or tensor. labels: words -> value. reason(stage, typing): what keeps a
    stage from having it, or None. together: one choice for all stages that multiply, and not one for each stage.
    fits(program, schedule, stage): False where the default is taken instead, as other choices are made.
    """

    name: str
    labels: Mapping[str, T]
    reason: Callable[[Stage, StageTyping], str | None]
    together: bool = False
    fits: Callable[[Program, Schedule, str], bool] = _everywhere


@dataclass(frozen=True, kw_only=True, eq=False)
class Clause(Word[T]):
    """A clause of the schedule language.

    manual: what it means, for docs/language.md. rewrite(program, stage, part): the stage as the clause has it, before
    anything has a number. apply(bound): the pass that does it, or refuses it, in a bound program; it finds the stages
    that have it.
    apart(one, other, dims, ranks): how far two values are from one another, for a search that begins near a schedule.
    """

    manual: str
    rewrite: Callable[[Program, Stage, Part], Stage] = _as_it_is
    apply: Callable[[Bound], Bound] = _unchanged
    choices: Choices[T] | None = field(default=None, repr=False)
    apart: Callable[[T, T, Numbers, int], float] = _both_or_neither


def switch(name: str, **others: Any) -> Clause[bool]:
    """A clause of one word, which is there or not."""

    def read(_: str, __: Sequence[Any]) -> bool:
        return True

    def show(_: bool) -> str:
        return name

    others = {"syntax": name, "written": name, **others}
    return Clause[bool](name=name, default=False, rules={name: f'"{name}"'}, read=read, show=show, **others)


def count(name: str, least: str, **others: Any) -> Clause[int | None]:
    """A clause of a word and a number from one on. least: what there is at least one of, in words."""

    def read(_: str, children: Sequence[Any]) -> int:
        return positive(children[0])

    def show(value: int | None) -> str:
        return f"{name} {value}"

    def valid(owner: str, value: object) -> None:
        check_count(name, owner, value, least)

    others = {"syntax": f"{name} n", "written": f"{name} n", **others}
    return Clause[int | None](
        name=name, default=None, rules={name: f'"{name}" INT'}, read=read, show=show, valid=valid, **others
    )


def ratio(one: int | None, other: int | None) -> float:
    """How often a size has to be doubled to be another; 0 where one of them is not said."""
    return abs(log2(one / other)) if one and other else 0.0
