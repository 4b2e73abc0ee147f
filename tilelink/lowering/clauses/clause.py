"""Schedule clauses as values: syntax, owner, rewrite, pass, choices of a search and a line of the manual.

The package has one module for each clause.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from math import log2
from typing import Any, Generic, TypeVar

from tilelink.capabilities import Capabilities
from tilelink.ir.program import Program, Stage, Tensor
from tilelink.ir.typing import StageTyping, Typing
from tilelink.lowering.bound import Bound, LeftOut
from tilelink.scheduling.schedule import Schedule
from tilelink.scheduling.words import SchedulePart, Word, check_count, positive, word_called, words
from tilelink.target import Target

T = TypeVar("T")
Numbers = Mapping[str, int | float | bool]
FAR = 8.0
"""Distance of two values that have nothing in common. Doubling a size is a distance of 1."""


def _as_it_is(_: Program, stage: Stage, __: SchedulePart) -> Stage:
    return stage


def _both_or_neither(one: object, other: object, _: Numbers, __: int) -> float:
    return float(bool(one) != bool(other))


def _everywhere(_: Program, __: Schedule, ___: str) -> bool:
    return True


def _on_all(_: Target) -> bool:
    return True


def without(*names: str) -> Callable[[Program, Schedule, str], bool]:
    """Return a function that is True for a stage whose schedule says none of some clauses, for `Choices.fits`.

    They are named, since two clauses may exclude each other and modules do not import each other. The function raises
    ScheduleError for a name that no clause has: not all clauses exist yet when `without` is called.
    """

    def fits(_: Program, schedule: Schedule, stage: str) -> bool:
        part = schedule.stage(stage)
        return all(part[word] == word.default for word in map(word_called, names))

    return fits


@dataclass(frozen=True, kw_only=True)
class Choices(Generic[T]):
    """Values of a stage's clause that a search may try.

    name: name of the knob, printed after the name of the stage or tensor.
    labels: words -> value.
    reason(stage, typing): returns why a stage cannot have the clause, or None.
    together: True for one choice for all stages that multiply, instead of one for each stage.
    fits(program, schedule, stage): returns False if the default is used because of other choices.
    on(target): returns False for processors on which the clause has no effect.
    joins: name of a clause that excludes this one, if both are chosen together: its knob then has the values of both.
    along: clauses that a value other than the default brings along, with their values.
    instead_of: names of clauses that such a value takes away. They are named, as those of `without` are.
    """

    name: str
    labels: Mapping[str, T]
    reason: Callable[[Stage, StageTyping], str | None]
    together: bool = False
    fits: Callable[[Program, Schedule, str], bool] = _everywhere
    on: Callable[[Target], bool] = _on_all
    joins: str = ""
    along: tuple[tuple[Clause[Any], Any], ...] = ()
    instead_of: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class TensorChoices(Generic[T]):
    """Values of a tensor's clause that a search may try.

    name: name of the knob, printed after the name of the tensor.
    labels(program, typing, tensor, dims, ranks): returns words -> value; one or none of them for no choice.
    """

    name: str
    labels: Callable[[Program, Typing, Tensor, Numbers, int], Mapping[str, T]]


@dataclass(frozen=True, kw_only=True)
class Known:
    """A fact of a stage that a clause needs when it is compiled: the clause is refused if a launch decides it.

    why: the reason, and instead: what to do, for the error.
    tiles_alone: True if it must know which tiles there are, and not where their data is: stages may gather and scatter.
    """

    why: str
    instead: str
    tiles_alone: bool = False


class Ties(Enum):
    """Cases in which a clause ties the tiles of a program to one another: no other program may execute one of them.

    NOWHERE: it does not. SHOWN: where the bound program shows it, for example by `BoundStage.flatten`, or by another
    stage in the kernel; elsewhere it had no effect. SAID: wherever a schedule has it.
    """

    NOWHERE = auto()
    SHOWN = auto()
    SAID = auto()


class Phase(Enum):
    """The phases of lowering, in which passes of clauses may stand (lowering/passes.py).

    Passes of one phase are applied in the order in which their clauses are registered.
    """

    BEFORE_KERNELS = auto()
    """Sizes, tensors and channels are settled. Kernels are chosen next."""
    TILES = auto()
    """Kernels are chosen. A pass may change which tiles a stage has, add stages, and change the loops of kernels."""
    BEFORE_TRANSPORT = auto()
    """The tiles of each stage are settled. What moves their data is chosen next."""
    BEFORE_BARRIERS = auto()
    """Each wait is where it stays. Barriers are placed next."""
    AFTER_BARRIERS = auto()
    """No statement comes or goes any more. A pass may change what executes which tiles, and when it notifies."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Clause(Word[T]):
    """A clause of the schedule language.

    manual: its meaning, for docs/language.md.
    rewrite(program, stage, part): returns the stage with the clause applied, before anything has a number.
    apply(bound): the pass that applies the clause to the stages that have it, or raises if that is impossible; or None.
    phase: where among all passes that one stands.
    choices, tensor_choices: what a search may choose for a stage, or for a tensor.
    apart(one, other, dims, ranks): the distance of two values, for a search that starts near a given schedule.

    What it means for others, which ask each clause:
    needs: what it must know of a stage when it is compiled, or None.
    ties: whether tiles of a program depend on their order or on its other tiles. Then programs take no tiles by a
    counter, and kernels do not deal them out anew in a launch.
    without_roles: True if warps of its programs have no roles.
    capability: the field of `Capabilities` without which the clause has no effect, or "".
    parts(value): into how many parts at most it divides the product of a tile, if it does: then programs that multiply
    alone execute some of them.
    """

    manual: str
    rewrite: Callable[[Program, Stage, SchedulePart], Stage] = _as_it_is
    apply: Callable[[Bound], Bound] | None = None
    phase: Phase = Phase.TILES
    choices: Choices[T] | None = field(default=None, repr=False)
    tensor_choices: TensorChoices[T] | None = field(default=None, repr=False)
    apart: Callable[[T, T, Numbers, int], float] = _both_or_neither
    needs: Known | None = None
    ties: Ties = Ties.NOWHERE
    without_roles: bool = False
    capability: str = ""
    parts: Callable[[T], int] | None = None


