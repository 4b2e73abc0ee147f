"""Layers with attention and experts on ranks of their own, next to the same ranks that each have both, simulated.

    python -m benchmarks.m2n            simulates what results/m2n.json lacks; writes the table of docs/simulation.md
    python -m benchmarks.m2n tables     writes the table from the results that are there

All index tensors are those of one drawn routing: each row chooses k of all experts, uniformly.
"""

from __future__ import annotations

import json
import platform
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import tilelink
from tilelink.compiler.samples import draw
from tilelink.lowering.bind import bind
from tilelink.planning.plan import make_plan
from tilelink.planning.queue_order import with_queue_order
from tilelink.simulator import simulate
from tilelink.simulator.machine import load_machine

PROGRAM = Path(__file__).parents[1] / "examples" / "patterns" / "m2n_layers.tl"
RESULT = Path(__file__).parent / "results" / "m2n.json"
PAGE = Path(__file__).parents[1] / "docs" / "simulation.md"
BEGIN, END = "<!-- written by benchmarks/m2n.py -->", "<!-- end of what m2n.py wrote -->"
PLAIN = load_machine("8xH200")


@dataclass(frozen=True, kw_only=True)
class Case:
    """attention, experts: ranks of each; every rank has both where `both`. rows: sequences of all ranks, of all
    micro-batches. keys: of each sequence. inner: columns inside of an expert."""

    attention: int
    experts: int
    both: bool
    rows: int
    keys: int
    inner: int
    batches: int = 2
    layers: int = 2
    width: int = 4096
    choices: int = 4
    every: int = 64

    @property
    def ranks(self) -> int:
        return self.attention + self.experts

    @property
    def dims(self) -> dict[str, int | float]:
        of = self.ranks if self.both else self.attention
        with_experts = self.ranks if self.both else self.experts
        rows, experts = self.rows // (of * self.batches), self.every // with_experts
        assert rows * of * self.batches == self.rows and experts * with_experts == self.every, self
        return {
            "L": self.layers, "U": self.batches, "M": rows, "K": self.width, "H": 4, "G": 8, "D": 128, "T": 64,
            "S": self.keys // 64, "P": rows * self.batches * self.keys // 64, "E": experts, "k": self.choices,
            "I": self.inner, "scale": 0.09, "A": of, "B": 0 if self.both else self.attention,
        }  # fmt: skip


