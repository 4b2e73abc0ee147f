"""What is proved of a small program is true of the whole one; and wrong cutoffs are seen.

The oracle is the whole program: its plan with all tiles, its rules, and the notifies of its counters, one by one.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilelink
from tests.campaign.case import Case as Drawn
from tests.campaign.combined import combined_case
from tests.campaign.drawing import case
from tests.campaign.launches import launch_case
from tests.compiler import library
from tests.tiers import one_in, thorough
from tests.verifier.mutations import Case, mutants
from tests.verifier.test_families import case_of, said
from tilelink import compiler
from tilelink.errors import TileLinkError, VerificationError
from tilelink.ir.program import Program
from tilelink.ir.scalar import Index
from tilelink.lowering.bound import Bound, with_channels
from tilelink.planning import cutoff as cutoffs
from tilelink.planning import repetitions, segment_tiles
from tilelink.planning.cutoff import Cutoff, cutoff
from tilelink.planning.plan import LaterPlan, Plan, make_plan
from tilelink.planning.queue_order import with_queue_order
from tilelink.target import CPU, target
from tilelink.verifier import RULES
from tilelink.verifier import cutoff as proofs
from tilelink.verifier.by_schedule import by_schedule
from tilelink.verifier.cutoff import safe_plan
from tilelink.verifier.ordering import Orders
from tilelink.verifier.refusal import refuse

RANKS = 3
BY = 4
"""How many times as large sizes are as in other tests, so that a dimension has several blocks."""
TILES = 1500
"""Of a program, at most: all of them are enumerated."""


@dataclass(frozen=True, kw_only=True)
class Whole:
    """A plan with all tiles, and whether its rules accept it."""

    plan: Plan
    tables: dict[str, np.ndarray] | None = None

    def said(self) -> list[str]:
        return said(self.plan)

    def verdict(self) -> bool | None:
        """True if the small program proves it; None if it has none."""
        part = cutoff(self.plan.bound)
        try:
            return None if part is None else proofs.by_small(part, self.tables) is not None
        except VerificationError:
            return False

    def wrong(self) -> str | None:
        """How what is proved differs from what is true, or None."""
        part = cutoff(self.plan.bound)
        try:
            found = None if part is None else proofs.by_small(part, self.tables)
        except VerificationError as refused:
            return None if self.said() else f"refused by a small program alone: {refused}"
        if found is None:
            return None
        if refused := self.said():
            return refused[0]
        if [*map(str, by_schedule(found))] != [*map(str, by_schedule(self.plan))]:
            return "the schedule orders something else"
        both = ((self.plan.thresholds[key], found.thresholds[key]) for key in self.plan.thresholds)
        return None if all(np.array_equal(*one) for one in both) else "thresholds"


def many(bound: Bound) -> bool:
    return bound.ranks * sum(stage.total for stage in bound.stages.values()) > TILES


def enlarged(program: Program, make: Callable[[dict[str, Any]], Bound], dims: dict[str, Any]) -> dict[str, Any] | None:
    """The sizes with one of them larger, the first one that gives the program a repetition; or None."""
    for name in (one.name for one in program.params if one.kind == "dim"):
        larger = {**dims, name: dims[name] * BY}
        try:
            bound = make(larger)
        except TileLinkError:
            continue
        if not many(bound) and cutoff(bound) is not None:
            return larger
    return None


@cache
def in_library(name: str) -> Whole | None:
    for program, schedule in library.cases():
        if library.name((program, schedule)) == name:

            def make(dims: dict[str, Any], one: Any = program, by: Any = schedule) -> Bound:
                return compiler.bound(one, by, ranks=RANKS, dims=dims, dtype="bf16", target="sm_90")

            sizes = enlarged(program, make, dict(library.sizes((program, schedule), RANKS)))
            return None if sizes is None else Whole(plan=with_queue_order(make_plan(make(sizes))))
    raise KeyError(name)


NAMES = [library.name(one) for one in library.cases()]


@thorough(unless=lambda name: one_in(6, name))
@pytest.mark.parametrize("name", NAMES)
def test_what_is_proved_of_the_library_is_true(name: str) -> None:
    whole = in_library(name)
    if whole is not None:
        assert whole.wrong() is None


def test_most_of_the_library_that_has_blocks_is_proved_by_a_few() -> None:
    wholes = [whole for name in NAMES if one_in(6, name) and (whole := in_library(name)) is not None]
    verdicts = Counter(whole.verdict() for whole in wholes)
    assert verdicts[True] >= 15 and verdicts[False] <= 0.15 * verdicts[True], verdicts


@cache
def mutated(name: str) -> tuple[tuple[str, Plan], ...]:
    """The plans of mutants of a program of the library, with several blocks."""
    found: list[tuple[str, Plan]] = []
    for program, schedule in library.cases():
        if library.name((program, schedule)) != name:
            continue
        own = case_of(program, schedule, RANKS)

        def make(dims: dict[str, Any], one: Case = own) -> Bound:
            return replace(one, numbers=dims).bound()

        numbers = enlarged(program, make, dict(own.numbers))
        for mutant in mutants(replace(own, numbers=numbers), 2) if numbers is not None else ():
            try:
                if mutant.level != "plan":
                    found.append((f"{mutant.level} {mutant.kind} {mutant.what}", with_queue_order(mutant.make())))
            except TileLinkError:
                continue
    return tuple(found)


MUTATED = [name for name in map(library.name, library.few(library.cases())) if one_in(6, name)]


@thorough(unless=lambda name: name in MUTATED)
@pytest.mark.parametrize("name", dict.fromkeys((*MUTATED, *map(library.name, library.in_turn(library.cases())))))
def test_what_is_proved_of_mutants_is_true(name: str) -> None:
    for what, plan in mutated(name):
        assert Whole(plan=plan).wrong() is None, what


MODELS: dict[str, dict[str, int | float | bool]] = {
    "ring_attention": {"Q": 2, "G": 1, "C": 5, "T": 2, "D": 16, "scale": 0.25},
    "zigzag_attention": {"Q": 1, "G": 1, "B": 16, "T": 2, "D": 16, "scale": 0.25},
    "ag_moe": {"Ms": 128, "K": 64, "N": 512, "E": 2, "T": 512},
    "moe_rs": {"M": 8, "F": 16, "H": 24, "E": 2, "B": 4, "T": 8, "k": 2},
    "ep_ffn": {"M": 6, "H": 16, "F": 24, "E": 2, "C": 4, "k": 2},
}
"""Programs of benchmarks/check_cost.tl, with several blocks."""


@cache
def of_model(name: str) -> Case:
    module = tilelink.load("benchmarks/check_cost.tl")
    program = module.program(name)
    schedule = next(one for one in module.schedules_of(program) if one.name == "gpu")
    return Case(program=program, schedule=schedule, numbers=MODELS[name], ranks=2, target=target("sm_90"))


@pytest.mark.parametrize("name", MODELS)
def test_models_are_proved_by_a_few_blocks(name: str) -> None:
    whole = Whole(plan=with_queue_order(of_model(name).plan()))
    assert whole.verdict() is True and whole.wrong() is None


@thorough(unless=lambda name: name == "ring_attention")
@pytest.mark.parametrize("name", MODELS)
def test_what_is_proved_of_mutants_of_models_is_true(name: str) -> None:
    for mutant in mutants(of_model(name), 1):
        if mutant.level != "plan":
            try:
                whole = Whole(plan=with_queue_order(mutant.make()))
            except TileLinkError:
                continue
            assert whole.wrong() is None, f"{mutant.level} {mutant.kind} {mutant.what}"


PLACED_ROWS = (Path(tilelink.__file__).parent / "programs" / "moe.tl").read_text()
EXPERTS: dict[str, int | float | bool] = {"M": 64, "H": 64, "I": 640, "E": 2, "k": 2, "T": 1153}
"""Sizes of experts with several tiles of a segment, the last of which is cut, and of columns."""
OTHER_ROWS = [
    ("place  : in        [ranks, M, k] < starts[E + 1]", "place  : in        [ranks, M, k] < starts[E]", True),
    ("tile(r=128, f=128, h=64), order(e, group(r, 8), f)", "tile(r=128, f=128, h=64), order(e, f, r)", True),
    ("starts : in        [E + 2] <= T offsets", "starts : in        [E + 2] <= T rising", False),
    ("starts : in        [E + 2] <= T offsets", "starts : in        [E + 2] <= T", False),
    ("[ranks, M, k] < starts[E + 1]", "[ranks, M, k] < T", False),
    ("[ranks, M, k] < starts[E + 1]", "[ranks, M, k] <= starts[E + 1]", False),
    ("blank(r: T[starts[E] : starts[E + 1]], j: H)", "blank(r: T[starts[0] : starts[1]], j: H)", False),
    ("blank(r: T[starts[E] : starts[E + 1]], j: H)", "blank(r: T[starts[E] : starts[E + 1]], j: H - 8)", False),
    ("down(e: E, r: T", "down(e: E - 1, r: T", False),
    ("blank on sm, tile(r=16, j=2048)", "blank on sm(1)", False),  # beside the kernel that reads
    ("c kernel_order", "hidden channel(I=128)", None),
    ("hidden, c kernel_order", "hidden channel(I=128)\n    c kernel_order", True),
    ("parts[rank, i, j] @ p, sums", "parts[0, i, j] @ p, sums", False),
    ("c[place[p, i, q], j], axis=0)", "c[place[p, i, q] + 1, j], axis=0)", False),
    (
        "hidden[r, f] = silu(gate) * more",
        "hidden[r, f] = silu(gate) * more\n        c[r, 0] = sum(gate, axis=1)",
        False,
    ),
    ("blank(r: T", "blank(twice: 2 by 1, r: T", False),
    ("down(e: E, r: T", "down(e: E, twice: 2 by 1, r: T", False),
]
"""(old, new, whether it is safe by a few tiles, None if all are asked of what is safe)."""


def placed_rows(old: str = "", new: str = "", schedule: str = "gpu") -> Whole:
    """The plan of layers of experts, changed, whether or not it is safe."""
    assert old in PLACED_ROWS
    module = tilelink.parse(PLACED_ROWS.replace(old, new, 1) if old else PLACED_ROWS)
    program = module.program("moe_experts")
    own = next(one for one in module.schedules_of(program) if one.name == schedule)
    case = Case(program=program, schedule=own, numbers=EXPERTS, ranks=2, target=target("sm_90"))
    return Whole(plan=with_queue_order(case.plan()))


@pytest.mark.parametrize("schedule", ["gpu", "gpu_wide"])
def test_rows_that_are_read_by_place_are_proved_by_a_few_tiles(schedule: str) -> None:
    whole = placed_rows(schedule=schedule)
    part = cutoff(whole.plan.bound)
    assert part is not None and part.small.stages["down"].total < whole.plan.bound.stages["down"].total // 4
    assert whole.verdict() is True and whole.wrong() is None


@pytest.mark.parametrize(("old", "new", "safe"), OTHER_ROWS)
def test_what_is_proved_of_other_rows_is_true(old: str, new: str, safe: bool | None) -> None:
    try:
        whole = placed_rows(old, new)
    except TileLinkError:
        assert not safe
        return
    assert whole.wrong() is None
    assert whole.verdict() is bool(safe)
    assert bool(whole.said()) is (safe is False)


def test_of_distinct_entries_below_the_end_all_tiles_of_segments_are_asked() -> None:
    """Those whose rows are gone may be nothing else, in a launch with fewer rows."""
    end = "[ranks, M, k] < starts[E + 1]"
    assert segment_tiles.segments_of(placed_rows().plan.bound)
    assert not segment_tiles.segments_of(placed_rows(end, f"{end} distinct").plan.bound)


def test_a_dimension_without_elements_has_no_channels() -> None:
    program = tilelink.parse(PLACED_ROWS).program("moe_dispatch")
    with pytest.raises(VerificationError, match="find, which writes spot, has no elements along b"):
        tilelink.plan(program, ranks=3, dims={"M": 24, "H": 32, "E": 3, "k": 2, "B": 64, "T": 96, "first": 3})


def of_campaign(draw: Callable[[int], Drawn], number: int) -> Whole | None:
    """A random program, or a mutant, of several blocks; None where there is none."""
    one = draw(number)
    if one.tables:
        return None  # these have the sizes that were drawn
    try:
        module = compiler.parse(one.text)
        schedule = module.schedules[0] if module.schedules else None
        processor = replace(CPU, sms=one.sms, max_programs=one.programs)
        dims = {name: value * BY for name, value in one.dims.items()}
        where: dict[str, Any] = {"ranks": one.ranks, "target": processor, "dtype": one.dtype}
        bound = compiler.bound(module.program(), schedule, dims=dims, **where)
        if many(bound) or cutoff(bound) is None:
            return None
        return Whole(plan=with_queue_order(make_plan(bound)))
    except TileLinkError:
        return None


FEW, MANY = 15, 1200


@thorough(unless=lambda draw, first: first == 0)
@pytest.mark.parametrize("first", range(0, MANY, FEW))
@pytest.mark.parametrize("draw", [case, launch_case, combined_case])
def test_what_is_proved_of_random_programs_is_true(draw: Callable[[int], Drawn], first: int) -> None:
    for number in range(first, first + FEW):
        if (whole := of_campaign(draw, number)) is not None:
            assert whole.wrong() is None, number


# Wrong cutoffs -----------------------------------------------------------------------------------------------

HEAD = """program p(M = 2, N = 10):
    x : in        [M, N]
    {tensors}
    y : out       [M, N]

