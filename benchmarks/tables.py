# pyright: basic
"""Markdown tables of what benchmarks wrote.

    python benchmarks/tables.py RESULT.json ... [--rows]

One line a shape; --rows: every row of every shape.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any


def table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> list[str]:
    """A Markdown table; columns after the first are set to the right."""
    rule = ["---"] + ["---:"] * (len(head) - 1)
    return [f"| {' | '.join(cells)} |" for cells in (head, rule, *lines)]


def best(shape: dict[str, Any], kind: str) -> dict[str, Any] | None:
    """The fastest row of a kind that worked; "pair": the one that is not in a graph."""
    rows = [r for r in shape["rows"] if r["kind"] == kind and r["us"] is not None]
    if kind == "pair":
        rows = [r for r in rows if "graph" not in r["name"]]
    return min(rows, key=lambda r: r["us"], default=None)


def overview(shapes: Sequence[dict[str, Any]]) -> list[str]:
    """One line a shape of one operator: the best of each kind and what ours is against them."""
    head = (shapes[0]["op"], "M x N x K", "cuBLAS", "fastest transfer", "cuBLAS+NCCL", "torch fused", "ours",
            "schedule", "ours / bound", "ours / floor", "speedup", "overlap", "product alone")  # fmt: skip
    lines: list[tuple[str, ...]] = []
    for shape in shapes:
        summary, ours = shape["summary"], best(shape, "ours")
        ratios = summary["ratios"].get(ours["name"], {}) if ours else {}
        quality = summary["gemm_quality"].get(f"{ours['name']}, preset") if ours else None
        library = best(shape, "library")
        lines.append((
            shape["shape"], f"{shape['M']} x {shape['N']} x {shape['K']}", us(summary["gemm_us"]),
            f"{us(summary['transfer_us'])} ({summary['transfer_by'] or '-'})", us(summary["pair_us"]),
            us(library["us"] if library else None), us(ours["us"] if ours else None), ours["name"] if ours else "-",
            ratio(ratios.get("bound")), ratio(ratios.get("floor")), ratio(ratios.get("speedup"), "x"),
            percent(ratios.get("overlap")), percent(quality),
        ))  # fmt: skip
    speedups = [s["summary"]["ratios"][o["name"]].get("speedup") for s in shapes if (o := best(s, "ours"))]
    found = table(head, lines)
    if means := geometric_mean([s for s in speedups if s]):
        found += ["", f"Geometric mean of the speedup over cuBLAS+NCCL: {means:.2f}x over {len(speedups)} shapes."]
    return found


def shape_lines(shape: dict[str, Any]) -> list[str]:
    """Every row of a shape."""
    summary = shape["summary"]
    head = ("row", "kind", "us", "/ bound", "/ floor", "speedup", "overlap", "of cuBLAS", "host us", "error", "build s")
    lines: list[tuple[str, ...]] = []
    for row in shape["rows"]:
        ratios = summary["ratios"].get(row["name"], {})
        lines.append((
            row["name"], row["kind"], us(row["us"]) if row["us"] else f"failed: {_short(row['failure'])}",
            ratio(ratios.get("bound")), ratio(ratios.get("floor")), ratio(ratios.get("speedup"), "x"),
            percent(ratios.get("overlap")), percent(summary["gemm_quality"].get(row["name"])), us(row.get("host_us")),
            f"{row['error']:.1e}" if row.get("error") is not None else "-", ratio(row.get("build_s")),
        ))  # fmt: skip
    title = (
        f"**{shape['op']} {shape['shape']}**, {shape['ranks']} ranks, {shape['dtype']}, {shape['M']} x {shape['N']} x"
        f" {shape['K']}: bound {us(summary['bound_us'])} us, floor {us(summary['floor_us'])} us"
        f" ({shape['wall_s']:.0f} s, {shape['build_s']:.0f} of them building)"
    )
    return [title, "", *table(head, lines), ""]


def render(report: dict[str, Any], rows: bool) -> str:
    """The tables of one file, under a line that says where they come from."""
    machine = report["machine"]
    where = (
        f"{report['op']} on {report['ranks']} x {machine['gpu']}, {report['dtype']}, times in us: median of"
        f" {report['samples']} samples of the slowest rank; driver {machine['driver']}, torch {machine['torch']},"
        f" triton {machine['triton']}, NCCL {machine['nccl']}, commit {report['commit'][:12]}."
    )
    parts = [where, ""]
    if report.get("note"):
        parts += [f"{report['note'][0].upper()}{report['note'][1:]}.", ""]
    if report["ended_early"]:
        parts += [f"The run ended early: {report['ended_early']}", ""]
    for op in dict.fromkeys(shape["op"] for shape in report["shapes"]):
        parts += [*overview([shape for shape in report["shapes"] if shape["op"] == op]), ""]
    for shape in report["shapes"] if rows else ():
        parts += shape_lines(shape)
    return "\n".join(parts)


def geometric_mean(values: Sequence[float]) -> float:
    """0 of nothing."""
    return math.exp(sum(map(math.log, values)) / len(values)) if values else 0.0


def us(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}" if value < 100 else f"{value:.0f}"


def ratio(value: float | None, unit: str = "") -> str:
    return "-" if value is None else f"{value:.2f}{unit}"


def percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.0f} %"


def _short(failure: str) -> str:
    return failure.splitlines()[0][:120].replace("|", "/")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--rows", action="store_true")
    args = parser.parse_args(argv)
    print("\n".join(render(json.loads(path.read_text()), args.rows) for path in args.files))
    return 0


if __name__ == "__main__":
    sys.exit(main())
