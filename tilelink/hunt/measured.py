# pyright: basic
"""Launches of subjects measured on the GPUs of a group, next to what the model predicts of them.

All ranks walk the same points in lock-step: times, reasons and the clock are those of all ranks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from tilelink import compiler, ops
from tilelink.dtypes import DTYPES
from tilelink.errors import SearchError, TileLinkError
from tilelink.hunt.anomaly import Anomaly, Feature, Rated
from tilelink.hunt.cases import REFUSED, points_of
from tilelink.hunt.functions import Functions
from tilelink.hunt.operators import Choices
from tilelink.hunt.programs import DTYPE, LAUNCH, Schedules, Workload
from tilelink.ops.operators import OPERATORS, UNFUSED
from tilelink.reference import trial
from tilelink.runtime.cuda.device import current_target, of_all
from tilelink.runtime.cuda.timing import Sampler
from tilelink.search import Strategy, walk
from tilelink.search.points import Candidate
from tilelink.simulator.around import launch_of
from tilelink.simulator.causes import Cause
from tilelink.tuning.prepare import Point, prepare_shares

SAMPLES, WARMUPS = 8, 2
OTHERS = 1
"""Implementations measured besides the chosen one and the unfused pair: those that the model predicts to be fastest."""
Run = Callable[[], Any]


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A subject whose launches are measured. Every method is called by all ranks, in the same order."""

    of: Choices | Functions | Schedules
    sampler: Sampler
    _known: dict[tuple[int, ...], Rated | TileLinkError] = field(default_factory=dict, compare=False, repr=False)
    _expected: dict[tuple[int, ...], dict[str, float]] = field(default_factory=dict, compare=False, repr=False)

    @property
    def name(self) -> str:
        return self.of.name

    @property
    def features(self) -> Sequence[Feature]:
        return self.of.features

    def said(self, choices: Sequence[int]) -> Mapping[str, str]:
        return self.of.said(choices)

    def command(self, choices: Sequence[int]) -> str:
        return f"{self.of.command(choices)} --measure"

    def rated(self, choices: Sequence[int], *, every: bool = False) -> Rated:
        del every  # no launch is compared with a larger one
        key = tuple(choices)
        if key not in self._known:
            try:
                self._known[key] = self._program(key) if isinstance(self.of, Schedules) else self._operator(key)
            except TileLinkError as error:
                self._known[key] = error
        found = self._known[key]
        if isinstance(found, TileLinkError):
            raise found
        return found

    # Operators ------------------------------------------------------------------------------------------------

    def _operator(self, choices: tuple[int, ...]) -> Rated:
        said = self.of.said(choices)
        expected = self.predicted(choices) if isinstance(self.of, Choices) else {}
        runs = self.calls(choices)
        times, host = self._timed(runs, said[LAUNCH] == "graph")
        ops.clear(captured=True)
        chosen = next(iter(runs))
        mine, best = times[chosen], min(times, key=lambda name: times[name])
        found = [
            Anomaly(
                kind="regret", seconds=mine, against=times[best], reference=best,
                cause=Cause(key=("choice", f"{chosen} and {best}"), text=f"{chosen} is taken, and {best} is faster"),
            )
        ]  # fmt: skip
        if chosen != UNFUSED:
            cause = Cause(key=("fused", chosen), text=f"{chosen} is taken, and the pair is faster")
            found.append(
                Anomaly(kind="unfused", seconds=mine, against=times[UNFUSED], reference="the unfused pair", cause=cause)
            )
        found += [_residual(name, times[name], expected[name]) for name in times if name in expected]
        if said[LAUNCH] == "eager":
            found.append(_host(chosen, host[chosen], max(mine, host[UNFUSED])))
        return Rated(seconds=mine, anomalies=tuple(found))

    def predicted(self, choices: Sequence[int]) -> dict[str, float]:
        """Return the predicted seconds of the chosen implementation, of the pair, and of the best others, in order."""
        assert isinstance(self.of, Choices)
        if (key := tuple(choices)) not in self._expected:
            self._expected[key] = self._predicted(self.of, key)
        return self._expected[key]

    def _predicted(self, of: Choices, choices: tuple[int, ...]) -> dict[str, float]:
        request, captured = of.request(choices), of.said(choices)[LAUNCH] == "graph"
        chosen, ways = of.chosen(request), dict[str, float]()
        for way in of.ways(request):
            launch = launch_of(way.result, captured=captured) if way.result else None
            around = launch.seconds - way.result.seconds if launch and way.result else 0.0
            ways[way.name] = way.seconds + around
        if chosen not in ways:
            raise SearchError(f"{chosen} of {request} is not simulated", hint="take smaller sizes")
        others = sorted((name for name in ways if name not in (chosen, UNFUSED)), key=lambda name: ways[name])
        return {name: ways[name] for name in dict.fromkeys((chosen, UNFUSED, *others[:OTHERS]))}

    def calls(self, choices: Sequence[int]) -> dict[str, Run]:
        """Return implementation -> the call of it that is measured; the chosen one first."""
        said, like = self.of.said(choices), self.like(choices)
        if isinstance(self.of, Functions):
            return self._able(self.of.calls(choices, like))
        operator = OPERATORS[self.name]
        ranks, M, N = dist.get_world_size(), int(said["M"]), int(said["N"])
        K = int(said.get("K", N))
        function = getattr(ops, self.name)
        x = torch.randn(M // ranks if operator.gathers else M, K, **like)
        given = [x, torch.randn(N, K, **like) * K**-0.5] if operator.weights else [x]
        made: dict[str, Run] = {}
        for number, name in enumerate(self.predicted(choices)):
            schedule = name if number else None  # a call chooses for itself
            made[name] = lambda schedule=schedule: function(*given, schedule=schedule)
        return made

    def like(self, choices: Sequence[int]) -> dict[str, Any]:
        """Return what tensors of a point are like."""
        return {"device": self.sampler.device, "dtype": DTYPES[self.of.said(choices)[DTYPE]]}

    def _able(self, runs: dict[str, Run]) -> dict[str, Run]:
        """Return the calls that an operator can make. Raises what its own choice raises."""
        able: dict[str, Run] = {}
        for name, run in runs.items():
            try:
                self._together(run)
            except TileLinkError:
                if not able:
                    raise
                continue
            able[name] = run
        return able

    # Programs -------------------------------------------------------------------------------------------------

    def _program(self, choices: tuple[int, ...]) -> Rated:
        assert isinstance(self.of, Schedules)
        one = self.of.workload(choices)
        result = self.of.simulated(one)
        expected = launch_of(result, captured=one.captured).seconds
        run = self._made(one)
        times, host = self._timed({self.name: run}, one.captured)
        name = one.schedule.name if one.schedule else "default"
        found = [_residual(f"{self.name}:{name}", times[self.name], expected)]
        if not one.captured:
            found.append(_host(name, host[self.name], times[self.name]))
        return Rated(seconds=times[self.name], anomalies=tuple(found))

    def _made(self, one: Workload) -> Run:
        assert isinstance(self.of, Schedules)
        ranks, rank, program = dist.get_world_size(), dist.get_rank(), self.of.program
        kernel = self._together(
            lambda: compiler.compile(program, one.schedule, dims=one.sizes, dtype=one.dtype, device="cuda")
        )
        drawn = trial.random_inputs(
            program, ranks=ranks, dims=one.sizes, dtype=one.dtype, launches=1, routing=one.routing
        )
        given = {name: value.cuda() for name, value in drawn[0][rank].items()}
        out = kernel.empty_outputs()
        return lambda: kernel(given, out)

    # Timing ---------------------------------------------------------------------------------------------------

    def _together(self, make: Callable[[], Any]) -> Any:
        """Return what is made. Raises on all ranks what is raised on one, since the others would wait for it."""
        made = error = None
        try:
            made = make()
            torch.cuda.synchronize()
        except TileLinkError as one:
            error = one
        if not self.sampler.agree(error is None):
            raise error or SearchError("a rank has no such launch", hint="its own report names the reason")
        return made

    def _timed(self, runs: Mapping[str, Run], captured: bool) -> tuple[dict[str, float], dict[str, float]]:
        """Return the seconds of launches and those of the host to issue one, the largest of all ranks."""
        for run in runs.values():
            self._together(run)
        ready = {name: self._together(lambda run=run: _graph(run)) for name, run in runs.items()} if captured else runs
        found = self.sampler.timings(dict(ready), samples=SAMPLES, warmups=WARMUPS)
        host = {
            name: max(of_all(round(one.host_us * 1e3), self.sampler.group, self.sampler.device)) / 1e9
            for name, one in found.items()
        }
        return {name: one.median_us / 1e6 for name, one in found.items()}, host


def _graph(run: Run) -> Run:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = run()
    replay = graph.replay
    return lambda: (replay(), kept)


def _residual(name: str, measured: float, predicted: float) -> Anomaly:
    """Return how far a measured time is from the predicted one, in either direction."""
    slower = measured >= predicted
    told = f"{name} takes {measured / predicted:.2f} of the predicted time"
    return Anomaly(
        kind="residual", seconds=max(measured, predicted), against=min(measured, predicted),
        reference="predicted" if slower else "measured, and predicted so much longer",
        cause=Cause(key=("slower" if slower else "faster", name), text=told),
    )  # fmt: skip


def _host(name: str, host: float, against: float) -> Anomaly:
    told = f"the host takes {host * 1e6:.0f} us to issue {name}"
    return Anomaly(
        kind="host", seconds=host, against=against, reference="the GPU, or of the host for the unfused pair",
        cause=Cause(key=("host", name), text=told),
    )  # fmt: skip


def shared_clock() -> float:
    """Return the time of rank 0's clock. Collective."""
    now = torch.tensor([time.monotonic()], dtype=torch.float64, device="cuda")
    dist.broadcast(now, 0)
    return float(now)


def prepare_ahead(subjects: Sequence[Measured], strategy: Strategy, points: int, seed: int, seconds: float) -> int:
    """Compile what the first points of a strategy need, with all cores of the host. Return the number of kernels.

    Collective. A strategy that follows costs will propose others: they are compiled when their turn comes.
    """
    collector = _Collector(subjects, points)
    walk(points_of(subjects), collector, strategy, seed)
    assert dist.group.WORLD is not None
    wanted = [*_wanted(collector.calls), *collector.points]
    prepare_shares(wanted, dist.group.WORLD, seconds=seconds)
    return len(wanted)


class _Collector:
    """Collects what so many launches need, and rates nothing."""

    def __init__(self, subjects: Sequence[Measured], most: int) -> None:
        self._subjects, self._most, self._found, self._seen = subjects, most, 0, 0
        self.calls, self.points = list[Run](), list[Point]()

    @property
    def spent(self) -> Any:
        return "trials" if self._found >= self._most or self._seen >= REFUSED * self._most else None

    def __call__(self, candidate: Candidate, /) -> None:
        subject, choices = self._subjects[candidate.program], candidate.choices
        self._seen += 1
        try:
            if isinstance(subject.of, Functions):
                self.calls += subject.of.calls(choices, subject.like(choices)).values()
            elif isinstance(subject.of, Choices):
                self.calls += subject.calls(choices).values()
            else:
                one = subject.of.workload(choices)
                subject.of.simulated(one)
                self.points.append(
                    Point(program=subject.of.program, schedule=one.schedule, dims=one.sizes, dtype=one.dtype,
                          ranks=one.ranks, target=current_target())
                )  # fmt: skip
            self._found += 1
        except TileLinkError:
            return


def _wanted(calls: Sequence[Run]) -> list[Point]:
    """Return the kernels that calls of operators need, without making them."""
    from tilelink.ops.calls import made_for

    assert dist.group.WORLD is not None
    made = made_for(dist.group.WORLD)
    wanted: dict[Any, Point] = {}
    made.wanted = wanted
    try:
        for call in calls:
            try:
                call()
            except TileLinkError:
                continue
    finally:
        made.wanted = None
    return list(wanted.values())
