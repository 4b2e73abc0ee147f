"""Random programs with numbers below zero in entries, ends, places and conditions, beside all of their launches.

    python -m tests.verifier.negatives 20000

The number is how many programs are drawn, and a second one is the seed of the first. One stage writes rows in a range
that a launch decides, for each part of a tensor; another one reads such rows, at indices from which numbers are
subtracted, with quotients and remainders of what may be negative, and clamped in several ways. The oracle knows no rule
of the package: it tries all entries of the index tensors, and says whether a row is read that the launch has not
written. A second one is the rule of undefined reads itself, asked of each pair of accesses instead of families of
guards.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from itertools import product
from random import Random
from typing import Any
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from tilelink import compiler
from tilelink.errors import SeveralErrors, TileLinkError
from tilelink.lowering.bind import bind
from tilelink.planning.plan import Plan, make_plan
from tilelink.planning.queue_order import with_queue_order
from tilelink.target import CPU
from tilelink.verifier import refusals, undefined_reads

ROWS, SEGMENTS, COUNTS, MOST = 5, 3, 2, 3
"""Rows of a part, segments of `ends`, entries of `n`, and the end of their values."""
Values = NDArray[np.int64]
Truths = NDArray[np.bool_]

TEXT = """program drawn(T = 5, E = 3, N = 4):
    x    : in    [T, N]
    n    : in    [2] < 3
    ends : in    [E + 1] <= T{promise}
    at   : in    [{reads}] < {bound}
    g    : local [{parts}, T, N]
    y    : out   [{reads}, N]

    compute make({domain}, j: N):
{make}

    compute take(i: {reads} by 1, j: N):
{take}

schedule drawn for drawn:
    make on sm(1), tile(r={tile})
    take on sm(1){taken}
"""


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Those from `start` to `stop`, or the one at `place`, of a part, if `condition`: expressions of an index."""

    part: str = "v"
    start: str = "0"
    stop: str = "T"
    place: str = ""
    condition: str = ""

    def of(self, index: str) -> Rows:
        """The same with a value for the index."""
        texts = (self.part, self.start, self.stop, self.place, self.condition)
        part, start, stop, place, condition = (re.sub(r"\bv\b", f"({index})", text) for text in texts)
        return Rows(part=part, start=start, stop=stop, place=place, condition=condition)


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """A program: rows written for each part `v`, or in all segments `v` of part 0, and rows read for each `v`."""

    written: Rows
    read: Rows
    parts: int
    reads: int
    promise: str
    bound: str
    in_segments: bool
    tile: int
    tiled: bool

    @property
    def text(self) -> str:
        make, take = self.written.of("e" if self.in_segments else "q"), self.read.of("i")
        first = f"e: E by 1, r: T[{make.start} : {make.stop}]"
        domain = first if self.in_segments else f"q: {self.parts} by 1, r: T[{make.start} : {make.stop}]"
        part = "0" if self.in_segments else "q"
        writes = _under(make.condition, [f"g[{part}, r, j] = x[r, j]"])
        told = "0, :, j" if self.in_segments else "q, r, j"
        if take.place:
            reads = ["total = zeros(f32)", f"consumer_tile_wait(g[{take.part}, :, j])"]
            reads += _under(take.condition, [f"total += g[{take.part}, {take.place}, j]"])
        else:
            wait = ":" if self.in_segments else "r"
            one = [f"consumer_tile_wait(g[{take.part}, {wait}, j])"]
            one += _under(take.condition, [f"total += sum(g[{take.part}, r, j], axis=0)"])
            reads = ["total = zeros(f32)", f"for (r: T[{take.start} : {take.stop}]):", *(f"    {line}" for line in one)]
        return TEXT.format(
            promise=self.promise, reads=self.reads, bound=self.bound, parts=self.parts, domain=domain, tile=self.tile,
            make=_indented([*writes, f"producer_tile_notify(g[{told}])"]),
            take=_indented([*reads, "y[i, j] = total"]), taken=f", tile(r={self.tile})" if self.tiled else "",
        )  # fmt: skip

    def plan(self) -> Plan:
        """Raises as binding does."""
        module = compiler.parse(self.text)
        sizes = {"T": ROWS, "E": SEGMENTS, "N": 4}
        return with_queue_order(make_plan(bind(module.program(), module.schedules[0], sizes, 1, CPU)))

    def unwritten(self) -> str:
        """The first launch that reads a row which it has not written, or names an entry that is not there, as text."""
        launch = _launches(self.promise, "at" in f"{self.read}")
        kept = launch["at"].values[:, 0] < launch.value(self.bound)
        written: dict[int, Truths] = {}
        for index in range(SEGMENTS if self.in_segments else self.parts):
            part = 0 if self.in_segments else index
            written[part] = written.get(part, np.array(False)) | launch.named(self.written.of(str(index)))
        for index in range(self.reads):
            rows = self.read.of(str(index))
            part = int(launch.value(rows.part)[0])
            bad = kept & (launch.named(rows) & ~written[part]).any(axis=1)
            if bad.any():
                return f"i={index} of {launch.text(int(np.argmax(bad)))}"
        return f"entries of {launch.text(launch.outside)} are not there" if launch.outside is not None else ""


