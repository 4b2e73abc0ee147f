# pyright: basic
"""Decoding with a paged cache whose keys are spread over ranks, in CUDA graphs, with other lengths in every replay.

    torchrun --nproc-per-node 1 benchmarks/paged_decode.py --out paged_decode.json

Each rank has so many keys of every request, or up to so many, drawn for each sample. Next to the operator stand a plain
read of as many bytes of memory, and a split-KV kernel with its merge, whose results are gathered by NCCL and merged
(for even lengths: it takes no others). A step is one layer. Results are compared with attention by torch in f32.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
import torch.distributed as dist
import triton
import triton.language as tl

import tilelink
from benchmarks import cases
from benchmarks.decode import graphed, lines, measured, steps_of
from benchmarks.measure import Session, Variant
from benchmarks.paged_attention import HEAD, PAGE, Cache
from benchmarks.tables import table, us
from tilelink import ops

FILE = Path(tilelink.__file__).parent / "programs" / "decode_attention.tl"
HEADS, GROUP = 8, 8
"""Heads of keys, and queries for each: LLaMA 70B."""
CASES = ((1, 32768, "even"), (8, 8192, "even"), (8, 32768, "even"), (64, 2048, "even"), (256, 512, "even"),
         (8, 4096, "even"), (16, 32768, "drawn"), (64, 8192, "drawn"), (128, 4096, "drawn"))  # fmt: skip
"""Requests, keys of each on a rank, and whether all have as many."""
LAUNCHES, BLOCK, SMS = 8, 2048, 132
"""Launches of a graph, elements that a plain read loads together, and SMs that it takes."""

Tensor = torch.Tensor


@triton.jit
def _read(x, out, count, BLOCK: tl.constexpr):
    """Sums of blocks of x, block after block."""
    total = tl.zeros((BLOCK,), tl.float32)
    for number in tl.range(tl.program_id(0), count, tl.num_programs(0)):
        total += tl.load(x + number.to(tl.int64) * BLOCK + tl.arange(0, BLOCK))
    tl.store(out + tl.program_id(0), tl.sum(total))


class Requests:
    """Requests in their decode step, with fresh queries in every sample, and fresh lengths if they are drawn."""

    def __init__(self, session: Session, batch: int, keys: int, lengths: str) -> None:
        self.session, self.batch, self.lengths, self.most = session, batch, lengths, keys
        self._chance = torch.Generator(device=session.device).manual_seed(session.rank)
        self._same = torch.Generator(device=session.device).manual_seed(99)
        self.cache = Cache(batch, HEADS, keys, self._chance)
        self.q = torch.empty(batch, HEADS, GROUP, HEAD, device=session.device, dtype=torch.bfloat16)
        self.counts = torch.full((session.ranks, batch), keys, device=session.device, dtype=torch.int32)
        self.own = self.counts[session.rank].clone()

    def refresh(self) -> None:
        self.q.normal_(generator=self._same)
        if self.lengths == "drawn":  # most are short; the same numbers on all ranks
            drawn = torch.rand(self.counts.shape, device=self.q.device, generator=self._same) ** 3
            self.counts.copy_((drawn * self.most).to(torch.int32) + 1)
            self.own.copy_(self.counts[self.session.rank])

    def ours(self) -> Tensor:
        q = self.q.view(self.batch, HEADS * GROUP, HEAD)
        return ops.decode_attention(q, *self.stored, self.cache.pages, self.own).view(self.q.shape)

    def split(self) -> Tensor:
        """Attention over own keys by a kernel for parts and one that merges them, then an exchange over ranks."""
        out, lse = self.cache.attend(self.q.view(self.batch, -1), with_lse=True)
        if self.session.ranks == 1:
            return out.view(self.q.shape)
        mine = torch.cat([out.view(*self.q.shape).float(), lse.view(*self.q.shape[:3], 1)], dim=-1)
        every = torch.empty(self.session.ranks, *mine.shape, device=mine.device)
        dist.all_gather_into_tensor(every, mine)
        weights = torch.softmax(every[..., -1:], dim=0)
        return (weights * every[..., :-1]).sum(0).to(self.q.dtype)

    def expected(self) -> Tensor:
        out, lse = torch.empty(self.q.shape, device=self.q.device), torch.empty(self.q.shape[:3], device=self.q.device)
        place = torch.arange(self.most, device=self.q.device)
        for b in range(self.batch):
            keys, values = (x[self.cache.pages[b].long()].reshape(-1, HEADS, HEAD).float() for x in self.stored)
            scores = torch.einsum("hgd,khd->hgk", self.q[b].float(), keys) * HEAD**-0.5
            scores.masked_fill_(place >= self.counts[self.session.rank, b], float("-inf"))
            lse[b] = torch.logsumexp(scores, dim=-1)
            out[b] = torch.einsum("hgk,khd->hgd", torch.softmax(scores, dim=-1), values)
        mine = torch.cat([out, lse[..., None]], dim=-1)
        every = [torch.empty_like(mine) for _ in range(self.session.ranks)]
        dist.all_gather(every, mine)
        all_of_them = torch.stack(every)
        return (torch.softmax(all_of_them[..., -1:], dim=0) * all_of_them[..., :-1]).sum(0)

    @property
    def stored(self) -> tuple[Tensor, Tensor]:
        return self.cache.keys, self.cache.values

    def variants(self) -> Iterator[tuple[str, Callable[[], Variant]]]:
        if self.lengths == "even":
            yield "plain read", self._read
            yield "split and merge", lambda: self._variant("split and merge", "pair", self.split)
        yield "ours", lambda: self._variant("ours", "ours", self.ours)

    def _read(self) -> Variant:
        made = torch.empty(8 * SMS, device=self.q.device)
        kernel: Any = _read
        words = [x.view(torch.float32).view(-1, BLOCK) for x in self.stored]

        def read() -> Tensor:
            for one in words * LAUNCHES:
                kernel[(len(made),)](one, made, len(one), BLOCK)
            return made

        replay, made = graphed(self.session, read)
        return Variant(name="plain read", kind="transfer", run=lambda: (replay(), made)[1], notes={"steps": LAUNCHES})

    def _variant(self, name: str, kind: str, run: Callable[[], Tensor]) -> Variant:
        replay, made = graphed(self.session, lambda: [run() for _ in range(LAUNCHES)][-1])
        return Variant(
            name=name, kind=kind, run=lambda: (replay(), made)[1], outputs=(made,), expected=self.expected,
            notes={"steps": LAUNCHES},
        )  # fmt: skip


def rates(case: dict[str, Any]) -> dict[str, str]:
    """Return TB/s of the keys and values, by what reads them."""
    return {name: f"{case['bytes'] / step / 1e6:.2f}" for name, step in steps_of(case).items()}


def report(found: dict[str, Any], name: str) -> list[str]:
    """Return the section of a report in docs/results.md."""
    machine, rows = found["machine"], list[tuple[str, ...]]()
    for case in found["cases"]:
        step, rate = steps_of(case), rates(case)
        cells = [f"{us(step[one])} ({rate[one]})" if one in step else "-" for one in COLUMNS]
        share = f"{step['plain read'] / step['ours']:.2f}" if {"plain read", "ours"} <= step.keys() else "-"
        rows.append((case["name"], *cells, share))
    return [
        f"## {name}", "",
        f"Decoding with pages on {found['ranks']} {machine['gpu']} in CUDA graphs (benchmarks/paged_decode.py): "
        f"microseconds of a layer, and TB/s of keys and values of a rank; {HEADS} heads of keys, {GROUP} queries each, "
        f"of {HEAD}, pages of {PAGE}. A plain read only reads as many bytes; `split and merge` is a split-KV kernel, "
        "one that merges its parts, and over ranks a gather by NCCL. "
        f"Medians of {found['samples']} samples of the slowest rank; driver "
        f"{machine['driver']}, torch {machine['torch']}, triton {machine['triton']}. Drawn lengths are other ones in "
        "every sample. The last column: a plain read / ours.", "",
        *table(("requests, keys of each on a rank", *COLUMNS, "read / ours"), rows), "",
    ]  # fmt: skip


COLUMNS = ("plain read", "split and merge", "ours")


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = cases.parser(__doc__, samples=15)
    every = ",".join("x".join(map(str, one)) for one in CASES)
    parser.add_argument("--cases", default=every, help="REQUESTSxKEYSxeven, or drawn")
    args = parser.parse_args(argv)
    args.cases = [(int(b), int(k), how) for b, k, how in (one.split("x") for one in args.cases.split(","))]
    return args


def main(argv: Sequence[str] | None = None) -> int:
    args = arguments(argv)
    if args.dry:
        return 0  # the operator compiles its own kernels
    run = cases.Run("paged decode", FILE, args, lambda _: [])
    for batch, keys, lengths in args.cases:
        requests: Any = Requests(run.session, batch, keys, lengths)
        name = f"{batch} x {keys}" if lengths == "even" else f"{batch} x 1 to {keys}"
        case = measured(run.session, requests, name, args)
        case["bytes"] = 4 * HEADS * HEAD * (batch * keys if lengths == "even" else int(requests.counts.sum(1).max()))
        run.add(case, [*lines(case), f"    TB/s: {rates(case)}"])
    run.end()


if __name__ == "__main__":
    sys.exit(main())
