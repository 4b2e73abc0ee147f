"""A condition on a number, `if b < n:`, is as good as the range `B[: n]`: for reads, writes, inputs and outputs."""

from __future__ import annotations

from typing import Any

import pytest

import tilelink
from tilelink.errors import TileLinkError
from tilelink.ir.program import Program
from tilelink.reference.trial import compared, random_inputs, relative_error

BLOCKS = """program blocks(B, R, N):
    n : in    [] <= B
    x : in    [B[: n], R, N]
    h : local [B, R, N]
    g : local [B, R, N]
    y : out   [B, R, N]
    z : out   [B[: n], R, N]

    compute make(b: B[: n], r: R, j: N):
        h[b, r, j] = x[b, r, j] * 2.0

    compute again(b: B by 1, r: R, j: N):
        if b < n:
            g[b, r, j] = x[b, r, j] + h[b, r, j]

    compute take(b: B by 1, r: R, j: N):
        v = zeros(f32)
        if n <= b:
            v = v + 3.0
        else:
            v = h[b, r, j] + g[b, r, j]
        y[b, r, j] = v

    compute rest(b: B[: n], r: R, j: N):
        z[b, r, j] = g[b, r, j]
"""
OUTPUT = """program output(B, N):
    n : in  [] <= B
    x : in  [B, N]
    y : out [B[: n], N]

    compute make(b: B by 1, j: N):
        if b < n:
            y[b, j] = x[b, j]
"""
SENT = """program sent(C, N):
    count : in        [ranks] <= C
    n     : symmetric [ranks] <= C
    x     : in        [C, N]
    got   : symmetric [ranks, C, N]
    y     : out       [ranks, C, N]

    comm tell(p: ranks):
        tile_push_data(n[rank] @ p, count[p])
        notify(n[rank] @ p)

    comm send(p: ranks, c: C by 1):
        if c < count[p]:
            tile_push_data(got[rank, c, :] @ p, x[c, :])
        notify(got[rank, c, :] @ p)

    compute take(s: ranks, c: C by 1, j: N):
        wait(n[s])
        v = zeros(f32)
        wait(got[s, c, j])
        if c < n[s]:
            v = got[s, c, j]
        y[s, c, j] = v
"""
DIMS = {"B": 7, "R": 4, "N": 8, "C": 5}


def dims_of(program: Program) -> dict[str, int]:
    return {one.name: DIMS[one.name] for one in program.params}


@pytest.mark.parametrize("text", [BLOCKS, OUTPUT, SENT])
def test_it_is_accepted_and_right(text: str) -> None:
    program = tilelink.parse(text).program()
    dims = dims_of(program)
    kernel = tilelink.compile(program, dims=dims, ranks=2)
    options: dict[str, Any] = {"ranks": 2, "dims": dims, "dtype": "f32", "launches": 1}
    routings = ("uniform", "full", "empty", "uniform")
    launches = [random_inputs(program, **options, seed=n, routing=one)[0] for n, one in enumerate(routings)]
    outs = [one.name for one in program.tensors if one.space == "out"]
    for given, outputs in zip(launches, kernel.run(launches, seed=1, max_delay_s=0.0005).outputs, strict=True):
        expected = kernel.reference(given)
        for name in outs:
            assert relative_error(*compared(outputs, expected, name)) < 1e-5