class Launches(dict[str, "Table"]):
    """All entries of index tensors that keep the promises of a program."""

    outside: int | None = None
    """The number of a launch in which an entry is named that is not there."""

    def value(self, text: str) -> Values:
        """The value of an expression in each launch."""
        numbers: Mapping[str, Any] = {"T": ROWS, "E": SEGMENTS, "min": np.minimum, "max": np.maximum, **self}
        return np.broadcast_to(np.asarray(eval(text, {}, numbers)), len(self["n"].values))

    def named(self, rows: Rows) -> Truths:
        """Which rows an access names in each launch."""
        if rows.place:
            found = np.arange(ROWS) == self.value(rows.place)[:, None]
        else:
            start, stop = (np.clip(self.value(end), 0, ROWS)[:, None] for end in (rows.start, rows.stop))
            found = (start <= np.arange(ROWS)) & (np.arange(ROWS) < stop)
        return found & self.value(rows.condition).astype(bool)[:, None] if rows.condition else found

    def text(self, number: int) -> str:
        return ", ".join(f"{name}={table.values[number].tolist()}" for name, table in self.items())


@dataclass(frozen=True, eq=False)
class Table:
    """The entries of an index tensor in each launch."""

    launches: Launches
    values: Values

    def __getitem__(self, at: Any) -> Values:
        where = np.broadcast_to(np.asarray(at), len(self.values))
        wrong = (where < 0) | (where >= self.values.shape[1])
        if wrong.any() and self.launches.outside is None:
            self.launches.outside = int(np.argmax(wrong))
        return self.values[np.arange(len(self.values)), np.clip(where, 0, self.values.shape[1] - 1)]


@cache
def _entries(promise: str, placed: bool) -> tuple[Values, Values, Values]:
    every = product(range(ROWS + 1), repeat=SEGMENTS + 1)
    ends = [one for one in every if not promise or ([*one] == sorted(one) and (promise == " rising" or one[0] == 0))]
    counts, places = [*product(range(MOST), repeat=COUNTS)], range(ROWS if placed else 1)
    every = np.array([(*one, *two, at) for one in ends for two in counts for at in places])
    places = np.repeat(every[:, -1:], 9, axis=1)  # all entries of one launch are alike
    return every[:, SEGMENTS + 1 : -1], every[:, : SEGMENTS + 1], places


def _launches(promise: str, placed: bool) -> Launches:
    found = Launches()
    for name, values in zip(("n", "ends", "at"), _entries(promise, placed), strict=True):
        found[name] = Table(found, values)
    return found


def _under(condition: str, lines: list[str]) -> list[str]:
    return [f"if {condition}:", *(f"    {line}" for line in lines)] if condition else lines


def _indented(lines: list[str]) -> str:
    return "\n".join(f"        {line}" for line in lines)


# Drawing -----------------------------------------------------------------------------------------------------


