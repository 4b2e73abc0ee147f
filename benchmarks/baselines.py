# pyright: basic
"""The operators' data, and what they are compared with: the vendor's product, NCCL, torch's fused operators, copies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.measure import Session, Variant

all_gather: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter: Any = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor  # of newer torch

Builder = tuple[str, str, Callable[[], Variant]]
"""Name, kind, and what builds the variant (it may fail)."""


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One product shared over `ranks`: x [M, K] times w [N, K] transposed, as one rank computes it.

    all-gather: M rows are gathered from all ranks, N is the rank's part of I. reduce-scatter, all-reduce: K is.
    """

    op: str
    shape: str
    ranks: int
    S: int
    H: int
    I: int  # noqa: E741  (the name that papers give it)
    dtype: str = "bf16"

    @property
    def M(self) -> int:
        return self.S

    @property
    def N(self) -> int:
        return self.I // self.ranks if self.op == "ag_gemm" else self.H

    @property
    def K(self) -> int:
        return self.H if self.op == "ag_gemm" else self.I // self.ranks

    @property
    def shard(self) -> int:
        """Rows of one rank."""
        return self.S // self.ranks

    @property
    def itemsize(self) -> int:
        return {"bf16": 2, "f16": 2, "f32": 4}[self.dtype]

    @property
    def received_bytes(self) -> int:
        """What one GPU must receive: everybody's rows but its own; twice that for an all-reduce."""
        others = (self.ranks - 1) * self.shard * self.H * self.itemsize
        return 2 * others if self.op == "gemm_ar" else others

    @property
    def dims(self) -> dict[str, int]:
        """Dimensions by the names that programs of the library give them."""
        return {"M": self.M, "Ms": self.shard, "N": self.N, "K": self.K}


class Case:
    """The tensors of one problem on this rank, refilled before each round, and what must come out.

    x, w: the operands. gathered: everybody's rows (all-gather); product: the own product; result: the operator's.
    sent: what the communication alone starts from; received: what it ends with.
    """

    def __init__(self, problem: Problem, session: Session) -> None:
        self.problem, self.session = problem, session
        self.dtype = {"bf16": torch.bfloat16, "f16": torch.float16}[problem.dtype]
        gathers = problem.op == "ag_gemm"
        self._generator = torch.Generator(device=session.device).manual_seed(1000 + session.rank)
        self.x = self.empty(problem.shard if gathers else problem.M, problem.K)
        self.w = self.empty(problem.N, problem.K)
        self.gathered = self.empty(problem.M, problem.K) if gathers else self.x
        self.product = self.empty(problem.M, problem.N)
        rows = {"ag_gemm": problem.M, "gemm_rs": problem.shard, "gemm_ar": problem.M}[problem.op]
        self.result = self.product if gathers else self.empty(rows, problem.N)
        self.output = self.empty(rows, problem.N)
        self.sent = self.x if gathers else self.product
        self.received = self.gathered if gathers else self.result
        self._scratch: dict[tuple[str, tuple[int, ...]], torch.Tensor] = {}
        self._shared: dict[tuple[str, tuple[int, ...]], tuple[torch.Tensor, Any]] = {}

    def empty(self, *shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=self.dtype, device=self.session.device)

    def scratch(self, name: str, *shape: int) -> torch.Tensor:
        """A tensor that variants of this name share."""
        if (name, shape) not in self._scratch:
            self._scratch[name, shape] = self.empty(*shape)
        return self._scratch[name, shape]

    def symmetric(self, name: str, *shape: int) -> tuple[torch.Tensor, Any]:
        """A symmetric tensor that variants of this name share, and its handle. Collective."""
        from torch.distributed import _symmetric_memory as symmetric

        if (name, shape) not in self._shared:
            tensor = symmetric.empty(*shape, dtype=self.dtype, device=self.session.device)
            self._shared[name, shape] = (tensor.zero_(), symmetric.rendezvous(tensor, self.session.group))
        return self._shared[name, shape]

    def refresh(self) -> None:
        """New operands, and the reference: the vendor's product and NCCL, one after the other."""
        self.x.normal_(generator=self._generator)
        self.w.normal_(0, 0.02, generator=self._generator)
        group = self.session.group
        if self.problem.op == "ag_gemm":
            all_gather(self.gathered, self.x, group=group)
        torch.mm(self.gathered, self.w.t(), out=self.product)
        if self.problem.op == "gemm_rs":
            reduce_scatter(self.result, self.product, group=group)
        if self.problem.op == "gemm_ar":
            self.result.copy_(self.product)
            dist.all_reduce(self.result, group=group)


