"""What planning and proving cost: seconds against tasks, on this machine.

python benchmarks/verify_cost.py [OUT.json]
"""

from __future__ import annotations

import json
import platform
import sys
import time
from pathlib import Path

import tilelink
from tilelink.frontend.schedule_parser import parse_schedule
from tilelink.lowering.bind import bind
from tilelink.planning.plan import make_plan
from tilelink.planning.queue_order import with_queue_order
from tilelink.target import H200
from tilelink.verifier import verify

SCHEDULE = """\
schedule large for ag_gemm:
    gather on copy_engine, tile(i=256)
    gemm on sm, tile(i=128, j=128, k=64), order(s = rank step +1, group(i, 8))
"""


def measure(rows: int) -> dict[str, float]:
    """Tasks and seconds for a plan of 8 ranks with `rows` rows a rank."""
    program = tilelink.load("ag_gemm").program()
    dims = {"Ms": rows, "N": 1536, "K": 4096}
    begin = time.perf_counter()
    plan = with_queue_order(make_plan(bind(program, parse_schedule(SCHEDULE), dims, 8, H200, "bf16")))
    planned = time.perf_counter()
    verify(plan)
    return {"tasks": plan.tasks, "plan_s": planned - begin, "verify_s": time.perf_counter() - planned}


def main() -> None:
    results = [measure(rows) for rows in (1024, 2048, 4096, 8192, 16384, 32768)]
    print(f"{'tasks':>8} {'plan s':>8} {'verify s':>9}")
    for row in results:
        print(f"{row['tasks']:8.0f} {row['plan_s']:8.3f} {row['verify_s']:9.3f}")
    if len(sys.argv) > 1:
        machine = {"python": platform.python_version(), "machine": platform.machine()}
        Path(sys.argv[1]).write_text(json.dumps({"machine": machine, "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
