"""Variants: element types, functions and optional inputs are chosen before a program is built."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import tilelink
from tilelink import compiler
from tilelink.errors import BindingError, ParseError, StageError, TileLinkError, UnknownNameError
from tilelink.ir.link import link
from tilelink.ir.printer import print_program
from tilelink.ir.program import Program
from tilelink.language import Dim, DType, Function, Index, dot, f32, identity, zeros
from tilelink.reference.trial import random_inputs

HEAD = """program product(M, N, K, activation: function, sums: dtype):
    x    : in    [M, K]
    w    : in    [N, K]
    bias : in    [N] = 0
    c    : local [M, N] sums
    y    : out   [M, N]

    compute gemm(i: M, j: N):
        acc = dot(x[i, :], w[j, :].T)
        acc += bias[j]
        c[i, j] = acc
        producer_tile_notify(c[i, j])

    compute rest(i: M, j: N):
        consumer_tile_wait(c[i, j])
        y[i, j] = activation(c[i, j] + bias[j][None, :])
"""
VARIANTS = """
program plain = product()
program silu_product = product(activation=silu, bias)
program f32_product = product(sums=f32, bias=False)
"""
PLAIN = (
    HEAD.replace(", activation: function, sums: dtype", "")
    .replace("    bias : in    [N] = 0\n", "")
    .replace("        acc += bias[j]\n", "")
    .replace("activation(c[i, j] + bias[j][None, :])", "c[i, j]")
)


def module(text: str = HEAD + VARIANTS) -> compiler.Module:
    return compiler.parse(text, "variants.tl")


def written(text: str, name: str) -> Program:
    return replace(compiler.parse(text).programs[0], name=name)


def test_a_variant_is_the_program_with_its_choices_written_out() -> None:
    found = {one.name: compiler.check(one) for one in module().programs}
    assert found["product"] == written(PLAIN.replace(" sums\n", "\n"), "product")
    assert found["plain"] == replace(found["product"], name="plain")
    assert found["f32_product"] == written(PLAIN.replace(" sums\n", " f32\n"), "f32_product")
    silu = HEAD.replace(", activation: function, sums: dtype", "").replace(" = 0", "").replace(" sums\n", "\n")
    assert found["silu_product"] == written(silu.replace("activation(", "silu("), "silu_product")
    for program in found.values():
        assert compiler.parse(print_program(program)).programs == (program,)


def test_what_is_left_out_is_in_no_kernel() -> None:
    plain, silu = (module().program(name) for name in ("plain", "silu_product"))
    sizes = {"M": 32, "N": 32, "K": 32}
    sources = [compiler.source(one, ranks=1, dims=sizes, target="sm_90") for one in (plain, silu)]
    code = ["\n".join(line for line in one.splitlines() if not line.strip().startswith("#")) for one in sources]
    assert "bias" not in code[0] and "silu" not in code[0] and "bias" in code[1] and "silu" in code[1]
    for program in (plain, silu):
        kernel = compiler.compile(program, ranks=1, dims=sizes)
        (inputs,) = random_inputs(program, ranks=1, dims=sizes, dtype="f32", launches=1, seed=1)
        assert inputs[0].keys() == {t.name for t in program.tensors if t.space == "in"}
        expected = inputs[0]["x"] @ inputs[0]["w"].T
        if "bias" in inputs[0]:
            expected = torch.nn.functional.silu(expected + 2 * inputs[0]["bias"])
        torch.testing.assert_close(kernel(inputs)[0]["y"], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("line", "written_out"),
    [
        ("silu_product(sums=f16)", "product(activation=silu, sums=f16, bias)"),
        ("silu_product(bias=False, activation=gelu)", "product(activation=gelu)"),
        ("silu_product(activation=identity)", "product(bias)"),
        ("f32_product(sums=f16)", "product(sums=f16)"),
        ("silu_product()", "product(activation=silu, bias)"),
    ],
)
def test_a_variant_of_a_variant_keeps_what_it_does_not_choose(line: str, written_out: str) -> None:
    found = module(f"{HEAD}{VARIANTS}program last = {line}\nprogram later = last()\n")
    wanted = module(f"{HEAD}{VARIANTS}program last = {written_out}\n").program("last")
    assert found.program("last") == wanted and found.program("later") == replace(wanted, name="later")


@pytest.mark.parametrize(
    ("bias", "value"),
    [
        ("bias[j] + acc", "acc"),
        ("acc - bias[j]", "acc"),
        ("acc + f32(bias[j])", "acc"),
        ("acc * bias[j]", "acc * 0.0"),
        ("bias[j] - acc", "0.0 - acc"),
        ("maximum(acc, bias[j])", "maximum(acc, 0.0)"),
    ],
)
def test_the_number_goes_where_it_changes_nothing(bias: str, value: str) -> None:
    text = HEAD.replace("acc += bias[j]", f"acc = {bias}")
    wanted = PLAIN.replace(" sums\n", "\n")
    if value != "acc":
        wanted = wanted.replace("        c[i, j] = acc", f"        acc = {value}\n        c[i, j] = acc")
    assert module(text).programs[0] == written(wanted, "product")


def test_a_factor_of_one_goes_too() -> None:
    text = HEAD.replace("[N] = 0", "[N] = 1").replace("acc += bias[j]", "acc *= bias[j]").replace(" + bias", " / bias")
    assert module(text).programs[0] == written(PLAIN.replace(" sums\n", "\n"), "product")
    text = HEAD.replace("[N] = 0", "[N] = -2.5")
    assert "acc = acc + -2.5" in print_program(module(text).programs[0])


@pytest.mark.parametrize(
    ("declared", "number"),
    [
        ("[N] = 100000", "100000.0"),
        ("[N] = -2", "-2.0"),
        ("[N] i32 = -2", "-2"),
        ("[N] f16 = 0.1", str(float(torch.tensor(0.1, dtype=torch.float16)))),
        ("[N] bf16 = -0.1", str(float(torch.tensor(-0.1, dtype=torch.bfloat16)))),
        ("[N] bf16 = 3.3895313892515355e38", str(float(torch.finfo(torch.bfloat16).max))),
        ("[N] sums = 3", "3.0"),
    ],
)
def test_the_number_is_an_element_of_the_input(declared: str, number: str) -> None:
    """So a square of 100000, where bias may be left out, is as large as where it is given."""
    text = HEAD.replace("[N] = 0", declared).replace("acc += bias[j]", "acc += bias[j] * bias[j]")
    assert f"acc = acc + {number} * {number}\n" in print_program(module(text).programs[0])


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ("[N] i32 = 0.5", "bias cannot be 0.5: its elements are i32"),
        ("[N] i32 = 3000000000", "bias cannot be 3000000000: its elements are i32"),
        ("[N] f16 = 70000", "bias cannot be 70000: its elements are f16"),
        ("[N] bf16 = 3.4e38", "bias cannot be 3.4e+38: its elements are bf16"),
        ("[N] = 1e39", "bias cannot be 1e+39: its elements are f32"),
        ("[N] bool = 2", "bias cannot be 2: its elements are bool"),
    ],
)
def test_a_number_that_no_element_can_be_is_refused(declared: str, message: str) -> None:
    with pytest.raises(TileLinkError) as caught:
        module(HEAD.replace("[N] = 0", declared))
    assert message in str(caught.value)


@tilelink.program
def product(M: Dim, N: Dim, K: Dim, sums: DType, activation: Function = identity) -> None:
    x = tilelink.input(M, K)
    w = tilelink.input(N, K)
    bias = tilelink.input(N, default=0)
    y = tilelink.output(M, N, dtype=sums)

    @tilelink.compute
    def gemm(i: Index = M, j: Index = N) -> None:
        acc = zeros(f32)
        acc = acc + dot(x[i, :], w[j, :].T)
        y[i, j] = activation(acc + bias[j])


def test_variants_of_a_python_program() -> None:
    text = print_program(tilelink.variant(product, "other", activation="gelu", sums="f32", bias=True))
    assert "program other(M, N, K):" in text and "gelu(acc + bias[j])" in text and "y    : out [M, N] f32" in text
    assert "bias" not in print_program(product) and "y : out [M, N]\n" in print_program(product)
    biased = tilelink.variant(product, "biased", bias=True)
    assert print_program(tilelink.variant(biased, "other", activation="gelu", sums="f32")) == text
    called = tilelink.variant(product, "called", activation="tests.user.twice")
    assert "call tests.user.twice(acc)" in print_program(called)


WRONG = {
    "an unknown choice": ("product(activaton=silu)", UnknownNameError, "leaves no 'activaton' open", "activation"),
    "a number": ("product(M=3)", ParseError, "did not expect '3'", ""),
    "a dimension": ("product(M=silu)", UnknownNameError, "leaves no 'M' open", "it has activation, sums, bias"),
    "an unknown function": ("product(activation=sily)", ParseError, "activation is a function, not sily", "silu"),
    "a function of two": (
        "product(activation=maximum)",
        ParseError,
        "activation is maximum, which takes 2 arguments, not 1",
        "choose",
    ),
    "an unknown dtype": ("product(sums=f23)", ParseError, "sums is an element type, not f23", "f32"),
    "an input as a function": ("product(bias=silu)", ParseError, "bias is an input, not silu", "bias=False"),
    "twice": ("product(bias, bias)", ParseError, "bias is chosen twice", "once"),
    "an unknown program": ("produkt()", UnknownNameError, "no program 'produkt' before it", "product"),
    "itself": ("wrong()", UnknownNameError, "no program 'wrong' before it", ""),
    "an unknown choice of a variant": ("silu_product(sum=f16)", UnknownNameError, "leaves no 'sum' open", "sums"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_with_a_variant_is_said(name: str) -> None:
    line, kind, message, hint = WRONG[name]
    text = f"{HEAD}{VARIANTS}program wrong = {line}\n"
    with pytest.raises(TileLinkError) as caught:
        module(text)
    assert isinstance(caught.value, kind) and message in str(caught.value) and hint in (caught.value.hint or "")
    assert caught.value.location is not None and caught.value.location.file == "variants.tl"


def test_what_is_wrong_with_an_open_program_is_said() -> None:
    body = ":\n    y : out [N]\n    compute f(i: N):\n        y[i] = "
    with pytest.raises(UnknownNameError, match="unknown name 'M'"):
        module(f"program p(M: function = silu, N){body}M\n")
    with pytest.raises(ParseError, match="no value of N"):
        module(f"program p(N: i32 = three){body}N\n")
    for space in ("out", "local", "symmetric", "in symmetric"):
        with pytest.raises(ParseError, match="only an input of the own rank may be left out"):
            module(HEAD.replace("bias : in    [N] = 0", f"bias : {space} [N] = 0"))
    with pytest.raises(ParseError, match="a number stands for an input"):
        module(HEAD.replace("[N] = 0", "[N] = True"))
    with pytest.raises(StageError, match="bias may be left out"):
        module(HEAD.replace("        acc += bias[j]", "        consumer_tile_wait(bias[j])"))
    with pytest.raises(ParseError, match="sums is the program's element type"):
        module(HEAD.replace("c[i, j] = acc", "c[i, j] = sums(acc)"))
    assert module(HEAD.replace("sums: dtype", "sums: dtype = f32").replace("c[i, j] = acc", "c[i, j] = sums(acc)"))


def test_no_variant_is_made_of_what_was_changed() -> None:
    base = module().program("product")
    with pytest.raises(BindingError, match="product is no longer what was written"):
        tilelink.variant(link(replace(base, stages=base.stages[:1])), "other", bias=True)
    with pytest.raises(BindingError, match="product was not parsed"):
        tilelink.variant(replace(base, template=None), "other", bias=True)
    with pytest.raises(ParseError, match="is not a name"):
        tilelink.variant(base, "an other", bias=True)
    assert tilelink.variant(base, "silu_product", activation="silu", bias=True) == module().program("silu_product")


def test_a_schedule_may_be_for_a_variant() -> None:
    text = f"{HEAD}{VARIANTS}\nschedule small for product:\n    gemm on sm, tile(i=16)\n"
    found = module(f"{text}\nschedule small for silu_product like product:small:\n")
    program = found.program("silu_product")
    assert compiler.plan(program, found.schedule("small", program), ranks=1, dims={"M": 32, "N": 32, "K": 32})
    with pytest.raises(TileLinkError, match="program plain twice"):
        module(f"{HEAD}{VARIANTS}program plain = product()\n")
