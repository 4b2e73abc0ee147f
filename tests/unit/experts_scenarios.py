# pyright: basic
"""What tests of layers of experts do on CPU ranks, beside plain torch: `run(names)`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.nn.functional import gelu, silu
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import tilelink
from tilelink import ops
from tilelink.errors import BindingError, CapacityError, DtypeError, RankError, ShapeError, UnknownNameError
from tilelink.ops import experts, torch_experts
from tilelink.ops.groups import group_named, members_of, name_of
from tilelink.ops.routing import by_expert

Tensor = torch.Tensor
H, INNER, E, k = 16, 8, 3, 2
ALLOWED = {torch.float64: 1e-12, torch.float32: 2e-5, torch.bfloat16: 2e-2}
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"silu": silu, "gelu": gelu}


@dataclass(frozen=True, kw_only=True)
class Case:
    """tokens: of each rank. slices: each rank has a slice of every expert; else whole ones. skipped: of 10 choices."""

    tokens: tuple[int, ...]
    dtype: torch.dtype = torch.float64
    slices: bool = False
    skipped: int = 2
    favourite: int | None = None
    activation: str = "silu"
    seed: int = 0

    def drawn(self) -> tuple[list[Tensor], list[Tensor], list[Tensor], Tensor, Tensor, list[Tensor]]:
        """Return x, ids, weights of each rank, all experts' weights, and what the results are multiplied by."""
        chance = torch.Generator().manual_seed(self.seed)
        experts = E if self.slices else E * len(self.tokens)
        inner = INNER * len(self.tokens) if self.slices else INNER

        def normal(*shape: int, scale: float = 1.0) -> Tensor:
            return (torch.randn(*shape, generator=chance, dtype=torch.float64) * scale).to(self.dtype)

        x = [normal(M, H) for M in self.tokens]
        ids = [torch.randint(experts, (M, k), generator=chance) for M in self.tokens]
        for one in ids:
            one[torch.rand(one.shape, generator=chance) < self.skipped / 10] = -1
            if self.favourite is not None:
                one[:, 0] = self.favourite
        weights = [torch.rand(M, k, generator=chance).double() for M in self.tokens]
        weights = [one if self.dtype == torch.float64 else one.float() for one in weights]
        w13, w2 = normal(experts, 2 * inner, H, scale=H**-0.5), normal(experts, H, inner, scale=inner**-0.5)
        return x, ids, weights, w13, w2, [normal(M, H) for M in self.tokens]

    def plain(self) -> tuple[list[Tensor], list[Tensor], list[Tensor], Tensor, Tensor]:
        """Return all ranks' results and gradients, by plain torch and in f64."""
        x, ids, weights, w13, w2, factors = self.drawn()
        leaves = [one.double().requires_grad_() for one in (*x, *weights, w13, w2)]
        ranks = len(self.tokens)
        x, weights, (w13, w2) = leaves[:ranks], leaves[ranks : 2 * ranks], leaves[2 * ranks :]
        results: list[Tensor] = []
        for own, chosen, scale in zip(x, ids, weights, strict=True):
            y = torch.zeros_like(own)
            for e in range(w13.shape[0]):
                gate, up = (own @ w13[e].t()).chunk(2, 1)
                total = torch.where(chosen == e, scale, 0).sum(1, keepdim=True)
                y = y + total * ((ACTIVATIONS[self.activation](gate) * up) @ w2[e].t())
            results.append(y)
        loss = torch.stack([(y * one).sum() for y, one in zip(results, factors, strict=True)]).sum()
        made = torch.autograd.grad(loss, leaves)
        return results, list(made[:ranks]), list(made[ranks : 2 * ranks]), made[-2], made[-1]

    def own(self, w13: Tensor, w2: Tensor) -> tuple[Tensor, Tensor]:
        """Return the part of a rank of the weights, or of their gradients."""
        rank, ranks = dist.get_rank(), len(self.tokens)
        if not self.slices:
            return w13.chunk(ranks)[rank], w2.chunk(ranks)[rank]
        return w13.unflatten(1, (2, -1)).chunk(ranks, 2)[rank].flatten(1, 2), w2.chunk(ranks, 2)[rank]

    def operands(self) -> tuple[Tensor, ...]:
        x, ids, weights, w13, w2, _ = self.drawn()
        rank = dist.get_rank()
        return x[rank], ids[rank], weights[rank], *self.own(w13, w2)

    def call(self, *operands: Tensor, **options: Any) -> Tensor:
        if len({*self.tokens}) > 1:
            options = {"tokens": max(self.tokens) + 1, **options}
        function = ops.moe if self.slices else ops.expert_parallel
        return function(*operands, activation=self.activation, **options)


