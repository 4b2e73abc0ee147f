# pyright: basic
"""Slow parts of two GPUs, and what is said of them: `torchrun --nproc-per-node 2 -m tests.gpu.stragglers FOLDER`.

Traced launches of a gather with a product: first well, then while rank 0 copies to its peer by another stream, while
another stream of rank 1 keeps SMs busy, and while the host of rank 1 is late. Ranks meet on the device before each
launch, as those of `tilelink run --traces` do. A line for each case; the exit status is 1 if another part is named, or
if one is named while all is well.
"""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import triton
import triton.language as tl
from torch.distributed import _symmetric_memory as symmetric
from triton.language.extra.cuda import globaltimer

import tilelink
from tilelink import compiler
from tilelink.cli.rank import MEETING_CYCLES
from tilelink.runtime.cuda.device import current_target
from tilelink.runtime.cuda.driver import driver
from tilelink.runtime.cuda.timing import Sampler
from tilelink.settings import variable
from tilelink.simulator.machine import load_machine
from tilelink.stragglers import Table, of_spans, read_traces, save
from tilelink.stragglers.report import verdict

DIMS = {"Ms": 2048, "N": 4096, "K": 4096}
WELL, ILL = 60, 120
LATE_S = 0.004
COPIED, PIECES = 1 << 28, 64
"""Bytes of the competing copy, in pieces between which a copy engine turns to other copies: about 0.7 ms."""
SPINNING, SPIN_NS = 132, 3_000_000
EXPECTED = {
    "all is well": set(),
    "a competing copy": {("link", 0), ("port", 0), ("copy engine", 0)},
    "SMs kept busy": {("rank", 1), ("sms", 1), ("start", 1)},
    "a late host": {("host", 1)},
}


@triton.jit
def spin(out, NS: tl.constexpr):
    """Keep the tensor cores of the SM of each program busy for so long; programs have room next to others."""
    row, col = tl.arange(0, 16), tl.arange(0, 64)
    a = (row[:, None] + col[None, :]).to(tl.bfloat16) * 0.001
    b = (col[:, None] - col[None, :]).to(tl.bfloat16) * 0.001
    value = tl.zeros((16, 64), tl.float32)
    begin = globaltimer()
    while globaltimer() - begin < NS:
        for _ in range(64):
            value = tl.dot(a, b, value)
    tl.store(out + tl.program_id(0) * 1024 + row[:, None] * 64 + col[None, :], value)


def main(folder: Path) -> int:
    rank, group = dist.get_rank(), dist.group.WORLD
    assert group is not None
    program = compiler.load("ag_gemm").program("ag_gemm")
    schedule = compiler.load("ag_gemm").schedule("h200", program)
    plan = compiler.plan(program, schedule, ranks=2, dims=DIMS, dtype="bf16", target=current_target(group))
    usual = tilelink.compile(program, schedule, dims=DIMS, dtype="bf16", device="cuda")
    kernel = tilelink.compile(program, schedule, dims=DIMS, dtype="bf16", device="cuda", trace=True)
    given = {
        "x": torch.randn(DIMS["Ms"], DIMS["K"], device="cuda").bfloat16(),
        "w": torch.randn(DIMS["N"], DIMS["K"], device="cuda").bfloat16(),
    }
    made = kernel.empty_outputs()
    untraced = usual.bench(given, usual.empty_outputs()).median_us
    side = torch.cuda.Stream()
    source = torch.empty(COPIED, dtype=torch.uint8, device=f"cuda:{rank}")
    target = symmetric.empty(COPIED, dtype=torch.uint8, device=torch.device("cuda", rank))
    there = symmetric.rendezvous(target, group).buffer_ptrs[1 - rank]
    spun = torch.empty(SPINNING * 1024, device="cuda")

    kernel_of_spins: Any = spin
    sampler = Sampler(group, sleep_cycles=MEETING_CYCLES)
    kernel_of_spins[(SPINNING,)](spun, 1000, num_warps=4)

    def copies() -> None:
        """Copy to the peer from the moment on at which the ranks have met: before it would hold up the host."""
        if rank == 0:
            side.wait_stream(torch.cuda.current_stream())
            size = COPIED // PIECES
            for place in range(0, COPIED, size):
                to, of = (ctypes.c_uint64(int(base) + place) for base in (there, source.data_ptr()))
                call, arguments = driver().copy(ctypes.c_void_p(side.cuda_stream), to, of, size)
                assert call(*arguments) == 0

    def spins() -> None:
        if rank == 1:
            with torch.cuda.stream(side):
                kernel_of_spins[(SPINNING,)](spun, SPIN_NS, num_warps=4)

    def sleeps() -> None:
        if rank == 1:
            time.sleep(LATE_S)

    faults: dict[str, Callable[[], None] | None] = {
        "all is well": None, "a competing copy": copies, "SMs kept busy": spins, "a late host": sleeps,
    }  # fmt: skip
    wrong = 0
    for case, fault in faults.items():
        begin = time.perf_counter()
        for launch in range(WELL + ILL):
            ill = fault is not None and launch >= WELL
            if ill and fault is spins:
                spins()
            sampler.meet_later()  # hosts that wait for each launch are not in step
            if ill and fault is not None and fault is not spins:
                fault()
            kernel(given, out=made)
        torch.cuda.synchronize()
        seconds = time.perf_counter() - begin
        timeline = kernel.timeline()
        if rank == 0:
            own = folder / case.replace(" ", "_")
            begin = time.perf_counter()
            table = of_spans(own, plan, timeline.spans)
            reduced = time.perf_counter() - begin
            save(own, plan, table, machine=load_machine("8xH200"), programs=True)
            begin = time.perf_counter()
            found = verdict(read_traces(own))
            judged = time.perf_counter() - begin
            first = found.causes[0] if found.causes else None
            good = not EXPECTED[case] if first is None else (first.suspect.kind, first.suspect.rank) in EXPECTED[case]
            wrong += not good
            print(f"{'ok' if good else 'WRONG'}: {case}\n{found}", flush=True)
            print(*medians(table), sep="\n", flush=True)
            print(
                f"  {seconds:.1f} s for {WELL + ILL} traced launches, {found.evidence.took * 1e6:.1f} us each inside; "
                f"untraced {untraced:.1f} us; reduced in {reduced:.2f} s, judged in {judged:.2f} s", flush=True,
            )  # fmt: skip
        dist.barrier(device_ids=[rank])
    return 1 if wrong else 0


def medians(table: Table) -> list[str]:
    """Return lines of what each rank left: medians, in microseconds, before and while something is slow."""
    columns: dict[tuple[str, int], list[int]] = {}
    for place, column in enumerate(table.columns):
        if column.peer != column.rank:
            columns.setdefault((column.metric, column.rank), []).append(place)
    parts = (table.values[:WELL], table.values[WELL:])
    each = {key: " to ".join(f"{np.nanmedian(part[:, at]) * 1e6:.1f}" for part in parts) for key, at in columns.items()}
    metrics = dict.fromkeys(metric for metric, _ in each)
    return [f"    {one}: " + ", ".join(each.get((one, rank), "-") for rank in range(2)) for one in metrics]


if __name__ == "__main__":
    torch.cuda.set_device(int(variable("LOCAL_RANK") or 0))
    dist.init_process_group("nccl")
    status = main(Path(sys.argv[1]))
    dist.destroy_process_group()
    sys.exit(status)
