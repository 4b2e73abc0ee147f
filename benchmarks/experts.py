# pyright: basic
"""Mixtures of experts: expert and tensor parallel layers beside experts alone, NCCL, and other libraries.

    torchrun --nproc-per-node 2 benchmarks/experts.py --out experts.json

A case is LAYER:TOKENS:ROUTING, as qwen3:8192+5000:zipf: expert parallel, the tokens of rank 0 and of rank 1, and so
on; or LAYER/tp:TOKENS:ROUTING: tensor parallel, with the tokens of all ranks; or losses:SEED: 200 steps of
examples/10_mixture_of_experts.py. ROUTING is uniform, zipf (popularity by
the power of -1.2 of the rank) or heavy: one expert has 40 % of the tokens.

alone: the two products of the experts and what is between, of rows that are there and in order. exchange: the rows
alone, by NCCL. NCCL known: the rows by NCCL, where the host knows all counts. NCCL found: it finds them. Tensor
parallel layers have no counts that a host needs. Every sample has other data and another routing; few tokens are
replayed in CUDA graphs: of ours one for all routings, of NCCL one for each, as the host knows counts. Where NCCL finds
them, and in other libraries (--beside), there is no graph. Gradients are those of all operands.

With --scaled weights and tokens are in fp8 too, with scales of blocks. With --beside NAME --folder FOLDER one other
library stands beside (benchmarks/expert_libraries.py).
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import gcd
from pathlib import Path
from statistics import fmean, geometric_mean
from typing import Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import expert_libraries

if "--beside" in sys.argv and "--folder" in sys.argv:
    expert_libraries.preload(*(sys.argv[sys.argv.index(name) + 1] for name in ("--beside", "--folder")))

import torch
import torch.distributed as dist
import triton
import triton.language as tl
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.functional import silu

import tilelink
from benchmarks import cases
from benchmarks.baselines import captured
from benchmarks.measure import ALLOWED, Session, Variant, relative_error
from benchmarks.tables import table, us
from tilelink import ops
from tilelink.compiler import library_module

ROOT = Path(__file__).resolve().parents[1]
FILE, COMBINE = Path(ops.__file__).parents[1] / "programs" / "moe.tl", ROOT / "benchmarks" / "experts.tl"
POOL = 4
"""Routings, with data of their own, that samples take in turn."""
FEW, CHECKED = 512, 32
"""Tokens up to which launches are replayed in graphs; tokens of each rank that are compared with sums in f32."""
ALLOWED_GRADIENT, ALLOWED_SCALED = 2e-2, 6e-2
POWER, HEAVY = 1.2, 0.4
SLEEP_CYCLES = 6_000_000
"""Three milliseconds, in which the host issues what has a dozen launches, as a graph would."""
LAYERS = {
    "qwen3": (128, 8, 2048, 768), "mixtral": (8, 2, 4096, 14336), "deepseek": (256, 8, 7168, 2048),
    **{f"e{e}k{k}h{h}": (e, k, h, i) for h, i in ((2048, 1536), (4096, 2048)) for e, k in ((8, 2), (32, 2), (32, 5))},
}  # fmt: skip
"""Experts, those of a token, hidden size, and size between: Qwen3-30B-A3B, Mixtral-8x7B, DeepSeek-V3, and of papers."""
CASES = (
    *(f"{layer}:{tokens}:{routing}" for layer in ("qwen3", "mixtral") for tokens in (8192, 128)
      for routing in ("uniform", "zipf")),
    *(f"{layer}:{more}" for layer in ("qwen3", "mixtral") for more in ("8192+5000:uniform", "8192:heavy")),
    *(f"{layer}/tp:8192:uniform" for layer in LAYERS if layer != "deepseek"),
)  # fmt: skip
ALONE, EXCHANGE, KNOWN, FOUND, OURS = "alone", "exchange", "NCCL known", "NCCL found", "ours"
SCALED = "ours, fp8"
DISPATCH, COMBINED = "dispatch", "combine"
KINDS = {
    ALONE: "gemm",
    EXCHANGE: "transfer",
    DISPATCH: "transfer",
    COMBINED: "transfer",
    KNOWN: "pair",
    FOUND: "pair",
    OURS: "ours",
    SCALED: "ours",
}
GRADED, BACKWARD = ", with gradients", ", backward"
WORK = {"": 1, GRADED: 3, BACKWARD: 2}
"""Products of a way, in those of forward."""

_grouped_mm: Any = torch._grouped_mm  # type: ignore[attr-defined]
Tensor = torch.Tensor
bf16 = torch.bfloat16


# Kernels and derivatives of the unfused layers, which torch would need several passes for ---------------------------


@triton.jit
def _gate(h, given, out, count, INNER: tl.constexpr, BLOCK: tl.constexpr, COUNTED: tl.constexpr, BACK: tl.constexpr):
    """h [rows, 2 I] -> silu of the one half times the other, or with `given` the derivative."""
    row, col = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = col < INNER
    if COUNTED:
        there = there & (row < tl.load(count))
    g = tl.load(h + row * 2 * INNER + col, mask=there, other=0).to(tl.float32)
    u = tl.load(h + row * 2 * INNER + INNER + col, mask=there, other=0).to(tl.float32)
    s = tl.sigmoid(g)
    if BACK:
        d = tl.load(given + row * INNER + col, mask=there, other=0).to(tl.float32)
        tl.store(out + row * 2 * INNER + col, (d * u * s * (1 + g * (1 - s))).to(tl.bfloat16), mask=there)
        tl.store(out + row * 2 * INNER + INNER + col, (d * g * s).to(tl.bfloat16), mask=there)
    else:
        tl.store(out + row * INNER + col, (g * s * u).to(tl.bfloat16), mask=there)


@triton.jit
def _sum(y, place, w, out, D, K: tl.constexpr, BLOCK: tl.constexpr, WEIGHTED: tl.constexpr):
    row, col = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for j in range(K):
        one = tl.load(y + tl.load(place + row * K + j).to(tl.int64) * D + col, mask=col < D, other=0).to(tl.float32)
        total += one * tl.load(w + row * K + j) if WEIGHTED else one
    tl.store(out + row * D + col, total.to(tl.bfloat16), mask=col < D)


@triton.jit
def _spread(d, y, order, w, dy, dw, D: tl.constexpr, K: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    choice = tl.load(order + row).to(tl.int64)
    col = tl.arange(0, BLOCK)
    of_token = tl.load(d + choice // K * D + col, mask=col < D, other=0).to(tl.float32)
    own = tl.load(y + row * D + col, mask=col < D, other=0).to(tl.float32)
    tl.store(dy + row * D + col, (of_token * tl.load(w + choice)).to(tl.bfloat16), mask=col < D)
    tl.store(dw + choice, tl.sum(of_token * own))


def _launch(kernel: Any, rows: int, columns: int, *args: Any, **more: Any) -> None:
    block = min(2048, triton.next_power_of_2(columns))
    if rows:
        kernel[(rows, triton.cdiv(columns, block))](*args, BLOCK=block, **more)


class Gate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, h: Tensor, count: Tensor | None = None) -> Tensor:
        out = h.new_empty(len(h), h.shape[1] // 2)
        counted = {"COUNTED": count is not None, "BACK": False}
        _launch(_gate, len(h), out.shape[1], h, h, out, h if count is None else count, out.shape[1], **counted)
        ctx.save_for_backward(h)
        return out

    @staticmethod
    def backward(ctx: Any, given: Tensor) -> Any:  # type: ignore[override]
        (h,) = ctx.saved_tensors
        out, half = torch.empty_like(h), h.shape[1] // 2
        _launch(_gate, len(h), half, h, given.contiguous(), out, h, half, COUNTED=False, BACK=True)
        return out, None


def summed(y: Tensor, place: Tensor, w: Tensor | None) -> Tensor:
    """y [rows, D], place [M, k] -> [M, D]: the sum of the rows of each token, in f32."""
    out = y.new_empty(len(place), y.shape[1])
    more = {"WEIGHTED": w is not None}
    _launch(_sum, len(out), y.shape[1], y, place, y if w is None else w, out, y.shape[1], place.shape[1], **more)
    return out


class Rows(torch.autograd.Function):
    """Rows of tokens, each as often as it has experts, in the order of these."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, order: Tensor, place: Tensor) -> Tensor:
        ctx.place = place
        return x.index_select(0, order // place.shape[1])

    @staticmethod
    def backward(ctx: Any, given: Tensor) -> Any:  # type: ignore[override]
        return summed(given.contiguous(), ctx.place, None), None, None


class Weighted(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y: Tensor, w: Tensor, order: Tensor, place: Tensor) -> Tensor:
        ctx.save_for_backward(y, w, order)
        return summed(y, place, w)

    @staticmethod
    def backward(ctx: Any, given: Tensor) -> Any:  # type: ignore[override]
        y, w, order = ctx.saved_tensors
        dy, dw, columns = torch.empty_like(y), torch.empty_like(w), y.shape[1]
        block = triton.next_power_of_2(columns)
        _spread[(len(order),)](given.contiguous(), y, order, w, dy, dw, columns, w.shape[1], block)  # type: ignore[index]
        return dy, dw, None, None


class Moved(torch.autograd.Function):
    """Rows that are copied or exchanged; back: takes the gradient of the result, and gives that of x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, move: Callable[[Tensor], Tensor], back: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.back = back
        return move(x)

    @staticmethod
    def backward(ctx: Any, given: Tensor) -> Any:  # type: ignore[override]
        return ctx.back(given.contiguous()), None, None


def gathered(own: Tensor, ranks: int) -> Tensor:
    out = own.new_empty(ranks * len(own), *own.shape[1:])
    dist.all_gather_into_tensor(out, own)
    return out


def scattered(parts: Tensor, ranks: int) -> Tensor:
    out = parts.new_empty(len(parts) // ranks, *parts.shape[1:])
    dist.reduce_scatter_tensor(out, parts)
    return out


def exchanged(x: Tensor, send: list[int], receive: list[int]) -> Tensor:
    """Rows to other ranks; send, receive: how many to and from each. With gradients."""
    return Moved.apply(x, partial(_sent, send=send, receive=receive), partial(_sent, send=receive, receive=send))


def _sent(x: Tensor, send: list[int], receive: list[int]) -> Tensor:
    out = x.new_empty(sum(receive), *x.shape[1:])
    dist.all_to_all_single(out, x, receive, send)
    return out


def permuted(x: Tensor, order: Tensor, back: Tensor) -> Tensor:
    """Rows in another order; back: its inverse. With gradients."""
    return Moved.apply(x, lambda rows: rows.index_select(0, order), lambda rows: rows.index_select(0, back))


def inverse(order: Tensor) -> Tensor:
    back = torch.empty_like(order)
    back[order] = torch.arange(len(order), device=order.device)
    return back


# Routings --------------------------------------------------------------------------------------------------------


def drawn(experts: int, chosen: int, rows: int, routing: str, seed: int, own: int, device: Any = "cpu") -> Tensor:
    """Return ids [rows, chosen] of distinct experts. seed: of what ranks have in common; own: of these rows."""
    names = torch.randperm(experts, generator=torch.Generator().manual_seed(seed)).to(device)
    chance = torch.Generator(device=device).manual_seed(seed * 1000 + own)
    noise = torch.rand(rows, experts, generator=chance, device=device).clamp_(1e-9, 1 - 1e-7)
    score = -torch.log(-torch.log(noise))  # the largest of a sum with this are a draw without replacement
    if routing == "zipf":
        score -= POWER * torch.arange(1, experts + 1, device=device).log()
    elif routing == "heavy":
        heavy = torch.rand(rows, generator=chance, device=device) < HEAVY
        score[:, 0] = torch.where(heavy, 1e9, -1e9)
    return names[score.topk(chosen, 1).indices].to(torch.int32)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How rows get to experts and back. order: of choices by their expert; place: its inverse, [M, k]."""

    order: Tensor
    place: Tensor
    send: list[int]
    receive: list[int]
    to_expert: Tensor
    back: Tensor
    offsets: Tensor


def by_expert(ids: Tensor, experts: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the order of choices by their expert, its inverse [M, k], and the counts of all experts."""
    flat = ids.reshape(-1).long()
    order = torch.argsort(flat, stable=True)
    counts = torch.zeros(experts, dtype=torch.int64, device=ids.device).scatter_add_(0, flat, torch.ones_like(flat))
    return order, inverse(order).view(ids.shape), counts


def planned(ids: Tensor, experts: int, ranks: int) -> Plan:
    """Exchange counts, and find all that NCCL needs; the host waits once."""
    order, place, counts = by_expert(ids, experts)
    got = torch.empty_like(counts)
    dist.all_to_all_single(got, counts)
    local = experts // ranks
    got = got.view(ranks, local)
    send, receive = torch.stack([counts.view(ranks, local).sum(1), got.sum(1)]).tolist()
    own = torch.arange(local, device=ids.device).repeat(ranks)
    to_expert = torch.argsort(own.repeat_interleave(got.reshape(-1), output_size=sum(receive)), stable=True)
    offsets = got.sum(0).cumsum(0).to(torch.int32)
    return Plan(order=order, place=place, send=send, receive=receive, to_expert=to_expert,
                back=inverse(to_expert), offsets=offsets)  # fmt: skip


# A case ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Layer:
    """inner: of a rank where experts are divided. local: the experts of a rank."""

    experts: int
    chosen: int
    hidden: int
    inner: int
    local: int


@dataclass(kw_only=True)
class Data:
    """What a sample has. checked: y, and dx, of the first tokens by sums in f32. expected: by the unfused layer."""

    x: Tensor
    ids: Tensor
    weights: Tensor
    dy: Tensor
    plan: Plan | None
    checked: tuple[Tensor, Tensor]
    expected: dict[bool, Tensor]


class Case:
    """The tensors of a rank, and the ways to have a result."""

    def __init__(self, session: Session, name: str) -> None:
        of, tokens, self.routing = name.split(":")
        label, _, divided = of.partition("/")
        self.session, self.name, self.divided = session, name, bool(divided)
        self.ranks, rank, device = session.ranks, session.rank, session.device
        experts, chosen, hidden, inner = LAYERS[label]
        counts = [int(one) for one in tokens.split("+")]
        of_rows, of_experts = (self.ranks, 1) if self.divided else (1, self.ranks)
        self.tokens = [counts[r % len(counts)] // of_rows for r in range(self.ranks)]
        self.layer = Layer(experts=experts, chosen=chosen, hidden=hidden, inner=inner // of_rows,
                           local=experts // of_experts)  # fmt: skip
        self.graph = max(self.tokens) <= FEW
        layer, rows = self.layer, self.tokens[rank]
        chance = torch.Generator(device=device).manual_seed(100 + rank)

        def made(*shape: int, scale: float = 1.0) -> Tensor:
            return torch.randn(*shape, generator=chance, device=device, dtype=bf16) * scale

        self.w13 = made(layer.local, 2 * layer.inner, hidden, scale=hidden**-0.5)
        self.w2 = made(layer.local, hidden, layer.inner, scale=inner**-0.5)
        self.pool: list[Data] = []
        for number in range(POOL):
            weights = torch.rand(rows, chosen, generator=chance, device=device) + 0.1
            weights = (weights / weights.sum(1, keepdim=True)).to(bf16).float()  # others take them in bf16
            ids = drawn(experts, chosen, rows, self.routing, number, rank, device)
            plan = None if self.divided else planned(ids, experts, self.ranks)
            one = Data(x=made(rows, hidden), ids=ids, weights=weights, dy=made(rows, hidden), plan=plan,
                       checked=(weights, weights), expected={})  # fmt: skip
            one.checked = self._checked(one)
            self.pool.append(one)
        self.at, self.now, self._gradients = 0, self.pool[0], list[Tensor]()
        self.x, self.ids, self.weights = self.now.x.clone(), self.now.ids.clone(), self.now.weights.clone()
        self.dy = self.now.dy.clone()
        for one in self.pool:
            self.take(one)
            one.expected[False] = self.unfused().clone()
            self._right(one.expected[False], one.checked[0], "the unfused layer")
        mine = self.pool[0].plan.offsets[-1] if self.pool[0].plan else sum(self.tokens) * chosen
        self.work = 6 * int(mine) * hidden * layer.inner

    def _right(self, y: Tensor, expected: Tensor, what: str, allowed: float = ALLOWED) -> None:
        error = float(relative_error(y[: len(expected)], expected)) if len(expected) else 0.0
        if not self.session.agree(error < allowed):
            raise AssertionError(f"{what} is off by {error:.2e}")

    def take(self, one: Data) -> None:
        """Make the data of a sample those of the next call."""
        self.now = one
        for own, of in ((self.x, one.x), (self.ids, one.ids), (self.weights, one.weights), (self.dy, one.dy)):
            own.copy_(of)

    def refresh(self) -> None:
        self.at += 1
        self.take(self.pool[self.at % POOL])

    def _checked(self, one: Data) -> tuple[Tensor, Tensor]:
        """Return y and dx of the first tokens, by sums in f32 over operands in bf16."""
        few = min(CHECKED, *self.tokens)
        every = []
        for own in (one.x, one.ids, one.weights, one.dy):
            gathered = own.new_empty(self.ranks * few, own.shape[1])
            dist.all_gather_into_tensor(gathered, own[:few].contiguous())
            every.append(gathered)
        x, ids, weights, dy = every
        x = x.float().requires_grad_()
        y = torch.zeros(x.shape, device=x.device)
        first = 0 if self.divided else self.session.rank * self.layer.local
        for e in range(self.layer.local):
            token, choice = (ids == first + e).nonzero(as_tuple=True)
            if len(token):
                gate, up = (x[token] @ self.w13[e].float().T).chunk(2, 1)
                made = (silu(gate) * up).to(bf16).float() @ self.w2[e].float().T
                y = y.index_add(0, token, made * weights[token, choice, None])
        dx = torch.autograd.grad(y, x, dy.float())[0] if y.requires_grad else torch.zeros_like(y)
        y = y.detach()
        for part in (y, dx):
            dist.all_reduce(part)
        own = slice(self.session.rank * few, (self.session.rank + 1) * few)
        return y[own].clone(), dx[own].clone()

    def mlp(self, rows: Tensor, offsets: Tensor, count: Tensor | None = None) -> Tensor:
        """The experts of this rank, of rows in their order. count: how many rows there are, if not all."""
        h = _grouped_mm(rows, self.w13.transpose(-1, -2), offs=offsets)
        return _grouped_mm(Gate.apply(h, count), self.w2.transpose(-1, -2), offs=offsets)

    def _layer(self, x: Tensor, weights: Tensor, plan: Plan) -> Tensor:
        rows = exchanged(Rows.apply(x, plan.order, plan.place), plan.send, plan.receive)
        y = self.mlp(permuted(rows, plan.to_expert, plan.back), plan.offsets)
        back = exchanged(permuted(y, plan.back, plan.to_expert), plan.receive, plan.send)
        return Weighted.apply(back, weights, plan.order, plan.place)

    def _divided(self) -> Tensor:
        move, back = partial(gathered, ranks=self.ranks), partial(scattered, ranks=self.ranks)
        x, ids, weights = (Moved.apply(own, move, back) for own in (self.x, self.ids, self.weights))
        order, place, counts = by_expert(ids, self.layer.experts)
        y = self.mlp(Rows.apply(x, order, place), counts.cumsum(0).to(torch.int32))
        return Moved.apply(Weighted.apply(y, weights, order, place), back, move)

    def unfused(self, found: bool = False) -> Tensor:
        if self.divided:
            return self._divided()
        plan = planned(self.ids, self.layer.experts, self.ranks) if found else self.now.plan
        assert plan is not None
        return self._layer(self.x, self.weights, plan)

    def ours(self, scaled: Sequence[Tensor] = ()) -> Tensor:
        """scaled: weights in fp8 and their scales, instead of those in bf16."""
        w13, w2, *scales = scaled or (self.w13, self.w2)
        operands: Any = self.x, self.ids, self.weights, w13, w2
        more: Any = dict(zip(("w13_scale", "w2_scale"), scales, strict=False))
        if self.divided:
            return ops.moe(*operands, **more)
        tokens = max(self.tokens) if len({*self.tokens}) > 1 else None
        return ops.expert_parallel(*operands, tokens=tokens, **more)

    def scaled(self) -> Variant:
        (w13, of_w13), (w2, of_w2) = (expert_libraries.in_blocks(one) for one in (self.w13, self.w2))
        return self._ours(SCALED, partial(self.ours, (w13, w2, of_w13, of_w2)), ALLOWED_SCALED)

    def graded(self, call: Callable[[], Tensor]) -> Tensor:
        """Run forward and backward, and return dx; gradients of weights stay in `grad`."""
        self.forward(call)
        return self.backward()

    def forward(self, call: Callable[[], Tensor]) -> None:
        """Run forward, and keep what backward needs."""
        operands = (self.x, self.weights, self.w13, self.w2)
        for one in operands:
            one.grad = None
            one.requires_grad_()
        with torch.enable_grad():
            self.y = call()

    def backward(self) -> Tensor:
        self.y.backward(self.dy)
        del self.y
        for one in (self.x, self.weights, self.w13, self.w2):
            one.requires_grad_(False)
        assert self.x.grad is not None
        return self.x.grad

    def alone(self) -> Callable[[], Tensor]:
        """The experts, of rows that are there."""
        plan = self.now.plan
        if plan is None:
            x, ids = gathered(self.x, self.ranks), gathered(self.ids, self.ranks)
            order, _, counts = by_expert(ids, self.layer.experts)
            rows, offsets = x.index_select(0, order // self.layer.chosen), counts.cumsum(0).to(torch.int32)
        else:
            sent = exchanged(self.x.index_select(0, plan.order // self.layer.chosen), plan.send, plan.receive)
            rows, offsets = sent.index_select(0, plan.to_expert), plan.offsets
        return lambda: self.mlp(rows, offsets)

    def exchange(self) -> Callable[[], Tensor]:
        """The transfers, by NCCL."""
        plan = self.now.plan
        if plan is None:
            full, out = gathered(self.x, self.ranks), torch.empty_like(self.x)

            def both() -> Tensor:
                dist.all_gather_into_tensor(full, self.x)
                dist.reduce_scatter_tensor(out, full)
                return out

            return both
        rows = self.x.index_select(0, plan.order // self.layer.chosen)
        there, back = exchanged(rows, plan.send, plan.receive), torch.empty_like(rows)

        def there_and_back() -> Tensor:
            dist.all_to_all_single(there, rows, plan.receive, plan.send)
            dist.all_to_all_single(back, there, plan.send, plan.receive)
            return back

        return there_and_back

    # Variants ------------------------------------------------------------------------------------------------

    def each(self, maker: Callable[[], Callable[[], Tensor]], graph: bool) -> Callable[[], Tensor]:
        """Return what runs one of several calls, each made for one of the pool, of which few tokens are captured."""
        made: list[Callable[[], Tensor]] = []
        for one in self.pool:
            self.take(one)
            made.append(captured(maker()) if graph else maker())
        return lambda: made[self.at % POOL]()

    def parts(self) -> Iterator[tuple[str, Callable[[], Variant]]]:
        """Dispatch alone, and combine alone: what each choice returns is there, and the sums go back."""
        layer, ranks, M = self.layer, self.ranks, max(self.tokens)
        blocks, room = (-1, gcd(M * layer.chosen, 256)), ranks * M * layer.chosen + 1
        dispatch = tilelink.op(library_module("moe_dispatch").program("moe_dispatch"), "gpu")
        combine = tilelink.op(tilelink.load(str(COMBINE)).program("combined"), "gpu")

        def dispatched() -> Any:
            ids, weights = self.ids.view(blocks), self.weights.view(blocks)
            first = 0 if self.divided else layer.local
            return dispatch(self.x, ids, weights, E=layer.local, k=layer.chosen, T=room, first=first)

        def combined() -> Callable[[], Tensor]:
            made = dispatched()
            place, scale = (one.view(ranks, M, -1).clone() for one in (made.place, made.scale))
            starts, c = made.starts.clone(), torch.randn(room, layer.hidden, device=self.x.device, dtype=bf16)
            c[starts[-1] - 1] = 0
            sums = torch.zeros(ranks, M, layer.hidden, device=c.device)
            for q in range(layer.chosen):
                sums += scale[:, :, q, None] * c[place[:, :, q].long()]
            dist.all_reduce(sums)
            wanted.append(sums[self.session.rank].to(bf16))
            return lambda: combine(starts, place, scale, c, E=layer.local)

        wanted: list[Tensor] = []
        yield DISPATCH, lambda: Variant(name=DISPATCH, kind="transfer", run=dispatched, settle=lambda made: made.xs,
                                        expected=lambda: gathered(self.now.x, ranks))  # fmt: skip
        yield COMBINED, lambda: Variant(name=COMBINED, kind="transfer", run=self.each(combined, False),
                                        expected=lambda: wanted[self.at % POOL])  # fmt: skip

    def variants(
        self, graded: bool, parts: bool, scaled: bool, beside: tuple[str, str] | None
    ) -> Iterator[tuple[str, Callable[[], Variant]]]:
        yield ALONE, lambda: self._variant(ALONE, self.each(self.alone, self.graph), None)
        yield EXCHANGE, lambda: self._variant(EXCHANGE, self.each(self.exchange, self.graph), None)
        known = (lambda: self.each(lambda: self.unfused, True)) if self.graph else (lambda: self.unfused)
        yield KNOWN, lambda: self._variant(KNOWN, known(), lambda: self.now.checked[0])
        if not self.divided:
            yield FOUND, lambda: self._variant(FOUND, partial(self.unfused, True), lambda: self.now.checked[0])
        if beside is not None and not self.divided:
            yield beside[0], partial(self._beside, *beside)
        yield OURS, lambda: self._ours(OURS, self.ours, ALLOWED)
        if scaled:
            yield SCALED, self.scaled
        if parts and len({*self.tokens}) == 1:
            yield from self.parts()
        for of, call in ((KNOWN, self.unfused), (OURS, self.ours)) if graded and not self.graph else ():
            yield of + GRADED, partial(self._graded, of + GRADED, KINDS[of], call)
            yield of + BACKWARD, partial(self._graded, of + BACKWARD, KINDS[of], call)

    def _variant(self, name: str, run: Callable[[], Tensor], checked: Callable[[], Tensor] | None) -> Variant:
        settle = None if checked is None else lambda y: y[: len(checked())]
        return Variant(name=name, kind=KINDS[name], run=run, expected=checked, settle=settle)

    def _ours(self, name: str, call: Callable[[], Tensor], allowed: float) -> Variant:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        before = torch.cuda.mem_get_info()[0]
        first = call()
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        usual = torch.cuda.memory_allocated()
        del first
        call()
        torch.cuda.synchronize()
        peak = torch.cuda.max_memory_allocated() - usual
        torch.cuda.empty_cache()
        notes = {"peak_bytes": peak, "held_bytes": before - torch.cuda.mem_get_info()[0]}
        torch.cuda.set_sync_debug_mode("error")  # no call may wait for the GPU
        try:
            call()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        run = captured(call) if self.graph else call
        return Variant(name=name, kind="ours", run=run, expected=lambda: self.now.expected[False], allowed=allowed,
                       notes=notes)  # fmt: skip

    def _beside(self, name: str, folder: str) -> Variant:
        maker, allowed = expert_libraries.LIBRARIES[name]
        layer = maker(folder, self)
        return Variant(name=name, kind="library", run=lambda: layer(self.x, self.ids, self.weights),
                       expected=lambda: self.now.expected[False], allowed=allowed)  # fmt: skip

    def _expect_gradients(self) -> None:
        """Find what gradients must be, by the unfused layer: dx of each sample, the others of the last one."""
        for one in self.pool if not self._gradients else ():
            self.take(one)
            one.expected[True] = self.graded(self.unfused).clone()
            self._right(one.expected[True], one.checked[1], "the unfused gradient", ALLOWED_GRADIENT)
            self._gradients = [g for g in (self.weights.grad, self.w13.grad, self.w2.grad) if g is not None]

    def _graded(self, name: str, kind: str, call: Callable[[], Tensor]) -> Variant:
        self._expect_gradients()
        self.take(self.pool[-1])
        self.graded(call)
        for of, expected in zip(("weights", "w13", "w2"), self._gradients, strict=True):
            error = float(relative_error(getattr(self, of).grad, expected))
            if error > ALLOWED_GRADIENT:
                raise AssertionError(f"the gradient of {of} is off by {error:.2e}")
        prepare, run = None, partial(self.graded, call)
        if name.endswith(BACKWARD):
            prepare, run = partial(self.forward, call), self.backward
        return Variant(name=name, kind=kind, run=run, prepare=prepare,
                       expected=lambda: self.now.expected[True], allowed=ALLOWED_GRADIENT)  # fmt: skip


def measured(case: Case, args: argparse.Namespace) -> dict[str, Any]:
    session = case.session
    session.watchdog.context(case.name)
    beside = (args.beside, args.folder) if args.beside else None
    wanted = [
        own
        for own in case.variants(args.graded, args.parts, args.scaled, beside)
        if not args.only or own[0] in args.only
    ]
    with torch.no_grad():
        built = [session.build(label, KINDS.get(label, "library"), builder) for label, builder in wanted]
        variants = [one for one in built if isinstance(one, Variant)]
        rows = session.time(variants, case.refresh, samples=args.samples, warmups=args.warmups)
    failed = [one for one in built if not isinstance(one, Variant)]
    return {"name": case.name, "work": case.work, "graph": case.graph, "rows": [*rows, *failed]}


# The report --------------------------------------------------------------------------------------------------------


def lines(case: dict[str, Any]) -> Iterator[str]:
    if "losses" in case:
        (orders, distance), (plain, _, own) = case["apart"], case["losses"]
        yield f"{case['name']}: from {plain[0]:.4f} to {own[-1]:.4f}, plain {plain[-1]:.4f}"
        yield f"    two orders of sums differ by {orders:.1e}, ours by {distance:.1e}"
        return
    yield case["name"] + ": " + ", ".join(f"{row['name']} {us(row['us'])}" for row in case["rows"] if row["us"])
    for row in case["rows"]:
        if row["us"] is None:
            yield f"    {row['name']}: {row['failure'][:300]}"
        if "held_bytes" in row:
            yield f"    {row['name']}: {row['held_bytes'] >> 20} MiB held, {row['peak_bytes'] >> 20} more while it runs"


def cells_of(
    case: dict[str, Any], way: str, ways: Sequence[str], libraries: list[str]
) -> tuple[list[str], float | None]:
    """Return a row of the table, and how many times as fast ours is as the best of the others."""
    step = {row["name"]: row["us"] for row in case["rows"] if row["us"]}
    mine, alone = step.get(OURS + way), step.get(ALONE + way)
    others = [step[one + way] for one in (KNOWN, *libraries) if one + way in step]
    bound = max(alone, step[EXCHANGE]) if alone and EXCHANGE in step else None
    faster = min(others) / mine if mine and others else None
    rate = case["work"] * WORK[way] / mine / 1e6 if mine else None
    shares = [mine / one if mine and one else None for one in (alone, bound)] + [faster]
    memory = [
        f"{row['held_bytes'] >> 20:,} + {row['peak_bytes'] >> 20:,}"
        for row in case["rows"]
        if "held_bytes" in row and row["name"] == OURS
    ]
    times = [step.get(one + way) for one in ways]
    return [
        case["name"] + way, *(us(one) if one else "-" for one in times), f"{rate:.0f}" if rate else "-",
        *(f"{one:.2f}" if one else "-" for one in shares), "-" if way or not memory else memory[0],
    ], faster  # fmt: skip


def report(found: dict[str, Any], name: str) -> list[str]:
    """Return the section of a report in docs/results.md."""
    machine, rows, gains = found["machine"], list[list[str]](), list[float]()
    timed = [case for case in found["cases"] if "losses" not in case]
    names = [row["name"] for case in timed for row in case["rows"] if row["kind"] == "library"]
    libraries = list(dict.fromkeys(names))
    every = {row["name"] for case in timed for row in case["rows"]}
    more = {one: (one,) if one in every else () for one in (DISPATCH, COMBINED, SCALED)}
    ways = (ALONE, EXCHANGE, *more[DISPATCH], *more[COMBINED], KNOWN, FOUND, *libraries, *more[SCALED], OURS)
    for case in timed:
        there = {row["name"] for row in case["rows"]}
        for way in (one for one in WORK if not one or OURS + one in there):
            row, faster = cells_of(case, way, ways, libraries)
            rows.append(row)
            gains += [faster] if faster and not way else []
    parts = [f"## {name}", ""]
    if rows:
        columns = ("layer", *ways, "TFLOP/s", "/ alone", "/ bound", "x others", "MiB")
        parts += [
            f"Mixtures of experts on {found['ranks']} {machine['gpu']} (benchmarks/experts.py), bf16: LAYER:TOKENS of "
            "a rank:ROUTING, or LAYER/tp: tensor parallel, with the tokens of all ranks. Microseconds of the slowest "
            f"rank, medians of {found['samples']} samples, each with another routing; up to {FEW} tokens in CUDA "
            f"graphs, but for `{FOUND}` and other libraries. `{ALONE}`: the experts' products, of rows that are there; "
            f"`{EXCHANGE}`: the rows by NCCL, there and back; `{DISPATCH}` and `{COMBINED}`: these parts of ours. "
            f"TFLOP/s of a rank, ours / `{ALONE}`, ours / the slower of `{ALONE}` and `{EXCHANGE}`, times as fast as "
            f"the best of `{KNOWN}` and libraries, and MiB that ours holds, and takes while it runs. Driver "
            f"{machine['driver']}, torch {machine['torch']}, triton {machine['triton']}, NCCL {machine['nccl']}.", "",
            *table(columns, rows), "",
        ]  # fmt: skip
    if len(gains) > 1:
        parts += [f"In the geometric mean {geometric_mean(gains):.2f} times as fast as the best of the others.", ""]
    trained = [case for case in found["cases"] if "losses" in case]
    if trained:
        orders, distance = (fmean(case["apart"][n] for case in trained) for n in (0, 1))
        parts += [
            f"examples/10_mixture_of_experts.py on {found['ranks']} {machine['gpu']}, {len(trained)} seeds: how far "
            "the losses of all steps are apart in the mean, relative to the loss, those of two orders of sums in plain "
            "torch, and ours from the nearer of them.", "",
            *table(("seed", "first loss", "last, plain", "last, ours", "two orders", "ours"), [
                (case["name"], f"{case['losses'][0][0]:.4f}", f"{case['losses'][0][-1]:.4f}",
                 f"{case['losses'][2][-1]:.4f}", *(f"{one:.1e}" for one in case["apart"])) for case in trained
            ]), "", f"All seeds: two orders {orders:.1e}, ours {distance:.1e}.", "",
        ]  # fmt: skip
    return parts


def losses(session: Session, name: str) -> dict[str, Any]:
    """The losses of a model with layers of experts: of plain torch, with another order of sums, and of ours."""
    spec = importlib.util.spec_from_file_location("mixture", ROOT / "examples" / "10_mixture_of_experts.py")
    assert spec and spec.loader
    spec.loader.exec_module(example := importlib.util.module_from_spec(spec))
    mesh = init_device_mesh(session.device.type, (session.ranks,), mesh_dim_names=("ep",))
    with session.watchdog.step(name):
        made = example.trained(mesh, int(name.partition(":")[2]))
    return {"name": name, "losses": made, "apart": example.distances(*made)}


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = cases.parser(__doc__, samples=15)
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--only", default="", help="names of ways, joined by ';'; all if it is empty")
    parser.add_argument("--graded", action="store_true", help="forward and backward too")
    parser.add_argument("--parts", action="store_true", help="dispatch alone and combine alone too")
    parser.add_argument("--scaled", action="store_true", help="with weights and tokens in fp8 too")
    parser.add_argument("--beside", choices=tuple(expert_libraries.LIBRARIES), help="another library")
    parser.add_argument("--folder", default="", help="its unpacked wheels")
    args = parser.parse_args(argv)
    args.only = [one for one in args.only.split(";") if one]
    args.cases = args.cases.split(",")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    args = arguments(argv)
    if args.dry:
        return 0  # the operators compile their own kernels
    run = cases.Run("experts", FILE, args, lambda _: [])
    run.session.sleep_cycles = SLEEP_CYCLES
    for name in args.cases:
        trained = name.startswith("losses:")
        case = losses(run.session, name) if trained else measured(Case(run.session, name), args)
        run.add(case, lines(case))
        torch.cuda.empty_cache()
    run.end()


if __name__ == "__main__":
    sys.exit(main())