def close(found: Tensor, wanted: Tensor, dtype: torch.dtype) -> None:
    assert found.shape == wanted.shape
    if wanted.numel():
        bound = ALLOWED[dtype] * max(1.0, float(wanted.detach().abs().max()))
        assert float((found.detach().double() - wanted.detach()).abs().max()) <= bound


def compare(case: Case, **options: Any) -> None:
    """Compare a call and its gradients with plain torch."""
    rank = dist.get_rank()
    x, ids, weights, w13, w2 = case.operands()
    leaves = [one.clone().requires_grad_() for one in (x, weights, w13, w2)]
    y = case.call(leaves[0], ids, *leaves[1:], **options)
    made = torch.autograd.grad((y * case.drawn()[-1][rank]).sum(), leaves)
    results, dx, dweights, *dw = case.plain()
    wanted = (results[rank], dx[rank], dweights[rank], *case.own(*dw))
    for found, one in zip((y, *made), wanted, strict=True):
        close(found, one, case.dtype)
    assert torch.equal(case.call(x, ids, weights, w13, w2, **options), y)  # without gradients: the same bits


def _tokens(first: int, step: int) -> tuple[int, ...]:
    return tuple(max(0, first + step * rank) for rank in range(dist.get_world_size()))


def results() -> None:
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        for slices in (False, True):
            compare(Case(tokens=_tokens(7, 0), dtype=dtype, slices=slices))
    compare(Case(tokens=_tokens(6, 0), activation="gelu", seed=1), recompute=True)
    compare(Case(tokens=_tokens(6, 0), skipped=10, seed=2))  # no choice at all
    compare(Case(tokens=_tokens(6, 0), skipped=0, favourite=1, seed=3), schedule="unfused")


def unequal() -> None:
    compare(Case(tokens=_tokens(9, -4)))
    compare(Case(tokens=_tokens(4, -4), slices=True))  # all but the first rank have none
    for rows in ((5, 3), (2, 6)):  # other numbers, and no rank tells the others
        case = Case(tokens=(rows * 2)[: dist.get_world_size()])
        compare(case, tokens=12)


class Called(TorchDispatchMode):
    """Notes the operators of torch that are called."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def frozen() -> None:
    """Gradients of some operands alone, and no zeros for those of what backward keeps of forward."""
    case = Case(tokens=_tokens(5, 0))
    operands = case.operands()
    _, dx, dweights, *dw = case.plain()
    rank = dist.get_rank()
    wanted = {0: dx[rank], 2: dweights[rank], 3: case.own(*dw)[0], 4: case.own(*dw)[1]}
    for place, gradient in wanted.items():
        given = list(operands)
        given[place] = given[place].clone().requires_grad_()
        y = case.call(*given)
        with Called() as called:
            (made,) = torch.autograd.grad((y * case.drawn()[-1][rank]).sum(), [given[place]])
        close(made, gradient, case.dtype)
        assert "aten.zeros.default" not in called.names and called.names


def repeated() -> None:
    """Sums are added up in one order: as many calls give the same bits, whatever other choices there are."""
    case = Case(tokens=_tokens(40, 0), dtype=torch.bfloat16)
    x, ids, weights, w13, w2 = case.operands()
    first = case.call(x, ids, weights, w13, w2)
    turned = torch.arange(39, -1, -1)
    again = case.call(x[turned], ids[turned].int(), weights[turned], w13, w2)
    assert torch.equal(again[turned], first)


def capacity() -> None:
    case = Case(tokens=_tokens(8, 0), skipped=0, favourite=0)
    x, ids, weights, w13, w2 = case.operands()
    ranks = dist.get_world_size()
    first, all_ids = case.drawn()[1], torch.cat(case.drawn()[1])
    most = int(torch.bincount(all_ids.flatten() // E, minlength=ranks).max())
    enough = case.call(x, ids, weights, w13, w2, capacity=most)
    assert torch.equal(enough, case.call(x, ids, weights, w13, w2))
    compare(case, capacity=most)
    for _ in range(2):  # tokens that are not there take no room
        assert torch.equal(enough, case.call(x, ids, weights, w13, w2, capacity=most, tokens=11))
    layer = torch_experts.Layer(group=group_named(name_of(members_of(None))), first=0, activation="silu", capacity=5)
    chosen, _ = torch_experts.choose(x, ids, weights, E, layer)
    assert chosen.starts[-1] <= 5 and len(chosen.order) == 6  # products stay within their rows
    few = case.call(x, ids, weights, w13, w2, capacity=5)
    # What is left out: all but the first choices, in the order of experts and then of ranks and tokens.
    kept = torch.zeros(ranks, 8, k, dtype=torch.bool)
    for owner in range(ranks):
        routing = by_expert(all_ids, E, first=owner * E)
        kept.view(-1)[routing.order[: min(5, int(routing.starts[-1]))].long()] = True
    own = torch.where(kept[dist.get_rank()], first[dist.get_rank()], -1)
    assert torch.equal(few, case.call(x, own, weights, w13, w2))
    with pytest.raises(CapacityError, match=rf"had {most} choices in an earlier call .*capacity=5"):
        case.call(x, ids, weights, w13, w2, capacity=5)
    case.call(x, torch.full_like(ids, -1), weights, w13, w2, capacity=5)  # said once
    case.call(x, torch.full_like(ids, -1), weights, w13, w2, capacity=5)


def overflow() -> None:
    """Choices beyond a capacity are told without a later call: when asked, or else as the process ends."""
    case = Case(tokens=_tokens(8, 0), skipped=0, favourite=0)
    ops.check_capacity()
    for _ in range(2):
        case.call(*case.operands(), capacity=5)
        with pytest.raises(CapacityError, match=r"had \d+ choices in an earlier call .*capacity=5"):
            ops.check_capacity()
        ops.check_capacity()  # said once
    x, *others = case.operands()
    case.call(x.requires_grad_(), *others, capacity=5)
    with pytest.raises(CapacityError), torch.no_grad():  # calls with gradients and without are of one kind
        case.call(x, *others, capacity=5)
    said: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(experts._log, "warning", lambda text, error: said.append(text % error))
        experts._say_overflows()
        assert not said
        case.call(*case.operands(), capacity=6)
        experts._say_overflows()
    assert len(said) == 1 and "capacity=6: those beyond were left out" in said[0]
    with pytest.raises(CapacityError):
        ops.check_capacity()


def wide_ids() -> None:
    """Ids that no i32 has are no expert's, by each implementation."""
    case = Case(tokens=_tokens(6, 0), dtype=torch.float32, skipped=0)
    x, ids, weights, w13, w2 = case.operands()
    ids[0], ids[1, 0], ids[2, 1], ids[3] = 2**32, 2**40 + 1, -(2**32) + 2, torch.tensor([2**63 - 1, -(2**63)])
    skipped = torch.where((ids >= 0) & (ids < 2**31), ids, -1)
    for way in ("unfused", "moe:", "moe_decode:words"):
        wanted = case.call(x, skipped, weights, w13, w2, schedule=way)
        assert torch.equal(case.call(x, ids, weights, w13, w2, schedule=way), wanted), way


