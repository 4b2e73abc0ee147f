"""Tensors that are read and written in place: what orders each read and each write of an element, by signals alone."""

from __future__ import annotations

import re

import pytest
import torch

import tilelink
from tests.tiers import thorough
from tests.verifier import dynamic
from tilelink.errors import ExclusiveWriteError, OrderingError, TileLinkError
from tilelink.ir.typing import infer
from tilelink.planning.plan import Plan
from tilelink.reference import trial
from tilelink.reference.run import run

SIZES = {"M": 12, "N": 8, "T": 5}

BEFORE_AND_AFTER = """
program p(M, N):
    x : inout [M, N]
    y : out   [M, N]
    z : out   [M, N]
    compute old(i: M, j: N):
        y[i, j] = x[i, j]
        producer_tile_notify(x[i, j])
    compute change(i: M, j: N):
        consumer_tile_wait(x[i, j])
        x[i, j] = x[i, j] * 2.0
        peer_tile_notify(x[i, j])
    compute new(i: M, j: N):
        peer_tile_wait(x[i, j])
        z[i, j] = x[i, j]
"""
PART = """
program p(M, N):
    x : inout [M, N]
    compute change(i: M - 4, j: N):
        x[i + 2, j] = 0.0
"""
ROWS = """
program p(M, N, T):
    slot : in    [T] < M distinct
    v    : in    [T, N]
    x    : inout [M, N]
    compute append(t: T, j: N):
        x[slot[t], j] = v[t, j]
"""
ADDED_ROWS = ROWS.replace("= v[t, j]", "= x[slot[t], j] + v[t, j]")
ROW_BY_ROW = ADDED_ROWS.replace("t: T", "t: T by 1")
SEGMENTS = """
program p(M, N, T):
    starts : in    [T + 1] <= M rising
    x      : inout [M, N]
    compute change(t: T, i: M[starts[t] : starts[t + 1]], j: N):
        x[i, j] = x[i, j] + 1.0
"""
STEPS = """
program p(M, N, T):
    v : in    [T, M, N]
    x : inout [M, N]
    compute add(i: M, j: N):
        for (t: T by 1):
            x[i, j] = x[i, j] * 0.5 + v[t, i, j]
"""
AVERAGED = """
program p(M, N):
    x : inout [M, N]
    compute average(i: M):
        mean = sum(x[i, :], axis=1) / N
        x[i, :] = mean[:, None]
"""
SUMS = """
program p(M, N, T):
    row : in    [T] < M
    v   : in    [T, N]
    x   : inout [M, N] f32 sum
    z   : out   [M, N]
    compute first(i: M, j: N):
        x[i, j] = x[i, j] * 0.5
        rank_notify(x[i, j])
    compute scatter(t: T, j: N):
        rank_wait(x[:, j])
        x[row[t], j] += v[t, j]
        producer_tile_notify(x[:, j])
    compute more(i: M, j: N):
        rank_wait(x[i, j])
        x[i, j] += 1.0
        producer_tile_notify(x[i, j])
    compute after(i: M, j: N):
        consumer_tile_wait(x[i, j])
        z[i, j] = x[i, j]
"""
SET = """
program p(M, N):
    x : inout [M, N] f32 sum
    compute first(i: M, j: N):
        x[i, j] = 0.5
        rank_notify(x[i, j])
    compute more(i: M, j: N):
        rank_wait(x[i, j])
        x[i, j] += 1.0
"""
REPEATED = """
program p(M, N, T):
    v : in    [T, M, N]
    x : inout [M, N] f32 sum
    compute add(t: T by 1, i: M, j: N):
        x[i, j] += v[t, i, j]
        x[i, j] += x_of(t)
""".replace("x_of(t)", "f32(t) * 0.25")
SAFE = {
    "before and after": BEFORE_AND_AFTER,
    "a part": PART,
    "rows": ROWS,
    "added rows": ADDED_ROWS,
    "row by row": ROW_BY_ROW,
    "segments": SEGMENTS,
    "steps": STEPS,
    "averaged": AVERAGED,
    "sums": SUMS,
    "set": SET,
    "repeated": REPEATED,
}


