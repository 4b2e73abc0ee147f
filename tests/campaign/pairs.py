"""Every two clauses together, and some threes, on the library: the cases of `python -m tests.campaign --pairs`."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from typing import Any

from tests.campaign.case import Case
from tests.campaign.schedules import CLAUSES, FEW, fused_with, tiles_of
from tests.compiler.library import groups, unlike
from tilelink import compiler
from tilelink.errors import ParseError, ScheduleError
from tilelink.ir.printer import print_program
from tilelink.ir.program import Program
from tilelink.ir.scalar import Param, Ranks
from tilelink.reference.trial import random_tables

STAGE_CLAUSES = (
    "on sm", "on sm(n)", "copy engine", "prologue", "epilogue", "tile", "order", "push", "pull", "num_warps",
    "num_stages", "flatten", "split_k_tail", "backfill", "defer_notify", "tma_copy",
    "dynamic",
)  # fmt: skip
TENSOR_CLAUSES = ("channel", "slots", "low_latency", "buffers 1", "buffers 2", "buffers 3")
WHOLE = ("reuse_wait off",)
GROUPS = {"on sm": "on", "on sm(n)": "on", "copy engine": "on", "prologue": "on", "epilogue": "on", "push": "to",
          "pull": "to", "buffers 1": "buffers", "buffers 2": "buffers", "buffers 3": "buffers"}  # fmt: skip
"""Clauses of one group replace each other."""


@dataclass(frozen=True, kw_only=True)
class One:
    """A clause of a stage, of a tensor, or of the whole program (then `name` is empty)."""

    name: str
    kind: str

    @property
    def group(self) -> tuple[str, str]:
        return self.name, GROUPS.get(self.kind, self.kind)


def single(program: Program) -> list[One]:
    """Every clause of a program."""
    tensors = [t for t in program.tensors if t.space != "table"]
    found = [One(name=stage.name, kind=kind) for stage in program.stages for kind in STAGE_CLAUSES]
    of_all = ("channel", "slots")
    found += [One(name=t.name, kind=kind) for t in tensors for kind in TENSOR_CLAUSES if t.symmetric or kind in of_all]
    return found + [One(name="", kind=kind) for kind in WHOLE]


@cache
def pairs() -> tuple[tuple[Program, tuple[One, One]], ...]:
    """All pairs of clauses that do not replace each other, of programs that move or signal something of their own."""
    programs = {program.name: program for program, _ in unlike()}
    found = [
        (program, (a, b))
        for program in programs.values()
        for a, b in combinations(single(program), 2)
        if a.group != b.group
    ]
    random.Random(0).shuffle(found)
    return tuple(found)


def pair_case(number: int) -> Case:
    """The case of a number: always the same one. After the last pair the first one comes again, with other numbers."""
    rng = random.Random(number)
    program, both = pairs()[number % len(pairs())]
    ranks = rng.choice((1, 2, 2, 3, 4)) if not groups(program, 1) else rng.choice((2, 4))
    own = [k for k, p in enumerate(program.params) if p.kind == "dim"]
    # a launch of a program with many sizes has their product of tasks
    sizes = rng.sample((8, 16, 24, 32, 17, 33) if len(own) <= 5 else (4, 5, 6, 7, 8, 9), 5)
    dims: dict[str, Any] = {program.params[k].name: sizes[k % 5] for k in own}
    dims |= {p.name: {"f32": 0.5, "bool": True}[p.kind] for p in program.params if p.kind in ("f32", "bool")}
    dims |= groups(program, ranks)
    tables = {k: v.tolist() for k, v in random_tables(program, ranks=ranks, dims=dims, seed=number).items()}
    said = [*both, *rng.sample(single(program), rng.choice((0, 0, 1)))]
    about: dict[str, Any] = {"ranks": ranks, "dims": dims, "dtype": rng.choice(("f32", "bf16"))}
    text = print_program(program) + _fitting(rng, program, said, about)
    kinds = sorted(one.kind for one in said)
    return Case(
        text=text, **about, tables=tables, seed=number, sms=rng.choice((2, 3, 4, 6)), programs=rng.choice((1, 2, 3)),
        features=tuple(sorted({program.name, f"{ranks} ranks", *(f"clause: {k}" for k in kinds), " & ".join(kinds)})),
    )  # fmt: skip


def _fitting(rng: random.Random, program: Program, said: Sequence[One], about: Mapping[str, Any]) -> str:
    """A schedule with these clauses, the first of a few whose numbers fit, or else the last of them."""
    text = ""
    for _ in range(5):
        entries: dict[str, dict[str, str]] = {}
        for stage in program.stages:
            if rng.random() < 0.8:
                entries[stage.name] = {"tile": tiles_of(rng, program, stage, FEW)}
        for one in said:
            entries.setdefault(one.name, {})
            entries[one.name][one.group[1]] = _text(rng, program, one, entries)
        text = _schedule(program, entries)
        try:
            compiler.bound(program, compiler.parse(print_program(program) + text).schedules[0], **about)
            break
        except (ScheduleError, ParseError):  # a TileSizeError is a ScheduleError
            continue
        except Exception:  # the judge sees it too
            break
    return text


def _text(rng: random.Random, program: Program, one: One, entries: Mapping[str, dict[str, str]]) -> str:
    if one.kind in ("buffers 1", "buffers 2", "buffers 3", "low_latency", *WHOLE):
        return one.kind
    if one.kind == "channel":
        dims = [n.name.lower() for n in program.tensor(one.name).shape if isinstance(n, Param)]
        return f"channel({rng.choice(dims or ['i'])}={rng.choice((1, 2, 4, 8, 16, 64))})"
    if one.kind == "slots":
        shape = program.tensor(one.name).shape
        dims = [n.name.lower() for n in shape if isinstance(n, Param)]
        dims += ["ranks" for n in shape if isinstance(n, Ranks)]
        return f"slots({rng.choice(dims or ['i'])}={rng.choice((1, 2, 3))})"
    stage = program.stage(one.name)
    if one.kind in ("prologue", "epilogue"):
        return fused_with(rng, program, stage, one.kind)
    if one.kind == "tma_copy":
        entries[one.name].setdefault("on", "on sm(1)")
    if one.kind == "backfill" and program.stages.index(stage):
        entries[one.name].setdefault("on", f"in {program.stages[program.stages.index(stage) - 1].name} epilogue")
    return CLAUSES[one.kind](rng, program, stage)


def _schedule(program: Program, entries: Mapping[str, Mapping[str, str]]) -> str:
    lines = [f"    {name} {', '.join(parts.values())}" for name, parts in entries.items() if name and parts]
    lines += [f"    {text}" for text in entries.get("", {}).values()]
    return f"\nschedule pair for {program.name}:\n" + "\n".join(lines) + "\n"