def _number(draw: Random, depth: int = 2) -> str:
    """An integer of the index `v`, which may be below zero."""
    if depth == 0 or draw.random() < 0.25:
        return draw.choice(("n[0]", "n[0]", "n[1]", "n[v % 2]", "v", f"(v - {draw.randint(1, 4)})",
                            f"({draw.randint(-3, 3)})"))  # fmt: skip
    one, other = _number(draw, depth - 1), _number(draw, depth - 1)
    match draw.randrange(7):
        case 0 | 1:
            return f"({one} - {other})"
        case 2:
            return f"({one} + {other})"
        case 3:
            return f"({one} {draw.choice(('//', '%'))} {draw.randint(2, 3)})"
        case 4:
            return f"({one} * {draw.choice((-1, 2))})"
        case _:
            return f"{draw.choice(('min', 'max'))}({one}, {other})"


def _within(draw: Random, number: str, most: str) -> str:
    """A number clamped to what is from 0 on and at most `most`, in most cases."""
    return draw.choice((
        f"min(max({number}, 0), {most})", f"max(min({number}, {most}), 0)", f"min(max({number}, 0), {most})",
        f"max({number} - min({number}, v - 2), 0)", f"({number} % ({most} + 1))", number,
    ))  # fmt: skip


def _end(draw: Random) -> str:
    if draw.random() < 0.75:
        at = _within(draw, _number(draw), "E") if draw.random() < 0.6 else draw.choice(("n[0]", "n[1]", "v", "(E - 1)"))
        entry = f"ends[{at}]"
        return draw.choice((entry, entry, entry, f"({entry} - {draw.randint(1, 2)})", f"min({entry}, {_number(draw)})"))
    return _number(draw)


def _near(draw: Random, text: str) -> str:
    """The same expression, in another form, or one that differs by little."""
    chance = draw.random()
    if not text or chance < 0.25:
        return text
    if chance < 0.6 and "ends[" in text:
        return _elsewhere(draw, text)
    if chance < 0.75 and (found := [*re.finditer(r"(?<![\w\[])\d+\b", text)]):
        at = draw.choice(found)
        return f"{text[: at.start()]}({int(at[0]) + draw.choice((-1, 1, -3))}){text[at.end() :]}"
    return draw.choice((
        f"({text} + 0)", f"({text} - 1)", f"({text} + 1)", f"({text} * 2 // 2)", f"(-1 * {text} * -1)",
        f"({text} - n[0] + n[0])", f"max({text}, 0)", f"min({text}, T)",
        f"({text} // 2 * 2 + {text} % 2)", f"min({text}, {_number(draw, 1)})",
        text.replace("min", "max", 1), text.replace(" - ", " + ", 1), text.replace("n[0]", "n[1]", 1),
        text.replace("v", "0", 1), text.replace("v", "(v - 1)", 1), f"min({text}, {text} - (v - 2))",
    ))  # fmt: skip


def _elsewhere(draw: Random, text: str) -> str:
    """The same expression with another coordinate of `ends`, at a distance that is below zero for some indices."""
    head, _, rest = text.partition("ends[")
    depth, end = 1, 0
    while depth:
        depth += {"[": 1, "]": -1}.get(rest[end], 0)
        end += 1
    at, tail = rest[: end - 1], rest[end:]
    far = f"(v - {draw.randint(1, 4)})"
    far = draw.choice((far, far, f"({far} // 2)", f"({far} % 2)", f"min({far}, {draw.choice((0, 1, at))})",
                       f"max({far}, {draw.choice((-1, 0, at))})", f"min({at}, {far})"))  # fmt: skip
    moved = draw.choice((f"{at} - {far}", f"{at} + {far}", f"min({at}, {at} + {far})", f"max({at}, {far})"))
    within = draw.choice((f"max({moved}, 0)", f"min(max({moved}, 0), E)", f"max(min({moved}, E), 0)", moved))
    return f"{head}ends[{within}]{tail}"


def _condition(draw: Random) -> str:
    if draw.random() < 0.75:
        return ""
    return f"{_number(draw, 1)} {draw.choice(('<', '<=', '>', '>=', '==', '!='))} {_number(draw, 1)}"


