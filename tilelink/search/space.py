"""The points of a search: every combination of knobs, for each of several equivalent programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

from numpy.typing import NDArray

from tilelink.errors import ScheduleError, TileLinkError
from tilelink.ir.program import Program
from tilelink.lowering.bind import bind
from tilelink.lowering.bound import Bound
from tilelink.lowering.listing import listing
from tilelink.lowering.registers import spills
from tilelink.lowering.shared_memory import does_not_fit
from tilelink.planning.plan import Plan
from tilelink.scheduling.schedule import Schedule
from tilelink.scheduling.words import word_called
from tilelink.search.knobs import Knob, knobs, with_built_in
from tilelink.search.points import Candidate, Points
from tilelink.search.seeds import nearest
from tilelink.target import Target
from tilelink.verifier.cutoff import safe_plan


@dataclass(frozen=True, kw_only=True)
class Space(Points):
    """The schedules of programs with the same parameters, at given sizes.

    declared: schedules written by hand, which need not be points; seeds: the points that are nearest to them. refused
    counts the schedules without a plan: error class, "shared memory", "registers" or "memory", of the search itself, ->
    schedules. reasons has the first error of each of these but the last.
    """

    programs: tuple[Program, ...]
    knobs: tuple[tuple[Knob, ...], ...]
    dims: Mapping[str, int | float | bool]
    ranks: int
    dtype: str
    target: Target
    declared: tuple[Schedule, ...] = ()
    name: str = "found"
    nodes: int = 1
    tables: Mapping[str, NDArray[Any]] = field(default_factory=dict[str, Any], compare=False)
    refused: Counter[str] = field(default_factory=Counter[str], compare=False)
    reasons: dict[str, TileLinkError] = field(default_factory=dict[str, TileLinkError], compare=False)

    @classmethod
    def of(
        cls, programs: Sequence[Program], *, dims: Mapping[str, int | float | bool], ranks: int, target: Target,
        dtype: str = "bf16", declared: Sequence[Schedule] = (), tables: Mapping[str, NDArray[Any]] | None = None,
        nodes: int = 1,
    ) -> Space:  # fmt: skip
        """Return the space of all schedules of these programs. declared: schedules of some of them to begin with.

        If one of these says nothing, as the built-in schedule does, it is a point: each knob may say nothing too.
        nodes: how many nodes the ranks fill; between them the rules of the network hold.
        tables: name -> int array [ranks, *shape] of the dynamic mappings.

        Raises ScheduleError if there is no program, or if that of a declared schedule is missing. Raises the errors of
        `bind` for sizes, ranks or a dtype that no schedule of the first program can have.
        """
        if not programs:
            raise ScheduleError("no program to search schedules for", hint="name one of the library")
        bind(programs[0], Schedule(name="default", program=programs[0].name), dims, ranks, target, dtype, nodes=nodes)
        found = tuple(knobs(program, dims, ranks, target) for program in programs)
        plain = {one.program for one in declared if not one.stages and not one.tensors}
        found = tuple(
            tuple(with_built_in(knob, program) for knob in own) if program.name in plain else own
            for program, own in zip(programs, found, strict=True)
        )
        numbers = {program.name: number for number, program in enumerate(programs)}
        if other := next((s for s in declared if s.program not in numbers), None):
            raise ScheduleError(f"{other.name} is for {other.program}", hint=f"the search covers {', '.join(numbers)}")
        seeds = [
            Candidate(program=(n := numbers[one.program]), choices=nearest(found[n], one, dims, ranks))
            for one in declared
        ]
        return cls(
            programs=tuple(programs), knobs=found, dims=dims, ranks=ranks, dtype=dtype, target=target,
            declared=tuple(declared), seeds=tuple(seeds), tables=tables or {}, nodes=nodes,
        )  # fmt: skip

    def schedule(self, candidate: Candidate) -> Schedule:
        """Return the schedule of a point. Raises SearchError if `candidate` is not a point of this space."""
        self.check(candidate)
        program = self.programs[candidate.program]
        schedule = Schedule(name=self.name, program=program.name)
        for knob, choice in zip(self.knobs[candidate.program], candidate.choices, strict=True):
            schedule = knob.changes[choice](schedule)
        return schedule

    def plan(self, candidate: Candidate) -> Plan | None:
        """Return the verified plan of a point, or None if it is refused; the reason is counted in `refused`."""
        return self.plan_of(candidate.program, self.schedule(candidate))

    def plan_of(self, number: int, schedule: Schedule) -> Plan | None:
        """Return the verified plan of any schedule of a program, by its number, or None, as for a point."""
        bound = self.bound_of(number, schedule)
        return None if bound is None else self.proved(bound)

    def bound_of(self, number: int, schedule: Schedule) -> Bound | None:
        """Return a program, by its number, with a schedule, or None if it is refused before it has a plan."""
        try:
            bound = self._bound(number, schedule)
        except TileLinkError as error:
            return self.refuse(type(error).__name__, error)
        except MemoryError:
            return self.lacks_memory()
        if error := does_not_fit(bound):
            return self.refuse("shared memory", error)
        return self.refuse("registers", error) if (error := spills(bound)) else bound

    def proved(self, bound: Bound) -> Plan | None:
        """Return the verified plan of a program of `bound_of`, or None if it is refused."""
        try:
            return safe_plan(bound, self.tables)
        except TileLinkError as error:
            return self.refuse(type(error).__name__, error)
        except MemoryError:
            return self.lacks_memory()

    def refuse(self, reason: str, error: TileLinkError) -> None:
        """Count a schedule that is refused."""
        self.refused[reason] += 1
        self.reasons.setdefault(reason, error)

    def lacks_memory(self) -> None:
        """Count a schedule whose tiles are too many for this machine: others need not be."""
        self.refused["memory"] += 1

    def without_idle(self, number: int, schedule: Schedule) -> Schedule:
        """Return a schedule of a program, by its number, without the clauses that change nothing of what is lowered.

        How loops over tiles are nested is lowered to the order of the tiles, and to names and comments.
        """

        def lowered(said: Schedule) -> str:
            bound = self._bound(number, said)
            plain = {name: replace(stage, nest=None) for name, stage in bound.stages.items()}
            return listing(replace(bound, stages=plain))

        known = lowered(schedule)
        for part in (*schedule.stages, *schedule.tensors):
            for word in (word_called(said.name) for said in part.said):
                with suppress(TileLinkError):  # some must be said
                    less = schedule.say(part.name, word, word.default)
                    schedule = less if lowered(less) == known else schedule
        return schedule

    def _bound(self, number: int, schedule: Schedule) -> Bound:
        program = self.programs[number]
        return bind(program, schedule, self.dims, self.ranks, self.target, self.dtype, nodes=self.nodes)

    def tiles(self, number: int, schedule: Schedule) -> float:
        """Return the tiles of all ranks under a schedule of a program, by its number; inf if it cannot be bound."""
        try:
            bound = self._bound(number, schedule)
        except TileLinkError:
            return inf
        return bound.total
