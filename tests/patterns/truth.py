"""What the patterns of docs/patterns.md compute, in plain torch: outputs of all ranks from inputs of all ranks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import silu

Ranks = list[dict[str, Tensor]]
"""[rank][name]: inputs or outputs."""

SCALE = 0.25
"""Of the scores of attention."""

TRUTHS: dict[str, Case] = {}
"""The case of each program, by its name."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A program on CPU ranks: sizes, what its inputs become that depend on one another, and its outputs."""

    ranks: int
    dims: dict[str, int | float]
    given: Callable[[Ranks], None]
    outputs: Callable[[Ranks], Ranks]
    error: float


def case(
    ranks: int, *, given: Callable[[Ranks], None] = lambda _: None, error: float = 1e-5, **dims: int | float
) -> Callable[[Callable[[Ranks], Ranks]], Callable[[Ranks], Ranks]]:
    def known(outputs: Callable[[Ranks], Ranks]) -> Callable[[Ranks], Ranks]:
        TRUTHS[outputs.__name__] = Case(ranks=ranks, dims=dims, given=given, outputs=outputs, error=error)
        return outputs

    return known


def of_all(inputs: Ranks, name: str) -> Tensor:
    """[ranks, ...]: a tensor of every rank."""
    return torch.stack([one[name] for one in inputs])


@case(3, Ms=20, N=24, K=16)
def ag_gemm(inputs: Ranks) -> Ranks:
    return [{"y": of_all(inputs, "x") @ one["w"].T} for one in inputs]


@case(4, Ms=20, N=24, K=16)
def gemm_rs_local_last(inputs: Ranks) -> Ranks:
    sums = torch.stack([one["x"] @ one["w"].T for one in inputs]).sum(0)
    return [{"y": sums[rank]} for rank in range(len(inputs))]


@case(3, M=20, N=24, K=16)
def gemm_ar_one_shot(inputs: Ranks) -> Ranks:
    sums = torch.stack([one["x"] @ one["w"].T for one in inputs]).sum(0)
    return [{"y": sums} for _ in inputs]


@case(3, Ms=12, K=16, N=24, E=3, T=30)
def grouped_gemm(inputs: Ranks) -> Ranks:
    xs = of_all(inputs, "x").flatten(0, 1)

    def rows(one: dict[str, Tensor]) -> Tensor:
        ends = one["starts"].tolist()
        parts = [xs[one["rows"][a:b]] @ w.T for a, b, w in zip(ends, ends[1:], one["w"], strict=False)]
        return torch.cat(parts)

    return [{"y": rows(one)} for one in inputs]


@case(2, Ms=10, k=2, E=3, C=16, F=12, N=20)
def moe_reduce_scatter(inputs: Ranks) -> Ranks:
    def part(one: dict[str, Tensor]) -> Tensor:
        made = one["h"] @ one["down"].transpose(1, 2)
        return (one["weight"][..., None] * made[one["expert"].long(), one["slot"].long()]).sum(2)

    sums = torch.stack([part(one) for one in inputs]).sum(0)
    return [{"y": sums[rank]} for rank in range(len(inputs))]


@case(3, M=10, H=12, C=8, k=2)
def expert_parallel(inputs: Ranks) -> Ranks:
    def combined(one: dict[str, Tensor]) -> Tensor:
        back = silu(one["x"][one["rows"].long()])
        return (one["weight"][..., None] * back[one["owner"].long(), one["slot"].long()]).sum(1)

    return [{"y": combined(one)} for one in inputs]


@case(3, M=10, H=32, F=16, C=8, E=2, k=2)
def low_latency_experts(inputs: Ranks) -> Ranks:
    up, down = of_all(inputs, "up"), of_all(inputs, "down")

    def combined(one: dict[str, Tensor]) -> Tensor:
        sent = one["x"][one["rows"].long()]
        back = silu(sent @ up.transpose(2, 3)) @ down.transpose(2, 3)
        return (one["weight"][..., None] * back[one["owner"].long(), one["expert"].long(), one["slot"].long()]).sum(1)

    return [{"y": combined(one)} for one in inputs]


