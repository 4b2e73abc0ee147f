# pyright: basic
"""Attention by warps with roles, against the vendor's and against the same program without roles, on one GPU.

    python benchmarks/attention.py --out attention.json

Each kernel is that of rank 0 of a program of `attention.tl`, with all its signals set: it waits, and nothing is
transferred. Kernels take turns on the same data, after the data has left the L2 cache, because a GPU at its power limit
slows down what comes later. Every result is compared with cuDNN's, or with one in f32 where cuDNN has none.
"""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from benchmarks import one_gpu
from benchmarks.measure import ALLOWED, Watchdog, microseconds, relative_error
from benchmarks.roles import ALWAYS_SET, Alone
from tilelink import compiler
from tilelink.artifact import Artifact
from tilelink.ir.program import Program
from tilelink.scheduling.schedule import Schedule
from tilelink.target import Target
from tilelink.tuning import prepare

FILE = Path(__file__).with_suffix(".tl")
WITHOUT = "without roles"
PLAIN = "attn roles off, tile(i=128, j=64), num_warps 8, num_stages 3"
PROGRAMS = 128
"""Programs of causal attention, of which each has as many pairs of blocks."""
ROWS_AT_ONCE = 1024
"""Rows of a result in f32 that are computed together."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A program of `attention.tl` with its sizes on so many ranks, of which the kernel of rank 0 runs.

    forms: name -> what is said of the stage in addition to the schedule. own: columns of keys that a row sees on
    average, None for all.
    """

    program: str
    ranks: int
    heads: int
    rows: int
    depth: int
    forms: tuple[tuple[str, str], ...]
    window: int = 0

    @property
    def causal(self) -> bool:
        return self.program.startswith("causal_attention")

    @property
    def keys(self) -> int:
        return self.rows * self.ranks

    @property
    def block(self) -> int:
        return 128

    @property
    def dims(self) -> dict[str, Any]:
        scale = 1 / math.sqrt(self.depth)
        blocks = self.rows // self.block
        match self.program:
            case "causal_attention" | "causal_attention_in_pairs":
                sizes = {"H": self.heads, "NB": blocks, "B": self.block, "T": blocks * self.ranks}
                if self.program != "causal_attention":
                    sizes |= {"U": self.heads * blocks // 2 // PROGRAMS, "P": PROGRAMS}
            case "window_attention":
                sizes = {"H": self.heads, "NB": blocks, "B": self.block, "W": self.window // self.block}
            case _:
                sizes = {"H": self.heads, "S": self.rows}
        return {**sizes, "D": self.depth, "scale": scale}

    @property
    def work(self) -> float:
        """Return the floating-point operations of the pairs that count."""
        pairs = float(self.rows * self.keys)
        if self.causal:
            pairs = self.rows * (self.rows + 1) / 2
        elif self.window:
            pairs = self.rows * self.window - self.window * (self.window - 1) / 2
        return 4 * self.heads * pairs * self.depth

    def __str__(self) -> str:
        return f"{self.program}: {self.heads} heads of {self.depth}, {self.rows} rows, {self.keys} keys"


TWO = ("2 consumers", "roles(consumers=2, buffers=4)")
ONE_IN_FLIGHT = ("1 product in flight", "roles(consumers=2, buffers=4, in_flight=1)")
THREE = ("3 consumers", "tile(i=192, j=128), roles(consumers=3, buffers=4, in_flight=1)")
LESS = ("2 consumers, 64 keys a turn", "tile(i=128, j=64), roles(consumers=2, buffers=4)")
DEEPER = ("2 consumers, 6 buffers", "roles(consumers=2, buffers=6)")
NONE = (WITHOUT, "")
CASES = (
    Case(program="attention", ranks=2, heads=16, rows=8192, depth=128, forms=(TWO, ONE_IN_FLIGHT, NONE)),
    Case(program="attention", ranks=2, heads=16, rows=12288, depth=128, forms=(TWO, THREE)),
    Case(program="attention", ranks=2, heads=16, rows=4096, depth=128, forms=(TWO,)),
    Case(program="attention", ranks=2, heads=32, rows=8192, depth=64, forms=(TWO, DEEPER)),
    Case(program="attention", ranks=2, heads=8, rows=8192, depth=256, forms=(LESS,)),
    Case(program="causal_attention", ranks=1, heads=16, rows=16384, depth=128, forms=(TWO, NONE)),
    Case(program="causal_attention", ranks=1, heads=16, rows=8192, depth=128, forms=(TWO,)),
    Case(program="causal_attention", ranks=1, heads=32, rows=16384, depth=64, forms=(TWO,)),
    Case(program="causal_attention", ranks=1, heads=8, rows=16384, depth=256, forms=(LESS,)),
    Case(program="causal_attention_in_pairs", ranks=1, heads=16, rows=16384, depth=128, forms=(TWO,)),
    Case(program="causal_attention_in_pairs", ranks=1, heads=16, rows=8192, depth=128, forms=(TWO,)),
    Case(program="causal_attention_in_pairs", ranks=1, heads=32, rows=16384, depth=64, forms=(TWO,)),
    Case(program="window_attention", ranks=1, heads=16, rows=16384, depth=128, window=2048, forms=(TWO, NONE)),
    Case(program="squared_attention", ranks=1, heads=16, rows=8192, depth=128, forms=(TWO, NONE)),
)


def schedules(case: Case) -> tuple[Program, dict[str, Schedule]]:
    """Return the program of a case, and its schedule in each form."""
    module = compiler.load(str(FILE))
    program = module.program(case.program)
    plain = module.schedule("h200_roles", program)
    without = f"{PLAIN}{', program_per_tile off' if 'program_per_tile' in str(plain) else ''}"
    text = "\n".join(
        f"schedule form_{n} for {program.name} like h200_roles:\n    {f'attn {more}' if more else without}\n"
        for n, (_, more) in enumerate(case.forms)
    )
    parsed = compiler.parse(f"{program}\n{plain}\n{text}")
    return program, dict(zip((name for name, _ in case.forms), parsed.schedules[1:], strict=True))


def points(case: Case, machine: Target) -> dict[str, prepare.Point]:
    program, every = schedules(case)
    return {
        name: prepare.Point(
            program=program, schedule=schedule, dims=case.dims, dtype="bf16", ranks=case.ranks, target=machine,
            deadlines=(False,),
        )
        for name, schedule in every.items()
    }  # fmt: skip


class Attention:
    """The tensors of a case, and its kernels."""

    def __init__(self, case: Case) -> None:
        self.case = case
        shape = (case.heads, case.rows, case.depth)
        self.q = torch.randn(shape, dtype=torch.bfloat16, device="cuda")
        self.k, self.v = (torch.randn((case.ranks, *shape), dtype=torch.bfloat16, device="cuda") for _ in range(2))
        self.keys, self.values = (
            x.transpose(0, 1).reshape(case.heads, case.keys, case.depth).contiguous() for x in (self.k, self.v)
        )
        self.o = torch.empty_like(self.q)

    def vendor(self) -> torch.Tensor:
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            made = scaled_dot_product_attention(
                self.q[None], self.keys[None], self.values[None], is_causal=self.case.causal
            )
        return made[0]

    @property
    def has_vendor(self) -> bool:
        return self.case.program == "attention" or self.case.causal

    def wanted(self) -> torch.Tensor:
        """Return the result: the vendor's, or one in f32."""
        if self.has_vendor:
            return self.vendor()
        case, made = self.case, torch.empty_like(self.q, dtype=torch.float32)
        columns = torch.arange(case.keys, device="cuda")
        for head in range(case.heads):
            for first in range(0, case.rows, ROWS_AT_ONCE):
                rows = slice(first, first + ROWS_AT_ONCE)
                scores = self.q[head, rows].float() @ self.keys[head].float().t() / math.sqrt(case.depth)
                if case.window:
                    at = columns[rows, None]
                    scores.masked_fill_((columns > at) | (columns <= at - case.window), float("-inf"))
                    weights = scores.softmax(-1)
                else:
                    weights = scores * scores
                made[head, rows] = weights @ self.values[head].float()
        return made

    def kernel(self, artifact: Artifact) -> Alone:
        pad = torch.full((artifact.pad_size,), ALWAYS_SET, dtype=torch.int32, device="cuda")
        given = {"q": self.q, "o": self.o}
        if self.has_vendor:
            buffers = artifact.tensor("ks").buffers  # launch 1 uses the first one
            of = (self.k, self.v) if self.case.program == "attention" else (self.keys, self.values)
            given |= {
                name: torch.stack([x] + [torch.zeros_like(x)] * (buffers - 1))
                for name, x in zip(("ks", "vs"), of, strict=True)
            }
        else:
            given |= {"k": self.keys, "v": self.values}
        return Alone(artifact, given, pad, "attn")


def measure(case: Case, samples: int, machine: Target, flush: torch.Tensor, dog: Watchdog) -> dict[str, Any]:
    """Return the row of a case: microseconds of the vendor and of each form, and what failed."""
    dog.context(str(case))
    row: dict[str, Any] = {
        "case": str(case), "program": case.program, "ranks": case.ranks, "heads": case.heads, "rows": case.rows,
        "keys": case.keys, "depth": case.depth, "window": case.window, "work": case.work, "us": {}, "error": {},
        "failure": {}, "kernels": {}, "schedules": {},
    }  # fmt: skip
    with dog.step("the result"):
        data = Attention(case)
        runs: dict[str, Callable[[], Any]] = {"cuDNN": data.vendor} if data.has_vendor else {}
        want = data.wanted().float()
    for name, point in points(case, machine).items():
        row["schedules"][name] = str(point.schedule)
        with dog.step(f"building {name}"):
            try:
                kernel = data.kernel(prepare.program_of(point))
                data.o.fill_(float("nan"))
                kernel()
                torch.cuda.synchronize()
                error = float(relative_error(data.o.float(), want))
                compiled = kernel.function.compiled
                row["error"][name] = error
                row["kernels"][name] = {
                    "registers": getattr(compiled, "n_regs", None), "spills": getattr(compiled, "n_spills", None),
                    "shared": compiled.metadata.shared,
                }  # fmt: skip
                if error < ALLOWED:
                    runs[name] = kernel
                else:
                    row["failure"][name] = f"the result is off by {error:.2e}"
            except Exception as failure:
                row["failure"][name] = f"{type(failure).__name__}: {failure}"[:400]
    with dog.step("timing"):
        seen = microseconds(runs, samples, flush)
    row["us"] = {name: round(statistics.median(times), 1) for name, times in seen.items()}
    row["samples"] = {name: [round(one, 1) for one in times] for name, times in seen.items()}
    return row


def lines(row: dict[str, Any]) -> Iterator[str]:
    yield row["case"]
    base = row["us"].get("cuDNN") or row["us"].get(WITHOUT)
    for name, took in row["us"].items():
        ratio = f"{base / took:6.3f} x" if base else ""
        made = row["kernels"].get(name, "")
        yield f"    {took:9.1f} us  {row['work'] / took / 1e6:6.0f} TFLOP/s  {ratio}  {name}  {made}"
    for name, failure in row["failure"].items():
        yield f"    failed: {name}: {failure}"


def table(report: dict[str, Any], name: str) -> list[str]:
    """Return the section of a report in docs/results.md."""
    machine, rows = report["machine"], report["rows"]
    made = [
        f"## {name}",
        "",
        f"Attention as rank 0 computes it, with all signals set, on one {machine['gpu']}: TFLOP/s of the pairs that "
        f"count, and times cuDNN's speed, medians of {report['samples']} turns; driver {machine['driver']}, torch "
        f"{machine['torch']}, triton {machine['triton']}. Programs and schedules are in `benchmarks/attention.tl` of "
        f"commit {report['commit'][:7]}.",
        "",
        "| program | heads | head dimension | rows x keys | form | TFLOP/s | x cuDNN |",
        "| --- | ---: | ---: | ---: | --- | ---: | ---: |",
    ]
    for row in rows:
        base = row["us"].get("cuDNN")
        for form, took in row["us"].items():
            ratio = f"{base / took:.3f}" if base else "-"
            made.append(
                f"| {row['program']} | {row['heads']} | {row['depth']} | {row['rows']} x {row['keys']} | {form} | "
                f"{row['work'] / took / 1e6:.0f} | {ratio} |"
            )
    return [*made, ""]


def main(argv: Sequence[str] | None = None) -> int:
    args = one_gpu.parser(__doc__, samples=9, seconds=190.0, prepare=60.0).parse_args(argv)
    every = [CASES[int(n)] for n in args.cases.split(",")] if args.cases else list(CASES)
    machine = one_gpu.machine(args.dry)
    wanted = [(case, name, point) for case in every for name, point in points(case, machine).items()]
    run = one_gpu.Run("attention", args, wanted)
    if args.dry:
        return 0
    run.each(every, lambda case: measure(case, args.samples, machine, run.flush, run.dog), lines)
    run.end()


if __name__ == "__main__":
    sys.exit(main())
