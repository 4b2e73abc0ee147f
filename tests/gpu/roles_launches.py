# pyright: basic
"""Many launches of programs whose warps have roles, on all GPUs of a group, with ranks that come late.

    torchrun --nproc-per-node 2 -m tests.gpu.roles_launches --launches 1000

Every launch has new inputs, and a rank that is drawn begins it up to a fifth of a millisecond late. Results are
compared with those of NCCL and cuBLAS, element by element: a tile of another launch is far off.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.baselines import captured
from benchmarks.measure import Watchdog
from benchmarks.tp import choices
from tests.gpu.ranks import join
from tilelink import compiler
from tilelink.ir.printer import print_scalar

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
FILE = str(BENCHMARKS / "roles.tl")
DIMS = {
    "ag_gemm": {"Ms": 1920, "N": 1280, "K": 1024},
    "gemm_rs": {"Ms": 1920, "N": 1024, "K": 1280},
    "gemm_ar": {"Ms": 2048, "N": 1024, "K": 1280},
}
"""More tiles than an H100 has SMs."""
LONG = {"N": 1280, "K": 4096}
"""Sizes of schedules that split the last tiles along the contracted dimension, if it is long."""
CASES = {
    "ag_gemm": (
        "ag_gemm:h200_roles", "ag_gemm_in_place:h200_roles", "ag_gemm_in_place:h200_early_roles",
        "ag_gemm_in_place:h200_roles_split",
    ),
    "gemm_rs": (
        "gemm_rs_scatter:h200_roles", "gemm_rs_local_last:h200_roles", "gemm_rs_local_last:h200_early_roles",
        "gemm_rs_local_last:h200_roles_split",
    ),
    "gemm_ar": ("gemm_ar_local_last:h200_roles", "gemm_ar_local_last:h200_roles_few", "gemm_ar_pulled:h200_roles"),
}  # fmt: skip
ATTENTION = {
    "attention": {"H": 8, "S": 1024, "D": 128, "scale": 0.125},
    "causal_attention": {"H": 16, "NB": 16, "T": 32, "B": 128, "D": 128, "scale": 0.125},
}
"""Sizes of the programs of attention, whose keys are 1024 and 2048 of each rank."""
LATEST_CYCLES = 400_000
ALLOWED = 2e-2
"""Largest difference of an element, of the largest one."""


class Launches:
    """A program with its inputs, and the launches of it."""

    def __init__(self, op: str, name: str) -> None:
        ((program, schedule),) = choices(op, name, [FILE])
        self.op, ranks = op, dist.get_world_size()
        dims = DIMS[op] | (LONG if name.endswith("_split") else {})
        self.kernel = compiler.compile(program, schedule, dims=dims, dtype="bf16", device="cuda")
        shape = (dims["Ms"], dims["K"]) if op == "ag_gemm" else (ranks, dims["Ms"], dims["K"])
        self.x = torch.empty(shape, dtype=torch.bfloat16, device="cuda")
        self.w = torch.randn(dims["N"], dims["K"], dtype=torch.bfloat16, device="cuda")
        rows = ranks * dims["Ms"]
        self.every = torch.empty(rows, dims["K"], dtype=torch.bfloat16, device="cuda")
        out = (dims["Ms"], dims["N"]) if op == "gemm_rs" else (ranks, dims["Ms"], dims["N"])
        self.y = torch.empty(out, dtype=torch.bfloat16, device="cuda")
        self.worst = torch.zeros((), device="cuda")

    def refresh(self) -> None:
        self.x.normal_()
        self.y.fill_(float("nan"))

    def launch(self) -> torch.Tensor:
        return self.kernel({"x": self.x, "w": self.w}, out={"y": self.y})["y"]

    def check(self) -> None:
        """Compare the output with what NCCL and cuBLAS make of the inputs, on the device."""
        if self.op == "ag_gemm":
            dist.all_gather_into_tensor(self.every, self.x)
            wanted = (self.every @ self.w.t()).view(self.y.shape).float()
        else:
            whole = (self.x.view(-1, self.x.shape[-1]) @ self.w.t()).float()
            wanted = torch.empty(self.y.shape, device="cuda")
            if self.op == "gemm_ar":
                dist.all_reduce(whole)
                wanted.copy_(whole.view(self.y.shape))
            else:
                dist.reduce_scatter_tensor(wanted, whole)
        off = (self.y.float() - wanted).abs().max() / wanted.abs().max()
        torch.maximum(self.worst, torch.nan_to_num(off, nan=9e9), out=self.worst)


class Attentions(Launches):
    """A program of attention with its inputs, and the launches of it."""

    def __init__(self, name: str) -> None:
        module = compiler.load(str(BENCHMARKS / "attention.tl"))
        program, dims = module.program(name), ATTENTION[name]
        self.causal = name == "causal_attention"
        self.kernel = compiler.compile(
            program, module.schedule("h200_roles", program), dims=dims, dtype="bf16", device="cuda"
        )
        shape = [int(dims[print_scalar(dim)]) for dim in program.tensor("q").shape]  # that of keys and values too
        self.given = {name: torch.empty(shape, dtype=torch.bfloat16, device="cuda") for name in ("q", "k", "v")}
        self.y = torch.empty_like(self.given["q"])
        self.worst = torch.zeros((), device="cuda")

    def refresh(self) -> None:
        for tensor in self.given.values():
            tensor.normal_()
        self.y.fill_(float("nan"))

    def launch(self) -> torch.Tensor:
        return self.kernel(self.given, out={"o": self.y})["o"]

    def check(self) -> None:
        ranks, rank = dist.get_world_size(), dist.get_rank()
        q, k, v = (x.view(x.shape[0], -1, x.shape[-1]) for x in self.given.values())
        every = []
        for x in (k, v):
            gathered = torch.empty(ranks, *x.shape, dtype=x.dtype, device="cuda")
            dist.all_gather_into_tensor(gathered, x.contiguous())
            every.append(gathered.transpose(0, 1).reshape(x.shape[0], -1, x.shape[-1]).float())
        scores = q.float() @ every[0].transpose(1, 2) * 0.125
        if self.causal:
            rows = torch.arange(q.shape[1], device="cuda")[:, None] + rank * q.shape[1]
            scores = scores.masked_fill(torch.arange(scores.shape[-1], device="cuda") > rows, float("-inf"))
        wanted = (scores.softmax(-1) @ every[1]).view(self.y.shape)
        off = (self.y.float() - wanted).abs().max() / wanted.abs().max()
        torch.maximum(self.worst, torch.nan_to_num(off, nan=9e9), out=self.worst)


def late(drawn: random.Random, rank: int) -> None:
    """Let one rank begin late. All ranks draw the same."""
    who, cycles = drawn.randrange(dist.get_world_size()), drawn.randrange(LATEST_CYCLES)
    if rank == who:
        torch.cuda._sleep(cycles)


def run(op: str, name: str, launches: int, dog: Watchdog, rank: int) -> str:
    """Return what was found of a program, "" if all was well."""
    dog.context(name)
    drawn = random.Random(name)
    with dog.step("compiling"):
        case = Launches(op, name) if op in CASES else Attentions(name)
        case.refresh()
        case.launch()
        torch.cuda.synchronize()
    with dog.step("launches"):
        for number in range(launches):
            case.refresh()
            late(drawn, rank)
            case.launch()
            if number % 4 == 3:  # others follow each other without the host or NCCL between them
                case.check()
            if number % 100 == 99:
                torch.cuda.synchronize()
    with dog.step("replays of a graph"):
        replay: Any = captured(case.launch)
        for _ in range(launches // 10):
            case.refresh()
            late(drawn, rank)
            replay()
            case.check()
        torch.cuda.synchronize()
    dist.all_reduce(case.worst, op=dist.ReduceOp.MAX)
    worst = float(case.worst)
    if rank == 0:
        print(f"{name}: {launches} launches, {launches // 10} replays: largest difference {worst:.1e}", flush=True)
    return "" if worst < ALLOWED else f"{name}: off by {worst:.1e}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--launches", type=int, default=1000)
    parser.add_argument("--programs", default="", help="names of programs, with commas; default: all")
    parser.add_argument("--limit", type=int, default=240, help="seconds that all of it may take")
    args = parser.parse_args()
    rank = join(args.limit)
    torch.manual_seed(rank)
    dog = Watchdog(60.0, rank)
    failed = [
        text
        for op, names in {**CASES, "attention": tuple(ATTENTION)}.items()
        for name in names
        if name.split(":")[0] in (args.programs.split(",") if args.programs else name.split(":")[0])
        and (text := run(op, name, args.launches, dog, rank))
    ]
    print("\n".join(failed), end="", flush=True)
    sys.stdout.flush()
    os._exit(int(bool(failed)))


if __name__ == "__main__":
    main()
