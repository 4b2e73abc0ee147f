# pyright: basic
"""A layer of experts by the collectives of torch.distributed and torch's grouped products, and its gradients. On GPUs
kernels of the library, each of one rank alone, do what is between the products, for the rows that are there.

All ranks' tokens are gathered; every rank computes the choices of its own experts, adds them up for each token, and
sends the sums to the token's rank, which adds up those of all ranks, in their order. How many rows an expert has stays
on the device. The weight of a choice is a factor of its hidden row, so that the second product need not be kept.

R ranks have M tokens each. E experts are own ones; T choices have room. w13 is [E, 2 I, H], w2 [E, H, I].
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

from tilelink.errors import DtypeError, ShapeError
from tilelink.ops import unfused
from tilelink.ops.calls import able, has_roles
from tilelink.ops.choice import ROW_ALIGNMENT
from tilelink.ops.groups import wait_for
from tilelink.ops.nodes import is_one_node
from tilelink.ops.own import Op, of_library
from tilelink.ops.routing import by_expert
from tilelink.ops.torch_attention import wide

Tensor = torch.Tensor
aten: Any = torch.ops.aten
ACTIVATIONS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[..., Tensor]]] = {
    "silu": (torch.nn.functional.silu, aten.silu_backward.grad_input),
    "gelu": (torch.nn.functional.gelu, aten.gelu_backward.grad_input),
}
"""Activations with their gradients."""
BLOCK_K = 64
"""Elements that a step of a product contracts: of N-major weights all steps are whole."""
QUANTISED, SCALED = torch.float8_e4m3fn, 128
"""The type of weights with scales, and the elements, along rows and columns, of which one scale is."""


@dataclass(frozen=True, kw_only=True)
class Layer:
    """The constants of a layer.

    first: the number of the own first expert. capacity: see `ops`. rounded: hidden rows are, as `rounded` does it.
    """

    group: ProcessGroup
    first: int
    activation: str
    capacity: int | None = None
    rounded: bool = False


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


def has_kernels(x: Tensor, layer: Layer) -> bool:
    """True if the library's programs for rows of experts run where x is, and with its dtype."""
    if not able(x) or layer.group.size() == 1 or x.shape[-1] % ROW_ALIGNMENT:
        return False
    return has_roles(x.device) and is_one_node(layer.group)


def kernel(name: str) -> Op:
    return of_library(name, "gpu")


# Exchange ----------------------------------------------------------------------------------------------------


def gather(x: Tensor, group: ProcessGroup) -> Tensor:
    return unfused.all_gather(x, group) if group.size() > 1 else x


def narrow(ids: Tensor) -> Tensor:
    """Return ids in i32: those that have no place there are no expert's, and none becomes one by wrapping."""
    if ids.dtype == torch.int32:
        return ids
    return torch.clamp(ids, *_bounds(ids.device), out=torch.empty_like(ids, dtype=torch.int32))  # one kernel


@cache
def _bounds(device: torch.device) -> tuple[Tensor, Tensor]:
    return torch.tensor(-1, device=device), torch.tensor(torch.iinfo(torch.int32).max, device=device)


