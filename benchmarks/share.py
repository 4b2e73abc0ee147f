# pyright: basic
"""What one of many ranks does, between few GPUs: tensor-parallel products as one of eight computes and communicates.

    torchrun --nproc-per-node 2 benchmarks/share.py --of 8 --op ag_gemm,gemm_rs --shapes mlp-1 --out share.json

Programs of the library become those of two ranks or a few more (`shares.py`): each GPU multiplies, sends, receives and
waits for what one of `--of` ranks does. Beside them: the vendor's product of that size, and NCCL and the copy engine
for as many bytes. What links do when all peers are served at once, only a machine of as many GPUs can say.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
import torch.distributed as dist

import tilelink
from benchmarks import tp
from benchmarks.baselines import Builder, Problem, all_gather, reduce_scatter
from benchmarks.measure import Session, Variant, Watchdog
from benchmarks.shares import share, standing_for
from benchmarks.tables import shape_lines


class Share:
    """The tensors of one rank's share, refilled before each round, and what must come out.

    x, w: the operands, x in the ranks' distances where it has them. every_x, every_w: those of all GPUs.
    """

    def __init__(self, problem: Problem, session: Session) -> None:
        self.problem, self.session = problem, session
        self.dtype = {"bf16": torch.bfloat16, "f16": torch.float16}[problem.dtype]
        self.gathers = problem.op == "ag_gemm"
        self._generator = torch.Generator(device=session.device).manual_seed(1000 + session.rank)
        rows = problem.shard if self.gathers else problem.M
        self.x, self.w = self.empty(rows, problem.K), self.empty(problem.N, problem.K)
        gpus = session.ranks
        self.every_x, self.every_w = self.empty(gpus, rows, problem.K), self.empty(gpus, problem.N, problem.K)
        self.full = self.empty(problem.M, problem.K)
        self.product = self.empty(problem.M, problem.N)
        self.output = self.empty(problem.M if self.gathers else problem.shard, problem.N)
        others = (problem.ranks - 1) * problem.shard
        piece = -(-others // (gpus - 1))  # what a collective brings from each GPU
        self.sent = self.empty(piece if self.gathers else gpus * piece, problem.H)
        self.received = self.empty(gpus * piece if self.gathers else piece, problem.H)
        self.copied = self.empty(problem.ranks - 1, problem.shard, problem.H)

    def empty(self, *shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=self.dtype, device=self.session.device)

    def refresh(self) -> None:
        """New operands on all."""
        for one in (self.x, self.full, self.sent, self.copied):
            one.normal_(generator=self._generator)
        self.w.normal_(0, 0.02, generator=self._generator)
        all_gather(self.every_x.flatten(0, 1), self.x, group=self.session.group)
        all_gather(self.every_w.flatten(0, 1), self.w, group=self.session.group)

    def expected(self, found: torch.Tensor) -> torch.Tensor:
        """The result that is meant: whose rows, or which sums, come to a rank depends on the algorithm.

        Pushed by everybody, they come from those who stand for the others; round a ring, from all by turns.
        """
        own, gpus, ranks = self.session.rank, self.session.ranks, self.problem.ranks
        behind = [-n % ranks if self.gathers else n for n in range(ranks)]  # how far, whose n-th part is
        pushed, handed = [standing_for(away, gpus) for away in behind], behind
        made = [self._result([(own - away) % gpus for away in whose]) for whose in (pushed, handed)]
        return min(made, key=lambda one: float(torch.linalg.vector_norm(found.reshape(one.shape) - one)))

    def _result(self, whose: Sequence[int]) -> torch.Tensor:
        shard = self.problem.shard
        if self.gathers:
            return torch.cat([self.every_x[rank] @ self.every_w[self.session.rank].t() for rank in whose])
        parts = (
            (self.every_x[rank, n * shard :][:shard] @ self.every_w[rank].t()).float() for n, rank in enumerate(whose)
        )
        return sum(parts).to(self.dtype)  # type: ignore[union-attr]


def builders(one: Share, args: argparse.Namespace) -> Iterator[Builder]:
    """The rows of one problem."""
    group, wt = one.session.group, one.w.t()

    def collective() -> None:
        (all_gather if one.gathers else reduce_scatter)(one.received, one.sent, group=group)

    def pair() -> None:
        if one.gathers:
            collective()
        torch.mm(one.full, wt, out=one.product)
        if not one.gathers:
            collective()

    yield (
        "cuBLAS",
        "gemm",
        lambda: Variant(name="cuBLAS", kind="gemm", run=lambda: torch.mm(one.full, wt, out=one.product)),
    )
    yield "NCCL", "transfer", lambda: Variant(name="NCCL", kind="transfer", run=collective)
    yield "cuBLAS+NCCL", "pair", lambda: Variant(name="cuBLAS+NCCL", kind="pair", run=pair)
    yield "copy engine, push", "transfer", lambda: _copies(one)
    for choice in tp.choices(one.problem.op, args.schedules, args.file):
        yield from _ours(one, choice)


def _copies(one: Share) -> Variant:
    """As many bytes, a rank's at a time, by the copy engine."""
    from torch.distributed import _symmetric_memory as symmetric

    shape = one.copied.shape
    mine = symmetric.empty(*shape, dtype=one.dtype, device=one.session.device)
    handle = symmetric.rendezvous(mine, one.session.group)
    gpus, own = one.session.ranks, one.session.rank
    there = [handle.get_buffer((own + away) % gpus, shape, one.dtype) for away in range(gpus)]

    def run() -> torch.Tensor:
        for n, piece in enumerate(one.copied):
            there[standing_for(n + 1, gpus)][n].copy_(piece)
        return mine  # which is kept as long as others may write to it

    return Variant(name="copy engine, push", kind="transfer", run=run)


