"""Selecting: positions of the largest, sums along an axis, conditions of a whole axis, and operations of integers."""

from __future__ import annotations

import pytest
import torch

from tests.exact_programs import ORDER, SELECT, differences, order_inputs, ordered, select_inputs, selected
from tilelink import compiler
from tilelink.errors import DtypeError, TileLinkError, TileSizeError


@pytest.mark.parametrize(("M", "N", "schedule"), [(5, 7, None), (37, 200, "blocks"), (64, 130, None)])
def test_results_are_those_of_numpy(M: int, N: int, schedule: str | None) -> None:
    given, module = select_inputs(M, N), compiler.parse(SELECT, "select.tl")
    kernel = compiler.compile(module.program(), schedule, ranks=1, dims={"M": M, "N": N})
    assert not list(differences(kernel.run([[given]]).outputs[0][0], selected(given)))


def test_sorted_as_torch_does() -> None:
    """With NaN and both zeros, the ends of integers, equal elements, and each axis; sizes that are no powers of two."""
    module, given = compiler.parse(ORDER, "order.tl"), order_inputs(M := 5, N := 13)
    kernel = compiler.compile(module.program(), "blocks", ranks=1, dims={"M": M, "N": N})
    for (found,) in (kernel.run([[given]]).outputs[0], kernel.reference([given])):
        assert not list(differences(found, ordered(given)))


def test_an_axis_of_one_element_is_sorted() -> None:
    module = compiler.parse("program p(N):\n    x : in [N] f32\n    y : out [N] i32\n    compute f():\n"
                            "        y[:] = argsort(x[:], axis=0) + i32(sort(x[:], axis=0))\n")  # fmt: skip
    kernel = compiler.compile(module.program(), ranks=1, dims={"N": 1})
    assert kernel.run([[{"x": torch.tensor([7.0])}]]).outputs[0][0]["y"].tolist() == [7]


def test_long_integers_have_no_positions_in_order() -> None:
    module = compiler.parse("program p(N):\n    x : in [N] i64\n    y : out [N] i32\n    compute f():\n"
                            "        y[:] = argsort(x[:], axis=0)\n")  # fmt: skip
    with pytest.raises(DtypeError, match="argsort of i64") as caught:
        compiler.check(module.program())
    assert caught.value.hint == "i32(v) if its values fit" and caught.value.location is not None


def test_a_sort_compiles_for_gpus() -> None:
    head = "program p(M, N):\n    x : in [M, N]\n    y : out [M, N] i32\n"
    body = "    compute f(j: N):\n        y[:, j] = argsort(x[:, j], axis=0) + i32(sort(x[:, j], axis=0))\n"
    text = compiler.assembly(
        compiler.parse(head + body).program(), None, ranks=1, dims={"M": 9, "N": 4}, target="sm_90"
    )
    assert "shfl" in text, "pairs are in different threads"


def test_positions_count_from_the_start_of_an_axis_that_is_computed_in_blocks() -> None:
    module = compiler.parse(
        "program far(M, N):\n    x : in [M, N]\n    y : out [M] i32\n    compute f(i: M):\n"
        "        y[i] = argmax(x[i, :], axis=1)\n\nschedule s for far:\n    f tile(i=4)\n"
    )
    x = torch.zeros(8, 300)
    x[:, 299], x[3, 70] = 1, 1
    program = module.program()
    bound = compiler.bound(program, module.schedules[0], ranks=1, dims={"M": 8, "N": 300})
    assert bound.contraction_block("f") < 70
    kernel = compiler.compile(program, module.schedules[0], ranks=1, dims={"M": 8, "N": 300})
    assert "for k" in kernel.source
    (found,) = kernel.run([[{"x": x}]]).outputs[0]
    assert found["y"].tolist() == [299, 299, 299, 70, 299, 299, 299, 299]


def test_positions_along_a_size_that_is_computed() -> None:
    module = compiler.parse(
        "program starts(M, E):\n    let ends = E + 1\n    ids : in [M] i32\n    y : out [ends] i32\n"
        "    z : out [2 * E] i32\n"
        "    compute f():\n        y[:] = sum(i32(ids[:][:, None] < pos(ends)[None, :]), axis=0)\n"
        "        z[:] = pos(2 * E) * 3\n"
    )
    kernel = compiler.compile(module.program(), ranks=1, dims={"M": 6, "E": 3})
    given = {"ids": torch.tensor([2, 0, 2, 1, 0, 2], dtype=torch.int32)}
    for (found,) in (kernel([given]), kernel.reference([given])):
        assert found["y"].tolist() == [0, 2, 3, 6] and found["z"].tolist() == [0, 3, 6, 9, 12, 15]


