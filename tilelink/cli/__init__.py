"""The command line: `tilelink check|show|run|simulate|tune|calibrate FILE` and `tilelink doctor`, a module for each.

FILE is a `.tl` file or a name of the operator library.
"""

import typer

from tilelink.cli import calibrate, check, doctor, run, show, simulate, tune

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Kernels that compute and communicate at the same time: check, show and run TileLink programs.",
)
app.command("check")(check.check)
app.command("show")(show.show)
app.command("run")(run.run)
app.command("simulate")(simulate.simulate)
app.command("tune")(tune.tune)
app.command("calibrate")(calibrate.calibrate)
app.command("doctor")(doctor.doctor)
