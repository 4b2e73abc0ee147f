"""The operator library's modules by the names of programs, whatever files the current folder has."""

from __future__ import annotations

from tilelink import compiler
from tilelink.compiler import Module
from tilelink.errors import UnknownNameError


def library_module(name: str) -> Module:
    """The module of the library that has a name, else the one with a program of that name.

    Raises UnknownNameError for a name that the library has not. `compiler.load` would take a file of the folder first.
    """
    path = compiler.PROGRAMS / f"{name}.tl"
    if path in set(compiler.PROGRAMS.glob("*.tl")):
        return compiler.load(path)  # most names are files': no need to read all of them
    known = compiler.library()
    for module in known:
        if any(program.name == name for program in module.programs):
            return module
    names = ", ".join(sorted({program.name for module in known for program in module.programs}))
    raise UnknownNameError(f"no program {name!r} in the library", hint=f"its programs are {names}")
