# pyright: basic
"""Gradients of attention by warps with roles, beside the vendor's, on one GPU.

    python benchmarks/attention_gradients.py --out attention_gradients.json

All kernels of a program of the library run one after the other: sums of rows, gradients of keys and values, and those
of the rows; the last two are timed alone, too. cuDNN's backward is as `tilelink.ops.attention` calls it. Both take
turns on the same data, after the data has left the L2 cache. Every result is compared with gradients that torch
computes in f32 for one head of keys, and with cuDNN's for all.
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

import tilelink
from benchmarks import one_gpu
from benchmarks.measure import ALLOWED, Watchdog, microseconds, relative_error
from benchmarks.roles import ALWAYS_SET, Alone
from tilelink import compiler
from tilelink.ops import torch_attention
from tilelink.target import Target
from tilelink.tuning import prepare

FILE = Path(tilelink.__file__).with_name("programs") / "attention_gradients.tl"
BLOCK = 128
VENDOR = "cuDNN"
RESULTS = ("dq", "dk", "dv")
FIRST = "64 keys a turn"
FORMS = {
    FIRST: ("rows tile(i=128, j=64)",),
    "128 keys a turn": ("rows tile(i=128, j=128)",),
    "6 buffers": ("columns roles(consumers=2, buffers=6)",),
}
"""Name -> what is said of stages in addition to the library's schedule."""
OF_64 = {"tiles of 256 rows": ("rows tile(i=256, j=64)",)}
"""The same of heads of 64 without a mask: sums of others do not fit registers, and blocks of others have fewer rows."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """Sizes: heads of queries, so many of them for each of keys, rows and keys, elements of a head."""

    heads: int
    groups: int
    rows: int
    depth: int
    causal: bool

    @property
    def program(self) -> str:
        return f"{'causal_' if self.causal else ''}attention_gradients"

    @property
    def dims(self) -> dict[str, Any]:
        blocks = {"N": self.rows // BLOCK, "B": BLOCK} if self.causal else {"M": self.rows, "S": self.rows}
        return {"H": self.heads // self.groups, "G": self.groups, "D": self.depth, "scale": self.depth**-0.5, **blocks}

    @property
    def forms(self) -> dict[str, tuple[str, ...]]:
        return FORMS | (OF_64 if self.depth == 64 and not self.causal else {})

    @property
    def work(self) -> float:
        """Return the floating-point operations of the pairs that count: five products of each."""
        pairs = self.rows * (self.rows + 1) / 2 if self.causal else float(self.rows**2)
        return 10 * self.heads * pairs * self.depth

    def __str__(self) -> str:
        return f"{self.program}: {self.heads} heads of {self.depth}, {self.groups} a head of keys, {self.rows} rows"


CASES = tuple(
    Case(heads=heads, groups=groups, rows=8192, depth=depth, causal=causal)
    for heads, groups, depth in ((16, 1, 128), (32, 1, 64), (16, 4, 128))
    for causal in (False, True)
)


def points(case: Case, machine: Target) -> dict[str, prepare.Point]:
    module = compiler.load(str(FILE))
    program = module.program(case.program)
    plain = module.schedule("gpu_roles", program)
    text = "\n".join(
        f"schedule form_{n} for {program.name} like gpu_roles:\n" + "\n".join(f"    {one}" for one in said) + "\n"
        for n, said in enumerate(case.forms.values())
    )
    every = compiler.parse(f"{program}\n{plain}\n{text}").schedules[1:]
    return {
        name: prepare.Point(
            program=program, schedule=schedule, dims=case.dims, dtype="bf16", ranks=1, target=machine,
            deadlines=(False,),
        )
        for name, schedule in zip(case.forms, every, strict=True)
    }  # fmt: skip


class Gradients:
    """The tensors of a case, cuDNN's gradients, and ours."""

    def __init__(self, case: Case) -> None:
        self.case = case
        keys = case.heads // case.groups

        def drawn(*shape: int) -> torch.Tensor:
            return torch.randn(shape, dtype=torch.bfloat16, device="cuda")

        self.q, self.do = (drawn(keys, case.groups, case.rows, case.depth) for _ in range(2))
        self.k, self.v = (drawn(keys, case.rows, case.depth) for _ in range(2))
        self.scale = case.depth**-0.5
        self.o, self.lse = torch_attention.attend(self.q, self.k, self.v, self.scale, case.causal)
        self.made = dict(zip(RESULTS, map(torch.empty_like, (self.q, self.k, self.v)), strict=True))

    def vendor(self) -> tuple[torch.Tensor, ...]:
        return torch_attention.gradients(
            self.q, self.k, self.v, self.o, self.lse, self.do, self.scale, self.case.causal
        )

    def wanted(self) -> list[torch.Tensor]:
        """Return the gradients of the first head of keys and of its queries, in f32."""
        q, k, v, do, o = (one[:1].float() for one in (self.q, self.k, self.v, self.do, self.o))
        dq, dk, dv = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
        for group in range(self.case.groups):
            scores = q[0, group] @ k[0].t() * self.scale
            if self.case.causal:
                at = torch.arange(self.case.rows, device="cuda")
                scores.masked_fill_(at[:, None] < at, float("-inf"))
            weights = torch.exp(scores - self.lse[0, group][:, None].float())
            dv[0] += weights.t() @ do[0, group]
            own = (do[0, group] * o[0, group]).sum(-1, keepdim=True)
            dscores = weights * (do[0, group] @ v[0].t() - own) * self.scale
            dq[0, group], dk[0] = dscores @ k[0], dk[0] + dscores.t() @ q[0, group]
        return [dq, dk, dv]

    def kernels(self, artifact: Any) -> dict[str, Alone]:
        """Return all kernels together, and those that multiply alone."""
        blocks = self.case.dims
        given = {"q": self.q, "do": self.do, "k": self.k, "v": self.v, "o": self.o, "lse": self.lse, **self.made}
        if self.case.causal:
            given = {
                name: one.unflatten(1 if name in ("k", "v", "dk", "dv") else 2, (blocks["N"], BLOCK))
                for name, one in given.items()
            }
        pad = torch.full((artifact.pad_size,), ALWAYS_SET, dtype=torch.int32, device="cuda")
        given["delta"] = torch.zeros((1, *artifact.tensor("delta").shape), dtype=torch.float32, device="cuda")
        stages = {"": None, ", columns": "columns", ", rows": "rows"}
        return {name: Alone(artifact, given, pad, stage) for name, stage in stages.items()}


