"""`kernel_order`: signals that the order of kernels makes needless go, and are missed where it does not suffice."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tilelink
from tilelink import compiler
from tilelink.errors import CoverageError, OrderingError, ScheduleError
from tilelink.ir.link import strip
from tilelink.ir.program import Notify, Wait
from tilelink.ir.visitor import statements
from tilelink.lowering.bound import Bound
from tilelink.lowering.clauses import kernel_order
from tilelink.target import target
from tilelink.verifier.by_schedule import by_schedule

TEXT = """
program mlp(M = 24, K = 16, F = 20, N = 12):
    x      : in    [M, K]
    up     : in    [F, K]
    down   : in    [N, F]
    hidden : local [M, F]
    y      : out   [M, N]

    compute widen(i: M, f: F):
        hidden[i, f] = silu(dot(x[i, :], up[f, :].T))

    compute narrow(i: M, j: N):
        y[i, j] = dot(hidden[i, :], down[j, :].T)

schedule one for mlp:
    widen on sm, tile(i=16, f=8), {clause}
    narrow {narrow}, tile(i=16, j=8)
    {tensor} {how}
"""
SIZES = {"M": 24, "K": 16, "F": 20, "N": 12}
TILES = """
program tiles(M = 8, N = 16):
    x : in    [M, N]
    h : local [M + 1, N]
    y : out   [M, N]

    compute carry(i: M by 1):
        if i == 0:
            h[0, :] = x[0, :]
            peer_tile_notify(h[0, :])
        peer_tile_wait(h[i, :])
        total = h[i, :] + x[i, :]
        h[i + 1, :] = total
        peer_tile_notify(h[i + 1, :])
        y[i, :] = total

schedule one for tiles:
    h kernel_order
"""


def module(
    clause: str = "num_warps 4", narrow: str = "on sm", tensor: str = "hidden", how: str = "kernel_order"
) -> compiler.Module:
    return tilelink.parse(TEXT.format(clause=clause, narrow=narrow, tensor=tensor, how=how))


def bound(how: str = "kernel_order") -> Bound:
    made = module(how=how)
    return compiler.bound(
        made.program(), made.schedules[0], ranks=2, dims={**SIZES, "M": 4096}, dtype="f32", target=target("cpu")
    )


def signals(made: Bound) -> int:
    return sum(isinstance(s, Notify | Wait) for stage in made.stages.values() for s in statements(stage.stage.body))


def test_tiles_neither_wait_nor_notify() -> None:
    assert signals(bound()) == 0 and not bound().channels
    assert signals(bound("channel(i=16)")) == 2


def test_what_the_schedule_says_itself_is_not_named() -> None:
    for how, stripped, named in (("kernel_order", False, 0), ("channel(i=16)", False, 0), ("channel(i=16)", True, 1)):
        made = module(how=how)
        program = strip(made.program()) if stripped else made.program()
        schedule = tilelink.schedule(program) if stripped else made.schedules[0]
        assert len(by_schedule(tilelink.plan(program, schedule, ranks=2, dims=SIZES))) == named


def test_the_result_is_the_same() -> None:
    made = module()
    kernel = tilelink.compile(made.program(), made.schedules[0], ranks=2, dims=SIZES)
    inputs = [
        {"x": torch.randn(24, 16), "up": torch.randn(20, 16), "down": torch.randn(12, 20)} for _ in range(2)
    ]  # fmt: skip
    for launch in kernel.run([inputs, inputs], seed=1, max_delay_s=0.002).outputs:
        for own, found in zip(inputs, launch, strict=True):
            expected = torch.nn.functional.silu(own["x"] @ own["up"].T) @ own["down"].T
            torch.testing.assert_close(found["y"], expected, atol=1e-4, rtol=1e-4)


def test_tiles_may_have_a_program_each_without_signals_or_after_kernels_that_wait_for_nothing() -> None:
    """Tiles of the stage in the middle wait and notify if their tensor has signals."""
    text = TEXT.replace("x      : in  ", "given  : in  ").replace(
        "    hidden :", "    x      : local [M, K]\n    hidden :", 1
    )
    text = text.replace(
        "    compute widen", "    compute take(i: M, k: K):\n        x[i, k] = given[i, k]\n\n    compute widen"
    )
    for how in ("kernel_order", "channel(i=16)"):
        made = tilelink.parse(text.format(clause="program_per_tile", narrow="on sm", tensor="hidden", how=how))
        where: dict[str, Any] = {"ranks": 2, "dims": {**SIZES, "M": 4096}, "dtype": "f32", "target": target("sm_90")}
        kernels = compiler.bound(made.program(), made.schedules[0], **where).kernel_of
        assert kernels["widen"].program_per_tile


@pytest.mark.parametrize("narrow", ["on sm(2)", "on sm(1)"])
def test_kernels_of_two_streams_are_in_no_order(narrow: str) -> None:
    made = module(narrow=narrow)
    with pytest.raises(OrderingError, match="hidden"):
        tilelink.compile(made.program(), made.schedules[0], ranks=2, dims=SIZES)
    made = module(narrow=narrow, how="channel(i=16)")
    tilelink.compile(made.program(), made.schedules[0], ranks=2, dims=SIZES)


def test_tiles_of_one_stage_are_in_no_order() -> None:
    made = tilelink.parse(TILES)
    with pytest.raises(OrderingError, match="h"):
        tilelink.compile(made.program(), made.schedules[0], ranks=2, dims={"M": 8, "N": 16})
    tilelink.compile(made.program(), None, ranks=2, dims={"M": 8, "N": 16})


def test_what_peers_reach_keeps_its_signals() -> None:
    text = "program p(M = 8):\n    x : in [M]\n    h : symmetric [ranks, M]\n    y : out [M]\n"
    text += "    comm send(p: ranks, i: M):\n        tile_push_data(h[rank, i] @ p, x[i])\n"
    text += "    compute add(i: M):\n        y[i] = sum(h[:, i], axis=0)\nschedule s for p:\n    h kernel_order\n"
    with pytest.raises(ScheduleError, match="kernel_order of h, which peers reach"):
        made = tilelink.parse(text)
        tilelink.compile(made.program(), made.schedules[0], ranks=2, dims={"M": 8})


OWN = """
program own(M = 8, N = 4):
    x : in        [M, N]
    h : symmetric [M, N]
    y : out       [M, N]
    compute keep(i: M):
        tile_push_data(h[i, :] @ rank, x[i, :] + x[i, :])
    compute add(i: M):
        y[i, :] = h[i, :]
