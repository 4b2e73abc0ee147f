"""The command line: `tilelink check|show|run|simulate|tune|calibrate FILE`, `list` and `doctor`, a module for each.

FILE is a `.tl` file or a name of the operator library.
"""

from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

_COMMANDS = ("list", "check", "show", "run", "simulate", "tune", "calibrate", "doctor")
"""Names of the commands, of their modules, and of the functions there."""


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
        alone.command(cmd_name)(getattr(import_module(f"{__name__}.{cmd_name}"), cmd_name))
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
