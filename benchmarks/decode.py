# pyright: basic
"""Decoding: products with all-reduces of few rows in CUDA graphs, as a server replays them.

    torchrun --nproc-per-node 2 benchmarks/decode.py --out decode.json

A chain is a graph of steps, each a product and an all-reduce, with weights of its own (at least 400 MB in all, so that
none stays in the second-level cache). A step multiplies elements of the result of the step before, or the same x as all
others if K > N. An all-reduce alone is a graph of steps of which each sums the result of the step before. A layer is
that of a LLaMA model with tensor parallelism: its products, all-reduces, residuals, norms and paged attention, the same
kernel for all. Without keys, an elementwise function stands in for attention. A block is the MLP of a model whose rows
are divided among the ranks, as in prefill.

Next to them stand the vendor's product and NCCL, NCCL with a kernel that adds the residual and takes the norm,
torch's all-reduces over symmetric memory, and vLLM's custom all-reduce where its header is given (--vllm). All are
captured alike. The last step of each replay is compared with the
same step by torch and NCCL in every sample. Figures are microseconds of a step.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symmetric
import triton
import triton.language as tl

from benchmarks import cases
from benchmarks.measure import ALLOWED, Session, Variant
from benchmarks.paged_attention import Cache
from benchmarks.tables import table, us
from benchmarks.vllm_all_reduce import VllmAllReduce
from tilelink import ops
from tilelink.ops import UNFUSED, scaled

FILE = Path(ops.__file__).parents[1] / "programs" / "gemm_ar.tl"
WEIGHT_BYTES = 400_000_000
EAGER_STEPS = 3
"""Steps that the host issues while the GPU waits before a sample, half a millisecond: of 8 some took 0.1 each."""
CHAINS = ((1, 4096, 2048), (16, 4096, 2048), (64, 4096, 2048), (16, 4096, 7168), (64, 8192, 14336), (256, 4096, 7168))
SUMS = tuple((rows, 4096) for rows in (1, 4, 8, 16, 32, 64, 128))
"""Rows and columns of all-reduces alone: 8 KB to 1 MB."""
MODELS = {"8B": (4096, 14336, 32, 8), "70B": (8192, 28672, 64, 8)}
"""Hidden size, size between, heads, heads of keys and values, of LLaMA 3.1."""
BATCHES = (1, 16, 64, 256)
HEAD, EPS = 128, 1e-5

Tensor = torch.Tensor
Step = Callable[[Tensor, Tensor], Tensor]


@triton.jit
def _add_norm(y, residual, norm, total, out, eps, N: tl.constexpr, BLOCK: tl.constexpr):
    """A row of the sum with the residual, and its RMS norm: the kernel that servers run after an all-reduce."""
    row, columns = tl.program_id(0), tl.arange(0, BLOCK)
    at, there = row * N + columns, columns < N
    value = tl.load(y + at, mask=there, other=0).to(tl.float32) + tl.load(residual + at, mask=there, other=0)
    tl.store(total + at, value, mask=there)
    scale = tl.rsqrt(tl.sum(value * value, axis=0) / N + eps)
    tl.store(out + at, value * scale * tl.load(norm + columns, mask=there, other=0), mask=there)


def add_norm(y: Tensor, residual: Tensor, norm: Tensor) -> tuple[Tensor, Tensor]:
    """Return (norm of the total, total) of a sum and a residual, as `ops.gemm_ar` does."""
    total, out = torch.empty_like(y), torch.empty_like(y)
    N = y.shape[1]
    kernel: Any = _add_norm[(y.shape[0],)]
    kernel(y, residual, norm, total, out, EPS, N, triton.next_power_of_2(N), num_warps=8)
    return out, total


def nccl(x: Tensor, w: Tensor) -> Tensor:
    y = x @ w.T
    dist.all_reduce(y)
    return y


class Symmetric:
    """torch's product and its all-reduces over symmetric memory, into which the product writes."""

    def __init__(self, name: str) -> None:
        self._function, self._buffers = getattr(torch.ops.symm_mem, name), dict[Any, Tensor]()
        self._calls = 0
        self._group = dist.group.WORLD.group_name  # type: ignore[union-attr]

    def __call__(self, x: Tensor, w: Tensor) -> Tensor:
        self._calls += 1
        M, N = x.shape[0], w.shape[0]
        key = (M, N, self._calls % 2)  # x may be the result before, which lies in the other buffer
        if key not in self._buffers:
            self._buffers[key] = symmetric.empty(M, N, device=x.device, dtype=x.dtype)
            symmetric.rendezvous(self._buffers[key], self._group)
        torch.mm(x, w.T, out=self._buffers[key])
        return self._function(self._buffers[key], "sum", self._group)


