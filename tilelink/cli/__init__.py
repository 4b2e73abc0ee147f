"""The command line: `tilelink check|show|run|simulate|tune|calibrate FILE`, `list` and `doctor`, a module for each.

FILE is a `.tl` file or a name of the operator library.
"""

import re
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

_COMMANDS = ("list", "check", "show", "run", "simulate", "tune", "calibrate", "doctor")
"""Names of the commands, of their modules, and of the functions there."""


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
    """The commands, each imported when it is looked up: the modules of all take longer than a check of a program."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands = dict.fromkeys(_COMMANDS)  # what a wrong name is compared with

    def list_commands(self, ctx: Any) -> list[str]:
        return [*_COMMANDS]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in _COMMANDS:
            return None
        alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        alone.command(cmd_name, cls=_Command)(getattr(import_module(f"{__name__}.{cmd_name}"), cmd_name))
        return get_command(alone)


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
