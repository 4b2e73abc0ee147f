"""Local tensors that are written by segments and read in the same ones, such as packed rows between two products."""

from __future__ import annotations

from typing import Any

import pytest

import tilelink
from tilelink.errors import TileLinkError
from tilelink.ir.printer import print_program
from tilelink.ir.program import Program
from tilelink.reference.trial import compared, random_inputs, relative_error

PACKED = """program packed(E, T, K, F, N):
    x      : in    [T, K]
    w      : in    [E, F, K]
    v      : in    [E, N, F]
    starts : in    [E + 1] <= T offsets
    others : in    [E + 1] <= T offsets
    h      : local [T, F]
    g      : local [T, F]
    y      : out   [T[: starts[E]], N]

    compute up(e: E, r: T[starts[e] : starts[e + 1]], f: F):
        h[r, f] = dot(x[r, :], w[e, f, :].T)
        notify(h[:, f])

    compute gate(e: E, r: T[starts[e] : starts[e + 1]], f: F):
        wait(h[r, f])
        g[r, f] = silu(h[r, f])
        notify(g[:, f])

    compute down(e: E, r: T[starts[e] : starts[e + 1]], j: N):
        wait(g[:, :])
        y[r, j] = dot(g[r, :], v[e, j, :].T)
"""
SCHEDULES = """
schedule small for packed:
    up   tile(r=4, f=4)
    gate tile(r=8, f=8)
    down tile(r=8, j=8)

schedule other for packed:
    up   on sm(1), tile(r=8, f=4)
    gate on sm(1), tile(r=4, f=4)
    down on sm(1), tile(r=4, j=4)
    h    channel(T=4)
    g    channel(T=8)
"""
DIMS = {"E": 3, "T": 22, "K": 8, "F": 8, "N": 8}
HEAD = "starts[e] : starts[e + 1]]"


def changed(old: str, new: str) -> Program:
    assert old in PACKED
    return tilelink.parse(PACKED.replace(old, new)).program()


@pytest.mark.parametrize("schedule", ["default", "small", "other"])
def test_it_is_right_for_every_routing(schedule: str) -> None:
    module = tilelink.parse(PACKED + SCHEDULES)
    program = module.program()
    kernel = tilelink.compile(program, None if schedule == "default" else schedule, dims=DIMS, ranks=2)
    options: dict[str, Any] = {"ranks": 2, "dims": DIMS, "dtype": "f32", "launches": 1}
    routings = ("uniform", "one", "empty", "full", "zipf:1.2")
    launches = [random_inputs(program, **options, seed=n, routing=one)[0] for n, one in enumerate(routings)]
    for given, outputs in zip(launches, kernel.run(launches, seed=1, max_delay_s=0.0005).outputs, strict=True):
        assert relative_error(*compared(outputs, kernel.reference(given), "y")) < 1e-5


def test_signals_that_are_left_out_are_of_the_whole_dimension() -> None:
    lines = [line for line in PACKED.splitlines() if "notify" not in line and "wait" not in line]
    printed = print_program(tilelink.parse("\n".join(lines) + "\n").program())
    assert "producer_tile_notify(h[:, f])" in printed and "consumer_tile_wait(g[r, :])" in printed
    for schedule in ("small", "other"):
        module = tilelink.parse("\n".join(lines) + "\n" + SCHEDULES)
        tilelink.plan(module.program(), schedule, dims=DIMS, ranks=2)


def test_many_rows_of_many_segments_are_proved_with_little_memory() -> None:
    """Each read meets the writes of its own part of a segment alone."""
    sizes = {"E": 32, "T": 2048, "K": 64, "F": 256, "N": 128}
    plan = tilelink.plan(tilelink.parse(PACKED).program(), dims=sizes, ranks=1)
    assert len(plan.task_ranks) > 4000