def spread() -> None:
    """DTensors of tokens and of experts, with gradients; a slice of each expert is no part of a DTensor."""
    case, rank = Case(tokens=_tokens(6, 0)), dist.get_rank()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    x, ids, weights, w13, w2 = (DTensor.from_local(one, mesh, [Shard(0)]) for one in case.operands())
    leaves = [one.requires_grad_() for one in (x, weights, w13, w2)]
    y = ops.expert_parallel(x, ids, weights, w13, w2)
    assert isinstance(y, DTensor) and y.placements == (Shard(0),)
    factor = DTensor.from_local(case.drawn()[-1][rank], mesh, [Shard(0)])
    made = torch.autograd.grad((y * factor).sum(), leaves)
    results, dx, dweights, *dw = case.plain()
    for found, one in zip((y, *made), (results[rank], dx[rank], dweights[rank], *case.own(*dw)), strict=True):
        close(cast(Any, found).to_local(), one, case.dtype)
    with pytest.raises(BindingError, match="w13 and w2 of expert_parallel is no DTensor"):
        ops.expert_parallel(x, ids, weights, w13.to_local(), w2.to_local())
    q = DTensor.from_local(torch.ones(1, 2, 4, 8), mesh, [Shard(2)])
    lengths = DTensor.from_local(torch.ones(1, dtype=torch.int32), mesh, [Shard(0)])
    for name, call in (
        ("experts", lambda: ops.moe(x, ids, weights, w13, w2)),
        ("attention", lambda: ops.attention(q, q, q, is_causal=True)),
        ("decode_attention", lambda: ops.decode_attention(q[0], q, q, lengths[None], lengths)),
        ("double", lambda: tilelink.op(tilelink.parse(DOUBLE).program())(x)),
    ):
        with pytest.raises(BindingError, match=f"{name}.* is given a DTensor") as caught:
            call()
        assert "to_local()" in str(caught.value.hint)


DOUBLE = """
program double(M, N):
    x : in  [M, N]
    y : out [M, N]

    compute add(i: M, j: N):
        y[i, j] = x[i, j] + x[i, j]
"""


