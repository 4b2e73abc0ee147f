# pyright: basic
"""The points at which the model is compared with measurements: chosen by the model and by chance, without GPUs."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.prepared import plan_of
from tilelink import compiler
from tilelink.errors import TileLinkError
from tilelink.ir.program import Program
from tilelink.search import Space
from tilelink.simulator import simulate
from tilelink.simulator.machine import Machine, load_machine
from tilelink.target import target
from tilelink.tuning import algorithms, rank

RANKS, DTYPE, TARGET = 4, "bf16", "sm_90"
SLOWEST = 5.0
"""Points that are predicted to take longer than this many times the best are left out: they would spend the time."""
SHAPES = {"mlp-1": (4096, 11008), "mlp-2": (4096, 14336), "mlp-5": (8192, 28672)}

STUDY = (5, 12)
"""How many of the model's best and how many by chance, where what searching loses is studied."""
OTHERS = (2, 4)
GROUPS: tuple[tuple[str, str, tuple[int, int]], ...] = (
    ("ag_gemm", "mlp-1", STUDY), ("ag_gemm", "mlp-2", STUDY), ("ag_gemm", "mlp-5", STUDY),
    ("gemm_rs", "mlp-1", OTHERS), ("gemm_rs", "mlp-2@1024", OTHERS), ("ag_gemm", "mlp-2@1024", OTHERS),
    ("ag_gemm", "mlp-2@512", OTHERS), ("gemm_rs", "mlp-5@512", OTHERS),
    ("all_gather", "mlp-2", (1, 2)), ("reduce_scatter", "mlp-2", (1, 2)),
    ("all_gather", "mlp-5@1024", (1, 2)), ("reduce_scatter", "mlp-5@1024", (1, 2)),
)  # fmt: skip
"""Operator, shape, and how many points besides the declared schedules."""


def dims_of(op: str, shape: str, ranks: int = RANKS) -> dict[str, int]:
    """Dimensions of an operator at a shape, as the library names them."""
    model, _, tokens = shape.partition("@")
    hidden, inner = SHAPES[model]
    rows = int(tokens or 8192) // ranks
    return {
        "ag_gemm": {"Ms": rows, "N": inner // ranks, "K": hidden},
        "gemm_rs": {"Ms": rows, "N": hidden, "K": inner // ranks},
        "all_gather": {"Ms": rows, "K": hidden},
        "reduce_scatter": {"Ms": rows, "N": hidden},
    }[op]


def programs_of(op: str) -> tuple[Program, ...]:
    """The programs of an operator's file that compute the same."""
    module = compiler.load(op)
    first = module.program(op) if any(p.name == op for p in module.programs) else module.programs[0]
    return algorithms(module.programs, first)


def point_of(op: str, shape: str, program: str, schedule: str) -> dict[str, Any]:
    """A point without what is known of it; the name of its schedule does not matter."""
    text = schedule.replace(schedule.split(" for ", 1)[0], "schedule one", 1)
    return {
        "op": op, "shape": shape, "program": program, "schedule": text, "dims": dims_of(op, shape), "ranks": RANKS,
        "dtype": DTYPE,
    }  # fmt: skip


class _Group:
    """The points of one operator and shape."""

    def __init__(self, op: str, shape: str, machine: Machine, seed: int) -> None:
        self._op, self._shape, self._machine, self._seed = op, shape, machine, seed
        self._programs, self._dims = programs_of(op), dims_of(op, shape)
        self.points: list[dict[str, Any]] = []

    def add(self, program: str, schedule: str, origin: str, seconds: float | None = None) -> bool:
        """Keeps a point that can be planned, once; says whether it did."""
        point = point_of(self._op, self._shape, program, schedule) | {"origin": origin}
        if any((p["program"], p["schedule"]) == (program, point["schedule"]) for p in self.points):
            return False
        try:
            seconds = simulate(plan_of(point, TARGET), self._machine).seconds if seconds is None else seconds
        except TileLinkError:
            return False
        self.points.append({**point, "chosen_us": round(seconds * 1e6, 2)})
        return True

    def fill(self, best: int, chance: int, trials: int) -> list[dict[str, Any]]:
        module = compiler.load(self._op)
        for program in self._programs:
            for schedule in module.schedules_of(program):
                self.add(program.name, str(schedule), "declared")
        found = rank(
            self._programs, dims=self._dims, ranks=RANKS, machine=self._machine, target=target(TARGET), dtype=DTYPE,
            by="evolution", budget_s=None, trials=trials, seed=self._seed,
        )  # fmt: skip
        kept = 0
        for one in found.ranking:
            name = self._programs[one.candidate.program].name
            kept += kept < best and self.add(name, str(one.schedule), "best", one.seconds)
        self._by_chance(chance)
        limit = SLOWEST * min(p["chosen_us"] for p in self.points)
        return [p for p in self.points if p["chosen_us"] <= limit]

    def _by_chance(self, count: int) -> None:
        space = Space.of(self._programs, dims=self._dims, ranks=RANKS, target=target(TARGET), dtype=DTYPE)
        drawn = Random(self._seed)
        limit = SLOWEST * min(p["chosen_us"] for p in self.points)
        for _ in range(20 * count):
            candidate = space.random(drawn)
            if count and (plan := space.plan(candidate)) is not None:
                seconds = simulate(plan, self._machine).seconds
                program = self._programs[candidate.program].name
                text = str(space.schedule(candidate))
                count -= seconds * 1e6 <= limit and self.add(program, text, "chance", seconds)


def choose(path: Path, machine: str, trials: int, groups: Sequence[tuple[str, str, tuple[int, int]]] = GROUPS) -> int:
    """Writes the points of all groups: first half of each group's, then the other halves. Returns 0."""
    description, found = load_machine(machine), list[list[dict[str, Any]]]()
    for number, (op, shape, (best, chance)) in enumerate(groups):
        begin = time.perf_counter()
        found.append(_Group(op, shape, description, number).fill(best, chance, trials))
        print(
            f"{op} {shape}: {len(found[-1])} points, {time.perf_counter() - begin:.0f} s", file=sys.stderr, flush=True
        )
    points = [{"id": number, **point} for number, point in enumerate(_in_order(found))]
    written = {"benchmark": "agreement points", "machine": machine, "trials": trials, "points": points}
    path.write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")
    return 0


def _in_order(groups: Sequence[Sequence[dict[str, Any]]]) -> Iterator[dict[str, Any]]:
    """Of every group every second point, then the others: a run that ends early has seen all groups."""
    for half in (0, 1):
        for group in groups:
            yield from group[half::2]
