# pyright: basic
"""What a call costs on the host: operators beside the collective and the product of torch, eagerly.

    torchrun --nproc-per-node 2 benchmarks/host_cost.py --out host_cost.json

A sample is the time from a call to its return, while the GPU works: it is waited for after every `BATCH` calls, between
samples. Figures are medians over all calls, in microseconds, on the rank where they are largest. `--profile` prints
where the time of `ops.gemm_ar` goes, by function.
"""

from __future__ import annotations

import cProfile
import pstats
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
import torch.distributed as dist

from benchmarks import cases
from benchmarks.tables import ratio, table, us
from tilelink import ops

FILE = Path(ops.__file__).parents[1] / "programs" / "gemm_ar.tl"
SIZES = ((16, 4096, 2048), (64, 4096, 2048), (96, 4096, 2048))
"""Rows, columns and contracted elements: words, tiles, and a product with a kernel that only communicates."""
BATCH = 50
"""Calls between two synchronizations: fewer than the GPU's queue holds."""


def median_us(run: Callable[[], Any], calls: int, meet: Callable[[], Any]) -> float:
    """Return the median of the host's microseconds for a call."""
    samples: list[float] = []
    clock = time.perf_counter
    for _ in range(max(2, calls // BATCH)):
        meet()
        for _ in range(BATCH):
            begin = clock()
            run()
            samples.append(clock() - begin)
    return statistics.median(samples[BATCH:]) * 1e6


def calls_of(M: int, N: int, K: int, device: torch.device) -> dict[str, Callable[[], Any]]:
    like: dict[str, Any] = {"device": device, "dtype": torch.bfloat16}
    x, w, y = torch.randn(M, K, **like), torch.randn(N, K, **like) * K**-0.5, torch.randn(M, N, **like)
    return {
        "dist.all_reduce": lambda: dist.all_reduce(y),
        "torch.mm + dist.all_reduce": lambda: dist.all_reduce(torch.mm(x, w.T)),
        "ops.all_reduce": lambda: ops.all_reduce(y),
        "ops.gemm_ar": lambda: ops.gemm_ar(x, w),
    }


def report(found: dict[str, Any], name: str) -> list[str]:
    """Return the section of a report in docs/results.md."""
    machine, rows = found["machine"], list[tuple[str, ...]]()
    for case in found["cases"]:
        costs = {row["name"]: row["host_us"] for row in case["rows"]}
        base = costs["dist.all_reduce"]
        rows += [(case["name"], call, us(cost), ratio(cost / base)) for call, cost in costs.items()]
    return [
        f"## {name}", "",
        f"Microseconds of the host from an eager call to its return, on {found['ranks']} {machine['gpu']} "
        f"(benchmarks/host_cost.py): medians of {found['samples']} calls on the slowest rank; driver "
        f"{machine['driver']}, torch {machine['torch']}, triton {machine['triton']}, Python {machine['python']}.", "",
        *table(("M x N x K", "call", "us", "/ dist.all_reduce"), rows), "",
    ]  # fmt: skip


def main() -> int:
    parser = cases.parser(__doc__, samples=1000)
    parser.add_argument("--profile", action="store_true")
    args = parser.parse_args()
    if args.dry:
        return 0  # the operators compile their own kernels
    run = cases.Run("host_cost", FILE, args, lambda _: [])
    session = run.session
    for M, N, K in SIZES:
        session.watchdog.context(f"{M} x {N} x {K}")
        rows: list[dict[str, Any]] = []
        for name, call in calls_of(M, N, K, session.device).items():
            with session.watchdog.step(name):
                call()
                found = torch.tensor(median_us(call, args.samples, session.meet), device=session.device)
                dist.all_reduce(found, op=dist.ReduceOp.MAX)
                rows.append({"name": name, "host_us": round(float(found), 2)})
        base = rows[0]["host_us"]
        said = (f"{row['name']} {row['host_us']:.1f} ({row['host_us'] / base:.2f} x)" for row in rows)
        run.add({"name": f"{M} x {N} x {K}", "rows": rows}, [f"{M} x {N} x {K}: " + ", ".join(said)])
        if args.profile:
            profile = cProfile.Profile()
            call = calls_of(M, N, K, session.device)["ops.gemm_ar"]
            session.meet()
            profile.enable()
            for _ in range(BATCH):
                call()
            profile.disable()
            session.meet()
            if session.rank == 0:
                pstats.Stats(profile).sort_stats("tottime").print_stats(25)
    run.end()


if __name__ == "__main__":
    sys.exit(main())
