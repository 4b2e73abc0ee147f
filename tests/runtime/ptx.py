# pyright: basic
"""What tests look for in the PTX of a compiled kernel."""

import re
from typing import Any

EVENTS = {
    "load": r"ld\.global\.(?!b64)|cp\.async\.c[ag]|cp\.async\.bulk\.tensor\.\dd\.shared::\w+\.global",
    "store": r"st\.global|cp\.async\.bulk\.tensor\.\dd\.global",
    "poll": r"ld\.acquire\.sys\.global\.b32",
    "less": r"setp\.lt\.s32\s+%late, %missing, 0",
    "written": r"cp\.async\.bulk\.wait_group\s+0",
    "proxy": r"fence\.proxy\.async\.global;",
    "barrier": r"bar\.sync",
    "thread 0": r"setp\.eq\.u32 %first, %thread, 0",
    "release": r"@%first red\.release\.(sys|gpu)\.global\.add",
    "clock": r"%globaltimer",
    "trip": r"atom\.relaxed\.sys\.global\.cas\.b64",
    "vector store": r"st\.global\.v4\.b32",
    "vector load": r"ld\.global\.v4\.b32",
}


def text(kernel: Any) -> str:
    """Its PTX without blank lines and line numbers, which newer Tritons put between the lines of inline assembly."""
    lines = kernel.asm["ptx"].splitlines()
    return "\n".join(line for line in lines if line.strip() and not re.match(r"\s*\.loc\b", line))


def events(ptx: str, *kinds: str) -> list[str]:
    """The kinds of interesting lines, in the order of the text; all kinds if none is named."""
    wanted = {kind: EVENTS[kind] for kind in kinds or EVENTS}
    return [kind for line in ptx.splitlines() for kind, pattern in wanted.items() if re.search(pattern, line)]


def after_last(sequence: list[str], kind: str) -> list[str]:
    return sequence[len(sequence) - sequence[::-1].index(kind) :]


def tokens(ptx: str) -> set[str]:
    """The registers that waits return."""
    return set(re.findall(r"DONE:\nbar\.sync 0;\n(?:fence[^\n]*\n)?mov\.u32 (%r\d+), 0;", ptx))


def depending(ptx: str, sources: set[str]) -> set[str]:
    """All registers whose values are computed from `sources`."""
    found, before = set(sources), -1
    steps = [re.findall(r"%[a-z]+\d+", line) for line in ptx.splitlines() if "[" not in line]
    while len(found) > before:
        before = len(found)
        found |= {step[0] for step in steps if len(step) > 1 and found & set(step[1:])}
    return found


def guarded_loads(ptx: str) -> list[bool]:
    """For each load of a tile, whether its address or coordinates depend on a wait.

    A load of one word a thread is none: tables of the runtime are read so.
    """
    tainted = depending(ptx, tokens(ptx))
    pattern, word = re.compile(EVENTS["load"]), re.compile(r"ld\.global\.b32 \{ %r\d+ \}")
    lines = [line for line in ptx.splitlines() if pattern.search(line) and not word.search(line)]
    return [bool(tainted & set(re.findall(r"%[a-z]+\d+", line))) for line in lines]


def depths(kernel: Any, pattern: str) -> list[int]:
    """In how many loops each operation stands that the pattern finds, in Triton's last form before LLVM."""
    loops: list[int] = []
    found: list[int] = []
    for line in filter(str.strip, kernel.asm["ttgir"].splitlines()):
        indent = len(line) - len(line.lstrip())
        while loops and loops[-1] >= indent:
            loops.pop()
        if re.search(pattern, line):
            found.append(len(loops))
        if "scf.for" in line:
            loops.append(indent)
    return found
