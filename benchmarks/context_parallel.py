# pyright: basic
"""Attention to keys and values that are spread over ranks: a call of the operator, with its gradients, and these alone.

    torchrun --nproc-per-node 2 benchmarks/context_parallel.py --out context_parallel.json

Next to it stand cuDNN's attention of the same rows to keys that are already there, in squares with a mask and
rectangles without one (no time for a transfer, and the largest of the ranks), and NCCL followed by the same, whose
parts are merged by their log-sums. Each sample has new data. A result in zigzag is compared with that of NCCL and
torch, which tests compare with the attention of the whole sequence. Next to gradients alone stand those of as many
pairs of rows and keys on one GPU, by the library's program without peers and by cuDNN: with a mask, of as many times
the heads as there are ranks, and of rows that see those of their rank alone.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
import torch.distributed as dist
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

import tilelink
from benchmarks import cases
from benchmarks.decode import lines, steps_of
from benchmarks.measure import Session, Variant
from benchmarks.tables import table, us
from tilelink import ops
from tilelink.ops import torch_attention
from tilelink.ops.context_parallel import BLOCK, GATHER, as_kernels_take
from tilelink.ops.operators import UNFUSED
from tilelink.ops.own import of_library

FILE = Path(tilelink.__file__).parent / "programs" / "ag_attention.tl"
KEY_HEADS = 8
CASES = (
    ("causal", 64, 4096, 128), ("causal", 32, 8192, 128), ("causal", 32, 16384, 128), ("causal", 64, 4096, 64),
    ("whole", 16, 4096, 128), ("whole", 16, 8192, 128), ("causal", 16, 4096, 128), ("packed", 32, 8192, 128),
    ("packed", 32, 16384, 128),
)  # fmt: skip
"""The keys that rows see (those before them, all, or those before them in their document), heads of queries, rows of a
rank, and elements of a head."""
DOCUMENTS = 12
"""Documents of drawn lengths that are packed into a sequence."""
THERE, PAIR, OURS, RING, ULYSSES = "keys are there", "NCCL and torch", "ours", "ring", "ulysses"
KERNEL, ALONE = "gradients by a kernel", "by a kernel on one GPU"
KINDS = {THERE: "transfer", PAIR: "pair", OURS: "ours", RING: "ours", ULYSSES: "ours", KERNEL: "ours", ALONE: "ours"}
GRADED, BACKWARD = ", with gradients", ", gradients alone"
WAYS = ("", GRADED, BACKWARD)
ROLES = "gpu_roles"
"""The schedule of gradients by a kernel."""

Tensor = torch.Tensor


class Case:
    """The tensors of a rank."""

    def __init__(self, session: Session, how: str, heads: int, rows: int, depth: int) -> None:
        self.session, self.causal, self.rows = session, how != "whole", rows
        keys, drawn = rows * session.ranks, torch.rand(DOCUMENTS - 1, generator=torch.Generator().manual_seed(5))
        self.edges = [0, *(sorted((drawn * keys).int().tolist()) if how == "packed" else ()), keys]
        self.documents = torch.tensor(self.edges, dtype=torch.int32, device=session.device) if how == "packed" else None
        pairs = sum((end - begin) ** 2 for begin, end in pairwise(self.edges)) / session.ranks
        self.work = 4 * heads * depth * pairs * (0.5 if self.causal else 1)

        def made(*shape: int) -> Tensor:
            return torch.empty(1, *shape, depth, device=session.device, dtype=torch.bfloat16)

        self.q, self.do = made(heads, rows), made(heads, rows)
        self.k, self.v = made(KEY_HEADS, rows), made(KEY_HEADS, rows)
        self.all_k, self.all_v = (made(KEY_HEADS, rows * session.ranks) for _ in range(2))
        self._chance = torch.Generator(device=session.device).manual_seed(session.rank)

    def refresh(self) -> None:
        for one in (self.q, self.do, self.k, self.v, self.all_k, self.all_v):
            one.normal_(generator=self._chance)

    def there(self, q: Tensor, k: Tensor, v: Tensor) -> Iterator[Tensor]:
        """Yield the parts of the attention to keys of all ranks. No result is merged: that takes no time here."""
        if not self.causal:
            yield scaled_dot_product_attention(q, k, v, enable_gqa=True)
            return
        size, rank, ranks = self.rows // 2, self.session.rank, self.session.ranks
        for part, chunk in enumerate((rank, 2 * ranks - 1 - rank)):
            for begin, end in pairwise(self.edges):
                first, last = max(begin, chunk * size), min(end, (chunk + 1) * size)
                if first >= last:
                    continue
                at = (part - chunk) * size
                mine, own, before = q[:, :, at + first : at + last], slice(first, last), slice(begin, first)
                yield scaled_dot_product_attention(mine, k[:, :, own], v[:, :, own], is_causal=True, enable_gqa=True)
                if begin < first:
                    yield scaled_dot_product_attention(mine, k[:, :, before], v[:, :, before], enable_gqa=True)

    def _there(self, graded: bool) -> Tensor:
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION), torch.set_grad_enabled(graded):
            q, k, v = (one.detach().requires_grad_(graded) for one in (self.q, self.all_k, self.all_v))
            parts = list(self.there(q, k, v))
            if graded:
                torch.autograd.backward(parts, [self.do[:, :, : one.shape[2]] for one in parts])
            return parts[0]

    def _call(self, schedule: str | None, graded: bool, method: str = GATHER, gradients: str | None = None) -> Tensor:
        with torch.set_grad_enabled(graded):
            q, k, v = (one.detach().requires_grad_(graded) for one in (self.q, self.k, self.v))
            o = ops.attention(
                q, k, v, is_causal=self.causal, schedule=schedule, method=method, cu_seqlens=self.documents,
                gradients=gradients,
            )  # fmt: skip
            if graded:
                o.backward(self.do)
            return o.detach()

    def variants(self) -> Iterator[tuple[str, Callable[[], Variant]]]:
        for graded, way in zip((False, True), WAYS[:2], strict=True):
            calls = {
                THERE: partial(self._there, graded), PAIR: partial(self._call, UNFUSED, graded),
                OURS: partial(self._call, None, graded), RING: partial(self._call, None, graded, RING),
                ULYSSES: partial(self._call, None, graded, ULYSSES),
            }  # fmt: skip
            if self.documents is not None:
                del calls[RING]
            elif graded:
                calls[KERNEL] = partial(self._call, None, graded, gradients=ROLES)
            for kind, call in calls.items():
                yield kind + way, partial(self._variant, kind + way, KINDS[kind], call)
        if self.documents is None:
            for kind, backward in (
                (OURS, self._backward(UNFUSED)), (KERNEL, self._backward(ROLES)), (THERE, self._alone(False)),
                (ALONE, self._alone(True)),
            ):  # fmt: skip
                yield kind + BACKWARD, partial(backward, kind + BACKWARD)

    def _backward(self, schedule: str) -> Callable[[str], Variant]:
        """The gradients of attention that has run. Others are compared with those of the collectives of the group."""
        group = self.session.group.group_name
        operator, given = torch.ops.tilelink, list[Any]()

        def attended() -> None:
            operands = as_kernels_take(self.q, self.k, self.v, self.causal)
            do = self.do.reshape(operands[0].shape)
            made = operator.attention(*operands, None, self.q.shape[-1] ** -0.5, group, UNFUSED, "")
            given[:] = do, *operands, *made, None, self.q.shape[-1] ** -0.5, group

        def run(schedule: str = schedule) -> tuple[Tensor, ...]:
            return operator.attention_backward(*given, schedule)

        return partial(self._graded, "ours", attended, run, None if schedule == UNFUSED else partial(run, UNFUSED))

    def _alone(self, kernel: bool) -> Callable[[str], Variant]:
        """The gradients of as many pairs on this GPU alone."""
        given, scale = list[Any](), self.q.shape[-1] ** -0.5
        own: Any = dist.new_subgroups(1)[0]

        def attended() -> None:
            do, q = (one.unflatten(1, (KEY_HEADS, -1))[0] for one in (self.do, self.q))
            k, v = (one[0] for one in ((self.k, self.v) if self.causal else (self.all_k, self.all_v)))
            if self.causal:
                do, q, k, v = (torch.cat([one] * self.session.ranks) for one in (do, q, k, v))
            given[:] = do, q, k, v, *torch_attention.attend(q, k, v, scale, self.causal)

        def vendor() -> tuple[Tensor, ...]:
            do, q, k, v, o, lse = given
            return torch_attention.gradients(q, k, v, o, lse, do, scale, self.causal)

        def ours() -> tuple[Tensor, ...]:
            name = f"{'causal_' if self.causal else ''}attention_gradients"
            blocks = [one.unflatten(1 if n in (2, 3) else 2, (-1, BLOCK)) for n, one in enumerate(given)]
            return tuple(of_library(name, ROLES)(*(blocks if self.causal else given), scale=scale, group=own))

        if kernel:
            return partial(self._graded, "ours", attended, ours, vendor)
        return partial(self._graded, "transfer", attended, vendor, None)

    def _graded(
        self, kind: str, attended: Callable[[], None], run: Callable[[], tuple[Tensor, ...]],
        wanted: Callable[[], tuple[Tensor, ...]] | None, name: str,
    ) -> Variant:  # fmt: skip
        """Gradients of what has run, as `wanted` makes them if there is one."""

        def joined(made: tuple[Tensor, ...]) -> Tensor:
            return torch.cat([one.flatten() for one in made])

        return Variant(
            name=name, kind=kind, run=run, prepare=attended, settle=joined, notes={"steps": 1},
            expected=(lambda: joined(wanted())) if wanted else None,
        )  # fmt: skip

    def _variant(self, name: str, kind: str, run: Callable[[], Tensor]) -> Variant:
        expected = (lambda: self._call(UNFUSED, False)) if kind == "ours" else None
        return Variant(name=name, kind=kind, run=run, expected=expected, notes={"steps": 1})


def measured(case: Case, name: str, args: argparse.Namespace) -> dict[str, Any]:
    session = case.session
    session.watchdog.context(name)
    case.refresh()
    built = [session.build(label, "ours", builder) for label, builder in case.variants()]
    variants = [one for one in built if isinstance(one, Variant)]
    rows = session.time(variants, case.refresh, samples=args.samples, warmups=args.warmups)
    for row in rows:
        row["step_us"] = row["us"]
    return {"name": name, "work": case.work, "rows": [*rows, *(one for one in built if not isinstance(one, Variant))]}


def report(found: dict[str, Any], name: str) -> list[str]:
    """Return the section of a report in docs/results.md."""
    machine, rows = found["machine"], list[tuple[str, ...]]()
    kinds = [one for one in KINDS if any(one + way in steps_of(case) for case in found["cases"] for way in WAYS)]
    packed = any(case["name"].startswith("packed") for case in found["cases"])
    for case in found["cases"]:
        for way in WAYS:
            step = {one: value for one, value in steps_of(case).items() if one.endswith(way) or not way}
            of = {one: step.get(one + way) for one in kinds}
            if not any(of.values()):
                continue
            there, pair, ours = of.get(THERE), of.get(PAIR), of.get(OURS)  # a file need not have each of them
            cells = [us(one) if one else "-" for one in of.values()]
            shares = [f"{ours / there:.2f}" if there and ours else "-", f"{pair / ours:.2f}" if pair and ours else "-"]
            rate = f"{case['work'] / ours / 1e6:.0f}" if ours and not way else "-"
            rows.append((case["name"] + way, *cells, rate, *shares))
    return [
        f"## {name}", "",
        f"Attention over {found['ranks']} {machine['gpu']} (benchmarks/context_parallel.py), bf16, {KEY_HEADS} heads "
        "of keys; causal attention is in zigzag"
        f"{f', packed is causal in {DOCUMENTS} documents of drawn lengths' if packed else ''}. Microseconds of the "
        f"slowest rank, launched eagerly; medians of {found['samples']} samples; driver {machine['driver']}, torch "
        f"{machine['torch']}, triton {machine['triton']}. `{THERE}` is cuDNN's attention to keys of all ranks, without "
        f"any transfer; `{PAIR}` gathers them first. Gradients are computed by cuDNN, or a kernel. TFLOP/s of a rank, "
        "ours / keys are there, and how many times as fast as NCCL and torch.", "",
        *table(("attention", *kinds, "TFLOP/s", "/ there", "x pair"), rows), "",
    ]  # fmt: skip


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = cases.parser(__doc__, samples=15)
    parser.add_argument("--cases", default=",".join("x".join(map(str, one)) for one in CASES),
                        help="HOWxHEADSxROWSxDEPTH, where HOW is causal, whole or packed")  # fmt: skip
    args = parser.parse_args(argv)
    args.cases = [(how, *map(int, sizes)) for how, *sizes in (one.split("x") for one in args.cases.split(","))]
    return args


def main(argv: Sequence[str] | None = None) -> int:
    args = arguments(argv)
    if args.dry:
        return 0  # the operator compiles its own kernels
    run = cases.Run("context parallel", FILE, args, lambda _: [])
    for how, heads, rows, depth in args.cases:
        name = f"{how}, {heads} heads of {depth}, {rows} rows a rank"
        case = measured(Case(run.session, how, heads, rows, depth), name, args)
        run.add(case, lines(case))
        torch.cuda.empty_cache()
    run.end()


if __name__ == "__main__":
    sys.exit(main())
