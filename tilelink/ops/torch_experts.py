# pyright: basic
"""A layer of experts by the collectives of torch.distributed and torch's grouped products, and its gradients.

All ranks' tokens are gathered; every rank computes the choices of its own experts, adds them up for each token, and
sends the sums to the token's rank, which adds up those of all ranks, in their order. How many rows an expert has stays
on the device. The weight of a choice is a factor of its hidden row, so that the second product need not be kept.

R ranks have M tokens each. E experts are own ones; T choices have room. w13 is [E, 2 I, H], w2 [E, H, I].
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

from tilelink.ops import unfused
from tilelink.ops.routing import by_expert

Tensor = torch.Tensor
aten: Any = torch.ops.aten
ACTIVATIONS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[..., Tensor]]] = {
    "silu": (torch.nn.functional.silu, aten.silu_backward.grad_input),
    "gelu": (torch.nn.functional.gelu, aten.gelu_backward.grad_input),
}
"""Activations with their gradients."""


@dataclass(frozen=True, kw_only=True)
class Layer:
    """What is known of a layer before its tensors. first: the number of the own first expert. capacity: see `ops`."""

    group: ProcessGroup
    first: int
    activation: str
    capacity: int | None = None


class Chosen(NamedTuple):
    """The choices of own experts, of all ranks' tokens.

    x [R M, H]. weights [R M, k]: f32, or f64 with x in f64. starts [E + 1] i32. order [T + 1] i32: the choice at each
    place; the last one is of no choice. place [R M, k] i32: T for choices of others.
    """

    x: Tensor
    weights: Tensor
    starts: Tensor
    order: Tensor
    place: Tensor


def wide(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of weights and of sums over ranks."""
    return torch.promote_types(dtype, torch.float32)


# Exchange ----------------------------------------------------------------------------------------------------


def gather(x: Tensor, group: ProcessGroup) -> Tensor:
    return unfused.all_gather(x, group) if group.size() > 1 else x


