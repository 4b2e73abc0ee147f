"""Launches of a program with its schedules, rated by the simulator."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from typing import Any

from tilelink import compiler
from tilelink.compiler.samples import completed, draw, index_tensors
from tilelink.errors import BindingError, SearchError, TileLinkError
from tilelink.hunt.anomaly import US, Anomaly, Feature, Rated, around
from tilelink.hunt.sizes import Direction, Sizes, directions, ladder, scaled, slightly_larger
from tilelink.ir.program import Program
from tilelink.lowering.bound import Bound
from tilelink.lowering.walk import executions
from tilelink.planning.plan import Plan, make_plan
from tilelink.planning.queue_order import with_queue_order
from tilelink.scheduling.schedule import Schedule
from tilelink.simulator import Simulated, simulate
from tilelink.simulator.around import launch_of
from tilelink.simulator.causes import cause_of
from tilelink.simulator.machine import Machine
from tilelink.verifier import verify

STEPS = 50_000
"""Statements that the tiles of all ranks execute in a launch that is rated, at most: planning, proving and simulating
it takes half a second."""
DOUBLED = 8
"""By how much more a launch may have whose sizes are only tried (`directions`)."""
LAUNCHES = ("eager", "graph")
SCHEDULE, RANKS, DTYPE, ROUTING, LAUNCH, LATE = "schedule", "ranks", "dtype", "routing", "launch", "late"


@dataclass(frozen=True, kw_only=True)
class Vary:
    """What a hunt varies besides sizes. late: by how many seconds the first rank launches after the others.

    exact: sizes stay as they are given.
    """

    ranks: tuple[int, ...] = (2, 4, 8)
    dtypes: tuple[str, ...] = ("bf16", "f32")
    routings: tuple[str, ...] = ("uniform", "zipf:1.2", "one")
    launches: tuple[str, ...] = LAUNCHES
    late: tuple[float, ...] = (0.0, 20e-6, 200e-6)
    exact: bool = False


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A launch of a program."""

    schedule: Schedule | None
    sizes: Sizes
    ranks: int
    dtype: str
    routing: str
    captured: bool
    late: float