{body}

schedule s for p:
    {schedule}
"""


def whole_of(body: str, schedule: str, *, tensors: str = "", tables: dict[str, np.ndarray] | None = None) -> Whole:
    """The plan of a program, whether or not it is safe."""
    text = HEAD.format(body=body.strip("\n"), schedule=schedule, tensors=tensors)
    module = tilelink.parse(text)
    numbers: dict[str, int | float | bool] = {"M": 2, "N": 10}
    bound = Case(program=module.program(), schedule=module.schedules[0], numbers=numbers, ranks=2).bound()
    return Whole(plan=with_queue_order(make_plan(bound, tables)), tables=tables)


SEGMENTS = """program p(E = 2, T = 12, N = 4):
    x      : in        [T, N]
    {starts}
    c      : symmetric [E, N]
    y      : out       [T[: starts[E]], N]
    z      : out       [E, N]

    {before}

    compute product(e: E by 1, r: T[starts[e] : starts[e + 1]], j: N):
        {wait}
        y[r, j] = x[r, j]
        {more}
        producer_tile_notify(c[e, j])

    compute last(e: E by 1, j: N):
        consumer_tile_wait(c[e, j])
        z[e, j] = x[e, j]

schedule s for p:
    {first}
    product on sm(2), tile(r=2, j=2), order(e, r, j)
    last on sm(1), tile(j=2)
