# pyright: basic
"""What benchmarks/search_progress.py found, as a table and as curves."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.plots import drawing

COLOURS = {"exhaustive": "#9aa5b1", "random": "#e0a458", "annealing": "#2a6f97", "evolution": "#6a994e"}
CLOSE = 1.02
"""A search is close to the best that any search found from this factor on."""

Run = Mapping[str, Any]


def best_after(run: Run, trials: int) -> float | None:
    """The best microseconds of a run after so many trials; None where all were refused."""
    found = [us for trial, _, us in run["progress"] if trial <= trials]
    return found[-1] if found else None


def trials_until(run: Run, us: float) -> int | None:
    """The trial that first found so few microseconds."""
    return next((trial for trial, _, found in run["progress"] if found <= us), None)


def render(report: Mapping[str, Any], name: str) -> str:
    """The section of docs/results.md; `plot` draws what it links to."""
    lines = [
        f"Schedules found by the model alone, for {report['shape']} on {report['ranks']} ranks of {report['machine']}, "
        f"{report['dtype']}: the best prediction in us after so many trials, the median over seeds (the worst in "
        f"brackets); and the trials until a search was within {CLOSE - 1:.0%} of the best that any found. Dashed: the "
        "best schedule of the operator's file. Declared schedules are judged besides; annealing and evolution begin at "
        "the points nearest to them.",
        "",
    ]
    marks = sorted({min(mark, report["trials"]) for mark in (30, 100, report["trials"])})
    for shape in report["shapes"]:
        runs = [run for run in report["runs"] if run["op"] == shape["op"]]
        least = min(us for run in runs if (us := best_after(run, report["trials"])) is not None)
        us, who = min((us, who) for who, us in shape["declared"].items())
        lines += [f"![{shape['op']}](plots/{name}_{shape['op']}.svg)", ""]
        lines.append(f"| {shape['op']} | {' | '.join(f'{m} trials' for m in marks)} | until close | refused | CPU s |")
        lines.append("| --- |" + " ---: |" * (len(marks) + 3))
        for strategy in dict.fromkeys(run["strategy"] for run in runs):
            own = [run for run in runs if run["strategy"] == strategy]
            cells = [_median([best_after(run, mark) for run in own], ".1f") for mark in marks]
            cells.append(_median([trials_until(run, CLOSE * least) for run in own], ".0f"))
            cells += [f"{statistics.mean(run[key] for run in own):.0f}" for key in ("refused", "cpu_s")]
            lines.append(f"| {strategy} | {' | '.join(cells)} |")
        lines += ["", f"{runs[0]['points']} points; declared: {who}, {us:.1f} us.", ""]
    return "\n".join(lines)


def _median(values: Sequence[float | None], kind: str) -> str:
    """Median and worst of what there is; a dash for what some seeds never reached."""
    if None in values:
        return "-"
    known = [value for value in values if value is not None]
    middle = f"{statistics.median(known):{kind}}"
    return middle if len(known) == 1 else f"{middle} ({max(known):{kind}})"


def plot(report: Mapping[str, Any], op: str, path: Path) -> None:
    """The best so far against trials: a line for each strategy's median, a band from its best to its worst seed."""
    with drawing(path, width=6.2, height=3.2) as axes:
        runs = [run for run in report["runs"] if run["op"] == op]
        for strategy in dict.fromkeys(run["strategy"] for run in runs):
            own = [run for run in runs if run["strategy"] == strategy]
            first = max((run["progress"][0][0] for run in own if run["progress"]), default=report["trials"] + 1)
            trials = range(first, report["trials"] + 1)
            curves = [[us for t in trials if (us := best_after(run, t)) is not None] for run in own if run["progress"]]
            columns = list(zip(*curves, strict=True))
            if columns:
                colour = COLOURS.get(strategy)
                axes.plot(trials, [statistics.median(c) for c in columns], label=strategy, color=colour, linewidth=1.4)
                low, high = [min(c) for c in columns], [max(c) for c in columns]
                axes.fill_between(trials, low, high, color=colour, alpha=0.15, linewidth=0)
        declared = next(shape["declared"] for shape in report["shapes"] if shape["op"] == op)
        axes.axhline(min(declared.values()), color="black", linewidth=0.8, linestyle="--", label="declared")
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel("trials")
        axes.set_ylabel("best predicted us")
        axes.set_title(f"{op}, {report['shape']}, {report['ranks']} ranks of {report['machine']}")
        axes.legend(frameon=False, fontsize=8)