@dataclass(frozen=True, kw_only=True)
class Schedules:
    """A program with some of its schedules. file: as commands name it. base: valid sizes on the first of the ranks."""

    file: str
    program: Program
    schedules: tuple[Schedule | None, ...]
    base: Sizes
    machine: Machine
    vary: Vary = field(default_factory=Vary)
    tables: Any = field(default=None, compare=False)
    _known: dict[tuple[tuple[int, ...], bool], Rated] = field(
        default_factory=dict[tuple[tuple[int, ...], bool], Rated], compare=False, repr=False
    )  # fmt: skip

    @property
    def name(self) -> str:
        return self.program.name

    # What varies ----------------------------------------------------------------------------------------------

    @property
    def features(self) -> tuple[Feature, ...]:
        """The schedule, a size for each direction, ranks, element type, routing, launch, lateness of the first rank.

        Raises BindingError where no schedule is valid with the base sizes.
        """
        return self._features

    @cached_property
    def _features(self) -> tuple[Feature, ...]:
        vary = self.vary
        names = tuple("default" if one is None else one.name for one in self.schedules)
        found = [Feature(name=SCHEDULE, labels=names, each=True)]
        for direction in self.directions:
            factors = self.factors[direction.driver]
            labels = tuple(str(int(int(self.base[direction.driver]) * factor)) for factor in factors)
            given = factors.index(Fraction(1))
            found.append(Feature(name=direction.driver, labels=labels, ordered=True, plain=given))
        ranks = tuple(map(str, self.ranks))
        found.append(Feature(name=RANKS, labels=ranks, ordered=True))
        found.append(Feature(name=DTYPE, labels=vary.dtypes))
        found.append(Feature(name=ROUTING, labels=vary.routings if self._routed else vary.routings[:1]))
        found.append(Feature(name=LAUNCH, labels=vary.launches))
        late = tuple(f"{one * US:g}" for one in (vary.late if max(self.ranks) > 1 else vary.late[:1]))
        return (*found, Feature(name=LATE, labels=late, ordered=True))

    @cached_property
    def _routed(self) -> bool:
        return bool(index_tensors(self.program, given=True))

    @cached_property
    def _all_directions(self) -> list[Direction]:
        if self.vary.exact:
            return []
        first = self.vary.ranks[0]
        able = [one for one in self.schedules if self._refusal(one, self.base, first) is None]
        if not able:
            why = self._refusal(self.schedules[0], self.base, first)
            sizes = ", ".join(f"{name}={value}" for name, value in self.base.items())
            raise BindingError(
                f"{self.name} has no schedule that is valid on {first} ranks with {sizes}: {why and why.message}",
                hint="give valid sizes to begin with: --set NAME=NUMBER",
            )  # fmt: skip
        return self._directions_from(self.base, first, able[:2])

    def _directions_from(self, sizes: Sizes, ranks: int, schedules: Sequence[Schedule | None]) -> list[Direction]:
        dims = [param.name for param in self.program.params if param.kind == "dim"]

        def valid(sizes: Sizes, ranks: int) -> bool:
            return any(self._refusal(one, sizes, ranks) is None for one in schedules)

        return directions(sizes, dims, ranks, valid)

    @cached_property
    def directions(self) -> list[Direction]:
        """Those of sizes."""
        return [one for one in self._all_directions if one.driver != RANKS]

    @cached_property
    def factors(self) -> Mapping[str, list[Fraction]]:
        """Driver of a direction -> its factors."""
        return {one.driver: ladder(self.base, one) for one in self.directions}

    @cached_property
    def ranks(self) -> tuple[int, ...]:
        """The numbers of ranks that are tried: the first alone, if no others are possible."""
        many = self.vary.exact or any(one.driver == RANKS for one in self._all_directions)
        return self.vary.ranks if many else self.vary.ranks[:1]

    def _refusal(self, schedule: Schedule | None, sizes: Sizes, ranks: int) -> TileLinkError | None:
        try:
            self._plan(schedule, sizes, ranks, self.vary.dtypes[0], DOUBLED * STEPS)
        except TileLinkError as error:
            return error
        return None

    # A point --------------------------------------------------------------------------------------------------

    def workload(self, choices: Sequence[int]) -> Workload:
        """Return the launch of a point. Raises SearchError where sizes would be no whole numbers."""
        values = dict(zip((one.name for one in self.features), choices, strict=True))
        vary, ranks = self.vary, self.ranks[values[RANKS]]
        factors = {one: self.factors[one.driver][values[one.driver]] for one in self.directions}
        factors |= {
            one: Fraction(ranks, self.vary.ranks[0]) for one in self._all_directions if one.driver == RANKS
        }  # fmt: skip
        made = scaled(self.base, self.vary.ranks[0], factors)
        if made is None:
            raise SearchError("sizes that are no whole numbers", hint="take other sizes to begin with")
        return Workload(
            schedule=self.schedules[values[SCHEDULE]], sizes=made[0], ranks=ranks, dtype=vary.dtypes[values[DTYPE]],
            routing=vary.routings[values[ROUTING]], captured=vary.launches[values[LAUNCH]] == "graph",
            late=vary.late[values[LATE]],
        )  # fmt: skip

    def said(self, choices: Sequence[int]) -> dict[str, str]:
        """Return what each feature is at a point. Sizes are those of the launch."""
        labels = {one.name: one.labels[choice] for one, choice in zip(self.features, choices, strict=True)}
        try:
            sizes = self.workload(choices).sizes
        except SearchError:
            return labels
        return {**labels, **{one.driver: str(sizes[one.driver]) for one in self.directions}}

    def command(self, choices: Sequence[int]) -> str:
        one = self.workload(choices)
        name = "default" if one.schedule is None else one.schedule.name
        sizes = " ".join(f"{key}={value}" for key, value in one.sizes.items())
        parts = [f"tilelink hunt {shlex.quote(self.file)} --program {self.name} --schedule {name} --exact"]
        parts += [f"--ranks {one.ranks}", *([f"--set {sizes}"] if sizes else []), f"--dtype {one.dtype}"]
        parts += [f"--routing {one.routing}"] if self._routed else []
        parts += [f"--launch {'graph' if one.captured else 'eager'}", f"--late {one.late * US:g}"]
        return " ".join([*parts, *([f"--machine {self.machine.name}"] if self.machine.name != "8xH200" else [])])

    # Rating ---------------------------------------------------------------------------------------------------

    def rated(self, choices: Sequence[int], *, every: bool = False) -> Rated:
        one = self.workload(choices)
        key = tuple(choices), every
        if key not in self._known:
            self._known[key] = self._rate(one, None if every else sum(choices))
        return self._known[key]

    def _rate(self, one: Workload, number: int | None) -> Rated:
        """Rate a launch. number: of the direction in which a jump is looked for; None for all directions."""
        result = self.simulated(one)
        launch = launch_of(result, captured=one.captured)
        seconds = launch.seconds - one.late
        cause = cause_of(result, launch, one.late)
        found = [
            Anomaly(
                kind="unfused", seconds=seconds, against=unfused(result), cause=cause,
                reference="its products at the vendor's rate, then its transfers by the vendor's collective",
            )
        ]  # fmt: skip
        if launch.around:
            found.append(around(launch, one.late))
        ways = [] if self._routed else self._grows(one)
        for way in ways if number is None or self.vary.exact or not ways else [ways[number % len(ways)]]:
            found += self._jump(one, result, seconds, way)
        return Rated(seconds=launch.seconds, anomalies=tuple(found))

    def _grows(self, one: Workload) -> list[Direction]:
        """Return the directions in which the sizes of a launch can grow: its own, where sizes are given exactly."""
        if not self.vary.exact:
            return self.directions
        return [way for way in self._directions_from(one.sizes, one.ranks, [one.schedule]) if way.driver != RANKS]

    def _jump(self, one: Workload, result: Simulated, seconds: float, direction: Direction) -> list[Anomaly]:
        """Return how the time changes with a slightly larger size, beyond what the waves of its tiles explain."""
        larger = slightly_larger(one.sizes, direction)
        if larger is None:
            return []
        changed = replace(one, sizes=larger)
        try:
            other = self.simulated(changed)
        except TileLinkError:
            return []
        after = launch_of(other, captured=one.captured).seconds - one.late
        bounds = other.bound.seconds / result.bound.seconds if result.bound.seconds else 1.0
        grown = max(waves(other.plan.bound, result.plan.bound), bounds, 1.0)
        name = direction.driver
        step = f"{name}={one.sizes[name]}", f"{name}={larger[name]}"
        if after > seconds:
            told = f"{step[1]} instead of {step[0]}, which explains {grown:.2f} times"
            return [
                Anomaly(kind="jump", seconds=after, against=seconds * grown, reference=told, cause=cause_of(other))
            ]  # fmt: skip
        return [Anomaly(kind="jump", seconds=seconds, against=after, reference=f"{step[1]}", cause=cause_of(result))]

    def simulated(self, one: Workload) -> Simulated:
        """Return a simulated launch. Raises TileLinkError where the program or the machine does not allow it."""
        plan = self._plan(one.schedule, one.sizes, one.ranks, one.dtype)
        drawn = draw(self.program, ranks=one.ranks, dims=one.sizes, routing=one.routing, draws=1)
        offsets = [one.late, *[0.0] * (one.ranks - 1)]
        samples = completed(plan, drawn, routing=one.routing)
        return simulate(plan, self.machine, tables=self._tables(one.sizes, one.ranks), offsets=offsets, samples=samples)

    def _plan(self, schedule: Schedule | None, sizes: Sizes, ranks: int, dtype: str, most: int = STEPS) -> Plan:
        bound = compiler.bound(
            self.program, schedule, ranks=ranks, dims=sizes, dtype=dtype, target=self.machine.processor
        )  # fmt: skip
        if (steps := executions(bound)) > most:
            raise SearchError(f"a launch of {steps:,} steps", hint=f"up to {most:,} are simulated: take smaller sizes")
        tables = compiler.checked_tables(bound, self._tables(sizes, ranks))
        plan = with_queue_order(make_plan(bound, tables))
        verify(plan)
        return plan

    def _tables(self, sizes: Sizes, ranks: int) -> dict[str, Any]:
        return self.tables(self.program, sizes, ranks) if self.tables else {}


def unfused(result: Simulated) -> float:
    """Return the seconds of what a launch computes and then of what it sends, at the rates of a vendor's libraries."""
    machine, bound = result.machine, result.bound
    seconds = machine.kernel_gap + machine.tile_overhead + bound.compute / machine.vendor_product_share
    if bound.transfer:
        seconds += machine.kernel_gap + machine.vendor_collective_start
        seconds += bound.transfer / machine.vendor_collective_share
    return seconds


def waves(one: Bound, other: Bound) -> float:
    """Return by what factor the tiles that a program of a kernel has, at most, differ; the largest of all kernels."""
    before = {kernel.name: _wave(other, kernel.name) for kernel in other.on_sms}
    return max((_wave(one, kernel.name) / before.get(kernel.name, 1) for kernel in one.on_sms), default=1.0)


def _wave(bound: Bound, name: str) -> int:
    kernel = next(one for one in bound.kernels if one.name == name)
    return -(-sum(bound.stages[stage].total for stage in kernel.stage_names) // min(kernel.programs, bound.target.sms))
