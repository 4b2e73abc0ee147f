"""The operator library as test parameters."""

import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Set
from dataclasses import fields, is_dataclass
from functools import cache
from hashlib import blake2b
from itertools import cycle
from math import prod
from typing import TypeVar
from zlib import crc32

from tilelink import compiler
from tilelink.ir.products import products
from tilelink.ir.program import For, If, Notify, Program, Transfer, Wait
from tilelink.ir.scalar import Binary, Int, Param, walk
from tilelink.ir.typing import infer
from tilelink.ir.visitor import stage_regions, statements
from tilelink.lowering.clauses.roles import ROLES
from tilelink.scheduling.schedule import Schedule

Case = tuple[Program, Schedule | None]
Choice = TypeVar("Choice")

SIZES = (24, 40, 36, 20)


def cases() -> list[Case]:
    """Every program with the built-in schedule and each of its own.

    The variable TILELINK_TEST_PROGRAMS names some of them, with spaces between.
    """
    wanted = os.environ.get("TILELINK_TEST_PROGRAMS", "").split()
    return [
        (program, schedule)
        for module in compiler.library()
        for program in module.programs
        if not wanted or program.name in wanted
        for schedule in (None, *module.schedules_of(program))
    ]


def unlike() -> list[Case]:
    """The cases of programs that move or signal something else than all programs before them: not of epilogues."""
    first: dict[tuple[object, ...], str] = {}
    return [case for case in cases() if first.setdefault(_moves(case[0]), case[0].name) == case[0].name]


def alike() -> list[Case]:
    """Each of the other programs, whose arithmetic alone is new, with one of its schedules in turn."""
    seen = {program.name for program, _ in unlike()}
    return in_turn(case for case in cases() if case[0].name not in seen)


def in_turn(cases: Iterable[Case]) -> list[Case]:
    """Each program with one of its schedules, which its name chooses: whatever else the library has."""
    own: dict[str, list[Case]] = {}
    for case in cases:
        own.setdefault(case[0].name, []).append(case)
    return [found[crc32(name.encode()) % len(found)] for name, found in own.items()]


def is_own(case: Case) -> bool:
    """True for the cases that in_turn takes of the library: one of each program."""
    return (case[0].name, str(case[1])) in _own()


@cache
def _own() -> frozenset[tuple[str, str]]:
    return frozenset((program.name, str(schedule)) for program, schedule in in_turn(cases()))


def by_name(names: Collection[str], number: int) -> str:
    """One of some names for a number. A further name changes only what those numbers mean that are for it from then on.

    Each name has a hash with the number; the name with the largest one is taken.
    """
    return max(names, key=lambda one: blake2b(f"{number} {one}".encode(), digest_size=8).digest())


def covering(cases: list[Case]) -> list[Case]:
    """One case of each program, as in_turn, and others until whatever a schedule says of one stage is said by one."""
    chosen = in_turn(cases)
    seen = {line for case in chosen for line in said(case)}
    for case in cases:
        if not said(case) <= seen:
            chosen.append(case)
            seen |= said(case)
    return chosen


def featured(cases: Iterable[Case]) -> list[Case]:
    """Few cases that have between them whatever a program or a schedule of any of them says, short programs mostly.

    What the others say is a combination of that.
    """
    return _covered(cases, lambda case: features(case[0]) | said(case))


def few(cases: Iterable[Case]) -> list[Case]:
    """As `featured`, whatever schedules say: each statement, operator, mode and kind of memory is that of one case."""
    return _covered(cases, lambda case: features(case[0]))


def paired(cases: Iterable[Case]) -> list[Case]:
    """As `featured`, with each two clauses that some schedule gives one stage or tensor, whatever else it gives it."""
    return _covered(cases, lambda case: features(case[0]) | _pairs(case))


def _pairs(case: Case) -> set[str]:
    clauses = (sorted({one.strip() for one in line.split(",")}) for line in said(case))
    return {f"{one}, {two}" for line in clauses for one in line for two in line}


def is_featured(case: Case) -> bool:
    """True for the cases that `featured` takes of the library."""
    return name(case) in _names()[0]


def is_one_of_few(case: Case) -> bool:
    """True for the cases that `few` takes of the library."""
    return name(case) in _names()[1]


@cache
def _names() -> tuple[frozenset[str | None], frozenset[str | None]]:
    every = cases()
    return frozenset(map(name, featured(every))), frozenset(map(name, few(every)))


def _covered(cases: Iterable[Case], of: Callable[[Case], Set[str]]) -> list[Case]:
    """Each time the case that has most of what is missing, for what it takes; without those that later ones replace."""
    every = sorted(cases, key=lambda one: (_price(one), one[0].name, one[1].name if one[1] else ""))
    own, prices = [of(case) for case in every], [_price(case) for case in every]
    missing, left = set[str]().union(*own), set(range(len(every)))
    chosen: list[int] = []
    while missing:
        best = max(sorted(left), key=lambda k: len(own[k] & missing) / prices[k])
        chosen.append(best)
        left.remove(best)
        missing -= own[best]
    for one in sorted(chosen, reverse=True):
        others = [k for k in chosen if k != one]
        if own[one] <= set[str]().union(*(own[k] for k in others)):
            chosen = others
    return [every[k] for k in sorted(chosen)]


def _price(case: Case) -> int:
    """Long programs take long, and compilers take some times as long for kernels whose warps have roles."""
    return _length(case[0]) * (4 if has_roles(case) else 1)


@cache
def _length(program: Program) -> int:
    return len(str(program))


@cache
def features(program: Program) -> frozenset[str]:
    """The kinds of nodes that a program consists of, with what of them is a word or a truth value, but for names."""
    return frozenset(_features(program))


