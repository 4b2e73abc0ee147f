"""Waits of a loop with roles: iterations leave out a wait that repeats the one of an earlier iteration of the same
tile.

before: for t in turns:  wait(ks[s, t, :]); ...           # a channel of ks holds what four iterations load
after:  for t in turns:  if t % 4 == 0: wait(ks[s, t, :]); ...

A counter only grows in a launch, so a wait for the same channels passes at once. The plan has all waits. The rule
`roles` proves that each of those that are left out names the channels of one that is executed before.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tilelink.ir.program import Wait
from tilelink.ir.scalar import Env, Index, Scalar, const, evaluate, walk
from tilelink.lowering.bound import Bound, BoundStage
from tilelink.lowering.carried import Carried, Range


@dataclass(frozen=True, kw_only=True)
class Period:
    """Iterations in which a wait is executed: those whose number `iterations` divides, or only the first one (None)."""

    index: str
    iterations: int | None


def periods(bound: Bound, stage: BoundStage, tile: Carried, iterations: Range | None, wait: Wait) -> tuple[Period, ...]:
    """Return the periods of a wait, executed in iterations in which all of them begin: in every one for ()."""
    grid = bound.channels[wait.region.tensor, wait.kind]
    found: list[Period] = []
    for decl in tile.loop.indices:
        if iterations is not None and iterations.index == decl.name and iterations.start != const(0):
            return ()  # the first iteration need not begin a channel
        if (count := stage.count(decl.name)) == 1:
            continue
        dims = [d for d, c in enumerate(wait.region.coords) if isinstance(c, Scalar) and decl.name in _indices(c)]
        if not dims:
            found.append(Period(index=decl.name, iterations=None))
            continue
        plain = len(dims) == 1 and wait.region.coords[dims[0]] == Index(name=decl.name)
        size, elements = grid.sizes[dims[0]], stage.tiles[decl.name]
        if plain and size >= count * elements:
            found.append(Period(index=decl.name, iterations=None))
        elif plain and size % elements == 0 and size > elements:
            found.append(Period(index=decl.name, iterations=size // elements))
    return tuple(found)


def not_repeated(bound: Bound, stage: BoundStage, tile: Carried, iterations: Range | None) -> str | None:
    """Return which wait may be left out although no earlier iteration has executed it, or None."""
    for wait in tile.awaited:
        found = {one.index: one.iterations for one in periods(bound, stage, tile, iterations, wait)}
        if iterations is not None and iterations.index in found and iterations.start != const(0):
            return f"its first iteration need not wait for {wait.region.tensor}"
        for expr in _places(bound, stage, wait):
            for index in _indices(expr) & found.keys():
                if not _steady(expr, index, stage.count(index), found[index]):
                    return (
                        f"an iteration waits for other channels of {wait.region.tensor} than the one that waits for it"
                    )
    return None


def _steady(expr: Scalar, index: str, count: int, iterations: int | None) -> bool:
    """True if an expression over one index is the same in all iterations of a period."""
    if _indices(expr) != {index}:
        return False
    every = np.arange(count)
    begin = every - every % (iterations or count)
    here, there = (
        evaluate(expr, Env(rank=0, ranks=1, params={}, indices={index: values})) for values in (every, begin)
    )
    return bool(np.all(here == there))


def _places(bound: Bound, stage: BoundStage, wait: Wait) -> Iterator[Scalar]:
    """Yield the rank of a wait and the ends of its channels."""
    tile_map = bound.tile_map(stage.name, wait.region)
    yield tile_map.rank
    for channels in tile_map.channel_range(bound.channels[wait.region.tensor, wait.kind]):
        yield from (channels.low, channels.high)


def _indices(expr: Scalar) -> set[str]:
    return {part.name for part in walk(expr) if isinstance(part, Index)}