"""
GIVEN = """program p(T = 12, N = 4):
    x      : in        [T, N]
    n      : in        [] <= T
    starts : in        [2] <= T offsets
    g      : symmetric [T, N]
    y      : out       [T[: starts[1]], N]

    compute make(i: T[: max(n, 4)], j: N):
        g[i, j] = x[i, j]
        producer_tile_notify(g[i, j])

    compute product(e: 1 by 1, r: T[starts[e] : starts[e + 1]], j: N):
        consumer_tile_wait(g[:, j])
        y[r, j] = g[r, j]

schedule s for p:
    make on sm(1), tile(i=2, j=2)
    product on sm(1), tile(r=2, j=2), order(e, r, j)
    g channel(T=12)
"""
"""The first two tiles of the first segment read what is written, and the others may not."""


def of_text(text: str, **numbers: int) -> Whole:
    """The plan of a program in a text, whether or not it is safe."""
    module = tilelink.parse(text)
    bound = Case(program=module.program(), schedule=module.schedules[0], numbers={**numbers}, ranks=2).bound()
    return Whole(plan=with_queue_order(make_plan(bound)))


def in_segments(starts: str = "starts : in [E + 1] <= T offsets", **parts: str) -> Whole:
    given = {"more": "", "before": "", "wait": "", "first": "", **parts}
    return of_text(SEGMENTS.format(starts=starts, **given), E=2, T=12, N=4)


def computed(how: str) -> Whole:
    """The plan of a program that computes where its segments are."""
    starts = "sizes : in [E + 1] i32\n    begins : in [E + 1] <= T offsets\n    starts : local [E + 1] <= T offsets"
    before = f"compute tell(q: 1):\n        starts[:] = {how}\n        producer_tile_notify(starts[:])"
    return in_segments(starts, before=before, wait="consumer_tile_wait(starts[:])", first="tell on sm(1)")


CAUSAL = """program p(N = 8, D = 2):
    x      : in        [N, D]
    begin  : in        [N] <= N
    h      : symmetric [N, D]
    c      : local     [N, N, D]
    y      : out       [N, D]

    comm push(b: N):
        tile_push_data(h[b, :] @ (rank + 1), x[b, :])
        producer_tile_notify(h[b, :] @ (rank + 1))

    compute take(q: 2 by 1, b: N by 1):
        total = zeros(f32)
        for (n: N by 1):
            {take}
        if q == 0:
            y[b, :] = total

