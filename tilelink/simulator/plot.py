"""Plot of a simulated launch: the activity of each rank's programs over time, and the use of its link."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from tilelink.data import save_output
from tilelink.errors import OutputError
from tilelink.simulator.result import Simulated
from tilelink.simulator.script import Floats
from tilelink.simulator.trace import levels

US = 1e6
RANKS = 8
"""Number of ranks that are drawn, from rank 0."""
BINS = 200


def save_plot(result: Simulated, path: str | Path) -> None:
    """Draw the first ranks, one below the other, into a file. Its suffix selects the format: .png, .svg or .pdf.

    Raises OutputError if matplotlib is missing or does not know the format, or if the file cannot be written.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise OutputError("drawing needs matplotlib", hint="pip install 'tilelink[plot]'") from None
    shown = min(RANKS, result.plan.bound.ranks)
    figure = Figure(figsize=(10, 1 + 1.3 * shown), layout="constrained")
    rows: Any = figure.subplots(shown, 1, sharex=True, squeeze=False)[:, 0]
    for rank, axes in enumerate(rows):
        _draw(result, rank, axes)
    rows[0].legend(loc="upper right", fontsize="x-small", ncols=4)
    rows[-1].set_xlabel("us")
    title = f"{result.plan.bound.program.name} with {result.plan.bound.schedule.name} on {result.machine.name}"
    figure.suptitle(
        f"{title}: {result.seconds * US:.0f} us, bound {result.bound.seconds * US:.0f} us", fontsize="small"
    )
    picture = BytesIO()
    try:
        figure.savefig(picture, format=Path(path).suffix[1:] or "a name without ending")
    except ValueError as error:
        raise OutputError(f"{path} cannot be drawn: {error}", hint="name a .png, .svg or .pdf file") from None
    save_output(path, picture.getvalue())


def _draw(result: Simulated, rank: int, axes: Any) -> None:
    script = result.timeline.script
    kernels = result.plan.bound.kernels
    on_sm = np.array([not kernels[n].on_copy_engine for n, _, _ in result.plan.workers], dtype=bool)
    rows = np.flatnonzero(on_sm[script.worker] & (script.rank == rank))
    times, counts = levels(result, rows)
    if len(times):
        shares = counts.T * 100 / most_at_once(result, on_sm & (script.worker_rank == rank))
        axes.stackplot(times * US, *shares, step="post", labels=("computing", "waiting"), colors=("#4c78a8", "#e6e6e6"))
    for direction, ends, colour in (("out", script.moves.source, "#e45756"), ("in", script.moves.target, "#54a24b")):
        edges, used = _link_use(result, ends == rank)
        axes.stairs(used * 100, edges * US, color=colour, linewidth=1, label=f"link {direction}")
    axes.set_ylim(0, 105)
    axes.set_xlim(0, result.seconds * US)
    axes.set_ylabel(f"rank {rank}, %", fontsize="small")


def most_at_once(result: Simulated, chosen: Any) -> int:
    """Return how many of some workers run at the same time at most. Kernels of a stream follow one another."""
    t = result.timeline
    stamps = np.concatenate([t.worker_end[chosen], t.worker_begin[chosen]])
    change = np.repeat([-1, 1], int(np.count_nonzero(chosen)))
    order = np.lexsort((change, stamps))  # a program that ends makes room for one that begins then
    return max(1, int(change[order].cumsum().max(initial=0)))


def _link_use(result: Simulated, chosen: Any) -> tuple[Floats, Floats]:
    """Return (edges of the bins, share of the link's bandwidth in each). Transfers are spread over their durations."""
    t = result.timeline
    moves = t.script.moves
    rows = np.flatnonzero(chosen & (moves.reach > 0))
    edges = np.linspace(0.0, result.seconds, BINS + 1)
    moved = np.zeros(BINS + 1)
    for row in rows.tolist():
        begin, end = t.started[row], max(t.moved[row], t.started[row] + 1e-12)
        moved += moves.size[row] * np.clip((edges - begin) / (end - begin), 0.0, 1.0)
    width = max(result.seconds / BINS, 1e-12)
    return edges, np.diff(moved) / width / result.machine.link_bandwidth
