"""What products are given: boxes of tensors, or values that are zero beyond the end of the contracted axis."""

from __future__ import annotations

import re

import pytest

from tests.backend.samples import Sample, emitted

TEXT = """
program product(M, N, K):
    x : in [2, M, K]
    w : in [2, K, N]
    y : out [M, N]
    compute f(i: M, j: N):
        y[i, j] = dot({left}, {right})
schedule s for product:
    f on sm, tile(i=64, j=64, k=32)
"""


def rendered(left: str, right: str, k: int, dtype: str) -> str:
    sample = Sample(text=TEXT.format(left=left, right=right), numbers={"M": 128, "N": 128, "K": k})
    return emitted(sample.bound(ranks=1, target="sm_90", dtype=dtype)).text


@pytest.mark.parametrize("k", [104, 128])
def test_what_is_computed_is_zero_beyond_the_contracted_axis(k: int) -> None:
    """Both sides: the exponential of what is not there is one. What is read is zero there anyway."""
    beyond = re.escape("tl.where(((k_0 + tl.arange(0, 32) < 104))")
    masks = re.findall(beyond + r"(\[.*?\]), tl.exp", rendered("exp(x[1, i, :])", "exp(w[0, :, j])", k, "f32"))
    assert masks == (["[None, :]", "[:, None]"] if k == 104 else [])
    assert "tl.where" not in rendered("x[0, i, :]", "w[0, :, j]", k, "f32")


@pytest.mark.parametrize("half", [0, 1])
def test_a_box_begins_at_the_coordinates_of_its_tile(half: int) -> None:
    text = rendered(f"x[{half}, i, :]", f"w[{1 - half}, :, j]", 128, "bf16")
    corners = re.findall(r"\w+_boxes_\w+\.load\((.*)\)", text)
    assert corners == (
        ["[i * 64, k_0]", "[1 * 128 + k_0, j * 64]"] if half == 0 else ["[1 * 128 + i * 64, k_0]", "[k_0, j * 64]"]
    )