def quantised(x: Tensor) -> Tensor:
    """x after a round trip through 8-bit floats with a scale for each row."""
    scale = x.abs().amax(-1, keepdim=True).clamp_min(1e-12) / 448.0
    return (x / scale).to(torch.float8_e4m3fn).float() * scale


@case(2, M=10, H=32, F=32, C=8, E=2, k=2, error=0.02)
def fp8_experts(inputs: Ranks) -> Ranks:
    up = of_all(inputs, "up").float() * of_all(inputs, "scale")[..., None]
    down = of_all(inputs, "down")

    def combined(one: dict[str, Tensor]) -> Tensor:
        sent = quantised(one["x"])[one["rows"].long()]
        back = silu(sent @ up.transpose(2, 3)) @ down.transpose(2, 3)
        return (one["weight"][..., None] * back[one["owner"].long(), one["expert"].long(), one["slot"].long()]).sum(1)

    return [{"y": combined(one)} for one in inputs]


@case(4, U=2, M=10, C=12, K=16, F=12, k=2, A=2)
def m2n_ping_pong(inputs: Ranks) -> Ranks:
    experts = inputs[2:]

    def combined(one: dict[str, Tensor]) -> Tensor:
        a = one["x"] @ one["wo"].T
        u = torch.arange(len(a))[:, None, None]
        sent = a[u, one["rows"].long()]
        back = [silu(sent[:, e] @ expert["up"].T) @ expert["down"].T for e, expert in enumerate(experts)]
        chosen = torch.stack(back, 1)[u, one["owner"].long(), one["slot"].long()]
        return a + (one["weight"][..., None] * chosen).sum(2)

    return [{"y": combined(one)} for one in inputs[:2]] + [{} for _ in experts]


@case(5, L=2, U=2, M=3, K=16, H=2, G=2, D=16, P=5, T=16, S=2, E=2, k=2, I=12, scale=SCALE, A=2, B=2)
def m2n_layers(inputs: Ranks) -> Ranks:
    experts = inputs[2:]

    def attention(one: dict[str, Tensor], layer: int, u: int, h: Tensor) -> Tensor:
        made = h.clone()
        for i in range(len(h)):
            held = int(one["length"][u, i])
            keys, vals = (one[name][layer, one["pages"][u, i].long()].flatten(0, 1)[:held] for name in ("keys", "vals"))
            for b in range(keys.shape[1]):
                queries = one["wq"][layer, b] @ h[i]
                seen = (queries @ keys[:, b].T * SCALE).softmax(-1) @ vals[:, b]
                made[i] += torch.einsum("gkd,gd->k", one["wo"][layer, b], seen)
        return made

    def mixed(layer: int, a: Tensor, gate: Tensor) -> Tensor:
        share, chosen = (a @ gate.T).softmax(-1).topk(2, -1)
        made = a.clone()
        for i, c in torch.cartesian_prod(torch.arange(len(a)), torch.arange(2)).tolist():
            owner, own = divmod(int(chosen[i, c]), 2)
            gated, up = experts[owner]["w13"][layer, own] @ a[i]
            made[i] += share[i, c] * (experts[owner]["w2"][layer, own] @ (silu(gated) * up))
        return made

    def through(one: dict[str, Tensor], u: int) -> Tensor:
        h = one["x"][u]
        for layer in range(2):
            h = mixed(layer, attention(one, layer, u, h), one["gate"][layer])
        return h

    return [{"y": torch.stack([through(one, u) for u in range(2)])} for one in inputs[:2]] + [{} for _ in experts]


def attended(q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None = None) -> Tensor:
    """Attention of [.., m, d] to [.., n, d], of all pairs or of those that are seen, [m, n]."""
    scores = q @ k.transpose(-1, -2) * SCALE
    if seen is not None:
        scores = scores.masked_fill(~seen, float("-inf"))
    return scores.softmax(-1) @ v


