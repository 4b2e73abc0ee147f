# pyright: basic
"""What tests of `tilelink.parallel` do on CPU ranks, beside torch's own styles."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from copy import deepcopy
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as collectives
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor import parallel as stock
from torch.torch_version import TorchVersion
from torch.utils.checkpoint import checkpoint as recomputed

from tilelink import ops, parallel
from tilelink.errors import BindingError, RankError, ShapeError, UnknownNameError
from tilelink.parallel import overlap as overlap_module
from tilelink.parallel import products
from tilelink.parallel.overlap import KEPT

TORCH = TorchVersion(torch.__version__)

BATCH, ROWS, HIDDEN, INNER, HEADS = 2, 8, 16, 24, 4
Plan = dict[str, Any]


class MLP(nn.Module):
    def __init__(self, bias: bool = False) -> None:
        super().__init__()
        self.w1, self.w3 = nn.Linear(HIDDEN, INNER, bias=bias), nn.Linear(HIDDEN, INNER, bias=bias)
        self.w2 = nn.Linear(INNER, HIDDEN, bias=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.w2(nn.functional.silu(self.w1(x)) * self.w3(x))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(HIDDEN, HIDDEN, bias=False) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, rows, _ = x.shape
        q, k, v = (w(x).view(batch, rows, -1, HIDDEN // HEADS).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.wo(y.transpose(1, 2).contiguous().view(batch, rows, -1))


class Block(nn.Module):
    def __init__(self, bias: bool = False) -> None:
        super().__init__()
        self.attention_norm, self.ffn_norm = nn.RMSNorm(HIDDEN), nn.RMSNorm(HIDDEN)
        self.attention, self.feed_forward = Attention(), MLP(bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed_forward(self.ffn_norm(x))


def model(bias: bool = False) -> Any:
    """The same on all ranks."""
    torch.manual_seed(0)
    return nn.Sequential(Block(bias), Block(bias))


def mesh(*sizes: int, names: tuple[str, ...] = ("tp",)) -> DeviceMesh:
    return init_device_mesh("cpu", sizes or (dist.get_world_size(),), mesh_dim_names=names)


# Plans: each for the styles of a module, torch's or ours --------------------------------------------------------


def on_all_ranks(of: Any) -> Plan:
    """Rows are on all ranks: sums."""
    plan = {f"attention.{name}": of.ColwiseParallel() for name in ("wq", "wk", "wv")}
    return plan | {
        "attention.wo": of.RowwiseParallel(), "feed_forward.w1": of.ColwiseParallel(),
        "feed_forward.w3": of.ColwiseParallel(), "feed_forward.w2": of.RowwiseParallel(),
    }  # fmt: skip


def sequence(of: Any) -> Plan:
    """As torchtitan plans a layer: rows are spread between products."""
    plan = {
        "attention_norm": of.SequenceParallel(), "ffn_norm": of.SequenceParallel(),
        "attention": of.PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
        "feed_forward": of.PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
        "attention.wo": of.RowwiseParallel(output_layouts=Shard(1)),
        "feed_forward.w2": of.RowwiseParallel(output_layouts=Shard(1)),
    }  # fmt: skip
    colwise = ("attention.wq", "attention.wk", "attention.wv", "feed_forward.w1", "feed_forward.w3")
    return plan | {name: of.ColwiseParallel() for name in colwise}


def each(of: Any) -> Plan:
    """Each product at the input of an MLP gathers for itself."""
    plan = sequence(of) | {"ffn_norm": of.SequenceParallel(use_local_output=True)}
    del plan["feed_forward"]
    return plan | {f"feed_forward.{name}": of.ColwiseParallel(input_layouts=Shard(1)) for name in ("w1", "w3")}


def whole_mlp(of: Any) -> Plan:
    """An MLP by its own style, where there is one."""
    plan = sequence(of)
    if of is parallel:
        plan = {name: style for name, style in plan.items() if not name.startswith("feed_forward")}
        plan["feed_forward"] = parallel.GatedMLP("w1", "w3", "w2")
    return plan


def together(of: Any) -> Plan:
    """Layers at the same rows are one product, in another order than they are called in."""
    plan = sequence(of)
    if of is parallel:
        layouts: Any = {"input_layouts": (Shard(1),), "desired_input_layouts": (Replicate(),)}
        plan["attention"] = parallel.PrepareModuleInput(together=("wv", "wq", "wk"), **layouts)
        plan["feed_forward"] = parallel.PrepareModuleInput(together=("w1", "w3"), **layouts)
    return plan


PLANS: dict[str, tuple[Callable[[Any], Plan], bool]] = {
    "on all ranks": (on_all_ranks, False), "sequence": (sequence, True), "each": (each, True),
    "whole mlp": (whole_mlp, True), "together": (together, True),
}  # fmt: skip
"""Plans, and whether they spread rows."""


def planned(of: Any, plan: Callable[[Any], Plan], over: DeviceMesh, bias: bool = False) -> Any:
    made = model(bias)
    for block in made:
        stock.parallelize_module(block, over, plan(of))
    return made


def inputs(spread: bool, over: DeviceMesh, step: int = 0, dp: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """x and what it should become: of the own rows, or of all."""
    chance = torch.Generator().manual_seed(1 + step + 100 * dp)
    both = [torch.randn(BATCH, ROWS, HIDDEN, generator=chance) for _ in range(2)]
    x, target = (t.chunk(over.size(), 1)[over.get_local_rank()] if spread else t for t in both)
    return x, target


def loss_of(y: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """A mean over all rows, or what the own rows have part in it."""
    return (y - target).square().sum() / (BATCH * ROWS * HIDDEN)


def train(
    net: nn.Module, spread: bool, over: DeviceMesh, steps: int = 2, dp: int = 0, run: Callable[..., Any] | None = None
) -> list[float]:  # fmt: skip
    """The losses of some steps, with gradients clipped. The second one has what the first one made of the weights."""
    optimizer, losses = torch.optim.SGD(net.parameters(), lr=0.5), []
    for step in range(steps):
        x, target = inputs(spread, over, step, dp)
        loss = loss_of((run or net)(x), target)
        loss.backward()
        if spread:  # else norms are plain tensors, and torch takes no norm over both kinds
            norm: Any = nn.utils.clip_grad_norm_(net.parameters(), 0.5)
            losses.append(norm.full_tensor().item())
        optimizer.step()
        optimizer.zero_grad()
        whole = loss.detach().clone()
        if spread:
            dist.all_reduce(whole, group=over.get_group())
        losses.append(whole.item())
    return losses


def weights(net: nn.Module) -> dict[str, torch.Tensor]:
    return {n: p.full_tensor() if isinstance(p, DTensor) else p.detach() for n, p in net.named_parameters()}


def alike(ours: nn.Module, theirs: nn.Module, note: str) -> None:
    """Parameters have equal values and equal placements."""
    pairs: Any = zip(ours.named_parameters(), theirs.named_parameters(), strict=True)
    for (name, mine), (other, yours) in pairs:
        assert name == other and type(mine) is type(yours), (note, name, other)
        if isinstance(mine, DTensor):
            assert mine.placements == yours.placements and mine.device_mesh == yours.device_mesh, (note, name)
    made = weights(theirs)
    for name, value in weights(ours).items():
        torch.testing.assert_close(value, made[name], atol=2e-5, rtol=2e-5, msg=lambda m, n=name: f"{note} {n}: {m}")


def close(ours: list[float], theirs: list[float], note: str, allowed: float = 1e-5) -> None:
    both = torch.tensor(ours), torch.tensor(theirs)
    torch.testing.assert_close(*both, atol=allowed, rtol=allowed, msg=lambda text: f"{note}: {text}")


# Scenarios -----------------------------------------------------------------------------------------------------


def losses() -> None:
    """Losses, norms of gradients and trained weights are those of torch's styles, and those of one process."""
    over = mesh()
    for name, (plan, spread) in PLANS.items():
        found: list[float] = []
        bias = name != "whole mlp"
        for has_bias in (False, True) if name == "sequence" else (bias,):
            ours, theirs = planned(parallel, plan, over, has_bias), planned(stock, plan, over, has_bias)
            found = train(ours, spread, over)
            close(found, train(theirs, spread, over), name)
            alike(ours, theirs, name)
        alone = model(bias)
        seen = []
        for step in range(2):
            x, target = inputs(False, over, step)
            loss = loss_of(alone(x), target)
            seen.append(loss.item())
            loss.backward()
            if spread:
                nn.utils.clip_grad_norm_(alone.parameters(), 0.5)
            with torch.no_grad():
                for one in alone.parameters():
                    one -= 0.5 * one.grad  # type: ignore[operator]
                    one.grad = None
        # Torch 2.11's own styles, which ours were compared with, are that far from one process.
        allowed = 2e-4 if TORCH < "2.12" else 1e-5
        close(found[1::2] if spread else found, seen, f"{name} beside one process", allowed)


