"""What products are given: boxes of tensors, or values that are zero beyond the end of the contracted axis."""

from __future__ import annotations

import re

import pytest

from tests.backend.samples import Sample, emitted, numbered

TEXT = """
program product(M, N, K):
    x : in [2, M, K]
    w : in [2, K, N]
    u : in [2, K, M]
    v : in [2, N, K]
    y : out [M, N]
    compute f(i: M, j: N):
        y[i, j] = dot({left}, {right})
schedule s for product:
    f on sm, tile(i=64, j=64, k=32)
"""


def rendered(left: str, right: str, k: int, dtype: str) -> str:
    sample = Sample(text=TEXT.format(left=left, right=right), numbers={"M": 128, "N": 128, "K": k})
    return numbered(emitted(sample.bound(ranks=1, target="sm_90", dtype=dtype)).text)


@pytest.mark.parametrize("k", [104, 128])
def test_what_is_computed_is_zero_beyond_the_contracted_axis(k: int) -> None:
    """Both sides: the exponential of what is not there is one. What is read is zero there anyway."""
    beyond = re.escape("tl.where((k + tl.arange(0, 32) < 104)")
    masks = re.findall(beyond + r"(\[.*?\]), tl.exp", rendered("exp(x[1, i, :])", "exp(w[0, :, j])", k, "f32"))
    assert masks == (["[None, :]", "[:, None]"] if k == 104 else [])
    assert "tl.where" not in rendered("x[0, i, :]", "w[0, :, j]", k, "f32")


@pytest.mark.parametrize(("dtype", "number"), [("bf16", "0.0"), ("f32", "0.0"), ("bf16", "1.0")])
def test_a_load_leaves_out_what_a_condition_leaves_out_of_a_product(dtype: str, number: str) -> None:
    """A choice between a region and 0 is of the region's type: the product is not one of f32."""
    source = rendered("exp(x[1, i, :])", f"where((pos(j) < 100)[None, :], w[0, :, j], {number})", 104, dtype)
    (load,) = re.findall(r"w_tile = tl\.load\(.*, mask=(.*), other=0\)", source)
    assert ("tl.arange(0, 64)) < 100" in load) == (number == "0.0")
    (operand,) = re.findall(r"tiles\.dot\(.*, (\w+), acc\)", source) or [""]
    assert (operand == "w_tile") == (number == "0.0")


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("x[0, i, :]", "b"),
        ("a", "w[0, :, j]"),
        ("a", "b"),
        ("a.T.T", "b.T.T"),
        ("x[0, i, :] * a", "w[0, :, j]"),
        ("x[0, i, :]", "b + w[0, :, j]"),
    ],
)
def test_a_name_that_holds_a_whole_tile_is_not_multiplied_in_slices(left: str, right: str) -> None:
    names = "a = exp(x[1, i, :])\n        b = exp(w[1, :, j])\n        y[i, j] ="
    sample = Sample(
        text=TEXT.format(left=left, right=right).replace("y[i, j] =", names), numbers={"M": 64, "N": 64, "K": 128}
    )
    assert "for k" not in numbered(emitted(sample.bound(ranks=1, target="sm_90")).text)


@pytest.mark.parametrize("left", ["x[0, i, :] * r[:, None]", "(u[0, :, i] * r[None, :]).T"])
@pytest.mark.parametrize("right", ["w[0, :, j] * c[None, :]", "(v[0, j, :] * c[:, None]).T"])
def test_a_name_along_the_other_axis_is_multiplied_in_slices(left: str, right: str) -> None:
    names = "r = sum(x[1, i, :], axis=1)\n        c = sum(w[1, :, j], axis=0)\n        y[i, j] ="
    text = TEXT.format(left=left, right=right).replace("y[i, j] =", names)
    source = numbered(
        emitted(Sample(text=text, numbers={"M": 64, "N": 64, "K": 128}).bound(ranks=1, target="sm_90")).text
    )
    (name,) = re.findall(r"(\w+) = k_2 \+ tl.arange", source)
    assert len(re.findall(rf"tl\.load\(.*\b{name}\b", source)) == 2, "both sides have the slice"


