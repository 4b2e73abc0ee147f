"""What counts as an anomaly, how far a launch is from what it should be, and the cause that the model can name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tilelink.simulator.around import Launch, launch_of
from tilelink.simulator.critical_path import LAUNCH, Part, critical_path
from tilelink.simulator.result import Simulated

KINDS: Mapping[str, str] = {
    "unfused": "slower than its parts one after the other",
    "regret": "slower than another implementation",
    "jump": "a small change of size changes the time",
    "around": "what is around the kernels takes long",
    "residual": "measured away from predicted",
    "host": "the host takes longer than the GPU",
}
"""Kind of anomaly -> what it is."""
LEAST = 1.15
"""Ratio from which on a launch is an anomaly: most predictions are closer to measurements than that."""
EXCESS_S = 3e-6
"""Seconds that an anomaly costs at least: less is within what the model leaves out of short launches."""
US = 1e6


@dataclass(frozen=True, kw_only=True)
class Cause:
    """Why a launch takes as long as it does. key: what two launches with one cause have in common."""

    key: tuple[str, str]
    text: str


@dataclass(frozen=True, kw_only=True)
class Anomaly:
    """A launch takes `seconds`, `ratio` times as long as `against` would (`reference` says in words what that is)."""

    kind: str
    seconds: float
    against: float
    reference: str
    cause: Cause

    @property
    def ratio(self) -> float:
        return self.seconds / self.against

    def counts(self, least: float) -> bool:
        return self.ratio >= least and self.seconds - self.against >= EXCESS_S


@dataclass(frozen=True, kw_only=True)
class Rated:
    """A launch: its seconds, and how it compares in each respect, whether that is an anomaly or not."""

    seconds: float
    anomalies: tuple[Anomaly, ...] = field(default=())

    def worst(self, least: float) -> list[Anomaly]:
        """Return the anomalies, worst first."""
        return sorted((one for one in self.anomalies if one.counts(least)), key=lambda one: -one.ratio)


class Subject(Protocol):
    """A program with its schedules, or an operator: what is rated at points."""

    @property
    def name(self) -> str: ...

    @property
    def features(self) -> Sequence[Feature]: ...

    def rated(self, choices: Sequence[int], *, every: bool = False) -> Rated:
        """Return a launch at a point. Raises TileLinkError if there is none.

        every: compare it with all launches that are a little larger. Without it these may be a sample, which differs
        from point to point.
        """
        ...

    def said(self, choices: Sequence[int]) -> Mapping[str, str]:
        """Return what each feature is at a point, by its name."""
        ...

    def command(self, choices: Sequence[int]) -> str:
        """Return the command that rates this point alone."""
        ...


@dataclass(frozen=True, kw_only=True)
class Feature:
    """What varies: a size, the schedule, ...

    plain: the choice to which a case returns where it can. ordered: the choices are numbers that grow. each: a hunt
    begins with every choice, all else being plain.
    """

    name: str
    labels: tuple[str, ...]
    ordered: bool = False
    plain: int = 0
    each: bool = False


def around(launch: Launch, late: float = 0.0) -> Anomaly:
    """Return what is around the kernels of a launch, as an anomaly or not. late: as for `cause_of`."""
    seconds = launch.seconds - late
    return Anomaly(
        kind="around", seconds=seconds, against=seconds - launch.around, reference="its kernels",
        cause=_around_cause(launch, late),
    )  # fmt: skip


def _around_cause(launch: Launch, late: float) -> Cause:
    parts = [f"{launch.helpers} helper kernels"] if launch.helpers else []
    many = "copies" if launch.copies > 1 else "copy"
    parts += [f"{launch.copies} {many} of inputs and outputs"] if launch.copies else []
    told = f"{' and '.join(parts)} are {launch.around * US:.1f} of {(launch.seconds - late) * US:.1f} us"
    return Cause(key=("around", ""), text=told)


AROUND_SHARE = 0.25
"""Share of a launch from which on what is around its kernels is what explains its time."""


def cause_of(result: Simulated, launch: Launch | None = None, late: float = 0.0) -> Cause:
    """Return the largest part of a launch's critical path, in words.

    launch: how it is issued (None: eagerly); what is around it is looked at first. late: seconds by which a rank began
    later than others, which explain nothing.
    """
    launch = launch or launch_of(result)
    if launch.around >= AROUND_SHARE * (launch.seconds - late):
        return _around_cause(launch, late)
    whole, path = result.seconds - late, critical_path(result)
    stages: dict[str, float] = {LAUNCH: -late}
    for (stage, _), part in path.items():
        stages[stage] = stages.get(stage, 0.0) + part.seconds
    stage = max(stages, key=lambda name: stages[name])
    share = f"{100 * stages[stage] / whole:.0f} % of the time"
    if stage == LAUNCH:
        return Cause(key=("launch", ""), text=f"the start and the end of the launch and of its kernels are {share}")
    plan, sms = result.plan, result.machine.sms
    kernel = next(one for one in plan.bound.kernels if stage in one.stage_names)
    own = {part: found for (name, part), found in path.items() if name == stage}
    if kernel.on_copy_engine:
        return Cause(key=("copies", stage), text=_copies(stage, own, share))
    tiles = max(plan.bound.stages[name].total for name in kernel.stage_names)
    if kernel.blocks <= sms // 4 and tiles > kernel.programs:
        return Cause(key=("sms", stage), text=f"`{stage}` has {kernel.blocks} of {sms} SMs and is {share}")
    if tiles <= sms // 2:
        return Cause(key=("tiles", stage), text=f"`{stage}` has {tiles} tiles for {sms} SMs and is {share}")
    part = max(own, key=lambda name: own[name].seconds)
    told = f"{part} for {own[part].seconds * US:.1f} us ({tiles} tiles on {kernel.blocks} SMs)"
    return Cause(key=(part, stage), text=f"`{stage}` is {share}: it {told}")


def _copies(stage: str, own: Mapping[str, Part], share: str) -> str:
    """Return what a copy engine does on the path."""
    made = own.get("moves", Part(seconds=0.0, count=0))
    others = sum(part.count for name, part in own.items() if name != "moves")
    if not made.count:
        return f"the copy engine of `{stage}` is {share}, with {others} waits and flags"
    each = made.seconds / made.count * US
    return f"`{stage}` is {share}: {made.count:,} copies at {each:.1f} us and {others:,} flags"
