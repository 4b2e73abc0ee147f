"""Cases by their number: random programs, mutants of the library, and schedules of both."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from tests.campaign.case import Case
from tests.campaign.counted import KINDS, LAUNCH
from tests.campaign.makers import MAKERS, RARE
from tests.campaign.mistakes import spoiled
from tests.campaign.movers import MOVERS
from tests.campaign.schedules import drawn
from tests.campaign.writer import Writer
from tests.compiler.library import by_name, groups
from tilelink import compiler
from tilelink.errors import ParseError, ScheduleError
from tilelink.ir.printer import print_program
from tilelink.ir.program import Program
from tilelink.reference.trial import random_tables
from tilelink.scheduling.schedule import Schedule

FROM_LIBRARY = 0.25
"""The share of cases that begin as a program of the library."""
MISTAKEN = 0.35
"""The share of programs that get one to three mistakes."""
NAMES = ("encoding", "coding", "None_", "lambda_")
"""Dimensions may have any name."""


def case(seed: int) -> Case:
    """The case of a number: always the same one."""
    rng = random.Random(seed)
    return _of_library(rng, seed) if rng.random() < FROM_LIBRARY else _of_nothing(rng, seed)


def _ranks(rng: random.Random) -> int:
    return rng.choice((1, 1, 2, 2, 2, 2, 2, 2, 3, 3, 4))


def _machine(rng: random.Random) -> dict[str, Any]:
    return {"sms": rng.choice((2, 3, 4, 4, 6, 8)), "programs": rng.choice((1, 2, 2, 3))}


def _of_nothing(rng: random.Random, seed: int) -> Case:
    w = Writer(rng=rng, ranks=_ranks(rng))
    for _ in range(rng.choice((0, 1, 1, 2, 2, 3))):
        _add(w, rng.choice(MOVERS))
    for _ in range(rng.choice((1, 1, 2, 2))):
        _add(w, rng.choice(MAKERS) if rng.random() > 0.02 else rng.choice(RARE))
    if rng.random() < 0.3:
        rng.shuffle(w.stages)
        w.features.add("stages in another order")
    text, features = w.text(), set(w.features)
    if rng.random() < 0.02 and (dims := [n for n in w.dims if n in ("M", "N", "K")]):
        old, new = rng.choice(dims), rng.choice(NAMES)
        text = "".join(part.replace(old, new) if part == old else part for part in _words(text))
        w.dims[new] = w.dims.pop(old)
        features.add("a dimension with an odd name")
    if rng.random() < MISTAKEN:
        text, kinds = spoiled(rng, text, rng.choice((1, 1, 2, 3)))
        features |= {f"mistake: {kind}" for kind in kinds} | ({"with a mistake"} if kinds else set())
    dtype = rng.choice(("f32", "f32", "f32", "f16", "bf16"))
    routing = rng.choice(KINDS) if LAUNCH in features else "uniform"
    about = {"ranks": w.ranks, "dims": w.dims, "dtype": dtype}
    text, kinds = _scheduled(rng, text, about, rng.choice((0, 0, 1, 1, 2, 2, 3, 5, 8)), w.tiles)
    features |= {f"clause: {kind}" for kind in kinds} | {dtype, f"{w.ranks} ranks"}
    return Case(text=text, dims=w.dims, ranks=w.ranks, dtype=dtype, tables=w.tables, seed=seed, **_machine(rng),
                routing=routing, features=tuple(sorted(features)))  # fmt: skip


def _words(text: str) -> list[str]:
    return re.split(r"(\w+)", text)


def _add(w: Writer, stage: Any) -> None:
    w.features.add(stage.__name__.replace("_", " "))
    stage(w)


def _scheduled(
    rng: random.Random, text: str, case: Mapping[str, Any], clauses: int, tiles: Mapping[str, str]
) -> tuple[str, list[str]]:
    """The text with a schedule, one of a few that fits if there is one, and its clauses."""
    try:
        program = compiler.parse(text).program()
    except Exception:  # whatever is wrong with it, the judge sees it too
        return text, []
    for left in reversed(range(4)):
        schedule, kinds = drawn(rng, program, clauses, tiles)
        try:
            found = compiler.parse(text + schedule).schedules
            compiler.bound(program, found[0] if found else None, **case)
        except (ScheduleError, ParseError):
            if left:
                continue
        except Exception:  # the judge sees it too
            pass
        return text + schedule, kinds
    raise AssertionError


@cache
def _library() -> dict[str, tuple[Program, tuple[Schedule, ...]]]:
    return {p.name: (p, m.schedules_of(p)) for m in compiler.library() for p in m.programs}


def _of_library(rng: random.Random, seed: int) -> Case:
    program, schedules = _library()[by_name(_library(), seed)]
    ranks = rng.choice((2, 2, 2, 3, 4)) if not groups(program, 1) else rng.choice((2, 4))
    sizes = rng.sample((8, 17, 24, 33, 40), 5)
    dims: dict[str, Any] = {
        p.name: sizes[k % 5] if p.example is None else rng.choice((int(p.example), max(1, int(p.example) // 2)))
        for k, p in enumerate(program.params)
        if p.kind == "dim"
    }
    dims |= {p.name: {"f32": 0.5, "bool": True}[p.kind] for p in program.params if p.kind in ("f32", "bool")}
    dims |= groups(program, ranks)
    tables = {k: v.tolist() for k, v in random_tables(program, ranks=ranks, dims=dims, seed=seed).items()}
    dtype = rng.choice(("f32", "f32", "bf16"))
    text, features = print_program(program), {"library", program.name, f"{ranks} ranks"}
    if rng.random() < 0.6:
        text, kinds = spoiled(rng, text, rng.choice((1, 1, 2)))
        features |= {f"mistake: {kind}" for kind in kinds} | ({"with a mistake"} if kinds else set())
    if rng.random() < 0.3 and schedules:
        schedule = rng.choice(schedules)
        text += f"\n{schedule}\n"
        features.add("schedule of the library")
    else:
        about, clauses = {"ranks": ranks, "dims": dims, "dtype": dtype}, rng.choice((1, 1, 2, 2, 3))
        text, kinds = _scheduled(rng, text, about, clauses, {})
        features |= {f"clause: {kind}" for kind in kinds}
    return Case(text=text, dims=dims, ranks=ranks, dtype=dtype, tables=tables, seed=seed, **_machine(rng),
                features=tuple(sorted(features | {dtype})))  # fmt: skip