def baselines(case: Case) -> Iterator[Builder]:
    """Every row that is not ours."""
    own = {"ag_gemm": _ag_gemm, "gemm_rs": _gemm_rs, "gemm_ar": _gemm_ar}[case.problem.op]
    yield "cuBLAS", "gemm", lambda: _cublas(case)
    yield from own(case)
    yield "copy engine, push", "transfer", lambda: _copies(case, push=True)
    yield "copy engine, pull", "transfer", lambda: _copies(case, push=False)


def _cublas(case: Case) -> Variant:
    y = case.scratch("product", *case.product.shape)
    return Variant(
        name="cuBLAS", kind="gemm", outputs=(y,), expected=lambda: case.product,
        run=lambda: torch.mm(case.gathered, case.w.t(), out=y),
    )  # fmt: skip


def _pairs(case: Case, run: Callable[[], Any], outputs: tuple[torch.Tensor, ...]) -> Iterator[Builder]:
    """Product and collective one after the other, eager and in a graph."""

    def variant(name: str, what: Callable[[], Any]) -> Variant:
        return Variant(name=name, kind="pair", run=what, expected=lambda: case.result, outputs=outputs)

    yield "cuBLAS+NCCL", "pair", lambda: variant("cuBLAS+NCCL", run)
    yield "cuBLAS+NCCL, graph", "pair", lambda: variant("cuBLAS+NCCL, graph", captured(run))


