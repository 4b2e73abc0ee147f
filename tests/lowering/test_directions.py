"""A stage that moves data, done by the other side instead: what becomes of it, and what cannot be changed so."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tilelink.errors import ScheduleError
from tilelink.frontend.parser import parse_text
from tilelink.ir.printer import print_program
from tilelink.ir.program import Program
from tilelink.lowering.transform import flip_direction

HEAD = """program p(M, N):
    x : in symmetric [ranks, M, N]
    z : in [M, N]
    h : symmetric [ranks, M, N]
    c : local [ranks, M, N]
    y : out [M, N]
    comm a(p: ranks, i: M, g: 2):
        """
FLIPPED = [
    # pushed, pulled
    (("tile_push_data(h[rank, i, :] @ p, x[0, i, :])",), ("tile_pull_data(h[p, i, :], x[0, i, :] @ p)",)),
    (("tile_push_data(h[0, i, :] @ p, x[p, i, :])",), ("tile_pull_data(h[0, i, :], x[rank, i, :] @ p)",)),
    (
        ("tile_push_data(h[rank + 1, i, :] @ p, x[p + 2, i, :])", "producer_tile_notify(h[rank + 1, i, :] @ p)"),
        ("tile_pull_data(h[p + 1, i, :], x[rank + 2, i, :] @ p)", "producer_tile_notify(h[p + 1, i, :])"),
    ),
    (
        ("if p != rank:", "    tile_push_data(h[rank, i, :] @ p, x[p, i, :])"),
        ("if rank != p:", "    tile_pull_data(h[p, i, :], x[rank, i, :] @ p)"),
    ),
    (
        ("for (s: 2):", "    tile_push_data(h[rank, i, s] @ p, x[s, i, 0])"),
        ("for (s: 2):", "    tile_pull_data(h[p, i, s], x[s, i, 0] @ p)"),
    ),
]


def written(lines: tuple[str, ...]) -> Program:
    """The program with the signals that are written, and no others."""
    return parse_text(HEAD + "\n        ".join(lines) + "\n", lowered=True).programs[0]


def flipped(lines: tuple[str, ...], direction: str) -> str:
    program = written(lines)
    stage = flip_direction(program, program.stages[0], direction, None)
    return print_program(replace(program, stages=(stage,)))


def same(lines: tuple[str, ...]) -> str:
    return print_program(written(lines))


@pytest.mark.parametrize(("pushed", "pulled"), FLIPPED)
def test_the_two_ranks_change_places(pushed: tuple[str, ...], pulled: tuple[str, ...]) -> None:
    assert flipped(pushed, "pull") == same(pulled)
    assert flipped(pulled, "push") == same(pushed)
    assert flipped(pushed, "push") == same(pushed) and flipped(pulled, "pull") == same(pulled)


def test_a_stage_that_moves_nothing_has_no_direction() -> None:
    lines = ("producer_tile_notify(h[rank, i, :] @ p)",)
    assert flipped(lines, "pull") == flipped(lines, "push") == same(lines)


@pytest.mark.parametrize(
    ("line", "direction", "message"),
    [
        ("tile_push_data(h[rank, i, :] @ (p + 1), x[p, i, :])", "pull", "stage a cannot pull"),
        ("tile_push_data(h[rank, i, :], x[p, i, :])", "pull", "stage a cannot pull"),
        ("for (s: ranks):\n            tile_push_data(h[rank, i, :] @ s, x[p, i, :])", "pull", "stage a cannot pull"),
        (
            "tile_push_data(h[rank, i, :] @ p, x[p, i, :])\n        tile_push_data(c[rank, i, :], x[p, i, :])",
            "pull", "stage a cannot pull",
        ),
        (
            "consumer_tile_wait(h[rank, i, :])\n        tile_push_data(h[p, i, :] @ p, x[p, i, :])",
            "pull", "stage a waits and cannot change to pull",
        ),
        ("tile_push_data(h[rank, i, :] @ p, x[p, i, :] * 2.0)", "pull", "stage a cannot pull a computed value"),
        ("tile_push_data(h[rank, i, :] @ p, z[i, :])", "pull", "stage a cannot pull z"),
        ("tile_pull_data(c[p, i, :], x[rank, i, :] @ p)", "push", "stage a cannot push c"),
        ("tile_pull_data(c[p, i, :], x[rank, i, :])", "push", "stage a cannot push"),
        (
            "tile_push_data(h[rank, i, :] @ p, z[i, :] * 2.0)\n        tile_pull_data(h[p, i, :], x[rank, i, :] @ p)",
            "push", "stage a cannot push",
        ),
        ("tile_push_data(h[rank, i, :] @ g, x[p, i, :])", "pull", "stage a cannot pull"),
        (
            "tile_push_data(h[rank, i, :] @ p, x[p, i, :])\n        tile_pull_data(h[p, i, :], x[rank, i, :] @ p)",
            "pull", "stage a cannot pull",
        ),
    ],
)  # fmt: skip
def test_what_the_other_side_cannot_do_is_refused(line: str, direction: str, message: str) -> None:
    with pytest.raises(ScheduleError) as caught:
        flipped((line,), direction)
    assert caught.value.message == message
