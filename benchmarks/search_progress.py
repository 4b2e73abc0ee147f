# pyright: basic
"""How fast strategies find what the model thinks good: the best so far after every trial, for several seeds.

Only a strategy's own points count. Declared schedules are judged besides, and some strategies begin near them.

python benchmarks/search_progress.py [OUT.json]

No GPU is needed. The figures by trials are the same on every machine; the seconds are one machine's, with a process for
each of its processors.
"""

from __future__ import annotations

import json
import platform
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import tilelink
from tilelink.errors import TileLinkError
from tilelink.search import STRATEGIES
from tilelink.tuning import algorithms, rank

MACHINE, RANKS, DTYPE = "8xH200", 4, "bf16"
SHAPE = "mlp-2@2048"
DIMS: dict[str, dict[str, int]] = {
    "ag_gemm": {"Ms": 512, "N": 3584, "K": 4096},
    "gemm_rs": {"Ms": 512, "N": 4096, "K": 3584},
}
"""mlp-2 is 4096 by 14336 over four ranks; 2048 rows, for a trial of all 8192 takes four times as long."""
TRIALS, SEEDS = 300, 3
US = 1e6


def main(arguments: list[str]) -> None:
    begin = time.monotonic()
    jobs = [(op, by, seed) for op in DIMS for by in STRATEGIES for seed in range(1 if by == "exhaustive" else SEEDS)]
    with ProcessPoolExecutor() as pool:
        runs = [report(run) for run in pool.map(search, jobs)]
    shapes = [{"op": op, "dims": dims, "declared": declared(op, dims)} for op, dims in DIMS.items()]
    result = {
        "benchmark": "search", "machine": MACHINE, "ranks": RANKS, "dtype": DTYPE, "shape": SHAPE, "trials": TRIALS,
        "wall_s": round(time.monotonic() - begin, 1), "python": platform.python_version(), "shapes": shapes,
        "runs": runs,
    }  # fmt: skip
    if arguments:
        Path(arguments[0]).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def search(job: tuple[str, str, int], trials: int = TRIALS, dims: Mapping[str, int] | None = None) -> dict[str, Any]:
    """One search of an operator's algorithms: (operator, strategy, seed) -> what it found, in microseconds."""
    op, by, seed = job
    module = tilelink.load(op)
    programs = algorithms(module.programs, module.programs[0])
    known = [schedule for program in programs for schedule in module.schedules_of(program)]
    begin = time.process_time()
    found = rank(
        programs, dims=dims or DIMS[op], ranks=RANKS, machine=MACHINE, dtype=DTYPE, by=by, budget_s=None,
        trials=trials + len(known), seed=seed, declared=known, jobs=1,
    )  # fmt: skip
    own = replace(found, tried=tuple(one for one in found.tried if not one.declared))
    return {
        "op": op,
        "strategy": by,
        "seed": seed,
        "points": found.size,
        "refused": sum(found.refused.values()),
        "seconds": round(found.elapsed, 2),
        "cpu_s": round(time.process_time() - begin, 2),
        "best": str(own.ranking[0].schedule) if own.ranking else "",
        "progress": [[one.trial - len(known), round(one.at, 3), round(one.seconds * US, 3)] for one in own.progress()],
    }


def declared(op: str, dims: Mapping[str, int]) -> dict[str, float]:
    """What the model says of the schedules that the file of an operator has: program:schedule -> microseconds."""
    module, found = tilelink.load(op), dict[str, float]()
    for program in module.programs:
        predict = partial(tilelink.simulate, program, ranks=RANKS, dims=dims, machine=MACHINE, dtype=DTYPE)
        for schedule in module.schedules_of(program):
            try:
                found[f"{program.name}:{schedule.name}"] = round(predict(schedule).seconds * US, 3)
            except TileLinkError:  # does not fit these sizes
                continue
    return found


def report(run: dict[str, Any]) -> dict[str, Any]:
    best = f"{run['progress'][-1][2]:.1f} us" if run["progress"] else "nothing"
    print(
        f"{run['op']:>8} {run['strategy']:>10} seed {run['seed']}: {best}, {run['cpu_s']:.0f} CPU s",
        flush=True,
    )
    return run


if __name__ == "__main__":
    main(sys.argv[1:])
