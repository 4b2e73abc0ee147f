# pyright: basic
"""Launches of many tiles, predicted by some of them and by all: the difference, and the seconds that each takes.

python benchmarks/thinned.py [OUT.json]

No GPU is needed. The points are schedules that a search draws at random, those left out that are refused or stuck.
"""

from __future__ import annotations

import json
import platform
import sys
import time
from math import inf
from pathlib import Path
from random import Random
from typing import Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tilelink import compiler
from tilelink.compiler.samples import completed, draw
from tilelink.errors import ProgressError
from tilelink.planning.plan import make_plan
from tilelink.planning.queue_order import with_queue_order
from tilelink.search import Space
from tilelink.simulator import seconds_by_few, seconds_within
from tilelink.simulator.machine import load_machine

RANKS, POINTS, US = 8, 6, 1e6
MANY = 60_000
"""Tiles of all ranks above which a point is left out: all of them would be simulated for minutes."""
COSTS = str(Path(__file__).with_name("check_cost.tl"))
CASES = (
    (COSTS, "moe_rs", {"M": 1024, "F": 1024, "H": 2048, "E": 16, "B": 24, "T": 128, "k": 2}),
    (COSTS, "ag_moe", {"Ms": 1024, "K": 2048, "N": 2048, "E": 4, "T": 4096}),
    (COSTS, "zigzag_attention", {"Q": 8, "G": 2, "B": 4, "T": 128, "D": 128}),
    ("gemm_rs", "gemm_rs_slots", {"Ms": 2048, "N": 8192, "K": 2048}),
)
COLUMNS = ("program", "tiles", "all_us", "some_us", "percent", "all_s", "some_s")
HEADINGS = ("program", "tiles", "all us", "some us", "%", "all s", "some s")
ROW = "{program:>16} {tiles:>7} {all_us:>8} {some_us:>8} {percent:>6} {all_s:>7} {some_s:>7}"


def points(file: str, name: str, dims: dict[str, int]) -> list[dict[str, Any]]:
    """Predict POINTS schedules of a program by some of their tiles and by all."""
    module, machine = compiler.load(file), load_machine("8xH200")
    program = module.program(name)
    numbers = {one.name: size for one in program.params if (size := dims.get(one.name, one.example))}
    space = Space.of([program], dims=numbers, ranks=RANKS, target=machine.processor)
    sample = draw(program, ranks=RANKS, dims=numbers, draws=1)[0]
    chance, found = Random(0), list[dict[str, Any]]()
    while len(found) < POINTS:
        schedule = space.schedule(space.random(chance))
        bound = space.bound_of(0, schedule)
        tiles = bound.ranks * sum(stage.total for stage in bound.stages.values()) if bound is not None else 0
        if bound is None or tiles > MANY:
            continue
        try:
            begin = time.process_time()
            some = seconds_by_few(bound, machine, inf, samples=[sample])
            middle = time.process_time()
            plan = with_queue_order(make_plan(bound))
            every = seconds_within(plan, machine, inf, samples=completed(plan, [sample], routing="uniform"))
            end = time.process_time()
        except ProgressError:
            continue
        if some is None or every is None:
            continue
        found.append(
            {
                "program": name, "schedule": str(schedule), "tiles": tiles, "all_us": round(every * US, 1),
                "some_us": round(some * US, 1), "percent": round(100 * (some / every - 1), 2),
                "all_s": round(end - middle, 2), "some_s": round(middle - begin, 2),
            }
        )  # fmt: skip
        print(ROW.format_map(found[-1]), flush=True)
    return found


def main() -> None:
    print(ROW.format(**dict(zip(COLUMNS, HEADINGS, strict=True))))
    results = [point for case in CASES for point in points(*case)]
    if len(sys.argv) > 1:
        machine = {"python": platform.python_version(), "machine": platform.machine()}
        text = json.dumps({"benchmark": "thinned", "ranks": RANKS, "machine": machine, "results": results}, indent=1)
        Path(sys.argv[1]).write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
