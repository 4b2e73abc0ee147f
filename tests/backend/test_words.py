# pyright: basic
"""What users write stays what it is in generated source: comments are no code, names are names, numbers are exact."""

from __future__ import annotations

import ast
import re
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.backend.offline import compile_all
from tests.backend.samples import Sample, emitted
from tests.tiers import thorough
from tilelink import compiler
from tilelink.backend import store, words
from tilelink.errors import EmitError, TileLinkError
from tilelink.ir.program import Literal

TEXT = """
program PROGRAM(DIM, NUMBER: f32):
    TENSOR : in [ranks, DIM]
    HELD : symmetric [ranks, DIM]
    OUT : out [ranks, DIM]
    comm SEND(PEER: ranks, INDEX: DIM):
        tile_push_data(HELD[rank, INDEX] @ PEER, TENSOR[PEER, INDEX])
        producer_tile_notify(HELD[rank, INDEX] @ PEER)
    compute TAKE(PEER: ranks, INDEX: DIM):
        consumer_tile_wait(HELD[PEER, INDEX])
        LOCAL = HELD[PEER, INDEX] * NUMBER
        OUT[PEER, INDEX] = LOCAL
schedule SCHEDULE for PROGRAM:
    SEND WHERE, tile(INDEX=8)
"""
PARTS = [w for w in dict.fromkeys(re.findall(r"[A-Z]{3,}", TEXT)) if w != "WHERE"]
PLAIN = {part: f"plain{part.lower()}" for part in PARTS}
NAMES = st.one_of(
    st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True),
    st.sampled_from(["coding", "encoding", "float", "print", "x_0", "x_tile_0", "v_0", "acc", "k_0", "self", "nan"]),
)
FILES = st.text(st.characters(exclude_categories=[]), max_size=30)


def source(names: dict[str, str], where: str, file: str = "file.tl", number: float = 0.5) -> str:
    text = TEXT.replace("WHERE", where)
    for part in PARTS:
        text = re.sub(rf"\b{part}\b", names[part], text)
    module = compiler.parse(text, file)
    dims = {names["DIM"]: 16, names["NUMBER"]: number}
    return compiler.source(module.programs[0], module.schedules[0], ranks=2, dims=dims)


def tree(text: str) -> ast.Module:
    """What Python makes of the bytes that are stored: comments and their encoding count."""
    return ast.parse(text.encode(), "generated")


@cache
def plain_tree(where: str) -> ast.Module:
    return tree(source(PLAIN, where))


@cache
def plain(where: str) -> str:
    return ast.dump(plain_tree(where))


def same(left: object, right: object, renamed: dict[str, str]) -> bool:
    """Whether two syntax trees differ in names alone, each of which has one other name."""
    if isinstance(left, ast.AST) and isinstance(right, ast.AST):
        pairs = ((getattr(left, f, None), getattr(right, f, None)) for f in left._fields)
        return type(left) is type(right) and all(same(a, b, renamed) for a, b in pairs)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(same(a, b, renamed) for a, b in zip(left, right, strict=True))
    if isinstance(left, str) and isinstance(right, str):
        return renamed.setdefault(left, right) == right
    return left == right and type(left) is type(right)


@thorough(unless=lambda where: where == "on sm")
@pytest.mark.parametrize("where", ["on sm", "on copy_engine"])
@settings(max_examples=40)
@example(file="tiles.")  # the module of the device library that code imports if it uses it
@given(file=FILES)
def test_no_name_of_a_file_becomes_code(where: str, file: str) -> None:
    assert ast.dump(tree(source(PLAIN, where, file))) == plain(where)


@thorough(unless=lambda where: where == "on sm")
@pytest.mark.parametrize("where", ["on sm", "on copy_engine"])
@settings(max_examples=40)
@given(chosen=st.lists(NAMES, min_size=len(PARTS), max_size=len(PARTS), unique_by=str.upper))
def test_names_change_nothing_but_names(where: str, chosen: list[str]) -> None:
    try:
        found = tree(source(dict(zip(PARTS, chosen, strict=True)), where))
    except TileLinkError:
        return
    renamed: dict[str, str] = {}
    assert same(plain_tree(where), found, renamed)
    assert len(set(renamed.values())) == len(renamed)


@pytest.mark.parametrize("where", ["on sm", "on copy_engine"])
def test_a_line_end_in_the_name_of_a_file_ends_no_comment(where: str) -> None:
    for end in "\n\r\x0b\x0c\x1c\x85\u2028\u2029":
        text = source(PLAIN, where, f"a{end}        open('INJECTED','w')#.tl")
        assert ast.dump(tree(text)) == plain(where)
        assert not any(line.strip().startswith("open(") for line in text.splitlines())


def test_a_file_whose_name_is_no_utf_8_is_stored() -> None:
    text = source(PLAIN, "on sm", "\udcff.tl")
    assert "# \\udcff.tl:" in text
    assert store.save(text).read_text(encoding="utf-8") == text


