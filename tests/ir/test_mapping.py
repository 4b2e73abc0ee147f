"""The mapping, compared with enumeration: the elements of a tile, and the channels of these elements."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tilelink.ir.intervals import Bounds
from tilelink.ir.mapping import ChannelGrid, TileMap, map_region
from tilelink.ir.program import Region
from tilelink.ir.scalar import RANK, Env, Index, Lookup, Scalar, Whole, add, binary, const, evaluate, mul

ROWS = 60


@dataclass(frozen=True, kw_only=True)
class Access:
    """`t[shift + step * s + i]`: rows of tiles of an index `i` that ends at `end`; `s` is a number from 0 to 2."""

    shift: int
    step: int
    minus: bool
    end: int
    tile: int
    channel: int
    left: bool

    def start(self, s: int) -> int:
        return self.shift + self.step * s - (self.step if self.minus else 0)

    def coordinate(self) -> Scalar:
        offset = add(const(self.shift), mul(Index(name="s"), const(self.step)))
        offset = binary("-", offset, const(self.step)) if self.minus else offset
        return add(offset, Index(name="i")) if self.left else add(Index(name="i"), offset)

    def map(self) -> TileMap:
        return mapped(self.coordinate(), {"i": self.tile}, {"i": self.end}, frozenset({"s"}))

    def grid(self) -> ChannelGrid:
        return channels(self.channel)


def channels(size: int) -> ChannelGrid:
    return ChannelGrid(tensor="t", kind="tile", sizes=(size,), counts=(-(-ROWS // size),), buffers=2)


def mapped(
    coordinate: Scalar | Whole,
    tiles: dict[str, int] | None = None,
    ends: dict[str, int] | None = None,
    numbers: frozenset[str] = frozenset(),
) -> TileMap:
    tiles, ends = tiles or {}, ends or {}
    counts = {name: (0, -(-ends[name] // tiles[name]) - 1) for name in tiles}
    bounds = Bounds(ranks=1, indices={**counts, **dict.fromkeys(numbers, (0, ROWS))})
    return map_region(Region(tensor="t", coords=(coordinate,)), (ROWS,), tiles, ends, numbers, bounds=bounds)


def touched(found: TileMap, grid: ChannelGrid, **indices: int) -> tuple[set[int], set[int]]:
    """Return the elements and the channels of a tile."""
    env = Env(rank=0, ranks=1, params={}, indices=indices)
    (span,), (along,) = found.spans, found.channel_range(grid)
    low, high = along.low, along.high
    if along.count is not None:
        assert evaluate(high, env) - evaluate(low, env) == along.count
    elements = set(range(int(evaluate(span.start, env)), int(evaluate(span.stop, env))))
    return elements, set(range(int(evaluate(low, env)), int(evaluate(high, env))))


ACCESSES = st.builds(
    Access,
    shift=st.sampled_from([0, 1, 3, 4, 8, 12]),
    step=st.sampled_from([0, 1, 4, 6, 8]),
    minus=st.booleans(),
    end=st.integers(1, 24),
    tile=st.sampled_from([1, 2, 3, 4, 8, 32]),
    channel=st.sampled_from([1, 3, 4, 6, 8, 16, 64]),
    left=st.booleans(),
)


@given(access=ACCESSES, s=st.integers(1, 2))
@example(access=Access(shift=8, step=0, minus=False, end=20, tile=8, channel=8, left=True), s=1)
@example(access=Access(shift=3, step=8, minus=False, end=16, tile=8, channel=8, left=True), s=1)
@example(access=Access(shift=0, step=6, minus=True, end=16, tile=4, channel=8, left=False), s=2)
@example(access=Access(shift=1, step=0, minus=False, end=16, tile=4, channel=4, left=True), s=1)
@example(access=Access(shift=0, step=0, minus=False, end=16, tile=16, channel=8, left=True), s=1)
@example(access=Access(shift=0, step=0, minus=False, end=16, tile=1, channel=1, left=True), s=1)
def test_a_tile_touches_its_own_elements_and_their_channels(access: Access, s: int) -> None:
    whole: list[int] = []
    for i in range(-(-access.end // access.tile)):
        elements, found = touched(access.map(), access.grid(), i=i, s=s)
        begin = access.start(s) + i * access.tile
        assert elements == set(range(begin, min(begin + access.tile, access.start(s) + access.end)))
        assert found == {element // access.channel for element in elements}
        whole += sorted(elements)
    assert whole == list(range(access.start(s), access.start(s) + access.end))


TILE, NUMBER = Index(name="i"), Index(name="s")


@pytest.mark.parametrize(
    ("coordinate", "tile", "channel", "one"),
    [
        (TILE, 4, 4, True),
        (TILE, 4, 8, True),
        (TILE, 4, 6, False),
        (TILE, 8, 4, False),
        (TILE, 7, 64, True),
        (add(const(8), TILE), 4, 8, True),
        (add(const(6), TILE), 4, 8, False),
        (add(binary("*", NUMBER, const(4)), TILE), 4, 8, True),
        (add(binary("*", const(4), NUMBER), TILE), 4, 8, True),
        (add(binary("-", const(8), binary("*", const(4), NUMBER)), TILE), 4, 8, True),
        (add(mul(mul(NUMBER, const(4)), NUMBER), TILE), 4, 8, True),
        (add(NUMBER, TILE), 1, 1, True),
        (add(NUMBER, TILE), 2, 4, False),
    ],
)
def test_tiles_that_divide_channels_are_known_to_touch_one(
    coordinate: Scalar, tile: int, channel: int, one: bool
) -> None:
    found = mapped(coordinate, {"i": tile}, {"i": ROWS}, frozenset({"s"}))
    assert (found.channel_range(channels(channel))[0].count == 1) is one


def test_a_tile_ends_at_the_end_of_its_tensor() -> None:
    elements, _ = touched(mapped(Index(name="i"), {"i": 16}, {"i": 80}), channels(4), i=3)
    assert elements == set(range(48, 60))


@pytest.mark.parametrize(
    ("offset", "end", "inside"), [(0, 60, True), (0, 61, False), (8, 52, True), (8, 53, False), (-4, 20, False)]
)
def test_tiles_whose_first_and_last_rows_exist_lie_inside_their_tensor(offset: int, end: int, inside: bool) -> None:
    (span,) = mapped(add(const(offset), TILE), {"i": 16}, {"i": end}).spans
    assert span.inside is inside


@pytest.mark.parametrize("channel", [1, 7, 60])
def test_a_number_selects_one_element_and_a_colon_all(channel: int) -> None:
    grid = channels(channel)
    assert touched(mapped(Index(name="s"), numbers=frozenset({"s"})), grid, s=13) == ({13}, {13 // channel})
    for near in (add(Index(name="s"), const(3)), add(const(3), Index(name="s"))):
        assert touched(mapped(near, numbers=frozenset({"s"})), grid, s=13) == ({16}, {16 // channel})
    everything = set(range(ROWS)), set(range(grid.count))
    assert touched(mapped(Whole()), grid) == everything
    rows = mapped(Lookup(table="rows", coords=(Whole(),)))
    assert touched(rows, grid) == everything
    assert [span.kind for span in (*mapped(Whole()).spans, *rows.spans)] == ["whole", "gather"]


def test_all_of_no_elements_touches_no_channel() -> None:
    none = map_region(Region(tensor="t", coords=(Whole(),)), (0,), {}, {}, frozenset(), bounds=Bounds(ranks=1))
    (found,) = none.channel_range(ChannelGrid(tensor="t", kind="tile", sizes=(1,), counts=(0,)))
    assert found.count == 0


def test_an_access_that_names_another_rank_is_remote() -> None:
    for rank, remote in ((None, False), (RANK, False), (const(0), True), (add(RANK, const(1)), True)):
        region = Region(tensor="t", coords=(Whole(),), rank=rank)
        found = map_region(region, (ROWS,), {}, {}, frozenset(), bounds=Bounds(ranks=4))
        assert (found.remote, found.rank) == (remote, rank or RANK)


def test_a_grid_has_a_counter_for_each_channel() -> None:
    grid = ChannelGrid(tensor="t", kind="tile", sizes=(1, 2), counts=(3, 5))
    assert (grid.count, grid.base, grid.buffers) == (15, 0, 1)