def _ours(one: Share, choice: tp.Choice) -> Iterator[Builder]:
    """A program of the library by one schedule, and the same with all signals set."""
    program, schedule = choice
    if schedule is None:
        return
    name, kernels = f"{program.name}:{schedule.name}", dict[str, Any]()

    def kernel() -> Any:
        if not kernels:
            gpus = one.session.ranks
            made, scheduled = share(program, schedule, one.problem.ranks, gpus)
            dims = {p.name: one.problem.dims[p.name] for p in program.params}
            kernels[name] = tilelink.compile(
                made, scheduled, ranks=gpus, dims=dims, dtype=one.problem.dtype, device="cuda", group=one.session.group
            )
        return kernels[name]

    def shaped(tensor: torch.Tensor, declared: str) -> torch.Tensor:
        many = len(program.tensor(declared).shape) == 3
        return tensor.view(one.problem.ranks, -1, tensor.shape[-1]) if many else tensor

    def whole() -> Variant:
        run, given = kernel(), {"x": shaped(one.x, "x"), "w": one.w}
        out, last = {"y": shaped(one.output, "y")}, list[torch.Tensor]()

        def settle(found: torch.Tensor) -> torch.Tensor:
            last[:] = [found]
            return found

        return Variant(
            name=name, kind="ours", run=lambda: run(given, out=out)["y"], outputs=(one.output,), settle=settle,
            expected=lambda: one.expected(last[0]), notes={"program": program.name, "schedule": str(schedule)},
        )  # fmt: skip

    def preset() -> Variant:
        run, given = kernel(), {"x": shaped(one.x, "x"), "w": one.w}
        return Variant(name=f"{name}, preset", kind="preset", run=lambda: run.preset(given))

    yield name, "ours", whole
    yield f"{name}, preset", "preset", preset


def measure(problem: Problem, session: Session, args: argparse.Namespace) -> dict[str, Any]:
    """All rows of one problem."""
    begin = time.perf_counter()
    session.watchdog.context(f"{problem.op} {problem.shape}")
    one = Share(problem, session)
    with session.watchdog.step("data"):
        one.refresh()
        session.meet()
    return tp.timed(problem, session, builders(one, args), one.refresh, args, begin)


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--of", type=int, default=8, help="ranks, of which each GPU does the share of one")
    parser.add_argument("--op", default="ag_gemm,gemm_rs")
    parser.add_argument("--shapes", default="all")
    parser.add_argument("--schedules", help=f"default: those whose names begin with {tp.CHOSEN}, and those of --file")
    parser.add_argument("--file", action="append", default=[], help="a .tl file with more programs and schedules")
    parser.add_argument("--dtype", choices=("bf16", "f16"), default="bf16")
    parser.add_argument("--samples", type=int, default=20)
    parser.add_argument("--warmups", type=int, default=5)
    parser.add_argument("--rate", type=float, default=385.0, help="best large peer-to-peer rate, GB/s, for the floor")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds that one step may take before all is ended")
    parser.add_argument("--commit", help="what to write for the commit where there is no git")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args(argv)
    if args.of < 2:
        parser.error(f"a share of {args.of} ranks is no share")
    if unknown := set(args.op.split(",")) - {"ag_gemm", "gemm_rs"}:
        parser.error(f"no operator {', '.join(sorted(unknown))}")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    args = arguments(argv)
    os.environ.update(tp.ENVIRONMENT)
    gpus = int(os.environ.get("WORLD_SIZE", "1"))
    if not torch.cuda.is_available() or not 2 <= gpus <= args.of:
        print(f"this needs 2 to {args.of} GPUs: torchrun --nproc-per-node 2 benchmarks/share.py ...", file=sys.stderr)
        return 2
    torch.cuda.set_device(local := int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl", device_id=torch.device("cuda", local))
    report = {
        "benchmark": "share", "op": args.op, "ranks": gpus, "dtype": args.dtype, "samples": args.samples,
        "warmups": args.warmups, "machine": tp.machine(), "commit": args.commit or tp.commit(),
        "command": tp.command(), "shapes": [], "ended_early": None,
        "note": f"Each of the GPUs does the share of one of {args.of} ranks (`benchmarks/share.py`)",
    }  # fmt: skip

    def write(ended_early: str | None = None) -> None:
        report["ended_early"] = ended_early
        if dist.get_rank() == 0 and args.out:
            args.out.write_text(json.dumps(report, indent=1) + "\n")

    return _all(args, report, write)


def _all(args: argparse.Namespace, report: dict[str, Any], write: Callable[..., None]) -> int:
    session = Session(dist.group.WORLD, Watchdog(args.limit, dist.get_rank(), on_end=write))  # type: ignore[arg-type]
    for op in args.op.split(","):
        for problem in tp.problems(op, args.shapes, args.of, args.dtype):
            found = measure(problem, session, args)
            gc.collect()
            report["shapes"].append(found)
            write()
            if session.rank == 0:
                print("\n".join(shape_lines(found)), flush=True)
    sys.stdout.flush()
    os._exit(0)  # an orderly shutdown could wait for ranks that failed


if __name__ == "__main__":
    sys.exit(main())
