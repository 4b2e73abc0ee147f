"""A read of a name has a value if an assignment before it is executed in every launch in which the read is."""

from __future__ import annotations

from textwrap import indent

import pytest

import tilelink
from tilelink.errors import CoverageError

TEXT = """
program p(M = 6, N = 4):
    n : in  [] <= M
    m : in  [] <= M
    x : in  [M, N]
    y : out [N]
    compute f(j: N):
        t = zeros(f32)
{body}
"""


def plan(body: str) -> None:
    program = tilelink.parse(TEXT.format(body=indent(body, " " * 8))).program()
    tilelink.plan(program, ranks=1, dims={"M": 6, "N": 4})


def loop(part: str, *lines: str, index: str = "q", by: str = " by 1") -> str:
    return "\n".join((f"for ({index}: M{part}{by}):", *(f"    {line}" for line in lines))) + "\n"


ROW, ADD, STORE = "v = x[q, j]", "t += v", "y[j] = v"
RIGHT = [
    loop("[: n]", ROW, ADD) + "y[j] = t",
    loop("[: n]", ROW) + loop("[: n]", ADD) + "y[j] = t",
    loop("[: n]", ROW) + loop("[: min(n, m)]", ADD, index="k") + "y[j] = t",
    loop("[: n]", *loop("", "v = x[k, j]", index="k").splitlines(), ADD) + "y[j] = t",
    loop("", "if q < n:", f"    {ROW}", "if q < n:", f"    {ADD}") + "y[j] = t",
    loop("", "if q < n:", f"    {ROW}", "else:", "    v = x[0, j]") + STORE,
    "if n > 2:\n    v = x[0, j]\nelse:\n    v = x[1, j]\n" + STORE,
    "if n > 2:\n    v = x[0, j]\nelif m > 2:\n    v = x[1, j]\nelse:\n    v = x[2, j]\n" + STORE,
    "if n > 2:\n    v = x[0, j]\nif n <= 2:\n    v = x[1, j]\n" + STORE,
    "if n == 2:\n    v = x[0, j]\nif n != 2:\n    v = x[1, j]\n" + STORE,
]
WRONG = [
    loop("[: n]", ROW) + STORE,
    loop("[n :]", ROW) + STORE,
    loop("[: n]", "v = sum(x[q, j], axis=0)", by="") + STORE,
    loop("[: n]", ROW) + loop("", ADD, index="k") + "y[j] = t",
    loop("[: n]", ROW) + loop("[: m]", ADD, index="k") + "y[j] = t",
    loop("[: min(n, m)]", ROW) + loop("[: n]", ADD, index="k") + "y[j] = t",
    loop("", "if q < n:", f"    {ROW}") + STORE,
    "if n > 2:\n    v = x[0, j]\n" + loop("[: n]", ROW) + STORE,
    loop("", "if q < n:", f"    {ROW}", "elif q < m:", f"    {ROW}") + STORE,
]


@pytest.mark.parametrize("body", RIGHT)
def test_a_name_that_has_a_value_in_every_launch(body: str) -> None:
    plan(body)


@pytest.mark.parametrize("body", WRONG)
def test_a_name_without_a_value_in_some_launch(body: str) -> None:
    with pytest.raises(CoverageError, match=r"reads v, to which nothing has been assigned in some launches"):
        plan(body)