def choose(x: Tensor, ids: Tensor, weights: Tensor, experts: int, layer: Layer) -> tuple[Chosen, Tensor]:
    """Return the choices of the own experts, and of all ranks' choices how many each rank's experts have [R]."""
    k = ids.shape[1]
    bits = weights.to(wide(x.dtype)).contiguous().view(torch.int32)
    both = gather(torch.cat((ids.int(), bits), 1), layer.group)  # one exchange of little data, not two
    ids, weights = both[:, :k], both[:, k:].contiguous().view(wide(x.dtype))
    found = by_expert(ids, experts, first=layer.first)
    room = ids.numel() if layer.capacity is None else min(layer.capacity, ids.numel())
    order = torch.nn.functional.pad(found.order[:room], (0, 1))
    place = torch.where(found.place < found.starts[-1:].clamp(max=room), found.place, room)
    owners = torch.arange(layer.group.size(), device=x.device)
    needed = (ids.flatten()[:, None] // experts == owners).sum(0) if layer.capacity is not None else owners
    return Chosen(gather(x, layer.group), weights, found.starts.clamp(max=room), order, place), needed


def summed_over_ranks(parts: Tensor, group: ProcessGroup) -> Tensor:
    """Return the own part of the sum over ranks, [R n, ...] -> [n, ...], added up in their order."""
    ranks = group.size()
    if ranks == 1:
        return parts
    every = torch.empty_like(parts)
    dist.all_to_all_single(every, parts, group=group)
    first, *rest = every.chunk(ranks)
    total = first.to(wide(parts.dtype), copy=True)
    for one in rest:
        total += one
    return total.to(parts.dtype)


def combine(rows: Tensor, place: Tensor) -> Tensor:
    """Return for each token the sum of the rows of its choices, in their order: [T + 1, H], [N, k] -> [N, H]."""
    nowhere = rows.shape[0] - 1
    if rows.is_cuda and rows.dtype != torch.float64:
        starts = torch.arange(0, place.numel(), place.shape[1], device=rows.device, dtype=torch.int32)
        return aten._embedding_bag_forward_only(rows, place.flatten(), starts, False, 0, False, None, False, nowhere)[0]
    total = rows.new_zeros((place.shape[0], rows.shape[1]), dtype=wide(rows.dtype))
    for each in place.unbind(1):
        total += torch.where((each < nowhere)[:, None], rows[each], 0)
    return total.to(rows.dtype)


# Products ----------------------------------------------------------------------------------------------------


def grouped(a: Tensor, b: Tensor, starts: Tensor) -> Tensor:
    """Return a product for each expert.

    a [T, K], b [E, K, N] -> [T, N], of which rows that are no expert's have any value. a [M, T], b [T, N] ->
    [E, M, N], each over the rows of its expert.
    """
    strides = (a.shape[-1] if b.dim() == 3 else a.shape[0], b.shape[-1])
    if a.dtype == torch.bfloat16 and not any(one % 8 for one in strides):
        return aten._grouped_mm(a, b, offs=starts[1:])
    ends = starts.tolist()  # the host waits: torch has no such product of other types
    spans = [slice(start, end) for start, end in pairwise(ends)]
    if b.dim() == 2:
        return torch.stack([a[:, span] @ b[span] for span in spans])
    y = a.new_zeros((a.shape[0], b.shape[-1]))
    for span, one in zip(spans, b, strict=True):
        torch.mm(a[span], one, out=y[span])
    return y


def hidden(both: Tensor, weight: Tensor, activation: str) -> tuple[Tensor, Tensor, Tensor]:
    """Return activation(gate), its product with up, and that times the weight: [T, 2 I], [T] -> [T, I] each."""
    gate, up = both.chunk(2, 1)
    active = ACTIVATIONS[activation][0](gate)
    plain = active * up
    return active, plain, torch.mul(plain, weight[:, None], out=torch.empty_like(plain))


def forward(x: Tensor, w13: Tensor, w2: Tensor, layer: Layer, chosen: Chosen) -> tuple[Tensor, Tensor]:
    """Return y [M, H], and gate and up of each choice [T + 1, 2 I]."""
    both = first_product(w13, chosen)
    hidden_rows = hidden(both, weights_of(chosen), layer.activation)[2]
    rows = grouped(hidden_rows, w2.transpose(1, 2), chosen.starts)
    return summed_over_ranks(combine(rows, chosen.place), layer.group), both


def weights_of(chosen: Chosen) -> Tensor:
    """Return the weight of each place [T + 1]."""
    return chosen.weights.flatten()[chosen.order]


def rows_of(x: Tensor, chosen: Chosen) -> Tensor:
    """Return the token of each place: [R M, H] -> [T + 1, H]."""
    return x.index_select(0, chosen.order // chosen.place.shape[1])


def first_product(w13: Tensor, chosen: Chosen) -> Tensor:
    return grouped(rows_of(chosen.x, chosen), w13.transpose(1, 2), chosen.starts)


def backward(
    dy: Tensor, w13: Tensor, w2: Tensor, both: Tensor | None, layer: Layer, chosen: Chosen, wanted: list[bool]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Return the gradients of x [M, H], of the weights of choices [M, k], of w13 and of w2; empty where not wanted.

    dy [M, H]. both: gate and up of each choice, or None to compute them again.
    """
    dx, dweights, dw13, dw2 = (dy.new_empty(0) for _ in wanted)
    starts, place = chosen.starts, chosen.place
    both = first_product(w13, chosen) if both is None else both
    weight = weights_of(chosen)
    given = rows_of(gather(dy, layer.group), chosen)
    active, plain, weighted = hidden(both, weight, layer.activation)
    if wanted[3]:
        dw2 = grouped(given.t(), weighted, starts)
    del weighted
    if not any(wanted[:3]):
        return dx, dweights, dw13, dw2
    dhidden = grouped(given, w2, starts)
    del given
    if wanted[1]:
        of_rows = torch.sum(plain.mul_(dhidden), 1, dtype=wide(dy.dtype))
        dweights = torch.where(place < of_rows.numel() - 1, of_rows[place], 0)
        dweights = summed_over_ranks(dweights, layer.group)
    if wanted[0] or wanted[2]:
        gate, up = both.chunk(2, 1)
        dhidden.mul_(weight[:, None])
        dboth = torch.empty_like(both)
        dgate, dup = dboth.chunk(2, 1)
        torch.mul(dhidden, active, out=dup)  # gradient of up
        ACTIVATIONS[layer.activation][1](dhidden.mul_(up), gate, grad_input=dgate)
        if wanted[2]:
            dw13 = grouped(dboth.t(), rows_of(chosen.x, chosen), starts)
        if wanted[0]:
            dx = summed_over_ranks(combine(grouped(dboth, w13, starts), place), layer.group)
    return dx, dweights, dw13, dw2