def few() -> None:
    """The library's program for few tokens, by its meaning, beside the unfused layer."""
    case = Case(tokens=_tokens(5, 0), dtype=torch.float32)
    x, ids, weights, w13, w2 = case.operands()
    made = case.call(x, ids, weights, w13, w2, schedule="moe_decode:words")
    close(made, case.plain()[0][dist.get_rank()], case.dtype)
    compare(Case(tokens=_tokens(3, -1), dtype=torch.float32), schedule="moe_decode:words", recompute=True)
    wrong: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"schedule": "moe_decode:fast"}, UnknownNameError, "fast"),
        ({"schedule": "moe_decode:words", "activation": "gelu"}, BindingError, "no activation 'gelu'"),
    ]
    for options, kind, text in wrong:
        with pytest.raises(kind, match=text):
            ops.expert_parallel(x, ids, weights, w13, w2, **options)
    with pytest.raises(UnknownNameError, match="moe has no schedule 'moe_decode:words'"):
        ops.moe(x, ids, weights, w13, w2, schedule="moe_decode:words")


def many() -> None:
    """The library's programs for many tokens, by their meaning: whole experts, slices, and too little room."""
    for slices in (False, True):
        case = Case(tokens=_tokens(6, 0), dtype=torch.float32, slices=slices, seed=5)
        made = case.call(*case.operands(), schedule="moe:")
        close(made, case.plain()[0][dist.get_rank()], case.dtype)
    case = Case(tokens=_tokens(8, 0), skipped=0, favourite=0, dtype=torch.float32)
    few = [case.call(*case.operands(), capacity=5, schedule=one) for one in ("unfused", "moe:")]
    torch.testing.assert_close(*few)
    with pytest.raises(CapacityError, match="capacity=5"):
        case.call(*case.operands(), capacity=5, schedule="moe:")


def rows() -> None:
    """The programs whose tokens travel where they are needed, by their meaning: any routing, any numbers of tokens."""
    last = E * dist.get_world_size() - 1
    cases = (
        Case(tokens=_tokens(6, 0), seed=5), Case(tokens=_tokens(8, -4), seed=6), Case(tokens=_tokens(6, 0), skipped=10),
        Case(tokens=_tokens(6, 0), skipped=0, favourite=last), Case(tokens=_tokens(5, 0), skipped=5, favourite=0),
    )  # fmt: skip
    for case in (replace(one, dtype=torch.float32) for one in cases):
        made = case.call(*case.operands(), schedule="moe_rows:", tokens=8)  # one kernel for all of them
        close(made, case.plain()[0][dist.get_rank()], case.dtype)
        assert torch.equal(case.call(*case.operands(), schedule="moe_rows:", tokens=8), made)
    with pytest.raises(UnknownNameError, match="moe has no schedule 'moe_rows:'"):
        ops.moe(*case.operands(), schedule="moe_rows:")


def few_rows() -> None:
    """The same, with too little room."""
    case = Case(tokens=_tokens(8, 0), skipped=0, favourite=0, dtype=torch.float32)
    few = [case.call(*case.operands(), capacity=5, schedule=one) for one in ("unfused", "moe_rows:")]
    torch.testing.assert_close(*few)
    with pytest.raises(CapacityError, match="capacity=5"):
        case.call(*case.operands(), capacity=5, schedule="moe_rows:")


def pair_for_all(dtype: torch.dtype, inner: int = 5, hidden: int = H) -> tuple[Tensor, Tensor]:
    """Return the weights of an expert for all tokens."""
    chance = torch.Generator().manual_seed(21)
    made = (torch.randn(*one, generator=chance) * 0.2 for one in ((2 * inner, hidden), (hidden, inner)))
    w13, w2 = (one.to(dtype) for one in made)
    return w13, w2


def plain_pair(x: Tensor, w13: Tensor, w2: Tensor, activation: str) -> Tensor:
    gate, up = (x @ w13.t()).chunk(2, 1)
    return (ACTIVATIONS[activation](gate) * up) @ w2.t()


def shared() -> None:
    """An expert for all tokens, with gradients: of all operands, and of its own weights alone."""
    rank = dist.get_rank()
    cases = (
        (Case(tokens=_tokens(6, 0)), {"recompute": True}),
        (Case(tokens=_tokens(7, -4), activation="gelu"), {"blocks": 2}),
        (Case(tokens=_tokens(6, 0), dtype=torch.float32), {"tokens": 9}),
        (Case(slices=True, tokens=_tokens(6, 0)), {}),
    )
    for case, options in cases:
        x, ids, weights, w13, w2 = case.operands()
        factor, pair = case.drawn()[-1][rank].double(), pair_for_all(case.dtype)
        leaves = [one.clone().requires_grad_() for one in (x, weights, w13, w2, *pair)]
        y = case.call(leaves[0], ids, *leaves[1:4], shared=tuple(leaves[4:]), **options)
        made = torch.autograd.grad((y * factor).sum(), leaves)
        results, dx, dweights, *dw = case.plain()
        plain = [one.double().clone().requires_grad_() for one in (x, *pair)]
        mine = plain_pair(plain[0], plain[1], plain[2], case.activation)
        of_mine = torch.autograd.grad((mine * factor).sum(), plain)
        wanted = (results[rank] + mine, dx[rank] + of_mine[0], dweights[rank], *case.own(*dw), *of_mine[1:])
        for found, one in zip((y, *made), wanted, strict=True):
            close(found, one, case.dtype)
        assert torch.equal(case.call(x, ids, weights, w13, w2, shared=pair, **options), y)
        alone = case.call(x, ids, weights, w13, w2, shared=tuple(leaves[4:]), **options)
        with Called() as called:
            again = torch.autograd.grad((alone * factor).sum(), leaves[4:])
        assert torch.equal(again[0], made[4]) and torch.equal(again[1], made[5])
        assert not any("experts_backward" in name for name in called.names)


