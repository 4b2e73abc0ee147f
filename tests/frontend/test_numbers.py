# pyright: basic
"""Indices that are numbers because of a product or a sum over a loop."""

import pytest

from tilelink import compiler
from tilelink.errors import ShapeError, TileLinkError
from tilelink.frontend.checker import check
from tilelink.ir.typing import infer


def program(body: str, *, domain: str = "e: E, c: C, k: K"):
    lines = "".join(f"        {line}\n" for line in body.splitlines())
    return compiler.parse(f"""\
program p(E, C, T, K):
    s : in [E, C] i32
    g : in [E]
    q : in [E, C, T]
    h : in [E, C, K]
    x : in [T, K]
    y : out [E, C, K]
    z : out [C, K]

    compute f({domain}):
{lines}
    compute rest(c: C, k: K):
        z[c, k] = 0.0
""").programs[0]


PICK = "for (t: T):\n    pick = where({}, 1.0, 0.0)\n    acc += dot(pick, x[t, k])\ny[e, c, k] = acc"


@pytest.mark.parametrize(
    "body",
    [
        "acc = zeros(f32)\n" + PICK.format("s[e, c][:, None] == pos(t)[None, :]"),
        "acc = zeros(f32)\n" + PICK.format("pos(t) == s[e, c][:, None]"),
        "y[e, c, k] = dot(q[e, c, :] * g[e], x[:, k])",
    ],
)
def test_an_index_along_a_leading_axis_of_an_operand_is_a_number_before_its_value_is_typed(body: str) -> None:
    assert infer(program(body)).scalar_indices("f") == {"e"}


def test_the_index_of_an_accumulating_loop_is_a_number() -> None:
    body = "acc = zeros(f32)\nfor (e: E):\n    acc += h[e, c, k] * g[e]\nz[c, k] = acc"
    assert infer(program(body, domain="c: C, k: K")).scalar_indices("f") == {"e"}


def test_a_loop_whose_sum_is_used_inside_it_keeps_its_tiles() -> None:
    body = "acc = zeros(f32)\nfor (e: E):\n    acc += sum(h[e, c, k], axis=0)\nz[c, k] = acc"
    assert infer(program(body, domain="c: C, k: K")).scalar_indices("f") == frozenset()


@pytest.mark.parametrize(
    "body",
    [
        "last = zeros(f32)\nfor (e: E):\n    last = last * 0.5 + h[e, c, k]\n    y[e, c, k] = last",
        "last = zeros(f32)\nfor (e: E):\n    new = last + h[e, c, k]\n    y[e, c, k] = new\n    last = new",
        "last = zeros(f32)\nfor (e: E):\n    y[e, c, k] = last\n    last = h[e, c, k]",
    ],
)
def test_the_index_of_a_loop_that_carries_its_elements_is_a_number(body: str) -> None:
    assert infer(program(body, domain="c: C, k: K")).scalar_indices("f") == {"e"}


@pytest.mark.parametrize("line", ["part = h[e, c, k]", "part = zeros(f32)\n    part += h[e, c, k]"])
def test_the_index_of_a_loop_that_reassigns_its_value_keeps_its_tiles(line: str) -> None:
    body = f"part = zeros(f32)\nfor (e: E):\n    {line}\n    y[e, c, k] = part * 2.0"
    assert infer(program(body, domain="c: C, k: K")).scalar_indices("f") == frozenset()


def test_an_error_that_number_indices_do_not_solve_is_reported_for_the_program_as_written() -> None:
    with pytest.raises(ShapeError, match=r"i32\[e, c\] has 2 axes"):
        check(program("y[e, c, k] = f32(s[e, c][:]) * 1.0"))


def test_the_error_of_an_expanded_region_lists_its_number_coordinates() -> None:
    body = "acc = zeros(f32)\n" + PICK.format("s[e, c][:, :, None] == pos(t)[None, None, :]")
    with pytest.raises(TileLinkError, match=r"i32\[c\] has 1 axes") as caught:
        check(program(body))
    assert caught.value.hint == "one : each; e is used as a number in this stage, and has no axis"


def test_the_hint_for_a_value_of_an_ended_loop_works() -> None:
    wrong = "for (e: E):\n    v = h[e, c, k]\nz[c, k] = v"
    with pytest.raises(TileLinkError, match="v is a tile of e, whose loop has ended") as caught:
        check(program(wrong, domain="c: C, k: K"))
    assert "all_v = zeros(f32) before the loop, all_v += v in it" in str(caught.value)
    right = "all_v = zeros(f32)\nfor (e: E):\n    v = h[e, c, k]\n    all_v += v\nz[c, k] = all_v"
    assert infer(program(right, domain="c: C, k: K")).scalar_indices("f") == {"e"}
