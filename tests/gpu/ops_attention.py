# pyright: basic
"""Attention of rows spread over all GPU ranks, beside plain torch in f32: results, gradients, views and graphs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist

from tests.gpu.lockstep import Checks, together
from tests.gpu.ops_scenarios import near
from tilelink import ops
from tilelink.ops import context_parallel, ring

B, HEADS, OF_KEYS, SCALE = 2, 4, 2, 0.11
LAUNCHES = 3
EXCHANGED = ring.exchanged
OFF = 2e-2
"""How far results and gradients are off at most: those of keys are sums of numbers of the operands' type."""
Tensor = torch.Tensor


@dataclass(frozen=True, kw_only=True)
class Case:
    """causal: rows are in zigzag. ways: options of calls. rows: of a rank."""

    causal: bool
    documents: bool
    depth: int
    rows: int
    ways: tuple[dict[str, Any], ...]

    def __str__(self) -> str:
        masks = ", ".join(name for name in ("causal", "documents") if getattr(self, name)) or "no mask"
        return f"{masks}, heads of {self.depth}, {self.rows} rows"


def attention() -> None:
    """All masks by the kernels that a call takes, by those that it may name, and unfused, by each method."""
    named = {"schedule": "gpu_roles"}, {}, {"schedule": "unfused"}, {"method": "ulysses"}
    cases = [
        Case(
            causal=causal, documents=documents, depth=depth, rows=rows,
            ways=(
                *named[(documents and not causal) or depth > 128 :], *([] if documents else [{"method": "ring"}]),
                *([] if documents or depth > 128 else [{"gradients": "gpu_roles"}]),
            ),
        )
        for causal, documents in ((False, False), (True, False), (True, True), (False, True))
        for depth, rows in ((64, 512), (128, 768), (256, 256))
    ]  # fmt: skip
    with exchanging():
        together(cases, partial(attended, device="cuda"), str)


@contextmanager
def exchanging() -> Iterator[None]:
    """Let ranks that share a GPU send through the host, as their backend does not."""
    with ExitStack() as patched:
        for module in (ring, context_parallel) if dist.get_backend() != "nccl" else ():
            patched.enter_context(mock.patch.object(module, "exchanged", _through_host))
        yield


def _through_host(sent: list[Tensor], to: int, taken: list[Tensor], source: int, group: Any) -> list[Any]:
    coming = [torch.empty_like(one, device="cpu") for one in taken]
    for work in EXCHANGED([one.cpu() for one in sent], to, coming, source, group):
        work.wait()
    for one, other in zip(taken, coming, strict=True):
        one.copy_(other)
    return []


def attended(case: Case, checks: Checks, device: str) -> None:
    """Compare calls with torch's attention to the whole sequence, which all ranks draw alike."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    rows = case.rows * ranks
    own = partial(_own, case=case, ranks=ranks, rank=rank)
    for seed, edges in enumerate(_documents(rows) if case.documents else [None, None]):
        made = torch.Generator().manual_seed(seed)
        sizes = [(B, heads, rows, case.depth) for heads in (HEADS, OF_KEYS, OF_KEYS, HEADS)]
        whole = [torch.randn(size, generator=made).to(device, torch.bfloat16) for size in sizes]
        leaves = [one.float().requires_grad_() for one in whole[:3]]
        wanted = _wanted(case, leaves, edges)
        wanted.backward(whole[3].float())
        expected = [own(one) for one in (wanted.detach(), *(one.grad for one in leaves if one.grad is not None))]
        told = None if edges is None else torch.tensor(edges, dtype=torch.int32, device=device)
        for way in case.ways:
            call = partial(ops.attention, is_causal=case.causal, scale=SCALE, cu_seqlens=told, **way)
            for laid in ("dense", "heads in rows", "with gaps"):
                q, k, v, dy = (_laid(own(one), laid) for one in whole)
                given = [one.detach().requires_grad_() for one in (q, k, v)]
                y = call(*given)
                grads = torch.autograd.grad(y, given, dy, retain_graph=True)
                if "gradients" in way:
                    for one, other in zip(grads, torch.autograd.grad(y, given, dy), strict=True):
                        checks.expect(torch.equal(one, other), f"sums of {seed}, {way}, {laid} have another order")
                for name, one, other in zip(("y", "dq", "dk", "dv"), (y, *grads), expected, strict=True):
                    near(one, other, checks, f"{name} of {seed}, {way}, {laid}", OFF)
            with torch.no_grad():
                for launch in range(LAUNCHES):
                    near(call(*given), expected[0], checks, f"launch {launch} of {seed}, {way}", OFF)
            if device == "cuda" and dist.get_backend() == "nccl":
                _replayed(call, given, expected[0], checks, f"{seed}, {way}")


def _replayed(call: Any, given: list[Tensor], expected: Tensor, checks: Checks, note: str) -> None:
    """Capture a call, and replay it with operands that are there then."""
    taken = [torch.zeros_like(one, requires_grad=False) for one in given]
    with torch.no_grad():
        call(*taken)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            y = call(*taken)
        for one, other in zip(taken, given, strict=True):
            one.copy_(other)
        for replay in range(LAUNCHES):
            graph.replay()
            near(y.clone(), expected, checks, f"replay {replay} of {note}", OFF)


def _documents(rows: int) -> list[list[int]]:
    """Return where documents end: some are empty, some end within a block, and rows are left over or none."""
    return [[0, 5, 5, rows // 3, rows // 2 + 1, rows - 3], [0, rows // 2, rows]]


def _wanted(case: Case, leaves: list[Tensor], edges: list[int] | None) -> Tensor:
    rows = leaves[0].shape[2]
    seen = torch.ones(rows, rows, dtype=torch.bool, device=leaves[0].device)
    if edges is not None:
        of_row = torch.searchsorted(torch.tensor(edges[1:]), torch.arange(rows), right=True).to(seen.device)
        seen = of_row[:, None] == of_row
    seen = seen.tril() if case.causal else seen
    k, v = (one.repeat_interleave(HEADS // OF_KEYS, 1) for one in leaves[1:])
    scores = (leaves[0] @ k.mT * SCALE).masked_fill(~seen, float("-inf"))
    return scores.softmax(-1) @ v


def _own(x: Tensor, *, case: Case, ranks: int, rank: int) -> Tensor:
    return ops.zigzag(x, ranks, rank) if case.causal else x.chunk(ranks, 2)[rank]


def _laid(x: Tensor, how: str) -> Tensor:
    """Return a tensor as it may lie in memory."""
    if how == "heads in rows":
        return x.transpose(1, 2).contiguous().transpose(1, 2)
    return x.repeat_interleave(2, -1)[..., ::2] if how == "with gaps" else x.contiguous()
