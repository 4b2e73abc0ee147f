# pyright: basic
"""Figures of predictions beside measurements: errors, rank correlation, and what choosing by the model loses."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.plots import drawing
from benchmarks.prepared import plan_of
from benchmarks.tables import table, us
from tilelink.errors import TileLinkError
from tilelink.simulator import simulate
from tilelink.simulator.machine import Machine

Point = Mapping[str, Any]
CHOSEN = (1, 3, 5)
"""How many of the model's best are measured, in the table of what that loses."""
COLOURS = ("#2a6f97", "#e0a458", "#9aa5b1", "#7b4b94", "#4f772d", "#bc4749")


def predict(points: Sequence[Point], machine: Machine) -> list[dict[str, Any]]:
    """The points with `predicted_us` of a machine, None for one that can no longer be planned."""
    found: list[dict[str, Any]] = []
    for point in points:
        predicted: float | None = None
        if point.get("measured_us") is not None:
            try:
                predicted = simulate(plan_of(point, machine.processor), machine).seconds * 1e6
            except TileLinkError:
                predicted = None
        found.append({**point, "predicted_us": predicted and round(predicted, 2)})
    return found


def known(points: Sequence[Point]) -> list[Point]:
    """Those that were measured and predicted."""
    return [p for p in points if p.get("measured_us") is not None and p.get("predicted_us") is not None]


def spearman(one: Sequence[float], other: Sequence[float]) -> float:
    """The correlation of ranks, equals sharing their mean rank; nan where either does not vary."""
    a, b = _places(one), _places(other)
    if len(a) < 2 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return math.nan
    return float(np.corrcoef(a, b)[0, 1])


def _places(values: Sequence[float]) -> np.ndarray:
    given = np.asarray(values, dtype=float)
    below, equal = given[:, None] > given[None, :], given[:, None] == given[None, :]
    return below.sum(axis=1) + (equal.sum(axis=1) - 1) / 2


def regret(points: Sequence[Point], count: int) -> float:
    """The best measured of the model's best `count`, over the best measured of all."""
    first = sorted(points, key=lambda p: p["predicted_us"])[:count]
    return min(p["measured_us"] for p in first) / min(p["measured_us"] for p in points)


def chance(points: Sequence[Point], count: int) -> float | None:
    """The expected best of `count` points drawn at random, over the best measured of all.

    Drawn from those that were measured because chance had chosen them; None where there are not as many.
    """
    drawn = sorted(p["measured_us"] for p in points if p.get("origin") == "chance")
    if len(drawn) < count:
        return None
    ways = math.comb(len(drawn), count)
    expected = sum(us * math.comb(len(drawn) - 1 - n, count - 1) / ways for n, us in enumerate(drawn))
    return expected / min(p["measured_us"] for p in points)


def fitted(point: Point) -> bool:
    """Whether a point is of the half with which rates of copying programs were fitted: by chance, and for ever."""
    return hashlib.sha256(str(point["id"]).encode()).digest()[-1] % 2 == 0


def figures(points: Sequence[Point]) -> dict[str, Any]:
    """Over all points, and for every operator and shape: errors |predicted / measured - 1|, Spearman, regret."""
    usable = known(points)
    failed = sum("measured_us" in p and p["measured_us"] is None for p in points)
    groups = [
        {"op": op, "shape": shape, **_of(own)}
        for op, shape in dict.fromkeys((p["op"], p["shape"]) for p in usable)
        if (own := [p for p in usable if (p["op"], p["shape"]) == (op, shape)])
    ]
    overall = _of(usable) if usable else {}
    halves = {
        name: _of(own)["median_error"]
        for name, wanted in (("fitted", True), ("held_out", False))
        if (own := [p for p in usable if fitted(p) == wanted])
    }
    return {
        "points": len(usable), "failed": failed, "asked": len(points), "all": overall, "groups": groups,
        "halves": halves,
    }  # fmt: skip


def _of(points: Sequence[Point]) -> dict[str, Any]:
    measured = [p["measured_us"] for p in points]
    predicted = [p["predicted_us"] for p in points]
    errors = np.abs(np.asarray(predicted) / np.asarray(measured) - 1)
    bias = np.median(np.asarray(predicted) / np.asarray(measured) - 1)
    correlation = spearman(predicted, measured)
    return {
        "points": len(points), "median_error": float(np.median(errors)), "largest_error": float(errors.max()),
        "bias": float(bias), "spearman": None if math.isnan(correlation) else correlation,
        "best_us": min(measured), "regret": {str(count): regret(points, count) for count in CHOSEN},
        "chance": {str(count): chance(points, count) for count in CHOSEN},
    }  # fmt: skip


# Shown -------------------------------------------------------------------------------------------------------


def table_of(report: Mapping[str, Any]) -> Iterator[str]:
    """Lines of Markdown: one for each operator and shape."""
    found = report["figures"]
    head = ("operator", "shape", "schedules", "best us", "median error", "largest", "bias", "Spearman",
            *(f"best of the model's {count}" for count in CHOSEN),
            *(f"of {count} by chance" for count in CHOSEN))  # fmt: skip
    yield (
        f"{found['points']} points of {found['asked']} are measured and predicted; {found['failed']} failed. "
        f"Predicted for {report['predicted_for']}. The error is that of the predicted time over the measured one. The"
        " last columns are the best time among what the model likes most, and the expected best among as many that"
        " chance takes, over the best of all that were measured."
    )
    if len(halves := found.get("halves", {})) == 2:
        yield (
            f"One half of the points, with which rates of copying programs were fitted, has a median error of"
            f" {100 * halves['fitted']:.1f} %, the other half of {100 * halves['held_out']:.1f} %."
        )
    yield ""
    if found["all"]:
        lines = [_line(group["op"], group["shape"], group) for group in found["groups"]]
        without = {"spearman": None, "regret": None, "chance": {}}
        yield from table(head, [*lines, _line("all", "", {**found["all"], **without})])


def _line(op: str, shape: str, own: Mapping[str, Any]) -> tuple[str, ...]:
    losses = [f"{own['regret'][str(n)]:.3f}" for n in CHOSEN] if own["regret"] else ["-"] * len(CHOSEN)
    correlation = "-" if own["spearman"] is None else f"{own['spearman']:.2f}"
    errors = [f"{100 * own[name]:.1f} %" for name in ("median_error", "largest_error")]
    best = us(own["best_us"]) if op != "all" else "-"
    drawn = [own["chance"].get(str(n)) for n in CHOSEN]
    lucky = ["-" if found is None else f"{found:.2f}" for found in drawn]
    return (op, shape, str(own["points"]), best, *errors, f"{100 * own['bias']:+.1f} %", correlation, *losses, *lucky)


def scatter(points: Sequence[Point], path: Path) -> None:
    """Predicted against measured times, both logarithmic; bytes that depend on the data alone."""
    with drawing(path, width=4.6, height=4.2) as axes:
        usable = known(points)
        for number, op in enumerate(dict.fromkeys(p["op"] for p in usable)):
            own = [p for p in usable if p["op"] == op]
            times = [p["measured_us"] for p in own], [p["predicted_us"] for p in own]
            axes.scatter(*times, s=14, alpha=0.8, linewidths=0, color=COLOURS[number % len(COLOURS)], label=op)
        every = [p[name] for p in usable for name in ("measured_us", "predicted_us")]
        ends = (min(every) / 1.2, max(every) * 1.2)
        axes.plot(ends, ends, color="black", linewidth=0.8)
        axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends, xlabel="measured, us", ylabel="predicted, us")
        axes.legend(frameon=False, fontsize=8)
