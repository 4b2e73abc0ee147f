"""Semantics of regions, ranks, tile values and user calls."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.reference import texts
from tilelink import reference
from tilelink.errors import BindingError, CoverageError
from tilelink.reference.values import ORACLES

OUTSIDE = (
    "program p(M, N):\n    t : table [M] < M\n    x : in [M, N]\n    h : local [M, N]\n    y : out [M, N]\n"
    "    compute f(i: M, b: M):\n        STATEMENT\n"
)


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("y[2 + i, :] = x[i, :]", r"writes y[2 + i, :] outside y, of shape [5, 2]"),
        ("y[i, :] = x[2 + i, :]", r"reads x[2 + i, :] outside x, of shape [5, 2]"),
        ("y[b, :] = x[b - 1, :]", r"reads x[b - 1, :] outside x, of shape [5, 2]"),
        ("y[b - 1, :] = x[b, :]", r"writes y[b - 1, :] outside y, of shape [5, 2]"),
        ("producer_tile_notify(h[M, :])", r"notifies h[M, :] outside h, of shape [5, 2]"),
        ("peer_tile_notify(h[b - 1, :] @ rank)", r"outside h, of shape [5, 2]"),
        ("consumer_tile_wait(h[1 + i, :])", r"waits for h[1 + i, :] outside h, of shape [5, 2]"),
        ("rank_wait(h[b - 1, :])", r"waits for h[b - 1, :] outside h, of shape [5, 2]"),
        ("y[t[b + 1], :] = x[b, :]", r"looks up t[b + 1], where b + 1 is 5"),
        ("y[t[b - 1], :] = x[b, :]", r"looks up t[b - 1], where b - 1 is -1"),
        ("if b > 0 and t[b - 1] > 2:\n            y[b, :] = x[b, :]", r"looks up t[b - 1], where b - 1 is -1"),
    ],
)
def test_an_access_outside_a_tensor_is_an_error(statement: str, message: str) -> None:
    """Also before its start: a negative coordinate does not count from the end."""
    text = OUTSIDE.replace("STATEMENT", statement)
    with pytest.raises(CoverageError, match=f"rank 0, f.* {re.escape(message)}"):
        texts.one(text, {"M": 5, "N": 2}, x=torch.zeros(5, 2), t=torch.arange(5))


def test_an_element_is_read_once_it_has_been_written() -> None:
    """Without a signal too, and in any order of the stages: their kernels may run one after the other."""
    text = "program p(M):\n    x : in [M]\n    h : symmetric [M]\n    c : local [M]\n    y : out [M]\n"
    text += "    compute use(i: M):\n        y[i] = c[i]\n"
    text += "    compute fill(i: M):\n        consumer_tile_wait(h[i])\n        c[i] = h[i]\n"
    text += "    comm send(i: M):\n        tile_push_data(h[i] @ (rank + 1), x[i])\n"
    text += "        producer_tile_notify(h[i] @ (rank + 1))\n"
    given, out = texts.outputs(text, 2, {"M": 4})
    assert all(torch.equal(own["y"], other["x"]) for own, other in zip(out, reversed(given), strict=True))


def test_a_read_of_elements_that_no_stage_writes_is_an_error() -> None:
    text = "program p(M):\n    x : in [M]\n    h : symmetric [M]\n    y : out [M]\n"
    text += "    compute f(b: M):\n        if b > 0:\n            h[b] = x[b]\n        y[b] = h[b]\n"
    with pytest.raises(CoverageError, match=r"rank 0, f at b = 0 reads h\[b\], parts of which no stage writes"):
        texts.one(text, {"M": 4}, x=torch.zeros(4))


def test_a_division_by_zero_is_an_error() -> None:
    text = "program p(M, n: i32):\n    x : in [M]\n    y : out [M]\n"
    text += "    compute f(b: M):\n        y[b] = x[b // n]\n"
    with pytest.raises(BindingError, match=r"b // n divides by zero"):
        texts.one(text, {"M": 4, "n": 0}, x=torch.zeros(4))


def test_rows_of_a_table_are_read_and_written() -> None:
    text = "program p(M, N):\n    a : table [M] < M\n    b : table [M] < M\n    x : in [M, N]\n    y : out [M, N]\n"
    text += "    compute f(j: N):\n        y[b[:], j] = x[a[:], j]\n"
    a, b = torch.tensor([3, 0, 0, 1]), torch.tensor([1, 3, 0, 2])
    x = torch.randn(4, 3)
    y = texts.one(text, {"M": 4, "N": 3}, a=a, b=b, x=x)["y"]
    assert torch.equal(y[b], x[a])


def test_a_table_chooses_weights_tile_by_tile() -> None:
    text = "program p(B, E, N):\n    e : table [B] < E\n    w : in [E, N]\n    y : out [B, N]\n"
    text += "    compute f(b: B, j: N):\n        y[b, j] = w[e[b], j]\n"
    e, w = torch.tensor([2, 0, 2]), torch.randn(3, 4)
    assert torch.equal(texts.one(text, {"B": 3, "E": 3, "N": 4}, e=e, w=w)["y"], w[e])


RANK_TEXT = """
program p(M):
    x : in symmetric [ranks, M]
    y : out [ranks, M]
    z : out [M]
    compute f(s: ranks, i: M):
        y[s + rank, i] = x[s + 1, i] @ (rank - 1)
        if CONDITION:
            z[i] = full(1, f32)
