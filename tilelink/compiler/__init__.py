"""The compiler pipeline, top to bottom, and its back ends: CPU ranks, GPUs, the simulator."""

from tilelink.compiler.modules import PROGRAMS, Module, library, library_module, load, parse, schedule_of
from tilelink.compiler.pipeline import (
    Dims,
    Kernel,
    Tables,
    assembly,
    bound,
    check,
    checked_tables,
    compile,
    plan,
    reference,
    source,
    source_of,
)

__all__ = [
    "PROGRAMS", "Dims", "Kernel", "Module", "Tables", "assembly", "bound", "check", "checked_tables", "compile",
    "library", "library_module", "load", "parse", "plan", "reference", "schedule_of", "source",
    "source_of",
]  # fmt: skip
