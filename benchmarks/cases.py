# pyright: basic
"""What benchmarks that go through cases share: their options, kernels compiled beforehand, the ranks and the report."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from benchmarks import tp
from benchmarks.measure import Session, Watchdog
from tilelink import compiler
from tilelink.compiler import Module, library_module
from tilelink.settings import settings
from tilelink.target import target as named_target
from tilelink.tuning import prepare

Kernel = tuple[str, str, dict[str, int]]
"""A program of a file, the name of its schedule, and the sizes."""


def parser(description: str | None, *, samples: int) -> argparse.ArgumentParser:
    """Return a parser of the options that all have. samples: the default number of them."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--samples", type=int, default=samples)
    made.add_argument("--warmups", type=int, default=5)
    made.add_argument("--limit", type=float, default=60.0, help="seconds that one step may take before all is ended")
    made.add_argument("--workers", type=int, default=min(14, os.cpu_count() or 1), help="processes that compile")
    made.add_argument("--dry", type=int, help="only compile, for so many ranks of sm_90, without a GPU")
    made.add_argument("--commit", help="what to write for the commit where there is no git")
    made.add_argument("--out", type=Path)
    return made


def module_of(file: Path, program: str) -> Module:
    """Return the file, or that of the library, which has a program."""
    own = compiler.load(str(file))
    return own if any(one.name == program for one in own.programs) else library_module(program)


def prepared(file: Path, kernels: Sequence[Kernel], ranks: int, workers: int, machine: Any = None) -> None:
    """Compile kernels by a pool of processes. machine: None for sm_90."""
    begin = time.monotonic()
    points: list[prepare.Point] = []
    for name, schedule, dims in kernels:
        module = module_of(file, name)
        program = module.program(name)
        points.append(prepare.Point(
            program=program, schedule=module.schedule(schedule, program), dims=dims, dtype="bf16", ranks=ranks,
            target=machine or named_target("sm_90"), deadlines=(settings().deadline is not None,),
        ))  # fmt: skip
    failed = [reason for reason in prepare.prepare_all(points, workers=workers, seconds=90.0) if reason]
    print(f"{len(points) - len(failed)} of {len(points)} compiled in {time.monotonic() - begin:.0f} s", flush=True)
    print(*failed[:5], sep="\n", flush=True)


class Run:
    """The ranks of a run under torchrun, which measure one case after the other, and their report."""

    def __init__(
        self, name: str, file: Path, args: argparse.Namespace, kernels: Callable[[int], Sequence[Kernel]], **facts: Any
    ) -> None:
        """Start the ranks. Rank 0 compiles first. kernels: what a number of ranks measures. facts: for the report."""
        os.environ.update(tp.ENVIRONMENT)
        torch.cuda.set_device(local := int(os.environ["LOCAL_RANK"]))
        dist.init_process_group("nccl", device_id=torch.device("cuda", local))
        self._out, self.rank, ranks = args.out, dist.get_rank(), dist.get_world_size()
        if self.rank == 0:
            from tilelink.runtime.cuda.device import current_target

            prepared(file, kernels(ranks), ranks, args.workers, current_target())
        dist.barrier()
        self.found: dict[str, Any] = {
            "benchmark": name, "ranks": ranks, "samples": args.samples, "warmups": args.warmups, **facts,
            "machine": tp.machine(), "commit": args.commit or tp.commit(), "command": tp.command(),
            "schedules": file.read_text(), "cases": [], "ended_early": None,
        }  # fmt: skip
        watchdog = Watchdog(args.limit, self.rank, on_end=self.write)
        self.session = Session(dist.group.WORLD, watchdog)  # type: ignore[arg-type]

    def write(self, ended_early: str | None = None) -> None:
        """Write the report so far."""
        self.found["ended_early"] = ended_early
        if self.rank == 0 and self._out:
            self._out.write_text(json.dumps(self.found, indent=1) + "\n")

    def add(self, case: dict[str, Any], lines: Iterable[str]) -> None:
        """Add a case to the report, and print its lines."""
        self.found["cases"].append(case)
        self.write()
        if self.rank == 0:
            print("\n".join(lines), flush=True)

    def end(self) -> NoReturn:
        """End the process: an orderly shutdown could wait for ranks that failed."""
        sys.stdout.flush()
        os._exit(0)
