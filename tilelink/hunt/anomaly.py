"""Anomalies, and how far a launch is from what it should be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tilelink.simulator.around import Launch
from tilelink.simulator.causes import Cause, around_cause

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
        cause=around_cause(launch, late),
    )  # fmt: skip
