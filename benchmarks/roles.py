# pyright: basic
"""Products whose warps have roles beside the same products without, and the vendor's, on one GPU.

    python benchmarks/roles.py --shapes all --of 2,8 --op ag_gemm,gemm_rs --out roles.json

Each kernel is the main kernel of a library program as one of so many ranks runs it, with all signals set that others
give: it waits and notifies, and nothing is transferred. Counters of what a kernel gives itself, such as parts of a
product, are cleared before each launch, which is timed with it. Kernels take turns on the same fresh data, after the
data has left the L2 cache. The result of every kernel is compared with the vendor's. Then the rows of a product arrive
while it runs.

    python benchmarks/roles.py --op grouped --shapes qwen3:8192:uniform,mixtral:128:zipf --out grouped.json

measures both products of a layer of experts, LAYER:TOKENS:ROUTING, by the programs of benchmarks/groups.tl: rows lie in
the order of the experts, or an index tensor finds them among those of two ranks, or a kernel packs them before the
product and is timed with it. The vendor's is `torch._grouped_mm` of rows in order. --op grouped_f8: of 8-bit floats
with scales for blocks of 128; the vendor's is then one product of as many rows, cuBLAS's with the same scales, and with
--folder (benchmarks/expert_libraries.py) DeepGEMM's product of groups is beside it.
"""

from __future__ import annotations

import argparse
import math
import re
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from benchmarks import expert_libraries, one_gpu, tp
from benchmarks.experts import LAYERS, by_expert, drawn
from benchmarks.measure import ALLOWED, Watchdog, microseconds, relative_error
from tilelink import compiler
from tilelink.artifact import (
    Artifact,
    Boxes,
    DebugBlockPointer,
    EpochPointer,
    HandshakePointer,
    KernelSpec,
    Number,
    NumPrograms,
    Parameter,
    PeersPointer,
    Rank,
    SignalsPointer,
    SignalTablePointer,
    TensorSpec,
    ThresholdsPointer,
    TileCounterPointer,
)
from tilelink.generated import file_of, load_module
from tilelink.ir.program import Program
from tilelink.lowering.clauses.order import ORDER
from tilelink.runtime.cuda.functions import Function
from tilelink.runtime.cuda.handles import SIDE_PRIORITY
from tilelink.runtime.cuda.tables import thresholds
from tilelink.runtime.dtypes import dtype_of
from tilelink.runtime.order import kernels_in_order
from tilelink.scheduling.schedule import Schedule
from tilelink.target import Target
from tilelink.tuning import prepare