schedule s for p:
    push on {engine}, tile(b={tile})
    take on sm(2)
    h channel(N={tile})
"""
LATER = """if {when}:
                consumer_tile_wait(h[n, :])
            if {reads}:
                total += h[n, :]"""
TURNS = "q * 8 + n <= (1 - q) * 8 + b"
CHOSEN = """consumer_tile_wait(h[n, :])
            if q == 0:
                if n {op} begin[b]:
                    c[b, n, :] = x[n, :]
                if {reads}:
                    total += c[b, n, :]"""


def causal(take: str, tile: int = 1, engine: str = "sm(1)") -> Whole:
    """The plan of a program whose rows take those before them, whether or not it is safe."""
    return of_text(CAUSAL.format(take=take, tile=tile, engine=engine), N=8, D=2)


DIGITS = """program p(N = 8, D = 2):
    x      : in        [ranks * N, D]
    h      : symmetric [ranks * N, D]
    c      : local     [ranks, D]
    y      : out       [ranks * N, D]

    comm push(p: ranks, i: N):
        tile_push_data(h[rank * N + i, :] @ p, x[rank * N + i, :])
        producer_tile_notify(h[rank * N + i, :] @ p)

    compute take(q: ranks, i: N):
        consumer_tile_wait(h[{waits} * N + i, :])
        y[q * {radix} + i, :] = h[q * N + i, :]
        {more}