def causal(rows: int) -> Tensor:
    return torch.ones(rows, rows).tril().bool()


def whole(inputs: Ranks, name: str) -> Tensor:
    """[H, rows of all ranks, D], of [H, Ms, D] of each rank."""
    return torch.cat([one[name] for one in inputs], 1)


@case(3, H=2, NB=2, B=16, D=16, scale=SCALE)
def gathered_attention(inputs: Ranks) -> Ranks:
    q, k, v = (torch.cat([one[name].flatten(1, 2) for one in inputs], 1) for name in "qkv")
    made = attended(q, k, v, causal(q.shape[1]))
    return [{"o": part.reshape(2, 2, 16, 16)} for part in made.chunk(3, 1)]


@case(4, H=2, Ms=16, D=16, scale=SCALE)
def ring_attention(inputs: Ranks) -> Ranks:
    q, k, v = (whole(inputs, name) for name in "qkv")
    made = attended(q, k, v, causal(q.shape[1]))
    return [{"o": part} for part in made.chunk(4, 1)]


@case(3, H=2, M=16, D=16, scale=SCALE)
def zigzag_attention(inputs: Ranks) -> Ranks:
    ranks = len(inputs)
    order = [s if s < ranks else 2 * ranks - 1 - s for s in range(2 * ranks)]
    q, k, v = (torch.cat([inputs[r][name][int(s >= ranks)] for s, r in enumerate(order)], 1) for name in "qkv")
    chunks = attended(q, k, v, causal(q.shape[1])).chunk(2 * ranks, 1)
    return [{"o": torch.stack([chunks[r], chunks[2 * ranks - 1 - r]])} for r in range(ranks)]


