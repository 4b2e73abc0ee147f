# pyright: basic
"""Kernels of a product with an all-reduce for the many batch sizes of a server: what getting them ready costs.

    python benchmarks/many_sizes.py                                            # without a GPU: each kernel's cost
    torchrun --nproc-per-node 2 benchmarks/many_sizes.py --out many_sizes.json # prepared, and beside exact sizes

Without a GPU it prints, for each kernel that calls with 1 to 256 rows take, seconds of planning and of compiling for
sm_90, and the symmetric memory that a rank holds for it. On GPUs it times `ops.prepare` for all sizes, with the cache
of Triton as it is (TRITON_CACHE_DIR of an empty folder: cold) and again. Then it compares kernels that have room for
several numbers of rows with kernels of just as many: chains in CUDA graphs, with weights of their own (400 MB in all).
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from benchmarks import cases
from benchmarks.decode import FILE, WEIGHT_BYTES, graphed, nccl
from benchmarks.measure import Session, Variant
from benchmarks.tables import ratio, table, us
from tilelink import compiler, ops
from tilelink.compiler import library_module
from tilelink.compiler.cuda import gpu_artifact
from tilelink.ops.choice import DEFAULTS, choose, room_for, rounded_rows
from tilelink.ops.operators import OPERATORS
from tilelink.ops.partial_inputs import PartialInputs
from tilelink.ops.predict import machine_of
from tilelink.ops.rows import rows_of
from tilelink.runtime.cuda.device import current_target
from tilelink.runtime.cuda.heap import heap_bytes
from tilelink.runtime.cuda.prepared import compile_ahead
from tilelink.target import target

SHAPES = ((4096, 2048), (4096, 7168))
"""Columns and contracted elements of a product."""
SIZES = (1, 2, 4, *range(8, 257, 8))
"""Batch sizes that a server captures."""
COMPARED = ((40, "h200_64x32"), (64, "h200_64x32"), (136, "h200_128x64"), (200, "h200_128x64"), (256, "h200_128x64"))
"""Rows, and the schedule that they take."""


# Beside kernels of just as many rows -------------------------------------------------------------------------


def kernels() -> Iterator[cases.Kernel]:
    """Yield the kernels that are compared, to be compiled beforehand."""
    for N, K in SHAPES:
        for M, schedule in COMPARED:
            yield "gemm_ar_one_shot", schedule, {"M": M, "N": N, "K": K}
            yield "gemm_ar_batch", schedule, {"M": room_for(M), "N": N, "K": K}


def variants(session: Session, M: int, N: int, K: int, schedule: str) -> Iterator[tuple[str, Callable[[], Variant]]]:
    """Yield chains by a kernel of as many rows, by one that has room for more, and by NCCL."""
    like: dict[str, Any] = {"device": session.device, "dtype": torch.bfloat16}
    weights = [torch.randn(N, K, **like) * (2 * K) ** -0.5 for _ in range(max(8, -(-WEIGHT_BYTES // (2 * N * K))))]
    x = torch.randn(M, K, **like)

    def built(name: str, step: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Variant:
        replay, made = graphed(session, lambda: [step(x, w) for w in weights][-1])
        return Variant(
            name=name, kind="pair" if name == "NCCL" else "ours", outputs=(made,), run=lambda: (replay(), made)[1],
            notes={"steps": len(weights)}, expected=lambda: nccl(x, weights[-1]),
        )  # fmt: skip

    ways = {"exact": f"gemm_ar_one_shot:{schedule}", "room": f"gemm_ar_batch:{schedule}"}
    steps = {name: partial(ops.gemm_ar, schedule=way) for name, way in ways.items()} | {"NCCL": nccl}
    for name, step in steps.items():
        yield name, lambda name=name, step=step: built(name, step)


# Without a GPU -----------------------------------------------------------------------------------------------


def wanted(ranks: int, gpu: str) -> dict[tuple[Any, ...], list[int]]:
    """Return the kernels that calls of SIZES rows take by default, with the sizes that take each.

    A kernel is its program, its schedule and its dimensions.
    """
    found: dict[tuple[Any, ...], list[int]] = {}
    operator, machine = OPERATORS["gemm_ar"], machine_of(gpu)
    for N, K in SHAPES:
        for M in SIZES:
            rows = rows_of(operator, M, ranks)
            way = choose("gemm_ar", rounded_rows(M), N, K, ranks, machine=machine or DEFAULTS)
            program, _, schedule = way.partition(":")
            if not schedule:
                continue  # unfused: it has no kernel
            declared = library_module(program).program(program)
            names = [one.name for one in declared.params]
            total = rows.total if "Ms" in names else rows_of(operator, M, 1).total
            total = room_for(M) if PartialInputs(declared).counts else total
            sizes = {"M": total, "Ms": rows.total // ranks, "N": N, "K": K}
            found.setdefault((program, schedule, *((name, sizes[name]) for name in names)), []).append(M)
    return found


def cpu_seconds() -> float:
    """Return the seconds of this process and of the processes that it has waited for, such as ptxas."""
    return sum(os.times()[:4])


def costs(ranks: int, gpu: str) -> None:
    """Print what each kernel costs, and all of them."""
    machine = target("sm_90")
    rows: list[tuple[str, ...]] = []
    totals = [0.0, 0.0, 0.0]
    for (program, schedule, *dims), sizes in wanted(ranks, gpu).items():
        module = library_module(program)
        found = module.program(program)
        times = [cpu_seconds()]
        plan = compiler.plan(
            found, module.schedule(schedule, found), ranks=ranks, dims=dict(dims), dtype="bf16", target=machine
        )  # fmt: skip
        artifact = gpu_artifact(plan)
        times.append(cpu_seconds())
        compile_ahead(artifact, machine, (False,))
        times.append(cpu_seconds())
        spent = [times[1] - times[0], times[2] - times[1], heap_bytes(artifact) / 1e6]
        totals = [a + b for a, b in zip(totals, spent, strict=True)]
        shape = " x ".join(str(size) for _, size in dims)
        served = f"{sizes[0]}" if len(sizes) == 1 else f"{sizes[0]} .. {sizes[-1]}"
        rows.append((f"{program}:{schedule}", shape, served, *(f"{one:.2f}" for one in spent)))
        print(rows[-1], flush=True)
    rows.append((f"{len(rows)} kernels", "", "", *(f"{one:.1f}" for one in totals)))
    columns = ("kernel", "sizes", "rows of calls", "plan and emit, s", "compile, s", "symmetric, MB")
    print("\n".join(table(columns, rows)))


# On GPUs -----------------------------------------------------------------------------------------------------


def prepared(run: cases.Run, workers: int) -> dict[str, Any]:
    """Return what `ops.prepare` takes for all sizes: cold, as Triton's cache is, and again with all that it holds."""
    like: dict[str, Any] = {"device": run.session.device, "dtype": torch.bfloat16}
    calls = [
        partial(ops.gemm_ar, torch.zeros(M, K, **like), w)
        for N, K in SHAPES for w in (torch.zeros(N, K, **like),) for M in SIZES
    ]  # fmt: skip
    ops.gemm_ar(torch.zeros(8, 64, **like), torch.zeros(64, 64, **like), schedule="unfused")  # NCCL starts
    row: dict[str, Any] = {"name": f"prepared for {len(calls)} calls", "rows": []}
    for name in ("cold", "warm"):
        with run.session.watchdog.step(name):
            found = ops.prepare(calls, workers=workers if name == "cold" else 0)
        row["rows"].append({"name": name, "workers": workers if name == "cold" else 0, **asdict(found)})
        ops.clear(captured=True)
    return row