MUTANTS = [
    (BLOCKS, "if n <= b", "if n < b", "reads h .* writes up to n"),
    (BLOCKS, "if n <= b", "if n + 1 <= b", "reads h .* writes up to n"),
    (BLOCKS, "if n <= b", "if n <= b - 1", "reads h .* writes up to n"),
    (BLOCKS, "if n <= b", "if n >= b", "reads h .* writes up to n"),
    (
        BLOCKS,
        "            v = v + 3.0\n        else:\n            v = h",
        "            v = h",
        "reads h .* writes up to n",
    ),
    (BLOCKS, "if b < n", "if b <= n", "reads h .* writes up to n of rank 0"),
    (BLOCKS, "if b < n", "if b + 1 < n", "reads g.*parts of which no stage writes"),
    (BLOCKS, "if b < n", "if 0 < n", "reads h .* writes up to n of rank 0, and reads if 0 < n"),
    (BLOCKS, "x[b, r, j] + h[b, r, j]", "x[b, r, j] + h[B - 1 - b, r, j]", "reads h .* writes up to n"),
    (BLOCKS, "g[b, r, j] = x", "g[B - 1 - b, r, j] = x", "reads g .* in some launches only"),
    (BLOCKS, "rest(b: B[: n]", "rest(b: B", "reads g .* in some launches only"),
    (OUTPUT, "if b < n", "if b <= n", "writes y in some launches only"),
    (OUTPUT, "if b < n", "if b + 1 < n", "is never written"),
    (OUTPUT, "if b < n", "if 0 < n", "writes y in some launches only"),
    (OUTPUT, "B[: n], N]", "B, N]", "writes y in some launches only"),
    (OUTPUT, "B[: n], N]", "B[: n - 1], N]", "writes y in some launches only"),
    (OUTPUT, "y[b, j]", "y[B - 1 - b, j]", "writes y in some launches only"),
    (SENT, "c < n[s]", "c <= n[s]", "reads got .* in some launches only"),
    (SENT, "c < n[s]", "c < n[0]", "reads got .* in some launches only"),
    (SENT, "c < n[s]", "s < n[s]", "reads got .* in some launches only"),
    (SENT, "c < count[p]", "c < count[rank]", "reads got .* in some launches only"),
    (SENT, "c < count[p]", "c + 1 < count[p]", "reads got.* parts of which no stage writes"),
    (SENT, "        wait(got[s, c, j])\n", "", "nothing orders the two"),
]


@pytest.mark.parametrize(("text", "old", "new", "message"), MUTANTS)
def test_mutants_are_refused(text: str, old: str, new: str, message: str) -> None:
    assert old in text
    program = tilelink.parse(text.replace(old, new)).program()
    with pytest.raises(TileLinkError, match=message):
        tilelink.plan(program, dims=dims_of(program), ranks=2)


ROWS = """program rows(B, R, M, K):
    n     : in    [] <= B
    place : in    [M] < n * R
    x     : in    [B * R, K]
    c     : local [B * R, K]
    y     : out   [M, K]

    compute make(b: B[: n], j: K):
        c[b * R : (b + 1) * R, j] = x[b * R : (b + 1) * R, j] * 2.0
        notify(c[b * R : (b + 1) * R, j])

    compute take(m: M by 1, j: K):
        wait(c[place[m], j])
        y[m, j] = c[place[m], j]
"""
SIZES = {"B": 6, "R": 4, "M": 12, "K": 8}


def test_rows_below_a_product_of_a_count_are_in_the_blocks_that_there_are() -> None:
    program = tilelink.parse(ROWS).program()
    kernel = tilelink.compile(program, dims=SIZES, ranks=1)
    given = random_inputs(program, ranks=1, dims=SIZES, dtype="f32", launches=1, routing="full")[0]
    assert relative_error(*compared(kernel(given), kernel.reference(given), "y")) < 1e-5


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("< n * R", "<= n * R"),
        ("< n * R", "< (n + 1) * R"),
        ("B[: n]", "B[: n - 1]"),
        ("< n * R", "< B * R"),
        ("< n * R", "< n * 5"),
    ],
)
def test_rows_beyond_the_blocks_that_there_are_are_refused(old: str, new: str) -> None:
    assert old in ROWS
    with pytest.raises(TileLinkError, match=r"reads c|reaches outside|the bound of place cannot be"):
        tilelink.plan(tilelink.parse(ROWS.replace(old, new)).program(), dims=SIZES, ranks=1)


ROUTED = """program routed(M, N, k):
    owner : in  [M, k] < ranks
    place : in  [M, k] < M
    x     : in  [M, N]
    y     : out [M, N]

    compute add(i: M by 1, j: N):
        total = zeros(f32)
        for (q: k by 1, p: ranks):
            if owner[i, q] == p WORD place[i, q] < 3:
                total += x[i, j]
        y[i, j] = total
"""


@pytest.mark.parametrize("word", ["and", "or"])
def test_parts_of_a_condition_may_vary_with_other_indices_than_others(word: str) -> None:
    program = tilelink.parse(ROUTED.replace("WORD", word)).program()
    tilelink.plan(program, ranks=3, dims={"M": 8, "N": 16, "k": 2})