schedule s for p:
    push on {engine}, tile(i={tile}), order(p = rank step -1, i)
    take on sm(2), tile(i=2), order({order})
"""


def digits(**parts: object) -> Whole:
    """The plan of a program with the rows of all ranks one after the other, whether or not it is safe."""
    given = {"waits": "q", "radix": "N", "more": "", "engine": "sm(2)", "tile": 2, "order": "q = rank step +1, i"}
    return of_text(DIGITS.format(**{**given, **parts}), N=8, D=2)


PIECES = """program p(N = 64, D = 2):
    x      : in        [N, D]
    h      : symmetric [N, D]
    c      : local     [2, D]
    y      : out       [N, D]

    comm push(i: N by 1):
        tile_push_data(h[i, :] @ (rank + 1), x[i, :])
        producer_tile_notify(h[i, :] @ (rank + 1))

    compute take(i: N):
        consumer_tile_wait(h[{waits}, :])
        y[i, :] = h[i, :]
        {more}

schedule s for p:
    push on sm(2)
    take on sm(2), tile(i=2)
    h channel(N=16)
"""


def pieces(waits: str = "i", more: str = "") -> Whole:
    """The plan of a program of tiles that are pieces of parts of channels, whether or not it is safe."""
    return of_text(PIECES.format(waits=waits, more=more), N=64, D=2)


SAME = """
    compute make(i: M by 1, j: N):
        y[i, j] = x[i, j]
        c[i, :] = x[i, :]
"""
TOLD = """
    comm push(i: M by 1, j: N by 1):
        tile_push_data(h[i, j] @ (rank + 1), x[i, j])
        {told}

    compute take(i: M by 1, j: N by 1):
        consumer_tile_wait(h[i, j])
        y[i, j] = h[i, j]
"""
STEPS = """
    compute step(i: M by 1, j: N):
        if i > 0:
            {wait}
        c[i, j] = x[i, j]
        {told}
        if i > 0:
            y[i - 1, j] = c[i - 1, j]

    compute last(j: N):
        {last}
        y[M - 1, j] = c[M - 1, j]
"""
WAIT, NOTIFY, LAST = (
    "consumer_tile_wait(c[i - 1, :])",
    "producer_tile_notify(c[i, j])",
    "consumer_tile_wait(c[M - 1, :])",
)
PLACED = """
    compute make(j: N by 1):
        y[:, j] = x[:, j]
        c[0, t[j]] = x[0, j]
