"""Operators in one and in two levels on nodes of eight GPUs, simulated.

    python -m benchmarks.two_level          simulates; writes results/two_level.json and docs/multi_node.md's tables
    python -m benchmarks.two_level OP ...   simulates these operators anew, and keeps the results of the others
    python -m benchmarks.two_level tables   writes the tables from the results that are there

A row is the fastest of some schedules. What would take too long on 128 nodes is extrapolated and marked.
"""

from __future__ import annotations

import gc
import json
import platform
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import tilelink
from tilelink.frontend.schedule_parser import parse_schedule
from tilelink.ir.program import Program
from tilelink.lowering.bind import bind
from tilelink.planning.plan import make_plan
from tilelink.planning.queue_order import with_queue_order
from tilelink.simulator import simulate
from tilelink.simulator.machine import load_machine
from tilelink.target import target
from tilelink.verifier import verify

MACHINE = load_machine("h100-cluster")
NODE = MACHINE.node_ranks
RESULT = Path(__file__).parent / "results" / "two_level.json"
PAGE = Path(__file__).parents[1] / "docs" / "multi_node.md"
BEGIN, END = "<!-- written by benchmarks/two_level.py -->", "<!-- end of what it wrote -->"

COLUMNS = 512
"""Of a shard of the collectives: a row of bf16 has 1 KiB."""
SHARD_ROWS = (4, 64, 1024)
ROWS, WIDTH = 128, 2048
"""Of a rank's shard of the products: 512 KiB of bf16."""
DEPTHS = (512, 4096)
"""How much is computed with each shard: columns of a rank (ag_gemm), or its part of the contracted dimension."""
NODES = (2, 8)
FITTED = {True: (8, 16), False: (16, 32)}
"""Nodes whose figures are extrapolated: of products, of collectives."""
LARGE = 128
FULL = ("all_gather", (4, 1024))
"""The operator and the rows of a shard that are simulated on the large cluster too."""
FAR_FIRST = f"rank + {NODE} hier({NODE})"
ORDERS = {"ring": "rank + 1 step +1", "hier": f"rank hier({NODE})", "far first": FAR_FIRST}


PIECES = 4
IN_PIECES = f", {PIECES} pieces"


@dataclass(frozen=True, kw_only=True)
class Case:
    """One operator with its sizes. `size`: what varies, rows of a shard or depth of a product."""

    op: str
    size: int

    @property
    def product(self) -> bool:
        return "gemm" in self.op

    @property
    def shard_bytes(self) -> int:
        return 2 * (ROWS * WIDTH if self.product else self.size * COLUMNS)

    def dims(self, level: int) -> dict[str, int | float | bool]:
        """Numbers for the program's parameters."""
        sizes = {
            "all_gather": {"Ms": self.size, "K": COLUMNS},
            "reduce_scatter": {"Ms": self.size, "N": COLUMNS},
            "ag_gemm": {"Ms": ROWS, "K": WIDTH, "N": self.size},
            "gemm_rs": {"Ms": ROWS, "N": WIDTH, "K": self.size},
        }[self.op]
        return {**sizes, **({"g": NODE} if level == 2 else {})}


