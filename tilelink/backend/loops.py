"""The tiles that a CTA executes."""

from __future__ import annotations

from tilelink.backend.addresses import Addresses
from tilelink.ir.program import For
from tilelink.ir.visitor import statements
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


def index_is_reused(index: str, addresses: Addresses) -> bool:
    """True if the stage has several loops over an index of that name, one of them inside a branch or another loop."""
    body = addresses.stage.stage.body
    loops = [s for s in statements(body) if isinstance(s, For) and any(d.name == index for d in s.indices)]
    return len(loops) > 1 and any(not any(loop is s for s in body) for loop in loops)