MUTANTS = [
    (f"down(e: E, r: T[{HEAD}", "down(e: E, r: T[starts[e] : starts[e + 1] + 1]", "reads g elsewhere"),
    (f"down(e: E, r: T[{HEAD}", "down(e: E, r: T[others[e] : others[e + 1]]", "reads g elsewhere .* from others"),
    (f"gate(e: E, r: T[{HEAD}", "gate(e: E, r: T[others[e] : others[e + 1]]", "reads h elsewhere than in the segments"),
    (f"gate(e: E, r: T[{HEAD}", "gate(e: E, r: T[starts[e] : starts[e + 1] + 1]", "reads h elsewhere"),
    (f"gate(e: E, r: T[{HEAD}", "gate(e: E, r: T[starts[e] : T]", "reads h elsewhere"),
    (f"gate(e: E, r: T[{HEAD}", "gate(e: E, r: T", "reads h elsewhere"),
    (f"gate(e: E, r: T[{HEAD}", "gate(e: E, r: T[: starts[E] + 1]", "reads h elsewhere"),
    (f"up(e: E, r: T[{HEAD}", "up(e: E, r: T[others[e] : others[e + 1]]", "reads h elsewhere"),
    (f"up(e: E, r: T[{HEAD}", "up(e: E, r: T[starts[e] : T]", "writes h at a place"),
    (f"up(e: E, r: T[{HEAD}", "up(e: E, r: T[starts[e] : starts[e + 1] - 1]", "writes h at a place"),
    (
        f"up(e: E, r: T[{HEAD}",
        f"up(e: E - 1, r: T[{HEAD}",
        "reads h.* segment from starts.2. .* no stage writes",
    ),
    ("starts : in    [E + 1] <= T offsets", "starts : in    [E + 1] <= T", "which may share elements"),
    ("silu(h[r, f])", "silu(h[r + 1, f])", "reaches outside h"),
    ("f: F):\n        h[r, f] =", "f: F[: F - 4]):\n        h[r, f] =", "reads h.* parts of which no stage writes"),
    ("        notify(h[:, f])\n", "        notify(h[:, f])\n        h[r, f] = x[r, 0][:, None]\n", "nothing orders"),
    ("        h[r, f] =", "        if starts[e] < 9:\n            h[r, f] =", "writes h at a place"),
    ("        wait(h[r, f])\n", "", "nothing orders|only the schedule"),
    (
        "        wait(h[r, f])\n        g[r, f] = silu(h[r, f])\n",
        "        g[r, f] = silu(h[r, f])\n        wait(h[r, f])\n",
        "reads h .* nothing orders",
    ),
    ("wait(h[r, f])", "wait(h[r, 0:4])", "waits for h.* and reads h"),
    ("wait(g[:, :])", "wait(g[:, 0:4])", "waits for g.* and reads g"),
    ("        notify(h[:, f])\n", "", "waits for h, which no producer_tile_notify"),
    ("notify(h[:, f])", "notify(h[0:4, f])", "waits for h channel .* which no stage notifies"),
    ("notify(h[:, f])", "notify(h[r, f])", "whose place only a launch decides"),
    (
        "h      : local [T, F]",
        "h      : symmetric [T, F]",
        "is not an output of the own rank|is read by this launch too",
    ),
]


@pytest.mark.parametrize(("old", "new", "message"), MUTANTS)
def test_mutants_are_refused(old: str, new: str, message: str) -> None:
    """With tiles of rows that are smaller than a segment, and with programs of their own for each stage."""
    assert old in PACKED
    with pytest.raises(TileLinkError, match=message):
        module = tilelink.parse(PACKED.replace(old, new) + SCHEDULES)
        tilelink.plan(module.program(), "other", dims=DIMS, ranks=2)


def test_a_tensor_of_entries_is_not_written_by_segments() -> None:
    """Each of its entries is one in a launch, which is asked of elements and not of segments."""
    text = """program p(E, T):
    starts : in    [E + 1] <= T offsets
    k      : local [T] <= T
    y      : out   [T[: starts[E]]] i32

    compute make(e: E, r: T[starts[e] : starts[e + 1]]):
        k[r] = pos(r)
        notify(k[:])

    compute take(e: E, r: T[starts[e] : starts[e + 1]]):
        wait(k[r])
        y[r] = k[r]
"""
    with pytest.raises(TileLinkError, match="writes k at a place that only a launch decides"):
        tilelink.plan(tilelink.parse(text).program(), dims={"E": 2, "T": 16}, ranks=1)