def packed(inputs: Ranks) -> None:
    """Blocks in which the documents of blocks begin."""
    ends = inputs[0]["cu_seqlens"]
    for rank, one in enumerate(inputs):
        rows = (torch.arange(2) + rank * 2) * 16
        begin = torch.where(ends[None] <= rows[:, None], ends[None], 0).amax(1)
        one["first"] = (begin // 16).to(torch.int32)


@case(3, given=packed, H=2, NB=2, B=16, D=16, Z=4, scale=SCALE)
def document_attention(inputs: Ranks) -> Ranks:
    q, k, v = (torch.cat([one[name].transpose(0, 1).flatten(1, 2) for one in inputs], 1) for name in "qkv")
    row = torch.arange(q.shape[1])
    document = (inputs[0]["cu_seqlens"][None] <= row[:, None]).sum(1)
    made = attended(q, k, v, causal(len(row)) & (document[:, None] == document[None]))
    return [{"o": part.reshape(2, 2, 16, 16).transpose(0, 1)} for part in made.chunk(3, 1)]


@case(3, Hs=2, Ms=16, D=16, scale=SCALE)
def ulysses(inputs: Ranks) -> Ranks:
    q, k, v = (torch.cat([one[name] for one in inputs], 2) for name in "qkv")
    return [{"o": part} for part in attended(q, k, v).chunk(3, 2)]


def same_queries(inputs: Ranks) -> None:
    for one in inputs:
        one["q"] = inputs[0]["q"]


@case(2, given=same_queries, B=3, P=7, T=16, H=2, G=16, D=16, S=4, C=2, scale=SCALE)
def paged_decode(inputs: Ranks) -> Ranks:
    def row(b: int) -> Tensor:
        keys, values = [], []
        for rank, one in enumerate(inputs):
            pages = one["pages"][b].long()
            keys.append(one["keys"][pages].flatten(0, 1)[: int(one["count"][rank, b])])
            values.append(one["vals"][pages].flatten(0, 1)[: int(one["count"][rank, b])])
        k, v = torch.cat(keys).transpose(0, 1), torch.cat(values).transpose(0, 1)
        return attended(inputs[0]["q"][b], k, v)

    made = torch.stack([row(b) for b in range(3)])
    return [{"y": made} for _ in inputs]


def forward_pass(inputs: Ranks) -> None:
    """Results and log-sums of the forward pass."""
    q, k, v = (whole(inputs, name) for name in "qkv")
    seen = causal(q.shape[1])
    made = attended(q, k, v, seen).chunk(len(inputs), 1)
    sums = (q @ k.transpose(1, 2) * SCALE).masked_fill(~seen, float("-inf")).logsumexp(-1).chunk(len(inputs), 1)
    for one, o, lse in zip(inputs, made, sums, strict=True):
        one |= {"o": o.contiguous(), "lse": lse.contiguous()}


@case(3, given=forward_pass, H=2, Ms=16, D=16, scale=SCALE)
def attention_backward(inputs: Ranks) -> Ranks:
    q, k, v = (whole(inputs, name).requires_grad_() for name in "qkv")
    found = torch.autograd.grad(attended(q, k, v, causal(q.shape[1])), (q, k, v), whole(inputs, "do"))
    parts = [one.chunk(len(inputs), 1) for one in found]
    return [{"dq": dq, "dk": dk, "dv": dv} for dq, dk, dv in zip(*parts, strict=True)]


@case(3, L=3, M=12, Ds=8)
def fsdp(inputs: Ranks) -> Ranks:
    layers = torch.cat([one["shard"] for one in inputs], 1)

    def through(x: Tensor) -> Tensor:
        for layer in layers:
            x = x @ layer.T
        return x

    return [{"y": through(one["x"])} for one in inputs]


@case(4, U=5, M=12, D=16)
def pipeline_1f1b(inputs: Ranks) -> Ranks:
    given = [inputs[0]["x"].requires_grad_()]
    weights = [one["w"].requires_grad_() for one in inputs]
    for w in weights:
        given.append(given[-1] @ w.T)
    loss = (given[-1] - inputs[-1]["target"]).square().sum() / 2
    found = torch.autograd.grad(loss, [*given[:-1], *weights])
    return [{"dx": dx, "dw": dw} for dx, dw in zip(found, found[len(inputs) :], strict=False)]


@case(2, Ms=16, D=24, F=20, N=12, eps=1e-5)
def async_tp_block(inputs: Ranks) -> Ranks:
    xs = of_all(inputs, "x")
    sums = torch.stack([silu(xs @ one["up"].T) @ one["down"].T for one in inputs]).sum(0) + of_all(inputs, "skip")
    normed = sums * (sums.square().mean(-1, keepdim=True) + 1e-5).rsqrt()
    gained = torch.stack([rows * one["gain"] for rows, one in zip(normed, inputs, strict=True)])
    return [{"sums": rows, "y": gained @ one["next"].T} for rows, one in zip(sums, inputs, strict=True)]


@case(4, M=12, N=20)
def double_tree(inputs: Ranks) -> Ranks:
    return [{"y": of_all(inputs, "x").sum(0)} for _ in inputs]


@case(2, Ms=12, N=16, KB=2, B=32, error=0.01)
def ag_gemm_f8_blocks(inputs: Ranks) -> Ranks:
    rows = quantised(of_all(inputs, "x"))

    def product(one: dict[str, Tensor]) -> Tensor:
        weights = one["w"].float() * one["w_scale"][..., None]
        return torch.einsum("smkb,knb->smn", rows, weights)

    return [{"y": product(one)} for one in inputs]


@case(2, M=12, E=6, k=2)
def top_k_gate(inputs: Ranks) -> Ranks:
    def chosen(scores: Tensor) -> dict[str, Tensor]:
        score, expert = scores.topk(2, 1)
        order, slot = expert.T.flatten(), torch.empty(24, dtype=torch.int64)
        for e in range(6):
            slot[order == e] = torch.arange(int((order == e).sum()))
        return {"expert": expert, "score": score, "slot": slot.view(2, 12).T, "count": order.bincount(minlength=6)}

    return [chosen(one["scores"]) for one in inputs]