def added_to(ways: tuple[str, ...], **options: Any) -> None:
    """Compare what programs of the library add to their sums."""
    case = Case(tokens=_tokens(8, -3), dtype=torch.float32)
    x, *others = case.operands()
    pair = pair_for_all(case.dtype)
    mine = plain_pair(x.double(), pair[0].double(), pair[1].double(), case.activation)
    wanted = case.plain()[0][dist.get_rank()] + mine
    for way in ways:
        close(case.call(x, *others, shared=pair, schedule=way, tokens=8, **options), wanted, case.dtype)


def shared_few() -> None:
    """The same as an addend of programs of the library, by their meaning."""
    added_to(("moe_rows:", "moe_decode:words"))


def shared_many() -> None:
    """The same of all programs, in blocks, and of those for weights of 8 bits."""
    added_to(("moe:", "moe_rows:", "moe_decode:words"), blocks=2)
    operands, scales, _ = scaled_operands(_tokens(5, 0), False)
    pair = pair_for_all(torch.float32, hidden=256)
    for way in ("moe:", "moe_decode:words"):
        made = ops.expert_parallel(*operands, **scales, shared=pair, schedule=way)
        plain = ops.expert_parallel(*operands, **scales, schedule=way)
        torch.testing.assert_close(made, plain + plain_pair(operands[0], *pair, "silu"))