@pytest.mark.parametrize("name", ["coding", "encoding"])
def test_a_dimension_names_no_encoding(name: str) -> None:
    """A comment `coding=16` in the first two lines says how a module is read, unless the line before it does."""
    text = source(PLAIN | {"DIM": name}, "on sm")
    assert same(tree(source(PLAIN, "on sm")), tree(text), {})
    with pytest.raises(SyntaxError, match="encoding"):
        tree(text.split("\n", 1)[1])


# Numbers -----------------------------------------------------------------------------------------------------


def meaning(text: str) -> object:
    """What a kernel makes of a literal: its floats are of 32 bits, zeros of its constants positive."""
    bits = SimpleNamespace(from_bits=lambda n: np.array(n, np.int32).view(np.float32)[()])
    found = eval(text, {"tiles": bits, "float": float})
    if not isinstance(found, float):
        return found
    assert found != 0.0 or str(found) == "0.0"
    assert found == 0.0 or not np.isfinite(found) or words.SMALLEST <= abs(found) <= words.LARGEST
    return np.float32(found)


@given(st.one_of(st.floats(), st.floats(width=32), st.floats(width=32).map(np.float32)))
def test_a_float_is_the_nearest_f32(number: float) -> None:
    with np.errstate(all="ignore"):
        expected = np.float32(number)
    found = meaning(words.literal(number))
    assert type(found) is type(expected)
    assert found.tobytes() == expected.tobytes() or (np.isnan(found) and np.isnan(expected))


@given(st.one_of(st.integers(-(2**31), 2**31 - 1), st.booleans(), st.booleans().map(np.bool_)))
def test_integers_and_flags_are_themselves(number: int) -> None:
    found = meaning(words.literal(number))
    assert found == number and type(found) is (int if isinstance(number, int) and type(number) is int else bool)


@pytest.mark.parametrize("number", ["1); open('INJECTED', 'w'", None, 1j])
def test_nothing_else_is_a_number(number: object) -> None:
    with pytest.raises(EmitError, match="is no number"):
        words.literal(number)
    with pytest.raises(EmitError, match="is no integer"):
        words.integer(number)


PARAMETERS = Sample(
    text="""
program parameters(M, s: f32, n: i32, b: bool):
    x : in [M]
    y : out [M]
    z : out [M] f32
    u : out [M] i32
    v : out [M]
    compute f(i: M):
        y[i] = x[i] * s
        z[i] = s
        u[i] = where(b, n, 0)
        v[i] = x[i] + 1.0 / s
""",
    numbers={"M": 16, "s": -0.0, "n": -(2**31), "b": True},
)
NUMBERS = [float("nan"), float("inf"), -float("inf"), -0.0, 0.0, 1e-40, -1e-50, np.float32(0.1), np.int64(3), 0.1, 2]


@thorough(unless=lambda number: repr(number) in ("nan", "-inf", "-0.0", "1e-40", "0.1"))
@pytest.mark.parametrize("number", NUMBERS, ids=repr)
def test_kernels_and_the_reference_take_the_same_parameter(number: float) -> None:
    program = PARAMETERS.module().programs[0]
    dims = PARAMETERS.numbers | {"s": number, "n": np.int32(-(2**31)), "b": np.True_}
    kernel = compiler.compile(program, None, ranks=1, dims=dims)
    inputs = [{"x": torch.tensor([1.0, -2.0, 0.0, 3.5] * 4)}]
    (found,), (expected,) = kernel(inputs), compiler.reference(program, inputs, dims=dims)
    for name in expected:
        zeros = expected[name] == 0
        assert torch.equal(found[name].signbit()[zeros], expected[name].signbit()[zeros])
        assert torch.allclose(found[name].double(), expected[name].double(), rtol=1e-6, atol=0, equal_nan=True)


@pytest.mark.parametrize(
    ("number", "bits"),
    [
        (float("nan"), "0[xf]7fc00000|0[xf]7fffffff|2143289344|2147483647"),
        (-0.0, "0[xf]80000000"),
        (1e-40, "0[xf]0*116c2"),
    ],
)
@pytest.mark.parametrize("machine", ["sm_90", "gfx942"])
def test_any_parameter_compiles(machine: str, number: float, bits: str) -> None:
    """bits: of the number as f32, which the compiled kernel has."""
    sample = Sample(text=PARAMETERS.text, numbers=PARAMETERS.numbers | {"s": number})
    bound = sample.bound(ranks=1, target=machine)
    result = emitted(bound)
    assembly = [one.asm["ptx" if machine == "sm_90" else "amdgcn"] for one in compile_all(bound, result)]
    assert len(assembly) == len(result.kernels) == 1
    assert re.search(rf"\b({bits})\b", assembly[0].lower())


def test_a_number_of_numpy_has_its_own_type() -> None:
    assert words.literal(Literal(value=np.float64(2.0)).value) == "2.0"
