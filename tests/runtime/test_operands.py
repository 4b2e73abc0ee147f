# pyright: basic
"""The tensors that a caller passes to a kernel, on a CPU: which fit, which are copied, and new ones."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tilelink.errors import BindingError
from tilelink.runtime.cuda.operands import Operands
from tilelink.runtime.job import TensorLayout

CPU = torch.device("cpu")


def operands(space: str = "in") -> Operands:
    common: dict[str, Any] = {"number": 0, "space": space, "symmetric": False, "slots": 1}
    x = TensorLayout(name="x", shape=(3, 4), dtype="bf16", **common)
    w = TensorLayout(name="w", shape=(8,), dtype="f32", **common)
    return Operands([x, w], CPU)


def tensors(**other: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"x": torch.zeros(3, 4, dtype=torch.bfloat16), "w": torch.zeros(8)} | other


def test_tensors_that_fit_are_passed_as_they_are() -> None:
    given = tensors()
    found = operands().checked(given)
    assert list(found) == ["x", "w"] and all(found[name] is given[name] for name in given)
    assert list(operands().checked(dict(reversed(given.items())))) == ["x", "w"], "in the order of the program"


@pytest.mark.parametrize(
    ("wrong", "text"),
    [({"w": torch.zeros(9)}, r"'w' is \[9\] float32 on cpu"), ({"w": torch.zeros(8).half()}, r"'w' is \[8\] float16"),
     ({"w": torch.zeros(8, device="meta")}, "on meta"), ({"z": torch.zeros(8)}, "there is no tensor 'z'")],
)  # fmt: skip
def test_others_are_refused(wrong: dict[str, torch.Tensor], text: str) -> None:
    with pytest.raises(BindingError, match=text):
        operands().checked(tensors(**wrong))


def test_all_must_be_there_unless_some_are_enough() -> None:
    given = tensors()
    del given["x"]
    with pytest.raises(BindingError, match="there is no tensor 'x'"):
        operands().checked(given)
    assert list(operands().checked(given, complete=False)) == ["w"]


STRIDED, SHIFTED = torch.arange(16.0)[::2], torch.arange(9.0)[1:]


@pytest.mark.parametrize("w", [STRIDED, SHIFTED], ids=["strided", "shifted"])
def test_inputs_are_copied_where_a_kernel_cannot_take_them(w: torch.Tensor) -> None:
    found = operands().checked(tensors(w=w))["w"]
    assert (
        torch.equal(found, w)
        and found.is_contiguous()
        and found.data_ptr() % 16 == 0 != w.data_ptr() - found.data_ptr()
    )
    with pytest.raises(BindingError, match="output 'w' is not contiguous and aligned to 16 bytes"):
        operands("out").checked(tensors(w=w))


def test_new_tensors_are_whole_and_not_each_others() -> None:
    found, other = operands("out").new(), operands("out").new(but={"x"})
    assert [(n, list(t.shape), t.dtype) for n, t in found.items()] == [
        ("x", [3, 4], torch.bfloat16), ("w", [8], torch.float32)
    ]  # fmt: skip
    assert all(t.is_contiguous() and t.untyped_storage().nbytes() == t.nbytes for t in found.values())
    assert list(other) == ["w"] and other["w"].data_ptr() != found["w"].data_ptr()
