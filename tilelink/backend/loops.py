"""The tiles that a CTA executes, and the loops inside a tile: unrolled, pipelined or plain."""

from __future__ import annotations

from math import prod

from tilelink.backend.addresses import Addresses
from tilelink.backend.unroll import rounds_ahead, unrolled
from tilelink.ir.program import ITEM_BYTES, Assign, Barrier, For, Local, Notify, Region, Store, Transfer
from tilelink.ir.visitor import awaited, statements
from tilelink.lowering.bound import Kernel, Loop


def tile_range(kernel: Kernel, loop: Loop, total: str) -> tuple[str, str]:
    """Return a program's first tile of a loop over `total` tiles, and the step to its next one.

    Tile 0 goes to the program after that of the previous loop's last tile, or to the first of those that take tiles.
    """
    if loop.width:
        return f"tl.where(pid >= {loop.begin}, pid - {loop.begin}, {total})", str(loop.width)
    turned = -loop.first % kernel.programs
    return f"(pid + {turned}) % num_programs" if turned else "pid", "num_programs"


def tiles_text(kernel: Kernel, loop: Loop) -> str:
    """Return which tiles a loop of several in a kernel executes, and by which programs: a comment of the source."""
    tiles = f"tiles of {', '.join(loop.stages)}"
    if loop.width:
        last = loop.begin + loop.width - 1
        return f"{tiles}, by programs {loop.begin} to {last}, which are idle in the last wave of the loops above"
    if -loop.first % kernel.programs:
        return f"{tiles}, from the program after that of the last tile above"
    return tiles


def loop_head(loop: For, index: str, addresses: Addresses, *, inner: bool) -> str:
    """Return the iterator of a loop over an index. inner: True if it is inside another loop, which may be pipelined."""
    count, number = addresses.stage.count(index), addresses.constants.count(addresses.stage, index)
    if unrolled(loop, count, _shapes(loop, addresses)):
        return f"tl.static_range(0, {number})"
    if is_sequential(loop):
        return f"tl.range(0, {number}, num_stages=1)"
    # A product has its own pipeline stages. Their buffers are free after the product, but not in a flattened loop.
    target = addresses.bound.target
    if not inner and not addresses.stage.flatten and target.kind == "cuda":
        ahead = rounds_ahead(loop, count, lambda region: _bytes(region, addresses), target.shared_memory)
        if ahead > 1:
            return f"tl.range(0, {number}, num_stages={ahead})"
    return f"range(0, {number})"


def is_sequential(loop: For) -> bool:
    """Return whether the iterations of a loop must follow one another, so that it may not be software-pipelined.

    Loads of the next iteration must not overtake this iteration's stores and notifies, and Triton's pipeliner does not
    accept waits that loads depend on. A read that waits for its words is such a wait. Only loops inside of such a loop,
    or without any of these, are software-pipelined.
    """
    return any(isinstance(s, Store | Transfer | Notify | Barrier) or awaited(s) for s in statements(loop.body))


def index_is_reused(index: str, addresses: Addresses) -> bool:
    """True if the stage has several loops over an index of that name, one of them inside a branch or another loop."""
    body = addresses.stage.stage.body
    loops = [s for s in statements(body) if isinstance(s, For) and any(d.name == index for d in s.indices)]
    return len(loops) > 1 and any(not any(loop is s for s in body) for loop in loops)


def _shapes(loop: For, addresses: Addresses) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the tiles that a loop assigns or sends."""
    names = [s.name for s in loop.body if isinstance(s, Assign)]
    names += [s.source.name for s in loop.body if isinstance(s, Transfer) and isinstance(s.source, Local)]
    return {name: addresses.shape(addresses.typing.locals[name].axes, {}) for name in names}


def _bytes(region: Region, addresses: Addresses) -> int:
    """Return the bytes of a tile of a region."""
    shape = addresses.shape(addresses.typing.region_type(region).axes, {})
    return prod(shape) * ITEM_BYTES[addresses.bound.tensors[region.tensor].dtype]
