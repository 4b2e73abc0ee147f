"""What a hunt is in, from the words of a command: operators by their names, and programs of files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase
from typing import Any, cast

from tilelink import compiler
from tilelink.compiler.modules import DEFAULT
from tilelink.errors import BindingError, UnknownNameError, no_schedule
from tilelink.hunt.functions import OPS, Functions
from tilelink.hunt.operators import Choices
from tilelink.hunt.programs import Schedules, Vary
from tilelink.ir.program import Program
from tilelink.ops.drawn import DRAWN
from tilelink.ops.operators import OPERATORS
from tilelink.scheduling.schedule import Schedule
from tilelink.simulator.machine import load_machine


@dataclass(frozen=True, kw_only=True)
class Target:
    """Operators and files to hunt in. programs: of files alone (none: all). schedules: patterns of their names.

    sets: sizes, for whatever has them: a number, or for operators several.
    """

    names: tuple[str, ...]
    programs: tuple[str, ...] = ()
    schedules: tuple[str, ...] = ()
    sets: tuple[str, ...] = ()
    machine: str = "8xH200"
    vary: Vary = field(default_factory=Vary)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of_json(cls, values: Mapping[str, Any]) -> Target:
        """Return a target that was written as JSON."""

        def tuples(given: Mapping[str, Any]) -> dict[str, Any]:
            return {name: tuple(cast(list[Any], v)) if isinstance(v, list) else v for name, v in given.items()}

        whole: dict[str, Any] = {**tuples(values), "vary": Vary(**tuples(values["vary"]))}
        return cls(**whole)


Base = Callable[[Program, list[str]], Mapping[str, int | float | bool]]
"""Gives the sizes of a program to begin with, from those that are given for it and the number of ranks."""


def subjects_of(target: Target, base: Base, tables: Any = None) -> list[Choices | Functions | Schedules]:
    """Return the subjects of a target. Raises UnknownNameError for names that there are not."""
    machine, found = load_machine(target.machine), list[Choices | Functions | Schedules]()
    for given in target.names:
        name, chosen = given.removeprefix(OPS), target.programs or target.schedules
        if given.startswith(OPS) and name in DRAWN:
            own = DRAWN[name].sizes
            sizes = _sizes(target.sets, lambda one, own=own: one in own or len(target.names) == 1)
            found.append(Functions(function=name, vary=target.vary, sizes=sizes))
            continue
        if given.startswith(OPS) and name not in OPERATORS:
            hint = f"there are {', '.join((*OPERATORS, *DRAWN))}"
            raise UnknownNameError(f"no operator {given!r}", hint=hint)
        if name in OPERATORS and (given != name or not (chosen and len(target.names) == 1)):
            found.append(Choices(name=name, machine=machine, vary=target.vary, sizes=_sizes(target.sets, _is_size)))
            continue
        module = compiler.load(name)
        programs = [module.program(one) for one in target.programs] or module.programs
        able = [
            Schedules(
                file=name, program=one, schedules=schedules, machine=machine, vary=target.vary, tables=tables,
                base=base(one, list(_own(target.sets, one))),
            )
            for one in programs
            if (schedules := _named(module, one, target.schedules))
        ]  # fmt: skip
        if not able:
            known = {one.name: [*(s.name for s in module.schedules_of(one)), DEFAULT] for one in programs}
            raise no_schedule(" or ".join(target.schedules), known)
        found += able
    return found


def _named(module: compiler.Module, program: Program, patterns: Sequence[str]) -> tuple[Schedule | None, ...]:
    """Return the schedules of a program whose names fit; without patterns all, or the built-in one without any."""
    own = module.schedules_of(program)
    if patterns:
        default = (None,) if any(fnmatchcase("default", one) for one in patterns) else ()
        return (*default, *(one for one in own if any(fnmatchcase(one.name, pattern) for pattern in patterns)))
    return tuple(own) or (None,)


def _is_size(name: str) -> bool:
    return name.isupper() and len(name) == 1


def _sizes(sets: Sequence[str], has: Callable[[str], bool]) -> dict[str, tuple[int, ...]]:
    """Return the sizes of an operator's calls; several of one are separated by commas. Raises BindingError.

    has: whether a size is one of its.
    """
    found: dict[str, tuple[int, ...]] = {}
    for text in sets:
        name, _, values = text.partition("=")
        parts = [part.strip() for part in values.split(",")]
        if has(name.strip()):
            if not all(part.isdecimal() and int(part) for part in parts):
                raise BindingError(f"--set {text} gives no sizes", hint="write M=NUMBER, or M=1,64,256 for several")
            found[name.strip()] = tuple(map(int, parts))
    return found


def _own(sets: Sequence[str], program: Program) -> list[str]:
    names = {param.name for param in program.params}
    return [text for text in sets if text.partition("=")[0].strip() in names]
