"""Indices over a part of a dimension whose ends are the same in every launch: `i: M[a : b]`."""

from __future__ import annotations

import pytest
import torch

import tilelink
from tilelink.errors import TileLinkError
from tilelink.ir.program import Program
from tilelink.language import Dim, Index, pos

PARTS = """
program parts(M = 40, N = 16, K = 8):
    x : in  [M, K]
    w : in  [N, K]
    y : out [M, N]
    z : out [M] f32

    compute first(i: M[: M - M // 4], j: N):
        y[i, j] = dot(x[i, :], w[j, :].T)

    compute last(i: M[M - M // 4 :], j: N):
        acc = zeros(f32)
        for (k: K[2 : K - 1]):
            acc += dot(x[i, k], w[j, k].T)
        for (q: K[: 2] by 1):
            acc += x[i, q][:, None] * w[j, q][None, :]
        y[i, j] = acc + x[i, K - 1][:, None] * w[j, K - 1][None, :]

    compute number(i: M[3 : M - 1]):
        z[i] = pos(i) + x[i + 1, 0] - x[1 + i, 0] + x[i - 3, 0]

    compute ends(i: M[: 3]):
        z[i] = pos(i) * 1.0

    compute tail(i: M[M - 1 :] by 1):
        z[i] = i * 1.0
"""


def parsed(text: str) -> Program:
    return tilelink.parse(text, "p.tl").program()


def test_an_index_of_a_part_stands_for_the_elements_of_the_dimension() -> None:
    program = parsed(PARTS)
    inputs = [{"x": torch.randn(40, 8), "w": torch.randn(16, 8)}]
    schedule = tilelink.schedule(program).tile("first", i=16, j=16).tile("last", i=4, j=8, k=2).tile("number", i=8)
    (found,) = tilelink.compile(program, schedule, ranks=1, dims={"M": 40, "N": 16, "K": 8})(inputs)
    x, w = inputs[0]["x"], inputs[0]["w"]
    numbers = torch.arange(40.0)
    numbers[3:39] += x[:36, 0]
    torch.testing.assert_close(found["y"], x @ w.T, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(found["z"], numbers, rtol=1e-5, atol=1e-5)


def test_it_is_printed_as_a_shift() -> None:
    text = str(parsed(PARTS))
    assert "compute first(i: M - M // 4, j: N):\n        y[0 + i, j] = dot(x[0 + i, :], w[j, :].T)" in text
    assert "z[3 + i] = pos(i) + 3 + x[3 + 1 + i, 0] - x[3 + 1 + i, 0] + x[3 - 3 + i, 0]" in text
    assert parsed(text) == parsed(PARTS)


def test_in_python() -> None:
    @tilelink.program
    def numbers(M: Dim) -> None:
        z = tilelink.output(M, dtype="f32")

        @tilelink.compute
        def low(i: Index = M[: M // 2]) -> None:
            z[i] = pos(i) * 1.0

        @tilelink.compute
        def high(i: Index = M[M // 2 :]) -> None:
            z[i] = pos(i) * 1.0

    text = "program numbers(M):\n    z : out [M] f32\n    compute low(i: M[: M // 2]):\n        z[i] = pos(i) * 1.0\n"
    text += "    compute high(i: M[M // 2 :]):\n        z[i] = pos(i) * 1.0\n"
    assert numbers == parsed(text) == parsed(str(numbers))


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ("M[: M - 1]", "never written"),
        ("M[1 :]", "never written"),
        ("M[: M + 1]", "reaches outside"),
        ("M[0 - 1 :]", "reaches outside"),
        ("M[: rank]", "comes from an index tensor"),
        ("ranks[: 2]", "a part of the ranks"),
    ],
)
def test_parts_that_are_no_parts_or_leave_elements_out(part: str, message: str) -> None:
    text = f"program p(M):\n    x : in [M]\n    y : out [M]\n    compute a(i: {part}):\n        y[i] = x[i]\n"
    with pytest.raises(TileLinkError) as caught:
        tilelink.plan(parsed(text), ranks=2, dims={"M": 24})
    assert message in str(caught.value) and "p.tl:" in str(caught.value)