"""
LOCAL, PEERS = "c : local [M, N]", "h : symmetric [M, N]"
TABLE = "c : local [M, N]\n    t : table [N] < N"


@cache
def corpus() -> dict[str, Whole]:
    """Programs with several blocks: most are not safe, in ways that few tiles do not show."""
    notify, both = "producer_tile_notify(h[i, j] @ (rank + 1))", "on sm(2)\n    take on sm(2)"
    steps = "step on sm({}), tile(j=2){}\n    last on sm(1), tile(j=2)"
    own = STEPS.format(wait=WAIT, told=NOTIFY, last=LAST)
    twice = {"t": np.tile([0, 1, 2, 3, 4, 5, 6, 7, 7, 9], (2, 1))}
    return {
        "tiles write the same": whole_of(SAME, "make on sm(2), tile(j=2)", tensors=LOCAL),
        "safe": whole_of(TOLD.format(told=notify), f"push {both}", tensors=PEERS),
        "few are told": whole_of(TOLD.format(told=f"if j < 2:\n            {notify}"), f"push {both}", tensors=PEERS),
        "safe steps": whole_of(own, steps.format(1, ""), tensors=LOCAL),
        "steps inside": whole_of(own, steps.format(1, ", order(j, i)"), tensors=LOCAL),
        "a place twice": whole_of(PLACED, "make on sm(2)", tensors=TABLE, tables=twice),
        "counted by rows": whole_of(
            own.replace("notify(c[i, j])", "notify(c[i, :])"), steps.format(1, ""), tensors=LOCAL
        ),
        "causal": causal(LATER.format(when="n <= b", reads="n <= b")),
        "causal, in blocks": causal(LATER.format(when="n <= b", reads="n <= b"), 4, "copy_engine"),
        "causal by turns": causal(LATER.format(when=TURNS, reads=TURNS)),
        "a wait less": causal(LATER.format(when="n < b", reads="n <= b")),
        "waits for the first ones": causal(LATER.format(when="n < 3", reads="n <= b")),
        "a turn without waits": causal(LATER.format(when="q == 1", reads="(1 - q) * 7 + n <= q * 7 + b")),
        "from an entry on": causal(CHOSEN.format(op=">=", reads="n >= begin[b]")),
        "up to an entry": causal(CHOSEN.format(op="<", reads="begin[b] > 5")),
        "rows of all ranks": digits(),
        "rows of all ranks, inside": digits(order="i, q"),
        "rows of all ranks, in one copy": digits(engine="copy_engine", tile=8),
        "rows of the own rank awaited": digits(waits="rank"),
        "rows of all ranks write the same": digits(more="c[q, :] = x[q, :]"),
        "rows that overlap": digits(radix=4),
        "pieces of parts": pieces(),
        "pieces of parts write the same": pieces(more="c[0, :] = x[0, :]"),
        "segments": in_segments(),
        "computed segments": computed("cumsum(sizes[:], axis=0)"),
        "tiles of a segment write the same": in_segments(more="c[e, j] = x[e, j]"),
        "segments of what is given": of_text(GIVEN, T=12, N=4),
    }  # fmt: skip


SAFE = {
    "rows of all ranks", "rows of all ranks, inside", "rows of all ranks, in one copy",
    "causal", "causal, in blocks", "causal by turns", "from an entry on", "safe", "safe steps", "counted by rows",
    "segments", "computed segments", "pieces of parts",
}  # fmt: skip


def test_the_corpus_has_blocks_and_both_kinds() -> None:
    assert {name for name, whole in corpus().items() if not whole.said()} == SAFE
    assert {name: whole.wrong() for name, whole in corpus().items()} == dict.fromkeys(corpus())
    assert {name for name, whole in corpus().items() if whole.verdict()} == SAFE, "it is not silence"


Search = repetitions.Search


def _without_numbers(self: Any, node: object, owner: str, own: Any = Search._visit) -> None:
    if not isinstance(node, Index):
        own(self, node, owner)


def _one_more(self: Any, *args: Any, own: Any = Cutoff._counted) -> Any:
    return own(self, *args) + 1


def _as_many(self: Any, found: Any, *args: Any, own: Any = Cutoff._of_all) -> Any:
    whole = own(self, found, *args)
    return None if whole is None else np.minimum(whole, found.max())


WRONG: dict[str, tuple[object, str, Any]] = {
    "blocks of one event": (repetitions, "_kept", lambda *args, own=repetitions._kept: own(*args) - 1),
    "blocks within tiles": (repetitions, "lcm", lambda *_: 1),
    "conditions on numbers of blocks": (Search, "_visit", _without_numbers),
    "tables that are alike": (repetitions, "_distinguished", lambda _: ()),
    "a notify more": (Cutoff, "_counted", _one_more),
    "as many notifies as of few tiles": (Cutoff, "_of_all", _as_many),
    "digits that carry": (repetitions, "_is_radix", lambda *_: True),
    "digits below others than theirs": (repetitions, "_below", lambda *_: True),
    "entries that are more than ends": (Search, "_ends", lambda *_: True),
    "blocks of whose parts as few notify": (cutoffs, "_as_many", lambda found, *_: found),
    "rows with numbers": (segment_tiles, "_names_row", lambda *_: True),
    "progress not asked": (proofs, "in_rounds", lambda *_: True),
    "places of tiles not asked": (proofs, "in_turn", lambda *_: True),
    "rounds in any order": (proofs, "ends", lambda *_: True),
    "tiles in any order": (cutoffs, "in_any_order", lambda *_: True),
    "rules not asked": (proofs, "RULES", {}),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_cutoff_is_seen(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wholes = corpus()
    monkeypatch.setattr(*WRONG[what])
    assert any(whole.wrong() is not None for whole in wholes.values())


WORDS = """program p(M = 2, N = 12):
    x : in        [M, N]
    h : symmetric [ranks, M, N]
    y : out       [M]

    comm push(q: ranks, i: M by 1{twice}):
        tile_push_data(h[rank, i, :] @ q, {source})
        producer_tile_notify(h[rank, i, :] @ q)

    compute take(i: M by 1):
        total = zeros(f32)
        for (j: N):
            consumer_tile_wait(h[:, i, j])
            total += sum(sum(h[:, i, j], axis=0), axis=0)
        y[i] = total

