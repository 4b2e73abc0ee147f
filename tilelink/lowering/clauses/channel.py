"""`channel(i=128)`: the number of elements of a tensor that share a signal."""

from __future__ import annotations

from collections.abc import Iterator

from tilelink.errors import TileSizeError, did_you_mean
from tilelink.ir.mapping import tile_index
from tilelink.ir.program import Program, Tensor
from tilelink.ir.scalar import Param, Ranks, Scalar
from tilelink.ir.visitor import all_indices, stage_regions
from tilelink.lowering.clauses.clause import Clause, Numbers
from tilelink.scheduling.words import SchedulePart, Sizes, check_sizes, inner_sizes, read_sizes, show_sizes


def dims_called(program: Program, tensor: Tensor, key: str) -> list[int]:
    """Return the dimensions of a tensor that a name in a schedule stands for.

    It is the name of a dimension, or of an index that runs along one, also with an offset.
    """
    named = [d for d, n in enumerate(tensor.shape) if _dim_name(n).lower() == key.lower()]
    return named[:1] or [d for d, index in _indices_along(program, tensor) if index == key][:1]


def dim_name(program: Program, tensor: Tensor, dim: int) -> str:
    """Return the name by which a schedule may call a dimension of a tensor, or an empty text."""
    names = (_dim_name(tensor.shape[dim]), *(index for d, index in _indices_along(program, tensor) if d == dim))
    return next((name for name in names if name and dims_called(program, tensor, name) == [dim]), "")


def names_of(program: Program, tensor: Tensor) -> list[str]:
    """Return the names that a schedule may call the dimensions of a tensor by."""
    names = [name for extent in tensor.shape if (name := _dim_name(extent))]
    return list(dict.fromkeys([*names, *(index for _, index in _indices_along(program, tensor))]))


def _dim_name(extent: Scalar) -> str:
    """Return the name of a dimension in a schedule, or an empty text: a number or a sum has none."""
    return extent.name if isinstance(extent, Param) else "ranks" if isinstance(extent, Ranks) else ""


def _indices_along(program: Program, tensor: Tensor) -> Iterator[tuple[int, str]]:
    """Yield (dimension, index) for every index that runs along a dimension of a tensor."""
    for stage in program.stages:
        for region in stage_regions(stage):
            if region.tensor == tensor.name:
                for d, coord in enumerate(region.coords):
                    if (shifted := tile_index(coord, frozenset())) is not None:
                        yield d, shifted[1]


def _show(sizes: Sizes) -> str:
    return f"channel({show_sizes(sizes)})"


def _check(program: Program, part: SchedulePart) -> None:
    tensor = program.tensor(part.name)
    # With the other direction, a stage addresses the tensor by its index over the ranks. Only binding knows the
    # direction.
    ranks = {d.name for stage in program.stages for d in all_indices(stage) if d.over_ranks}
    for key, size in part[CHANNEL]:
        if key not in ranks and not dims_called(program, tensor, key):
            names = names_of(program, tensor)
            message = f"channel({key}={size}): {tensor.name} has no dimension {key!r}"
            hint = did_you_mean(key, names, f"its dimensions, and indices along them, are {', '.join(names)}")
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
    read=read_sizes,
    show=_show,
    valid=check_sizes,
    inner=inner_sizes,
    check=_check,
    apart=_apart,
    written="`channel(i=128)`",
    manual=(
        "elements of a dimension that share one counter; the dimension has its own name, in lower case, or that of an "
        "index that runs along it"
    ),
)
