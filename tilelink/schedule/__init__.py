"""Schedules, the plan of a scheduled program, and its proof.

The package can be called: `tilelink.schedule(program)` is an empty schedule to build on.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tilelink.ir.program import Program
    from tilelink.schedule.values import Schedule


class _Package(ModuleType):
    def __call__(self, program: "Program | str", name: str = "custom") -> "Schedule":
        """An empty schedule for a program, built on by a chain: `schedule(p).tile("gemm", i=128).buffers("xs", 2)`.

        Its methods refuse names that the program lacks; of a program given by its name, that is left to compiling.
        """
        from tilelink.schedule.values import Schedule

        if isinstance(program, str):
            return Schedule(name=name, program=program)
        return Schedule(name=name, program=program.name, source=program)


# The name is that of a package and of a public function: imports need the one, users the other.
sys.modules[__name__].__class__ = _Package

import_module("tilelink.schedule.clauses")  # registers the words that schedules are made of