def compared(args: Any) -> None:
    run = cases.Run("many_sizes", FILE, args, lambda _: [])
    case = prepared(run, args.workers)
    run.add(case, [case["name"], *map(str, case["rows"])])
    if args.prepare:
        run.end()
    if run.rank == 0:
        cases.prepared(FILE, list(kernels()), run.session.ranks, args.workers, current_target())
    run.session.meet()
    for N, K in SHAPES:
        for M, schedule in COMPARED:
            name = f"{M} x {N} x {K}"
            run.session.watchdog.context(name)
            begin = time.perf_counter()
            session, ways = run.session, variants(run.session, M, N, K, schedule)
            built = [session.build(label, "ours", builder) for label, builder in ways]
            timed = [one for one in built if isinstance(one, Variant)]
            rows = session.time(timed, lambda: None, samples=args.samples, warmups=args.warmups)
            for row in rows:
                row["step_us"] = None if row["us"] is None else row["us"] / row["steps"]
            rows += [one for one in built if not isinstance(one, Variant)]
            said = ", ".join(
                f"{row['name']} {row['step_us']:.2f}" if row.get("step_us") else f"{row['name']}: {row['failure']}"
                for row in rows
            )
            ops.clear(captured=True)
            run.add({"name": name, "rows": rows}, [f"{name} ({schedule}, {time.perf_counter() - begin:.1f} s): {said}"])
    run.end()


def report(found: dict[str, Any], name: str) -> list[str]:
    """Return the section of a report in docs/results.md."""
    machine, (ready, *compared) = found["machine"], found["cases"]
    rows: list[tuple[str, ...]] = []
    for case in compared:
        steps = {row["name"]: row["step_us"] for row in case["rows"] if row.get("step_us")}
        over = ratio(steps["room"] / steps["exact"]) if {"room", "exact"} <= steps.keys() else "-"
        rows.append((case["name"], *(us(steps.get(way)) for way in ("exact", "room", "NCCL")), over))
    made = [
        f"{row['name']} in {row['seconds']:.1f} s ({row['kernels']} kernels, {row['symmetric_bytes'] / 1e6:.1f} MB of "
        f"symmetric memory of each rank, {row['workers']} workers)"
        for row in ready["rows"]
    ]
    return [
        f"## {name}", "", *([f"{found['note'][0].upper()}{found['note'][1:]}.", ""] if found.get("note") else []),
        f"Products with an all-reduce of many numbers of rows on {found['ranks']} {machine['gpu']} "
        f"(benchmarks/many_sizes.py); driver {machine['driver']}, torch {machine['torch']}, triton "
        f"{machine['triton']}. {ready['name'].capitalize()}: {', '.join(made)}. Below: microseconds of a step of a "
        "chain by a kernel of just as many rows, by one that has room for up to a power of two, and by cuBLAS with "
        "NCCL.", "",
        *table(("step", "exact", "room", "cuBLAS + NCCL", "room / exact"), rows), "",
    ]  # fmt: skip


def main() -> int:
    parser = cases.parser(__doc__, samples=20)
    parser.add_argument("--prepare", action="store_true", help="only get kernels ready, cold and warm")
    args = parser.parse_args()
    if args.dry:
        return 0
    if "RANK" in os.environ:
        compared(args)
    costs(2, "NVIDIA H100 80GB HBM3")
    return 0


if __name__ == "__main__":
    sys.exit(main())
