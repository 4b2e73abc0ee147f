"""Loops over ranks: what only reads a little is written out, so that no peer is waited for before the next is asked."""

from __future__ import annotations

import re

import pytest

from tilelink import compiler

PULL = """program pull(M, N):
    x : in symmetric [M, N]
    y : out [M, N]
    c : local [ranks, M, N]

    compute add(i: M, j: N):
        acc = zeros(f32)
        for (p: ranks):
            {body}
        y[i, j] = acc

schedule small for pull:
    add on sm, tile(i=8, j=256), warps 4

schedule large for pull:
    add on sm, tile(i=128, j=128), warps 4
"""
READS = "acc += x[i, j] @ p"


def loop(body: str, schedule: str, ranks: int) -> str:
    """The head of the loop over ranks in the generated source."""
    module = compiler.parse(PULL.format(body=body))
    text = compiler.source(
        module.program(), module.schedules[schedule == "large"], ranks=ranks, dims={"M": 512, "N": 1024}, dtype="bf16",
        target="sm_90",
    )  # fmt: skip
    (found,) = re.findall(r"for p in (\w[\w.]*)\(0, \d+", text)
    return found


@pytest.mark.parametrize(
    ("body", "schedule", "ranks", "head"),
    [
        (READS, "small", 4, "tl.static_range"),
        (READS, "small", 8, "tl.static_range"),
        (READS, "small", 9, "range"),
        (READS, "large", 4, "range"),
        ("c[p, i, j] = x[i, j] @ p", "small", 4, "tl.range"),
        ("acc += sum(x[i, :] @ p, axis=1)[:, None]", "small", 4, "range"),
    ],
    ids=["small", "most ranks", "too many ranks", "large tiles", "stores", "reductions"],
)
def test_loops_that_read_small_tiles_are_written_out(body: str, schedule: str, ranks: int, head: str) -> None:
    assert loop(body, schedule, ranks) == head


def test_all_peers_are_read_before_the_first_addition() -> None:
    module = compiler.parse(PULL.format(body=READS))
    ptx = compiler.assembly(module.program(), module.schedules[0], ranks=4, dims={"M": 512, "N": 1024})
    body = re.findall(r"ld\.global\.v4\.b32|add\.f32", ptx)
    first = body.index("add.f32")
    assert body[:first].count("ld.global.v4.b32") == 8
