# pyright: basic
"""The tensors that a caller passes to a kernel, on a CPU: which fit, which are copied, and new ones."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tilelink.artifact import TensorSpec
from tilelink.errors import BindingError
from tilelink.runtime.cuda.operands import Operands, check_apart

CPU = torch.device("cpu")


def operands(space: str = "in") -> Operands:
    common: dict[str, Any] = {"number": 0, "space": space, "symmetric": False, "buffers": 1}
    x = TensorSpec(name="x", shape=(3, 4), dtype="bf16", **common)
    w = TensorSpec(name="w", shape=(8,), dtype="f32", **common)
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


def test_tensors_in_place_are_passed_as_they_are_or_refused() -> None:
    """A copy would be changed in their place."""
    given = tensors()
    found = operands("inout").checked(given)
    assert all(found[name] is given[name] for name in given)
    for w in (STRIDED, SHIFTED):
        with pytest.raises(BindingError, match="output 'w' is not contiguous and aligned to 16 bytes"):
            operands("inout").checked(tensors(w=w))
    with pytest.raises(BindingError, match="output 'w' requires a gradient"):
        operands("inout").checked(tensors(w=torch.zeros(8, requires_grad=True)))


def test_new_tensors_are_whole_and_not_each_others() -> None:
    found, other = operands("out").new(), operands("out").new(but={"x"})
    assert [(n, list(t.shape), t.dtype) for n, t in found.items()] == [
        ("x", [3, 4], torch.bfloat16), ("w", [8], torch.float32)
    ]  # fmt: skip
    assert all(t.is_contiguous() and t.untyped_storage().nbytes() == t.nbytes for t in found.values())
    assert list(other) == ["w"] and other["w"].data_ptr() != found["w"].data_ptr()


# What cannot be an operand -----------------------------------------------------------------------------------


class Pretended(torch.Tensor):
    """A tensor that stands for memory which is not there, as those of tracing do."""

    def data_ptr(self) -> int:
        raise RuntimeError("no data")


SPARSE = torch.zeros(8).to_sparse()


@pytest.mark.parametrize(
    ("w", "text"),
    [([0.0] * 8, "'w' is a list"), (torch.zeros(8).numpy(), "'w' is a ndarray"), (SPARSE, r"'w' is a Tensor \(sparse_"),
     (torch.zeros(8).as_subclass(Pretended), r"'w' is a Pretended \(strided\) without elements in memory")],
)  # fmt: skip
def test_what_has_no_memory_is_refused(w: Any, text: str) -> None:
    with pytest.raises(BindingError, match=rf"tensor {text}") as caught:
        operands().checked(tensors(w=w))
    assert caught.value.hint == "it takes [8] f32 on cpu"


def test_tensors_go_by_their_names() -> None:
    with pytest.raises(BindingError, match="passed by name, not as Tensor") as caught:
        operands().checked(torch.zeros(8))  # type: ignore[arg-type]
    assert "there are x, w" in str(caught.value)


# Gradients ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [1, 2], ids=["as they are", "copied"])
def test_inputs_come_without_their_gradients(step: int) -> None:
    """A copy into a buffer would keep their graphs there, launch after launch."""
    w, buffer = torch.arange(8.0 * step, requires_grad=True)[::step], torch.zeros(2, 8)
    found = operands().checked(tensors(w=w))["w"]
    buffer[0].copy_(found)
    assert torch.equal(found, w) and not found.requires_grad and not buffer.requires_grad


def test_an_output_with_a_gradient_is_written_only_where_there_are_none() -> None:
    wanted = operands("out")
    given = tensors(w=torch.zeros(8, requires_grad=True))
    with pytest.raises(BindingError, match=r"output 'w' requires a gradient(?s:.)*\.detach\(\)"):
        wanted.checked(given)
    with torch.no_grad():
        assert wanted.checked(given)["w"] is given["w"]


# Memory that tensors share -----------------------------------------------------------------------------------

MEMORY = torch.zeros(64)
OWN = torch.zeros(4)


@pytest.mark.parametrize(
    ("outputs", "inputs", "text"),
    [
        ({"y": MEMORY[:8]}, {"x": MEMORY[:8]}, "output 'y' shares memory with input 'x'"),
        ({"y": MEMORY[:8]}, {"w": MEMORY[20:24], "x": MEMORY[7:15]}, "output 'y' shares memory with input 'x'"),
        ({"y": MEMORY[4:8]}, {"x": MEMORY.view(torch.int32)[:16]}, "output 'y' shares memory with input 'x'"),
        ({"y": MEMORY[:8], "z": MEMORY[4:12]}, {}, "output 'z' shares memory with output 'y'"),
        ({"y": MEMORY[12:14]}, {"x": MEMORY[:16:4]}, "output 'y' shares memory with input 'x'"),
        ({"y": OWN[1:2]}, {}, "output 'y' shares memory with the buffers of the kernel"),
    ],
)
def test_outputs_have_memory_of_their_own(
    outputs: dict[str, torch.Tensor], inputs: dict[str, torch.Tensor], text: str
) -> None:
    with pytest.raises(BindingError, match=text) as caught:
        check_apart(outputs, inputs, OWN)
    assert "memory of its own" in str(caught.value.hint)


def test_neighbours_and_equal_inputs_share_nothing_that_is_written() -> None:
    check_apart({"y": MEMORY[8:16], "z": MEMORY[24:]}, {"x": MEMORY[:8], "w": MEMORY[16:24], "v": MEMORY[:8]}, OWN)
