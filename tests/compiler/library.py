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


def groups(program: Program, ranks: int) -> dict[str, int]:
    """The integer parameters of the library say how many ranks a group has: the least factor of `ranks`."""
    least = next((n for n in range(2, ranks + 1) if ranks % n == 0), 1)
    return {p.name: least for p in program.params if p.kind == "i32"}


def dims(program: Program, ranks: int) -> dict[str, int | float | bool]:
    """Small sizes that the usual tiles do not divide."""
    spare = [p.name for p in program.params if p.kind == "dim"]
    values: dict[str, int | float | bool] = {name: SIZES[k % len(SIZES)] for k, name in enumerate(spare)}
    values |= {p.name: {"f32": 0.5, "bool": True}[p.kind] for p in program.params if p.kind in ("f32", "bool")}
    return values | groups(program, ranks)