def drawn(seed: int) -> Drawn:
    """The program of a number: always the same one."""
    draw = Random(f"negatives {seed}")
    parts, in_segments = draw.randint(1, 3), draw.random() < 0.15
    if in_segments:
        parts = 1
        written = Rows(part="0", start="ends[v]", stop="ends[v + 1]")
        whole = Rows(part="0", start=draw.choice(("0", "ends[0]")), stop="ends[E]")
    else:
        start = draw.choice(("0", "0", "0", _end(draw)))
        whole = written = Rows(start=start, stop=draw.choice((_end(draw), _end(draw), "T")), condition=_condition(draw))
    last = parts - 1
    part = draw.choice(("0", f"(v % {parts})", f"min(v, {last})", f"min(max(v - 2, 0), {last})", f"max({last} - v, 0)"))
    read = whole.of(part)
    place = ""
    if draw.random() < 0.3:
        place = draw.choice(("at[v]", "at[max(v - 3, 0)]", "max(at[v] - 2, 0)", "max(at[v] - n[0], 0)"))
        if draw.random() < 0.3:
            place = _within(draw, _number(draw), "(T - 1)")
    read = Rows(
        part=part, start=_near(draw, read.start), stop=_near(draw, read.stop), place=place,
        condition=draw.choice((read.condition, _near(draw, read.condition), _condition(draw))),
    )  # fmt: skip
    return Drawn(
        written=written, read=read, parts=parts, reads=draw.randint(1, 9),
        promise=draw.choice(("", " rising", " rising", " offsets")),
        bound=draw.choice(("T", "ends[E]", "ends[2]", "n[0]", _bounding(written.of("0")))),
        in_segments=in_segments, tile=draw.choice((2, 5)), tiled=not place,
    )  # fmt: skip


def _bounding(rows: Rows) -> str:
    """The end of what is written, if it is one entry."""
    return rows.stop if re.fullmatch(r"(ends|n)\[\d\]", rows.stop) else "T"


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """refused: by which rule, or "" if it is accepted. unwritten: the launch that goes wrong, asked of accepted ones.

    alone: what the rule of undefined reads refuses if it asks of each pair of accesses by itself.
    """

    refused: str
    unwritten: str = ""
    alone: str | None = None

    @property
    def wrong(self) -> bool:
        return not self.refused and bool(self.unwritten or self.alone)


def judge(one: Drawn) -> Verdict:
    """Asks the rules, and of what they accept both oracles."""
    try:
        plan = one.plan()
        found = refusals(plan, limit=1)
    except TileLinkError as error:
        first = error.errors[0] if isinstance(error, SeveralErrors) else error
        return Verdict(refused=type(first).__name__)
    if found:
        return Verdict(refused=found[0].rule, unwritten=one.unwritten() if found[0].rule == "coverage" else "")
    of_pairs: dict[str, Any] = {"_unproved": lambda _, found, __: found, "_open": lambda _, alike: alike}
    with mock.patch.multiple(undefined_reads, **of_pairs):
        alone = next(map(str, undefined_reads.undefined_reads(plan)), None)
    return Verdict(refused="", unwritten=one.unwritten(), alone=alone)


def main(number: int, first: int = 0) -> int:
    """Prints what was said, and each program that is accepted and wrong; 1 if there is one."""
    counts, wrong = Counter[str](), 0
    undefined_reads.FEW = 0  # families are asked of each box, however few its reads are
    for seed in range(first, first + number):
        verdict = judge(drawn(seed))
        said = "accepted" if not verdict.refused else f"refused by {verdict.refused}"
        if verdict.refused == "coverage":
            said += ", a launch goes wrong" if verdict.unwritten else ", right in all launches"
        counts[said] += 1
        if verdict.wrong:
            wrong += 1
            print(f"{seed}: accepted, {verdict.unwritten or verdict.alone}\n{drawn(seed).text}", flush=True)
        if (seed - first) % 1000 == 999:
            print(seed + 1 - first, dict(counts), file=sys.stderr, flush=True)
    print(dict(sorted(counts.items())), f"false accepts: {wrong}")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0))
