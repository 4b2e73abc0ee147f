"""Dimensions of programs from the sizes of tensors: which are told, and what is refused, with its words."""

from __future__ import annotations

from typing import Any

import pytest

from tilelink import compiler
from tilelink.errors import BindingError, ShapeError
from tilelink.ir.program import Program
from tilelink.ir.solve import solve


def program(params: str, **shapes: str) -> Program:
    lines = "".join(f"    {name} : in [{shape}]\n" for name, shape in shapes.items())
    text = f"program p({params}):\n{lines}    out : out [M]\n    compute s(i: M):\n        out[i] = 1.0\n"
    return compiler.parse(text, "p.tl").program()


def solved(declared: Program, given: dict[str, Any] | None = None, ranks: int = 2, **sizes: list[int]) -> Any:
    return dict(solve(declared, sizes, given or {}, ranks).dims)


@pytest.mark.parametrize(
    ("params", "shapes", "sizes", "found"),
    [
        ("M, K", {"x": "M, K"}, {"x": [6, 8]}, {"M": 6, "K": 8}),
        ("M, K", {"x": "ranks, M, K"}, {"x": [2, 6, 8]}, {"M": 6, "K": 8}),
        ("M, K", {"x": "ranks * M, K"}, {"x": [12, 8]}, {"M": 6, "K": 8}),
        ("M, K", {"x": "K * M", "w": "K"}, {"x": [48], "w": [8]}, {"M": 6, "K": 8}),
        ("M, K", {"w": "K", "x": "2 * M + K - 1"}, {"x": [19], "w": [8]}, {"M": 6, "K": 8}),
        ("M, K", {"x": "K - M", "w": "K"}, {"x": [2], "w": [8]}, {"M": 6, "K": 8}),
        ("M, K", {"x": "M, M // 2", "w": "K"}, {"x": [7, 3], "w": [8]}, {"M": 7, "K": 8}),
    ],
)
def test_extents_tell_dimensions(
    params: str, shapes: dict[str, str], sizes: dict[str, Any], found: dict[str, int]
) -> None:
    assert solved(program(params, **shapes), **sizes) == found


def test_what_is_given_need_not_be_told() -> None:
    declared = program("M, K, scale: f32", x="M * K")
    assert solved(declared, {"K": 4, "scale": 0.5}, x=[24]) == {"K": 4, "scale": 0.5, "M": 6}
    assert solved(program("M", x="M // 2"), {"M": 7}, x=[3]) == {"M": 7}


def test_tensors_that_disagree_are_both_shown() -> None:
    declared = program("M, K", x="M, K", w="M, K")
    with pytest.raises(ShapeError) as caught:
        solved(declared, x=[6, 8], w=[6, 7])
    error = caught.value
    assert error.message == "K of p is 8 in x and 7 in w"
    assert error.hint == "x is [6, 8], declared [M, K]; w is [6, 7], declared [M, K]"
    assert error.location is not None and error.related is not None
    assert (error.location.line, error.related.line) == (3, 2)


@pytest.mark.parametrize(
    ("params", "shapes", "sizes", "message", "hint"),
    [
        ("M", {"x": "ranks * M"}, {"x": [7]}, "axis 0 of x of p is 7, on 2 ranks",
         "it is declared ranks * M, which is 7 for no M"),
        ("M", {"x": "M, 2 * M"}, {"x": [3, 7]}, "axis 1 of x of p is 7, not 6",
         "M is 3 in x; x is [3, 7], declared [M, 2 * M]"),
        ("M", {"x": "ranks, M"}, {"x": [3, 7]}, "axis 0 of x of p is 3, not 2", "x is [3, 7], declared [ranks, M]"),
        ("M", {"x": "M, 4"}, {"x": [3, 5]}, "axis 1 of x of p is 5, not 4", "x is [3, 5], declared [M, 4]"),
        ("M", {"x": "M"}, {"x": [3, 7]}, "x of p is [3, 7], with 2 axes", "it is declared [M]"),
        ("M, K", {"w": "K", "x": "M + K"}, {"w": [4], "x": [9], "given": {"M": 6}}, "axis 0 of x of p is 9, not 10",
         "M is 6 in the call, K is 4 in w; w is [4], declared [K]; x is [9], declared [M + K]"),
        ("M", {"x": "M"}, {"x": [9], "given": {"M": 6}}, "M of p is 6 in the call and 9 in x",
         "x is [9], declared [M]"),
    ],
)  # fmt: skip
def test_sizes_that_do_not_fit(
    params: str, shapes: dict[str, str], sizes: dict[str, Any], message: str, hint: str
) -> None:
    with pytest.raises(ShapeError) as caught:
        solved(program(params, **shapes), **sizes)
    assert (caught.value.message, caught.value.hint) == (message, hint)
    assert caught.value.location is not None


@pytest.mark.parametrize(
    ("params", "shape", "size", "message", "hint"),
    [
        ("M, K", "M", [6], "dimension 'K' of p is not known: no tensor that is given has it",
         "give it in the call: K=64"),
        ("M, K", "M * K", [6], "dimension 'M' of p is not known: x is declared [M * K], which does not tell it",
         "give it in the call: M=64"),
        ("M", "M // ranks", [6], "dimension 'M' of p is not known: x is declared [M // ranks], which does not tell it",
         "give it in the call: M=64"),
        ("M, scale: f32", "M", [6], "parameter 'scale' of p is not known: it is a number of kind f32",
         "give it in the call: scale=0.5"),
    ],
)  # fmt: skip
def test_what_no_tensor_tells(params: str, shape: str, size: list[int], message: str, hint: str) -> None:
    with pytest.raises(BindingError) as caught:
        solved(program(params, x=shape), x=size)
    assert (caught.value.message, caught.value.hint) == (message, hint)
    assert caught.value.location is not None and caught.value.location.file == "p.tl"