def choose(x: Tensor, ids: Tensor, weights: Tensor, experts: int, layer: Layer) -> tuple[Chosen, Tensor]:
    """Return the choices of the own experts, and of all ranks' choices how many each rank's experts have [R]."""
    k = ids.shape[1]
    kind, whole = wide(x.dtype), torch.contiguous_format  # `contiguous` leaves strides as they are where a size is 1
    bits = weights.to(kind, copy=kind == torch.float64, memory_format=whole).view(torch.int32)
    both = gather(torch.cat((narrow(ids), bits), 1), layer.group)  # one exchange of little data, not two
    ids, weights = both[:, :k], both[:, k:].clone(memory_format=whole).view(kind)
    found = by_expert(ids, experts, first=layer.first)
    room = ids.numel() if layer.capacity is None else min(layer.capacity, ids.numel())
    order = torch.nn.functional.pad(found.order[:room], (0, 1))
    place = torch.where(found.place < found.starts[-1:].clamp(max=room), found.place, room)
    owners = torch.arange(layer.group.size(), device=x.device)
    needed = (ids.flatten()[:, None] // experts == owners).sum(0) if layer.capacity is not None else owners
    return Chosen(gather(x, layer.group), weights, found.starts.clamp(max=room), order, place), needed


def summed_over_ranks(parts: Tensor, group: ProcessGroup) -> Tensor:
    """Return the own part of the sum over ranks, [R n, ...] -> [n, ...], added up in their order."""
    return summing_over_ranks(parts, group, later=False)()


def summing_over_ranks(parts: Tensor, group: ProcessGroup, *, later: bool = True) -> Callable[[], Tensor]:
    """Begin to exchange parts, and return what waits for them and adds them up, as `summed_over_ranks` does.

    later: exchange them on a stream of the group's own, beside what comes next.
    """
    ranks = group.size()
    if ranks == 1:
        return lambda: parts
    every = torch.empty_like(parts)
    work = dist.all_to_all_single(every, parts, group=group, async_op=later)

    def end() -> Tensor:
        if later:
            wait_for([work], parts)
        first, *rest = every.chunk(ranks)
        if ranks == 2:
            return first + rest[0]  # two are added up as they are, in f32
        total = first.to(wide(parts.dtype), copy=True)
        for one in rest:
            total += one
        return total.to(parts.dtype)

    return end


def combine(rows: Tensor, chosen: Chosen, layer: Layer) -> Tensor:
    """Return for each token the sum of the rows of its choices, in their order: [T + 1, H] -> [R M, H]."""
    place, nowhere = chosen.place, rows.shape[0] - 1
    if has_kernels(rows, layer):
        return kernel("sums_of_rows")(chosen.starts, rows, place, group=layer.group)
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


def product(a: Tensor, w: Tensor, chosen: Chosen, layer: Layer, *, n_major: bool = False) -> Tensor:
    """Return products [T + 1, N] of rows [T + 1, K] and weights of their experts: [E, N, K], n_major [E, K, N]."""
    T, K, N = *a.shape, w.shape[2 if n_major else 1]
    if has_kernels(a, layer) and fits_roles(T, N) and not N % ROW_ALIGNMENT and not (n_major and K % BLOCK_K):
        program = kernel("n_major_products_of_rows" if n_major else "products_of_rows")
        return program(chosen.starts, a, w, group=layer.group)
    return grouped(a, w if n_major else w.transpose(1, 2), chosen.starts)


def fits_roles(T: int, N: int) -> bool:
    """True if products with roles have room for T rows of N elements: tiles of 128 x a power of two from 16 to 256."""
    return T >= 128 and (N >= 256 or (N >= 16 and N.bit_count() == 1))


def gated(both: Tensor, weight: Tensor, chosen: Chosen, layer: Layer) -> Tensor:
    """Return activation(gate) * up * weight of each place: [T + 1, 2 I], [T + 1] -> [T + 1, I]."""
    if layer.activation == "silu" and has_kernels(both, layer):
        return kernel("gated_rows")(chosen.starts, both.unflatten(1, (2, -1)), weight, group=layer.group)
    gate, up = both.chunk(2, 1)
    return (ACTIVATIONS[layer.activation][0](gate) * up).mul_(weight[:, None])


def gated_gradients(
    both: Tensor, weight: Tensor, dplain: Tensor, chosen: Chosen, layer: Layer
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return what `gated` does, and the gradients of gate and up, and of the weight.

    dplain [T + 1, I]: of the result as if weights were one.
    """
    if layer.activation == "silu" and has_kernels(both, layer):
        weighted, dboth, dweight = kernel("gated_rows_gradients")(
            chosen.starts, both.unflatten(1, (2, -1)), weight, dplain, group=layer.group
        )
        return weighted, dboth.flatten(1), dweight
    gate, up = both.chunk(2, 1)
    active = ACTIVATIONS[layer.activation][0](gate)
    plain = active * up
    dweight = torch.sum(plain * dplain, 1, dtype=weight.dtype)
    given = (dplain * weight[:, None]).to(both.dtype)
    dboth = torch.empty_like(both)
    dgate, dup = dboth.chunk(2, 1)
    torch.mul(given, active, out=dup)
    ACTIVATIONS[layer.activation][1](given * up, gate, grad_input=dgate)
    return plain.mul_(weight[:, None]), dboth, dweight


def forward(w13: Tensor, w2: Tensor, layer: Layer, chosen: Chosen) -> tuple[Tensor, Tensor]:
    """Return y [M, H], and gate and up of each choice [T + 1, 2 I]."""
    both = first_product(w13, row_numbers(chosen), chosen, layer)
    hidden = gated(both, weights_of(chosen), chosen, layer)
    rows = product(rounded(hidden) if layer.rounded else hidden, w2, chosen, layer)
    return summed_over_ranks(combine(rows, chosen, layer), layer.group), both


def shared_expert(x: Tensor, w13: Tensor, w2: Tensor, activation: str) -> Tensor:
    """Return what one expert makes of all tokens: [M, H], [2 I, H], [H, I] -> [M, H]."""
    gate, up = torch.nn.functional.linear(x, w13).chunk(2, 1)
    return torch.nn.functional.linear(ACTIVATIONS[activation][0](gate) * up, w2).to(x.dtype)


def rounded(x: Tensor) -> Tensor:
    """Return [M, K] as it is after quantisation, with a scale for each `SCALED` elements of a row."""
    blocks = x.float().unflatten(1, (-1, SCALED))
    scale = blocks.abs().amax(2, keepdim=True).clamp(1e-12) / torch.finfo(QUANTISED).max
    return ((blocks / scale).to(QUANTISED).float() * scale).flatten(1).to(x.dtype)


def quantise_blocks(w: Tensor) -> tuple[Tensor, Tensor]:
    """Return weights [..., N, K] in torch.float8_e4m3fn, and their scales [..., N / 128, K / 128] in f32.

    They are what `expert_parallel` and `moe` take as weights with scales: a block of 128 x 128 elements is its values
    times its scale, which is its largest element divided by 448. Raises DtypeError and ShapeError for others.
    """
    if not w.dtype.is_floating_point:
        raise DtypeError(f"weights are {w.dtype}", hint="give them in torch.bfloat16 or another floating type")
    if w.dim() < 2 or w.shape[-1] % SCALED or w.shape[-2] % SCALED:
        hint = f"a scale is for {SCALED} x {SCALED} elements: both are multiples of {SCALED}"
        raise ShapeError(f"weights of 8 bits are of {list(w.shape)}", hint=hint)
    blocks = w.float().unflatten(-1, (-1, SCALED)).unflatten(-3, (-1, SCALED))
    scale = blocks.abs().amax((-3, -1), keepdim=True).clamp(1e-12) / torch.finfo(QUANTISED).max
    return (blocks / scale).to(QUANTISED).flatten(-2).flatten(-3, -2), scale.squeeze((-3, -1))


def unscaled(w: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """Return weights [E, N, K] times their scales [E, N / SCALED, K / SCALED]."""
    blocks = w.float().unflatten(2, (-1, SCALED)).unflatten(1, (-1, SCALED))
    return blocks.mul_(scale[:, :, None, :, None]).flatten(3).flatten(1, 2).to(dtype)


def weights_of(chosen: Chosen) -> Tensor:
    """Return the weight of each place [T + 1]."""
    return chosen.weights.flatten().index_select(0, chosen.order)


def rows_of(x: Tensor, rows: Tensor, chosen: Chosen, layer: Layer) -> Tensor:
    """Return the token of each place: [R M, H] -> [T + 1, H]. rows: as `row_numbers` has them."""
    if has_kernels(x, layer):
        return kernel("gathered_rows")(chosen.starts, x, rows, group=layer.group)
    return x.index_select(0, rows)


def row_numbers(chosen: Chosen) -> Tensor:
    """Return which token, of all ranks' ones, is at each place [T + 1]."""
    return chosen.order // chosen.place.shape[1]


def first_product(w13: Tensor, rows: Tensor, chosen: Chosen, layer: Layer) -> Tensor:
    return product(rows_of(chosen.x, rows, chosen, layer), w13, chosen, layer)


def backward(
    dy: Tensor, w13: Tensor, w2: Tensor, both: Tensor | None, layer: Layer, chosen: Chosen, wanted: list[bool]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Return the gradients of x [M, H], of the weights of choices [M, k], of w13 and of w2; empty where not wanted.

    dy [M, H]. both: gate and up of each choice, or None to compute them again.
    """
    dx, dweights, dw13, dw2 = (dy.new_empty(0) for _ in wanted)
    starts, rows = chosen.starts, row_numbers(chosen)
    both = first_product(w13, rows, chosen, layer) if both is None else both
    given = rows_of(gather(dy, layer.group), rows, chosen, layer)
    dplain = product(given, w2, chosen, layer, n_major=True)
    weighted, dboth, dweight = gated_gradients(both, weights_of(chosen), dplain, chosen, layer)
    if wanted[3]:
        dw2 = grouped(given.t(), weighted, starts)
    del given, weighted, dplain
    sums, of_weights = (lambda: dx), (lambda: dweights)
    if wanted[0]:
        sums = summing_over_ranks(
            combine(product(dboth, w13, chosen, layer, n_major=True), chosen, layer), layer.group
        )  # fmt: skip
    if wanted[1]:  # after the larger exchange and beside what follows, not between products, which would wait for it
        dweight[-1:].zero_()  # that of no choice
        own = dweight.index_select(0, chosen.place.flatten()).view(chosen.place.shape)
        of_weights = summing_over_ranks(own, layer.group)
    if wanted[2]:  # rows are copied by short CTAs: the exchange has begun on all ranks before a product takes the SMs
        dw13 = grouped(dboth.t(), rows_of(chosen.x, rows, chosen, layer), starts)
    return sums(), of_weights(), dw13, dw2
