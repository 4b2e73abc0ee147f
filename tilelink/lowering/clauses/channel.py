"""`channel(i=128)`: the number of elements of a tensor that share a signal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilelink.errors import TileSizeError, did_you_mean
from tilelink.ir.program import Program, Tensor
from tilelink.ir.scalar import Index, Param
from tilelink.ir.visitor import stage_regions
from tilelink.lowering.clauses.clause import Clause, Numbers
from tilelink.lowering.transform import all_indices
from tilelink.scheduling.words import Part, Sizes, check_sizes, show_sizes


def dims_called(program: Program, tensor: Tensor, key: str) -> list[int]:
    """Return the dimensions of a tensor that a name in a schedule stands for.

    It is the name of a dimension, or of an index that runs along one.
    """
    named = [d for d, n in enumerate(tensor.shape) if getattr(n, "name", "ranks").lower() == key.lower()]
    if named:
        return named[:1]
    for stage in program.stages:
        for region in stage_regions(stage):
            if region.tensor == tensor.name:
                for d, coord in enumerate(region.coords):
                    if isinstance(coord, Index) and coord.name == key:
                        return [d]
    return []


def _read(_: str, children: Sequence[Any]) -> Sizes:
    return tuple(children)


def _show(sizes: Sizes) -> str:
    return f"channel({show_sizes(sizes)})"


def _inner(sizes: Sizes) -> Sequence[tuple[str, str]]:
    return [(key, key) for key, _ in sizes]


def _check(program: Program, part: Part) -> None:
    tensor = program.tensor(part.name)
    # With the other direction, a stage addresses the tensor by its index over the ranks. Only binding knows the
    # direction.
    ranks = {d.name for stage in program.stages for d in all_indices(stage) if d.over_ranks}
    for key, size in part[CHANNEL]:
        if key not in ranks and not dims_called(program, tensor, key):
            names = list(dict.fromkeys(n.name if isinstance(n, Param) else "ranks" for n in tensor.shape))
            message = f"channel({key}={size}): {tensor.name} has no dimension {key!r}"
            hint = did_you_mean(key, names, f"its dimensions are {', '.join(names)}")
            raise TileSizeError(message, location=part.at(f"channel.{key}"), hint=hint)


def _apart(_: Sizes, __: Sizes, ___: Numbers, ____: int) -> float:
    """Return 0: a search sets the channel together with the tile of the stage that waits."""
    return 0.0


CHANNEL: Clause[Sizes] = Clause(
    name="channel",
    of="tensor",
    default=(),
    rules={"channel": '"channel" "(" size ("," size)* ")"'},
    syntax="channel(..)",
    called="channel(...)",
    read=_read,
    show=_show,
    valid=check_sizes,
    inner=_inner,
    check=_check,
    apart=_apart,
    written="`channel(i=128)`",
    manual="elements of a dimension that share one counter",
)
