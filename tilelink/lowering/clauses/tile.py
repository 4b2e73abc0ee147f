"""`tile(i=128, k=64)`: the tile sizes of a stage."""

from __future__ import annotations

from tilelink.ir.program import Program, Stage
from tilelink.ir.visitor import all_indices
from tilelink.lowering.clauses.clause import Clause, Numbers, ratio
from tilelink.lowering.transform import CONTRACTED, contracts_whole, not_tiled, split_whole, whole_dim
from tilelink.scheduling.words import SchedulePart, Sizes, check_sizes, inner_sizes, read_sizes, show_sizes


def _show(sizes: Sizes) -> str:
    return f"tile({show_sizes(sizes)})"


def _check(program: Program, part: SchedulePart) -> None:
    stage = program.stage(part.name)
    names = {d.name for d in all_indices(stage)}
    for key, _ in part[TILE]:
        named = key in names or whole_dim(program, stage, key) is not None
        if not named and not (key == CONTRACTED and stage.kind == "compute" and contracts_whole(program, stage)):
            raise not_tiled(program, stage, key, part.at(f"tile.{key}"))


def _rewrite(program: Program, stage: Stage, part: SchedulePart) -> Stage:
    """Add an index over a dimension that a communication stage moves as a whole, if the clause gives it a tile size."""
    if stage.kind == "comm":
        names = {d.name for d in all_indices(stage)}
        for key, _ in part[TILE]:
            if key not in names:
                stage, _ = split_whole(program, stage, key, part.at(f"tile.{key}"))
    return stage


def _apart(one: Sizes, other: Sizes, _: Numbers, __: int) -> float:
    """Return the distance of two clauses. Sizes that only one of them gives are ignored."""
    sizes = dict(other)
    return sum(ratio(size, sizes.get(name)) for name, size in one)


TILE: Clause[Sizes] = Clause(
    name="tile",
    default=(),
    rules={"tile": '"tile" "(" size ("," size)* ")"'},
    syntax="tile(..)",
    called="tile(...)",
    read=read_sizes,
    show=_show,
    valid=check_sizes,
    inner=inner_sizes,
    check=_check,
    rewrite=_rewrite,
    apart=_apart,
    written="`tile(i=128, k=64)`",
    manual=(
        "tile sizes; a whole (`:`) dimension, or the length of a slice, is named by its lower-case name (`Ks` is "
        "`ks`): the slice of a contraction, or of a copy; `k` also names what a product contracts, "
        "`x[i, q * D : (q + 1) * D]` or a dimension of any name, if nothing else of the stage is called so"
    ),
)
