# pyright: basic
"""Layers of experts on every GPU rank, beside plain torch in f32: results, gradients and graphs, without a wait."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.functional import silu

from benchmarks.expert_libraries import in_blocks
from tests.gpu.lockstep import Checks, together
from tests.gpu.ops_scenarios import near, random
from tilelink import ops
from tilelink.errors import CapacityError
from tilelink.ops.experts import LATER
from tilelink.settings import settings

H, INNER, E, k, ROWS = 256, 128, 8, 4, 320
KINDS = ("expert_parallel", "moe")
Tensor = torch.Tensor


class Layer:
    """A layer of experts of all ranks, with data that each rank draws alike. slices: a rank has slices of experts."""

    def __init__(self, kind: str, tokens: list[int], choices: int = k, shared: bool = False) -> None:
        ranks, self.rank, self.tokens, self.kind = dist.get_world_size(), dist.get_rank(), tokens, kind
        self.choices = choices
        slices = kind == "moe"
        torch.manual_seed(3)
        self.experts = E if slices else E * ranks
        inner = INNER * ranks if slices else INNER
        self.w13 = random(self.experts, 2 * inner, H, scale=H**-0.5)
        self.w2 = random(self.experts, H, inner, scale=inner**-0.5)
        if slices:
            w13 = self.w13.unflatten(1, (2, -1)).chunk(ranks, 2)[self.rank].flatten(1, 2)
            self.own = (w13.contiguous(), self.w2.chunk(ranks, 2)[self.rank].contiguous())
        else:
            self.own = (self.w13.chunk(ranks)[self.rank], self.w2.chunk(ranks)[self.rank])
        sizes = ((2 * INNER, H), (H, INNER)) if shared else ()
        self.shared = tuple(random(*size, scale=size[1] ** -0.5) for size in sizes)
        self.draw(4)

    def draw(self, seed: int, favourite: int | None = None) -> None:
        torch.manual_seed(seed)
        self.x = [random(M, H) for M in self.tokens]
        self.factors = [random(M, H) for M in self.tokens]
        self.ids = [torch.rand(M, self.experts, device="cuda").topk(self.choices).indices for M in self.tokens]
        self.weights = [torch.rand(M, self.choices, device="cuda") for M in self.tokens]
        for one in self.ids:
            one[torch.rand(one.shape, device="cuda") < 0.1] = -1
            if favourite is not None:
                one[:, -1] = favourite

    def operands(self) -> tuple[Tensor, ...]:
        return self.x[self.rank], self.ids[self.rank], self.weights[self.rank], *self.own

    def call(self, *operands: Tensor, **options: Any) -> Tensor:
        if len({*self.tokens}) > 1:
            options["tokens"] = max(self.tokens)
        if self.shared:
            options["shared"] = self.shared
        return getattr(ops, self.kind)(*operands, **options)

    def wanted(self) -> list[Tensor]:
        """Return the own result and gradients of all operands that have them."""
        x, weights = ([one.float().requires_grad_() for one in every] for every in (self.x, self.weights))
        w13, w2 = (one.float().requires_grad_() for one in (self.w13, self.w2))
        results = []
        for own, ids, scale in zip(x, self.ids, weights, strict=True):
            y = torch.zeros_like(own)
            for e in range(self.experts):
                gate, up = (own @ w13[e].t()).chunk(2, 1)
                y = y + torch.where(ids == e, scale, 0).sum(1, keepdim=True) * ((silu(gate) * up) @ w2[e].t())
            if self.shared:
                gate, up = (own @ self.shared[0].float().t()).chunk(2, 1)
                y = y + (silu(gate) * up) @ self.shared[1].float().t()
            results.append(y)
        loss = torch.stack([(y * one).sum() for y, one in zip(results, self.factors, strict=True)]).sum()
        leaves = [x[self.rank], weights[self.rank], w13, w2]
        dx, dweights, dw13, dw2 = torch.autograd.grad(loss, leaves)
        ranks = len(self.tokens)
        if self.kind == "moe":
            dw13 = dw13.unflatten(1, (2, -1)).chunk(ranks, 2)[self.rank].flatten(1, 2)
            dw2 = dw2.chunk(ranks, 2)[self.rank]
        else:
            dw13, dw2 = dw13.chunk(ranks)[self.rank], dw2.chunk(ranks)[self.rank]
        return [results[self.rank].detach(), dx, dweights, dw13, dw2]


@contextmanager
def without_waits() -> Iterator[None]:
    """Raise where torch would have the host wait for the GPU, unless what was asked for cannot do without.

    Ranks that share a GPU exchange through the host, and with TILELINK_CHECK=1 they compare each call there.
    """
    waits = dist.get_backend() != "nccl" or settings().check
    torch.cuda.set_sync_debug_mode("default" if waits else "error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def experts() -> None:
    """Each operator, by each of the below."""
    cases = [(kind, what) for kind in KINDS for what in BODIES]
    together(cases, lambda case, checks: BODIES[case[1]](case[0], checks), str)


def _gradients(kind: str, checks: Checks) -> None:
    ranks = dist.get_world_size()
    for tokens in ([ROWS] * ranks, [max(0, ROWS - 200 * rank) for rank in range(ranks)]):
        layer = Layer(kind, tokens)
        for favourite in (None, 2):
            layer.draw(7, favourite)
            wanted = layer.wanted()
            for options in ({}, {"recompute": True}, {"schedule": "unfused"}):
                x, ids, weights, w13, w2 = layer.operands()
                leaves = [one.clone().requires_grad_() for one in (x, weights, w13, w2)]
                _with_gradients(layer, leaves, ids, options)  # makes kernels, forward and backward
                with without_waits():
                    y, made = _with_gradients(layer, leaves, ids, options)
                names = ("y", "dx", "dweights", "dw13", "dw2")
                for name, one, expected in zip(names, (y, *made), wanted, strict=True):
                    if expected.numel():
                        near(one, expected, checks, f"{name} with {tokens} tokens, {favourite}, {options}")


def _with_gradients(layer: Layer, leaves: list[Tensor], ids: Tensor, options: dict[str, Any]) -> tuple[Tensor, Any]:
    y = layer.call(leaves[0], ids, *leaves[1:], **options)
    return y.detach(), torch.autograd.grad((y * layer.factors[layer.rank]).sum(), leaves)


def _graphs(kind: str, checks: Checks) -> None:
    if dist.get_backend() != "nccl":
        return  # an exchange through the host is not part of a graph
    layer = Layer(kind, [ROWS] * dist.get_world_size())
    given = [one.clone() for one in layer.operands()]
    layer.call(*given)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = layer.call(*given)
    for seed in range(5):
        layer.draw(seed, seed if seed % 2 else None)
        for one, other in zip(given, layer.operands(), strict=True):
            one.copy_(other)
        graph.replay()
        near(y, layer.wanted()[0], checks, f"replay {seed}")
        checks.expect(torch.equal(y, layer.call(*given)), f"replay {seed} is not the call")


def _room(kind: str, checks: Checks) -> None:
    if kind == "moe":
        return
    layer = Layer(kind, [ROWS] * dist.get_world_size())
    layer.draw(5, favourite=0)
    for _ in range(LATER):
        layer.call(*layer.operands(), capacity=300)
    try:
        layer.call(*layer.operands(), capacity=300)
        checks.expect(False, "nothing said of a capacity that was too small")
    except CapacityError as error:
        checks.expect("capacity=300" in str(error), str(error))


def _few(kind: str, checks: Checks) -> None:
    """The kernel for few tokens, which a call takes by itself."""
    if kind == "moe":
        return
    layer = Layer(kind, [16] * dist.get_world_size())
    for seed in range(3):
        layer.draw(seed, seed if seed else None)
        for schedule in (None, "moe_decode:gpu"):
            found = layer.call(*layer.operands(), schedule=schedule)
            near(found, layer.wanted()[0], checks, f"few tokens, {seed}, {schedule}")


def _many(kind: str, checks: Checks) -> None:
    """The kernels for many tokens, which a call takes by itself."""
    layer = Layer(kind, [1024] * dist.get_world_size())
    for seed in range(3):
        layer.draw(seed, seed if seed else None)
        for options in ({}, {"schedule": "moe:gpu"}, {"schedule": "moe:gpu_wide_roles"}, {"recompute": True}):
            near(layer.call(*layer.operands(), **options), layer.wanted()[0], checks, f"many tokens, {seed}, {options}")


def _scaled(kind: str, checks: Checks) -> None:
    """Weights of 8 bits with scales, beside plain torch with the same values: few tokens, many, and unfused."""
    for tokens, ways in ((16, (None, "moe_decode:gpu")), (1024, (None, "moe:gpu")), (ROWS, (None, "unfused"))):
        layer = Layer(kind, [tokens] * dist.get_world_size())
        made = [in_blocks(one) for one in (layer.w13, layer.w2)]
        layer.w13, layer.w2 = (
            (q.float() * scale.repeat_interleave(128, 1).repeat_interleave(128, 2)).to(layer.w13.dtype)
            for q, scale in made
        )
        ranks, rank = dist.get_world_size(), layer.rank
        (w13, s13), (w2, s2) = made
        if kind == "moe":
            w13, s13 = (one.unflatten(1, (2, -1)).chunk(ranks, 2)[rank].flatten(1, 2) for one in (w13, s13))
            w2, s2 = (one.chunk(ranks, 2)[rank] for one in (w2, s2))
        else:
            w13, s13, w2, s2 = (one.chunk(ranks)[rank] for one in (w13, s13, w2, s2))
        w13, s13, w2, s2 = (one.contiguous() for one in (w13, s13, w2, s2))
        for seed in range(3):
            layer.draw(seed, seed if seed else None)
            for schedule in (way for way in ways if kind != "moe" or way != "moe_decode:gpu"):
                x, ids, weights, *_ = layer.operands()
                with torch.no_grad():
                    y = layer.call(x, ids, weights, w13, w2, w13_scale=s13, w2_scale=s2, schedule=schedule)
                wanted = layer.wanted()[0]
                error = float((y.float() - wanted).norm() / wanted.norm().clamp(min=1e-9))
                checks.expect(error < 6e-2, f"{tokens} tokens, {seed}, {schedule}: off by {error}")


def _options(kind: str, checks: Checks) -> None:
    """Blocks of tokens, an expert for all tokens, and so few choices that most ranks have none of a token's."""
    ranks = dist.get_world_size()
    for most in (16, ROWS, 1024):
        for choices, blocks, shared in ((k, 3, False), (1, 1, False), (2, 4, False), (k, 1, True), (2, 2, True)):
            if shared and kind == "moe":
                continue
            layer = Layer(kind, [max(8, most - 100 * rank) for rank in range(ranks)], choices, shared)
            note = f"{layer.tokens} tokens, {choices} choices, {blocks} blocks, shared {shared}"
            for seed in range(2):
                layer.draw(seed, seed if seed else None)
                with torch.no_grad():
                    y = layer.call(*layer.operands(), blocks=blocks)
                near(y, layer.wanted()[0], checks, f"{note}, {seed}")
            x, ids, weights, w13, w2 = layer.operands()
            leaves = [one.clone().requires_grad_() for one in (x, weights, w13, w2)]
            y, made = _with_gradients(layer, leaves, ids, {"blocks": blocks})
            names = ("y", "dx", "dweights", "dw13", "dw2")
            for name, one, expected in zip(names, (y, *made), layer.wanted(), strict=True):
                near(one, expected, checks, f"{name}, {note}")


BODIES: dict[str, Callable[[str, Checks], None]] = {
    "gradients": _gradients, "graphs": _graphs, "room": _room, "few": _few, "many": _many,
    "scaled": _scaled, "options": _options,
}  # fmt: skip