schedule one for own:
    keep on sm, tile(i=2)
    add  on sm, tile(i=3)
    h kernel_order
"""


def test_what_a_rank_pushes_to_itself_is_reached_by_no_peer() -> None:
    made = tilelink.parse(OWN)
    dims = {"M": 8, "N": 4}
    lowered = compiler.bound(made.program(), made.schedules[0], ranks=3, dims=dims, dtype="f32", target=target("cpu"))
    assert not signals(lowered)
    inputs = [{"x": torch.randn(8, 4)} for _ in range(3)]
    kernel = tilelink.compile(made.program(), made.schedules[0], ranks=3, dims=dims)
    for launch in kernel.run([inputs, inputs], seed=1, max_delay_s=0.002).outputs:
        assert all(torch.equal(found["y"], 2 * own["x"]) for own, found in zip(inputs, launch, strict=True))


@pytest.mark.parametrize("at", ["(rank + 1) % ranks", "0", "ranks - 1 - rank"])
def test_what_a_rank_pushes_to_one_that_may_be_another_keeps_its_signals(at: str) -> None:
    made = tilelink.parse(OWN.replace("@ rank", f"@ ({at})"))
    with pytest.raises(ScheduleError, match="kernel_order of h, which peers reach"):
        tilelink.compile(made.program(), made.schedules[0], ranks=2, dims={"M": 8, "N": 4})


def test_a_tensor_without_signals_loses_none() -> None:
    made = module(tensor="x")
    program, schedule = made.program(), made.schedules[0]
    left_out = compiler.bound(program, schedule, ranks=2, dims=SIZES, dtype="f32", target=target("cpu")).left_out
    assert [(one.clause, one.part, one.reason) for one in left_out] == [("kernel_order", "x", "it has no signals")]


OUTSIDE = """
program outside(M = 8, N = 16):{table}
    x : in    [M, N]
    n : in    [M] < 4
    h : local [M, N]
    y : out   [M, N]

    compute one(i: M by 1):
        h[i, :] = x[i, :]
        producer_tile_notify(h[i, :])

    compute two(i: M by 1):
        {wait}
        y[i, :] = h[i, :]

schedule one for outside:
    h kernel_order
"""


@pytest.mark.parametrize(
    ("wait", "message"),
    [
        ("consumer_tile_wait(h[i + 1, :])", r"h\[8:9, 0:16\] reaches outside h"),
        ("for (q: 2 by 1):\n            consumer_tile_wait(h[i + q, :])", r"h\[8:9, 0:16\] reaches outside h"),
        ("if n[i] > 0:\n            consumer_tile_wait(h[i // n[0], :])", "divide"),
    ],
)
def test_signals_outside_of_their_tensor_are_refused_as_with_any_schedule(wait: str, message: str) -> None:
    made = tilelink.parse(OUTSIDE.format(wait=wait, table=""))
    for schedule in (None, made.schedules[0]):
        with pytest.raises(CoverageError, match=message):
            tilelink.compile(made.program(), schedule, ranks=2, dims={"M": 8, "N": 16})


def test_signals_beside_their_accesses_are_not_enumerated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of experts have millions of tiles: what is asked of the accesses says enough."""
    monkeypatch.setattr(kernel_order, "Partial", None)
    assert signals(bound()) == 0
    made = tilelink.parse(OUTSIDE.format(wait="consumer_tile_wait(h[i, :])", table=""))
    assert not compiler.bound(made.program(), made.schedules[0], ranks=2, dims={"M": 8, "N": 16}).channels
    other = tilelink.parse(OUTSIDE.format(wait="consumer_tile_wait(h[M - 1 - i, :])", table=""))
    with pytest.raises(TypeError):
        compiler.bound(other.program(), other.schedules[0], ranks=2, dims={"M": 8, "N": 16})


def test_signals_that_a_table_places_are_kept_by_a_refusal() -> None:
    table = "\n    to : table [M] < M"
    made = tilelink.parse(OUTSIDE.format(wait="consumer_tile_wait(h[to[i], :])", table=table))
    with pytest.raises(ScheduleError, match="kernel_order of a tensor whose signals a table places"):
        compiler.bound(made.program(), made.schedules[0], ranks=2, dims={"M": 8, "N": 16})
