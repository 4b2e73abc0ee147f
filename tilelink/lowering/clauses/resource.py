"""`on sm`, `on sm(n)`, `on copy_engine`, `in STAGE prologue`, `in STAGE epilogue`: the resource of a stage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilelink.errors import ScheduleError, did_you_mean
from tilelink.ir.program import Program
from tilelink.lowering.clauses.clause import FAR, Clause, Numbers, ratio
from tilelink.scheduling.schedule import CopyEngine, Fused, Resource, Sm
from tilelink.scheduling.words import SchedulePart, check_count, positive


def _read(rule: str, children: Sequence[Any]) -> Resource:
    if rule == "copy_engine":
        return CopyEngine()
    if rule == "sm":
        return Sm(programs=positive(children[0]) if children and children[0] is not None else None)
    place = children[1] if len(children) > 1 else None
    return Fused(stage=str(children[0]), place=str(place or "epilogue"))


def _valid(owner: str, value: Resource | None) -> None:
    if not isinstance(value, CopyEngine | Sm | Fused):
        raise ScheduleError(f"{value!r} runs no stage", hint="one of copy_engine, sm, sm(n), in STAGE epilogue")
    if isinstance(value, Sm):
        check_count("sm", owner, value.programs, "sm(n) has one program or more; `on sm` takes what other stages leave")


def _inner(value: Resource | None) -> Sequence[tuple[str, str]]:
    return [("stage", value.stage)] if isinstance(value, Fused) else []


def _check(program: Program, part: SchedulePart) -> None:
    stages = [s.name for s in program.stages]
    resource = part[RESOURCE]
    if isinstance(resource, Fused) and resource.stage not in stages:
        hint = did_you_mean(resource.stage, stages, f"stages: {', '.join(stages)}")
        raise ScheduleError(f"no stage {resource.stage!r} to run in", location=part.at("resource.stage"), hint=hint)


def _apart(one: Resource | None, other: Resource | None, _: Numbers, __: int) -> float:
    one, other = one or Sm(), other or Sm()
    if isinstance(one, Sm) and isinstance(other, Sm) and one.programs and other.programs:
        return min(ratio(one.programs, other.programs) / FAR, 1.0)
    if isinstance(one, Fused) and isinstance(other, Fused) and one.place == other.place:
        return 0.0 if one.stage == other.stage else 1.0
    return 0.0 if one == other else FAR


RESOURCE: Clause[Resource | None] = Clause(
    name="resource",
    default=None,
    rules={"copy_engine": '"on" "copy_engine"', "sm": '"on" "sm" ["(" INT ")"]', "fused": '"in" NAME [PLACE]'},
    syntax="on sm, on sm(n), on copy_engine, in STAGE",
    called="where {name} runs (on ... / in ...)",
    read=_read,
    show=str,
    valid=_valid,
    inner=_inner,
    check=_check,
    apart=_apart,
    written="`on sm`, `on sm(n)`, `on copy_engine`, `in STAGE prologue`, `in STAGE epilogue`",
    manual=(
        "on the SMs that other stages leave, one kernel after the other in the order of the stages; on at most n "
        "reserved SMs, one program on each, and on fewer if it has fewer tiles; by the copy engine, in regions as "
        "large as their channels; inside another stage's kernel, before or after its tiles. An epilogue whose indices "
        "have the ranges of that stage's takes its tiles and order, and each tile follows that of the stage at once"
    ),
)