"""


@pytest.mark.parametrize("condition", ["s == rank + 1", "s + 1 == rank + 2", "not (s != rank + 1 or rank != rank)"])
def test_ranks_are_modulo_ranks(condition: str) -> None:
    """Also for a comparison nested deep in a condition."""
    given, out = texts.outputs(RANK_TEXT.replace("CONDITION", condition), 3, {"M": 2})
    for rank, own in enumerate(out):
        for s in range(3):
            assert torch.equal(own["y"][(s + rank) % 3], given[(rank - 1) % 3]["x"][(s + 1) % 3])
        assert bool((own["z"] == 1).all())


def test_comparisons_by_size_are_not_modulo_ranks() -> None:
    text = "program p(M):\n    z : out [M]\n    compute f(i: M):\n"
    text += (
        "        if rank + 1 > 2:\n            z[i] = full(1, f32)\n        else:\n            z[i] = full(2, f32)\n"
    )
    _, out = texts.outputs(text, 3, {"M": 2})
    assert [own["z"].tolist() for own in out] == [[2.0, 2.0], [2.0, 2.0], [1.0, 1.0]]


@pytest.mark.parametrize(
    ("statement", "state"),
    [
        ("if b > 0:\n            y[b, :] = x[b, :]", r"y[0, 0] of rank 0 is never written"),
        ("y[t[:], :] = x[:, :]", r"y[0, 0] of rank 0 is never written"),
        ("y[b, :] = x[b, :]\n        y[b, :] = x[b, :]", r"y[0, 0] of rank 0 is written 2 times"),
    ],
)
def test_an_output_is_written_once(statement: str, state: str) -> None:
    text = OUTSIDE.replace("STATEMENT", statement).replace("i: M, b: M", "b: M" if "b" in statement else "j: 1")
    with pytest.raises(CoverageError, match=re.escape(state)):
        texts.one(text, {"M": 5, "N": 2}, x=torch.zeros(5, 2), t=torch.tensor([1, 2, 3, 4, 4]))


def test_a_value_does_not_change_with_the_tensor_it_was_read_from() -> None:
    text = "program p(M):\n    x : in [M] i32\n    h : local [M] i32\n    y : out [M] i32\n"
    text += "    compute f(i: M):\n        h[i] = x[i]\n        v = h[i]\n        h[i] = v + 1\n        y[i] = v\n"
    x = torch.tensor([4, 5], dtype=torch.int32)
    assert torch.equal(texts.one(text, {"M": 2}, x=x)["y"], x)


def test_tile_values() -> None:
    text = "program p(M, N, c: f32):\n    x : in [M, N]\n    y : out [M, N]\n    z : out [M]\n"
    text += "    compute f(i: M):\n        v = where(pos(i)[:, None] >= 2, exp(x[i, :]), x[i, :] * c)\n"
    text += "        y[i, :] = f32(bf16(v)) - max(v, axis=1)[:, None]\n"
    text += "        z[i] = sum(silu(v), axis=1) + pos(i) / 4\n"
    x = torch.randn(5, 3)
    out = texts.one(text, {"M": 5, "N": 3, "c": 0.5}, x=x)
    v = torch.where(torch.arange(5)[:, None] >= 2, x.double().exp(), x.double() * 0.5)
    assert torch.equal(out["y"], (v.bfloat16().double() - v.amax(1, keepdim=True)).float())
    assert torch.equal(out["z"], (torch.nn.functional.silu(v).sum(1) + torch.arange(5) / 4).float())


CALL = (
    "program p(M, N):\n    x : in [M, N]\n    y : out [M, N]\n"
    "    compute f(i: M):\n        y[i, :] = call mine.twice(x[i, :])\n"
)


@pytest.fixture
def oracles() -> Iterator[None]:
    before = dict(ORACLES)
    yield
    ORACLES.clear()
    ORACLES.update(before)


@pytest.mark.usefixtures("oracles")
def test_a_call_runs_its_oracle() -> None:
    reference.oracle("mine.twice", lambda tile: tile * 2)
    x = torch.randn(3, 2)
    assert torch.equal(texts.one(CALL, {"M": 3, "N": 2}, x=x)["y"], x * 2)


@pytest.mark.usefixtures("oracles")
@pytest.mark.parametrize(
    ("meaning", "says"),
    [
        (lambda tile: 1 / 0, "the meaning of call mine.twice failed: ZeroDivisionError: division by zero"),
        (lambda: 1, "the meaning of call mine.twice failed: TypeError: "),
        (lambda tile: None, "the meaning of call mine.twice is a NoneType and not [3, 2]"),
        (lambda tile: tile[:1], "the meaning of call mine.twice is [1, 2] and not [3, 2]"),
        (lambda tile: tile.sum(), "the meaning of call mine.twice is [] and not [3, 2]"),
    ],
)
def test_an_oracle_with_a_wrong_result_is_refused(meaning: Any, says: str) -> None:
    reference.oracle("mine.twice", meaning)
    with pytest.raises(BindingError, match=re.escape(says)):
        texts.one(CALL, {"M": 3, "N": 2}, x=torch.zeros(3, 2))


@pytest.mark.usefixtures("oracles")
def test_an_oracle_cannot_change_its_arguments() -> None:
    reference.oracle("mine.twice", lambda tile: tile.mul_(2))
    x = torch.randn(3, 2)
    named = CALL.replace("y[i, :] = call mine.twice(x[i, :])", "t = x[i, :]\n        y[i, :] = call mine.twice(t) + t")
    assert torch.equal(texts.one(named, {"M": 3, "N": 2}, x=x)["y"], x * 3)


@pytest.mark.usefixtures("oracles")
def test_the_module_of_a_call_is_imported_unless_its_oracle_is_registered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "module_that_says.py").write_text(
        "from tilelink.reference import oracle\noracle('module_that_says.twice', lambda tile: tile * 2)\n"
    )
    (tmp_path / "module_that_is_known.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    reference.oracle("module_that_is_known.twice", lambda tile: tile * 2)
    x = torch.randn(3, 2)
    for name in ("module_that_says", "module_that_is_known"):
        assert torch.equal(texts.one(CALL.replace("mine.", f"{name}."), {"M": 3, "N": 2}, x=x)["y"], x * 2)


def test_a_module_whose_import_fails_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "module_that_fails.py").write_text("def twice(x):\n    return x\n1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(BindingError, match=r"the module of call module_that_fails\.twice failed: ZeroDivi") as caught:
        texts.one(CALL.replace("mine.", "module_that_fails."), {"M": 3, "N": 2}, x=torch.zeros(3, 2))
    assert caught.value.location is not None and caught.value.location.line == 3


def test_a_call_without_an_oracle_is_an_error() -> None:
    with pytest.raises(BindingError, match=r"no meaning for call mine\.twice"):
        texts.one(CALL, {"M": 3, "N": 2}, x=torch.zeros(3, 2))


@pytest.mark.parametrize("op", ["sum", "max"])
def test_a_constant_assigned_to_a_name_has_the_shape_of_the_name(op: str) -> None:
    text = "program p(M, N):\n    x : in [M, N]\n    y : out [M]\n    compute f(i: M):\n"
    text += "        one = full(0.5, f32)\n        if i < 2:\n            one = x[i, :]\n"
    text += f"        y[i] = {op}(one, axis=0)\n"
    x = torch.arange(12.0).reshape(4, 3)
    expected = torch.cat([x[:2], torch.full((2, 3), 0.5)])
    found = texts.one(text, {"M": 4, "N": 3}, x=x)["y"]
    assert torch.equal(found, expected.sum(1) if op == "sum" else expected.amax(1))


def test_constants_are_added_in_64_bits() -> None:
    text = "program p(M):\n    y : out [M]\n    compute f(i: M):\n        a = zeros(f32)\n"
    text += "        y[i] = a + (1.0 + 0.00000003 + 0.00000003)\n"
    _, out = texts.outputs(text, 1, {"M": 2})
    assert out[0]["y"].tolist() == [1 + 2.0**-23] * 2
