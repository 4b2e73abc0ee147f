"""Refusals that name the rank, the stage, the tile and both places in the source."""

from __future__ import annotations

from typing import TypeVar

from tilelink.errors import Location, VerificationError
from tilelink.ir.program import Notify, Statement, Wait
from tilelink.planning.plan import Plan

Refusal = TypeVar("Refusal", bound=VerificationError)


def where(plan: Plan, task: int) -> str:
    """Return the name of a task, as `rank 1, gemm tile (s=0, i=2)`."""
    stage, rank, _ = plan.task_name(task)
    indices = ", ".join(f"{name}={value}" for name, value in plan.tile_indices(task).items())
    return f"rank {rank}, {stage} tile ({indices})"


def location_of(plan: Plan, statement: int) -> Location | None:
    """Return the source location of a statement, by its number in the plan."""
    node: Statement = plan.statements[statement][1]
    if isinstance(node, Wait | Notify):
        return node.region.location or node.location
    return node.location


def refuse(
    kind: type[Refusal],
    plan: Plan,
    message: str,
    *,
    task: int,
    statement: int,
    related: int | None = None,
    hint: str,
    location: Location | None = None,
) -> Refusal:
    """Return the error of a rule for a statement of a task. location: of the part of it that is refused, if not all."""
    text = f"{where(plan, task)}: {message}"
    other = location_of(plan, related) if related is not None else None
    return kind(text, location=location or location_of(plan, statement), related=other, hint=hint)