def routed(case: Case, seed: int = 0) -> dict[str, np.ndarray]:
    """Return all index tensors of a launch that routing decides, name -> [ranks, *shape]."""
    d = case.dims
    ranks, M, E, k, A, B = case.ranks, int(d["M"]), int(d["E"]), int(d["k"]), int(d["A"]), int(d["B"])
    N, senders, holders = int(d["L"]) * int(d["U"]), range(int(d["A"])), range(B, ranks)
    random, X, R = np.random.default_rng(seed), (ranks - B) * E, A * M
    shapes = {
        "ways": (M,), "way": (M, ranks - B), "count": (ranks - B,), "rows": (ranks - B, M), "slot": (M, ranks - B),
        "n": (A,), "total": (), "first": (A,), "source": (R,), "place": (R,), "mine": (R,), "which": (R, k),
        "each": (E,), "row": (E, R), "expert": (R, k), "at": (R, k),
    }  # fmt: skip
    found = {name: np.zeros((ranks, N, *shape), np.int64) for name, shape in shapes.items()}
    for t in range(N):
        ids = random.permuted(np.tile(np.arange(X), (A * M, 1)), axis=1)[:, :k].reshape(A, M, k)
        sent: dict[int, list[tuple[int, np.ndarray]]] = {p: [] for p in holders}
        for r in senders:
            chosen = (ids[r][:, :, None] // E == np.arange(ranks - B)).any(axis=1)
            place = np.cumsum(chosen, axis=0) - 1
            found["ways"][r, t], found["count"][r, t] = chosen.sum(axis=1), chosen.sum(axis=0)
            found["way"][r, t] = np.argsort(~chosen, axis=1, kind="stable")
            found["rows"][r, t] = np.argsort(~chosen, axis=0, kind="stable").T
            found["slot"][r, t] = np.take_along_axis(place, found["way"][r, t], axis=1)
            for p in holders:
                sent[p].append((r, ids[r][chosen[:, p - B]] - (p - B) * E))
        for p in holders:
            own = np.concatenate([rows for _, rows in sent[p]])
            counts = [len(rows) for _, rows in sent[p]]
            total, mine = len(own), (own >= 0) & (own < E)
            found["n"][p, t], found["total"][p, t] = counts, total
            found["first"][p, t] = np.cumsum(counts) - counts
            found["source"][p, t, :total] = np.repeat(np.arange(A), counts)
            found["place"][p, t, :total] = np.concatenate([np.arange(count) for count in counts])
            found["mine"][p, t, :total] = mine.sum(axis=1)
            found["which"][p, t, :total] = np.argsort(~mine, axis=1, kind="stable")
            for e in range(E):
                here = (own == e).any(axis=1)
                found["each"][p, t, e] = here.sum()
                found["row"][p, t, e, :total] = np.argsort(~here, kind="stable")
                for row, choice in zip(*np.nonzero(own == e), strict=True):
                    at = int(mine[row, :choice].sum())
                    found["expert"][p, t, row, at] = e
                    found["at"][p, t, row, at] = here[:row].sum()
    return found


def simulated(case: Case) -> dict[str, Any]:
    """Return the time of a launch in seconds, and its bound."""
    module = tilelink.load(str(PROGRAM))
    program = module.program()
    schedule = module.schedule("gpu_both" if case.both else "gpu", program)
    machine = replace(PLAIN, node_ranks=max(case.ranks, PLAIN.node_ranks))
    bound = bind(program, schedule, ranks=case.ranks, numbers=case.dims, dtype="bf16", target=machine.processor)
    plan = with_queue_order(make_plan(bound))  # proved at smaller sizes by the tests
    (given,) = draw(program, ranks=case.ranks, dims=case.dims, routing="full", draws=1)
    lengths = np.full_like(given["length"], case.keys)
    made = simulate(plan, machine, samples=[{**given, **routed(case), "length": lengths}])
    return {**asdict(case), "tiles": plan.tasks, "seconds": made.seconds, "bound": made.bound.seconds}


def cases() -> list[Case]:
    """Each size apart, and with both on all ranks: in two micro-batches, and in one."""
    sizes = ((128, 512, 512), (128, 4096, 512), (128, 512, 2048))
    apart = [Case(attention=8, experts=8, both=False, rows=r, keys=k, inner=i) for r, k, i in sizes]
    found: list[Case] = []
    for one in apart:
        found += [one, replace(one, both=True), replace(one, both=True, batches=1)]
    return found


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The table of the page, in microseconds for a layer of all micro-batches."""
    times: dict[tuple[Any, ...], dict[tuple[bool, int], float]] = {}
    for row in rows:
        key = row["attention"], row["experts"], row["rows"], row["keys"], row["inner"]
        times.setdefault(key, {})[row["both"], row["batches"]] = row["seconds"] / row["layers"] * 1e6
    lines = ["| ranks | rows | keys | inner | apart | both, two micro-batches | both, one |", "|" + "---|" * 7]
    for (attention, experts, *sizes), of in times.items():
        shown = (f"{of[way]:.0f}" if way in of else "" for way in ((False, 2), (True, 2), (True, 1)))
        lines.append(f"| {attention} + {experts} | {' | '.join(map(str, sizes))} | {' | '.join(shown)} |")
    return "\n".join(lines) + "\n"


def written(page: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the page with the table of these results."""
    before, _, rest = page.partition(f"{BEGIN}\n")
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table(rows)}{END}{after}"


def main() -> None:
    made = json.loads(RESULT.read_text())["rows"] if RESULT.exists() else []
    known = [{**row, "tiles": 0, "seconds": 0, "bound": 0} for row in made]
    if sys.argv[1:] != ["tables"]:
        for case in cases():
            if {**asdict(case), "tiles": 0, "seconds": 0, "bound": 0} in known:
                continue
            began = time.process_time()
            made.append(simulated(case))
            print(case, f"{made[-1]['seconds'] * 1e6:.0f} us", f"{time.process_time() - began:.0f} s", flush=True)
            RESULT.write_text(json.dumps({"python": platform.python_version(), "rows": made}, indent=1) + "\n")
    PAGE.write_text(written(PAGE.read_text(), made))


if __name__ == "__main__":
    main()