def measure(case: Case, samples: int, machine: Target, flush: torch.Tensor, dog: Watchdog) -> dict[str, Any]:
    """Return the row of a case: microseconds of the vendor and of each form, and what failed."""
    dog.context(str(case))
    row: dict[str, Any] = {
        "case": str(case), "heads": case.heads, "groups": case.groups, "rows": case.rows, "depth": case.depth,
        "causal": case.causal, "work": case.work, "us": {}, "error": {}, "failure": {}, "kernels": {}, "schedules": {},
    }  # fmt: skip
    with dog.step("the gradients"):
        data = Gradients(case)
        runs: dict[str, Callable[[], Any]] = {VENDOR: data.vendor}
        want, vendor = data.wanted(), data.vendor()
        row["error"][VENDOR] = [
            float(relative_error(one[:1].float(), own)) for one, own in zip(vendor, want, strict=True)
        ]
    for name, point in points(case, machine).items():
        row["schedules"][name] = str(point.schedule)
        with dog.step(f"building {name}"):
            try:
                every = data.kernels(prepare.program_of(point))
                for one in data.made.values():
                    one.fill_(float("nan"))
                every[""]()
                torch.cuda.synchronize()
                made = list(data.made.values())
                errors = [float(relative_error(one[:1].float(), own)) for one, own in zip(made, want, strict=True)]
                errors += [float(relative_error(a.float(), b.float())) for a, b in zip(made, vendor, strict=True)]
                row["error"][name] = errors
                row["kernels"][name] = {
                    stage.removeprefix(", "): {
                        "registers": getattr(one.function.compiled, "n_regs", None),
                        "spills": getattr(one.function.compiled, "n_spills", None),
                        "shared": one.function.compiled.metadata.shared,
                    }
                    for stage, one in every.items()
                    if stage
                }
                if all(error < ALLOWED for error in errors):
                    runs |= {name + stage: one for stage, one in every.items()}
                else:
                    row["failure"][name] = f"gradients are off by {', '.join(f'{error:.1e}' for error in errors)}"
            except Exception as failure:
                row["failure"][name] = f"{type(failure).__name__}: {failure}"[:400]
    with dog.step("timing"):
        seen = microseconds(runs, samples, flush)
    row["us"] = {name: round(statistics.median(times), 1) for name, times in seen.items()}
    row["samples"] = {name: [round(one, 1) for one in times] for name, times in seen.items()}
    return row


def lines(row: dict[str, Any]) -> Iterator[str]:
    yield row["case"]
    base = row["us"].get(VENDOR)
    for name, took in row["us"].items():
        part = {", columns": 0.8, ", rows": 0.6}.get(name[name.find(",") :] if "," in name else "", 1.0)
        ratio = f"{base / took:6.3f} x" if base and part == 1.0 else " " * 8
        worst = max(row["error"].get(name, [math.nan]))
        yield f"    {took:9.1f} us  {part * row['work'] / took / 1e6:6.0f} TFLOP/s  {ratio}  {name}  {worst:.1e}"
    for name, failure in row["failure"].items():
        yield f"    failed: {name}: {failure}"


def table(report: dict[str, Any], name: str) -> list[str]:
    """Return the section of a report in docs/results.md: whole programs."""
    machine = report["machine"]
    made = [
        f"## {name}", "",
        f"Gradients of attention on one {machine['gpu']}, all kernels: us, TFLOP/s of the pairs that count, times "
        f"cuDNN's speed, and the largest difference from torch's in f32, relative to the largest element; medians of "
        f"{report['samples']} turns; driver {machine['driver']}, torch {machine['torch']}, triton {machine['triton']}. "
        f"`tilelink/programs/attention_gradients.tl` of commit {report['commit'][:7]}.", "",
        "| case | form | us | TFLOP/s | x cuDNN | difference |", "| --- | --- | ---: | ---: | ---: | ---: |",
    ]  # fmt: skip
    for row in report["rows"]:
        base = row["us"].get(VENDOR)
        for form, took in row["us"].items():
            if "," not in form:
                ratio = f"{base / took:.3f}" if base else "-"
                worst = max(row["error"].get(form, [math.nan]))
                rate = row["work"] / took / 1e6
                made.append(f"| {row['case']} | {form} | {took:.1f} | {rate:.0f} | {ratio} | {worst:.1e} |")
    return [*made, ""]


def main(argv: Sequence[str] | None = None) -> int:
    args = one_gpu.parser(__doc__, samples=20, seconds=70.0, prepare=50.0).parse_args(argv)
    every = [CASES[int(n)] for n in args.cases.split(",")] if args.cases else list(CASES)
    machine = one_gpu.machine(args.dry)
    wanted = [(case, name, point) for case in every for name, point in points(case, machine).items()]
    run = one_gpu.Run("attention gradients", args, wanted)
    if args.dry:
        return 0
    run.each(every, lambda case: measure(case, args.samples, machine, run.flush, run.dog), lines)
    run.end()


if __name__ == "__main__":
    sys.exit(main())
