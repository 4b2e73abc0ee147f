"""Compact numbers in source: which tile of its stage a program executes next (lowering/compact.py).

A program computes at its start how many tiles of each segment are there. It finds the segment of a number among them.

    segment = tl.arange(0, 4)
    there = tl.cdiv(...)
    ends = tl.cumsum(there * TILES_J, 0)
    for number in tl.range(pid, tl.max(ends, 0), num_programs):
        segment_1, within, there_1 = tiles.compact(number, there, ends, TILES_J)
        tile = ...
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilelink.backend.constants import FACTOR
from tilelink.backend.frame import Frame
from tilelink.backend.nodes import Let, Node
from tilelink.backend.scalars import ScalarPrinter
from tilelink.backend.words import integer
from tilelink.backend.writer import Writer
from tilelink.ir.intervals import Bounds
from tilelink.ir.scalar import Index, Scalar, substitute, walk
from tilelink.ir.sizes import power_of_two
from tilelink.lowering.bound import Loop
from tilelink.lowering.compact import SEGMENT, THERE, WITHIN, Compact
from tilelink.lowering.compact_tiles import with_numbers


@dataclass(frozen=True, kw_only=True)
class CompactLoop:
    """A loop over compact numbers. before: statements before it. number: its variable. total: the tiles there are."""

    before: tuple[Node, ...]
    number: str
    total: str


def walked_loop(frame: Frame, loop: Loop, writer: Writer, numbers: str = "tl.arange(0, {})") -> CompactLoop | None:
    """Return the head of a loop over compact numbers, or None for a loop over all tiles.

    The statements that compute `tile` are added to the writer. numbers: 0, 1, ... below a power of two, in source.
    """
    if loop.compact is None:
        return None
    stage = frame.bound.stages[loop.stages[0]]
    scalar = replace(frame.printer(stage), bases=frame.bases(awaits=False))
    # Inner indices come last, as a rule: of two with as many tiles, those of a segment are the inner one's.
    others = [decl.name for decl in reversed(stage.stage.indices) if decl.name != loop.compact.index]
    named = (frame.constants.count(stage, one, FACTOR) for one in others if stage.count(one) == loop.compact.across)
    return _compact_loop(loop.compact, writer, scalar, next(named, integer(loop.compact.across)), numbers)


def _compact_loop(compact: Compact, writer: Writer, scalar: ScalarPrinter, across: str, numbers: str) -> CompactLoop:
    segments, counts, ends, number = (writer.name(stem) for stem in ("segment", "there", "ends", "number"))
    scalar = replace(scalar, names=None)
    there = _printed(compact.there, compact, scalar, segment=segments)
    if compact.segments == 1:
        tile = _printed(compact.tile, compact, scalar, within=number, there=counts)
        writer.let("tile", tile)
        return CompactLoop(before=(Let(name=counts, value=there),), number=number, total=_times(counts, across))
    block, last = power_of_two(compact.segments), integer(compact.segments - 1)
    lanes, spare = numbers.format(block), block != compact.segments
    if spare or SEGMENT not in walk(compact.there):
        there = f"tl.where({lanes} <= {last}, {there}, 0)"
    before = (
        Let(name=segments, value=f"tl.minimum({lanes}, {last})" if spare else lanes),
        Let(name=counts, value=there),
        Let(name=ends, value=f"tl.cumsum({_times(counts, across)}, 0)"),
    )
    own = {one.name: writer.name(one.name) for one in (SEGMENT, WITHIN, THERE)}
    writer.add(Let(name=", ".join(own.values()), value=f"tiles.compact({number}, {counts}, {ends}, {across})"))
    writer.let("tile", _printed(compact.tile, compact, scalar, **own))
    return CompactLoop(before=before, number=number, total=f"tl.max({ends}, 0)")


def _times(text: str, factor: str) -> str:
    return text if factor == "1" else f"{text} * {factor}"


def _printed(expr: Scalar, compact: Compact, scalar: ScalarPrinter, **names: str) -> str:
    """Return an expression of compact numbers in source, where they have other names."""
    bounds = with_numbers(scalar.bounds, compact)
    renamed = {new: bounds.indices[name] for name, new in names.items()}
    bounds = Bounds(ranks=bounds.ranks, indices={**bounds.indices, **renamed}, tables=bounds.tables)
    return replace(scalar, bounds=bounds)(substitute(expr, {name: Index(name=new) for name, new in names.items()}))