CASES = (
    *(Case(op=op, size=rows) for op in ("all_gather", "reduce_scatter") for rows in SHARD_ROWS),
    *(Case(op=op, size=depth) for op in ("ag_gemm", "gemm_rs") for depth in DEPTHS),
)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One figure: microseconds, and the bound of the program on the machine. schedule: what it ran with, in words."""

    op: str
    size: int
    shard_bytes: int
    level: int
    nodes: int
    how: str
    """simulated or extrapolated."""
    schedule: str
    us: float
    bound_us: float | None
    tasks: int | None


# Schedules ---------------------------------------------------------------------------------------------------


def schedules(case: Case, level: int) -> dict[str, str]:
    """name -> text of a schedule, to try for a case: a shard is moved as one tile, or in pieces."""
    found: dict[str, str] = {}
    rows = ROWS if case.product else case.size
    for pieces in (1,) if case.op == "gemm_rs" else (1, PIECES):  # its tiles are small in any case
        for name, chosen, lines in _WAYS[case.op, level](max(1, rows // pieces)):
            text = "\n    ".join([f"schedule tried for {chosen}:", *lines]) + "\n"
            found[f"{name}{IN_PIECES}" if pieces > 1 else name] = text
    return found


PRODUCT = "on sm, tile(i=128, j=256, k=64), num_warps 8, num_stages 3"
Way = tuple[str, str, list[str]]
"""Name, program and the lines of a schedule."""


def _all_gather(tile: int) -> Iterator[Way]:
    for order, start in ORDERS.items():
        for where in ("sm", "copy_engine"):
            gather = f"gather on {where}, push, tile(i={tile}), order(p = {start}, i)"
            yield f"{where}, {order}", "all_gather", [gather, f"y channel(i={tile})"]


def _reduce_scatter(tile: int) -> Iterator[Way]:
    for order, start in ORDERS.items():
        for where in ("sm(64)", "copy_engine"):
            scatter = f"scatter on {where}, tile(i={tile}), order(p = {start}, i)"
            lines = [scatter, "reduce on sm, tile(i=32, j=512)", f"parts channel(i={tile})"]
            yield f"{where}, {order}", "reduce_scatter", lines


def _ag_gemm(tile: int) -> Iterator[Way]:
    for order, arrival in (("ring", "rank step -1"), ("hier", f"rank hier({NODE})")):
        for where in ("sm(8)", "sm(32)", "copy_engine"):
            gather = f"gather on {where}, tile(i={tile}), order(p = {ORDERS[order]}, i)"
            lines = [gather, f"gemm {PRODUCT}, order(s = {arrival})", f"xs channel(i={tile})"]
            yield f"{where}, {order}", "ag_gemm", lines


def _gemm_rs(tile: int) -> Iterator[Way]:
    for where in ("sm(8)", "sm(32)", "copy_engine"):
        channels = [f"c channel(i={tile}, j={WIDTH})", f"parts channel(i={tile}, j={WIDTH})"]
        for name, order in (("slots", "ring"), ("scatter", "far first")):
            start = ORDERS[order]
            scatter = f"scatter on {where}, tile(i={tile}, j={WIDTH}), order(s = {start}, i)"
            lines = [f"gemm {PRODUCT}, order(s = {start})", scatter, *channels]
            more = ["reduce on sm, tile(i=32, j=256)"] if name == "scatter" else []
            yield f"{name}, {where}, {order}", f"gemm_rs_{name}", [*lines, *more]


AWAY = "n = rank // g + 1 step +1"
"""Nodes from the next one on, the own one last: each node is sent to by one other at a time."""
DEPARTURE, ARRIVAL = "n = rank // g step +1", "n = rank // g step -1"
"""Nodes from the own one on, whose ranks begin with it, and the order in which they then arrive."""


def _gathered(tile: int, copy_sms: int, where: str) -> list[str]:
    return [
        f"across on sm({copy_sms}), tile(i={tile}), order({DEPARTURE}, i)",
        f"inside on {where}, tile(i={tile}), order({ARRIVAL}, i, q = rank + 1 step +1)",
    ]


def _two_level_all_gather(tile: int) -> Iterator[Way]:
    for copy_sms in (4, 16, 64):
        for where in ("sm", "copy_engine"):
            lines = [*_gathered(tile, copy_sms, where), f"y channel(i={tile})"]
            yield f"sm({copy_sms}) across, {where} inside", "two_level_all_gather", lines


def _two_level_reduce_scatter(tile: int) -> Iterator[Way]:
    for copy_sms, rows in product((16, 64), sorted({max(1, min(32, tile // 16)), max(1, min(64, tile // 4))})):
        for where in (f"sm({copy_sms})", "copy_engine"):
            yield f"{where} inside, sm({copy_sms}) across, {rows} rows a message", "two_level_reduce_scatter", [
                f"inside on {where}, tile(i={tile}), order({AWAY}, i, q = rank + 1 step +1)",
                f"across on sm({copy_sms}), tile(i={rows}, j={COLUMNS}), order({AWAY}, i, j)",
                "reduce on sm, tile(i=32, j=512)",
                f"parts channel(i={tile})",
                f"sums channel(i={tile})",
            ]  # fmt: skip


def _two_level_ag_gemm(tile: int) -> Iterator[Way]:
    for copy_sms in (4, 8, 16):
        where = f"sm({2 * copy_sms})"  # a copy engine would reset the counters for which the product waits too
        gemm = f"gemm {PRODUCT}, order({ARRIVAL}, q = rank step -1)"
        lines = [*_gathered(tile, copy_sms, where), gemm, f"xs channel(i={tile})"]
        yield f"sm({copy_sms}) across, {where} inside", "two_level_ag_gemm", lines


def _two_level_gemm_rs(tile: int) -> Iterator[Way]:
    for copy_sms, rows in product((8, 16, 32), (4, 8, 16)):  # whole rows: one message
        yield f"sm({copy_sms}) across, {rows} rows a message", "two_level_gemm_rs", [
            f"gemm {PRODUCT}, order({AWAY}, q = rank + 1 step +1)",
            f"across on sm({copy_sms}), tile(i={rows}, j={WIDTH}), order({AWAY}, i, j)",
            "reduce on sm, tile(i=32, j=256)",
            "parts channel(i=128, j=256)",
            f"sums channel(i={tile}, j={WIDTH})",
        ]  # fmt: skip


_WAYS = {
    ("all_gather", 1): _all_gather, ("all_gather", 2): _two_level_all_gather,
    ("reduce_scatter", 1): _reduce_scatter, ("reduce_scatter", 2): _two_level_reduce_scatter,
    ("ag_gemm", 1): _ag_gemm, ("ag_gemm", 2): _two_level_ag_gemm,
    ("gemm_rs", 1): _gemm_rs, ("gemm_rs", 2): _two_level_gemm_rs,
}  # fmt: skip


# Figures -----------------------------------------------------------------------------------------------------


@cache
def program(name: str) -> Program:
    return tilelink.load(name).program(name)


def figure(case: Case, level: int, nodes: int, name: str, text: str, *, proved: bool = False) -> Row:
    """One schedule, simulated on all ranks. proved: the verifier runs too."""
    schedule = parse_schedule(text)
    bound = bind(program(schedule.program), schedule, case.dims(level), nodes * NODE, target(MACHINE.target), "bf16")
    plan = with_queue_order(make_plan(bound))
    if proved:
        verify(plan)
    result = simulate(plan, MACHINE)
    return Row(
        op=case.op, size=case.size, shard_bytes=case.shard_bytes, level=level, nodes=nodes, how="simulated",
        schedule=name, us=result.seconds * 1e6, bound_us=result.bound.seconds * 1e6, tasks=plan.tasks,
    )  # fmt: skip


def tried(case: Case, level: int, nodes: int) -> list[Row]:
    """All the schedules, the fastest first; on two nodes the verifier sees them."""
    ways = schedules(case, level)
    return sorted((figure(case, level, nodes, *way, proved=nodes == 2) for way in ways.items()), key=lambda row: row.us)


def extrapolated(first: Row, second: Row, nodes: int) -> Row:
    """The line through two numbers of nodes: all these programs send as much more with each further node."""
    slope = (second.us - first.us) / (second.nodes - first.nodes)
    return Row(
        op=first.op, size=first.size, shard_bytes=first.shard_bytes, level=first.level, nodes=nodes,
        how="extrapolated", schedule=second.schedule, us=second.us + slope * (nodes - second.nodes), bound_us=None,
        tasks=None,
    )  # fmt: skip


def again(case: Case, row: Row, nodes: int) -> Row:
    """A row's schedule on another number of nodes."""
    return figure(case, row.level, nodes, row.schedule, schedules(case, row.level)[row.schedule])


