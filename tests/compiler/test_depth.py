# pyright: basic
"""Deep and long programs work, or are refused at once with their place, the limit and what to do."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from tests.cli.test_choices import tilelink
from tests.tiers import thorough
from tilelink import compiler
from tilelink.errors import ParseError
from tilelink.ir.depth import deep
from tilelink.ir.program import Apply, If, Literal, Program, Store
from tilelink.ir.scalar import Binary, Int, Rank
from tilelink.tuning import algorithms, rank

HEAD = "program p(M):\n    x : in [M]\n    y : out [M]\n    compute f(i: M):\n"


def stored(value: str) -> str:
    return f"{HEAD}        y[i] = {value}\n"


def nested(head: str, count: int) -> str:
    lines = ["    " * level + head.format(level) for level in range(count)]
    return HEAD + "".join(f"        {line}\n" for line in [*lines, "    " * count + "y[i] = x[i]"])


SIZE = "M" + " + M - M" * 250
WORKS = {
    "a sum of 500 terms": stored(" + ".join(["x[i]"] * 500)),
    "400 calls": stored("tanh(" * 400 + "x[i]" + ")" * 400),
    "3000 brackets": stored("(" * 3000 + "x[i]" + ")" * 3000),
    "300 conditions of elements": stored(f"where({' and '.join(['x[i] > -1.0'] * 300)}, x[i], 0.0)"),
    "2000 conditions": HEAD + f"        if {' and '.join(['rank < ranks + M'] * 2000)}:\n            y[i] = x[i]\n",
    "a sum of 500 integers": stored("x[i] + (M" + " + M - rank" * 250 + ")"),
    "an index with 500 terms": stored("x[i] + 1.0").replace("y[i]", "y[i" + " + rank - rank" * 250 + "]"),
    "sizes of 500 terms": stored("x[i]").replace("[M]", f"[{SIZE}]").replace("(i: M)", f"(i: {SIZE})"),
    "80 integers in brackets": stored("x[i] + " + "(rank - " * 80 + "rank" + ")" * 80),
    "30 conditions inside one another": nested("if rank < ranks + {}:", 30),
    "12 loops inside one another": nested("for (s{}: 1):", 12),
}
WHAT = "operations inside one another"
REFUSED = {
    "a sum of 1500 terms": (stored(" + ".join(["x[i]"] * 1500)), f"an expression has more than 1000 {WHAT}", 5),
    "3000 calls": (stored("exp(" * 3000 + "x[i]" + ")" * 3000), f"an expression has more than 1000 {WHAT}", 5),
    "a sum of 1500 integers": (
        stored("x[i] + (M" + " + M - M" * 750 + ")"),
        f"an expression has more than 1000 {WHAT}",
        5,
    ),
    "150 integers in brackets": (
        stored("x[i] + " + "(rank - " * 150 + "rank" + ")" * 150),
        f"an integer expression has more than 100 {WHAT}",
        5,
    ),
    "1200 conditions of elements": (
        stored(f"where({' and '.join(['x[i] > -1.0'] * 1200)}, x[i], 0.0)"),
        f"an expression has more than 1000 {WHAT}",
        5,
    ),
    "100 conditions": (nested("if rank < ranks + {}:", 100), "more than 32 blocks", 37),
    "25 loops": (nested("for (s{}: 1):", 25), "more than 32 blocks, or 12 indices of loops", 17),
}  # fmt: skip


@thorough(unless=lambda name: name != "2000 conditions")
@pytest.mark.parametrize("name", WORKS)
def test_what_is_within_the_limits_runs_and_is_right(name: str) -> None:
    limit, began = sys.getrecursionlimit(), time.process_time()
    program = compiler.parse(WORKS[name]).program()
    with deep():
        assert compiler.parse(str(program)).program() == program
    kernel = compiler.compile(program, ranks=1, dims={"M": 16})
    inputs = [{"x": torch.linspace(0.1, 1.0, 16)}]
    assert torch.allclose(kernel(inputs)[0]["y"], kernel.reference(inputs)[0]["y"].float(), rtol=1e-4, atol=1e-4)
    assert sys.getrecursionlimit() == limit
    assert time.process_time() - began < 30


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_beyond_them_is_refused_at_once(name: str) -> None:
    text, message, line = REFUSED[name]
    began = time.process_time()
    with pytest.raises(ParseError) as caught:
        compiler.check(compiler.parse(text).program())
    assert message in caught.value.message
    assert caught.value.location is not None and caught.value.location.line == line
    assert caught.value.hint
    assert time.process_time() - began < 10


@thorough(unless=lambda command: command == "check")
@pytest.mark.parametrize("command", ["check", "show --stage plan", "simulate", "tune --trials 1"])
def test_commands_take_what_is_within_the_limits(command: str, tmp_path: Path) -> None:
    (file := tmp_path / "deep.tl").write_text(stored(" + ".join(["x[i]"] * 1000)))
    name, *rest = command.split()
    done = tilelink(name, str(file), *rest, "--ranks", "2", "--set", "M=16")
    assert done.exit_code == 0, done.output


def test_searches_take_what_is_within_the_limits() -> None:
    text = stored(" + ".join(["x[i]"] * 1000))
    one, other = compiler.parse(text).program(), compiler.parse(text.replace("program p", "program q")).program()
    same = algorithms([one, other], one)
    assert same == (one, other)
    assert rank(same, dims={"M": 16}, ranks=1, trials=1).ranking


@pytest.mark.parametrize(
    ("value", "limit"),
    [("x[i]{}", 1000), ("x[i] + rank{}", 999), ("x[i] + ({}M{})", 100)],
)
def test_as_many_operations_as_the_limit_says(value: str, limit: int) -> None:
    for count in (limit, limit + 1):
        text = value.format(" + x[i]" * count) if limit > 100 else value.format("(" * count, " // 2)" * count)
        program = compiler.parse(stored(text)).program() if count == limit else None
        if program is not None:
            compiler.plan(program, ranks=1, dims={"M": 16})
            continue
        with pytest.raises(ParseError, match=f"more than {1000 if limit > 100 else 100} operations"):
            compiler.check(compiler.parse(stored(text)).program())


def test_programs_built_from_values_have_the_same_limits() -> None:
    program = compiler.parse(stored("x[i]")).program()
    store = program.stages[0].body[0]
    assert isinstance(store, Store)
    value, number, block = store.value, Rank(), store
    for _ in range(1500):
        value = Apply(op="add", args=(value, Literal(value=1.0)))
        number = Binary(op="+", left=number, right=Int(value=1))
        block = If(condition=Int(value=1), then=(block,))
    odd = [(Store(region=store.region, value=value),), (If(condition=number, then=(store,)),), (block,)]
    messages = []
    for body in odd:
        stage = program.stages[0]
        changed = type(stage)(kind=stage.kind, name=stage.name, indices=stage.indices, body=body)
        with pytest.raises(ParseError) as caught:
            compiler.check(Program(name="p", params=program.params, tensors=program.tensors, stages=(changed,)))
        messages.append(caught.value.message)
    assert [m[:25] for m in messages] == [
        "an expression has more th",
        "an integer expression has",
        "more than 32 blocks, or 1",
    ]


def test_the_room_for_deep_walks_lasts_until_the_last_thread_has_left() -> None:
    before, entered, leave = sys.getrecursionlimit(), threading.Event(), threading.Event()

    def stay() -> None:
        with deep():
            entered.set()
            leave.wait(10)

    thread = threading.Thread(target=stay)
    with deep():
        thread.start()
        assert entered.wait(10)
    assert sys.getrecursionlimit() > before
    leave.set()
    thread.join(10)
    assert sys.getrecursionlimit() == before
