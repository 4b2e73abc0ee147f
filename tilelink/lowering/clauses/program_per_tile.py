"""`program_per_tile`: a CTA for each tile, so that the GPU starts the next tile wherever one has ended.

Usually a kernel has as many CTAs as fit the GPU, and CTA p executes tiles p, p + P, and so on. That is best if tiles
take equally long. If they do not, as those of causal attention, some CTAs have more to do than others. With this clause
the GPU deals tiles to places on SMs, in the order of the stage: put the longest tiles first.

before: P CTAs, each with every P-th tile
after:  a CTA for each tile; they begin in the order of the tiles, each when an earlier one has ended

Not all CTAs are resident. What the other rules prove holds for every choice of a program for a tile
(planning/any_program.py): in the order of the tiles, one after the other, no tile waits for ever. That takes for
granted that CTAs begin in the order of their numbers, and that a place becomes free when one ends. So no other kernel
may run on SMs at the same time. Tiles that others wait for wait for nothing themselves, or for what kernels tell that
wait for nothing and come after none that waits: such a tile ends, wherever the GPU puts it and whoever waits for it.
"""

from __future__ import annotations

from dataclasses import replace

from tilelink.errors import ScheduleError
from tilelink.lowering.bound import Bound
from tilelink.lowering.clauses.clause import Clause, Phase, Ties, switch
from tilelink.lowering.dealt_tiles import dealing_reason


def _apply(bound: Bound) -> Bound:
    """Return the bound program whose kernels have as many CTAs as tiles where the schedule says so.

    Raises ScheduleError for a kernel that cannot have them. CPU ranks have as many programs as without the clause.
    """
    for part in bound.schedule.stages:
        if not part[PROGRAM_PER_TILE]:
            continue
        kernel = bound.kernel_of[part.name]
        if reason := dealing_reason(bound, kernel):
            message = f"{part.name} cannot have a program for each tile: {reason}"
            raise ScheduleError(message, location=part.at("program_per_tile"), hint="take `program_per_tile` away")
        total = bound.stages[part.name].total
        if bound.target.kind != "cpu" and total > kernel.programs:
            split = replace(kernel, programs=total, program_per_tile=True)
            bound = replace(bound, kernels=tuple(split if one is kernel else one for one in bound.kernels))
        else:
            reason = (
                "no program has a second tile" if total <= kernel.programs else "CPU ranks have a few programs each"
            )
            bound = bound.leaving_out(PROGRAM_PER_TILE.name, part.name, reason)
    return bound


PROGRAM_PER_TILE: Clause[bool] = switch(
    "program_per_tile",
    apply=_apply,
    phase=Phase.TILES,  # after what adds stages to kernels
    ties=Ties.SHOWN,
    manual=(
        "a CTA for each tile, where otherwise each CTA executes some tiles one after the other: the GPU starts the "
        "next tile wherever one has ended. For tiles that take unequally long, the longest first in `order`. For a "
        "stage with a kernel of its own that sends no notifies, or waits for nothing but what kernels tell that wait "
        "for nothing, as copies of inputs, if no other kernel runs on SMs at the same time"
    ),
)