def blocks() -> None:
    """Tokens in parts one after the other: any routing, any numbers of tokens, with gradients."""
    last = E * dist.get_world_size() - 1
    cases = (
        (Case(tokens=_tokens(7, 0)), 3), (Case(tokens=_tokens(9, -4), dtype=torch.float32), 4),
        (Case(tokens=_tokens(4, -4), slices=True), 2), (Case(tokens=_tokens(6, 0), skipped=0, favourite=last), 9),
        (Case(tokens=_tokens(6, 0), skipped=10), 2),
    )  # fmt: skip
    for case, number in cases:
        compare(case, blocks=number)
    case = Case(tokens=_tokens(6, 0), skipped=0, favourite=0)
    x, ids, *others = case.operands()
    several = torch.compile(
        lambda x, *others: case.call(x, ids, *others, blocks=2), backend="aot_eager", fullgraph=True
    )  # fmt: skip
    close(several(x, *others), case.plain()[0][dist.get_rank()], case.dtype)
    counts = [torch.cat([one[first : first + 3] for one in case.drawn()[1]]) // E for first in (0, 3)]
    most = max(int(one.flatten().bincount().max()) for one in counts)  # of one rank, in one block
    assert torch.equal(
        case.call(x, ids, *others, blocks=2, capacity=most), case.call(x, ids, *others, blocks=2)
    )  # fmt: skip
    with pytest.raises(CapacityError, match=rf"had {most} choices in an earlier call .*capacity={most - 1}"):
        for _ in range(2):
            case.call(x, ids, *others, blocks=2, capacity=most - 1)


def in_rows(x: Tensor) -> Tensor:
    """Return rows as they are in 8 bits, with scales for 128 elements, in f64."""
    blocks = x.double().unflatten(1, (-1, 128))
    scale = (blocks.abs().amax(2, keepdim=True).float().clamp(1e-12) / 448).double()
    return ((blocks / scale).float().to(torch.float8_e4m3fn).double() * scale).flatten(1)


def scaled_operands(tokens: tuple[int, ...], slices: bool) -> tuple[tuple[Tensor, ...], dict[str, Tensor], Tensor]:
    """Return the operands of this rank, its scales, and its result: of the quantised values, in f64."""
    rank, ranks = dist.get_rank(), len(tokens)
    chance = torch.Generator().manual_seed(11)
    experts, hidden, inner = (2, 256, 128 * ranks) if slices else (2 * ranks, 256, 128)
    w13, s13 = ops.quantise_blocks(torch.randn(experts, 2 * inner, hidden, generator=chance) * hidden**-0.5)
    w2, s2 = ops.quantise_blocks(torch.randn(experts, hidden, inner, generator=chance) * inner**-0.5)
    x = [torch.randn(M, hidden, generator=chance).bfloat16().float() for M in tokens]
    ids = [torch.randint(-1, experts, (M, k), generator=chance) for M in tokens]
    weights = [torch.rand(M, k, generator=chance) for M in tokens]
    full13, full2 = (w.double() * s.double().repeat_interleave(128, 1).repeat_interleave(128, 2)
                     for w, s in ((w13, s13), (w2, s2)))  # fmt: skip
    y = torch.zeros(tokens[rank], hidden, dtype=torch.float64)
    for e in range(experts):
        gate, up = (in_rows(x[rank]) @ full13[e].t()).chunk(2, 1)
        made = in_rows(silu(gate) * up) @ full2[e].t()
        y += torch.where(ids[rank] == e, weights[rank].double(), 0).sum(1, keepdim=True) * made
    if slices:
        own = [one.unflatten(1, (2, -1)).chunk(ranks, 2)[rank].flatten(1, 2) for one in (w13, s13)]
        own += [one.chunk(ranks, 2)[rank] for one in (w2, s2)]
    else:
        own = [one.chunk(ranks)[rank] for one in (w13, s13, w2, s2)]
    w13, s13, w2, s2 = (one.contiguous() for one in own)
    return (x[rank], ids[rank], weights[rank], w13, w2), {"w13_scale": s13, "w2_scale": s2}, y


def scaled() -> None:
    """Weights of 8 bits with scales: unfused, and by the library's programs, by their meaning."""
    # A quotient that is rounded to the other neighbour moves an element of 8 bits by a sixteenth: more of them in bf16.
    allowed = {torch.float32: 4e-3, torch.bfloat16: 4e-2}
    cases = [
        (False, _tokens(6, 0), "unfused", torch.bfloat16), (True, _tokens(6, 0), "unfused", torch.float32),
        (False, _tokens(5, -2), "unfused", torch.float32), (False, _tokens(5, 0), "moe_decode:words", torch.bfloat16),
        (False, _tokens(5, -2), "moe_decode:words", torch.float32), (False, _tokens(6, 0), "moe:", torch.bfloat16),
        (False, _tokens(5, -2), "moe:", torch.float32), (True, _tokens(6, 0), "moe:", torch.float32),
    ]  # fmt: skip
    for slices, tokens, way, dtype in cases:
        operands, scales, wanted = scaled_operands(tokens, slices)
        options: dict[str, Any] = {"tokens": 8} if len({*tokens}) > 1 else {}
        call = ops.moe if slices else ops.expert_parallel
        made = call(operands[0].to(dtype), *operands[1:], **scales, **options, schedule=way)
        assert made.dtype == dtype
        assert made.shape == wanted.shape
        error = float((made.double() - wanted).norm()) / max(1e-9, float(wanted.norm()))
        assert error < allowed[dtype], (slices, tokens, way, dtype, error)


def quantised() -> None:
    """Weights of 8 bits are as near as such numbers can be, and blocks of zeros stay zeros; others are refused."""
    w = torch.randn(3, 256, 384, generator=torch.Generator().manual_seed(2))
    w[1, :128, 128:256] = 0
    values, scales = ops.quantise_blocks(w.bfloat16())
    assert values.dtype == torch.float8_e4m3fn and values.shape == w.shape and scales.shape == (3, 2, 3)
    again = values.float() * scales.repeat_interleave(128, 1).repeat_interleave(128, 2)
    step = w.abs() / 16 + scales.amax() * 2**-9  # half of the last of 3 bits, and of the smallest number
    assert bool(((again - w.bfloat16().float()).abs() <= step).all()) and not again[1, :128, 128:256].any()
    assert float(values.float().abs().amax()) == 448
    with pytest.raises(ShapeError, match=r"weights of 8 bits are of \[2, 200, 128\]"):
        ops.quantise_blocks(torch.ones(2, 200, 128))
    with pytest.raises(DtypeError, match=r"weights are torch\.int32"):
        ops.quantise_blocks(torch.ones(2, 128, 128, dtype=torch.int32))


def scaled_mistakes() -> None:
    operands, scales, _ = scaled_operands(_tokens(4, 0), False)
    x, ids, weights, w13, w2 = operands
    given: dict[str, Any] = {"x": x, "ids": ids, "weights": weights, "w13": w13, "w2": w2, **scales}
    wrong: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"w2_scale": None}, DtypeError, "w2_scale of expert_parallel is a NoneType"),
        ({"w13_scale": None, "w2_scale": None}, DtypeError, "w13 of expert_parallel is torch.float8_e4m3fn"),
        ({"w13": w13.float()}, DtypeError, "w13 of expert_parallel is torch.float32"),
        ({"w2_scale": scales["w2_scale"].bfloat16()}, DtypeError, "w2_scale of expert_parallel is torch.bfloat16"),
        ({"x": x.to(torch.float8_e4m3fn)}, DtypeError, "x of expert_parallel is torch.float8_e4m3fn"),
        ({"w13_scale": scales["w13_scale"][:, :1]}, ShapeError, r"w13_scale of expert_parallel is \[2, 1, 2\]"),
        ({"w2_scale": scales["w2_scale"][0]}, ShapeError, r"w2_scale of expert_parallel is \[2, 1\]"),
        ({"x": x[:, :192], "w13": w13[:, :, :192], "w2": w2[:, :192]}, ShapeError, "rows of 192, and experts of 128"),
        ({"x": x.clone().requires_grad_()}, BindingError, "expert_parallel with scales has no gradients"),
        ({"w2_scale": scales["w2_scale"].clone().requires_grad_()}, BindingError, "with scales has no gradients"),
        ({"shared": [one.requires_grad_() for one in pair_for_all(x.dtype, hidden=256)]}, BindingError, "no gradients"),
    ]
    for other, kind, text in wrong:
        with pytest.raises(kind, match=text):
            ops.expert_parallel(**{**given, **other})