def _features(node: object) -> Iterator[str]:
    if isinstance(node, tuple):
        for one in node:
            yield from _features(one)
    elif is_dataclass(node):
        yield type(node).__name__
        for one in fields(node):
            value = getattr(node, one.name)
            if not one.compare or value in (None, ()):
                continue
            yield f"{type(node).__name__}.{one.name}"
            if isinstance(value, bool) or one.name in ("op", "mode", "kind", "space", "dtype", "properties"):
                yield f"{type(node).__name__}.{one.name} {value}"
            else:
                yield from _features(value)


def said(case: Case) -> set[str]:
    """The clauses of each stage and tensor in the schedule of a case, without names, numbers and orders of tiles."""
    lines = str(case[1]).splitlines()[1:]
    text = [line.strip().partition(" ")[2] for line in lines]
    return {re.sub(r"\d+|\([^()]*(\([^()]*\)[^()]*)*\)|(?<=^in )\w+", "", line) for line in text}


def spread(cases: Iterable[Case], *choices: Choice) -> list[tuple[Case, Choice]]:
    """Each case with one number of ranks (or another choice), taken in turn; programs of groups of ranks with each."""
    turn = cycle(choices)
    return [(case, one) for case in cases for one in (choices if groups(case[0], 1) else (next(turn),))]


def _moves(program: Program) -> tuple[object, ...]:
    """What a program says of transfers and signals, whatever it computes between them."""
    symmetric = [(t.name, t.space, t.shape) for t in program.tensors if t.symmetric]
    said: list[object] = []
    for stage in program.stages:
        said += [stage.kind, stage.name, stage.indices]
        for statement in statements(stage.body):
            match statement:
                case Transfer(mode=mode, target=target):
                    said.append((mode, target))
                case If(condition=condition):
                    said.append(condition)
                case Notify() | Wait():
                    said.append(statement)
                case _:
                    pass
    return (*symmetric, *said)


def name(case: object) -> str | None:
    """A case as part of a test's name; pytest knows how to write the rest."""
    if not isinstance(case, tuple):
        return None
    program, schedule = case
    return f"{program.name}-{schedule.name if schedule else 'default'}"


def groups(program: Program, ranks: int) -> dict[str, int]:
    """The integer parameters of the library say how many ranks a group has: as in its example, or a least factor."""
    least = next((n for n in range(2, ranks + 1) if ranks % n == 0), 1)
    return {p.name: int(p.example or least) for p in program.params if p.kind == "i32"}


def dims(program: Program, ranks: int) -> dict[str, int | float | bool]:
    """The sizes that a program gives as examples, or small ones that the usual tiles do not divide."""
    spare = [p.name for p in program.params if p.kind == "dim"]
    values: dict[str, int | float | bool] = {name: SIZES[k % len(SIZES)] for k, name in enumerate(spare)}
    values |= {p.name: {"f32": 0.5, "bool": True}[p.kind] for p in program.params if p.kind in ("f32", "bool")}
    return values | _given(program) | groups(program, ranks)


def wide(program: Program, ranks: int) -> dict[str, int | float | bool]:
    """Sizes of more than a tile of a GPU; a program that gives examples has those."""
    return {p.name: {"K": 200}.get(p.name, 136) for p in program.params} | _given(program) | groups(program, ranks)


def sizes(case: Case, ranks: int) -> dict[str, int | float | bool]:
    """The sizes of `dims` that a case may have on any processor."""
    return fitted(case, dims(case[0], ranks))


def has_roles(case: Case) -> bool:
    """True if the schedule of a case gives warps roles."""
    return case[1] is not None and any(part[ROLES] is not None for part in case[1].stages)


def fitted(case: Case, values: Mapping[str, int | float | bool]) -> dict[str, int | float | bool]:
    """Sizes of a case. Warps with roles store no rows beyond a tile, and take whole tiles and rows of 16 bytes.

    So the parts into which a program divides its rows have whole tiles, too. Dimensions of which tiles have one place
    stay as they are, and a loop that multiplies twice holds rows of few columns in registers.
    """
    program, _ = case
    if not has_roles(case):
        return dict(values)
    schedule, typing = case[1], infer(program)
    assert schedule is not None
    own = [s for s in program.stages if schedule.stage(s.name)[ROLES] is not None]
    single = {
        d.extent.name for s in program.stages for d in s.indices
        if isinstance(d.extent, Param) and (d.number or (s in own and d.name in typing.scalar_indices(s.name)))
    }  # fmt: skip
    shapes = {t.name: t.shape for t in program.tensors}
    of_roles = {
        e.name for stage in own for region in stage_regions(stage) for n in shapes[region.tensor]
        for e in walk(n) if isinstance(e, Param)
    }  # fmt: skip
    rows, *others = (p.name for p in program.params if p.name in of_roles - single and p.kind == "dim")
    loops = (s for stage in own for s in statements(stage.body) if isinstance(s, For))
    least = 64 if any(len(products(statements(s.body))) > 1 for s in loops) else 256
    more = {name: max(least, -(-int(values[name]) // 8) * 8) for name in others}
    whole = 128 * divisor(program)
    return {**values, **more, rows: -(-int(values[rows]) // whole) * whole}


def divisor(program: Program) -> int:
    """The product of the numbers by which a program divides extents of its indices: 4 for `i: Ms // 4`."""
    extents = {d.extent for s in program.stages for d in s.indices if isinstance(d.extent, Binary)}
    return prod(e.right.value for e in extents if e.op == "//" and isinstance(e.right, Int))


def _given(program: Program) -> dict[str, int | float | bool]:
    return {p.name: p.example for p in program.params if p.example is not None}
