"""A timeline as a small SVG picture: ranks, their kernels and links, from the events of a trace."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from itertools import groupby
from typing import Any

from tilelink.simulator.html import Lane, lanes_of

STAGES = ("#4c78a8", "#59a14f", "#b07aa1", "#9c755f", "#3aa6a0", "#c9a227")
COLOURS = {"wait": "#f3c3bb", "notify": "#444444", "transfer": "#e8993a"}
BINS, LEFT, WIDTH, ROW, GAP = 240, 130, 720, 22, 4
Bins = dict[str, list[float]]


def picture(trace: Mapping[str, Any]) -> str:
    """Return the picture of a trace of one launch (`tilelink simulate --trace`)."""
    lanes, _ = lanes_of(trace["traceEvents"])
    span = max(lane.end for lane in lanes)
    stages = sorted({s.what for lane in lanes for s in lane.slices if s.kind not in COLOURS})
    colours = {**dict(zip(stages, STAGES, strict=False)), **COLOURS}
    shown = [lane for lane in lanes if lane.rank in (0, lanes[-1].rank)]  # the first and the last
    parts, y = list(_legend(colours, lanes)), 26
    for rank, own in groupby(shown, key=lambda lane: lane.rank):
        for n, (name, group) in enumerate(groupby(own, key=lambda lane: lane.group)):
            both = [*group]
            if n == 0:
                parts.append(_text(0, y + 15, f"rank {rank}", bold=True))
            parts.append(_text(54, y + 15, name))
            parts.append(f'<rect x="{LEFT}" y="{y}" width="{WIDTH}" height="{ROW}" fill="#f4f4f4"/>')
            parts += _strip(_shares(both, span), colours, y)
            y += ROW + GAP
        y += 8
    parts += _axis(span, y)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDTH + 40} {y + 20}"'
    style = 'font-family="system-ui, DejaVu Sans, sans-serif" font-size="12"'
    return f'{head} {style}>\n<rect width="100%" height="100%" fill="#fff"/>\n' + "\n".join(parts) + "\n</svg>\n"


def _shares(lanes: Sequence[Lane], span: int) -> Bins:
    """Return what -> its share of some lanes, in each bin of the time."""
    found: Bins = {}
    for lane in lanes:
        for one in lane.slices:
            own = found.setdefault(one.kind if one.kind in COLOURS else one.what, [0.0] * BINS)
            begin, end = one.begin * BINS / span, one.end * BINS / span
            for n in range(int(begin), min(BINS, int(end) + 1)):
                own[n] += max(0.0, min(end, n + 1) - max(begin, n)) / len(lanes)
    return found


def _strip(shares: Bins, colours: Mapping[str, str], y: int) -> Iterable[str]:
    """Yield the areas of a strip, one above the other; waits are on top."""
    base = [0.0] * BINS
    for what in sorted(shares, key=lambda name: (name == "wait", name)):
        tops = [min(1.0, b + s) for b, s in zip(base, shares[what], strict=True)]
        outline = [*_edge(tops, y), *reversed([*_edge(base, y)])]
        if tops != base:
            yield f'<path fill="{colours[what]}" d="M{" ".join(_thinned(outline))}z"/>'
        base = tops


def _edge(heights: Sequence[float], y: int) -> Iterable[str]:
    for n, height in enumerate(heights):
        at = f"{y + ROW * (1 - height):.1f}".removesuffix(".0")
        yield from (f"{LEFT + n * WIDTH // BINS},{at}", f"{LEFT + (n + 1) * WIDTH // BINS},{at}")


def _thinned(points: Sequence[str]) -> Iterable[str]:
    """Yield points without those inside of a horizontal line."""
    level = [point.split(",")[1] for point in points]
    for n, point in enumerate(points):
        if not (0 < n < len(points) - 1 and level[n - 1] == level[n] == level[n + 1]):
            yield point


def _legend(colours: Mapping[str, str], lanes: Iterable[Lane]) -> Iterable[str]:
    there = {one.kind if one.kind in COLOURS else one.what for lane in lanes for one in lane.slices}
    x = LEFT
    for what, colour in colours.items():
        if what in there:
            yield f'<rect x="{x}" y="6" width="11" height="11" fill="{colour}"/>'
            yield _text(x + 15, 16, what)
            x += 30 + 7 * len(what)


def _axis(span: int, y: int) -> Iterable[str]:
    step = next(s for power in range(12) for s in (10**power, 2 * 10**power, 5 * 10**power) if span / s <= 8)
    for time in range(0, span + 1, step):
        x = LEFT + time * WIDTH // span
        yield f'<rect x="{x}" y="{y - 8}" width="1" height="6" fill="#888"/>'
        yield _text(x - 8, y + 11, f"{time / 1000:g} us")


def _text(x: int, y: int, text: str, *, bold: bool = False) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return f'<text x="{x}" y="{y}"{weight}>{escape(text)}</text>'