OPERATORS = {
    "ag_gemm": ("ag_gemm", "ag_gemm", "h200"),
    "gemm_rs": ("gemm_rs", "gemm_rs_scatter", "h200"),
    "ag_gemm_gated": ("ag_gemm_gated", "ag_gemm_gated", "h200"),
    "ag_gemm_f8": ("ag_gemm_f8", "ag_gemm_f8_rows", "h200"),
    "ag_gemm_f8_quantised": ("ag_gemm_f8", "ag_gemm_f8_quantised", "h200"),
}
"""Operator -> the file, the program, and the schedule without roles. The stage `gemm` multiplies."""
GATED = "ag_gemm_gated"
"""The operator that multiplies twice: silu of the one product times the other. The vendor's are one product of both
weights, and then torch's functions."""
NARROW = ("ag_gemm_f8", "ag_gemm_f8_quantised")
"""Operators of 8-bit floats with a scale for each row of both operands. The first quantises rows on 16 SMs while the
others multiply. Rows of the second come quantised, and all SMs multiply. The vendor's product is `torch._scaled_mm`,
which adds up in f32 as we do; its fast accumulation, with fewer bits, and the product in bf16 are timed beside it."""
FORMS = {
    "4 buffers": "roles(consumers=2, buffers=4)",
    "halved tail": "roles(consumers=2, buffers=4), halve_tail",
    "halved tail, bands of 16": "roles(consumers=2, buffers=4), halve_tail, {bands of 16}",
    "halved tail, 1 in flight": "roles(consumers=2, buffers=4, in_flight=1), halve_tail",
    "split-K tail": "roles(consumers=2, buffers=4), split_k_tail 8",
}
"""Name -> what is said of the stage `gemm` in addition, in place of what is for programs without roles.

{bands of n} is its order with groups of n tiles.
"""
NARROW_FORMS = {
    "256 elements a buffer": "tile(i=128, j=128, k=256), num_stages off, roles(consumers=2, buffers=3)",
    "256 elements a buffer, halved tail": (
        "tile(i=128, j=128, k=256), num_stages off, roles(consumers=2, buffers=3), halve_tail"
    ),
    "256 elements a buffer, bands of 4": (
        "tile(i=128, j=128, k=256), num_stages off, roles(consumers=2, buffers=3), {bands of 4}"
    ),
    "256 elements a buffer, halved tail, bands of 4": (
        "tile(i=128, j=128, k=256), num_stages off, roles(consumers=2, buffers=3), halve_tail, {bands of 4}"
    ),
    "128 elements a buffer": "num_stages off, roles(consumers=2, buffers=6)",
}
"""The same of products of 8-bit floats."""
GROUPS_OF = GROUPED, GROUPED_NARROW = "grouped", "grouped_f8"
GROUPS = Path(__file__).with_name("groups.tl")
ROWS_OF_SCALES = 128
"""Rows of weights, and elements of a row, with a scale of their own. Experts have multiples of so many rows then."""
MANY = 1024
"""Tokens from which the schedules of groups.tl are measured whose names do not begin with few."""
SIDES = ("up", "down")
"""The products of a layer of experts: gate and up together, and down."""
ALWAYS_SET = 2**30
"""Value of all counters when no wait is to wait."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A product: the operator's name, that of its shape, the number of ranks, and the sizes."""

    op: str
    shape: str
    ranks: int
    M: int
    N: int
    K: int

    @property
    def dims(self) -> dict[str, int]:
        return {"Ms": self.M // self.ranks, "N": self.N, "K": self.K}

    @property
    def flops(self) -> float:
        return 2.0 * self.M * self.N * self.K * (2 if self.op == GATED else 1)

    def __str__(self) -> str:
        return f"{self.op} {self.shape} of {self.ranks}: {self.M} x {self.N} x {self.K}"

    @property
    def vendor(self) -> str:
        return "cuBLAS"

    def points(self, machine: Target, wanted: Sequence[str]) -> dict[str, prepare.Point]:
        """Return the schedule without roles and with each form, by name. wanted: names of forms, or all."""
        program, every = schedules(self.op, forms_of(self.op, wanted))
        return {
            name: _point(program, schedule, self.dims, self.ranks, machine) for name, schedule in every.items()
        }  # fmt: skip

    def data(self) -> Product:
        return Product(self)


@dataclass(frozen=True, kw_only=True)
class GroupedCase(Case):
    """A product of rows for each of E experts; M: rows of all, each token as often as it has experts."""

    tokens: int
    routing: str
    E: int

    @property
    def vendor(self) -> str:
        return "torch._grouped_mm" if self.op == GROUPED else "cuBLAS, one group"

    @property
    def gathers(self) -> bool:
        """Whether rows are of tokens; what is between the products is in order."""
        return self.shape.endswith(SIDES[0])

    def points(self, machine: Target, wanted: Sequence[str]) -> dict[str, prepare.Point]:
        module, found = compiler.load(str(GROUPS)), dict[str, prepare.Point]()
        for schedule in module.schedules:
            name = f"{schedule.program}:{schedule.name}"
            if schedule.program.endswith("f8") != (self.op == GROUPED_NARROW):
                continue
            dims, ranks = {"T": self.M, "N": self.N, "K": self.K, "E": self.E}, 1
            if self.op == GROUPED_NARROW:
                n, k = self.N // ROWS_OF_SCALES, self.K // ROWS_OF_SCALES
                dims = {"T": self.M, "E": self.E, "NB": n, "KB": k, "B": ROWS_OF_SCALES}
            elif "in_order" not in schedule.program and not self.gathers:
                continue
            if "gathered" in schedule.program:
                dims["M"] = self.tokens
            elif schedule.program in ("awaited", "packed"):
                dims["Ms"], ranks = self.tokens // 2, 2
            if schedule.name.startswith("few") == (self.tokens < MANY) and (not wanted or name in wanted):
                found[name] = _point(module.program(schedule.program), schedule, dims, ranks, machine)
        return found

    def data(self) -> Groups:
        return Groups(self) if self.op == GROUPED else NarrowGroups(self)

    def __str__(self) -> str:
        return f"{self.shape}, {self.tokens} tokens, {self.routing}: {self.M} x {self.N} x {self.K}"


def _point(program: Program, schedule: Schedule, dims: dict[str, int], ranks: int, machine: Target) -> prepare.Point:
    return prepare.Point(
        program=program, schedule=schedule, dims=dims, dtype="bf16", ranks=ranks, target=machine, deadlines=(False,)
    )


LATE = Case(op="ag_gemm", shape="late rows", ranks=8, M=8192, N=1792, K=4096)


def cases(ops: Sequence[str], shapes: str, ranks: Sequence[int]) -> Iterator[Case]:
    for op in ops:
        if op in GROUPS_OF:
            yield from grouped_cases(op, shapes)
            continue
        for of in ranks:
            for problem in tp.problems("ag_gemm" if op in (GATED, *NARROW) else op, shapes, of):
                yield Case(op=op, shape=problem.shape, ranks=of, M=problem.M, N=problem.N, K=problem.K)


def grouped_cases(op: str, shapes: str) -> Iterator[Case]:
    for name in shapes.split(","):
        layer, tokens, routing = name.split(":")
        experts, chosen, hidden, inner = LAYERS[layer]
        for side, (N, K) in zip(SIDES, ((2 * inner, hidden), (hidden, inner)), strict=True):
            yield GroupedCase(
                op=op, shape=f"{layer} {side}", ranks=1, M=int(tokens) * chosen, N=N, K=K, E=experts,
                tokens=int(tokens), routing=routing,
            )  # fmt: skip


def forms_of(op: str, wanted: Sequence[str]) -> dict[str, str]:
    """Return the forms of an operator: those of these names, or all."""
    every = NARROW_FORMS if op in NARROW else FORMS
    return {name: form for name, form in every.items() if name in (wanted or every)}


def schedules(op: str, forms: Mapping[str, str]) -> tuple[Program, dict[str, Schedule]]:
    """Return the program of an operator, and its schedule without roles and with each form of roles."""
    file, of, name = OPERATORS[op]
    module = compiler.load(file)
    program = module.program(of)
    plain = module.schedule(name, program)
    order = str(plain.stage("gemm")[ORDER])
    divided = "split_k_tail" in str(plain)
    bands = {f"bands of {n}": re.sub(r"group\(i, \d+\)", f"group(i, {n})", order) for n in (4, 16)}
    text = "\n".join(
        f"schedule form_{n} for {program.name} like {name}:\n"
        f"    gemm {form.format(**bands)}{', flatten off' if 'flatten' in str(plain) else ''}"
        f"{', split_k_tail off' if divided and 'split_k_tail' not in form else ''}\n"
        for n, form in enumerate(forms.values())
    )
    parsed = compiler.parse(f"{program}\n{plain}\n{text}")
    return program, {"plain": plain, **dict(zip(forms, parsed.schedules[1:], strict=True))}


class Alone:
    """Kernels of a program on one GPU, as a rank runs them, without peers and without a handshake."""

    def __init__(
        self, artifact: Artifact, given: dict[str, torch.Tensor], pad: torch.Tensor, name: str | None = "gemm", *,
        rank: int = 0, copies: Mapping[str, Sequence[torch.Tensor]] | None = None,
    ) -> None:  # fmt: skip
        """given: tensors by name, all buffers. pad: the counters. name: of the kernel; None: all kernels of the rank.

        copies: what every rank has of each symmetric tensor. None: peers are not accessed.
        """
        self.artifact, self.given, self.pad, self.rank = artifact, given, pad, rank
        self._copies = copies or {}
        self._table = torch.full((artifact.ranks,), pad.data_ptr(), dtype=torch.int64, device="cuda")
        self._epoch = torch.tensor([1, 0, 0, 0], dtype=torch.int64, device="cuda")
        self._edge = torch.zeros(16, dtype=torch.int64, device="cuda")
        by_engine = {signal for one in artifact.copy_programs for signal in one.notifies}
        self._own = [
            pad[grid.base : grid.base + grid.count * grid.buffers]
            for grid in artifact.grids
            if not artifact.tensor(grid.tensor).symmetric and grid.signal not in by_engine
        ]
        module = load_module(file_of(artifact.source))
        self.kernels = [one for one in kernels_in_order(artifact.kernels) if name in (None, one.name)]
        beside = {one.stream for one in self.kernels} - {"main"} if name is None else ()
        self._sides = {stream: torch.cuda.Stream(priority=SIDE_PRIORITY) for stream in beside}
        self.functions = [
            (self._sides.get(one.stream), Function(one, getattr(module, one.name), self._argument, artifact))
            for one in self.kernels
        ]
        self.function = self.functions[0][1]

    def _argument(self, kernel: KernelSpec, parameter: Parameter) -> Any:
        match parameter:
            case NumPrograms():
                return kernel.programs
            case Rank():
                return self.rank
            case Number():
                return 0
            case SignalsPointer():
                return self.pad
            case SignalTablePointer():
                return self._table
            case EpochPointer():
                return self._epoch
            case HandshakePointer():
                return self._edge
            case DebugBlockPointer():
                return None
            case TileCounterPointer():
                return torch.zeros(1, dtype=torch.int32, device="cuda")
            case ThresholdsPointer(tensor=name, kind=kind):
                return thresholds(self.artifact.grid_of((name, kind)), self.rank, torch.device("cuda"))
            case PeersPointer(tensor=name) if name in self._copies:
                places = [one.data_ptr() for one in self._copies[name]]
                return torch.tensor(places, dtype=torch.int64, device="cuda")
            case PeersPointer():
                return self._table
            case Boxes(tensor=name, owner=int(owner)) if name in self._copies:
                return self._copies[name][owner]
        tensor = self.artifact.tensor(parameter.tensor)
        if tensor.name not in self.given:
            buffers = tensor.buffers if tensor.symmetric else 1
            self.given[tensor.name] = torch.zeros((buffers, *tensor.shape), dtype=dtype_of(tensor), device="cuda")
        return self.given[tensor.name]

    def clear(self) -> None:
        """Set the counters back that the kernels themselves count up."""
        for counters in self._own:
            counters.zero_()

    def launch(self) -> None:
        """Launch the kernels on the current stream, and beside it."""
        here = torch.cuda.current_stream()
        for side in self._sides.values():
            side.wait_stream(here)
        for side, function in self.functions:
            function((side or here).cuda_stream, {})
        for side in self._sides.values():
            here.wait_stream(side)

    def __call__(self) -> None:
        self.clear()
        self.launch()


class OneAfterAnother:
    """Kernels of a program that share its tensors."""

    def __init__(self, kernels: Sequence[Alone]) -> None:
        self.kernels, self.function = kernels, kernels[-1].function

    def __call__(self) -> None:
        for kernel in self.kernels:
            kernel()


class Product:
    """The tensors of a case, and its kernels."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.given: dict[str, torch.Tensor] = {}
        weights = 2 if case.op == GATED else 1
        self.dtype = torch.float8_e4m3fn if case.op in NARROW else torch.bfloat16
        self.w = torch.empty(weights * case.N, case.K, dtype=torch.bfloat16, device="cuda")
        self.y = torch.empty(case.M, case.N, dtype=torch.bfloat16, device="cuda")
        self.want = torch.empty_like(self.y)
        self.left = "x" if case.op == "gemm_rs" else "xs"
        self.result = "c" if case.op == "gemm_rs" else "y"

    def refresh(self) -> None:
        self.w.normal_(0, 0.02)
        if self.case.op not in NARROW:
            self.x.normal_()
            return
        self.wide = torch.randn(self.case.M, self.case.K, dtype=torch.bfloat16, device="cuda")
        for narrow, scale, wide in (
            (self.x, self.scales[0].view(-1), self.wide),
            (self.given["w"], self.given["w_scale"], self.w),
        ):
            scale.copy_(wide.abs().amax(1).float() / torch.finfo(self.dtype).max)
            narrow.copy_((wide / scale[:, None]).to(self.dtype))

    @property
    def scales(self) -> torch.Tensor:
        return self.given["scales"]

    def scaled(self, *, fast: bool = False) -> None:
        """Multiply 8-bit floats as the vendor does. fast: with fewer bits than f32 in the sums."""
        scales = self.scales[0].view(-1, 1), self.given["w_scale"].view(1, -1)
        torch._scaled_mm(  # pyright: ignore[reportPrivateImportUsage]
            self.x, self.given["w"].t(), *scales, out_dtype=torch.bfloat16, use_fast_accum=fast, out=self.want
        )

    def others(self) -> dict[str, Callable[[], Any]]:
        """Return what else is timed beside the vendor's product."""
        if self.case.op not in NARROW:
            return {}
        return {
            "cuBLAS, fast accumulation": lambda: self.scaled(fast=True),
            "cuBLAS, bf16": lambda: torch.mm(self.wide, self.w.t(), out=self.want),
        }

    def expect(self) -> None:
        """Set the wanted result of the data."""
        self.vendor()

    def vendor(self) -> None:
        if self.case.op in NARROW:
            self.scaled()
        elif self.case.op == GATED:
            gate, up = torch.mm(self.x, self.w.t()).chunk(2, dim=1)
            torch.mul(torch.nn.functional.silu(gate), up, out=self.want)
        else:
            torch.mm(self.x, self.w.t(), out=self.want)

    def kernel(self, artifact: Artifact, pad: torch.Tensor | None = None) -> Alone:
        """Return a kernel of the product. pad: its counters; None: all are set."""
        tensor = artifact.tensor(self.left)
        if self.left not in self.given:  # launch 1 uses the first buffer of a tensor that peers write
            buffers = tensor.buffers if tensor.symmetric else 1
            self.given[self.left] = torch.zeros((buffers, *tensor.shape), dtype=self.dtype, device="cuda")
            if self.case.op in NARROW:
                self._scaled(artifact.tensor("scales"))
        if pad is None:
            pad = torch.full((artifact.pad_size,), ALWAYS_SET, dtype=torch.int32, device="cuda")
        weights: dict[str, Any] = {} if self.case.op in NARROW else {"w": self.w}
        if self.case.op == GATED:
            weights = dict(zip(("w_gate", "w_up"), self.w.chunk(2), strict=True))
        return Alone(artifact, {**self.given, **weights, self.result: self.y}, pad)

    def _scaled(self, scales: TensorSpec) -> None:
        """Make the tensors of 8-bit floats and of scales."""
        self.given["scales"] = torch.zeros((scales.buffers, *scales.shape), dtype=torch.float32, device="cuda")
        self.given["w"] = torch.zeros(self.w.shape, dtype=self.dtype, device="cuda")
        self.given["w_scale"] = torch.zeros(self.case.N, dtype=torch.float32, device="cuda")

    @property
    def x(self) -> torch.Tensor:
        """Return the left operand."""
        return self.given[self.left][0].view(self.case.M, self.case.K)


class Groups:
    """The tensors of products of rows for each of many experts, and their kernels."""

    def __init__(self, case: GroupedCase) -> None:
        def empty(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
            return torch.zeros(shape, dtype=dtype, device="cuda")

        self.case, self.seed = case, 0
        self.sources, self.x = empty(2, case.tokens, case.K), empty(case.M, case.K)  # launch 1 uses the first
        self.w, self.y = empty(case.E, case.N, case.K), empty(case.M, case.N)
        self.rows, self.starts = empty(case.M, dtype=torch.int32), empty(case.E + 1, dtype=torch.int32)

    def refresh(self) -> None:
        case, self.seed = self.case, self.seed + 1
        self.w.normal_(0, 0.02)
        self.sources.normal_()
        ids = drawn(case.E, case.M // case.tokens, case.tokens, case.routing, self.seed, 0, "cuda")
        order, _, counts = by_expert(ids, case.E)
        self.rows.copy_(order // ids.shape[1])
        self.starts[1:].copy_(counts.cumsum(0))
        if case.gathers:
            torch.index_select(self.sources[0], 0, self.rows, out=self.x)
        else:
            self.x.normal_()

    def expect(self) -> None:
        self.vendor()

    def vendor(self) -> None:
        self.want = self._grouped(self.x)

    def _grouped(self, rows: torch.Tensor) -> torch.Tensor:
        return torch.ops.aten._grouped_mm(rows, self.w.transpose(-2, -1), offs=self.starts[1:])

    def others(self) -> dict[str, Callable[[], Any]]:
        if not self.case.gathers:
            return {}
        return {"index_select + _grouped_mm": lambda: self._grouped(self.sources[0].index_select(0, self.rows))}

    def kernel(self, artifact: Artifact) -> OneAfterAnother:
        """Return the kernels of the product, which wait for nothing."""
        pad = torch.full((artifact.pad_size,), ALWAYS_SET, dtype=torch.int32, device="cuda")
        given = {"starts": self.starts, "rows": self.rows, "w": self.w, "x": self.x, "xs": self.sources, "y": self.y}
        names = [kernel.name for kernel in artifact.kernels if kernel.name in ("pack", "product")]
        return OneAfterAnother([Alone(artifact, given, pad, name) for name in names])


class NarrowGroups(Groups):
    """The same of 8-bit floats, with scales."""

    folder = ""
    """The unpacked wheels of DeepGEMM, "" for none."""

    def __init__(self, case: GroupedCase) -> None:
        def empty(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
            return torch.zeros(shape, dtype=dtype, device="cuda")

        self.case, self.seed, block, narrow = case, 0, ROWS_OF_SCALES, torch.float8_e4m3fn
        n, k = case.N // block, case.K // block
        self.x, self.unit = empty(case.M, case.K, dtype=narrow), empty(k, case.M)
        self.w, self.w_unit = empty(case.E, case.N, case.K, dtype=narrow), empty(case.E, n, k)
        self.one = empty(n, -(-k // 4) * 4)[:, :k]  # as cuBLAS has the scales of a matrix
        self.starts, self.expert = empty(case.E + 1, dtype=torch.int32), empty(case.M, dtype=torch.int32)
        self.y, self.dense, self.grouped = (
            empty(*shape, dtype=torch.bfloat16)
            for shape in ((n, case.M, block), (case.M, case.N), (case.M, case.N))
        )  # fmt: skip

    def refresh(self) -> None:
        case, self.seed, block = self.case, self.seed + 1, ROWS_OF_SCALES
        ids = drawn(case.E, case.M // case.tokens, case.tokens, case.routing, self.seed, 0, "cuda")
        counts = (by_expert(ids, case.E)[2] + block // 2) // block * block
        counts[counts.argmax()] += case.M - counts.sum()
        self.starts[1:].copy_(counts.cumsum(0))
        self.expert.copy_(torch.arange(case.E, device="cuda").repeat_interleave(counts, output_size=case.M))
        wide = torch.empty(case.M, case.K, dtype=torch.bfloat16, device="cuda").normal_()
        blocks = wide.unflatten(1, (-1, block))
        self.unit.copy_((blocks.abs().amax(2).float() / 448).t())
        self.x.copy_((blocks / self.unit.t()[..., None]).flatten(1).to(self.x.dtype))
        rows = (self.x.to(torch.bfloat16).unflatten(1, (-1, block)) * self.unit.t()[..., None]).flatten(1)
        weights = torch.empty(case.E, case.N, case.K, dtype=torch.bfloat16, device="cuda")
        for e in range(case.E):  # one after the other, for f32 takes four times as much memory
            own = torch.empty(case.N, case.K, device="cuda").normal_(0, 0.02)
            own = own.unflatten(1, (-1, block)).unflatten(0, (-1, block))
            self.w_unit[e].copy_(own.abs().amax((1, 3)) / 448)
            scale = self.w_unit[e][:, None, :, None]
            narrow = (own / scale).to(self.w.dtype)
            self.w[e].copy_(narrow.flatten(2).flatten(0, 1))
            weights[e].copy_((narrow.float() * scale).flatten(2).flatten(0, 1))
        self.one.copy_(self.w_unit[0])
        made = torch.ops.aten._grouped_mm(rows.to(torch.bfloat16), weights.transpose(-2, -1), offs=self.starts[1:])
        self.want = made.unflatten(1, (-1, block)).permute(1, 0, 2)

    def expect(self) -> None:
        """The data has come with it."""

    def vendor(self) -> None:
        scales = self.unit.t(), self.one.t()
        torch.ops.aten._scaled_mm(self.x, self.w[0].t(), *scales, out_dtype=torch.bfloat16)

    def others(self) -> dict[str, Callable[[], Any]]:
        if not self.folder:
            return {}
        deep_gemm = expert_libraries.deep_gemm(self.folder)

        def run() -> None:
            left, right = (self.x, self.unit.t()), (self.w, self.w_unit)
            deep_gemm.m_grouped_fp8_gemm_nt_contiguous(left, right, self.grouped, self.expert)

        run()
        error = float(relative_error(self.grouped.unflatten(1, (-1, ROWS_OF_SCALES)).permute(1, 0, 2), self.want))
        if not error < ALLOWED:
            raise ValueError(f"the result of DeepGEMM is off by {error:.2e}")
        return {"DeepGEMM": run}

    def kernel(self, artifact: Artifact) -> OneAfterAnother:
        pad = torch.full((artifact.pad_size,), ALWAYS_SET, dtype=torch.int32, device="cuda")
        given = {name: getattr(self, name) for name in ("starts", "x", "unit", "w", "w_unit", "y")}
        return OneAfterAnother([Alone(artifact, given, pad, "product")])


def measure(
    case: Case, args: argparse.Namespace, machine: Target, flush: torch.Tensor, dog: Watchdog
) -> dict[str, Any]:
    """Return the row of a case: microseconds of the vendor's product and of each kernel, and what failed."""
    dog.context(str(case))
    row: dict[str, Any] = {
        "case": str(case),
        **case.__dict__,
        "flops": case.flops,
        "vendor": case.vendor,
        "us": {},
        "error": {},
        "failure": {},
    }
    product, runs = case.data(), dict[str, Any]()
    for name, point in case.points(machine, args.forms).items():
        with dog.step(f"building {name}"):
            try:
                artifact = prepare.program_of(point)
                kernel = product.kernel(artifact)
                product.refresh()
                product.expect()
                product.y.fill_(float("nan"))
                kernel()
                torch.cuda.synchronize()
                error = float(relative_error(product.y, product.want))
                row["error"][name] = error
                row.setdefault("kernels", {})[name] = {
                    "registers": getattr(kernel.function.compiled, "n_regs", None),
                    "spills": getattr(kernel.function.compiled, "n_spills", None),
                    "shared": kernel.function.compiled.metadata.shared,
                    "prepared": kernel.function.prepared is not None,
                }  # fmt: skip
                if not error < ALLOWED:
                    row["failure"][name] = f"the result is off by {error:.2e}"
                    continue
                runs[name] = kernel
            except Exception as failure:
                row["failure"][name] = f"{type(failure).__name__}: {failure}"[:400]
    if not runs:
        return row
    with dog.step("others"):
        others = dict[str, Callable[[], Any]]()
        for name, made in ((case.vendor, lambda: {case.vendor: product.vendor}), ("others", product.others)):
            try:
                for one, run in made().items():
                    run()
                    others[one] = run
            except Exception as failure:
                row["failure"][name] = f"{type(failure).__name__}: {failure}"[:400]
    with dog.step("timing"):
        seen = microseconds({**others, **runs}, args.samples, flush)
    row["us"] = {name: round(statistics.median(times), 1) for name, times in seen.items()}
    row["samples"] = {name: [round(one, 1) for one in times] for name, times in seen.items()}
    return row


def late(machine: Target, form: str, dog: Watchdog) -> str:
    """Let the rows of a product arrive, by the copy engine, while its kernel waits for them. Return what was found."""
    case = LATE
    dog.context(f"late rows, {form}")
    with dog.step("late rows"):
        artifact = prepare.program_of(case.points(machine, [form])[form])
        product = Product(case)
        kernel = product.kernel(artifact, torch.zeros(artifact.pad_size, dtype=torch.int32, device="cuda"))
        product.refresh()
        product.vendor()
        rows = case.M // case.ranks
        later, arrived = product.x.cpu().pin_memory(), torch.full((64,), ALWAYS_SET, dtype=torch.int32).pin_memory()
        (grid,) = (one for one in artifact.grids if one.tensor == "xs")
        aside, worst = torch.cuda.Stream(), 0.0
        for turn in range(10):
            product.x.zero_()
            product.y.fill_(float("nan"))
            kernel.pad.zero_()
            torch.cuda.synchronize()
            kernel()
            with torch.cuda.stream(aside):  # nothing is allocated here: that would wait for the kernel
                for n in range(case.ranks):
                    shard = (n + turn) % case.ranks
                    at = slice(shard * rows, (shard + 1) * rows)
                    product.x[at].copy_(later[at], non_blocking=True)
                    first = grid.base + shard
                    kernel.pad[first : first + 1].copy_(arrived[:1], non_blocking=True)
            torch.cuda.synchronize()
            worst = max(worst, float(relative_error(product.y, product.want)))
    return f"late rows, {form}: error {worst:.1e} of 10 launches{'' if worst < ALLOWED else ': WRONG'}"


def lines(row: dict[str, Any]) -> Iterator[str]:
    yield row["case"]
    vendor, base = next(iter(row["us"].items()), ("", 0.0))
    flops = row.get("flops") or 2.0 * row["M"] * row["N"] * row["K"]
    for name, took in row["us"].items():
        yield f"    {took:9.1f} us  {flops / took / 1e6:6.0f} TFLOP/s  {base / took:6.3f} x {vendor}  {name}"
    for name, failure in row["failure"].items():
        yield f"    failed: {name}: {failure}"


def geometric(rows: Sequence[dict[str, Any]], name: str) -> str:
    found = [row["us"]["cuBLAS"] / row["us"][name] for row in rows if name in row["us"]]
    if not found:
        return f"{name}: -"
    mean = math.exp(sum(map(math.log, found)) / len(found))
    return f"{name}: {mean:.3f} x cuBLAS as geometric mean of {len(found)}, {min(found):.3f} to {max(found):.3f}"


def table(report: dict[str, Any], name: str) -> list[str]:
    """Return the section of a report in docs/results.md."""
    rows = report["rows"]
    forms = [form for form in dict.fromkeys(form for row in rows for form in row["us"]) if form != "cuBLAS"]
    machine = report["machine"]
    lines = [
        f"## {name}",
        "",
        "Products as one of so many ranks computes them, with all signals of other ranks set and a kernel's own "
        f"counters cleared before each timed launch, on one {machine['gpu']}: microseconds "
        f"of cuBLAS, and times its speed, medians of {report['samples']} turns; driver {machine['driver']}, torch "
        f"{machine['torch']}, triton {machine['triton']}. `plain` is the schedule h200, the others have roles.",
        "",
        f"| product | rows x columns x inner | cuBLAS us | {' | '.join(forms)} |",
        f"| --- {'| ---: ' * (len(forms) + 2)}|",
    ]
    for row in rows:
        speeds = [f"{row['us']['cuBLAS'] / row['us'][form]:.3f}" if form in row["us"] else "-" for form in forms]
        what, sizes = row["case"].split(": ")
        lines.append(f"| {what} | {sizes} | {row['us']['cuBLAS']:.4g} | {' | '.join(speeds)} |")
    means = [geometric(rows, form).split(": ")[1].split(" x ")[0] for form in forms]
    return [
        *lines,
        f"| geometric mean | | | {' | '.join(means)} |",
        "",
        f"Rows that arrive late: {report['late']}.",
        "",
    ]


def grouped_table(report: dict[str, Any], name: str) -> list[str]:
    """Return the section of products of rows for each of many experts in docs/results.md."""
    machine, made = report["machine"], list[str]()
    for few in (False, True):
        rows = [row for row in report["rows"] if (row["tokens"] < MANY) == few]
        if not rows:
            continue
        names = [one for one in dict.fromkeys(form for row in rows for form in row["us"]) if one != rows[0]["vendor"]]
        made += [
            f"| product | rows x columns x inner | {rows[0]['vendor']} us | {' | '.join(names)} |",
            f"| --- {'| ---: ' * (len(names) + 2)}|",
        ]
        for row in rows:
            vendor = row["vendor"] if row["vendor"] in row["us"] else names[0]  # it may refuse a size
            base = row["us"][vendor]
            speeds = [f"{base / row['us'][form]:.3f}" if form in row["us"] else "-" for form in names]
            said = f"{base:.4g}" if vendor == row["vendor"] else f"{vendor}: {base:.4g}"
            made.append(f"| {' | '.join(row['case'].split(': '))} | {said} | {' | '.join(speeds)} |")
        made.append("")
    return [
        f"## {name}",
        "",
        f"Products of rows for each of many experts on one {machine['gpu']}, all signals set: microseconds of "
        "the vendor's product of rows in the order of experts, and times its speed, medians of "
        f"{report['samples']} turns; driver {machine['driver']}, torch {machine['torch']}, triton "
        f"{machine['triton']}. Programs and schedules are in `benchmarks/groups.tl`: rows lie in order, or are "
        "gathered by index, or a kernel packs them first, which is timed too.",
        "",
        *made,
    ]


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = one_gpu.parser(__doc__, samples=9, seconds=190.0, prepare=90.0, numbered=False)
    every = f"some of {', '.join(OPERATORS)}, or one of {', '.join(GROUPS_OF)}"
    parser.add_argument("--op", default="ag_gemm,gemm_rs", help=every)
    parser.add_argument("--folder", default="", help="unpacked wheels of DeepGEMM")
    parser.add_argument("--shapes", default="all")
    parser.add_argument("--of", default="8,2", help="numbers of ranks")
    parser.add_argument("--forms", default="", help="names of forms, with ; between them; default: all")
    args = parser.parse_args(argv)
    args.forms = [name for name in args.forms.split(";") if name]
    return args


def main(argv: Sequence[str] | None = None) -> int:
    args = arguments(argv)
    every = list(cases(args.op.split(","), args.shapes, [int(n) for n in args.of.split(",")]))
    machine = one_gpu.machine(args.dry)
    wanted = [(case, name, point) for case in every for name, point in case.points(machine, args.forms).items()]
    grouped, rows_late = args.op in GROUPS_OF, next(iter(forms_of(LATE.op, args.forms)), next(iter(FORMS)))
    if grouped:  # the routing changes no kernel
        wanted = list({point.file: (case, name, point) for case, name, point in wanted}.values())
    else:
        wanted.append((LATE, "late rows", LATE.points(machine, [rows_late])[rows_late]))
    run = one_gpu.Run(args.op if grouped else "roles", args, wanted)
    if args.dry:
        return 0
    NarrowGroups.folder = args.folder
    print(run.report["machine"], flush=True)
    run.each(every, lambda case: measure(case, args, machine, run.flush, run.dog), lines)
    if not grouped:
        every_form = dict.fromkeys(form for case in every for form in forms_of(case.op, args.forms))
        print(*[geometric(run.rows, name) for name in ("plain", *every_form)], sep="\n", flush=True)
        run.report["late"] = late(machine, rows_late, run.dog)
        print(run.report["late"], flush=True)
        run.write()
    run.end()


if __name__ == "__main__":
    sys.exit(main())