def mistakes() -> None:
    case = Case(tokens=_tokens(4, 0), dtype=torch.float32)
    operands: dict[str, Any] = dict(zip(("x", "ids", "weights", "w13", "w2"), case.operands(), strict=True))
    wrong: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"x": operands["x"][0]}, ShapeError, r"x of expert_parallel is \[16\]"),
        ({"ids": operands["ids"][:3]}, ShapeError, r"ids of expert_parallel is \[3, 2\]"),
        ({"w13": operands["w13"][:, :8]}, ShapeError, "w13 of expert_parallel"),
        ({"w2": operands["w2"].bfloat16()}, DtypeError, "w2 of expert_parallel is torch.bfloat16"),
        ({"ids": operands["ids"].float()}, DtypeError, "ids of expert_parallel are torch.float32"),
        ({"weights": operands["weights"].int()}, DtypeError, "weights of expert_parallel are torch.int32"),
        ({"x": operands["x"].to(torch.float8_e5m2)}, DtypeError, "torch.float8_e5m2"),
        ({"w2": 3}, DtypeError, "w2 of expert_parallel is a int"),
        ({"tokens": 3}, ShapeError, "has 4 rows, and tokens=3"),
        ({"capacity": 0}, BindingError, "capacity of expert_parallel is 0"),
        ({"activation": "relu"}, UnknownNameError, "no activation 'relu'"),
        ({"x": operands["x"].to_sparse()}, DtypeError, r"x of expert_parallel is on cpu, torch\.sparse_coo"),
        ({"schedule": 3}, BindingError, "schedule of expert_parallel is a int"),
        ({"schedule": "fast"}, UnknownNameError, "no schedule 'fast'"),
        ({"blocks": 0}, BindingError, "blocks of expert_parallel is 0"),
        ({"blocks": 2, "ids": operands["ids"][:3]}, ShapeError, r"ids of expert_parallel is \[3, 2\]"),
        ({"blocks": 2, "x": operands["x"][0]}, ShapeError, r"x of expert_parallel is \[16\]"),
        ({"blocks": 2, "tokens": 3}, ShapeError, "has 4 rows, and tokens=3"),
        ({"shared": operands["w2"]}, DtypeError, "shared of expert_parallel is a Tensor"),
        ({"shared": pair_for_all(torch.bfloat16)}, DtypeError, "shared of expert_parallel is torch.bfloat16 on cpu "),
        ({"shared": pair_for_all(torch.float32)[::-1]}, ShapeError, r"shared of expert_parallel is \[16, 5\] and "),
    ]
    for other, kind, text in wrong:
        with pytest.raises(kind, match=text):
            ops.expert_parallel(**{**operands, **other})
    own = dist.get_rank() == 0
    with pytest.raises(BindingError if own else RankError, match="capacity" if own else "rank 0 cannot make the call"):
        ops.expert_parallel(**operands, capacity=0 if own else 9)
    with pytest.raises(ShapeError, match=r"rank [01] calls expert_parallel with [34] rows, and rank [01]"):
        fewer = {name: operands[name][: 4 - dist.get_rank()] for name in ("x", "ids", "weights")}
        ops.expert_parallel(**{**operands, **fewer})
    with pytest.raises(ShapeError, match=r"rank [01] calls expert_parallel with tokens=[78], and rank"):
        ops.expert_parallel(**operands, tokens=7 + dist.get_rank())
    with pytest.raises(BindingError if own else RankError, match="blocks" if own else "rank 0 cannot make the call"):
        ops.expert_parallel(**operands, blocks=0 if own else 2)
    mine, others = (f"with {'an' if there else 'no'} expert for all tokens" for there in (own, not own))
    with pytest.raises(ShapeError, match=f"{mine}, and rank {int(own)} {others}"):
        ops.expert_parallel(**operands, shared=pair_for_all(torch.float32) if own else None)
    with pytest.raises(ShapeError, match=r"rank [01] calls expert_parallel with [34] rows, and rank"):
        ops.expert_parallel(**{**operands, **fewer}, blocks=2)  # of two tokens each
    with pytest.raises(ShapeError, match=r"rank [01] calls expert_parallel with tokens=[48], blocks=[12]|tokens=4"):
        ops.expert_parallel(**operands, tokens=8 if own else 4, blocks=2 if own else 1)
    close(ops.expert_parallel(**operands), case.plain()[0][dist.get_rank()], case.dtype)  # and nothing hangs


