"""Asks all tiles of the sizes for which `check --sizes` says that a proof holds, and of those that a kept proof takes.

    python -m tests.verifier.claims 2000

The number is how many claims are compared, of programs of the library, patterns, readers' programs and random ones, and
a second one is the seed. A claim is a size of one dimension, the others being as they are. It is false if the rules
refuse the program of that size, with all of its tiles, or give other thresholds. Sizes whose numbers are refused when
they are bound are left out: those are asked of each size.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import tilelink
from tests.compiler import library
from tests.patterns.test_readers import WRITTEN, attempts
from tilelink import compiler
from tilelink.compiler.other_sizes import other_sizes
from tilelink.errors import TileLinkError, VerificationError
from tilelink.ir.program import Program
from tilelink.lowering.bound import Bound
from tilelink.planning.cutoff import cutoff
from tilelink.planning.plan import make_plan
from tilelink.planning.queue_order import with_queue_order
from tilelink.verifier import refusals
from tilelink.verifier.cutoff import SmallProof, by_small, small_proof

TILES = 1200
"""Of a program, at most, and of the sizes that are claimed for it: all of them are enumerated."""
FACTORS = (1, 2, 4, 8)
"""How many times as large a size is made, so that a dimension has several blocks."""
Making = Callable[[Mapping[str, int]], Bound]


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A size that a proof is said to hold for. wrong: why it is refused, or None. taken: by the first size's proof."""

    name: str
    size: str
    taken: bool
    wrong: str | None


def tiles(bound: Bound) -> int:
    return bound.ranks * sum(stage.total for stage in bound.stages.values())


def claims(name: str, make: Making, draw: random.Random, most: int) -> Iterator[Claim]:
    """Yield claims for a program, up to `most` for each dimension. make: binds it with other values of dimensions."""
    whole = make({})
    part = cutoff(whole)
    try:
        known = None if part is None else small_proof(part)
    except VerificationError:
        return
    if part is None or known is None or tiles(whole) > TILES:
        return
    plan = by_small(part, prove=lambda *_: known)
    held = {} if plan is None else other_sizes(plan, make)
    for dim, sizes in held.items():
        if isinstance(sizes, str):
            continue
        for blocks in dict.fromkeys((0, 1, *(draw.randrange(2, 40) for _ in range(most)))):
            size = sizes.least + blocks * sizes.of
            try:
                bound = make({dim: size})
            except TileLinkError:
                continue
            if tiles(bound) <= TILES:
                yield compared(f"{name}, {dim}", f"{dim}={size}", bound, known[0])


def compared(name: str, size: str, bound: Bound, known: SmallProof) -> Claim:
    """Return what is true of a size, beside what the proof of another one says of it."""
    part = cutoff(bound)
    taken = None if part is None else by_small(part, prove=lambda *_: (known, None))
    plan = with_queue_order(make_plan(bound))
    refused = refusals(plan, limit=1)
    wrong = str(refused[0]) if refused else None
    if wrong is None and taken is not None:
        both = ((plan.thresholds[key], taken.thresholds[key]) for key in plan.thresholds)
        wrong = None if all(np.array_equal(*one) for one in both) else "other thresholds"
    return Claim(name=name, size=size, taken=taken is not None, wrong=wrong)


def of_files() -> Iterator[tuple[str, Program, Any, dict[str, Any]]]:
    """Yield the programs of the library, of patterns and of readers, with schedules and sizes."""
    for case in library.cases():
        program, schedule = case
        yield f"{library.name(case)}", program, schedule, dict(library.sizes(case, 3))
    for name, written in WRITTEN.items():
        module = tilelink.load(str(attempts(name)[-1]))
        for schedule in (None, *module.schedules):
            yield f"reader's {name}", module.programs[0], schedule, dict(written.dims)
    for path in sorted(Path("examples/patterns").glob("*.tl")):
        module = tilelink.load(str(path))
        for program in module.programs:
            sizes = {one.name: one.example for one in program.params if one.example is not None}
            for schedule in (None, *module.schedules_of(program)):
                yield str(path.stem), program, schedule, sizes


