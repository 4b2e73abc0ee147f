# pyright: basic
"""Programs and schedules built in Python may contain only names, keywords and numbers that a text can express."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tilelink import compiler
from tilelink.errors import DtypeError, DuplicateNameError, OrderError, ParseError, ScheduleError
from tilelink.frontend.checker import check
from tilelink.ir.program import Apply, Assign, Literal, Param, Store, UserCall
from tilelink.ir.scalar import Binary, Index, Int
from tilelink.lowering.bind import bind
from tilelink.lowering.clauses.order import ORDER
from tilelink.scheduling.schedule import IndexOrder, Order, Schedule
from tilelink.scheduling.words import Said, StageSchedule
from tilelink.target import target

EVIL = "x\nimport os #"
PROGRAM = compiler.parse("""
program p(M, s: f32):
    x : in [M, 8]
    y : out [M, 8]
    compute f(i: M, j: 8):
        v = x[i, j] * 2.0
        y[i, j] = v
""").programs[0]
STAGE = PROGRAM.stages[0]
ASSIGN, STORE = STAGE.body
assert isinstance(ASSIGN, Assign) and isinstance(STORE, Store)
REGION = STORE.region


def stage(**changes) -> dict:
    return {"stages": (replace(STAGE, **changes),)}


def value(value) -> dict:
    return stage(body=(replace(ASSIGN, value=value), STORE))


def row(coordinate) -> dict:
    return stage(body=(ASSIGN, replace(STORE, region=replace(REGION, coords=(coordinate, Index(name="j"))))))


NAMES = {
    "program": {"name": EVIL},
    "parameter": {"params": (*PROGRAM.params, Param(name=EVIL))},
    "tensor": {"tensors": (replace(PROGRAM.tensors[0], name=EVIL), PROGRAM.tensors[1])},
    "stage": stage(name=EVIL),
    "name": stage(body=(replace(ASSIGN, name=EVIL), STORE)),
    "index": row(Index(name=EVIL)),
    "function": value(UserCall(function=EVIL, args=())),
    "letters beyond ASCII": stage(name="größe"),
    "an empty one": stage(name=""),
}


@pytest.mark.parametrize("where", NAMES)
def test_a_name_must_be_valid_in_the_language(where: str) -> None:
    with pytest.raises(ParseError, match=r"is not a name\n(.|\n)*all of ASCII"):
        check(replace(PROGRAM, **NAMES[where]))


WORDS = {
    "Apply with op = 'pow'": value(Apply(op="pow", args=())),
    "Binary with op = ';'": row(Binary(op=";", left=Index(name="i"), right=Int(value=1))),
    "Param with kind = 'text'": {"params": (*PROGRAM.params, Param(name="t", kind="text"))},
    "Stage with kind = 'host'": stage(kind="host"),
    "Literal with value = np.float32": value(Literal(value=np.float32(0.5))),  # type: ignore[arg-type]
    "Int with value = 1.5": row(Int(value=1.5)),  # type: ignore[arg-type]
    "Int with value = \\[1\\]": row(Int(value=[1])),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("what", WORDS)
def test_keywords_and_numbers_must_be_valid_in_the_language(what: str) -> None:
    with pytest.raises(ParseError, match=what):
        check(replace(PROGRAM, **WORDS[what]))


def test_a_keyword_of_the_language_is_not_a_name() -> None:
    with pytest.raises(DuplicateNameError, match="rank is a word of the language"):
        check(replace(PROGRAM, params=(*PROGRAM.params, Param(name="rank"))))


def ordered(term: IndexOrder) -> Schedule:
    return Schedule(name="s", program="p", stages=(StageSchedule(name="f").saying(ORDER, Order(nest=(term,))),))


SCHEDULES = {
    "is not a name": Schedule(name=EVIL, program="p"),
    "IndexOrder with step = '1'": ordered(IndexOrder(index="i", kind="sequence", step="1")),  # type: ignore[arg-type]
    "Int with value = '0'": ordered(IndexOrder(index="i", kind="sequence", start=Int(value="0"))),  # type: ignore[arg-type]
    "num_warps 4.0 of f": Schedule(
        name="s", program="p", stages=(StageSchedule(name="f", said=(Said(name="num_warps", what=4.0),)),)
    ),
    "no clause 'wraps'": Schedule(
        name="s", program="p", stages=(StageSchedule(name="f", said=(Said(name="wraps", what=4),)),)
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", SCHEDULES)
def test_a_schedule_contains_only_names_and_integers(what: str) -> None:
    with pytest.raises(ScheduleError, match=what):
        bind(PROGRAM, SCHEDULES[what], {"M": 16, "s": 1.0}, 1, target("cpu"))


def test_an_order_does_not_start_at_an_index() -> None:
    with pytest.raises(OrderError, match="unknown name 'j' in an order"):
        begin = ordered(IndexOrder(index="i", kind="sequence", start=Index(name="j")))
        bind(PROGRAM, begin, {"M": 16, "s": 1.0}, 1, target("cpu"))


NUMBERS = {
    "1e39": "1e+39 is no number that an f32 holds",
    "1e999": "inf is no number that an f32 holds",
    "5000000000": "5000000000 is no integer of 32 bits",
    "full(1.5, i32)": "1.5 is no i32",
    "full(5000000000, i32)": "5000000000.0 is no i32",
    "full(2, bool)": "2.0 is no bool",
    "(s // 2)": "s is f32, and an integer is needed here",
}


@pytest.mark.parametrize("number", NUMBERS)
def test_a_number_that_does_not_fit_its_dtype_is_refused(number: str) -> None:
    text = str(PROGRAM).replace("2.0", number)
    with pytest.raises(DtypeError) as caught:
        check(compiler.parse(text).programs[0])
    assert NUMBERS[number] in caught.value.message


def test_a_condition_must_consist_of_integers() -> None:
    text = str(PROGRAM).replace("y[i, j] = v", "if s > 1:\n            y[i, j] = v")
    with pytest.raises(DtypeError, match="s is f32, and an integer is needed here"):
        check(compiler.parse(text).programs[0])