SUMS = """
program sums(N, K):
    w : in [K, K]
    z : in [{shape}]
    y : out [N]
    compute f(j: N):
        a = {first}
        y[j] = sum({value})
schedule s for sums:
    f on sm, tile(j=64, k=32)
"""


@pytest.mark.parametrize(
    ("shape", "value", "sliced"),
    [
        ("K, N", "dot(w[:, :], z[:, j]), axis=0", ["k", "k_1"]),
        ("N, K", "dot(z[j, :], w[:, :]), axis=1", ["k_1", "k"]),
        ("N, K", "dot(a, w[:, :]), axis=1", ["k"]),
        ("N, K", "dot(a + z[j, :], w[:, :]), axis=1", ["k"]),
    ],
)
def test_a_product_that_is_added_up_is_made_in_slices(shape: str, value: str, sliced: list[str]) -> None:
    """Of the rows of its left side, or of the columns of its right one; both have slices of what is contracted."""
    text = SUMS.format(shape=shape, value=value, first="z[:, j]" if shape == "K, N" else "z[j, :]")
    source = numbered(emitted(Sample(text=text, numbers={"N": 64, "K": 128}).bound(ranks=1, target="sm_90")).text)
    assert re.findall(r" = (k(?:_\d)?) \+ tl.arange", source) == sliced


def test_a_transposed_box_is_loaded_as_it_lies() -> None:
    text = rendered("u[1, :, i].T", "v[0, j, :].T", 128, "bf16")
    assert re.findall(r"\w+_boxes_\w+\.load\(.*\)", text) == [
        "u_boxes_32x64.load([128 + k, i * 64])", "v_boxes_64x32.load([j * 64, k])",
    ]  # fmt: skip


@pytest.mark.parametrize("half", [0, 1])
def test_a_box_begins_at_the_coordinates_of_its_tile(half: int) -> None:
    text = rendered(f"x[{half}, i, :]", f"w[{1 - half}, :, j]", 128, "bf16")
    corners = re.findall(r"\w+_boxes_\w+\.load\((.*)\)", text)
    assert corners == (["[i * 64, k]", "[128 + k, j * 64]"] if half == 0 else ["[128 + i * 64, k]", "[k, j * 64]"])


@pytest.mark.parametrize(("m", "n", "boxes"), [(128, 128, 2), (100, 128, 2), (128, 100, 1)])
def test_rows_that_are_no_multiples_of_16_bytes_are_not_loaded_as_boxes(m: int, n: int, boxes: int) -> None:
    sample = Sample(text=TEXT.format(left="x[0, i, :]", right="w[0, :, j]"), numbers={"M": m, "N": n, "K": 128})
    text = numbered(emitted(sample.bound(ranks=1, target="sm_90", dtype="bf16")).text)
    assert len(re.findall(r"\w+_boxes_\w+\.load\(", text)) == boxes


COUNTED = """
program product(M, N, K):
    n : in [] <= K
    x : in [M, K]
    w : in [N, K]
    y : out [M, N]
    compute f(i: M, j: N):
        acc = zeros(f32)
        for (k: K{part}):
            acc += dot(x[i, k], w[j, k].T)
        y[i, j] = acc
schedule s for product:
    f on sm, tile(i=64, j=64, k=32)
"""


def test_boxes_do_not_reach_beyond_a_counted_range_that_is_contracted() -> None:
    """The element there belongs to the tensor, and is no zero."""
    texts = []
    for part in ("", "[: n]"):
        sample = Sample(text=COUNTED.format(part=part), numbers={"M": 128, "N": 128, "K": 128})
        texts.append(emitted(sample.bound(ranks=1, target="sm_90", dtype="bf16")).text)
    assert "x_boxes_64x32.load" in texts[0] and "w_boxes_64x32.load" in texts[0]
    assert ".load([" not in texts[1]
    assert texts[1].count("< end_k)[None, :], other=0)") == 2
