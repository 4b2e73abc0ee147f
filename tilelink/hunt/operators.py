"""Calls of an operator, rated by the model: what it chooses, beside all else that it could take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from tilelink.compiler import bound as bound_of
from tilelink.compiler import library_module
from tilelink.compiler.samples import completed, draw, index_tensors
from tilelink.errors import SearchError, TileLinkError
from tilelink.hunt.anomaly import US, Anomaly, Feature, Rated, around
from tilelink.hunt.programs import DTYPE, LAUNCH, RANKS, STEPS, Vary
from tilelink.lowering.bound import Bound
from tilelink.lowering.walk import executions
from tilelink.ops.choice import room_for, rounded_rows
from tilelink.ops.decide import predicted
from tilelink.ops.operators import OPERATORS, SCHEDULE, UNFUSED, program_of
from tilelink.ops.predict import Request, feasible, unfused_seconds
from tilelink.planning.plan import make_plan
from tilelink.planning.queue_order import with_queue_order
from tilelink.simulator import Simulated, simulate
from tilelink.simulator.around import launch_of
from tilelink.simulator.causes import Cause, cause_of
from tilelink.simulator.machine import Machine

ROWS = (1, 2, 4, 8, 16, 17, 32, 33, 64, 65, 100, 128, 129, 200, 256, 257, 500, 512, 1024, 1000, 2048, 2000, 4096, 8192)
SIDES = (1024, 2048, 2880, 4096, 5120, 7168, 8192, 14336)
"""Numbers of rows of all ranks, and of columns and contracted elements of a rank, as models have them."""
NUMBER = 1e-5
"""A float that an operator takes, as the epsilon of a norm: it changes no time."""
DTYPES = ("bf16", "f16")
"""Types that operators have kernels for."""


@dataclass(frozen=True, kw_only=True)
class Way:
    """An implementation of a call. result: of the simulation of its kernel, None without one."""

    name: str
    seconds: float
    result: Simulated | None = field(default=None, repr=False)


@dataclass(frozen=True, kw_only=True)
class Choices:
    """An operator of `tilelink.ops` and the sizes of its calls. sizes: by M, N and K; M is of all ranks."""

    name: str
    machine: Machine
    vary: Vary = field(default_factory=Vary)
    sizes: Mapping[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])
    _known: dict[tuple[tuple[int, ...], bool], Rated] = field(
        default_factory=dict[tuple[tuple[int, ...], bool], Rated], compare=False, repr=False
    )  # fmt: skip

    @cached_property
    def _features(self) -> tuple[Feature, ...]:
        names = {"M": tuple(sorted(ROWS)), "N": SIDES, **({"K": SIDES} if OPERATORS[self.name].weights else {})}
        if unknown := self.sizes.keys() - names.keys():
            raise SearchError(f"{self.name} has no size {min(unknown)!r}", hint=f"it has {', '.join(names)}")
        found = [
            Feature(name=name, labels=tuple(map(str, sizes)), ordered=True, plain=len(sizes) // 2)
            for name, sizes in {**names, **{key: tuple(sorted(own)) for key, own in self.sizes.items()}}.items()
        ]
        ranks = tuple(map(str, self.vary.ranks))
        found += [Feature(name=RANKS, labels=ranks, ordered=True), Feature(name=DTYPE, labels=self.dtypes)]
        return (*found, Feature(name=LAUNCH, labels=self.vary.launches))

    @property
    def features(self) -> tuple[Feature, ...]:
        """Sizes, ranks, element type and launch. Raises SearchError for sizes or types that the operator has not."""
        return self._features

    @property
    def dtypes(self) -> tuple[str, ...]:
        """The types that are tried: those given that operators have kernels for."""
        able = tuple(one for one in self.vary.dtypes if one in DTYPES)
        if not able:
            raise SearchError(f"operators have kernels for {' and '.join(DTYPES)}", hint="give one of them as --dtype")
        return able

    def said(self, choices: Sequence[int]) -> dict[str, str]:
        return {one.name: one.labels[choice] for one, choice in zip(self.features, choices, strict=True)}

    def request(self, choices: Sequence[int]) -> Request:
        """Return what a call asks for. Raises SearchError for rows that the ranks cannot share."""
        said, operator = self.said(choices), OPERATORS[self.name]
        M, N, ranks = int(said["M"]), int(said["N"]), int(said[RANKS])
        if operator.rows != "kept" and M % ranks:
            raise SearchError(f"{M} rows are not shared evenly by {ranks} ranks", hint="take a multiple of the ranks")
        return Request(
            op=operator.rule, variant=operator.variant, M=rounded_rows(M) if operator.rows == "kept" else M, N=N,
            K=int(said.get("K", N)), ranks=ranks, dtype=said[DTYPE],
        )  # fmt: skip

    def command(self, choices: Sequence[int]) -> str:
        said = self.said(choices)
        sizes = " ".join(f"{name}={said[name]}" for name in ("M", "N", "K") if name in said)
        parts = f"tilelink hunt {self.name} --exact --ranks {said[RANKS]} --set {sizes}"
        machine = f" --machine {self.machine.name}" if self.machine.name != "8xH200" else ""
        return f"{parts} --dtype {said[DTYPE]} --launch {said[LAUNCH]}{machine}"

    # Rating ---------------------------------------------------------------------------------------------------

    def rated(self, choices: Sequence[int], *, every: bool = False) -> Rated:
        jumps = every or self.vary.exact or sum(choices) % 2 == 0  # half of the points are asked, which saves time
        key = tuple(choices), jumps
        if key not in self._known:
            request = self.request(choices)
            self._known[key] = self._rate(request, self.said(choices)[LAUNCH] == "graph", jumps)
        return self._known[key]

    def _rate(self, request: Request, captured: bool, jumps: bool) -> Rated:
        name = self.chosen(request)
        ways = {way.name: way for way in self.ways(request)}
        if name not in ways:
            raise SearchError(f"{name} of {request} is not simulated", hint="take smaller sizes")
        mine, pair = ways[name], ways[UNFUSED]
        best = min(ways.values(), key=lambda one: one.seconds)
        launch = launch_of(mine.result, captured=captured) if mine.result else None
        cause = cause_of(mine.result, launch) if mine.result else _pair_cause(mine.seconds)
        against = Cause(key=("choice", f"{name} and {best.name}"), text=f"{name} is taken: {cause.text}")
        found = [Anomaly(kind="regret", seconds=mine.seconds, against=best.seconds, reference=best.name, cause=against)]
        if mine is not pair:
            told = "torch's product and the vendor's collective"
            found.append(
                Anomaly(kind="unfused", seconds=mine.seconds, against=pair.seconds, reference=told, cause=cause)
            )
        if launch is not None and launch.around:
            found.append(around(launch))
        found += self._jump(request, mine, pair) if jumps else []
        return Rated(seconds=mine.seconds, anomalies=tuple(found))

    def _jump(self, request: Request, mine: Way, pair: Way) -> list[Anomaly]:
        """Return how the time of the choice changes with the next number of rows that has a kernel of its own."""
        step = request.ranks if OPERATORS[self.name].rows != "kept" else 1
        M = rounded_rows(request.M + step) if OPERATORS[self.name].rows == "kept" else request.M + step
        larger = replace(request, M=M)
        try:
            name = self.chosen(larger)
            after = next((one for one in self.ways(larger, only=name) if one.name == name), None)
        except TileLinkError:
            return []
        if after is None:
            return []
        told = f"{mine.name} is taken for {request.M} rows, {name} for {M}"
        grown = max(1.0, M / request.M, unfused_seconds(larger, self.machine) / pair.seconds)
        if after.seconds > mine.seconds:
            cause = Cause(key=("choice", f"{mine.name} to {name}"), text=told)
            what = f"M={M} instead of M={request.M}, which explains {grown:.2f} times"
            against = mine.seconds * grown
            return [Anomaly(kind="jump", seconds=after.seconds, against=against, reference=what, cause=cause)]
        cause = Cause(key=("choice", f"{name} from {mine.name}"), text=told)
        return [Anomaly(kind="jump", seconds=mine.seconds, against=after.seconds, reference=f"M={M}", cause=cause)]

    def chosen(self, request: Request) -> str:
        """Return the implementation that a call takes where nothing was measured."""
        way, _ = predicted(request, self.machine)
        if not isinstance(way, str):
            return f"{way.program}:{way.name}"
        return f"{program_of(request.op, request.variant)}:{way}" if way == SCHEDULE else way

    def ways(self, request: Request, only: str | None = None) -> list[Way]:
        """Return the implementations of a call that can be simulated, and the unfused pair. only: the name of one."""
        operator, found = OPERATORS[self.name], [Way(name=UNFUSED, seconds=unfused_seconds(request, self.machine))]
        able = {f"{one.source.name}:{one.schedule.name}": one for one in feasible(request, self.machine.processor)}
        for name, (least, most, *_) in (operator.few.tiles if operator.few else {}).items():
            if least <= request.M <= most and (one := self._bound(name, request)) is not None:
                able[name] = one
        apart = {name: self._bound(name, request) for name in (operator.small.schedules if operator.small else ())}
        for name, one in {**able, **{name: one for name, one in apart.items() if one is not None}}.items():
            result = self._simulated(one, request.M) if only in (None, name) else None
            if result is not None:
                product = self._product(request) if name in apart and operator.weights else 0.0
                found.append(Way(name=name, seconds=result.seconds + product, result=result))
        return found

    def _product(self, request: Request) -> float:
        """Return the seconds of the vendor's product alone, before a kernel that communicates."""
        alone = replace(request, ranks=1)
        return unfused_seconds(alone, self.machine) - self.machine.vendor_collective_start - self.machine.kernel_gap

    def _bound(self, name: str, request: Request) -> Bound | None:
        program, _, schedule = name.partition(":")
        module = library_module(program)
        chosen = module.program(program)
        room = replace(request, M=room_for(request.M)) if index_tensors(chosen, given=True) else request
        numbers = {one: NUMBER for one in OPERATORS[self.name].numbers}
        sizes = room.dims(replace(chosen, params=tuple(one for one in chosen.params if one.name not in numbers)))
        if sizes is None:
            return None
        try:
            return bound_of(
                chosen, module.schedule(schedule, chosen), ranks=request.ranks, dtype=request.dtype,
                dims={**sizes, **{one.name: numbers[one.name] for one in chosen.params if one.name in numbers}},
                target=self.machine.processor,
            )  # fmt: skip
        except TileLinkError:
            return None

    def _simulated(self, bound: Bound, rows: int) -> Simulated | None:
        """Return the launch of a kernel, or None. rows: those that are there, of a kernel with room for some number."""
        if executions(bound) > STEPS:
            return None
        # Schedules of the library are proved by its tests, and a choice proves none but the one that it takes.
        counts = {one.name: np.full(bound.ranks, rows) for one in index_tensors(bound.source, given=True)}
        try:
            plan = with_queue_order(make_plan(bound))
            given = draw(bound.source, ranks=bound.ranks, dims=bound.numbers, routing=counts, draws=1)
            return simulate(plan, self.machine, samples=completed(plan, given, routing=counts))
        except TileLinkError:
            return None


def _pair_cause(seconds: float) -> Cause:
    return Cause(key=("pair", ""), text=f"the vendor's product and collective are predicted at {seconds * US:.1f} us")
