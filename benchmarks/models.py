# pyright: basic
"""Whole models on several GPUs: blocks of LLaMA-3-8B and of Qwen3-30B-A3B, and losses of small models.

    torchrun --nproc-per-node 2 benchmarks/models.py --out models.json

All ways have the same modules (`Block`) under `parallelize_module`, with the plan that torchtitan has for a layer:
rows are divided among the ranks between products in training, and on all ranks in decoding. They differ in the styles
alone (torch's or those of tilelink.parallel), in whether torch.compile compiles each block, and in passes of it:
torch's async TP, and `tilelink.parallel.Overlap`.

train: forward and backward of 8 blocks without an optimizer, one sequence of 8192 tokens. decode: 8 blocks in one CUDA
graph, one token for each request, attention with 2048 keys of each. losses: 200 steps of a small model by AdamW under
autocast, beside the same model on one GPU; torch's styles with NCCL say how far another order of sums takes losses
apart; several seeds, as one trajectory says little.

experts_train, experts_decode, experts_losses: the same of blocks with a mixture of experts. Experts are divided among
the ranks: by the style `tilelink.parallel.Experts`, or by NCCL, which exchanges rows in training (the host waits for
their counts) and in decoding gathers all tokens, so that a graph holds it. In decoding each rank has requests of its
own and all of attention.

context_losses: the small model whose rows are spread over the ranks, by each method of `ContextParallel`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._functional_collectives import all_gather_tensor as all_gather
from torch.distributed._functional_collectives import reduce_scatter_tensor as reduce_scatter
from torch.distributed._functional_collectives import wait_tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor import parallel as stock

from benchmarks import cases
from benchmarks.experts import Gate, Rows, Weighted, by_expert, exchanged, permuted, planned
from benchmarks.measure import Variant
from benchmarks.tables import table
from tilelink import ops, parallel
from tilelink.ops.context_parallel import METHODS

FILE = Path(ops.__file__).parents[1] / "programs" / "ag_gemm_gathered.tl"
PARTS = ("train", "decode", "losses", "experts_train", "experts_decode", "experts_losses", "context_losses")
LLAMA_8B = {"hidden": 4096, "inner": 14336, "heads": 32, "kv": 8, "layers": 8}
QWEN3_30B = {"hidden": 2048, "inner": 768, "heads": 32, "kv": 4, "layers": 4, "experts": 128, "chosen": 8}
SMALL = {"hidden": 1024, "inner": 2816, "heads": 8, "kv": 4, "layers": 4}
SMALL_EXPERTS = {"hidden": 512, "inner": 512, "heads": 4, "kv": 2, "layers": 4, "experts": 16, "chosen": 4}
VOCABULARY, STEPS, LOSS_ROWS = 1024, 200, 2048
ALLOWED, ALLOWED_MIXED = 2e-2, 1e-1
"""|out - ref| / |ref| (Frobenius) of blocks in bf16 whose sums have another order, and of those where another order
gives a token another expert, as two are nearly as likely."""
ROWS, BATCHES, KEYS, HEAD = 8192, (1, 16, 64), 2048, 128
TRAIN = (
    "NCCL", "NCCL, compiled", "async TP, compiled", "TileLink", "TileLink, compiled", "TileLink by Overlap, compiled",
    "TileLink together", "TileLink together, compiled", "TileLink all together", "TileLink all together, compiled",
)  # fmt: skip
DECODE = ("NCCL", "NCCL, compiled", "TileLink", "TileLink, compiled")
MIXED = (*DECODE[:3], "TileLink together", "TileLink together, compiled")

Tensor = torch.Tensor
_grouped_mm: Any = torch._grouped_mm  # type: ignore[attr-defined]


# The model ---------------------------------------------------------------------------------------------------


def rotated(x: Tensor, angles: Tensor) -> Tensor:
    """x [batch, rows, heads, head] by rotary angles [rows, head / 2]."""
    a, b = x.chunk(2, -1)
    cos, sin = angles.cos()[:, None].to(x.dtype), angles.sin()[:, None].to(x.dtype)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), -1)


class Attention(nn.Module):
    def __init__(self, hidden: int, heads: int, kv: int) -> None:
        super().__init__()
        self.head, all_heads = HEAD, heads * HEAD
        self.wq, self.wo = nn.Linear(hidden, all_heads, bias=False), nn.Linear(all_heads, hidden, bias=False)
        self.wk, self.wv = (nn.Linear(hidden, kv * self.head, bias=False) for _ in range(2))

    def forward(self, x: Tensor, angles: Tensor, keys: Tensor | None, values: Tensor | None) -> Tensor:
        """keys, values: [batch, own heads, keys, head], of which the last is written; None: attend to rows of x."""
        batch, rows, _ = x.shape
        q, k, v = (w(x).view(batch, rows, -1, self.head) for w in (self.wq, self.wk, self.wv))
        q, k, v = rotated(q, angles).transpose(1, 2), rotated(k, angles).transpose(1, 2), v.transpose(1, 2)
        attend = partial(nn.functional.scaled_dot_product_attention, enable_gqa=True)
        if keys is None or values is None:
            y = attend(q, k, v, is_causal=True)
        else:
            keys[:, :, -1:].copy_(k)
            values[:, :, -1:].copy_(v)
            y = attend(q, keys, values)
        return self.wo(y.transpose(1, 2).contiguous().view(batch, rows, -1))


class MLP(nn.Module):
    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.w1, self.w3 = nn.Linear(hidden, inner, bias=False), nn.Linear(hidden, inner, bias=False)
        self.w2 = nn.Linear(inner, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(nn.functional.silu(self.w1(x)) * self.w3(x))


def _world() -> Any:
    return dist.group.WORLD


class Chosen(nn.Module):
    """Experts. By NCCL, where `spread` or `gathered` was called: each rank has some of them."""

    def __init__(self, hidden: int, inner: int, experts: int) -> None:
        super().__init__()
        self.gate_up_proj = nn.Parameter(torch.randn(experts, 2 * inner, hidden) * hidden**-0.5)
        self.down_proj = nn.Parameter(torch.randn(experts, hidden, inner) * inner**-0.5)
        self.experts, self.ranks, self.gathers = experts, 0, False

    def divide(self, gathers: bool) -> None:
        """Keep the experts of this rank alone. gathers: all ranks' tokens; else rows of experts are exchanged."""
        self.ranks, self.gathers = dist.get_world_size(), gathers
        for name, one in list(self.named_parameters()):
            setattr(self, name, nn.Parameter(one.detach().chunk(self.ranks)[dist.get_rank()].clone()))

    def forward(self, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        w13, w2, shape = self.gate_up_proj, self.down_proj, x.shape
        x, ids, weights = (one.reshape(-1, one.shape[-1]) for one in (x, ids, weights))
        if torch.is_autocast_enabled(x.device.type):
            x, w13, w2 = x.bfloat16(), w13.bfloat16(), w2.bfloat16()
        if x.dtype != torch.bfloat16:  # few rows, with which a style compares
            y = torch.zeros_like(x)
            for e in range(self.experts):
                y += (weights * (ids == e)).sum(-1, keepdim=True) * self._one(x, w13[e], w2[e])
            return y.view(shape)
        way: Any = self._of_all if not self.ranks else self._gathered if self.gathers else self._exchanged
        return way(x, ids, weights.float(), w13, w2).view(shape)

    @staticmethod
    def _one(x: Tensor, both: Tensor, down: Tensor) -> Tensor:
        gate, up = (x @ both.t()).chunk(2, -1)
        return (nn.functional.silu(gate) * up) @ down.t()

    @staticmethod
    def _products(rows: Tensor, offsets: Tensor, w13: Tensor, w2: Tensor) -> Tensor:
        h = _grouped_mm(rows, w13.transpose(-1, -2), offs=offsets)
        return _grouped_mm(Gate.apply(h, offsets[-1:]), w2.transpose(-1, -2), offs=offsets)

    def _of_all(self, x: Tensor, ids: Tensor, weights: Tensor, w13: Tensor, w2: Tensor) -> Tensor:
        order, place, counts = by_expert(ids, self.experts)
        y = self._products(Rows.apply(x, order, place), counts.cumsum(0).to(torch.int32), w13, w2)
        return Weighted.apply(y, weights, order, place)

    @torch.compiler.disable
    def _exchanged(self, x: Tensor, ids: Tensor, weights: Tensor, w13: Tensor, w2: Tensor) -> Tensor:
        plan = planned(ids, self.experts, self.ranks)
        rows = exchanged(Rows.apply(x, plan.order, plan.place), plan.send, plan.receive)
        y = self._products(permuted(rows, plan.to_expert, plan.back), plan.offsets, w13, w2)
        back = exchanged(permuted(y, plan.back, plan.to_expert), plan.receive, plan.send)
        return Weighted.apply(back, weights, plan.order, plan.place)

    def _gathered(self, x: Tensor, ids: Tensor, weights: Tensor, w13: Tensor, w2: Tensor) -> Tensor:
        local = self.experts // self.ranks
        # Kernels of Triton's own take plain tensors, whose collectives have been waited for.
        x, ids, weights = (wait_tensor(all_gather(one, 0, _world())) for one in (x, ids, weights))
        own = ids.long() - dist.get_rank() * local
        mine = (own >= 0) & (own < local)
        order, place, counts = by_expert(torch.where(mine, own, local), local + 1)
        rows, offsets = x.index_select(0, order // ids.shape[1]), counts[:-1].cumsum(0).to(torch.int32)
        y = self._products(rows, offsets, w13, w2)
        # What lies behind the last row of an own expert is not written.
        y = torch.where((torch.arange(len(y), device=y.device) < offsets[-1])[:, None], y, 0)
        return reduce_scatter(Weighted.apply(y, weights, order, place), "sum", 0, _world())


class Mixture(nn.Module):
    def __init__(self, hidden: int, inner: int, experts: int, chosen: int) -> None:
        super().__init__()
        self.router, self.experts = nn.Linear(hidden, experts, bias=False), Chosen(hidden, inner, experts)
        self.chosen = chosen

    def forward(self, x: Tensor) -> Tensor:
        weights, ids = self.router(x).float().softmax(-1).topk(self.chosen)
        return self.experts(x, ids, weights / weights.sum(-1, keepdim=True))


class Block(nn.Module):
    def __init__(self, hidden: int, inner: int, heads: int, kv: int, experts: int = 0, chosen: int = 0) -> None:
        super().__init__()
        self.attention_norm, self.ffn_norm = nn.RMSNorm(hidden, eps=1e-5), nn.RMSNorm(hidden, eps=1e-5)
        self.attention = Attention(hidden, heads, kv)
        self.feed_forward = Mixture(hidden, inner, experts, chosen) if experts else MLP(hidden, inner)

    def forward(self, x: Tensor, angles: Tensor, keys: Tensor | None = None, values: Tensor | None = None) -> Tensor:
        x = x + self.attention(self.attention_norm(x), angles, keys, values)
        return x + self.feed_forward(self.ffn_norm(x))


class Model(nn.Module):
    """Blocks, between an embedding and a product with the vocabulary if there is one."""

    def __init__(self, sizes: dict[str, int], vocabulary: int = 0) -> None:
        super().__init__()
        of_block = {name: size for name, size in sizes.items() if name != "layers"}
        self.layers = nn.ModuleList(Block(**of_block) for _ in range(sizes["layers"]))
        self.table = nn.Embedding(vocabulary, sizes["hidden"]) if vocabulary else None
        self.norm = nn.RMSNorm(sizes["hidden"], eps=1e-5) if vocabulary else None
        self.output = nn.Linear(sizes["hidden"], vocabulary, bias=False) if vocabulary else None

    def forward(self, x: Tensor, angles: Tensor, caches: Sequence[tuple[Tensor, Tensor]] = ()) -> Tensor:
        x = x if self.table is None else self.table(x)
        for number, layer in enumerate(self.layers):
            x = layer(x, angles, *(caches[number] if caches else ()))
        return x if self.output is None else self.output(self.norm(x))  # type: ignore[misc]


def plan_of(of: Any, spread: bool, experts: bool = False, together: Sequence[str] = ()) -> dict[str, Any]:
    """The plan of a block with the styles of a package.

    spread: rows are divided among the ranks between products. experts: those of the second half are not of this plan.
    together: halves whose products at the input gather once, by styles of tilelink.parallel.
    """
    of_input = {"attention": ("wq", "wk", "wv")} | ({} if experts else {"feed_forward": ("w1", "w3")})
    columns = {f"{half}.{name}": of.ColwiseParallel() for half, names in of_input.items() for name in names}
    rows = [f"{half}.{'wo' if half == 'attention' else 'w2'}" for half in of_input]
    if not spread:
        return columns | {name: of.RowwiseParallel() for name in rows}
    inputs = {}
    for half, names in of_input.items():
        given = (Shard(1), None, None, None) if half == "attention" else (Shard(1),)
        inputs[half] = of.PrepareModuleInput(
            input_layouts=given,
            desired_input_layouts=tuple(None if one is None else Replicate() for one in given),
            **({"together": names} if half in together else {}),
        )
    if experts:
        own = (Shard(1),)
        inputs["feed_forward"] = stock.PrepareModuleInput(
            input_layouts=own, desired_input_layouts=own, use_local_output=True
        )
    norms = {name: of.SequenceParallel() for name in ("attention_norm", "ffn_norm")}
    return columns | inputs | {name: of.RowwiseParallel(output_layouts=Shard(1)) for name in rows} | norms


def parallelized(model: Model, mesh: DeviceMesh, of: Any, spread: bool, together: Sequence[str] = ()) -> Model:
    for layer in model.layers:
        layer: Any
        mixed = isinstance(layer.feed_forward, Mixture)
        if spread or not mixed:  # a rank with requests of its own has all of attention
            stock.parallelize_module(layer, mesh, plan_of(of, spread, mixed, together))
        if mixed and of is parallel:
            stock.parallelize_module(layer, mesh, {"feed_forward.experts": parallel.Experts()})
        elif mixed:
            layer.feed_forward.experts.divide(gathers=not spread)
    if model.table is not None:
        stock.parallelize_module(model, mesh, {
            "table": of.RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
            "norm": of.SequenceParallel(),
            "output": of.ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
        })  # fmt: skip
    return model


def angles_of(rows: int, head: int, device: Any) -> Tensor:
    rates = 500000.0 ** (-torch.arange(0, head, 2, device=device) / head)
    return torch.arange(rows, device=device)[:, None] * rates


class Way:
    """A model in one of the ways, by its name in TRAIN or DECODE."""

    def __init__(self, name: str, mesh: DeviceMesh, spread: bool, sizes: dict[str, int] = LLAMA_8B) -> None:
        self.overlap = parallel.Overlap() if "Overlap" in name else None
        of = parallel if name.startswith("TileLink") and self.overlap is None else stock
        torch.manual_seed(0)
        with torch.device(mesh.device_type):
            made = Model(sizes).bfloat16()
        together = ("attention", "feed_forward") if "all together" in name else ("attention",)
        self.model = parallelized(made, mesh, of, spread, together if "together" in name else ())
        options: dict[str, Any] = {}
        if "async" in name:
            import torch.distributed._symmetric_memory as symmetric

            symmetric.enable_symm_mem_for_group(mesh.get_group().group_name)
            options = {"_micro_pipeline_tp": True}
        if self.overlap is not None:
            options = {"post_grad_custom_pre_pass": self.overlap}
        if "compiled" in name:
            for number, layer in enumerate(self.model.layers):
                # NCCL needs counts of rows of experts on the host, and there a graph ends.
                whole = of is parallel or not spread or not isinstance(layer.feed_forward, Mixture)
                compiled: Any = torch.compile(layer, fullgraph=whole, dynamic=False, options=options or None)
                self.model.layers[number] = compiled

    def step(self, x: Tensor, angles: Tensor) -> Tensor:
        """Forward and backward; returns the result of forward."""
        y = self.model(x, angles)
        y.float().square().mean().backward()
        for one in self.model.parameters():
            one.grad = None
        return y.detach()


# Parts -------------------------------------------------------------------------------------------------------


def train(run: cases.Run, args: Any, mesh: DeviceMesh, experts: bool = False) -> dict[str, Any]:
    """Forward and backward of the blocks, in all ways."""
    session, sizes = run.session, QWEN3_30B if experts else LLAMA_8B
    x = torch.empty(1, args.rows // session.ranks, sizes["hidden"], device=session.device, dtype=torch.bfloat16)
    angles, expected, notes = angles_of(args.rows, HEAD, session.device), torch.empty_like(x), {}
    ways: dict[str, Way] = {}

    def builder(name: str) -> Variant:
        way = ways[name] = Way(name, mesh, spread=True, sizes=sizes)
        step = partial(way.step, x, angles)
        if name.startswith("TileLink") and "compiled" not in name and not experts:
            ops.prepare([step], group=mesh, workers=max(1, args.workers // session.ranks))
        expects = None if name == "NCCL" else lambda: expected
        kept = (lambda: expected.copy_(step())) if name == "NCCL" else step
        kind = "ours" if name.startswith("TileLink") else "pair"
        allowed = ALLOWED_MIXED if experts else ALLOWED
        return Variant(name=name, kind=kind, run=kept, expected=expects, allowed=allowed)

    rows, built = [], []
    x.normal_(generator=torch.Generator(device=session.device).manual_seed(session.rank))
    for name in [name for name in (MIXED if experts else TRAIN) if name in args.ways or not args.ways]:
        one = session.build(name, "pair", partial(builder, name))
        (built if isinstance(one, Variant) else rows).append(one)
        way = ways.get(name)
        if way is not None and way.overlap is not None:
            notes["overlap"] = way.overlap.report().splitlines()
    rows += session.time(built, lambda: None, samples=args.samples, warmups=2)
    if "TileLink" in ways:
        notes["explain"] = parallel.explain(ways["TileLink"].model.layers[0])
    part = "experts_train" if experts else "train"
    return {"part": part, "name": f"train, {args.rows} tokens", "tokens": args.rows, "rows": rows, **notes}


def decode(run: cases.Run, args: Any, mesh: DeviceMesh, batch: int, experts: bool = False) -> dict[str, Any]:
    """One token of each request through the blocks, in one CUDA graph. With experts, each rank has requests."""
    session, like = run.session, {"device": run.session.device, "dtype": torch.bfloat16}
    sizes = QWEN3_30B if experts else LLAMA_8B
    chance = torch.Generator(device=session.device).manual_seed(1 + session.rank * experts)
    x, angles = torch.empty(batch, 1, sizes["hidden"], **like), angles_of(1, HEAD, session.device) + 1.0
    own = sizes["kv"] // (1 if experts else session.ranks)
    own_chance = torch.Generator(device=session.device).manual_seed(2 + session.rank)
    caches = [
        tuple(torch.randn(batch, own, KEYS, HEAD, generator=own_chance, **like) for _ in range(2))
        for _ in range(sizes["layers"])
    ]
    expected, kept = torch.empty_like(x), list[Model]()

    @torch.no_grad()
    def builder(name: str) -> Variant:
        model = Way(name, mesh, spread=False, sizes=sizes).model
        call = partial(model, x, angles, caches)
        if name == "TileLink" and not experts:
            ops.prepare([call], group=mesh, workers=max(1, args.workers // session.ranks))
        for _ in range(3):
            call()
        session.meet()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            made = call()
        first = name == "NCCL"

        def replay() -> Tensor:
            graph.replay()
            return expected.copy_(made) if first else made

        kept.append(model)  # a graph does not keep the weights that it reads
        return Variant(
            name=name, kind="ours" if name.startswith("TileLink") else "pair", run=replay,
            expected=None if first else lambda: expected, allowed=ALLOWED_MIXED if experts else ALLOWED,
        )  # fmt: skip

    rows, built = [], []
    x.normal_(generator=chance)
    for name in [name for name in DECODE if name in args.ways or not args.ways]:
        one = session.build(name, "pair", partial(builder, name))
        (built if isinstance(one, Variant) else rows).append(one)
    rows += session.time(built, lambda: None, samples=args.samples, warmups=2)
    tokens, part = batch * (session.ranks if experts else 1), "experts_decode" if experts else "decode"
    return {"part": part, "name": f"decode, {tokens} requests", "tokens": tokens, "rows": rows}


def tokens_of(step: int, device: Any) -> tuple[Tensor, Tensor]:
    """Tokens and those that follow them: a function of the token before, and now and then anything."""
    chance = torch.Generator().manual_seed(step)
    other, jumps = (torch.randint(high, (LOSS_ROWS,), generator=chance) for high in (VOCABULARY, 10))
    tokens = [0]
    for at in range(LOSS_ROWS):
        tokens.append(int(other[at]) if jumps[at] == 0 else (5 * tokens[-1] + 7) % VOCABULARY)
    both = torch.tensor(tokens, device=device)
    return both[None, :-1], both[None, 1:]


def losses(run: cases.Run, args: Any, mesh: DeviceMesh, experts: bool = False) -> dict[str, Any]:
    """The losses of a small model that is trained, alone on a GPU and in two ways on all, for each of several seeds."""
    ways = {"one GPU": None, "NCCL": stock, "TileLink": parallel}
    calls = {name: partial(_trained, run, args, mesh, of, SMALL_EXPERTS if experts else SMALL)
             for name, of in ways.items()}  # fmt: skip
    part, label = ("experts_losses", " with experts") if experts else ("losses", "")
    return _of_seeds(run, args, calls, part, label)


def context_losses(run: cases.Run, args: Any, mesh: DeviceMesh) -> dict[str, Any]:
    """The losses of a small model that is trained, alone on a GPU and with its rows spread over all."""
    calls = {"one GPU": partial(_trained, run, args, mesh, None, SMALL)}
    calls |= {method: partial(_trained, run, args, mesh, method, SMALL) for method in METHODS}
    return _of_seeds(run, args, calls, "context_losses", " with rows spread over ranks")


def _of_seeds(
    run: cases.Run, args: Any, calls: dict[str, Callable[[int], list[float]]], part: str, label: str
) -> dict[str, Any]:  # fmt: skip
    made: list[dict[str, list[float]]] = []
    for seed in range(args.seeds):
        made.append({})
        for name, call in calls.items():
            begin = time.monotonic()
            made[-1][name] = call(seed)
            taken = f"{name}, seed {seed}: {args.steps} steps in {time.monotonic() - begin:.1f} s"
            print(taken, flush=True) if run.rank == 0 else None
    apart = {
        name: {
            of: sum(distances(one["one GPU"], one[name])[of] for one in made) / len(made) for of in ("mean", "most")
        }
        for name in calls if name != "one GPU"
    }  # fmt: skip
    name = f"losses of {args.steps} steps{label}, {args.seeds} seeds"
    return {"part": part, "name": name, "rows": [], "losses": made, "apart": apart}


def _trained(run: cases.Run, args: Any, mesh: DeviceMesh, of: Any, sizes: dict[str, int], seed: int) -> list[float]:
    """of: the package whose styles the model has, or how its rows are spread over ranks; None for one GPU."""
    device, spread = run.session.device, of in METHODS
    own = partial(ops.zigzag, ranks=dist.get_world_size(), rank=run.rank) if spread else lambda x, dim: x
    torch.manual_seed(seed)
    with torch.device(device):
        model = Model(sizes, VOCABULARY)
    if spread:
        for layer in model.layers:
            stock.parallelize_module(layer, mesh, {"attention": parallel.ContextParallel(of)})
    elif of is not None:
        parallelized(model, mesh, of, spread=True)
    # Gradients of parameters that all ranks have come from the own rows alone.
    plain = [p for p in model.parameters() if not isinstance(p, DTensor)] if of is not None else []
    plain = [p for p in plain if p.dim() == 2 or spread]
    angles = own(angles_of(LOSS_ROWS, HEAD, device), dim=0)
    optimizer, seen = torch.optim.AdamW(model.parameters(), lr=3e-4, foreach=False), []
    for step in range(args.steps):
        tokens, following = (own(one, dim=1) for one in tokens_of(step + 1000 * seed, device))
        with torch.autocast(device.type, torch.bfloat16):
            scores = model(tokens, angles)
        loss = nn.functional.cross_entropy(scores.float().flatten(0, 1), following.flatten())
        loss.backward()
        for one in plain:
            dist.all_reduce(one.grad, dist.ReduceOp.AVG if spread else dist.ReduceOp.SUM)
        optimizer.step()
        optimizer.zero_grad()
        seen.append(loss.detach())
    made = torch.stack(seen)
    if spread:
        dist.all_reduce(made, dist.ReduceOp.AVG)
    return made.tolist()


def distances(one: Sequence[float], other: Sequence[float]) -> dict[str, float]:
    """How far two curves are apart: in the mean over steps, and where it is most."""
    each = [abs(a - b) for a, b in zip(one, other, strict=True)]
    return {"mean": sum(each) / len(each), "most": max(each)}


# The report --------------------------------------------------------------------------------------------------


def lines(case: dict[str, Any]) -> list[str]:
    """What is printed of a case."""
    if "losses" in case["part"]:
        said = ", ".join(
            f"{name} {of['mean']:.2e} in the mean and {of['most']:.2e} at most" for name, of in case["apart"].items()
        )
        last = ", ".join(f"{name} {values[-1]:.4f}" for name, values in case["losses"][0].items())
        return [f"{case['name']}: apart from one GPU by {said}; last {last}"]
    shown = [f"  {row['name']:32} {_rate(case, row)}" for row in case["rows"]]
    return [case["name"], *shown, *(f"  {line}" for line in case.get("overlap", [])[:12])]


def _rate(case: dict[str, Any], row: dict[str, Any]) -> str:
    if row["us"] is None:
        return f"failed: {row['failure']}"
    return f"{row['us'] / 1e3:8.3f} ms, {case['tokens'] / row['us'] * 1e6:10,.0f} tokens/s"


def report(found: dict[str, Any], name: str) -> list[str]:
    """Return the section of a report in docs/results.md."""
    machine = found["machine"]
    parts = [
        f"## {name}", "",
        f"{LLAMA_8B['layers']} blocks of LLaMA-3-8B, or {QWEN3_30B['layers']} of Qwen3-30B-A3B where a part has "
        f"experts, on {found['ranks']} {machine['gpu']}, tokens a second of all ranks "
        "together (benchmarks/models.py): training is forward and backward without an optimizer, decoding one CUDA "
        f"graph with {KEYS} keys a request. Medians of {found['samples']} samples of the slowest rank; driver "
        f"{machine['driver']}, torch {machine['torch']}, triton {machine['triton']}. In brackets: times the best of "
        "the others.", "",
    ]  # fmt: skip
    for columns, part in (
        (TRAIN, "train"), (DECODE, "decode"), (MIXED, "experts_train"), (DECODE, "experts_decode"),
    ):  # fmt: skip
        rows = [_row(case, columns) for case in found["cases"] if case["part"] == part]
        parts += [*table((part, *columns), rows), ""] if rows else []
    for case in (case for case in found["cases"] if "losses" in case["part"]):
        parts += [*lines(case), ""]
    return parts


def _row(case: dict[str, Any], columns: Sequence[str]) -> tuple[str, ...]:
    rates = {row["name"]: case["tokens"] / row["us"] * 1e6 for row in case["rows"] if row["us"]}
    others = max((rate for name, rate in rates.items() if not name.startswith("TileLink")), default=0.0)
    cells = []
    for name in columns:
        if name not in rates:
            cells.append("-")
        else:
            ratio = f" ({rates[name] / others:.2f} x)" if name.startswith("TileLink") and others else ""
            cells.append(f"{rates[name]:,.0f}{ratio}")
    return (case["name"], *cells)


def main(argv: Sequence[str] | None = None) -> int:
    parser = cases.parser(__doc__, samples=10)
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--ways", default="", help="names of ways, joined by ';'; all if it is empty")
    parser.add_argument("--rows", type=int, default=ROWS, help="tokens of the sequence that is trained on")
    parser.add_argument("--batches", default=",".join(map(str, BATCHES)))
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--seeds", type=int, default=3, help="models of each kind whose losses are taken")
    args = parser.parse_args(argv)
    if args.dry:
        return 0  # the operators compile their own kernels
    args.ways = [one for one in args.ways.split(";") if one]
    run = cases.Run("models", FILE, args, lambda _: [])
    mesh = init_device_mesh("cuda", (dist.get_world_size(),), mesh_dim_names=("tp",))
    wanted: dict[str, list[Any]] = {
        "train": [partial(train, run, args, mesh)],
        "decode": [partial(decode, run, args, mesh, int(one)) for one in args.batches.split(",")],
        "losses": [partial(losses, run, args, mesh)],
    }
    for name, calls in list(wanted.items()):
        wanted[f"experts_{name}"] = [partial(call, experts=True) for call in calls]
    wanted["context_losses"] = [partial(context_losses, run, args, mesh)]
    for part in args.parts.split(","):
        for one in wanted[part]:
            begin = time.monotonic()
            case = one()
            case["seconds"] = round(time.monotonic() - begin, 1)
            run.add(case, [*lines(case), f"  ({case['seconds']} s)"])
            torch.compiler.reset()
            torch.cuda.empty_cache()
    run.end()


if __name__ == "__main__":
    sys.exit(main())
