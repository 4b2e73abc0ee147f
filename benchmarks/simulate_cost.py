"""What simulating costs: seconds against tiles and ranks, on this machine.

python benchmarks/simulate_cost.py [OUT.json]
"""

from __future__ import annotations

import json
import platform
import sys
import time
from math import log2
from pathlib import Path

from tilelink.frontend.parser import parse_text
from tilelink.lowering.bind import bind
from tilelink.planning.plan import make_plan
from tilelink.planning.queue_order import with_queue_order
from tilelink.simulator import simulate
from tilelink.simulator.machine import load_machine
from tilelink.target import H200

PROGRAM = """\
program gather_product(Ms, N, K):
    x  : in        [Ms, K]
    w  : in        [N, K]
    xs : symmetric [ranks, Ms, K]
    y  : out       [ranks, Ms, N]

    comm gather(p: ranks, i: Ms):
        tile_push_data(xs[rank, i, :] @ p, x[i, :])
        producer_tile_notify(xs[rank, i, :] @ p)

    compute gemm(s: ranks, i: Ms, j: N):
        consumer_tile_wait(xs[s, i, :])
        y[s, i, j] = dot(xs[s, i, :], w[j, :].T)

schedule engine for gather_product:
    gather on copy_engine, tile(i=256)
    gemm on sm, tile(i=128, j=128, k=64), order(s = rank step +1, group(i, 8))

schedule copy_sms for gather_product:
    gather on sm(16), tile(i=32), order(i, p = rank + 1 step +1)
    gemm on sm, tile(i=128, j=128, k=64), order(s = rank step +1, group(i, 8))
    xs channel(i=128)

program chain(Ms, N, K):
    x : in        [ranks, Ms, K]
    w : in        [N, K]
    h : symmetric [ranks, Ms, N]
    y : out       [Ms, N]

    compute gemm(s: ranks, i: Ms, j: N):
        acc = dot(x[s, i, :], w[j, :].T)
        if rank != s + 1:
            peer_tile_wait(h[s, i, j])
            acc += h[s, i, j]
        if rank != s:
            tile_push_data(h[s, i, j] @ (rank + 1), acc)
            peer_tile_notify(h[s, i, j] @ (rank + 1))
        else:
            y[i, j] = acc

schedule epilogue for chain:
    gemm on sm, tile(i=128, j=128, k=64), order(s = rank - 1 step -1)
"""
TILE = 128
COLUMNS = 10
SIZES = (640, 1280, 2560, 5120, 10240, 20480)
CASES = [
    *((schedule, 8, tiles) for schedule in ("engine", "copy_sms", "epilogue") for tiles in SIZES),
    *((schedule, ranks, 5120) for schedule in ("engine", "copy_sms", "epilogue") for ranks in (16, 32, 64)),
]
HEADINGS = ("schedule", "ranks", "tasks", "transfers", "plan s", "simulate s", "ns/n log n")
ROW = "{schedule:>10} {ranks:10} {tasks:10} {transfers:10} {plan_s:10.3f} {simulate_s:10.3f} {ns_per_n_log_n:10.1f}"


def measure(schedule: str, ranks: int, tiles: int) -> dict[str, float | str]:
    """Seconds to plan and to simulate `tiles` tiles of the product on each of so many ranks."""
    module = parse_text(PROGRAM, "simulate_cost.py")
    chosen = next(s for s in module.schedules if s.name == schedule)
    program = next(p for p in module.programs if p.name == chosen.program)
    dims = {"Ms": tiles // (ranks * COLUMNS) * TILE, "N": COLUMNS * TILE, "K": 4096}
    begin = time.perf_counter()
    plan = with_queue_order(make_plan(bind(program, chosen, dims, ranks, H200, "bf16")))
    planned = time.perf_counter()
    result = simulate(plan, load_machine("8xH200"))
    took = time.perf_counter() - planned
    return {
        "schedule": schedule,
        "ranks": ranks,
        "tasks": plan.tasks,
        "transfers": len(plan.transfers.task),
        "plan_s": planned - begin,
        "simulate_s": took,
        "ns_per_n_log_n": took * 1e9 / (plan.tasks * log2(plan.tasks)),
        "predicted_s": result.seconds,
    }


def main() -> None:
    print(" ".join(f"{heading:>10}" for heading in HEADINGS))
    results: list[dict[str, float | str]] = []
    for case in CASES:
        results.append(measure(*case))
        print(ROW.format_map(results[-1]))
    if len(sys.argv) > 1:
        machine = {"python": platform.python_version(), "machine": platform.machine()}
        Path(sys.argv[1]).write_text(json.dumps({"machine": machine, "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
