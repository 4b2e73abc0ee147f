"""What refusals advise where the obvious words would mislead: cycles of waits, and what is written elsewhere."""

from __future__ import annotations

import re

import pytest

from tilelink import compiler
from tilelink.errors import CoverageError, ProgressError
from tilelink.verifier.progress import CYCLE, ORDER

TWO = """program two(M, N):
    x : in        [M, N]
    a : symmetric [M, N]
    b : symmetric [M, N]
    y : out       [M, N]
    z : out       [M, N]

    compute first(i: M, j: N):
        consumer_tile_wait(b[i, j])
        y[i, j] = b[i, j] + x[i, j]
        tile_push_data(a[i, j] @ (rank + 1), x[i, j])
        producer_tile_notify(a[i, j] @ (rank + 1))

    compute second(i: M, j: N):
        consumer_tile_wait(a[i, j])
        z[i, j] = a[i, j] + x[i, j]
        tile_push_data(b[i, j] @ (rank - 1), x[i, j])
        producer_tile_notify(b[i, j] @ (rank - 1))

schedule s for two:
    first on sm(2)
    second on sm(2)
"""


def test_a_cycle_of_waits_is_named_and_no_order_of_tiles_is_advised() -> None:
    module = compiler.parse(TWO)
    for schedule in ("s", None):
        with pytest.raises(ProgressError) as caught:
            compiler.plan(module.programs[0], schedule, ranks=3, dims={"M": 32, "N": 32})
        assert "rank 0, first tile (i=0, j=0) waits for b, and rank 1, second tile (i=0, j=0) waits for a" in str(
            caught.value
        )
        assert caught.value.hint == CYCLE


BACKWARDS = """program chain(M, N):
    x : in    [M, N]
    h : local [M, N]
    y : out   [M, N]

    compute one(b: 2, i: M, j: N):
        if b == 1:
            h[i, j] = x[i, j]
            producer_tile_notify(h[i, j])
        else:
            consumer_tile_wait(h[i, j])
            y[i, j] = h[i, j]

schedule s for chain:
    one on sm(1)
"""


def test_tiles_of_one_program_that_wait_for_later_ones_are_told_to_change_their_order() -> None:
    program = compiler.parse(BACKWARDS).programs[0]
    with pytest.raises(ProgressError) as caught:
        compiler.plan(program, "s", ranks=1, dims={"M": 32, "N": 32})
    assert caught.value.hint == ORDER


SHIFT = """program shift(M, N):
    x    : in        [M, N]
    left : symmetric [ranks, M, N]
    y    : out       [M, N]

    comm send(i: M):
        tile_push_data({target}, x[i, :])
        producer_tile_notify({target})

    compute add(i: M, j: N):
        y[i, j] = x[i, j] + left[rank, i, j]
"""


@pytest.mark.parametrize(
    ("target", "hint"),
    [
        ("left[rank, i, :] @ (rank + 1)", r"rank 2, send tile \(i=0\) writes left\[2:3, 0:32, 0:32\] on rank 0: check"),
        ("left[0, i, :] @ 0", r"no tile writes left of rank 1, and rank 0, send tile \(i=0\) writes left of rank 0: "),
    ],
)
def test_what_is_written_elsewhere_is_named(target: str, hint: str) -> None:
    program = compiler.parse(SHIFT.format(target=target), "shift.tl").programs[0]
    with pytest.raises(CoverageError, match="parts of which no stage writes") as caught:
        compiler.plan(program, None, ranks=3, dims={"M": 32, "N": 32})
    assert caught.value.related is not None and caught.value.related.line == 7
    assert re.match(hint, str(caught.value.hint))


OUTPUT = """program halves(M):
    x : in  [M // 2]
    y : out [M // 2]

    compute second(i: M // 2):
        y[i] = x[i]
"""
READ = """program halves(M):
    x : in    [M]
    h : local [M]
    y : out   [M]

    compute first(q: M // 2):
        h[0 + q] = x[0 + q]

    compute second(i: M):
        y[i] = h[i]
"""


@pytest.mark.parametrize(("text", "what"), [(OUTPUT, "second, which writes y,"), (READ, "first, which writes h,")])
def test_sizes_that_leave_a_stage_nothing_to_do_are_named(text: str, what: str) -> None:
    with pytest.raises(CoverageError) as found:
        compiler.plan(compiler.parse(text).program(), ranks=2, dims={"M": 1})
    assert re.fullmatch(f"{what} has no elements along [iq] with these sizes: give larger ones", found.value.hint or "")