def one_column() -> None:
    """Rows or columns of one element have any strides, and choices of f64 travel as integers of 32 bits."""
    for tokens in (1, 3):
        chance, case = torch.Generator().manual_seed(tokens), Case(tokens=_tokens(tokens, 0))
        x, ids, weights, w13, w2 = case.operands()
        for columns in (1, 2):
            given = torch.rand(columns, tokens, generator=chance).double().t()
            for one in (given, given[:, :1].expand(tokens, columns), given[:1].expand(tokens, columns)):
                wanted = case.call(x, ids[:, :columns], one.clone(memory_format=torch.contiguous_format), w13, w2)
                assert torch.equal(case.call(x, ids[:, :columns], one, w13, w2), wanted)
        doubled = torch.cat((ids, ids), 1)[:, :3], torch.cat((weights, weights), 1)[:, :3]
        close(case.call(x, *doubled, w13, w2), case.call(x, *(one.clone() for one in doubled), w13, w2), case.dtype)


def unlike_gradients() -> None:
    """Ranks that need gradients of other tensors than their peers are told so, as are ranks that need none."""
    case, own = Case(tokens=_tokens(4, 0), dtype=torch.float32), dist.get_rank() == 0
    x, ids, weights, w13, w2 = case.operands()
    for way in ("unfused", "moe:"):
        with pytest.raises(ShapeError, match="nothing kept for gradients"):
            case.call(x.clone().requires_grad_(own), ids, weights, w13, w2, schedule=way)
    y = case.call(x.clone().requires_grad_(own), ids, weights.clone().requires_grad_(), w13, w2)
    with pytest.raises(ShapeError, match=r"with gradients of weights(, and rank|$|\s)"):
        y.sum().backward()
    trained = w13.clone().requires_grad_(), w2.clone().requires_grad_(own)  # of experts alone each rank may say
    case.call(x, ids, weights, *trained).sum().backward()
    assert trained[0].grad is not None and (trained[1].grad is not None) == own


def traced() -> None:
    for case in (Case(tokens=_tokens(5, 0)), Case(tokens=_tokens(5, 1), slices=True)):
        x, ids, weights, w13, w2 = case.operands()
        leaves = [one.clone().requires_grad_() for one in (x, weights, w13, w2)]
        factor = case.drawn()[-1][dist.get_rank()]

        def result(case: Case, ids: Tensor, x: Tensor, weights: Tensor, w13: Tensor, w2: Tensor) -> Tensor:
            return case.call(x * 1, ids, weights, w13, w2)

        plain = partial(result, case, ids)
        compiled = torch.compile(plain, backend="aot_eager", fullgraph=True)
        y = compiled(*leaves)
        made = torch.autograd.grad((y * factor).sum(), leaves)
        results, dx, dweights, *dw = case.plain()
        rank = dist.get_rank()
        wanted = (results[rank], dx[rank], dweights[rank], *case.own(*dw))
        for found, one in zip((y, *made), wanted, strict=True):
            close(found, one, case.dtype)
        options = ("moe" if case.slices else "expert_parallel", 9, None, "silu", True, name_of(members_of(None)), "")
        torch.library.opcheck(
            torch.ops.tilelink.experts.default, (leaves[0].detach(), ids, *leaves[1:], None, None, None, *options),
            test_utils=("test_schema", "test_faketensor", "test_autograd_registration"),
        )  # fmt: skip
        outer = checkpoint(plain, *leaves, use_reentrant=False)
        again = torch.autograd.grad((outer * factor).sum(), leaves)
        assert all(torch.equal(one, two) for one, two in zip(again, made, strict=True))


SCENARIOS = {
    one.__name__: one
    for one in (
        results, unequal, frozen, repeated, capacity, overflow, wide_ids, spread, few, many, rows, few_rows, shared,
        shared_few, shared_many, blocks, scaled, quantised, mistakes, scaled_mistakes, unlike_gradients, one_column,
        traced,
    )
}  # fmt: skip


def run(names: list[str]) -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    for name in names:
        SCENARIOS[name]()
    dist.barrier()
    dist.destroy_process_group()
    sys.stderr.flush()
    os._exit(0)