RANDOM = """
program drawn(M, N, K):
    to   : in        [4] < {bound}
    x    : in        [M, N]
    c    : in        [{rows}, N]
    left : symmetric [M, N]
    y    : out       [M, N]

    comm send(i: M, j: N):
        tile_push_data(left[{sent}, j] @ (rank + {step}), x[{sent}, j])
        producer_tile_notify(left[{sent}, j] @ (rank + {step}))

    compute add(i: M, j: N):
        consumer_tile_wait(left[{read}, {along}])
        total = x[i, j] + c[to[{entry}], j] + left[i, j]
        {more}

schedule drawn for drawn:
    send {engine}, tile(i={i}, j={j}){order}
    add on sm, tile(i={k}, j={j})
    left channel(i={channel}{columns}){buffers}
"""


def drawn(draw: random.Random) -> tuple[str, dict[str, int]]:
    """Return the text of a random program and its sizes: what may depend on a size does so in some."""
    i = draw.choice((1, 2, 4, 8))
    text = RANDOM.format(
        bound=draw.choice(("M", "N", "K", "M // 2", "M + K", "8", "ranks * M")),
        rows=draw.choice(("K", "M", "N", "64")),
        sent=draw.choice(("i", "i", "i", "M - 1 - i")), step=draw.choice(("1", "1", "2", "M", "1 + N // 64")),
        read=draw.choice(("i", "i", "i", ":", "0")), along=draw.choice(("j", "j", ":")), entry=draw.choice("0123"),
        more=draw.choice((
            "y[i, j] = total", "y[i, j] = total * f32(M)", "if rank < M // 16:\n            y[i, j] = total",
            "y[i, j] = where((pos(i) + M)[:, None] >= (pos(j) + N)[None, :], total, 0.0)",
        )),
        engine=draw.choice(("on sm", "on sm(2)", "on copy_engine")), i=i, j=draw.choice((4, 8)),
        k=draw.choice((1, 2, i)),
        order=draw.choice(("", "", ", order(j, i)", ", order(i = rank step +1)")), channel=draw.choice((1, i, 2 * i)),
        columns=draw.choice(("", ", j=8")), buffers=draw.choice(("", "", "\n    left buffers(3)")),
    )  # fmt: skip
    return text, {
        "M": 8 * draw.choice((1, 2, 4, 8)),
        "N": 8 * draw.choice((1, 2, 4, 8)),
        "K": draw.choice((16, 64, 96)),
    }


def making(program: Program, schedule: Any, sizes: Mapping[str, Any], ranks: int) -> Making:
    return lambda changed: compiler.bound(program, schedule, ranks=ranks, dims={**sizes, **changed}, dtype="f32")


def enlarged(program: Program, sizes: Mapping[str, Any], factor: int, draw: random.Random) -> dict[str, Any]:
    dims = [one.name for one in program.params if one.kind == "dim" and isinstance(sizes.get(one.name), int)]
    some = draw.sample(dims, min(2, len(dims)))
    return {name: value * factor if name in some else value for name, value in sizes.items()}


def all_claims(seed: int, most: int = 24) -> Iterator[Claim]:
    """Yield claims without an end: of random programs and of files, in turn."""
    draw = random.Random(seed)
    files = [*of_files()]
    while True:
        with_file = draw.random() < 0.5
        try:
            if with_file:
                name, program, schedule, sizes = draw.choice(files)
                sizes = enlarged(program, sizes, draw.choice(FACTORS), draw)
            else:
                text, sizes = drawn(draw)
                module = tilelink.parse(text)
                name, program, schedule = text, module.program(), module.schedules[0]
            yield from claims(name, making(program, schedule, sizes, draw.choice((2, 3, 4))), draw, most)
        except TileLinkError:
            continue


def main(number: int, seed: int = 0) -> int:
    found = Counter[str]()
    for claim in all_claims(seed):
        found["claims"] += 1
        found["taken by the proof of another size"] += claim.taken
        found["of random programs"] += claim.name.startswith("\nprogram")
        if claim.wrong is not None:
            found["false"] += 1
            print(f"{claim.name}\n{claim.size}: {claim.wrong}", flush=True)
        if found["claims"] >= number:
            break
    print(dict(found))
    return int(found["false"] > 0)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0))