def captured(run: Callable[[], Any], warmups: int = 3) -> Callable[[], Any]:
    """The same work in a CUDA graph. What run refers to, which it reads and writes, lives as long as the result."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(warmups):
            run()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        result = run()

    def replay(_alive: Any = run) -> Any:
        graph.replay()
        return result

    return replay


def _ag_gemm(case: Case) -> Iterator[Builder]:
    group, x, wt = case.session.group, case.x, case.w.t()
    full = case.scratch("gathered", *case.gathered.shape)
    y = case.scratch("product", *case.product.shape)

    def gather() -> torch.Tensor:
        all_gather(full, x, group=group)
        return full

    def pair() -> torch.Tensor:
        return torch.mm(gather(), wt, out=y)

    def fused() -> Variant:
        call = torch.ops.symm_mem.fused_all_gather_matmul
        name = group.group_name
        return Variant(
            name="torch fused_all_gather_matmul", kind="library", expected=lambda: case.result,
            run=lambda: call(x, [wt], 0, name, return_A=False)[1][0],
        )  # fmt: skip

    yield (
        "NCCL",
        "transfer",
        lambda: Variant(name="NCCL", kind="transfer", run=gather, outputs=(full,), expected=lambda: case.gathered),
    )
    yield from _pairs(case, pair, (full, y))
    yield "torch fused_all_gather_matmul", "library", fused


def _gemm_rs(case: Case) -> Iterator[Builder]:
    group, x, wt, y = case.session.group, case.x, case.w.t(), case.output
    part = case.scratch("product", *case.product.shape)

    def pair() -> torch.Tensor:
        torch.mm(x, wt, out=part)
        reduce_scatter(y, part, group=group)
        return y

    def scatter() -> torch.Tensor:
        reduce_scatter(y, case.product, group=group)
        return y

    def fused() -> Variant:
        call = torch.ops.symm_mem.fused_matmul_reduce_scatter
        name = group.group_name
        return Variant(
            name="torch fused_matmul_reduce_scatter", kind="library", expected=lambda: case.result,
            run=lambda: call(x, wt, "sum", 0, name),
        )  # fmt: skip

    yield (
        "NCCL",
        "transfer",
        lambda: Variant(name="NCCL", kind="transfer", run=scatter, outputs=(y,), expected=lambda: case.result),
    )
    yield from _pairs(case, pair, (part, y))
    yield "torch fused_matmul_reduce_scatter", "library", fused


def _gemm_ar(case: Case) -> Iterator[Builder]:
    group, x, wt, y = case.session.group, case.x, case.w.t(), case.output

    def reduce() -> torch.Tensor:
        dist.all_reduce(y, group=group)
        return y

    def pair() -> torch.Tensor:
        torch.mm(x, wt, out=y)
        return reduce()

    yield (
        "NCCL",
        "transfer",
        lambda: Variant(
            name="NCCL",
            kind="transfer",
            run=reduce,
            prepare=lambda: y.copy_(case.product),
            expected=lambda: case.result,
        ),
    )
    yield from _pairs(case, pair, (y,))
    for shots in ("one_shot", "two_shot"):
        for kind, name in (("library", f"cuBLAS + torch {shots}"), ("transfer", f"torch {shots}")):
            yield name, kind, lambda shots=shots, kind=kind, name=name: _shots(case, shots, kind, name)


def _shots(case: Case, shots: str, kind: str, name: str) -> Variant:
    """torch's all-reduce over symmetric memory: of the own product ("library"), or of a product that is there."""
    group = case.session.group
    source, _ = case.symmetric("reduced", *case.product.shape)
    calls = torch.ops.symm_mem

    def run() -> torch.Tensor:
        if kind == "library":
            torch.mm(case.x, case.w.t(), out=source)
        if shots == "two_shot":
            return calls.two_shot_all_reduce_(source, "sum", group.group_name)
        return calls.one_shot_all_reduce_out(source, "sum", group.group_name, case.output)

    outputs = (case.output,) if shots == "one_shot" else ()
    prepare = None if kind == "library" else lambda: source.copy_(case.product)
    return Variant(name=name, kind=kind, run=run, prepare=prepare, outputs=outputs, expected=lambda: case.result)


def _copies(case: Case, *, push: bool) -> Variant:
    """The operator's bytes by the copy engine alone: one stream, peers by turns from the next one on."""
    problem, rank, ranks = case.problem, case.session.rank, case.session.ranks
    shape = (ranks, problem.shard, problem.H)
    own = case.sent.view(1, *shape[1:]).expand(shape) if problem.op == "ag_gemm" else case.sent.view(shape)
    buffer, buffers = case.symmetric("copied", *shape)
    stage, stages = case.symmetric("offered", *shape)
    peers = [buffers.get_buffer(r, shape, case.dtype) for r in range(ranks)]
    offered = [stages.get_buffer(r, shape, case.dtype) for r in range(ranks)]
    order = [(rank + step) % ranks for step in range(1, ranks)]
    rounds = 2 if problem.op == "gemm_ar" else 1  # partial sums to their owners, and sums to everybody

    def run() -> torch.Tensor:
        for _ in range(rounds):
            for peer in order:
                if push:
                    peers[peer][rank].copy_(own[peer])
                else:
                    buffer[peer].copy_(offered[peer][rank])
        return buffer

    def settle(_: torch.Tensor) -> torch.Tensor:
        case.session.barrier()
        buffer[rank].copy_(own[rank])
        if problem.op == "ag_gemm":
            return buffer.view(case.received.shape)
        return buffer.float().sum(0).to(case.dtype)  # of an all-reduce: the own rows, which the first round brought

    def expected() -> torch.Tensor:
        return case.received[rank * problem.shard :][: problem.shard] if problem.op == "gemm_ar" else case.received

    name = f"copy engine, {'push' if push else 'pull'}"
    return Variant(
        name=name, kind="transfer", run=run, settle=settle, expected=expected, outputs=(buffer,),
        prepare=None if push else lambda: stage.copy_(own),
    )  # fmt: skip