def test_the_least_integer_and_nan_have_results_too() -> None:
    module = compiler.parse(
        "program edge(M):\n    n : in [M] i32\n    d : in [M] i32\n    x : in [1, M] f32\n    q : out [M] i32\n"
        "    t : out [1] i32\n    compute f(i: M):\n        q[i] = n[i] // d[i]\n"
        "    compute g(i: 1):\n        t[i] = argmax(x[i, :], axis=1)\n"
    )
    least = -(2**31)
    n = torch.tensor([least, least, 7, least, -7], dtype=torch.int32)
    d = torch.tensor([-1, 1, -1, 2, -1], dtype=torch.int32)
    x = torch.tensor([[0.0, float("nan"), 1.0, 2.0, -1.0]])
    kernel = compiler.compile(module.program(), ranks=1, dims={"M": 5})
    for (found,) in (kernel.run([[{"n": n, "d": d, "x": x}]]).outputs[0], kernel.reference([{"n": n, "d": d, "x": x}])):
        assert found["q"].tolist() == [least, least, -7, least // 2, 7]
        assert 0 <= int(found["t"]) < 5


def test_a_gate_chooses_what_topk_chooses_and_counts_it() -> None:
    M, E, k = 48, 20, 3
    program = compiler.load("top_k_gate").program()
    kernel = compiler.compile(program, "small", ranks=2, dims={"M": M, "E": E, "k": k})
    chance = torch.Generator().manual_seed(3)
    inputs = [{"scores": torch.randn(M, E, generator=chance)} for _ in range(2)]
    for given, found in zip(inputs, kernel.run([inputs]).outputs[0], strict=True):
        scores, experts = torch.topk(given["scores"], k, dim=1)
        assert torch.equal(found["expert"].long(), experts)
        assert torch.equal(found["score"], scores)
        assert found["count"].tolist() == torch.bincount(experts.flatten(), minlength=E).tolist()
        places = {(int(e), int(s)) for e, s in zip(found["expert"].flatten(), found["slot"].flatten(), strict=True)}
        assert places == {(e, s) for e in range(E) for s in range(int(found["count"][e]))}, "each place once"


def one(line: str, extra: str = "", index: str = "i: M", schedule: str = "") -> compiler.Module:
    return compiler.parse(
        f"program p(M, N):\n    x : in [M, N] f32\n    n : in [M, N] i32\n    y : out [M, N]\n    z : out [N] i32\n"
        f"{extra}    compute f({index}):\n        {line}\n    compute g(j: N):\n        z[j] = 0\n"
        f"\nschedule s for p:\n    g on sm\n{schedule}"
    )


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("y[i, :] = x[i, :] // 2", r"// is for integers, not for f32[\s\S]*i32\(v\)"),
        ("y[i, :] = n[i, :] << x[i, :]", r"<< is for integers, not for f32"),
        ("y[i, :] = x[i, :] & n[i, :]", r"& is for integers, not for f32"),
    ],
)
def test_operations_of_integers_refuse_other_numbers(line: str, message: str) -> None:
    with pytest.raises(TileLinkError, match=message):
        compiler.bound(one(line).program(), ranks=1, dims={"M": 16, "N": 64})


@pytest.mark.parametrize(
    ("line", "index", "message"),
    [
        ("y[i, j] = cumsum(x[i, j], axis=1)", "i: M, j: N", r"takes the cumsum over tiles of j"),
        ("y[i, j] = sort(x[i, j], axis=1)", "i: M, j: N", r"takes the sort over tiles of j"),
        ("for (j: N):\n            y[i, j] = argsort(x[i, j], axis=1)", "i: M", r"j"),
        ("y[i, j] = argmax(x[i, j], axis=1)[:, None]", "i: M, j: N", r"takes the argmax over tiles of j"),
        ("for (j: N):\n            y[i, j] = cumsum(x[i, j], axis=1)", "i: M", r"j"),
        ("t = zeros(i32)\n        for (j: N):\n            t = maximum(t, argmax(x[i, j], axis=1))\n"
         "        y[i, :] = t[:, None]", "i: M", r"t "),
    ],
)  # fmt: skip
def test_parts_of_an_axis_are_refused(line: str, index: str, message: str) -> None:
    tile = "    f tile(i=4, j=8)\n"
    with pytest.raises((TileSizeError, TileLinkError), match=message):
        module = one(line, index=index, schedule=tile)
        compiler.bound(module.program(), module.schedules[0], ranks=1, dims={"M": 16, "N": 64})


def test_an_operator_binds_as_in_python_and_is_printed_so() -> None:
    line = "y[i, :] = (n[i, :] & 3 | 1 << n[i, :] ^ 5) % (n[i, :] // 2 + 1) - (n[i, :] | 2) * 2"
    program = one(line).program()
    again = compiler.parse(str(program)).program()
    assert again == program
    assert line.partition(" = ")[2] in str(program)


def test_integers_stay_integers() -> None:
    program = one("y[i, :] = x[i, :] * (M // 4) + (rank ^ 1)").program()
    assert "M // 4" in str(program) and "rank ^ 1" in str(program)
    with pytest.raises(DtypeError, match="// is for integers, not for f32"):
        compiler.bound(one("y[i, :] = x[i, :] * (M // 4.0)").program(), ranks=1, dims={"M": 16, "N": 64})
