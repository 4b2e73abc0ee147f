# pyright: basic
"""One hop of a small message between GPUs: words of data and flag against a push and a notify.

    torchrun --nproc-per-node 2 benchmarks/hops.py --out hops.json

A message goes from rank to rank and back, many hops in one launch of one program of a GPU (`hops.tl`). The time of a
hop is the difference of two launches with different numbers of hops, divided by the difference of these: so what a
launch costs is left out. A hop is a wait, a load, a store to the peer and, without words, a fence and a signal.

Schedules and numbers of hops alternate on the same fresh data, and every result is compared with the message.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
import torch.distributed as dist

from benchmarks import cases
from benchmarks.measure import Session, Variant
from benchmarks.tables import table, us
from tilelink import compiler

FILE = Path(__file__).with_suffix(".tl")
COLUMNS = 256
"""Elements of a row of a message: of bf16, 512 bytes."""
SCHEDULES = ("signals", "words")
TARGET_US = 4.0
"""A hop of 4 KiB by words should take no longer."""


def dims(size: int, hops: int) -> dict[str, int]:
    """Return the sizes of the program for messages of some bytes."""
    return {"H": hops, "R": max(1, size // (2 * COLUMNS)), "C": min(COLUMNS, size // 2)}


class Messages:
    """The message of a sample: that of rank 0, which all ranks have in the end."""

    def __init__(self, session: Session, size: int) -> None:
        self.size, self.device = size, session.device
        shape = dims(size, 0)["R"], dims(size, 0)["C"]
        self.x, self.y = (torch.empty(shape, dtype=torch.bfloat16, device=self.device) for _ in range(2))
        self.group = session.group
        self.chance = torch.Generator(device=self.device).manual_seed(1000 + session.rank)
        self.expected = torch.empty_like(self.x)

    def refresh(self) -> None:
        self.x.normal_(generator=self.chance)
        self.expected.copy_(self.x)
        dist.broadcast(self.expected, 0, group=self.group)

    def variant(self, schedule: str, hops: int) -> Variant:
        """Return a launch of some hops."""
        module = compiler.load(str(FILE))
        program = module.program("hops")
        kernel = compiler.compile(
            program, module.schedule(schedule, program), dims=dims(self.size, hops), dtype="bf16", device="cuda"
        )
        return Variant(
            name=name_of(schedule, hops), kind="ours", run=lambda: kernel({"x": self.x}, out={"y": self.y})["y"],
            expected=lambda: self.expected, outputs=(self.y,),
        )  # fmt: skip


def name_of(schedule: str, hops: int) -> str:
    return f"{schedule}, {hops} hops"


def measured(session: Session, size: int, args: argparse.Namespace) -> dict[str, Any]:
    """Return the rows of messages of one size, and the microseconds of a hop by each schedule."""
    session.watchdog.context(f"{size} bytes")
    data = Messages(session, size)
    with session.watchdog.step("data"):
        data.refresh()
        session.meet()
    points = [(schedule, hops) for schedule in SCHEDULES for hops in args.hops]
    built = [session.build(name_of(*one), "ours", lambda one=one: data.variant(*one)) for one in points]
    variants = [one for one in built if isinstance(one, Variant)]
    rows = session.time(variants, data.refresh, samples=args.samples, warmups=args.warmups)
    rows += [one for one in built if not isinstance(one, Variant)]
    return {"bytes": size, "rows": rows, "hop_us": {one: hop_us(rows, one, args.hops) for one in SCHEDULES}}


def hop_us(rows: list[dict[str, Any]], schedule: str, hops: Sequence[int]) -> float | None:
    """Return the microseconds of a hop: the slope between the fewest and the most hops. None if one of them failed."""
    few, many = min(hops), max(hops)
    times = {row["name"]: row["us"] for row in rows}
    first, last = times.get(name_of(schedule, few)), times.get(name_of(schedule, many))
    return None if first is None or last is None else (last - first) / (many - few)


def lines(case: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of a size, as they are printed."""
    hop = case["hop_us"]
    yield f"{case['bytes']} bytes: " + ", ".join(f"{one} {us(hop[one]) if hop[one] else '-'} us" for one in SCHEDULES)
    for row in case["rows"]:
        yield f"    {row['name']}: {row['us'] or row['failure']}"


def report(found: dict[str, Any], name: str) -> list[str]:
    """Return the section of a report in docs/results.md."""
    machine = found["machine"]
    cells = [
        (f"{c['bytes']}", *(us(t) if (t := c["hop_us"][one]) else "-" for one in SCHEDULES)) for c in found["cases"]
    ]
    return [
        f"## {name}", "",
        f"A hop between {found['ranks']} {machine['gpu']}, in microseconds, from launches of "
        f"{' and '.join(map(str, found['hops']))} hops; medians of {found['samples']} samples; "
        f"driver {machine['driver']}, torch {machine['torch']}, triton {machine['triton']}.", "",
        *table(("bytes", "push and notify", "words"), cells), "",
    ]  # fmt: skip


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = cases.parser(__doc__, samples=30)
    parser.add_argument("--bytes", default="512,4096,16384", help="sizes of messages")
    parser.add_argument("--hops", default="16,144", help="two numbers of hops, multiples of the number of ranks")
    args = parser.parse_args(argv)
    args.bytes, args.hops = ([int(one) for one in text.split(",")] for text in (args.bytes, args.hops))
    return args


def main(argv: Sequence[str] | None = None) -> int:
    args = arguments(argv)
    kernels = [("hops", one, dims(size, hops)) for size in args.bytes for hops in args.hops for one in SCHEDULES]
    if args.dry:
        cases.prepared(FILE, kernels, args.dry, args.workers)
        return 0
    run = cases.Run("hops", FILE, args, lambda _: kernels, hops=args.hops)
    for size in args.bytes:
        case = measured(run.session, size, args)
        run.add(case, lines(case))
    hop = next((case["hop_us"]["words"] for case in run.found["cases"] if case["bytes"] == 4096), None)
    if run.rank == 0 and hop:
        print(f"4096 bytes by words: {hop:.2f} us a hop, at most {TARGET_US} are wanted", flush=True)
    run.end()


if __name__ == "__main__":
    sys.exit(main())