def plan(text: str, tiles: int = 4) -> Plan:
    """Plan a program, with tiles of a few elements."""
    program = tilelink.parse(text).program("p")
    sizes = {name: size for name, size in SIZES.items() if name in {p.name for p in program.params}}
    schedule, typing = tilelink.schedule(program), infer(program)
    for stage in program.stages:
        numbers = typing.stage(stage.name).scalar_indices
        schedule = schedule.tile(stage.name, **{d.name: tiles for d in stage.indices if d.name not in numbers})
    return tilelink.plan(program, schedule, ranks=2, dims=sizes)


@thorough(unless=lambda name, tiles: tiles > 1 or name != "segments")
@pytest.mark.parametrize("name", SAFE)
@pytest.mark.parametrize("tiles", [1, 4, 64])
def test_accepted(name: str, tiles: int) -> None:
    plan(SAFE[name], tiles)


def test_threads_meet_between_a_read_of_a_row_and_its_store() -> None:
    """One thread would store an element before another one has read it for its sum."""
    body = plan(AVERAGED).bound.stages["average"].stage.body
    assert [type(one).__name__ for one in body] == ["Assign", "Barrier", "Store"]


@pytest.mark.parametrize("name", ["before and after", "a part", "steps", "set", "repeated"])
def test_no_interleaving_of_these_fails(name: str) -> None:
    """Also over launches, of which each reads what the one before has left."""
    assert not dynamic.check(plan(SAFE[name]))


WRONG = [
    (
        "before and after",
        "        consumer_tile_wait(x[i, j])\n",
        "reads x of rank 0, which .* only the schedule orders",
    ),
    ("before and after", "        peer_tile_wait(x[i, j])\n", "reads x of rank 0, which .* only the schedule orders"),
]


@pytest.mark.parametrize(("name", "left_out", "text"), WRONG)
def test_refused_without_a_wait(name: str, left_out: str, text: str) -> None:
    """A schedule that happens to order two accesses is not enough: another one would read something else."""
    program = SAFE[name].replace(left_out, "")
    with pytest.raises(OrderingError, match=text) as caught:
        plan(program)
    assert "or notify it after the read and wait for it before the write" in str(caught.value)
    with pytest.raises(OrderingError, match="no signal orders this after what another task does there"):
        _reference(program)


CHANGED = [
    ("rows", " distinct", "", "ExclusiveWriteError: .*writes x through slot, which may name an element twice"),
    ("row by row", " distinct", "", "OrderingError|ExclusiveWriteError"),
    ("row by row", "x[slot[t], j] + v", "x[slot[(t + 1) % T], j] + v", "OrderingError"),
    ("row by row", "x[slot[t], j] + v", "x[t, j] + v", "OrderingError: .*reads x"),
    ("segments", " rising", "", "OrderingError|ExclusiveWriteError"),
    ("a part", "x[i + 2, j] = 0.0", "x[i + 2, j] = x[i + 3, j]", "OrderingError: .*while it writes x"),
    ("sums", "        rank_wait(x[:, j])\n", "", "x of rank 0, which .* orders the two"),
    ("sums", "        rank_wait(x[i, j])\n", "", "x of rank 0, which .* orders the two"),
    ("sums", "        consumer_tile_wait(x[i, j])\n", "", "reads x of rank 0, which .*only the schedule orders"),
    ("set", "        rank_wait(x[i, j])\n", "", "ExclusiveWriteError: .*writes x of rank 0, which .* orders the two"),
    ("sums", "x[row[t], j] +=", "x[row[t], j] =", "writes x through row, which may name an element twice"),
    ("sums", "x[i, j] += 1.0", "x[i, j] = x[i, j] + 1.0", "x of rank 0, which .* orders the two"),
    ("repeated", "x[i, j] += v", "x[i, j] = v", "ExclusiveWriteError: .*writes x of rank 0"),
    ("repeated", " f32 sum", " f32", "x of rank 0, which .* orders the two"),
    ("a part", "x[i + 2, j] = 0.0", "x[2, j] = 0.0", "ExclusiveWriteError: .*writes x of rank 0"),
]


