"""TileLink: kernels that overlap computation and communication, declared in tiles and proved safe before they run.

Importing the package imports neither torch nor triton: each name is loaded at its first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tilelink.scheduling import built_in

if TYPE_CHECKING:
    from tilelink import ops, parallel, reference, routing
    from tilelink.compiler import Kernel, Module, check, compile, load, parse, plan, source
    from tilelink.compiler.simulation import simulate
    from tilelink.errors import TileLinkError
    from tilelink.frontend.python import program
    from tilelink.frontend.variants import variant
    from tilelink.ir.link import link
    from tilelink.ir.program import Program
    from tilelink.language import comm, compute, grid, inout, input, kept, local, output, symmetric, table, tiles
    from tilelink.ops.own import Op, op
    from tilelink.runtime.cuda.timing import Timing, bench
    from tilelink.scheduling.schedule import Schedule, schedule


def _clauses() -> object:
    """Return the built-in clauses of the schedule language, which their package registers."""
    from tilelink.lowering.clauses import CLAUSES

    return CLAUSES


built_in.load_by(_clauses)  # when a schedule is first written or read

_HOMES = {
    "tilelink.compiler": (
        "Kernel", "Module", "check", "compile", "load", "parse", "plan", "source",
    ),
    "tilelink.errors": ("TileLinkError",),
    "tilelink.frontend.python": ("program",),
    "tilelink.frontend.variants": ("variant",),
    "tilelink.ir.link": ("link",),
    "tilelink.ir.program": ("Program",),
    "tilelink.language": (
        "comm", "compute", "grid", "inout", "input", "kept", "local", "output", "symmetric", "table", "tiles",
    ),
    "tilelink.ops.own": ("Op", "op"),
    "tilelink.runtime.cuda.timing": ("Timing", "bench"),
    "tilelink.scheduling.schedule": ("Schedule", "schedule"),
    "tilelink.compiler.simulation": ("simulate",),
}  # fmt: skip
_PACKAGES = frozenset({"ops", "parallel", "reference", "routing"})
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "Kernel", "Module", "Op", "Program", "Schedule", "TileLinkError", "Timing", "bench", "check", "comm", "compile",
    "compute", "grid", "inout", "input", "kept", "link", "load", "local", "op", "ops", "output", "parallel", "parse",
    "plan", "program", "reference", "routing", "schedule", "simulate", "source", "symmetric", "table", "tiles",
    "variant",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return import_module(f"{__name__}.{name}")
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME_OF, *_PACKAGES})
