"""The points of a search: every combination of knobs, of every program that computes the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from math import inf, prod
from random import Random
from typing import Any

from numpy.typing import NDArray

from tilelink.errors import ScheduleError, SearchError, TileLinkError
from tilelink.ir.program import Program
from tilelink.lowering.bind import bind
from tilelink.lowering.shared_memory import does_not_fit
from tilelink.planning.plan import Plan, make_plan
from tilelink.scheduling.schedule import Schedule
from tilelink.search.knobs import Knob, knobs
from tilelink.search.seeds import nearest
from tilelink.target import Target
from tilelink.verifier import verify


@dataclass(frozen=True, order=True, kw_only=True)
class Candidate:
    """A point: which program, and which choice of each of its knobs."""

    program: int
    choices: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Space:
    """The schedules of programs with the same parameters, at given sizes.

    declared: schedules that somebody wrote, which need not be points; seeds: the points that are nearest to them.
    refused counts what was pruned when a plan was asked for: error class or "shared memory" -> points; reasons has the
    first error of each class.
    """

    programs: tuple[Program, ...]
    knobs: tuple[tuple[Knob, ...], ...]
    dims: Mapping[str, int | float | bool]
    ranks: int
    dtype: str
    target: Target
    declared: tuple[Schedule, ...] = ()
    seeds: tuple[Candidate, ...] = ()
    name: str = "found"
    tables: Mapping[str, NDArray[Any]] = field(default_factory=dict[str, Any], compare=False)
    refused: Counter[str] = field(default_factory=Counter[str], compare=False)
    reasons: dict[str, TileLinkError] = field(default_factory=dict[str, TileLinkError], compare=False)

    @classmethod
    def of(
        cls, programs: Sequence[Program], *, dims: Mapping[str, int | float | bool], ranks: int, target: Target,
        dtype: str = "bf16", declared: Sequence[Schedule] = (), tables: Mapping[str, NDArray[Any]] | None = None,
    ) -> Space:  # fmt: skip
        """The space of all schedules of these programs. declared: schedules of some of them to begin with.

        tables: name -> int array [ranks, *shape] of the dynamic mappings.

        Raises ScheduleError if there is no program, or not that of a declared schedule, and what binding raises for
        sizes, ranks or a dtype that no schedule of the first program can have.
        """
        if not programs:
            raise ScheduleError("there is no program to search schedules for", hint="name one of the library")
        bind(programs[0], Schedule(name="default", program=programs[0].name), dims, ranks, target, dtype)
        found = tuple(knobs(program, dims, ranks, target) for program in programs)
        numbers = {program.name: number for number, program in enumerate(programs)}
        if other := next((s for s in declared if s.program not in numbers), None):
            raise ScheduleError(f"{other.name} is for {other.program}", hint=f"searched are {', '.join(numbers)}")
        seeds = [
            Candidate(program=(n := numbers[one.program]), choices=nearest(found[n], one, dims, ranks))
            for one in declared
        ]
        return cls(
            programs=tuple(programs), knobs=found, dims=dims, ranks=ranks, dtype=dtype, target=target,
            declared=tuple(declared), seeds=tuple(seeds), tables=tables or {},
        )  # fmt: skip

    @property
    def size(self) -> int:
        """How many points there are, those that will be refused among them."""
        return sum(prod(len(knob.labels) for knob in own) for own in self.knobs)

    def schedule(self, candidate: Candidate) -> Schedule:
        """The schedule of a point. Raises SearchError for what is none."""
        self.check(candidate)
        program = self.programs[candidate.program]
        schedule = Schedule(name=self.name, program=program.name)
        for knob, choice in zip(self.knobs[candidate.program], candidate.choices, strict=True):
            schedule = knob.changes[choice](schedule)
        return schedule

    def check(self, candidate: Candidate) -> None:
        """Raises SearchError for what is no point of this space."""
        hint = "Space has random, neighbour and cross, and Space.knobs says how many choices there are"
        # Strategies need not be typed.
        if not isinstance(candidate, Candidate) or not isinstance(candidate.choices, tuple):  # pyright: ignore
            raise SearchError(f"a strategy proposes {candidate!r}", hint="a Candidate with a tuple of choices")
        if not 0 <= candidate.program < len(self.programs):
            raise SearchError(f"a strategy proposes program {candidate.program} of {len(self.programs)}", hint=hint)
        own = self.knobs[candidate.program]
        if len(candidate.choices) != len(own):
            raise SearchError(f"a strategy proposes {len(candidate.choices)} choices for {len(own)} knobs", hint=hint)
        for knob, choice in zip(own, candidate.choices, strict=True):
            if not 0 <= choice < len(knob.labels):
                message = f"a strategy proposes choice {choice} of {knob.name}, which has {len(knob.labels)}"
                raise SearchError(message, hint=hint)

    def describe(self, candidate: Candidate) -> dict[str, str]:
        """Knob -> choice, in words."""
        own = self.knobs[candidate.program]
        return {knob.name: knob.labels[choice] for knob, choice in zip(own, candidate.choices, strict=True)}

    def plan(self, candidate: Candidate) -> Plan | None:
        """The verified plan of a point, or None for one that cannot be: the reason is counted."""
        return self.plan_of(candidate.program, self.schedule(candidate))

    def plan_of(self, number: int, schedule: Schedule) -> Plan | None:
        """The verified plan of any schedule of the program with a number, or None, as for a point."""
        try:
            bound = bind(self.programs[number], schedule, self.dims, self.ranks, self.target, self.dtype)
            if reason := does_not_fit(bound):
                self.refused[reason] += 1
                return None
            plan = make_plan(bound, self.tables)
            verify(plan)
        except TileLinkError as error:
            self.refused[type(error).__name__] += 1
            self.reasons.setdefault(type(error).__name__, error)
            return None
        return plan

    def tiles(self, number: int, schedule: Schedule) -> float:
        """Tiles of all ranks by a schedule of the program with a number; without end if it cannot be bound."""
        try:
            bound = bind(self.programs[number], schedule, self.dims, self.ranks, self.target, self.dtype)
        except TileLinkError:
            return inf
        return bound.ranks * sum(stage.total for stage in bound.stages.values())

    # Walking -------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Candidate]:
        for number, own in enumerate(self.knobs):
            for choices in product(*(range(len(knob.labels)) for knob in own)):
                yield Candidate(program=number, choices=choices)

    def random(self, chance: Random) -> Candidate:
        """A point, every program as likely as any other."""
        number = chance.randrange(len(self.programs))
        return Candidate(program=number, choices=tuple(chance.randrange(len(k.labels)) for k in self.knobs[number]))

    def neighbour(self, candidate: Candidate, chance: Random) -> Candidate:
        """A point that differs in one choice; now and then one of another program."""
        own = self.knobs[candidate.program]
        if not own or (len(self.programs) > 1 and chance.random() < 1 / (len(own) + 1)):
            return self.random(chance)
        at = chance.randrange(len(own))
        others = [choice for choice in range(len(own[at].labels)) if choice != candidate.choices[at]]
        choices = (*candidate.choices[:at], chance.choice(others), *candidate.choices[at + 1 :])
        return Candidate(program=candidate.program, choices=choices)

    def neighbours(self, candidate: Candidate) -> Iterator[Candidate]:
        """All points that differ from one in one choice, knob by knob; of its own program alone."""
        for at, knob in enumerate(self.knobs[candidate.program]):
            for choice in range(len(knob.labels)):
                if choice != candidate.choices[at]:
                    yield replace(candidate, choices=(*candidate.choices[:at], choice, *candidate.choices[at + 1 :]))

    def cross(self, one: Candidate, other: Candidate, chance: Random) -> Candidate:
        """A point with each choice from one of two points of the same program, else one of the two."""
        if one.program != other.program:
            return chance.choice((one, other))
        mixed = tuple(chance.choice(pair) for pair in zip(one.choices, other.choices, strict=True))
        return Candidate(program=one.program, choices=mixed)
