"""The command line: `tilelink check|show|run|simulate|tune|hunt|calibrate FILE`, `list`, `diagnose` and `doctor`.

Each has a module. FILE is a `.tl` file or a name of the operator library.
"""

import gc
import re
import sys
from importlib import import_module
from types import ModuleType
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

_COMMANDS = {
    "list": "List the programs of the operator library, or of a file: what they are, their sizes and their schedules.",
    "check": "Prove programs safe with each of their schedules; exit 1 otherwise, with every mistake of the programs.",
    "show": "Print a program, its schedule, its plan, the generated source or the compiled PTX.",
    "run": "Run a program on random inputs, fresh for every launch, and compare all outputs with the reference.",
    "simulate": "Predict the time of a launch on a machine, its lower bound, and a breakdown of the time.",
    "tune": "Search the schedules of a program and of equivalent programs, and show the best.",
    "hunt": "Search for launches that are slower than they should be, and say when each is and why.",
    "calibrate": "Measure this machine's GPUs, and write a machine that simulate and tune take.",
    "diagnose": "Name what holds up a launch that hangs, from its dumps, or makes launches slow, from their traces.",
    "doctor": "Check which parts of this machine can be used, and give advice on the rest.",
}
"""Name of a command, of its module, and of the function there -> the first line of that function's docstring.

A list of the commands has these lines, so that it need not import what the commands need.
"""


_SIZE = re.compile(r"[A-Za-z_]\w*=")


class _Command(TyperCommand):
    """A command whose `--set` takes all of `M=1 N=2` that stand after it."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        given: list[str] = []
        for number, arg in enumerate(args):
            if number > 1 and given[-2] == "--set" and _SIZE.match(arg) and _SIZE.match(given[-1]):
                given.append("--set")
            given.append(arg)
        return super().parse_args(ctx, given)


class _Commands(TyperGroup):
    """The commands, each imported when it is called: the modules of all take longer than a check of a program."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands = {name: TyperCommand(name, help=text) for name, text in _COMMANDS.items()}

    def list_commands(self, ctx: Any) -> list[str]:
        return [*_COMMANDS]

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, _, rest = super().resolve_command(ctx, args)
        assert name is not None  # it raises UsageError for a name that is no command's
        alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        alone.command(name, cls=_Command)(getattr(_imported(f"{__name__}.{name}"), name))
        return name, get_command(alone), rest


def _imported(module: str) -> ModuleType:
    """Import a command's module. What that makes stays: the garbage collector need not look at it, then or later."""
    if module in sys.modules:
        return sys.modules[module]
    gc.disable()
    try:
        return import_module(module)
    finally:
        gc.freeze()
        gc.enable()


app = typer.Typer(
    cls=_Commands,
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Kernels that compute and communicate at the same time: check, show and run TileLink programs.",
)


@app.callback()
def commands() -> None:
    """Kernels that compute and communicate at the same time: check, show and run TileLink programs."""
