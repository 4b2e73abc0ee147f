"""The verdict on a folder of traces, in words, as JSON values, and as a picture of ranks x time."""

from __future__ import annotations

from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from tilelink.data import save_output
from tilelink.errors import OutputError
from tilelink.stragglers.detect import find, speed
from tilelink.stragglers.evidence import Evidence
from tilelink.stragglers.metrics import MOVES, Floats, Traces
from tilelink.stragglers.suspects import Found

US = 1e6
SAID = 4
"""Victims that are said, at most."""
WAITS = 0.02
"""Part of a launch that a victim waits longer, at least."""


@dataclass(frozen=True, kw_only=True)
class Victim:
    """A rank that waits `seconds` longer in a launch than it did, for rank `of`."""

    rank: int
    of: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What was found in the traces of launches: the causes, the one that costs most first, and their victims."""

    evidence: Evidence
    causes: tuple[Found, ...]
    victims: tuple[Victim, ...]

    @property
    def traces(self) -> Traces:
        return self.evidence.traces

    def __str__(self) -> str:
        if not self.causes:
            return f"no straggler in {self._what}"
        lines = [_text(self, one) for one in self.causes]
        lines[1:] = [f"also: {line}" for line in lines[1:]]
        for victim in self.victims[:SAID]:
            waits = f"waits {victim.seconds * US:,.1f} us longer for rank {victim.of} in a launch"
            lines.append(f"  victim: rank {victim.rank} {waits}")
        if (more := len(self.victims) - SAID) > 0:
            lines.append(f"  and {more} more")
        return "\n".join([*lines, f"({self._what})"])

    @property
    def _what(self) -> str:
        took = f"{self.evidence.took * US:,.1f} us each"
        return f"{self.evidence.launches:,} launches of {self.traces.program} on {self.traces.ranks} ranks, {took}"

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {
            "program": self.traces.program, "ranks": self.traces.ranks, "launches": self.evidence.launches,
            "verdict": "straggler" if self.causes else "clean",
            "causes": [
                {
                    "kind": one.suspect.kind, "rank": one.suspect.rank, "peer": one.suspect.peer,
                    "sms": one.suspect.sms and list(one.suspect.sms), "direction": one.suspect.direction,
                    "since": one.since, "until": one.until, "share": round(one.share, 3), "confidence": one.confidence,
                    "speed": round(speed(self.evidence, one), 3), "seconds": one.seconds, "text": _text(self, one),
                }
                for one in self.causes
            ],
            "victims": [{"rank": v.rank, "of": v.of, "seconds": v.seconds} for v in self.victims],
        }  # fmt: skip


def verdict(traces: Traces) -> Verdict:
    """Return which part is slow, since which launch, and who is its victim."""
    evidence = Evidence(traces)
    causes = tuple(find(evidence))
    return Verdict(evidence=evidence, causes=causes, victims=tuple(_victims(evidence, causes)))


def _windows(evidence: Evidence, cause: Found) -> tuple[int, int]:
    """Return the windows (first, one past the last) in which a cause lasts."""
    zero = evidence.traces.table.first
    last = evidence.launches if cause.until is None else cause.until - zero
    first, end = np.searchsorted(evidence.edges, [cause.since - zero, last], side="right").tolist()
    return min(first - 1, len(evidence.edges) - 2), max(end - 1, first)


def _victims(evidence: Evidence, causes: tuple[Found, ...]) -> list[Victim]:
    """Return the ranks that wait longer while the first cause lasts, those that wait longest first."""
    if not causes:
        return []
    a, b = _windows(evidence, causes[0])
    guilty = {one.suspect.rank for one in causes}
    waits = np.flatnonzero(evidence.of("wait"))
    excess = np.nan_to_num(evidence.slower[waits, a:b]).mean(axis=1)
    found: dict[int, Victim] = {}
    for at in np.argsort(-excess).tolist():
        rank, peer = int(evidence.rank[waits[at]]), int(evidence.peer[waits[at]])
        if excess[at] > WAITS and rank not in found and rank not in guilty:
            found[rank] = Victim(rank=rank, of=peer, seconds=float(excess[at]) * evidence.took)
    return list(found.values())


def _text(report: Verdict, cause: Found) -> str:
    one, evidence = cause.suspect, report.evidence
    rate = f"{speed(evidence, cause):.0%} of its {'calibrated' if report.traces.norm is not None else 'usual'} rate"
    stage = f" in `{report.traces.stages[one.stage]}`" if one.stage is not None else ""
    far = bool(evidence.far[one.columns].all()) if one.kind == "port" else False
    where = " to other nodes" if far else ""
    what = {
        "rank": f"rank {one.rank} computes at {rate}{stage}",
        "sms": f"{_sms(evidence, one.sms)} of rank {one.rank} compute at {rate}",
        "link": f"link {one.rank} -> {one.peer} at {rate}",
        "port": f"the links {_DIRECTIONS[one.direction or 'both']} rank {one.rank}{where} at {rate}",
        "copy engine": f"the copy engine of rank {one.rank} at {rate}",
        "host": f"the host of rank {one.rank} launches {cause.seconds * US:,.1f} us late",
        "start": f"rank {one.rank} starts its kernels {cause.seconds * US:,.1f} us late: its SMs have other work",
        "signals": f"notifies of rank {one.rank}{f' to rank {one.peer}' if one.peer is not None else ''} are late",
        "late": f"rank {one.rank} is late, and nothing that it recorded says why",
    }[one.kind]
    since = f"since launch {cause.since:,}" if cause.since > report.traces.table.first else "since the first launch"
    until = f" until launch {cause.until:,}" if cause.until is not None else ""
    seldom = f" in {cause.share:.0%} of the launches" if cause.share < 1 else ""
    costs = f"about {cause.seconds * US:,.1f} us of each"
    return f"{what}{seldom}, {since}{until}: {costs}, {cause.confidence:.0%} sure"


_DIRECTIONS = {"out": "out of", "in": "into", "both": "of"}


def _sms(evidence: Evidence, sms: tuple[int, int] | None) -> str:
    first, last = sms or (0, 0)
    name = "program" if evidence.traces.programs else "SM"
    return f"{name} {first}" if first == last else f"{name}s {first} to {last}"


# Picture -------------------------------------------------------------------------------------------------------

ROWS = (
    ("computing", ("work",)), ("transfers", MOVES), ("copy engine", ("call",)), ("host", ("gap",)),
    ("start", ("start",)), ("waits", ("wait",)),
)  # fmt: skip
SCALE = 0.7
"""Logarithm, or part of a launch, at which a colour is full."""


def save_plot(report: Verdict, path: str | Path) -> None:
    """Draw how slow each rank is over time, one picture for each kind of what it does. The suffix selects the format.

    Raises OutputError if matplotlib is missing or does not know the format, or if the file cannot be written.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise OutputError("drawing needs matplotlib", hint="pip install 'tilelink[plot]'") from None
    evidence = report.evidence
    rows = [(name, map_of(evidence, metrics)) for name, metrics in ROWS if evidence.of(*metrics).any()]
    figure = Figure(figsize=(10, 1 + len(rows) * (0.8 + 0.08 * evidence.ranks)), layout="constrained")
    axes: Any = figure.subplots(len(rows), 1, sharex=True, squeeze=False)[:, 0]
    first = report.traces.table.first
    drawn: Any = None
    for (name, slow), ax in zip(rows, axes, strict=True):
        edges = np.append(np.arange(evidence.ranks) - 0.5, evidence.ranks - 0.5)
        drawn = ax.pcolormesh(first + evidence.edges, edges, slow, cmap="coolwarm", vmin=-SCALE, vmax=SCALE)
        ax.set_ylabel(f"{name}\nrank", fontsize="small")
        ax.invert_yaxis()
        for cause in report.causes[:1]:
            ax.axvline(cause.since, color="black", linewidth=0.8, linestyle="--")
    axes[-1].set_xlabel("launch")
    figure.colorbar(drawn, ax=axes, label="slower than its likes (log), or part of a launch", shrink=0.8)
    title = _text(report, report.causes[0]) if report.causes else str(report)
    figure.suptitle(title, fontsize="small")
    picture = BytesIO()
    try:
        figure.savefig(picture, format=Path(path).suffix[1:] or "a name without ending")
    except ValueError as error:
        raise OutputError(f"{path} cannot be drawn: {error}", hint="name a .png, .svg or .pdf file") from None
    save_output(path, picture.getvalue())


def map_of(evidence: Evidence, metrics: tuple[str, ...]) -> Floats:
    """Return [ranks, windows]: how slow the slowest part of a rank is, of what some metrics are about."""
    chosen = evidence.of(*metrics)
    result = np.zeros((evidence.ranks, evidence.slower.shape[1]))
    for rank in range(evidence.ranks):
        own = evidence.slower[chosen & (evidence.rank == rank)]
        if len(own):
            result[rank] = np.nan_to_num(own[np.argmax(np.nan_to_num(own).mean(axis=1))])
    return result