def graphed(
    session: Session, run: Callable[[], Tensor], vllm: VllmAllReduce | None = None
) -> tuple[Callable[[], Any], Tensor]:
    """Return the replay of a graph of `run`, and the tensor with its result. vllm: whose all-reduces it captures."""
    for _ in range(2):
        run()
    session.meet()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = run()
    if vllm:
        vllm.registered()
    return graph.replay, made


class Chain:
    """A chain of M x N x K on all ranks, with fresh x in every sample."""

    def __init__(
        self, session: Session, vllm: VllmAllReduce | None, M: int, N: int, K: int, ways: Sequence[str] = ()
    ) -> None:  # fmt: skip
        """ways: implementations of gemm_ar that are measured too, as `schedule=` names them."""
        self.session, self.vllm, self.sizes, self.ways = session, vllm, (M, N, K), ways
        self.steps = max(8, -(-WEIGHT_BYTES // (2 * N * K)))
        like = {"device": session.device, "dtype": torch.bfloat16}
        chance = torch.Generator(device=session.device).manual_seed(session.rank)
        self.weights = [torch.randn(N, K, generator=chance, **like) * (2 * K) ** -0.5 for _ in range(self.steps)]
        self.x = torch.empty(M, max(N, K), **like)  # on each rank another one
        self.residual, self.norm = torch.randn(M, N, generator=chance, **like), torch.ones(N, **like)
        self._chance = chance
        self._steps: list[Step] = []
        """Steps that graphs hold: they own memory."""

    def refresh(self) -> None:
        self.x.normal_(generator=self._chance)

    def variant(self, name: str, step: Step, kind: str = "ours", checked: bool = True, eager: bool = False) -> Variant:
        """Return a chain of `step` in a graph. eager: launched by the host, with no more steps than it issues ahead."""
        M, N, K = self.sizes
        self._steps.append(step)
        inputs: list[Tensor] = []
        weights = self.weights[:EAGER_STEPS] if eager else self.weights

        def run() -> Tensor:
            inputs.clear()
            x = self.x[:, :K].contiguous()
            for w in weights:
                inputs.append(x)
                y = step(x, w)
                x = y.view(-1)[: M * K].view(M, K) if K <= N else x
            return y

        notes, expected = {"steps": len(weights)}, (lambda: nccl(inputs[-1], weights[-1])) if checked else None
        if eager:
            return Variant(name=name, kind=kind, run=run, notes=notes, expected=expected)
        replay, made = graphed(self.session, run, self.vllm if name.startswith("vLLM") else None)
        return Variant(
            name=name, kind=kind, run=lambda: (replay(), made)[1], outputs=(made,), notes=notes, expected=expected
        )

    def variants(self) -> Iterator[tuple[str, Callable[[], Variant]]]:
        def followed(x: Tensor, w: Tensor) -> Tensor:
            return add_norm(nccl(x, w), self.residual, self.norm)[0]

        def vllm_followed(x: Tensor, w: Tensor) -> Tensor:
            return add_norm(self.vllm(x @ w.T), self.residual, self.norm)[0]  # type: ignore[misc]

        def ours_followed(x: Tensor, w: Tensor) -> Tensor:
            return ops.gemm_ar(x, w, residual=self.residual, norm=self.norm, eps=EPS)[0]

        steps: dict[str, Step] = {
            "cuBLAS": lambda x, w: x @ w.T, "NCCL": nccl, "torch one-shot": Symmetric("one_shot_all_reduce"),
            "torch two-shot": Symmetric("two_shot_all_reduce_"), "ours": ops.gemm_ar, "NCCL, norm": followed,
            "ours, norm": ours_followed,
        }  # fmt: skip
        scale, eights = torch.ones((), device=self.session.device), dict[int, Tensor]()
        part = scale / 64  # small numbers are denormal in 8 bits

        def quantised(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
            if id(w) not in eights:
                eights[id(w)] = (w * 64).to(torch.float8_e4m3fn)
            return x.to(torch.float8_e4m3fn), eights[id(w)]

        def nccl_fp8(x: Tensor, w: Tensor) -> Tensor:
            y = scaled.product(*quantised(x, w), scale, part)
            dist.all_reduce(y)
            return y

        def ours_fp8(x: Tensor, w: Tensor) -> Tensor:
            return ops.gemm_ar(*quantised(x, w), scale_a=scale, scale_b=part)

        steps |= {"NCCL, fp8": nccl_fp8, "ours, fp8": ours_fp8}
        if vllm := self.vllm:
            steps |= {"vLLM": lambda x, w: vllm(x @ w.T), "vLLM, norm": vllm_followed}
        steps |= {way: partial(ops.gemm_ar, schedule=way) for way in self.ways}
        for name, step in steps.items():
            own = name.startswith("ours") or name in self.ways
            kind = "gemm" if name == "cuBLAS" else "ours" if own else "pair"
            checked = name != "cuBLAS" and "norm" not in name and "fp8" not in name
            yield name, lambda name=name, step=step, kind=kind, checked=checked: self.variant(name, step, kind, checked)


class Blocks:
    """A chain of MLPs whose rows are divided among the ranks: an all-gather with a product, a product with a
    reduce-scatter. M: rows of all ranks. H, I: columns of x, and of what is between on one rank.
    """

    def __init__(self, session: Session, M: int, H: int, I: int, ways: Sequence[str]) -> None:  # noqa: E741
        """ways: implementations of both, joined by "+"; those of a chain are measured beside the choice."""
        self.session, self.ways, like = session, ways, {"device": session.device, "dtype": torch.bfloat16}
        self._chance = torch.Generator(device=session.device).manual_seed(session.rank)
        self.count = max(4, -(-WEIGHT_BYTES // (4 * H * I)))
        self.weights = [
            [torch.randn(*shape, generator=self._chance, **like) * (2 * shape[1]) ** -0.5 for shape in ((I, H), (H, I))]
            for _ in range(self.count)
        ]
        self.x = torch.empty(M // session.ranks, H, **like)

    def refresh(self) -> None:
        self.x.normal_(generator=self._chance)

    def forward(self, gathered: str | None, scattered: str | None) -> Tensor:
        x = self.x
        for up, down in self.weights:
            x = ops.gemm_rs(ops.ag_gemm(x, up, schedule=gathered), down, schedule=scattered)
        return x

    def variants(self) -> Iterator[tuple[str, Callable[[], Variant]]]:
        named = {way: tuple(way.split("+")) for way in self.ways}
        for name, ways in {"NCCL": (UNFUSED, UNFUSED), "ours": (None, None), **named}.items():
            yield name, lambda name=name, ways=ways: self._variant(name, *ways)

    def _variant(self, name: str, gathered: str | None, scattered: str | None) -> Variant:
        replay, made = graphed(self.session, lambda: self.forward(gathered, scattered))
        return Variant(
            name=name, kind="pair" if name == "NCCL" else "ours", run=lambda: (replay(), made)[1], outputs=(made,),
            allowed=2 * ALLOWED, expected=lambda: self.forward(UNFUSED, UNFUSED), notes={"steps": self.count},
        )  # fmt: skip


class Sums:
    """All-reduces alone of M x N, each of the result of the one before. The vendor's are in place."""

    STEPS = 20

    def __init__(self, session: Session, vllm: VllmAllReduce | None, M: int, N: int) -> None:
        self.session, self.vllm, like = session, vllm, {"device": session.device, "dtype": torch.bfloat16}
        self._chance = torch.Generator(device=session.device).manual_seed(session.rank)
        self.x = torch.empty(M, N, **like)
        same = torch.Generator(device=session.device).manual_seed(99)
        self.residual = torch.randn(M, N, generator=same, **like)
        self.norm = torch.full((N,), 1 / session.ranks, **like)
        self._steps: list[Any] = []

    def refresh(self) -> None:
        self.x.normal_(generator=self._chance)

    def variants(self) -> Iterator[tuple[str, Callable[[], Variant]]]:
        def reduced(x: Tensor) -> Tensor:
            dist.all_reduce(x)
            return x

        def ours(x: Tensor, **options: Any) -> Tensor:
            y = ops.all_reduce(x, **options)
            return y if isinstance(y, Tensor) else y[0]

        follow = {"residual": self.residual, "norm": self.norm, "eps": EPS}
        steps: dict[str, Callable[[Tensor], Tensor]] = {
            "NCCL": reduced, "ours": ours, "NCCL, norm": lambda x: add_norm(reduced(x), self.residual, self.norm)[0],
            "ours, norm": lambda x: ours(x, **follow),
        }  # fmt: skip
        if vllm := self.vllm:
            steps |= {"vLLM": vllm, "vLLM, norm": lambda x: add_norm(vllm(x), self.residual, self.norm)[0]}
        for way in ("one_shot_pushed:words", "one_shot_pushed:few", "two_shot_pushed:more"):
            steps[way] = lambda x, way=way: ours(x, schedule=f"all_reduce_{way}")
        for way in ("h200_words", "h200"):
            steps[f"norm:{way}"] = lambda x, way=way: ours(x, **follow, schedule=f"all_reduce_one_shot_norm:{way}")
        for name, step in steps.items():
            yield name, lambda name=name, step=step: self._variant(name, step, "norm" in name)

    def _variant(self, name: str, step: Callable[[Tensor], Tensor], normed: bool) -> Variant:
        self._steps.append(step)
        inputs: list[Tensor] = []

        def run() -> Tensor:
            inputs.clear()
            y = self.x.clone()
            for _ in range(self.STEPS):
                inputs.append(y)
                y = step(y)
            return y

        replay, made = graphed(self.session, run, self.vllm if "vLLM" in name else None)
        last = inputs[-1]

        def expected() -> Tensor:
            y = last.clone()
            dist.all_reduce(y)
            return add_norm(y, self.residual, self.norm)[0] if normed else y

        return Variant(
            name=name, kind="pair" if name.startswith(("NCCL", "vLLM")) else "ours", run=lambda: (replay(), made)[1],
            outputs=(made,), expected=None if "NCCL" in name else expected, notes={"steps": self.STEPS},
        )  # fmt: skip


class Layers:
    """Layers of a model, each with weights and keys of its own, for a batch of so many rows of so many keys each."""

    def __init__(self, session: Session, vllm: VllmAllReduce | None, model: str, batch: int, keys: int) -> None:
        H, inner, heads, kv = MODELS[model]
        n = session.ranks
        self.session, self.vllm, self.own = session, vllm, heads // n * HEAD
        like = {"device": session.device, "dtype": torch.bfloat16}
        shapes = ((heads + 2 * kv) // n * HEAD, H), (H, self.own), (2 * inner // n, H), (H, inner // n)
        self.count = max(2, -(-WEIGHT_BYTES // sum(2 * a * b for a, b in shapes)))
        chance = torch.Generator(device=session.device).manual_seed(session.rank)
        self.layers = [
            [torch.randn(*shape, generator=chance, **like) * shape[1] ** -0.5 for shape in shapes]
            for _ in range(self.count)
        ]
        self.caches = [Cache(batch, kv // n, keys, chance) if keys else None for _ in self.layers]
        self.norm, self.x = torch.ones(H, **like), torch.empty(batch, H, **like)
        self._chance = torch.Generator(device=session.device).manual_seed(99)

    def refresh(self) -> None:
        self.x.normal_(generator=self._chance)

    def forward(self, reduced: Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]) -> Tensor:
        """The layers; reduced(x, w, residual, norm) is a product with its all-reduce, and what follows it."""
        h, total = add_norm(self.x, torch.zeros_like(self.x), self.norm)
        for cache, (qkv, out, gate_up, down) in zip(self.caches, self.layers, strict=True):
            q = (h @ qkv.T)[:, : self.own]
            attended = cache.attend(q) if cache else torch.tanh(q)
            h, total = reduced(attended, out, total, self.norm)
            gate, up = (h @ gate_up.T).chunk(2, 1)
            h, total = reduced(torch.nn.functional.silu(gate) * up, down, total, self.norm)
        return total

    def variants(self) -> Iterator[tuple[str, Callable[[], Variant]]]:
        def unfused(x: Tensor, w: Tensor, residual: Tensor, norm: Tensor) -> tuple[Tensor, Tensor]:
            return add_norm(nccl(x, w), residual, norm)

        def custom(x: Tensor, w: Tensor, residual: Tensor, norm: Tensor) -> tuple[Tensor, Tensor]:
            return add_norm(self.vllm(x @ w.T), residual, norm)  # type: ignore[misc]

        def apart(x: Tensor, w: Tensor, residual: Tensor, norm: Tensor) -> tuple[Tensor, Tensor]:
            return add_norm(ops.gemm_ar(x, w), residual, norm)

        def fused(x: Tensor, w: Tensor, residual: Tensor, norm: Tensor) -> tuple[Tensor, Tensor]:
            return ops.gemm_ar(x, w, residual=residual, norm=norm, eps=EPS)

        made = {"NCCL, norm": unfused, "ours, norm apart": apart, "ours, norm": fused}
        if self.vllm:
            made["vLLM, norm"] = custom
        for name, reduced in made.items():
            yield name, lambda name=name, reduced=reduced: self._variant(name, reduced)

    def _variant(self, name: str, reduced: Callable[..., Any]) -> Variant:
        vllm = self.vllm if name.startswith("vLLM") else None
        replay, made = graphed(self.session, lambda: self.forward(reduced), vllm)
        return Variant(
            name=name, kind="ours" if name.startswith("ours") else "pair", run=lambda: (replay(), made)[1],
            outputs=(made,), allowed=2 * ALLOWED,  # another order of sums in every layer: vLLM's differs as much
            expected=lambda: self.forward(lambda *given: add_norm(nccl(*given[:2]), *given[2:])),
            notes={"steps": self.count},
        )  # fmt: skip


def measured(
    session: Session, case: Chain | Blocks | Sums | Layers, name: str, args: argparse.Namespace
) -> dict[str, Any]:  # fmt: skip
    session.watchdog.context(name)
    with torch.no_grad():
        case.refresh()
        built = [session.build(label, "ours", builder) for label, builder in case.variants()]
        variants = [one for one in built if isinstance(one, Variant)]
        rows = session.time(variants, case.refresh, samples=args.samples, warmups=args.warmups)
    for row in rows:
        row["step_us"] = None if row["us"] is None else row["us"] / row["steps"]
    return {"name": name, "rows": [*rows, *(one for one in built if not isinstance(one, Variant))]}


def steps_of(case: dict[str, Any]) -> dict[str, float]:
    """Return the microseconds of a step, by what makes it."""
    return {row["name"]: row["step_us"] for row in case["rows"] if row.get("step_us")}


def lines(case: dict[str, Any]) -> Iterator[str]:
    found = steps_of(case)
    yield f"{case['name']}: " + ", ".join(f"{name} {value:.2f}" for name, value in found.items())
    for row in case["rows"]:
        if row["us"] is None:
            yield f"    {row['name']}: {row['failure']}"


COLUMNS = (
    "cuBLAS", "NCCL", "torch one-shot", "torch two-shot", "vLLM", "ours",
    "NCCL, norm", "vLLM, norm", "ours, norm apart", "ours, norm", "NCCL, fp8", "ours, fp8",
)  # fmt: skip


def gain(step: dict[str, float], normed: bool) -> str:
    """Return the time of the fastest of the others by that of ours. normed: with the residual and the norm."""
    others = [name for name in COLUMNS if name in step and not name.startswith(("ours", "cuBLAS"))]
    rivals = [name for name in others if name.endswith(", norm") == normed and not name.endswith(", fp8")]
    ours = step.get("ours, norm" if normed else "ours")
    return f"{min(step[name] for name in rivals) / ours:.2f}" if rivals and ours else "-"


def report(found: dict[str, Any], name: str) -> list[str]:
    """Return the section of a report in docs/results.md."""
    machine, rows = found["machine"], list[tuple[str, ...]]()
    for case in found["cases"]:
        step = steps_of(case)
        gains = [gain(step, normed) for normed in (False, True)]
        rows.append((case["name"], *(us(step[one]) if one in step else "-" for one in COLUMNS), *gains))
    return [
        f"## {name}", "",
        f"Decoding in CUDA graphs on {found['ranks']} {machine['gpu']} (benchmarks/decode.py): microseconds of a step "
        f"of a chain, M x N x K, or of a layer, with weights of their own; medians of {found['samples']} samples of "
        f"the slowest rank; driver {machine['driver']}, torch {machine['torch']}, triton {machine['triton']}. "
        "`cuBLAS` is the product alone, and `vLLM` its custom all-reduce of that product, built from the header of "
        "version 0.33 (not its fusion with the norm). `norm`: with the residual and the RMS norm. Layers are those of "
        "LLaMA 3.1 with weights divided over the ranks; those without keys have an elementwise function for attention. "
        "The last columns: the fastest of the others / ours.", "",
        *table(("step", *COLUMNS, "others / ours", "with the norm"), rows), "",
    ]  # fmt: skip


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = cases.parser(__doc__, samples=20)
    parser.add_argument("--chains", default=",".join("x".join(map(str, one)) for one in CHAINS), help="MxNxK, or none")
    layers = ",".join(f"{m}@{b}@{keys}" for keys in (0, 2048) for m in MODELS for b in BATCHES)
    parser.add_argument("--sums", default=",".join("x".join(map(str, one)) for one in SUMS), help="MxN, or none")
    parser.add_argument("--layers", default=layers, help="MODEL@BATCH@KEYS")
    parser.add_argument("--blocks", default="none", help="MxHxI of MLPs with divided rows, or none")
    parser.add_argument("--block-ways", default="", help="PROGRAM:SCHEDULE+PROGRAM:SCHEDULE that they take too")
    parser.add_argument("--ways", default="", help="PROGRAM:SCHEDULE of gemm_ar that chains take too")
    parser.add_argument("--vllm", type=Path, help="the directory csrc of vLLM's source")
    args = parser.parse_args(argv)
    for name in ("chains", "blocks", "sums"):
        given = [one for one in getattr(args, name).split(",") if one and one != "none"]
        setattr(args, name, [tuple(map(int, one.split("x"))) for one in given])
    args.block_ways = [one for one in args.block_ways.split(",") if one]
    args.ways = [one for one in args.ways.split(",") if one]
    args.layers = [one.split("@") for one in args.layers.split(",") if one and one != "none"]
    return args


def main(argv: Sequence[str] | None = None) -> int:
    args = arguments(argv)
    if args.dry:
        return 0  # the operators compile their own kernels
    run = cases.Run("decode", FILE, args, lambda _: [])
    vllm = VllmAllReduce(args.vllm) if args.vllm else None
    for M, N, K in args.chains:
        case = measured(run.session, Chain(run.session, vllm, M, N, K, args.ways), f"{M} x {N} x {K}", args)
        run.add(case, lines(case))
        ops.clear(captured=True)
    for M, H, I in args.blocks:  # noqa: E741
        case = measured(run.session, Blocks(run.session, M, H, I, args.block_ways), f"MLP {M} x {H} x {I}", args)
        run.add(case, lines(case))
        ops.clear(captured=True)
    for M, N in args.sums:
        case = measured(run.session, Sums(run.session, vllm, M, N), f"all-reduce {M} x {N}", args)
        run.add(case, lines(case))
        ops.clear(captured=True)
    for model, batch, keys in args.layers:
        name = f"{model}, batch {batch}" + (f", {keys} keys" if int(keys) else "")
        case = measured(run.session, Layers(run.session, vllm, model, int(batch), int(keys)), name, args)
        run.add(case, lines(case))
        ops.clear(captured=True)
    run.end()


if __name__ == "__main__":
    sys.exit(main())
