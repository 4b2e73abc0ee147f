# pyright: basic
"""Whole models with tensor parallelism: blocks of LLaMA-3-8B in training and decoding, and losses of a small model.

    torchrun --nproc-per-node 2 benchmarks/models.py --out models.json

All ways have the same modules (`Block`) under `parallelize_module`, with the plan that torchtitan has for a layer:
rows are divided among the ranks between products in training, and on all ranks in decoding. They differ in the styles
alone (torch's or those of tilelink.parallel), in whether torch.compile compiles each block, and in passes of it:
torch's async TP, and `tilelink.parallel.Overlap`.

train: forward and backward of 8 blocks without an optimizer, one sequence of 8192 tokens. decode: 8 blocks in one CUDA
graph, one token for each request, attention with 2048 keys of each. losses: 200 steps of a small model by AdamW under
autocast, beside the same model on one GPU; torch's styles with NCCL say how far another order of sums takes losses
apart.
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
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor import parallel as stock

from benchmarks import cases
from benchmarks.measure import Variant
from benchmarks.tables import table
from tilelink import ops, parallel

FILE = Path(ops.__file__).parents[1] / "programs" / "ag_gemm_gathered.tl"
PARTS = ("train", "decode", "losses")
LLAMA_8B = {"hidden": 4096, "inner": 14336, "heads": 32, "kv": 8, "layers": 8}
SMALL = {"hidden": 1024, "inner": 2816, "heads": 8, "kv": 4, "layers": 4}
VOCABULARY, STEPS, LOSS_ROWS = 1024, 200, 2048
ALLOWED = 2e-2
"""|out - ref| / |ref| (Frobenius) of 8 blocks in bf16 whose sums have another order."""
ROWS, BATCHES, KEYS, HEAD = 8192, (1, 16, 64), 2048, 128
TRAIN = (
    "NCCL", "NCCL, compiled", "async TP, compiled", "TileLink", "TileLink, compiled", "TileLink by Overlap, compiled",
)  # fmt: skip
DECODE = ("NCCL", "NCCL, compiled", "TileLink", "TileLink, compiled")

Tensor = torch.Tensor


# The model ---------------------------------------------------------------------------------------------------


def rotated(x: Tensor, angles: Tensor) -> Tensor:
    """x [batch, rows, heads, head] by rotary angles [rows, head / 2]."""
    a, b = x.chunk(2, -1)
    cos, sin = angles.cos()[:, None].to(x.dtype), angles.sin()[:, None].to(x.dtype)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), -1)


class Attention(nn.Module):
    def __init__(self, hidden: int, heads: int, kv: int) -> None:
        super().__init__()
        self.head = hidden // heads
        self.wq, self.wo = nn.Linear(hidden, hidden, bias=False), nn.Linear(hidden, hidden, bias=False)
        self.wk, self.wv = (nn.Linear(hidden, kv * self.head, bias=False) for _ in range(2))

    def forward(self, x: Tensor, angles: Tensor, keys: Tensor | None, values: Tensor | None) -> Tensor:
        """keys, values: [batch, own heads, keys, head], of which the last is written; None: attend to rows of x."""
        batch, rows, _ = x.shape
        q, k, v = (w(x).view(batch, rows, -1, self.head) for w in (self.wq, self.wk, self.wv))
        q, k, v = rotated(q, angles).transpose(1, 2), rotated(k, angles).transpose(1, 2), v.transpose(1, 2)
        attend = partial(nn.functional.scaled_dot_product_attention, enable_gqa=True)
        if keys is None:
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


class Block(nn.Module):
    def __init__(self, hidden: int, inner: int, heads: int, kv: int) -> None:
        super().__init__()
        self.attention_norm, self.ffn_norm = nn.RMSNorm(hidden, eps=1e-5), nn.RMSNorm(hidden, eps=1e-5)
        self.attention, self.feed_forward = Attention(hidden, heads, kv), MLP(hidden, inner)

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
        self.head = sizes["hidden"] // sizes["heads"]

    def forward(self, x: Tensor, angles: Tensor, caches: Sequence[tuple[Tensor, Tensor]] = ()) -> Tensor:
        x = x if self.table is None else self.table(x)
        for number, layer in enumerate(self.layers):
            x = layer(x, angles, *(caches[number] if caches else ()))
        return x if self.output is None else self.output(self.norm(x))  # type: ignore[misc]


def plan_of(of: Any, spread: bool) -> dict[str, Any]:
    """The plan of a block with the styles of a package; spread: rows are divided among the ranks between products."""
    columns = ("attention.wq", "attention.wk", "attention.wv", "feed_forward.w1", "feed_forward.w3")
    if not spread:
        sums = {name: of.RowwiseParallel() for name in ("attention.wo", "feed_forward.w2")}
        return {name: of.ColwiseParallel() for name in columns} | sums
    into = {"attention": (Shard(1), None, None, None), "feed_forward": (Shard(1),)}
    inputs = {
        name: of.PrepareModuleInput(
            input_layouts=given,
            desired_input_layouts=tuple(None if one is None else Replicate() for one in given),
        )
        for name, given in into.items()
    }
    sums = {name: of.RowwiseParallel(output_layouts=Shard(1)) for name in ("attention.wo", "feed_forward.w2")}
    norms = {name: of.SequenceParallel() for name in ("attention_norm", "ffn_norm")}
    return {name: of.ColwiseParallel() for name in columns} | inputs | sums | norms


def parallelized(model: Model, mesh: DeviceMesh, of: Any, spread: bool) -> Model:
    for layer in model.layers:
        stock.parallelize_module(layer, mesh, plan_of(of, spread))
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
        self.model = parallelized(made, mesh, of, spread)
        options: dict[str, Any] = {}
        if "async" in name:
            import torch.distributed._symmetric_memory as symmetric

            symmetric.enable_symm_mem_for_group(mesh.get_group().group_name)
            options = {"_micro_pipeline_tp": True}
        if self.overlap is not None:
            options = {"post_grad_custom_pre_pass": self.overlap}
        if "compiled" in name:
            for number, layer in enumerate(self.model.layers):
                self.model.layers[number] = torch.compile(layer, fullgraph=True, dynamic=False, options=options or None)

    def step(self, x: Tensor, angles: Tensor) -> Tensor:
        """Forward and backward; returns the result of forward."""
        y = self.model(x, angles)
        y.float().square().mean().backward()
        for one in self.model.parameters():
            one.grad = None
        return y.detach()


# Parts -------------------------------------------------------------------------------------------------------


def train(run: cases.Run, args: Any, mesh: DeviceMesh) -> dict[str, Any]:
    """Forward and backward of the blocks, in all ways."""
    session = run.session
    x = torch.empty(1, args.rows // session.ranks, LLAMA_8B["hidden"], device=session.device, dtype=torch.bfloat16)
    angles, expected, notes = angles_of(args.rows, HEAD, session.device), torch.empty_like(x), {}
    ways: dict[str, Way] = {}

    def builder(name: str) -> Variant:
        way = ways[name] = Way(name, mesh, spread=True)
        step = partial(way.step, x, angles)
        if name == "TileLink":
            ops.prepare([step], group=mesh, workers=max(1, args.workers // session.ranks))
        expects = None if name == "NCCL" else lambda: expected
        kept = (lambda: expected.copy_(step())) if name == "NCCL" else step
        kind = "ours" if name.startswith("TileLink") else "pair"
        return Variant(name=name, kind=kind, run=kept, expected=expects, allowed=ALLOWED)

    rows, built = [], []
    x.normal_(generator=torch.Generator(device=session.device).manual_seed(session.rank))
    for name in [name for name in TRAIN if name in args.ways or not args.ways]:
        one = session.build(name, "pair", partial(builder, name))
        (built if isinstance(one, Variant) else rows).append(one)
        way = ways.get(name)
        if way is not None and way.overlap is not None:
            notes["overlap"] = way.overlap.report().splitlines()
    rows += session.time(built, lambda: None, samples=args.samples, warmups=2)
    if "TileLink" in ways:
        notes["explain"] = parallel.explain(ways["TileLink"].model.layers[0])
    return {"part": "train", "name": f"train, {args.rows} tokens", "tokens": args.rows, "rows": rows, **notes}


def decode(run: cases.Run, args: Any, mesh: DeviceMesh, batch: int) -> dict[str, Any]:
    """One token of each request through the blocks, in one CUDA graph."""
    session, like = run.session, {"device": run.session.device, "dtype": torch.bfloat16}
    chance = torch.Generator(device=session.device).manual_seed(1)
    x, angles = torch.empty(batch, 1, LLAMA_8B["hidden"], **like), angles_of(1, HEAD, session.device) + 1.0
    own = LLAMA_8B["kv"] // session.ranks
    own_chance = torch.Generator(device=session.device).manual_seed(2 + session.rank)
    caches = [
        tuple(torch.randn(batch, own, KEYS, HEAD, generator=own_chance, **like) for _ in range(2))
        for _ in range(LLAMA_8B["layers"])
    ]
    expected, kept = torch.empty_like(x), list[Model]()

    @torch.no_grad()
    def builder(name: str) -> Variant:
        model = Way(name, mesh, spread=False).model
        call = partial(model, x, angles, caches)
        if name == "TileLink":
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
            expected=None if first else lambda: expected, allowed=ALLOWED,
        )  # fmt: skip

    rows, built = [], []
    x.normal_(generator=chance)
    for name in [name for name in DECODE if name in args.ways or not args.ways]:
        one = session.build(name, "pair", partial(builder, name))
        (built if isinstance(one, Variant) else rows).append(one)
    rows += session.time(built, lambda: None, samples=args.samples, warmups=2)
    return {"part": "decode", "name": f"decode, {batch} requests", "tokens": batch, "rows": rows}


def tokens_of(step: int, device: Any) -> tuple[Tensor, Tensor]:
    """Tokens and those that follow them: a function of the token before, and now and then anything."""
    chance = torch.Generator().manual_seed(step)
    other, jumps = (torch.randint(high, (LOSS_ROWS,), generator=chance) for high in (VOCABULARY, 10))
    tokens = [0]
    for at in range(LOSS_ROWS):
        tokens.append(int(other[at]) if jumps[at] == 0 else (5 * tokens[-1] + 7) % VOCABULARY)
    both = torch.tensor(tokens, device=device)
    return both[None, :-1], both[None, 1:]


def losses(run: cases.Run, args: Any, mesh: DeviceMesh) -> dict[str, Any]:
    """The losses of a small model that is trained, alone on a GPU and in two ways of tensor parallelism."""
    device, made = run.session.device, dict[str, list[float]]()
    angles = angles_of(LOSS_ROWS, SMALL["hidden"] // SMALL["heads"], device)
    for name, of in (("one GPU", None), ("NCCL", stock), ("TileLink", parallel)):
        torch.manual_seed(0)
        with torch.device(device):
            model = Model(SMALL, VOCABULARY)
        if of is not None:
            parallelized(model, mesh, of, spread=True)
        optimizer, seen = torch.optim.AdamW(model.parameters(), lr=3e-4, foreach=True), []
        begin = time.monotonic()
        for step in range(args.steps):
            tokens, following = tokens_of(step, device)
            with torch.autocast(device.type, torch.bfloat16):
                scores = model(tokens, angles)
            loss = nn.functional.cross_entropy(scores.float().flatten(0, 1), following.flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            seen.append(loss.detach())
        made[name] = torch.stack(seen).tolist()
        print(f"{name}: {args.steps} steps in {time.monotonic() - begin:.1f} s", flush=True) if run.rank == 0 else None
    apart = {name: distances(made["one GPU"], made[name]) for name in ("NCCL", "TileLink")}
    return {"part": "losses", "name": f"losses of {args.steps} steps", "rows": [], "losses": made, "apart": apart}


def distances(one: Sequence[float], other: Sequence[float]) -> dict[str, float]:
    """How far two curves are apart: in the mean over steps, and where it is most."""
    each = [abs(a - b) for a, b in zip(one, other, strict=True)]
    return {"mean": sum(each) / len(each), "most": max(each)}


# The report --------------------------------------------------------------------------------------------------


def lines(case: dict[str, Any]) -> list[str]:
    """What is printed of a case."""
    if case["part"] == "losses":
        said = ", ".join(
            f"{name} {of['mean']:.2e} in the mean and {of['most']:.2e} at most" for name, of in case["apart"].items()
        )
        last = ", ".join(f"{name} {values[-1]:.4f}" for name, values in case["losses"].items())
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
        f"{LLAMA_8B['layers']} blocks of LLaMA-3-8B on {found['ranks']} {machine['gpu']}, tokens a second of all ranks "
        "together (benchmarks/models.py): training is forward and backward without an optimizer, decoding one CUDA "
        f"graph with {KEYS} keys a request. Medians of {found['samples']} samples of the slowest rank; driver "
        f"{machine['driver']}, torch {machine['torch']}, triton {machine['triton']}. In brackets: times the best of "
        "the others.", "",
    ]  # fmt: skip
    for columns, part in ((TRAIN, "train"), (DECODE, "decode")):
        rows = [_row(case, columns) for case in found["cases"] if case["part"] == part]
        parts += [*table((part, *columns), rows), ""] if rows else []
    for case in (case for case in found["cases"] if case["part"] == "losses"):
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
    args = parser.parse_args(argv)
    if args.dry:
        return 0  # the operators compile their own kernels
    args.ways = [one for one in args.ways.split(";") if one]
    run = cases.Run("models", FILE, args, lambda _: [])
    mesh = init_device_mesh("cuda", (dist.get_world_size(),), mesh_dim_names=("tp",))
    wanted: dict[str, list[Callable[[], dict[str, Any]]]] = {
        "train": [partial(train, run, args, mesh)],
        "decode": [partial(decode, run, args, mesh, int(one)) for one in args.batches.split(",")],
        "losses": [partial(losses, run, args, mesh)],
    }
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
