"""Typical mistakes of users who know Python and NumPy: the location is right, and the hint shows the remedy."""

import pytest

from tilelink import compiler
from tilelink.errors import TileLinkError

HEAD = """\
program p(M, N, K):
    x : in  [M, K]
    w : in  [N, K]
    y : out [M, N]

    compute {}(i: M, j: N):
"""


@pytest.mark.parametrize(
    ("body", "name", "line", "column", "message", "hint"),
    [
        (
            "if rank == 0:\n            y[i, j] = 1.0\n        else if rank == 1:\n            y[i, j] = 2.0", "f",
            9, 14, "did not expect 'if' here", "elif condition:",
        ),
        ("if x[i, 0] > 0:\n            y[i, j] = 1.0", "f", 7, 12, "x is not an index", "chooses by values of x"),
        ("y[i, j] = dot(x[i, :], w[j, :])", "f", 7, 19, "dot contracts :K", "did you forget .T?"),
        ("y[i, j] = y[i, j] % 2", "f", 7, 19, "% is for integers, not for numbers", "i32(v) makes"),
        ("v = dot(x[i, :], w[j, :].T)\n        y[i, j] = v // 2", "f", 8, 19, "// is for integers", "i32(v)"),
        ("y[i, j] = x[i, :] @ w[j, :]", "f", 7, 29, "w[j, :] is no rank", "dot(x[i, :], w[j, :]) multiplies"),
        ("y[i, j] = x[i, :] @ w[j, :].T", "f", 7, 29, "w[j, :].T is no rank", "dot(x[i, :], w[j, :].T) multiplies"),
        ("y[i, j] = exp(x[i, :]) @ w[j, :].T", "f", 7, 34, "w[j, :].T is no rank", "multiplies"),
        ("y[i, j] = x[i, :].sum()", "f", 7, 19, "unknown method 'sum'", "it is a function: sum(v, axis=0)"),
        ("y[i, j] = torch.relu(x[i, :])", "f", 7, 19, "unknown method 'relu'", "it is a function: relu(v)"),
        ("y[i, j] = topk(x[i, :], 2, axis=1)", "f", 7, 19, "unknown function 'topk'", "argmax in a loop `by 1`"),
        ("y[i, j] = mean(x[i, :], axis=1)", "f", 7, 19, "unknown function 'mean'", "sum(v, axis=1) / N"),
        ("v = max(x[i, :], axis=1)\n        y[i, j] = v", "f", 8, 9, "do not fit", "declared `by 1` is a number"),
        ("y[i, j] = x[i, j] * w[None, j, :]", "f", 7, 31, "None is no coordinate", "w[j, :][None, :, :]"),
        (
            "v = x[2 * i, :]\n        y[i, j] = sum(v, axis=1)", "f", 8, 19, "needs 2 axes",
            "i is a number, and no axis, by the arithmetic of x[2 * i, :] in line 7",
        ),
        ("y[i, j] = x[i, :].numpy()", "f", 7, 19, "unknown method 'numpy'", "a tile has .T and .to(f32)"),
        ("y[i, j] @ (rank + 1) += 1.0", "f", 7, 30, "did not expect '+='", "a dimension over them, and a sum of it"),
        ("y[i, j] = exp(x[i, j], 2)", "f", 7, 19, "exp takes 1 argument, not 2", "exp(a)"),
        ("y[i, j] = maximum(x[i, 0])", "f", 7, 19, "maximum takes 2 arguments, not 1", "maximum(a, b)"),
        ("y[i, j] @ (rank + 1) = 1.0", "f", 7, 30, "did not expect '='", "tile_push_data(target @ r, value) writes"),
        ("y[i, j] = 1.0", "pass", 6, 13, "a stage cannot be called 'pass'", "choose another"),
    ],
)  # fmt: skip
def test_the_location_is_right_and_the_hint_helps(
    body: str, name: str, line: int, column: int, message: str, hint: str
) -> None:
    with pytest.raises(TileLinkError) as caught:
        compiler.check(compiler.parse(f"{HEAD.format(name)}        {body}\n").programs[0])
    place = caught.value.location
    assert place is not None and (place.line, place.column) == (line, column), str(caught.value)
    assert message in str(caught.value) and hint in str(caught.value)


def test_a_function_of_the_program_may_have_a_name_that_other_libraries_use() -> None:
    text = (
        HEAD.format("f").replace("(M, N, K)", "(M, N, K, mean: function = relu)")
        + "        y[i, j] = mean(dot(x[i, :], w[j, :].T))\n"
    )
    compiler.check(compiler.parse(text).programs[0])


def test_a_tile_that_several_entries_name_is_told_to_be_a_number() -> None:
    text = "program p(U, C, N):\n    at : in [U, C] < C\n    x : in [U, C, N]\n    y : out [U, C, N]\n"
    text += "    compute f(u: U, c: C):\n        y[u, c, :] = x[u, at[u, c], :]\n"
    with pytest.raises(TileLinkError) as caught:
        compiler.check(compiler.parse(text).programs[0])
    assert "`u: ... by 1` is a number" in str(caught.value)
    compiler.check(compiler.parse(text.replace("u: U, c: C", "u: U by 1, c: C by 1")).programs[0])


def test_a_part_of_a_size_that_is_an_expression_has_a_name() -> None:
    text = "program p(M):\n    n : in [] <= M\n    x : in [ranks * M[: n]]\n    y : out [M]\n"
    text += "    compute f(i: M):\n        y[i] = 1.0\n"
    with pytest.raises(TileLinkError) as caught:
        compiler.parse(text)
    assert "let L = ranks * M, and L[a : b]" in str(caught.value)


def test_a_tolerance_after_a_group_is_told_its_place() -> None:
    text = "program p(M) over a = ranks[0 : 1]:\n    y : out [M] on a within 0.01\n"
    text += "    compute f(i: M) on a:\n        y[i] = 1.0\n"
    with pytest.raises(TileLinkError) as caught:
        compiler.parse(text, "p.tl")
    assert "did not expect 'within' here" in str(caught.value) and "before the group" in str(caught.value)
    assert compiler.parse(text.replace("on a within 0.01", "within 0.01 on a"), "p.tl").programs
