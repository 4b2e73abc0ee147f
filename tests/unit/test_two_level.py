"""The report on programs in two levels: its tables are the stored figures, and the model still says what it says."""

import json
from typing import Any

import pytest

from benchmarks import two_level
from benchmarks.two_level import CASES, NODES, Case, Row, again, extrapolated, one, page, report
from tests.tiers import one_in, thorough

FOUND: dict[str, Any] = json.loads(two_level.RESULT.read_text())
ROWS = [Row(**row) for row in FOUND["rows"]]


def test_the_page_has_the_stored_figures() -> None:
    text = two_level.PAGE.read_text()
    assert page(text, FOUND) == text
    other = {**FOUND, "rows": [{**row, "us": 2 * row["us"] + 1} for row in FOUND["rows"]]}
    assert page(text, other) != text


def test_every_case_is_there_once() -> None:
    keys = [(row.op, row.size, row.level, row.nodes) for row in ROWS]
    wanted = {(c.op, c.size, level, n) for c in CASES for level in (1, 2) for n in (*NODES, two_level.LARGE)}
    assert len(keys) == len(set(keys))
    assert set(keys) == wanted
    assert all(row.us > 0 and (row.bound_us is None or row.us >= row.bound_us) for row in ROWS)


@thorough(unless=lambda case: one_in(3, case.op, case.size))
@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.op}-{c.size}")
def test_the_faster_level_is_the_one_that_the_report_names(case: Case) -> None:
    stored = [one(ROWS, case.op, case.size, level, 2) for level in (1, 2)]
    now = [again(case, row, 2) for row in stored]
    assert (now[1].us < now[0].us) == (stored[1].us < stored[0].us)
    assert [row.us for row in now] == pytest.approx([row.us for row in stored], rel=0.1)


@pytest.mark.parametrize("op", ["all_gather", "reduce_scatter"])
def test_two_levels_pay_off_on_eight_nodes(op: str) -> None:
    case = Case(op=op, size=64)
    single, double = (again(case, one(ROWS, op, 64, level, 8), 8) for level in (1, 2))
    assert double.us < 0.6 * single.us


def test_two_levels_win_but_for_the_smallest_messages_on_few_nodes() -> None:
    keys = {(row.op, row.size, row.nodes) for row in ROWS}
    gains = {key: one(ROWS, *key[:2], 1, key[2]).us / one(ROWS, *key[:2], 2, key[2]).us for key in keys}
    even = {key for key, gain in gains.items() if gain < 1.1}
    assert even == {("all_gather", 4, 2), ("reduce_scatter", 4, 2)}
    assert all(gains[key] > 0.85 for key in even)


def test_the_line_goes_through_both_figures() -> None:
    first, second = (r for r in (Row(**row) for row in FOUND["lines"][:2]))
    assert extrapolated(first, second, second.nodes).us == pytest.approx(second.us)
    assert extrapolated(first, second, first.nodes).us == pytest.approx(first.us)
    assert extrapolated(first, second, 128).how == "extrapolated"


def test_what_is_extrapolated_is_marked() -> None:
    lines = [line for line in report(FOUND).splitlines() if line.startswith("| reduce_scatter")]
    assert lines
    assert all(line.count("~") == 2 for line in lines)