def clauses() -> tuple[Clause[Any], ...]:
    """Return all clauses of the language."""
    return tuple(word for word in words() if isinstance(word, Clause))


def said(part: SchedulePart) -> Iterator[Clause[Any]]:
    """Yield the clauses of a stage or a tensor that have another value than the default."""
    return (clause for clause in clauses() if part[clause] != clause.default)


def lacking(schedule: Schedule, capabilities: Capabilities) -> tuple[LeftOut, ...]:
    """Return the clauses of a schedule that such kernels do not have."""
    return tuple(
        LeftOut(clause=clause.name, part=part.name, reason="there are no such kernels", lacking=True)
        for part in (*schedule.stages, *schedule.tensors)
        for clause in said(part)
        if clause.capability and not getattr(capabilities, clause.capability)
    )


def divides(part: SchedulePart) -> str | None:
    """Return the name of the clause by which some programs of a stage multiply parts of tiles alone, or None."""
    return next((clause.name for clause in said(part) if clause.parts is not None), None)


def tying(schedule: Schedule, stage: str) -> str | None:
    """Return the name of a clause that ties the tiles of a stage although the bound program does not show it, or None.

    For passes that let other programs execute tiles; they find what is shown themselves.
    """
    return next((clause.name for clause in said(schedule.stage(stage)) if clause.ties is Ties.SAID), None)


def switch(name: str, **others: Any) -> Clause[bool]:
    """Return a clause of a single word, which is present or absent."""

    def read(_: str, __: Sequence[Any]) -> bool:
        return True

    def show(_: bool) -> str:
        return name

    others = {"syntax": name, "written": name, **others}
    return Clause[bool](name=name, default=False, rules={name: f'"{name}"'}, read=read, show=show, **others)


def count(name: str, least: str, **others: Any) -> Clause[int | None]:
    """Return a clause of a word and a positive number. least: text for what there must be at least one of."""

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
    """Return how many times one size must be doubled to give the other, or 0 if either is None."""
    return abs(log2(one / other)) if one and other else 0.0
