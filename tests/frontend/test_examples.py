"""Example sizes, ranges of inputs and tolerances of outputs, which commands take from a file."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import tilelink
from tests.cli.test_choices import tilelink as command
from tilelink import compiler
from tilelink.cli.options import dims_of
from tilelink.errors import BindingError, ParseError, TileLinkError
from tilelink.ir.printer import print_program
from tilelink.language import Dim, Index, by, pos, ranks, where
from tilelink.reference.trial import random_inputs

TEXT = """program decode(B = 5, S = 12, scale: f32 = 0.25, causal: bool = True, n: i32 = -3):
    lens : in  [B] i32 from 1 to S
    v    : in  [B, S] from -0.5 to 0.5
    w    : in  [B, S] from 2 to ranks + 2
    y    : out [B, S] within 0.001

    compute f(b: B by 1, s: S):
        y[b, s] = where(pos(s) < lens[b], v[b, s] * scale + w[b, s], n)
"""


@tilelink.program
def decode(B: Dim = 5, S: Dim = 12, scale: float = 0.25, causal: bool = True, n: int = -3) -> None:  # type: ignore[assignment]
    lens = tilelink.input(B, dtype="i32", low=1, high=S)
    v = tilelink.input(B, S, low=-0.5, high=0.5)
    w = tilelink.input(B, S, low=2, high=ranks + 2)
    y = tilelink.output(B, S, within=0.001)

    @tilelink.compute
    def f(b: Index = by(B, 1), s: Index = S) -> None:
        y[b, s] = where(pos(s) < lens[b], v[b, s] * scale + w[b, s], n)


def test_examples_are_part_of_a_program_and_not_of_what_is_compiled() -> None:
    program = compiler.check(compiler.parse(TEXT).program())
    assert compiler.parse(print_program(program)).program() == program
    assert dims_of(program, None) == {"B": 5, "S": 12, "scale": 0.25, "causal": True, "n": -3}
    assert dims_of(program, ["S=20", "causal=false"])["S"] == 20
    with pytest.raises(BindingError, match="'B'"):
        compiler.bound(program, ranks=1, dims={"S": 3, "scale": 1.0, "causal": True, "n": 1})


def test_a_python_program_has_examples_too() -> None:
    program = compiler.parse(TEXT).program()
    assert print_program(decode) == print_program(program)


def test_random_values_are_from_the_range() -> None:
    program = compiler.parse(TEXT).program()
    (launch,) = random_inputs(program, ranks=3, dims={"B": 200, "S": 12}, dtype="bf16", launches=1, seed=1)
    for own in launch:
        assert own["lens"].dtype == torch.int32 and own["lens"].min() == 1 and own["lens"].max() == 12
        assert own["v"].dtype == torch.bfloat16 and own["v"].min() >= -0.5 and own["v"].max() <= 0.5
        assert own["v"].float().std() > 0.2 and own["w"].min() >= 2 and own["w"].max() <= 5


def test_the_tolerance_of_an_output_judges_it(tmp_path: Path) -> None:
    """A sum of blocks in another order than the reference's."""
    text = "program p(M = 8, K = 999):\n    x : in [M, K]\n    y : out [M] within {}\n\n"
    text += "    compute f(i: M):\n        y[i] = sum(x[i, :] * x[i, :], axis=1)\n"
    path = tmp_path / "p.tl"
    for within, code, said in (("0.5", 0, "ok"), ("0.00000001", 1, "wrong, 1e-08 allowed")):
        path.write_text(text.format(within))
        done = command("run", str(path), "--ranks", "1", "--dtype", "f32")
        assert "M=8" in done.stderr and "chosen for you" not in done.stderr
        assert done.exit_code == code and said in done.stdout


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("B = 5", "B = 0", "no size of B"),
        ("B = 5", "B = 2.5", "2.5 is no value of B: it is a dimension, an integer"),
        ("B = 5", "B = True", "no value of B"),
        ("causal: bool = True", "causal: bool = 1", "no value of causal"),
        ("n: i32 = -3", "n: i32 = 0.5", "no value of n"),
        ("n: i32 = -3", "n: i32 = B", "no value of n"),
        ("i32 from 1 to S", "i32 from 0.5 to S", "0.5 is no i32"),
        ("i32 from 1 to S", "bool from 0 to 1", "lens has no range"),
        ("i32 from 1 to S", "i32 from 1 to T", "unknown name 'T'"),
        ("i32 from 1 to S", "i32 from 1", "did not expect"),
        ("within 0.001", "within 2", "not the tolerance of an output"),
        ("within 0.001", "within True", "not the tolerance of an output"),
        ("from -0.5 to 0.5", "within 0.5", "not the tolerance of an output"),
        ("out [B, S] within", "out [B, S] from 1 to 2 within", "y has no range"),
    ],
)
def test_what_is_wrong_with_an_example_is_said(old: str, new: str, message: str) -> None:
    assert old in TEXT
    with pytest.raises(TileLinkError) as caught:
        compiler.parse(TEXT.replace(old, new))
    assert message in str(caught.value)
    assert not isinstance(caught.value, ParseError) or caught.value.location is not None


def test_a_range_the_wrong_way_round_is_refused_where_values_are_drawn() -> None:
    program = compiler.parse(TEXT).program()
    with pytest.raises(BindingError, match="lens is from 1 to 0"):
        random_inputs(program, ranks=1, dims={"B": 2, "S": 0}, dtype="f32", launches=1)