schedule s for p:
    push on sm(2)
    take on sm(2), tile(j={tile})
    h low_latency
"""
OTHER_WORDS: dict[str, tuple[dict[str, Any], bool]] = {
    "as they are": ({}, True),
    "a channel that is not inside of what is read": ({"channel": 12}, False),
    "a tile that begins within a word": ({"tile": 3, "channel": 1, "packed": 2}, False),
    "sent twice": ({"twice": ", k: 2 by 1"}, False),
    "sent after they have come": ({"source": "sum(h[:, i, :], axis=0)"}, False),
}
"""Name -> arguments of `words`, and True if the program is safe."""


def words(*, tile: int = 2, channel: int = 0, packed: int = 1, twice: str = "", source: str = "x[i, :]") -> Whole:
    """The plan of a program whose columns are read one tile after the other, whether or not it is safe."""
    own = "consumer_tile_wait(h[:, i, :])\n        " if "h[" in source else ""
    text = WORDS.format(tile=tile, twice=twice, source=source).replace("tile_push", f"{own}tile_push", 1)
    module = tilelink.parse(text)
    bound = Case(
        program=module.program(), schedule=module.schedules[0], numbers={"M": 2, "N": 12}, ranks=2,
        target=target("sm_90"),
    ).bound()  # fmt: skip
    ((key, grid),) = bound.channels.items()
    if channel:
        grid = replace(grid, sizes=(*grid.sizes[:-1], channel), counts=(*grid.counts[:-1], 12 // channel))
    tensors = {name: replace(one, packed=packed) if name == "h" else one for name, one in bound.tensors.items()}
    return Whole(plan=with_queue_order(make_plan(with_channels(replace(bound, tensors=tensors), {key: grid}))))


@pytest.mark.parametrize("what", OTHER_WORDS)
def test_what_is_proved_of_words_is_true(what: str) -> None:
    other, safe = OTHER_WORDS[what]
    whole = words(**other)
    assert whole.wrong() is None
    assert bool(whole.verdict()) is safe and bool(whole.said()) is not safe


SENT = ["all_reduce_one_shot_pushed-words", "decode_attention_whole-gpu", "moe_decode-gpu", "paged_decode-gpu"]


@pytest.mark.parametrize("name", SENT)
def test_words_of_the_library_are_proved_by_a_few_blocks(name: str) -> None:
    whole = in_library(name)
    assert whole is not None and whole.verdict() is True and whole.wrong() is None


@thorough(unless=lambda name: name == SENT[0])
@pytest.mark.parametrize("name", SENT)
def test_what_is_proved_of_mutants_with_words_is_true(name: str) -> None:
    for what, plan in mutated(name):
        assert Whole(plan=plan).wrong() is None, what


def test_tiles_may_be_pieces_of_the_parts_that_stand_for_all() -> None:
    part = cutoff(pieces().plan.bound)
    assert part is not None and "2 of 8 parts of 2 i" in part.representatives.few


def test_of_segments_whose_places_are_known_by_others_all_tiles_are_asked() -> None:
    assert computed("begins[:]").verdict() is False and not computed("begins[:]").said()


# What is made of it ------------------------------------------------------------------------------------------

PIPELINE = "benchmarks/check_cost.tl"


def test_a_plan_of_many_tiles_is_made_when_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    module = tilelink.load(PIPELINE)
    program = module.program("pipeline")
    schedule = next(one for one in module.schedules_of(program) if one.name == "gpu")
    dims = {"B": 4, "M": 1024, "K": 2048}
    bound = compiler.bound(program, schedule, ranks=4, dims=dims, dtype="bf16", target="sm_90")
    made: list[int] = []

    def counted(one: Bound, *args: Any, own: Any = make_plan, **how: Any) -> Plan:
        made.append(one.stages["step"].total)
        return own(one, *args, **how)

    for one in (proofs, cutoffs):
        monkeypatch.setattr(one, "make_plan", counted)
    plan = safe_plan(bound)
    total = bound.stages["step"].total
    few = total // 16 * 3 // 4
    assert made == [few] and plan.tasks == 4 * total and by_schedule(plan) == []
    whole = with_queue_order(make_plan(bound))
    assert made == [few] and isinstance(plan, LaterPlan)
    assert len(plan.accesses.task) == len(whole.accesses.task) and made == [few, total]
    assert all(np.array_equal(plan.thresholds[key], found) for key, found in whole.thresholds.items())
    assert replace(plan, boxes=()).small.tasks == plan.tasks


def test_columns_for_which_there_was_no_memory_can_be_asked_for_again() -> None:
    bound = corpus()["safe"].plan.bound
    part = cutoff(bound)
    later = None if part is None else proofs.by_small(part)
    assert isinstance(later, LaterPlan)
    make, tried = vars(later)["_make"], list[int]()

    def short_once() -> Plan:
        tried.append(0)
        if len(tried) == 1:
            raise MemoryError
        return make()

    vars(later)["_make"] = short_once
    with pytest.raises(MemoryError):
        _ = later.accesses
    assert len(later.accesses.task) == len(make_plan(bound).accesses.task) and "_make" not in vars(later)


def test_no_column_of_a_plan_is_an_attribute_of_its_class() -> None:
    """A later plan would give that instead of its own."""
    assert [one.name for one in fields(Plan) if hasattr(LaterPlan, one.name)] == []


def test_a_refusal_is_of_the_whole_program() -> None:
    tensors = "h : symmetric [M, N]"
    body = TOLD.format(told="producer_tile_notify(h[i, j] @ (rank + 1))").replace("consumer_tile_wait(h[i, j])", "")
    text = HEAD.format(body=body.strip("\n"), schedule="push on sm(2)\n    take on sm(2)", tensors=tensors)
    module = tilelink.parse(text)
    where: dict[str, Any] = {"ranks": 2, "dims": {"M": 2, "N": 4096}}
    with pytest.raises(VerificationError, match="reads h of rank 0, which rank 1, push tile"):
        compiler.plan(module.program(), module.schedules[0], **where)


NOTIFIED, AWAITED = "producer_tile_notify(h[i, j] @ (rank + 1))", "consumer_tile_wait(h[i, j])"
MISSED = {
    "what no order is a reason for": (NOTIFIED, r"[23] of 4096 blocks of 1 j of push stand for all\)$"),
    "an order, of many events": (AWAITED, r"in order is asked of 4,096 events, and there are about 90,112\)$"),
}
"""What half of the tiles of a program do not do, and what the hint says of the blocks that show it."""


@pytest.mark.parametrize("what", MISSED)
def test_what_few_blocks_miss_is_refused_before_all_are_planned(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proofs, "MAX_EVENTS", 4096)
    left, hint = MISSED[what]
    body = TOLD.format(told=NOTIFIED).replace(left, f"if i > 0:\n            {left}")
    text = HEAD.format(body=body.strip("\n"), schedule="push on sm(2)", tensors="h : symmetric [M, N]")
    module = tilelink.parse(text)
    where: dict[str, Any] = {"ranks": 2, "dims": {"M": 2, "N": 4096}}
    monkeypatch.setattr(proofs, "with_queue_order", None)  # which a plan of all is given first
    with pytest.raises(VerificationError) as found:
        compiler.plan(module.program(), module.schedules[0], **where)
    assert re.search(hint, found.value.hint or ""), found.value.hint


def test_a_rule_that_is_not_of_two_events_is_asked_of_the_whole_program(monkeypatch: pytest.MonkeyPatch) -> None:
    module = tilelink.load(PIPELINE)
    program = module.program("pipeline")
    schedule = next(one for one in module.schedules_of(program) if one.name == "gpu")
    where: dict[str, Any] = {"ranks": 4, "dims": {"B": 4, "M": 1024, "K": 2048}, "dtype": "bf16", "target": "sm_90"}
    bound = compiler.bound(program, schedule, **where)
    tiles = 4 * bound.stages["step"].total
    assert isinstance(safe_plan(bound), LaterPlan)

    def few(plan: Plan, _: Orders) -> Iterator[VerificationError]:
        if plan.tasks >= tiles:
            yield refuse(VerificationError, plan, f"is one of {plan.tasks} tiles", task=0, statement=0, hint="fewer")

    monkeypatch.setitem(RULES, "few", few)
    with pytest.raises(VerificationError, match=f"is one of {tiles} tiles"):
        safe_plan(bound)
    monkeypatch.delitem(RULES, "few")
    monkeypatch.setitem(RULES, "coverage", few)  # a rule in the place of another one is not that one
    with pytest.raises(VerificationError, match=f"is one of {tiles} tiles"):
        safe_plan(bound)