def measure(case: Case, level: int) -> tuple[list[Row], list[Row]]:
    """(rows of the comparison, one schedule that moves whole shards on more and more nodes) of one program."""
    few, some = (tried(case, level, nodes) for nodes in NODES)
    near, far = FITTED[case.product]
    whole = (row for row in some if not row.schedule.endswith(IN_PIECES))
    first = min((row if row.nodes == near else again(case, row, near) for row in whole), key=lambda row: row.us)
    second = again(case, first, far)
    estimate = extrapolated(first, second, LARGE)
    if case.op == FULL[0] and case.size in FULL[1]:
        full = again(case, first, LARGE)
        return [few[0], some[0], full], [first, second, full, estimate]
    return [few[0], some[0], estimate], [first, second]


def results(ops: Sequence[str] = (), before: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Everything that the report says, as JSON. ops: the operators to simulate, the others are in `before`; (): all."""
    began, before = time.perf_counter(), before or {}
    kept = {name: [Row(**row) for row in before.get(name, [])] for name in ("rows", "lines", "orders")}
    rows, lines = ([row for row in kept[name] if row.op not in ops] for name in ("rows", "lines"))
    orders = kept["orders"]
    if not ops or FULL[0] in ops:
        orders = [row for row in tried(Case(op=FULL[0], size=1024), 1, 8) if not row.schedule.endswith(IN_PIECES)]
    for case in (one for one in CASES if not ops or one.op in ops):
        for level in (1, 2):
            more = measure(case, level)
            rows += more[0]
            lines += more[1]
            shown = ", ".join(f"{row.nodes}: {row.us:.0f} us ({row.schedule}; {row.how})" for row in more[0])
            print(f"{time.perf_counter() - began:6.0f} s {case.op} {case.size} level {level}: {shown}", flush=True)
    return {
        "machine": MACHINE.name,
        "wall_s": round(time.perf_counter() - began) + (before.get("wall_s", 0) if ops else 0),
        "python": platform.python_version(),
        "rows": [asdict(row) for row in rows],
        "lines": [asdict(row) for row in lines],
        "orders": [asdict(row) for row in orders],
    }


# Report ------------------------------------------------------------------------------------------------------


def report(found: dict[str, Any]) -> str:
    """The generated part of the page."""
    rows = [Row(**row) for row in found["rows"]]
    lines, orders = ([Row(**row) for row in found[name]] for name in ("lines", "orders"))
    tables = (_collectives(rows), _products(rows), _orders(orders), _lines(lines))
    notes = (
        "Microseconds; ~ is extrapolated. Collectives, by the bytes of a rank's shard:",
        f"Products, shards of {_bytes(2 * ROWS * WIDTH)}, by depth (a rank's columns, or its part of the contraction):",
        "all_gather in one level, 1 MiB, 8x8, by who moves the shards and in which order:",
        "Extrapolations whose cases were simulated too:",
    )
    parts = [text for note, table in zip(notes, tables, strict=True) for text in ("", note, "", *table)]
    return "\n".join([*parts, "", f"Made in {found['wall_s']} s.", ""])


def one(rows: Sequence[Row], *key: str | int) -> Row:
    """The row of (op, size, level, nodes)."""
    return next(r for r in rows if (r.op, r.size, r.level, r.nodes) == key)


def _collectives(rows: Sequence[Row]) -> Iterator[str]:
    yield from _head("operator", "shard of a rank")
    for op in ("all_gather", "reduce_scatter"):
        for size in SHARD_ROWS:
            yield f"| {op} | {_bytes(2 * size * COLUMNS)} | {' | '.join(_cells(rows, op, size))} |"


def _products(rows: Sequence[Row]) -> Iterator[str]:
    yield from _head("operator", "depth")
    for op in ("ag_gemm", "gemm_rs"):
        for size in DEPTHS:
            yield f"| {op} | {size} | {' | '.join(_cells(rows, op, size))} |"


def _orders(rows: Sequence[Row]) -> Iterator[str]:
    yield "| moved by, order | us |"
    yield "|---|---:|"
    for row in rows:
        yield f"| {row.schedule} | {_us(row)} |"


def _head(*names: str) -> Iterator[str]:
    heads = [f"{nodes}x{NODE}: {what}" for nodes in (*NODES, LARGE) for what in ("one", "two", "one / two")]
    yield f"| {' | '.join([*names, *heads])} |"
    yield "|---" * 2 + "|---:" * len(heads) + "|"


def _cells(rows: Sequence[Row], op: str, size: int) -> Iterator[str]:
    for nodes in (*NODES, LARGE):
        single, double = (one(rows, op, size, level, nodes) for level in (1, 2))
        yield from (_us(single), _us(double), f"{single.us / double.us:.2f}")


def _lines(rows: Sequence[Row]) -> Iterator[str]:
    yield "| operator | shard of a rank | levels | nodes | simulated | extrapolated | off by |"
    yield "|---" * 3 + "|---:" * 4 + "|"
    for guess in (r for r in rows if r.how == "extrapolated"):
        key = (guess.op, guess.size, guess.level, guess.nodes)
        real = one([r for r in rows if r.how == "simulated"], *key)
        cells = (guess.op, _bytes(guess.shard_bytes), f"{guess.level}", f"{guess.nodes}", _us(real), _us(guess))
        yield f"| {' | '.join(cells)} | {guess.us / real.us - 1:+.0%} |"


def _us(row: Row) -> str:
    return f"{'~' if row.how == 'extrapolated' else ''}{row.us:.{0 if row.us >= 100 else 1}f}"


def _bytes(size: int) -> str:
    return f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB"


def page(text: str, found: dict[str, Any]) -> str:
    """The page with its tables put in."""
    head, rest = text.split(BEGIN)
    return f"{head}{BEGIN}\n{report(found)}{END}{rest.partition(END)[2]}"


def main() -> None:
    if sys.argv[1:] != ["tables"]:
        gc.disable()  # millions of small lists that live to the end
        before = json.loads(RESULT.read_text()) if sys.argv[1:] else None
        RESULT.write_text(json.dumps(results(sys.argv[1:], before), indent=1) + "\n")
    PAGE.write_text(page(PAGE.read_text(), json.loads(RESULT.read_text())))


if __name__ == "__main__":
    main()
