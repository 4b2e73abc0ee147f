# pyright: basic
"""Writes docs/results.md and its plots from the results that are committed in benchmarks/results.

python benchmarks/report.py
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import (
    attention,
    attention_gradients,
    check_cost,
    choice_regret,
    context_parallel,
    decode,
    experts,
    hops,
    host_cost,
    launch_integers,
    many_sizes,
    models,
    paged_decode,
    readers,
    roles,
    search_quality_figures,
    search_report,
)
from benchmarks.agreement_figures import figures, scatter, table_of
from benchmarks.plots import drawing
from benchmarks.tables import best, render

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
DOCS = ROOT / "docs"
KINDS = {"pair": "cuBLAS + NCCL", "library": "torch, fused", "ours": "TileLink"}
COLOURS = {"pair": "#9aa5b1", "library": "#e0a458", "ours": "#2a6f97"}
INTRODUCTION = """# Results

Made by `benchmarks/report.py` from the files in `benchmarks/results`; do not edit. Every row of a shape is in those
files, with the schedules, versions and commit. `bound` is the slower of cuBLAS alone and the fastest transfer of the
same bytes measured in the same run; the plots show times relative to it.
"""


def main() -> int:
    """Writes the report. Returns 0."""
    parts = [INTRODUCTION]
    for path in sorted(RESULTS.glob("*.json")):
        report = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(report, dict) and report.get("benchmark") in SECTIONS:
            parts += SECTIONS[report["benchmark"]](report, path.stem)
    (DOCS / "results.md").write_text("\n".join(parts).rstrip() + "\n", encoding="utf-8")
    return 0


def agreement(report: dict[str, Any], name: str) -> list[str]:
    """Predicted times beside measured ones: a plot and a table. `benchmarks/agreement.py --report` predicts."""
    if not report.get("figures"):
        return []
    scatter(report["points"], DOCS / "plots" / f"{name}.svg")
    return [f"## {name}", "", f"![predicted and measured times](plots/{name}.svg)", "", *table_of(report), ""]


def searches(report: dict[str, Any], name: str) -> list[str]:
    """The section of a benchmark of searches, whose curves it draws."""
    for shape in report["shapes"]:
        search_report.plot(report, shape["op"], DOCS / "plots" / f"{name}_{shape['op']}.svg")
    return [f"## {name}", "", search_report.render(report, name)]


def qualities(report: dict[str, Any], name: str) -> list[str]:
    """What searches lose against sweeps, with curves. `benchmarks/search_quality.py --report` makes the figures."""
    for group in report["figures"]["groups"]:
        if group["best"]:
            search_quality_figures.plot(group, DOCS / "plots" / search_quality_figures.plot_name(group, name))
    parts = [f"## {name}", "", *search_quality_figures.table_of(report, name)]
    return [*parts, "", "### The model on these points", "", *_foretold(report), ""]


def share(report: dict[str, Any], name: str) -> list[str]:
    """What one of many ranks has to do."""
    return [f"## {name}", "", render(report, rows=False)]


def products(report: dict[str, Any], name: str) -> list[str]:
    """Products with their communication: a plot and a table of each operator."""
    parts = [f"## {name}", ""]
    for op in dict.fromkeys(shape["op"] for shape in report["shapes"]):
        shapes = [shape for shape in report["shapes"] if shape["op"] == op]
        plot(shapes, DOCS / "plots" / f"{name}_{op}.svg")
        parts += [f"![{op}](plots/{name}_{op}.svg)", ""]
    return [*parts, render(report, rows=False)]


def _foretold(report: dict[str, Any]) -> list[str]:
    """What the model said of points before any of them was measured, beside what came out."""
    points = [point | {"predicted_us": point["chosen_us"]} for point in report["points"]]
    table = table_of({**report, "points": points, "figures": figures(points)})
    text = "Predicted before anything was measured; none of these points was used to fit the model."
    return [text, "", *(line for line in table if line.startswith("|"))]


def plot(shapes: Sequence[dict[str, Any]], path: Path) -> None:
    """Bars of each kind's best time over the bound, a group for each shape; bytes that depend on the data alone."""
    with drawing(path, width=1.2 + 1.1 * len(shapes), height=3.2) as axes:
        width = 0.8 / len(KINDS)
        for number, (kind, label) in enumerate(KINDS.items()):
            heights = [_over_bound(shape, kind) for shape in shapes]
            places = [at + (number - 1) * width for at in range(len(shapes))]
            axes.bar(places, heights, width, label=label, color=COLOURS[kind])
        axes.axhline(1.0, color="black", linewidth=0.8)
        axes.set_xticks(range(len(shapes)), [shape["shape"] for shape in shapes], rotation=30, ha="right")
        axes.set_ylabel("time / bound")
        first = shapes[0]
        axes.set_title(f"{first['op']}, {first['ranks']} ranks, {first['dtype']}")
        axes.legend(frameon=False, fontsize=8)


def _over_bound(shape: dict[str, Any], kind: str) -> float:
    row = best(shape, kind)
    return row["us"] / shape["summary"]["bound_us"] if row else 0.0


SECTIONS: dict[str, Callable[[dict[str, Any], str], list[str]]] = {
    "agreement": agreement, "search": searches, "search quality": qualities, "share": share, "tp": products,
    "launch integers": launch_integers.report, "hops": hops.report, "choice_regret": choice_regret.report,
    "check cost": check_cost.table, "context parallel": context_parallel.report,
    "decode": decode.report, "paged decode": paged_decode.report, "many_sizes": many_sizes.report,
    "host_cost": host_cost.report, "roles": roles.table, "attention": attention.table,
    "grouped": roles.grouped_table, "grouped_f8": roles.grouped_table, "readers alone": readers.table,
    "attention gradients": attention_gradients.table, "models": models.report, "experts": experts.report,
}  # fmt: skip
"""What a benchmark's results become in docs/results.md, by its name in them."""


if __name__ == "__main__":
    sys.exit(main())
