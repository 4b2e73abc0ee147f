"""Memory dependences between the iterations of a loop over tiles: none are allowed.

If an iteration writes an element that another one reads or writes, the result depends on the tile size. With tiles of
one element the iterations are ordered element by element, and with a single tile all accesses happen at once:

    t = h[0 + k]            c[:] = zeros(f32)
    h[1 + k] = t            c[k] = x[k]

So one of these must hold for two accesses of a tensor, if one of them is a write. Both follow the tile of the
iteration, shifted by the same offset. Or they have no element in common. Or both are the same for all tiles: then the
value that is written is the same, too (lowering/recurrences.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations_with_replacement

from tilelink.errors import TileSizeError
from tilelink.ir.mapping import tile_index
from tilelink.ir.printer import print_region
from tilelink.ir.program import For, Region, Statement
from tilelink.ir.reach import elsewhere
from tilelink.ir.scalar import Int, Scalar, Whole, indices_in, is_gather
from tilelink.ir.visitor import reads, statements, value_of, written
from tilelink.lowering.bound import BoundStage
from tilelink.lowering.recurrences import holds_all


def check_dependences(stage: BoundStage, ranks: int, loop: For, index: str) -> None:
    """Raise TileSizeError if iterations for two tiles of an index may access the same element, and one writes it."""
    _Iterations(stage, ranks, loop, index).check()


class _Iterations:
    def __init__(self, stage: BoundStage, ranks: int, loop: For, index: str) -> None:
        self.stage, self.ranks, self.body, self.index = stage, ranks, loop.body, index
        names = [decl.name for decl in loop.indices]
        inner = {d.name for s in statements(loop.body) if isinstance(s, For) for d in s.indices}
        self.within = inner.union(names[names.index(index) + 1 :])
        """Indices whose loops run again for each tile of the index."""

    def check(self) -> None:
        for (one, writes, _), (other, also, statement) in combinations_with_replacement(_accesses(self.body), 2):
            follow = self._follows(one) or self._follows(other)
            if one.tensor != other.tensor or not (writes or also) or not follow or self._apart(one, other):
                continue
            doing, done = ("writes" if kind else "reads" for kind in (also, writes))
            message = f"stage {self.stage.name} loops over tiles of {self.index}, of {self.stage.tiles[self.index]} "
            message += f"elements each, and {doing} {print_region(other)} in one iteration where it {done} "
            message += f"{print_region(one)} in another"
            hint = f"{holds_all(self.stage, self.index)}; or use {self.index} as a number, one element an iteration"
            raise TileSizeError(message, location=statement.location, related=one.location, hint=hint)

    def _apart(self, one: Region, other: Region) -> bool:
        """True if two regions certainly have no element in common in iterations for different tiles of the index."""
        for here, there in ((one, other), (other, one)):
            if here.rank is None and there.rank is not None and elsewhere(there.rank, self.ranks):
                return True
        for a, b in zip(one.coords, other.coords, strict=True):
            if isinstance(a, Int) and isinstance(b, Int) and a != b:
                return True
            mine, theirs = self._offset(a), self._offset(b)
            if mine is not None and mine == theirs and not self._moves(mine):
                return True
        return False

    def _moves(self, offset: Scalar) -> bool:
        """True if an offset has several values for one tile of the index."""
        return bool(indices_in(offset) & self.within)

    def _follows(self, region: Region) -> bool:
        """True if a region differs for every tile of the index."""
        return any(self._offset(coord) is not None for coord in region.coords)

    def _offset(self, coord: Scalar | Whole) -> Scalar | None:
        """Return the offset of a coordinate that is a tile of the index, or None if it is not one."""
        if isinstance(coord, Whole) or is_gather(coord):
            return None
        tile = tile_index(coord, self.stage.scalar_indices)
        return tile[0] if tile is not None and tile[1] == self.index else None


def _accesses(body: tuple[Statement, ...]) -> Iterator[tuple[Region, bool, Statement]]:
    """Yield every region that a body reads (False) or writes (True), with its statement."""
    for statement in statements(body):
        value = value_of(statement)
        yield from ((region, False, statement) for region in (reads(value) if value is not None else ()))
        if (region := written(statement)) is not None:
            yield region, True, statement
