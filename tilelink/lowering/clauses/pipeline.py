"""`num_warps n`, `num_stages n`: compile options of a stage's kernel."""

from __future__ import annotations

from tilelink.errors import ScheduleError
from tilelink.ir.program import Program
from tilelink.lowering.clauses.clause import FAR, Clause, Numbers, count, ratio
from tilelink.scheduling.words import SchedulePart

MAX_WARPS = 32
"""Largest number of warps of a GPU program (1024 threads)."""


def _check(_: Program, part: SchedulePart) -> None:
    warps = part[NUM_WARPS]
    if warps is not None and (warps & (warps - 1) or warps > MAX_WARPS):
        hint = f"one of {', '.join(str(1 << n) for n in range(MAX_WARPS.bit_length()))}"
        raise ScheduleError(f"{warps} warps for {part.name}", location=part.at("num_warps"), hint=hint)


def _apart(one: int | None, other: int | None, _: Numbers, __: int) -> float:
    return ratio(one, other) / FAR


NUM_WARPS: Clause[int | None] = count(
    "num_warps", "a program has at least one warp", formerly="warps", check=_check, apart=_apart,
    manual=(
        "warps of each program of the stage's kernel: 1, 2, 4, 8, 16 or 32; a stage inside another one's kernel runs "
        "with the warps of that kernel"
    ),
)  # fmt: skip
NUM_STAGES: Clause[int | None] = count(
    "num_stages", "a pipeline has at least one stage", formerly="stages", apart=_apart,
    manual=(
        "stages of the software pipelines of its kernel's products: the number of steps whose operands are in flight"
    ),
)  # fmt: skip