def gathered_once() -> None:
    """Layers together gather their rows once, and scatter the gradient once; what is left is freed."""
    over, asked = mesh(), list[str]()
    x = inputs(True, over)[0].requires_grad_()
    whole = products._product

    def counted(op: str, *operands: Any) -> Any:
        asked.append(op)
        return whole(op, *operands)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(products, "_product", counted)
        for plan, gathers in ((sequence, 2 * (3 + 2)), (together, 2 * (1 + 1))):
            net = planned(parallel, plan, over)
            net(x).square().sum().backward()
            # Sums of rows and their gradients are the other product of each half of a block.
            assert asked.count("ag_gemm_gathered") == gathers + 4 and asked.count("gemm_rs") == gathers + 4, asked
            asked.clear()
    left = net[0].attention.wq._together
    assert (left.x, left.made) == (None, [])
    net[0].attention.wv.forward = raising
    with pytest.raises(ArithmeticError):
        net(x)
    assert (left.x, left.made) == (None, [])


class Modes(nn.Module):
    """Layers at the same rows that are called in different modes, and recomputed alone."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.wq, self.wk = kind, *(nn.Linear(HIDDEN, HIDDEN, bias=False) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.kind == "one is recomputed":
            return recomputed(self.wq, x, use_reentrant=False) * self.wk(x)
        if self.kind == "all are recomputed":
            return recomputed(lambda x: self.wq(x) * self.wk(x), x, use_reentrant=False)
        modes: Any = {"no_grad": torch.no_grad, "autocast": lambda: torch.autocast("cpu", torch.bfloat16)}
        with modes.get(self.kind, nullcontext)():
            q = self.wq(x)
        if self.kind == "changed":
            with torch.no_grad():
                x.mul_(2)
        return q * self.wk(x)


def in_other_modes() -> None:
    """Layers together have the results and gradients of layers apart, whatever mode each is called in."""
    over = mesh()
    layouts: Any = {"input_layouts": (Shard(1),), "desired_input_layouts": (Replicate(),)}
    x, _ = inputs(True, over)
    for kind in ("plain", "no_grad", "autocast", "changed", "one is recomputed", "all are recomputed"):
        seen = []
        for names in ((), ("wk", "wq")):
            torch.manual_seed(3)
            prepared = parallel.PrepareModuleInput(together=names, **layouts)
            plan: Any = {"": prepared, "wq": parallel.Colwise(), "wk": parallel.Colwise()}
            net = stock.parallelize_module(Modes(kind), over, plan)
            given = x.clone().requires_grad_(kind != "changed")
            with torch.no_grad() if kind == "changed" else nullcontext():
                y = net(given)
            if kind != "changed":
                y.float().square().sum().backward()
            gradients: list[Any] = [p.grad for p in net.parameters() if p.grad is not None]
            seen.append((y, *(one.to_local() for one in gradients), *(() if given.grad is None else (given.grad,))))
        assert len(seen[0]) == len(seen[1]), kind
        for one, other in zip(*seen, strict=True):
            torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5, msg=lambda m, k=kind: f"{k}: {m}")


def raising(x: Any) -> Any:
    raise ArithmeticError


def without_gradients() -> None:
    over = mesh()
    for name, (plan, spread) in PLANS.items():
        x, _ = inputs(spread, over)
        with torch.no_grad():
            ours, theirs = (planned(of, plan, over, name != "whole mlp")(x) for of in (parallel, stock))
        assert ours.is_contiguous() == theirs.is_contiguous()
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5, msg=lambda m, n=name: f"{n}: {m}")


def differentiated_twice() -> None:
    """A gradient of a gradient is refused: torch would take that of one rank's rows."""
    over, drops = mesh(), TORCH < "2.12"  # its own DTensors dropped a gradient of a gradient
    for name, (plan, spread) in PLANS.items():
        if spread and drops:
            continue
        net = planned(parallel, plan, over, name != "whole mlp")
        x = inputs(spread, over)[0].requires_grad_()
        y = net[0].feed_forward(x)
        (dx,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
        with pytest.raises(RuntimeError, match="differentiate twice"):
            dx.square().sum().backward()
    if drops:
        return
    x, w = (distribute_tensor(torch.ones(4, 2 * over.size()), over, [Shard(1)]) for _ in range(2))
    (dx,) = torch.autograd.grad(ops.gemm_ar(x.requires_grad_(), w).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="differentiate twice"):
        dx.square().sum().backward()


def spread_rows() -> None:
    """A block whose rows are in zigzag over ranks has the losses and gradients of one process with all rows."""
    over, rank = mesh(), dist.get_rank()
    for traced, method in ((False, "all_gather"), (True, "all_gather"), (False, "ulysses")):
        torch.manual_seed(3)
        alone = Attention()
        ours = parallel_to(deepcopy(alone), over, method)
        x = torch.randn(BATCH, ROWS, HIDDEN, generator=torch.Generator().manual_seed(5))
        mine = ops.zigzag(x, over.size(), rank, 1).requires_grad_()
        whole = x.clone().requires_grad_()
        run = torch.compile(ours, fullgraph=True, backend="aot_eager") if traced else ours
        run(mine).square().sum().backward()
        alone(whole).square().sum().backward()
        assert whole.grad is not None
        torch.testing.assert_close(mine.grad, ops.zigzag(whole.grad, over.size(), rank, 1), atol=1e-4, rtol=1e-4)
        for one, other in zip(ours.parameters(), alone.parameters(), strict=True):
            dist.all_reduce(one.grad)
            torch.testing.assert_close(one.grad, other.grad, atol=1e-4, rtol=1e-4)
    with pytest.raises(UnknownNameError, match="no method 'rings'"):
        parallel_to(Attention(), over, "rings")(x)
    q = torch.randn(1, 2, 4, 8)
    with pytest.raises(BindingError, match="attention over ranks has a mask"):
        parallel_to(Masked(), over)(q)
    assert nn.functional.scaled_dot_product_attention(q, q, q).shape == q.shape  # outside, torch's own
    with pytest.raises(RankError, match="the mesh has 2 dimensions"):
        parallel_to(Attention(), init_device_mesh("cpu", (1, dist.get_world_size()), mesh_dim_names=("a", "b")))


def spread_in_parts() -> None:
    """Checkpoints in a block are computed again over all ranks, a copy has weights of its own, and autocast holds."""
    over, rank = mesh(), dist.get_rank()
    x = torch.randn(BATCH, ROWS, HIDDEN, generator=torch.Generator().manual_seed(5))
    alone = Block()
    whole = x.clone().requires_grad_()
    alone(whole).square().sum().backward()
    assert whole.grad is not None
    for reentrant in (False, True):
        ours = deepcopy(alone)
        inner = ours.attention
        ours.attention = Recomputed(inner, reentrant)  # type: ignore[assignment]
        parallel_to(ours, over)
        mine = ops.zigzag(x, over.size(), rank, 1).requires_grad_()
        ours(mine).square().sum().backward()
        torch.testing.assert_close(mine.grad, ops.zigzag(whole.grad, over.size(), rank, 1), atol=1e-4, rtol=1e-4)
    copy: Any = deepcopy(ours)
    expected = ours(mine).detach()
    with torch.no_grad():
        copy.attention.one.wv.weight.mul_(2.0)
        alone.attention.wv.weight.mul_(2.0)
        torch.testing.assert_close(copy(mine), ops.zigzag(alone(x), over.size(), rank, 1), atol=1e-5, rtol=1e-5)
        assert torch.equal(ours(mine), expected)
    replaced = Attention()
    replaced.forward = lambda x, inner=replaced.forward: 2 * inner(x)  # as tools for hooks do it
    wanted = ops.zigzag(replaced(x), over.size(), rank, 1)
    torch.testing.assert_close(parallel_to(parallel_to(replaced, over), over)(mine), wanted, atol=1e-5, rtol=1e-5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        own, other = torch.randn(2, 1, 2, 4, 8).unbind()
        assert parallel_to(Attends(), over)(own, other.bfloat16()).dtype == torch.bfloat16
        assert parallel_to(Attends(), over)(own.double(), other.double()).dtype == torch.float64
    with pytest.raises(BindingError, match=r"torch\.nn\.MultiheadAttention attends to own rows alone"):
        parallel_to(nn.TransformerEncoderLayer(HIDDEN, 2, batch_first=True), over).eval()(mine.detach())


class Recomputed(nn.Module):
    def __init__(self, one: Any, reentrant: bool) -> None:
        super().__init__()
        self.one, self.reentrant = one, reentrant

    def forward(self, x: torch.Tensor) -> Any:
        return recomputed(self.one, x, use_reentrant=self.reentrant)


class Attends(nn.Module):
    def forward(self, q: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return nn.functional.scaled_dot_product_attention(q, q, v)


class Masked(nn.Module):
    def forward(self, q: torch.Tensor) -> torch.Tensor:
        mask = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool)
        return nn.functional.scaled_dot_product_attention(q, q, q, attn_mask=mask)


def parallel_to(module: nn.Module, over: DeviceMesh, method: str = "all_gather") -> Any:
    return stock.parallelize_module(module, over, parallel.ContextParallel(method))


def layouts() -> None:
    """Other inputs and outputs: DTensors, rows in the first dimension, an embedding, results on all ranks."""
    over = mesh()
    torch.manual_seed(0)
    first, second, table = nn.Linear(HIDDEN, INNER), nn.Linear(INNER, HIDDEN), nn.Embedding(10, HIDDEN)
    x, part = torch.randn(ROWS, HIDDEN), torch.randn(ROWS, INNER // over.size())
    mine = x.chunk(over.size(), 0)[over.get_local_rank()]
    cases = [
        (first, "Colwise", {"input_layouts": Shard(0)}, mine),
        (first, "Colwise", {"input_layouts": Shard(0), "output_layouts": Replicate()}, mine),
        (first, "Colwise", {"input_layouts": Shard(0), "use_local_output": False}, mine),
        (first, "Colwise", {}, DTensor.from_local(mine, over, (Shard(0),))),
        (first, "Colwise", {}, DTensor.from_local(x, over, (Replicate(),))),
        (first, "Colwise", {}, DTensor.from_local(x.chunk(over.size(), 1)[over.get_local_rank()], over, (Shard(1),))),
        (first, "Colwise", {"input_layouts": Shard(-1)}, x.chunk(over.size(), 1)[over.get_local_rank()]),
        (second, "Rowwise", {"output_layouts": Shard(0)}, part),
        (second, "Rowwise", {"output_layouts": Shard(0), "use_local_output": False}, part),
        (second, "Rowwise", {"input_layouts": Replicate()}, torch.randn(ROWS, INNER)),
        (first, "Colwise", {"input_layouts": Shard(1)}, torch.randn(BATCH, ROWS // over.size(), HIDDEN)),
        (second, "Rowwise", {"output_layouts": Shard(1)}, torch.randn(BATCH, ROWS, INNER // over.size())),
        (second, "Rowwise", {"output_layouts": Shard(-1)}, part),
        # Shard(1) spreads columns of x [rows, K], and so do Shard(2) and Shard(-2) of other numbers of dimensions.
        (first, "Colwise", {"input_layouts": Shard(1)}, x.chunk(over.size(), 1)[over.get_local_rank()]),
        (first, "Colwise", {"input_layouts": Shard(-2)}, mine),
        (first, "Colwise", {"input_layouts": Shard(2)}, torch.randn(BATCH, ROWS, HIDDEN // over.size())),
        (second, "Rowwise", {"output_layouts": Shard(1)}, part),
        (second, "Rowwise", {"output_layouts": Shard(1), "use_local_output": False}, part),
        (second, "Rowwise", {"output_layouts": Shard(-2)}, part),
        (second, "Rowwise", {"output_layouts": Shard(2)}, torch.randn(BATCH, ROWS, INNER // over.size())),
        (table, "Rowwise", {"input_layouts": Replicate(), "output_layouts": Shard(0)}, torch.arange(ROWS)),
        (table, "Colwise", {}, torch.arange(ROWS)),
    ]  # fmt: skip
    for module, style, given, value in cases:
        made, grads = [], []
        for of in (parallel, stock):
            one = stock.parallelize_module(deepcopy(module), over, getattr(of, style + "Parallel")(**given))
            y = one(value)
            (y.to_local() if isinstance(y, DTensor) else y).square().sum().backward()
            made.append(y)
            grads.append([p.grad.full_tensor() for p in one.parameters()])  # type: ignore[union-attr]
        note = f"{style} {given} {type(value).__name__}"
        assert isinstance(made[0], DTensor) == isinstance(made[1], DTensor), note
        if isinstance(made[0], DTensor):
            assert made[0].placements == made[1].placements, note
        assert made[0].is_contiguous() and made[1].is_contiguous(), note  # models call view
        for ours, theirs in zip([made[0], *grads[0]], [made[1], *grads[1]], strict=True):
            ours, theirs = (t.to_local() if isinstance(t, DTensor) else t for t in (ours, theirs))
            torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4, msg=lambda m, n=note: f"{n}: {m}")


def gated() -> None:
    """An MLP by its own style beside the same MLP in one process: rows spread, or on all ranks, and DTensors."""
    over, rank = mesh(), dist.get_rank()
    torch.manual_seed(0)
    x = torch.randn(BATCH, ROWS, HIDDEN)

    class Gelu(MLP):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.w2(nn.functional.gelu(self.w1(x)) * self.w3(x))

    for kind, activation in ((MLP, "silu"), (Gelu, "gelu")):
        for dim in (None, 0, 1):
            layouts = Replicate() if dim is None else Shard(dim)
            for local in (True, False):
                torch.manual_seed(1)
                alone = kind()
                ours = deepcopy(alone)
                style = parallel.GatedMLP(activation=activation, layouts=layouts, use_local_output=local)
                stock.parallelize_module(ours, over, style)
                mine = x if dim is None else x.chunk(over.size(), dim)[rank]
                given = mine if local else DTensor.from_local(mine, over, (layouts,))
                with torch.no_grad():
                    first = ours(given)
                y, expected = ours(given), alone(x)
                assert isinstance(y, DTensor) is not local
                y, first = (t.to_local() if isinstance(t, DTensor) else t for t in (y, first))
                assert y.is_contiguous() and y.shape == mine.shape
                y.square().sum().backward()
                expected.square().sum().backward()
                expected = expected if dim is None else expected.chunk(over.size(), dim)[rank]
                theirs: dict[str, Any] = {name: one.grad for name, one in alone.named_parameters()}
                made: Any = list(ours.named_parameters())
                gradients: Any = [(one.grad.full_tensor(), theirs[name]) for name, one in made]
                for one, other in [(y, expected), (first, expected), *gradients]:
                    torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


def gated_columns() -> None:
    """An MLP whose style spreads the last dimension of x: what it is depends on how many x has."""
    over, rank = mesh(), dist.get_rank()
    torch.manual_seed(1)
    alone = MLP()
    for dim, dims in ((1, 2), (-1, 2), (-1, 3), (2, 3)):
        for local in (True, False):
            alone.zero_grad()
            style = parallel.GatedMLP(layouts=Shard(dim), use_local_output=local)
            ours: Any = stock.parallelize_module(deepcopy(alone), over, style)
            x = torch.randn(BATCH, ROWS, HIDDEN)[: 1 if dims == 2 else BATCH].reshape(-1, *[ROWS] * (dims - 2), HIDDEN)
            mine = x.chunk(over.size(), -1)[rank].clone().requires_grad_()
            whole = x.clone().requires_grad_()
            y, expected = ours(mine), alone(whole)
            assert isinstance(y, DTensor) is not local
            y = y.to_local() if isinstance(y, DTensor) else y
            y.square().sum().backward()
            expected.square().sum().backward()
            assert whole.grad is not None
            pairs = [(one.chunk(over.size(), -1)[rank], own) for one, own in ((expected, y), (whole.grad, mine.grad))]
            theirs: Any = dict(alone.named_parameters())
            pairs += [(one.grad.full_tensor(), theirs[name].grad) for name, one in ours.named_parameters()]
            for one, other in pairs:
                torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


def compared() -> None:
    """The comparison of an MLP with its formula leaves modes and random numbers as they were, also if it fails."""

    class Broken(MLP):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise ZeroDivisionError("no rows")

    def applied(module: nn.Module, *parts: str) -> None:
        stock.parallelize_module(module, mesh(), parallel.GatedMLP(*parts))

    for kind, parts, said in (
        (MLP, (), ""), (Broken, (), r"Broken of x \[1, 2, 16\] raises ZeroDivisionError: no rows"),
        (MLP, ("w2", "w3", "w1"), "raises RuntimeError"),
    ):  # fmt: skip
        module = kind()
        module.w1.eval()
        torch.manual_seed(5)
        with pytest.raises(BindingError, match=said) if said else nullcontext():
            applied(module, *parts)
        drawn = torch.rand(4)
        assert torch.equal(drawn, torch.rand(4, generator=torch.Generator().manual_seed(5))), said
        assert module.training and module.w2.training and not module.w1.training, said


def compiled() -> None:
    """One graph without a break, with layers that are computed again in backward too; results are the same."""
    over = mesh()
    for name in ("on all ranks", "whole mlp", "together"):
        plan, spread = PLANS[name]
        expected = train(planned(parallel, plan, over), spread, over)
        net = planned(parallel, plan, over)
        close(train(net, spread, over, run=torch.compile(net, backend="aot_eager", fullgraph=True)), expected, name)
        again = planned(parallel, plan, over)

        def layers(x: torch.Tensor, net: Any = again) -> torch.Tensor:
            for block in net:
                x = recomputed(block, x, use_reentrant=False)
            return x

        close(train(again, spread, over, run=layers), expected, f"{name}, computed again")
        third = planned(parallel, plan, over)
        graph: Any = {"backend": "aot_eager", "fullgraph": True, "dynamic": False}
        blocks: Any = [torch.compile(block, **graph) for block in third]
        whole = nn.Sequential(*blocks)
        # (Checkpoints inside of a graph with DTensors are refused by torch 2.13 itself, with its own styles too.)
        close(train(third, spread, over, run=lambda x, net=whole: layers(x, net)), expected, f"{name}, graphs again")
        torch.compiler.reset()


def saved() -> None:
    """A checkpoint of torch's styles is one of ours, and back; also copies by deepcopy."""
    over = mesh()
    plan, spread = PLANS["sequence"]
    ours, theirs = planned(parallel, plan, over), planned(stock, plan, over)
    train(ours, spread, over)
    where = [tempfile.mkdtemp()]
    dist.broadcast_object_list(where)
    save(ours.state_dict(), checkpoint_id=where[0])
    state = theirs.state_dict()
    load(state, checkpoint_id=where[0])
    theirs.load_state_dict(state)
    alike(ours, theirs, "loaded")
    joined = planned(parallel, together, over)
    train(joined, spread, over)
    copy, other = deepcopy(ours), deepcopy(joined)
    close(train(copy, spread, over), train(theirs, spread, over), "a copy")
    before, kept = weights(ours), weights(joined)
    train(other, spread, over)
    alike(other, copy, "a copy of layers together")
    assert all(torch.equal(value, kept[name]) for name, value in weights(joined).items())
    assert all(not torch.equal(value, before[name]) for name, value in weights(copy).items() if "w" in name)


def sharded_twice() -> None:
    """FSDP2 on the other dimension of a mesh, on four ranks."""
    over = mesh(2, 2, names=("dp", "tp"))
    for name in ("sequence", "whole mlp", "together"):
        plan, spread = PLANS[name]
        seen = []
        for of in (parallel, stock):
            net = planned(of, plan, over["tp"])
            for block in net:
                fully_shard(block, mesh=over["dp"])
            fully_shard(net, mesh=over["dp"])
            seen.append((train(net, spread, over["tp"], dp=over["dp"].get_local_rank()), net))
        close(seen[0][0], seen[1][0], name)
        alike(seen[0][1], seen[1][1], name)


def meshes() -> None:
    """Operators take a mesh of one dimension as their group."""
    over = mesh(1, dist.get_world_size(), names=("dp", "tp"))
    x, w = torch.ones(2, 3), torch.ones(4, 3)
    assert torch.equal(ops.ag_gemm(x, w, group=over["tp"]), ops.ag_gemm(x, w))
    assert ops.all_reduce(x, group=over["tp"])[0, 0] == dist.get_world_size()
    whole = torch.compile(lambda t: ops.all_reduce(t, group=over["tp"]), backend="aot_eager", fullgraph=True)
    assert torch.equal(whole(x), ops.all_reduce(x))
    with pytest.raises(RankError, match=r"(?s)the mesh has 2 dimensions: \['dp', 'tp'\].*mesh\[\"tp\"\]"):
        ops.all_reduce(x, group=over)


def other_meshes() -> None:
    """A DTensor of another mesh than the layer's is refused: its rows are not those of the layer's ranks."""
    over, both = mesh(), mesh(1, dist.get_world_size(), names=("dp", "tp"))
    net, layer = planned(parallel, whole_mlp, over), Choice()
    stock.parallelize_module(layer, over, parallel.Experts())
    x = torch.ones(BATCH, ROWS, HIDDEN)
    for other, placed in ((both, (Shard(0), Shard(1))), (both["dp"], (Shard(1),))):
        given = DTensor.from_local(x, other, placed, run_check=False)
        for run in (net[0].attention.wq, net[0].attention.wo, net[0].feed_forward, lambda x: layer(x, x.long(), x)):
            with pytest.raises(BindingError, match=r"x is of DeviceMesh.*dp.*, and the layer of DeviceMesh"):
                run(given)


def styled_twice() -> None:
    over, layer = mesh(), Choice()
    net = planned(parallel, whole_mlp, over)
    stock.parallelize_module(layer, over, parallel.Experts())
    for module, style in (
        (net[0].attention.wq, parallel.Colwise()), (net[0].attention.wo, parallel.Rowwise()),
        (net[0].feed_forward, parallel.GatedMLP()), (layer, parallel.Experts()),
    ):  # fmt: skip
        with pytest.raises(BindingError, match="has a style already"):
            stock.parallelize_module(module, over, style)


def dtensors() -> None:
    """Operators take DTensors, and have the results and gradients that torch has for the same whole tensors."""
    over = mesh()
    chance = torch.Generator().manual_seed(5)
    ranks = over.size()
    x, w, up = (torch.randn(4 * ranks, 2 * ranks, generator=chance) for _ in range(3))
    shard, whole, summed = [Shard(0)], [Replicate()], [Partial()]
    columns = [Shard(1)]
    silu = nn.functional.silu
    products: Any = (
        (ops.ag_gemm, (x, w), shard, lambda a, b: a @ b.t(), columns),
        (ops.gemm_rs, (x, w), columns, lambda a, b: a @ b.t(), shard),
        (ops.gemm_ar, (x, w), columns, lambda a, b: a @ b.t(), whole),
        (ops.ag_gemm_gated, (x, w, up), shard, lambda a, b, c: silu(a @ b.t()) * (a @ c.t()), columns),
        (ops.all_gather, (x,), shard, lambda a: a * 1, whole),
        (ops.reduce_scatter, (x,), summed, lambda a: a * 1, shard),
        (ops.all_reduce, (x,), summed, lambda a: a * 1, whole),
    )
    for op, given, placed, plain, made in products:
        for divided in (False, True) if placed != summed else (False,):
            alone = [one.clone().requires_grad_() for one in given]
            spread = [distribute_tensor(one, over, whole if divided else placed).requires_grad_() for one in given]
            y, expected = op(*spread), plain(*alone)
            assert y.placements == tuple(made) and y.shape == expected.shape, op
            torch.testing.assert_close(y.full_tensor(), expected.detach())
            for result in (y, expected):
                result.square().sum().backward()
            pairs: Any = zip(spread, alone, strict=True)
            for one, other in pairs:
                torch.testing.assert_close(one.grad.full_tensor(), other.grad, msg=lambda m, o=op: f"{o}: {m}")
    a, b = (distribute_tensor(one, over, shard) for one in (x, w))
    wrongs: Any = (
        (lambda: ops.gemm_rs(a, b), r"x of gemm_rs is Shard\(dim=0\), and it takes Shard\(dim=1\).*redistribute"),
        (lambda: ops.ag_gemm(a, w), "w of ag_gemm is no DTensor"), (lambda: ops.ag_gemm(x, b), "x of ag_gemm is no"),
        (lambda: ops.ag_gemm(a, b, bias=w[0]), "ag_gemm of DTensors has bias.*after"),
        (lambda: ops.ag_gemm(a, b, group=mesh(1, ranks, names=("dp", "tp"))["dp"]), "the group of ag_gemm"),
    )  # fmt: skip
    for call, said in wrongs:
        with pytest.raises(BindingError, match=rf"(?s){said}"):
            call()
    uneven = distribute_tensor(w[: 4 * ranks - 1], over, shard)
    for call, name in ((lambda: ops.ag_gemm(a, uneven), "w"), (lambda: ops.ag_gemm(uneven, b), "x")):
        with pytest.raises(ShapeError, match=rf"(?s){name} of ag_gemm is \[{4 * ranks - 1}, .* pad it"):
            call()
    two = distribute_tensor(x, mesh(1, ranks, names=("dp", "tp")), [Replicate(), Shard(0)])
    with pytest.raises(RankError, match="the mesh has 2 dimensions"):
        ops.all_gather(two)


def mistakes() -> None:
    over, ranks = mesh(), dist.get_world_size()
    two = mesh(1, ranks, names=("dp", "tp"))
    for style in (parallel.Colwise(), parallel.Rowwise(), parallel.GatedMLP()):
        with pytest.raises(RankError, match=r"(?s)2 dimensions.*mesh\[\"tp\"\]"):
            style._apply(nn.Linear(4, 4), two)
    with pytest.raises(ShapeError, match=rf"(?s)5 features of Linear\(4, 5\) on {ranks} ranks.*pad"):
        stock.parallelize_module(nn.Linear(4, 5), over, parallel.Colwise())
    with pytest.raises(ShapeError, match=rf"(?s)5 features of Linear\(5, 4\) on {ranks} ranks.*pad"):
        stock.parallelize_module(nn.Linear(5, 4), over, parallel.Rowwise())
    rows = stock.parallelize_module(nn.Linear(4, 4), over, parallel.Rowwise(output_layouts=Shard(0)))
    with pytest.raises(ShapeError, match="3 rows for"):
        rows(torch.ones(3, 4 // ranks))
    far = stock.parallelize_module(nn.Linear(4, 4), over, parallel.Rowwise(output_layouts=Shard(2)))
    with pytest.raises(ShapeError, match="dimension 2 of 2 is spread"):
        far(torch.ones(4, 4 // ranks))
    wrongs: tuple[tuple[dict[str, Any], str], ...] = (
        ({"gate": "w4"}, r"'w4' of MLP is nothing.*w1, w3, w2"), ({"gate": "w3", "up": "w1"}, r"is not down\(silu\("),
        ({"activation": "gelu"}, r"is not down\(gelu\("), ({"activation": "tanh"}, "no activation 'tanh'"),
        ({"layouts": Partial()}, "cannot be P"),
    )  # fmt: skip
    for wrong, said in wrongs:
        with pytest.raises(BindingError, match=rf"(?s){said}"):
            stock.parallelize_module(MLP(), over, parallel.GatedMLP(**wrong))
    with pytest.raises(BindingError, match="a Linear with a bias"):
        stock.parallelize_module(MLP(True), over, parallel.GatedMLP())
    stock.parallelize_module(MLP().to("meta"), over, parallel.GatedMLP())
    layouts: Any = {"input_layouts": (Shard(0),), "desired_input_layouts": (Replicate(),)}
    joined = parallel.PrepareModuleInput(together=("w1", "w2"), **layouts)
    net = stock.parallelize_module(MLP(), over, {"": joined, "w1": parallel.Colwise(), "w2": parallel.Rowwise()})
    with pytest.raises(BindingError, match=r"(?s)'w2' of MLP is a RowsLinear.*ColwiseParallel"):
        net(torch.ones(ROWS, HIDDEN))
    absent = parallel.PrepareModuleInput(together=("w1", "w4"), **layouts)
    net = stock.parallelize_module(MLP(), over, {"": absent, "w1": parallel.Colwise()})
    with pytest.raises(BindingError, match="'w4' of MLP is nothing"):
        net(torch.ones(ROWS, HIDDEN))
    with pytest.raises(UnknownNameError, match=r"(?s)no method 'rings'.*all_gather, ulysses, ring"):
        parallel.ContextParallel(method="rings")
    with pytest.raises(BindingError, match=r"(?s)together is 'w1'.*a tuple of names"):
        parallel.PrepareModuleInput(together="w1", **layouts)


def explained() -> None:
    over = mesh()
    net = nn.ModuleDict({
        "table": nn.Embedding(8, HIDDEN), "first": nn.Linear(HIDDEN, INNER), "second": nn.Linear(INNER, HIDDEN),
        "mlp": MLP(), "columns": nn.Linear(HIDDEN, INNER),
        "own": type("Own", (nn.Linear,), {"forward": lambda own, x: x})(4, 4), "either": nn.Linear(HIDDEN, INNER),
    })  # fmt: skip
    plan: Any = {
        "table": parallel.Rowwise(input_layouts=Replicate()), "first": parallel.Colwise(input_layouts=Shard(1)),
        "second": parallel.Rowwise(), "mlp": parallel.GatedMLP(),
        "columns": parallel.Colwise(input_layouts=Shard(-1)), "own": parallel.Colwise(), "either": parallel.Colwise(),
    }  # fmt: skip
    stock.parallelize_module(net, over, plan)
    unfused = ", unfused: its weight is on cpu, and kernels are for GPUs"
    assert parallel.explain(net) == [
        "table: left to torch: it is a Embedding, and products are those of nn.Linear",
        f"first: all-gather and product{unfused}",
        f"second: product and all-reduce{unfused}",
        f"mlp: all-gather and product, product and reduce-scatter{unfused}",
        "columns: left to torch: its input is S(-1), and its products take rows that are spread, or all of them",
        "own: left to torch: it is a Own, and products are those of nn.Linear",
        f"either: all-gather and product where x is spread{unfused}",
    ]


def mixed() -> None:
    """Under autocast operands are cast, as those of torch's products."""
    over = mesh()
    for name in ("on all ranks", "sequence", "whole mlp"):
        plan, spread = PLANS[name]
        x, _ = inputs(spread, over)
        with torch.autocast("cpu", torch.bfloat16):
            ours, theirs = (planned(of, plan, over)(x) for of in (parallel, stock))
        torch.testing.assert_close(ours, theirs, atol=0.05, rtol=0.05, msg=lambda m, n=name: f"{n}: {m}")


# The pass of torch.compile -------------------------------------------------------------------------------------


class Choice(nn.Module):
    """Experts as Qwen3-MoE has them in transformers: gate and up in one parameter."""

    def __init__(self, experts: int = 6, joined: bool = True, sign: float = 1.0) -> None:
        super().__init__()
        self.sign = sign
        self.gate_up_proj = nn.Parameter(torch.randn(experts, 2 * INNER, HIDDEN) * HIDDEN**-0.5)
        self.down_proj = nn.Parameter(torch.randn(experts, HIDDEN, INNER) * INNER**-0.5)
        if not joined:
            gate, up = self.gate_up_proj.detach().chunk(2, 1)
            self.w1, self.w3 = nn.Parameter(gate.clone()), nn.Parameter(up.clone())
            del self.gate_up_proj

    def forward(self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        y = torch.zeros_like(x)
        w13 = self.gate_up_proj if hasattr(self, "gate_up_proj") else torch.cat((self.w1, self.w3), 1)
        for e in range(w13.shape[0]):
            gate, up = (x @ w13[e].t()).chunk(2, -1)
            total = (weights * (ids == e)).sum(-1, keepdim=True)
            y = y + self.sign * total * ((nn.functional.silu(gate) * up) @ self.down_proj[e].t())
        return y


class Sparse(nn.Module):
    def __init__(self, **kinds: Any) -> None:
        super().__init__()
        self.router, self.experts = nn.Linear(HIDDEN, 6, bias=False), Choice(**kinds)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights, ids = self.router(x).softmax(-1).topk(2)
        return self.experts(x, ids, weights / weights.sum(-1, keepdim=True))


def experts() -> None:
    """Layers of experts, each rank with tokens of its own, beside all tokens in one place."""
    over = mesh(names=("ep",))
    ranks, rank = over.size(), over.get_local_rank()
    for joined in (True, False):
        torch.manual_seed(4)
        plain = Sparse(joined=joined)
        ours, x = deepcopy(plain), torch.randn(ranks * BATCH, ROWS, HIDDEN)
        style = parallel.Experts() if joined else parallel.Experts(("w1", "w3"), recompute=True)
        stock.parallelize_module(ours, over, {"experts": style})
        assert dict(ours.experts.named_parameters()).keys() == dict(plain.experts.named_parameters()).keys()
        assert {str(getattr(one, "placements", None)) for one in ours.experts.parameters()} == {"(Shard(dim=0),)"}
        given = DTensor.from_local(x.chunk(ranks)[rank], over, (Shard(0),), run_check=False)
        expected = plain(x)
        if joined:
            # A DTensor is taken and given back.
            weights, ids = plain.router(x).softmax(-1).topk(2)
            weights = weights / weights.sum(-1, keepdim=True)
            spread = [one.chunk(ranks)[rank] for one in (ids, weights)]
            made = ours.experts(given, *spread)
            torch.testing.assert_close(made.full_tensor(), expected)
            with pytest.raises(BindingError, match=r"tokens of experts are R"):
                ours.experts(DTensor.from_local(x, over, (Replicate(),), run_check=False), ids, weights)
        made = ours(x.chunk(ranks)[rank])
        torch.testing.assert_close(made, expected.chunk(ranks)[rank])
        expected.square().sum().backward()
        made.square().sum().backward()
        for name, one in plain.experts.named_parameters():
            torch.testing.assert_close(ours.experts.get_parameter(name).grad.full_tensor(), one.grad)  # type: ignore
        dist.all_reduce(ours.router.weight.grad)
        torch.testing.assert_close(ours.router.weight.grad, plain.router.weight.grad)
        nn.utils.clip_grad_norm_(ours.experts.parameters(), 1.0)
        assert "tokens to each rank of their experts" in parallel.explain(ours)[0]
    for module, style, kind, text in (
        (Choice(), parallel.Experts("w13"), BindingError, "'w13' of Choice is nothing"),
        (Choice(5), parallel.Experts(), ShapeError, f"5 and 5 experts of Choice on {ranks} ranks"),
        (Choice(sign=-1.0), parallel.Experts(), BindingError, "Choice is no sum of w2"),
        (Choice(), parallel.Experts(activation="gelu"), BindingError, r"gelu\(gate"),
        (Choice(), parallel.Experts(activation="tanh"), BindingError, "no activation 'tanh'"),
        (Choice(joined=False), parallel.Experts(("w3", "w1")), BindingError, "Choice is no sum of w2"),
        (Choice(), parallel.Experts("down_proj", "gate_up_proj"), BindingError, "Choice of x .* raises"),
    ):
        with pytest.raises(kind, match=text):
            stock.parallelize_module(module, over, style)


def through(overlap: parallel.Overlap) -> Any:
    """A backend that runs the graphs of a compiler with the pass, forward and backward."""

    def compiler(module: torch.fx.GraphModule, _: Any) -> Any:
        overlap(module.graph)
        module.recompile()
        return module

    return aot_autograd(fw_compiler=compiler, bw_compiler=compiler)


def joined() -> None:
    """Graphs of torch's styles have operators in place of pairs, the same losses, and reasons for the others."""
    over = mesh()
    both = {"ag_gemm_gathered", "gemm_rs"}
    for name, wanted in {"on all ranks": {"gemm_ar"}, "sequence": both, "each": both}.items():
        plan, spread = PLANS[name]
        expected = train(planned(stock, plan, over)[:1], spread, over)  # torch takes seconds for each block
        net, overlap = planned(stock, plan, over)[:1], parallel.Overlap()
        made = train(net, spread, over, run=torch.compile(net, backend=through(overlap), fullgraph=True))
        close(made, expected, name)
        assert {pair.operator.split(" ")[0] for pair in overlap.pairs} == wanted, overlap.report()
        torch.compiler.reset()


def reasons() -> None:
    """Each collective that is left as it is has its reason, and computes what it did."""
    over, ranks = mesh(), dist.get_world_size()
    group = over.get_group()
    # Newer torch renames both, and warns at each call by the old name.
    gather: Any = getattr(collectives, "all_gather_single", None) or getattr(collectives, "all_gather_tensor")  # noqa: B009
    scatter: Any = getattr(collectives, "reduce_scatter_single", None) or collectives.reduce_scatter_tensor
    torch.manual_seed(0)
    x, w, b = torch.randn(4, 6), torch.randn(6, 4), torch.randn(4)

    def product(t: torch.Tensor) -> torch.Tensor:
        return collectives.all_reduce(t @ w, "sum", group)

    def with_bias(t: torch.Tensor) -> torch.Tensor:
        return gather(t, 0, group) @ w + b

    cases: dict[str, tuple[Callable[[torch.Tensor], Any], str]] = {
        "product": (product, "all-reduce of [4, 4]: gemm_ar"),
        "two": (lambda t: product(t @ torch.ones(6, 6)), "all-reduce of [4, 4]: gemm_ar"),
        "bias": (with_bias, "all-gather of [4, 6]: ag_gemm_gathered"),
        "mean": (lambda t: collectives.all_reduce(t @ w, "avg", group), "it takes the avg, and operators take sums"),
        "no product": (lambda t: gather(t.cos(), 0, group).sin(), "its rows go to sin"),
        "columns": (lambda t: gather(t, 1, group) @ w.repeat(ranks, 1), "it gathers columns"),
        "scattered columns": (
            lambda t: scatter(t @ w, "sum", 1, group), "it scatters columns"
        ),
        "heads": (lambda t: scatter((t @ w).view(4, 2, 2), "sum", 1, group), "it scatters columns"),
        "rows and heads": (
            lambda t: scatter((t @ w).view(2, 2, 2, 2), "sum", 1, group), "reduce-scatter of [4, 1, 2, 2]: gemm_rs"
        ),
        "one row more": (
            lambda t: collectives.all_reduce(t @ w + t[:1] @ w, "sum", group), "a sum of tensors of different shapes"
        ),
        "views of others": (
            lambda t: collectives.all_reduce((t @ w).view(2, 8) + (t[:2] @ w.repeat(1, 2)).view(2, 8), "sum", group),
            "a sum of products of different shapes",
        ),
        "bias first": (
            lambda t: collectives.all_reduce(torch.addmm(b, t, w), "sum", group), "a bias is added to its product"
        ),
        "used twice": (
            lambda t: (lambda y: collectives.all_reduce(y, "sum", group) + y)(t @ w), "what it takes goes to add"
        ),
        "no matrices": (lambda t: collectives.all_reduce(t.cos(), "sum", group), "it takes the result of cos"),
        "weight after": (
            lambda t: (lambda y: y @ (y[:6, :4] * 2))(gather(t, 0, group)),
            "the weight of its product is computed after it",
        ),
    }  # fmt: skip
    if TORCH < "2.12":
        del cases["columns"]  # Dynamo did not trace what torch does to them
    for name, (function, said) in cases.items():
        overlap = parallel.Overlap()
        made = torch.compile(function, backend=through(overlap), fullgraph=True)(x)
        assert len(overlap.pairs) == 1 and said in overlap.report(), (name, overlap.report())
        torch.testing.assert_close(made, function(x), msg=lambda text, n=name: f"{n}: {text}")
        torch.compiler.reset()


def bounded() -> None:
    """A pass keeps so many pairs, the last ones; torch's cache knows it by the code of operators, too."""
    overlap = parallel.Overlap()
    graph = torch.fx.Graph()
    given = graph.placeholder("x")
    given.meta["val"] = torch.ones(2)
    group = dist.group.WORLD
    assert group is not None
    reduce: Any = torch.ops._c10d_functional.all_reduce.default
    graph.output(graph.call_function(reduce, (given, "sum", group.group_name)))
    for _ in range(KEPT + 3):
        overlap(graph)
    assert len(overlap.pairs) == len(overlap.report().splitlines()) == KEPT
    hashed: list[tuple[str, ...]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(overlap_module, "get_hash_for_files", hashed.append)
        overlap.uuid()
    names = {os.path.basename(one) for one in hashed[0]}
    assert {"overlap.py", "registered.py", "operators.py"} <= names, names


def run(names: list[str]) -> None:
    dist.init_process_group("gloo")
    for name in names:
        globals()[name]()
    dist.barrier()
    dist.destroy_process_group()
    sys.stderr.flush()
    os._exit(0)  # with no word from threads that torch leaves