@pytest.mark.parametrize(("name", "old", "new", "text"), CHANGED)
def test_refused_after_a_change(name: str, old: str, new: str, text: str) -> None:
    assert old in SAFE[name]
    with pytest.raises(TileLinkError) as caught:
        plan(SAFE[name].replace(old, new))
    assert re.search(text, str(caught.value), re.DOTALL), str(caught.value)


def test_a_copy_through_other_entries_is_refused() -> None:
    """Equal boxes of two regions say nothing of the order of their rows, if entries name them."""
    text = ROWS.replace("v    : in    [T, N]", "from_ : in   [T] < M").replace("= v[t, j]", "= x[from_[t], j]")
    with pytest.raises(OrderingError, match="in another order"):
        plan(text)


@pytest.mark.parametrize("name", SAFE)
def test_reference(name: str) -> None:
    inputs, outputs = _reference(SAFE[name])
    for given, found in zip(inputs, outputs, strict=True):
        before, after = given["x"].double(), found["x"].double()
        match name:
            case "before and after":
                expected = before * 2
                assert torch.equal(found["y"].double(), before) and torch.equal(found["z"].double(), expected)
            case "a part":
                expected = before.clone()
                expected[2:10] = 0
            case "rows":
                expected = before.clone()
                expected[given["slot"].long()] = given["v"].double()
            case "added rows" | "row by row":
                expected = before.clone()
                expected[given["slot"].long()] += given["v"].double()
            case "sums":
                expected = (before * 0.5 + 1).index_add(0, given["row"].long(), given["v"].double())
                torch.testing.assert_close(found["z"].double(), after)
            case "averaged":
                expected = before.mean(1, keepdim=True).expand_as(before)
            case "set":
                expected = torch.full_like(before, 1.5)
            case "repeated":
                expected = before + given["v"].double().sum(0) + 0.25 * sum(range(SIZES["T"]))
            case "segments":
                expected = before.clone()
                expected[int(given["starts"][0]) : int(given["starts"][-1])] += 1
            case _:
                expected = before
                for value in given["v"].double():
                    expected = expected * 0.5 + value
        torch.testing.assert_close(after, expected, rtol=1e-5, atol=1e-5)


def _reference(text: str) -> tuple[list[dict[str, torch.Tensor]], list[dict[str, torch.Tensor]]]:
    program = tilelink.parse(text).program("p")
    sizes = {name: size for name, size in SIZES.items() if name in {p.name for p in program.params}}
    inputs = trial.random_inputs(program, ranks=2, dims=sizes, dtype="f32", launches=1)[0]
    return inputs, [dict(one) for one in run(program, inputs, sizes)]


def test_what_is_added_through_repeated_entries_is_a_sum() -> None:
    """The hint names the declaration that lets it be added, and not only the promise that entries differ."""
    text = """
program p(M = 6, T = 4, N = 4):
    row : in    [T] < M
    v   : in    [T, N]
    d   : inout [M, N] f32{sum}
    compute add(t: T, j: N):
        d[row[t], j] += v[t, j]
"""
    sizes = {"M": 6, "T": 4, "N": 4}
    with pytest.raises(ExclusiveWriteError, match="may name an element twice") as caught:
        tilelink.plan(tilelink.parse(text.format(sum="")).program(), ranks=1, dims=sizes)
    assert caught.value.hint is not None and "declare a sum: d : inout [...] f32 sum" in caught.value.hint
    tilelink.plan(tilelink.parse(text.format(sum=" sum")).program(), ranks=1, dims=sizes)
