"""The operator library as test parameters."""

from tilelink import compiler
from tilelink.ir.program import Program
from tilelink.schedule.values import Schedule

SIZES = (40, 72, 48, 24)


def cases() -> list[tuple[Program, Schedule | None]]:
    """Every program with the built-in schedule and each of its own."""
    return [
        (program, schedule)
        for module in compiler.library()
        for program in module.programs
        for schedule in (None, *module.schedules_of(program))
    ]


def name(case: tuple[Program, Schedule | None]) -> str:
    program, schedule = case
    return f"{program.name}-{schedule.name if schedule else 'default'}"


def dims(program: Program) -> dict[str, int | float | bool]:
    """Small sizes that the usual tiles do not divide."""
    spare = [p.name for p in program.params if p.kind == "dim"]
    values: dict[str, int | float | bool] = {name: SIZES[k % len(SIZES)] for k, name in enumerate(spare)}
    return values | {p.name: {"f32": 0.5, "bool": True}.get(p.kind, 1) for p in program.params if p.kind != "dim"}
