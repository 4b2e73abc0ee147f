"""Generated kernels compute what their programs say: run on CPU ranks, against formulas in torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch

from tests.backend import samples
from tests.backend.samples import Sample
from tests.tiers import thorough
from tilelink import compiler
from tilelink.dtypes import DTYPES
from tilelink.reference.run import run as reference
from tilelink.reference.trial import random_inputs, relative_error

Tensors = dict[str, torch.Tensor]
Formula = Callable[[Sequence[Tensors], int], Tensors]


def _attention(inputs: Sequence[Tensors], rank: int) -> Tensors:
    own = inputs[rank]
    heads, rows, width = own["q"].shape
    k = torch.stack([o["k"] for o in inputs]).transpose(0, 1).reshape(heads, -1, width)
    v = torch.stack([o["v"] for o in inputs]).transpose(0, 1).reshape(heads, -1, width)
    scores = own["q"] @ k.transpose(1, 2) * 0.25
    allowed = rank * rows + torch.arange(rows)[:, None] >= torch.arange(k.shape[1])[None, :]
    return {"o": torch.softmax(scores.masked_fill(~allowed, float("-inf")), dim=-1) @ v}


def _casts(inputs: Sequence[Tensors], rank: int) -> Tensors:
    x, w = inputs[rank]["x"], inputs[rank]["w"]
    rounded, moved = (t.float().bfloat16().double() for t in (x, x.float() + 1.0))
    return {"y": x @ (2 * w).T, "z": rounded * 3.0 + moved * rank}


FORMULAS: dict[str, Formula] = {
    "square": lambda xs, r: {"y": xs[r]["x"] @ xs[r]["w"]},
    "transposed": lambda xs, r: {"y": (xs[r]["x"] + xs[r]["w"]) @ xs[r]["w"].T},
    "copy": lambda xs, r: {"y": xs[r]["x"]},
    "softmax": lambda xs, r: {"y": torch.softmax(xs[r]["x"], dim=1)},
    "sliced": lambda xs, r: {"y": (xs[r]["x"] ** 2 + xs[r]["b"]).sum(1) + xs[r]["x"].amax(1)},
    "integers": lambda xs, r: {"y": xs[r]["x"].sum(1), "z": xs[r]["x"].amax(1)},
    "ranks_last": lambda xs, r: {"y": (xs[r]["x"] * xs[r]["b"][:, None]).sum(1)},
    "attention": _attention,
    "casts": _casts,
}


def run(sample: Sample, ranks: int, dtype: str, formula: Formula) -> float:
    """The largest relative error over two launches."""
    module = sample.module()
    schedule = module.schedules[0] if module.schedules else None
    program = module.programs[0]
    kernel = compiler.compile(program, schedule, ranks=ranks, dims=sample.numbers, dtype=dtype)
    inputs = random_inputs(program, ranks=ranks, dims=sample.numbers, dtype=dtype, launches=2, seed=1)
    result = kernel.run(inputs, deadline_s=20)
    worst = 0.0
    for given, outputs in zip(inputs, result.outputs, strict=True):
        exact = [{n: t.double() if t.is_floating_point() else t for n, t in own.items()} for own in given]
        expected = [formula(exact, rank) for rank in range(ranks)]
        for name in expected[0]:
            worst = max(worst, relative_error([o[name] for o in outputs], [e[name] for e in expected]))
    return worst


@thorough(unless=lambda name: name not in ("attention", "casts"))  # which test_bf16 runs
@pytest.mark.parametrize("name", FORMULAS)
def test_f32(name: str) -> None:
    assert run(samples.ALL[name], 2, "f32", FORMULAS[name]) < 1e-5


@thorough(unless=lambda name: name in ("attention", "casts"))
@pytest.mark.parametrize("name", ["transposed", "sliced", "attention", "casts"])
def test_bf16(name: str) -> None:
    assert run(samples.ALL[name], 2, "bf16", FORMULAS[name]) < 2e-2


def test_rows_picked_by_a_table() -> None:
    program = samples.PICKED.module().programs[0]
    numbers = samples.PICKED.numbers
    rows = np.random.default_rng(0).integers(0, 30, (2, 20))
    kernel = compiler.compile(program, None, ranks=2, dims=numbers, tables={"rows": rows})
    (inputs,) = random_inputs(program, ranks=2, dims=numbers, dtype="f32", launches=1)
    outputs = [own["y"] for own in kernel(inputs)]
    expected = [own["x"][rows[rank]] @ own["w"].T for rank, own in enumerate(inputs)]
    assert relative_error(outputs, expected) < 1e-5


@pytest.mark.parametrize(("shape", "coords"), [("3, 20", "rank, :"), ("20, 3", ":, rank")])
def test_rows_picked_by_a_row_or_a_column_of_a_table(shape: str, coords: str) -> None:
    text = "program picked(M, N):\n    rows : table [SHAPE] < M\n    x : in [M, N]\n    y : out [20, N]\n"
    text += "    compute f(j: N):\n        y[:, j] = x[rows[COORDS], j] * 2.0\n"
    program = compiler.parse(text.replace("SHAPE", shape).replace("COORDS", coords)).program()
    numbers = {"M": 30, "N": 24}
    rows = np.random.default_rng(0).integers(0, 30, (2, *map(int, shape.split(", "))))
    kernel = compiler.compile(program, None, ranks=2, dims=numbers, tables={"rows": rows})
    (inputs,) = random_inputs(program, ranks=2, dims=numbers, dtype="f32", launches=1)
    picked = [rows[rank][rank] if coords == "rank, :" else rows[rank][:, rank] for rank in range(2)]
    expected = [2 * own["x"][which] for own, which in zip(inputs, picked, strict=True)]
    assert relative_error([own["y"] for own in kernel(inputs)], expected) == 0


CHOSEN = """program chosen(M):
    x : in [M]
    n : table [2] < 5
    y : out [M]
    compute f(i: M):
        if n[1] == 3:
            y[i] = x[i]
        else:
            y[i] = x[i] * 2.0
"""


def test_a_condition_on_a_table_alone_is_that_of_each_rank() -> None:
    program, numbers = compiler.parse(CHOSEN).program(), {"M": 20}
    kernel = compiler.compile(program, None, ranks=2, dims=numbers, tables={"n": np.array([[0, 3], [3, 4]])})
    (inputs,) = random_inputs(program, ranks=2, dims=numbers, dtype="f32", launches=1)
    outputs = [own["y"] for own in kernel(inputs)]
    assert relative_error(outputs, [inputs[0]["x"], 2 * inputs[1]["x"]]) == 0


DIVIDED = """program divided(M):
    x : in symmetric [M]
    y : out [M]
    compute f(i: M):
        if rank > 0:
            if 4 // rank == 2:
                y[i] = x[i] * 2.0
            else:
                y[i] = x[i] @ (2 // rank) * 3.0
        else:
            y[i] = x[i]
"""


def test_a_division_by_zero_that_a_rank_never_comes_to_is_none() -> None:
    program, numbers = compiler.parse(DIVIDED).program(), {"M": 20}
    kernel = compiler.compile(program, None, ranks=3, dims=numbers)
    (inputs,) = random_inputs(program, ranks=3, dims=numbers, dtype="f32", launches=1)
    outputs = [own["y"] for own in kernel(inputs)]
    assert relative_error(outputs, [inputs[0]["x"], 3 * inputs[2]["x"], 2 * inputs[2]["x"]]) < 1e-6


MIXED = """program mixed(M, N):
    x : in [M, N]
    n : in [M, N] i32
    m : in [M, N] i32
    b : in [M, N] bool
    y : out [M, N]{}
    compute f(i: M, j: N):
        y[i, j] = {}
"""


MEANT: dict[str, tuple[str, Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]]] = {
    "n[i, j] and m[i, j]": (" bool", lambda n, m, b: n.bool() & m.bool()),
    "n[i, j] * 0 + 16777216 + full(1, i32)": (" i32", lambda n, m, b: n * 0 + 16777217),
    "n[i, j] + full(16777217, i32)": (" i32", lambda n, m, b: n + 16777217),
    "pos(j) * 2147483647 + n[i, j] * 0": (" i32", lambda n, m, b: n * 0 + torch.arange(24).int() * (2**31 - 1)),
    "b[i, j] + b[i, j]": (" i32", lambda n, m, b: 2 * b.int()),
    "(n[i, j] > 1) - b[i, j]": (" i32", lambda n, m, b: (n > 1).int() - b.int()),
    "-b[i, j]": (" i32", lambda n, m, b: -b.int()),
    "abs(b[i, j])": (" i32", lambda n, m, b: b.int()),
    "exp(n[i, j])": ("", lambda n, m, b: n.float().exp()),
    "log(b[i, j] + 1)": ("", lambda n, m, b: (b.float() + 1).log()),
    "x[i, j] * 0.0 + sqrt(pos(j))": ("", lambda n, m, b: torch.arange(24).float().sqrt().expand(20, 24)),
}
"""Value -> the dtype of what it goes to, and what it means."""


@pytest.mark.parametrize("value", MEANT)
def test_integers_and_conditions_are_numbers_and_conditions(value: str) -> None:
    dtype, meant = MEANT[value]
    program, numbers = compiler.parse(MIXED.format(dtype, value)).program(), {"M": 20, "N": 24}
    kernel = compiler.compile(program, None, ranks=1, dims=numbers)
    (inputs,) = random_inputs(program, ranks=1, dims=numbers, dtype="f32", launches=1)
    own = inputs[0]
    expected = meant(own["n"], own["m"], own["b"])
    for found in (kernel(inputs)[0]["y"], reference(program, inputs, numbers)[0]["y"]):
        tolerance = 1e-6 if expected.is_floating_point() else 0
        torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


NAMED = """program named(M, N):
    x : in [M, N]
    n : in [M, N] i32
    b : in [M, N] bool
    y : out [M, N]{}
    z : out [M, N]
    compute f(i: M, j: N):
        t = {}
        y[i, j] = {}
        {}
        z[i, j] = t * 1.0
"""
Two = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
NAMES: dict[str, tuple[tuple[str, str, str, str], Two]] = {
    "integers, then floats": (
        (" i32", "n[i, j] * 0 + 16777217", "i32(t)", "t = t * 0.5"),
        lambda x, n, b: (n * 0 + 16777216, x * 0 + 8388608),
    ),
    "floats, then integers": ((" f32", "x[i, j]", "t + 0.0", "t = n[i, j]"), lambda x, n, b: (x, n.float())),
    "lower floats, then integers": (
        (" f32", "f16(x[i, j])", "t + 0.0", "t = n[i, j]"),
        lambda x, n, b: (x.half().float(), n.float()),
    ),
    "conditions, then integers": ((" i32", "b[i, j]", "t + 0", "t = n[i, j]"), lambda x, n, b: (b.int(), n.float())),
    "integers, then conditions": ((" i32", "n[i, j]", "t + 0", "t = b[i, j]"), lambda x, n, b: (n, b.float())),
}


@pytest.mark.parametrize("name", NAMES)
def test_a_name_has_one_type_for_all_that_it_is_assigned(name: str) -> None:
    words, meant = NAMES[name]
    program, numbers = compiler.parse(NAMED.format(*words)).program(), {"M": 20, "N": 24}
    kernel = compiler.compile(program, None, ranks=1, dims=numbers)
    (inputs,) = random_inputs(program, ranks=1, dims=numbers, dtype="f32", launches=1)
    expected = meant(inputs[0]["x"], inputs[0]["n"], inputs[0]["b"])
    for found in (kernel(inputs)[0], reference(program, inputs, numbers)[0]):
        torch.testing.assert_close((found["y"], found["z"]), expected, rtol=0, atol=0)


SUMMED = """program summed(M, N):
    n : in [M, N] i32
    y : out [M] i32
    compute f(i: M):
        y[i] = where(sum(n[i, :] * 0 + 2147483647, axis=1) < 0, 1, 0)
"""


def test_a_sum_of_integers_has_32_bits() -> None:
    program, numbers = compiler.parse(SUMMED).program(), {"M": 20, "N": 2}
    kernel = compiler.compile(program, None, ranks=1, dims=numbers)
    (inputs,) = random_inputs(program, ranks=1, dims=numbers, dtype="f32", launches=1)
    for found in (kernel(inputs)[0]["y"], reference(program, inputs, numbers)[0]["y"]):
        assert found.tolist() == [1] * 20


SOURCES = """program sources(M):
    x : in [M]
    src : table [ranks, 2] < M
    y : out [M]
    compute f(i: M):
        if src[rank + 1, 0] == 4:
            y[i] = x[src[rank - 1, 1]] + x[i]
        else:
            y[i] = x[i]
"""


def test_a_coordinate_of_a_table_s_ranks_is_modulo_ranks_and_its_entry_is_not() -> None:
    program, numbers = compiler.parse(SOURCES).program(), {"M": 20}
    rows = torch.tensor([[2, 4], [4, 6]], dtype=torch.int32)
    kernel = compiler.compile(program, None, ranks=2, dims=numbers, tables={"src": np.stack([rows, rows])})
    (inputs,) = random_inputs(program, ranks=2, dims=numbers, dtype="f32", launches=1)
    (x, z) = (own["x"] for own in inputs)
    assert relative_error([own["y"] for own in kernel(inputs)], [x + x[6], z]) < 1e-6
    assert relative_error([own["y"] for own in kernel.reference(inputs)], [x + x[6], z]) < 1e-6


UNUSED = """program unused(M):
    x : in [M]
    y : out [M]
    compute f(i: M):
        if rank > 0:
            s = online_softmax(f32)
        y[i] = x[i]
"""


def test_a_state_that_nothing_uses_is_nothing() -> None:
    program, numbers = compiler.parse(UNUSED).program(), {"M": 20}
    kernel = compiler.compile(program, None, ranks=2, dims=numbers)
    (inputs,) = random_inputs(program, ranks=2, dims=numbers, dtype="f32", launches=1)
    assert relative_error([own["y"] for own in kernel(inputs)], [own["x"] for own in inputs]) == 0


MASKED = """program masked(M, K, D):
    q : in [M, D]
    k : in [K, D]
    n : in [M, K] i32
    o : out [M, D]
    compute f(i: M):
        state = online_softmax(f32)
        for (j: K):
            state = attend(state, q[i, :], k[j, :], k[j, :], 0.5, n[i, j])
        o[i, :] = finish(state)
"""


@pytest.mark.filterwarnings("error:tl.where with a non-boolean condition")
def test_a_mask_may_be_of_integers() -> None:
    program, numbers = compiler.parse(MASKED).program(), {"M": 20, "K": 24, "D": 8}
    kernel = compiler.compile(program, None, ranks=1, dims=numbers)
    (inputs,) = random_inputs(program, ranks=1, dims=numbers, dtype="f32", launches=1)
    (own,) = inputs
    scores = (own["q"] @ own["k"].T * 0.5).masked_fill(own["n"] == 0, float("-inf"))
    expected = [torch.softmax(scores, dim=1).nan_to_num(0.0) @ own["k"]]
    for found in (kernel(inputs), kernel.reference(inputs)):
        assert relative_error([one["o"] for one in found], expected) < 1e-5


KEPT_APART = """program kept_apart(M, N, D):
    q : in [M, D]
    k : in [N, D]
    v : in [N, D]
    y : out [M, D]
    compute f(i: M):
        state = online_softmax(f32)
        for (n: N):
            state = attend(state, q[i, :], k[n, :], 1.0 / v[n, :], 0.5)
        y[i, :] = finish(state)
schedule s for kept_apart:
    f on sm, tile(i=4, n=4)
"""


def test_computed_values_of_attention_count_to_the_end_of_their_tile() -> None:
    """Beyond it they are 1 / 0 here, which a weight of 0 makes nan."""
    module, numbers = compiler.parse(KEPT_APART), {"M": 5, "N": 7, "D": 3}
    program = module.program()
    (inputs,) = random_inputs(program, ranks=1, dims=numbers, dtype="f32", launches=1)
    y = compiler.compile(program, module.schedules[0], ranks=1, dims=numbers)(inputs)[0]["y"]
    q, k, v = (inputs[0][name].double() for name in "qkv")
    assert relative_error([y], [torch.softmax(q @ k.T * 0.5, 1) @ (1 / v)]) < 1e-5


NARROW = """program narrow(M, a: f32):
    x : in [M]
    y : out [M]
    compute f(i: M):
        y[i] = x[i] * 0.0 + f16(a) * f16(a) + bf16(a)
"""


def test_numbers_of_16_bits_are_computed_with_in_f32() -> None:
    program, numbers = compiler.parse(NARROW).program(), {"M": 4, "a": 301.1}
    (inputs,) = random_inputs(program, ranks=1, dims=numbers, dtype="f32", launches=1)
    y = compiler.compile(program, None, ranks=1, dims=numbers)(inputs)[0]["y"]
    assert y.tolist() == 4 * [301.0**2 + 302.0]


def test_a_sum_of_integers_has_32_bits_in_the_reference_too() -> None:
    text = "program p(N):\n    x : in [2, N] i32\n    y : out [2] bool\n"
    text += "    compute f(j: 2):\n        y[j] = sum(x[j, :], axis=1) > 0\n"
    program, x = compiler.parse(text).program(), torch.tensor([[2**31 - 1, 1], [1, 1]], dtype=torch.int32)
    kernel = compiler.compile(program, None, ranks=1, dims={"N": 2})
    for y in (kernel([{"x": x}])[0]["y"], reference(program, [{"x": x}], {"N": 2})[0]["y"]):
        assert y.tolist() == [False, True]


SPLIT_STATES = """program split_states(M, N, D):
    q : in [M, D]
    k : in [N, D]
    y : out [M, D]
    z : out [M, D]
    compute f(i: M):
        state = online_softmax(f32)
        for (n: N):
            state = attend(state, q[i, :], k[n, :], k[n, :], 0.5)
        more = state
        more = attend(more, q[i, :], q[:, :], q[:, :], 0.5)
        y[i, :] = finish(state)
        z[i, :] = finish(more)
"""


def test_a_softmax_state_has_more_than_one_name() -> None:
    program, numbers = compiler.parse(SPLIT_STATES).program(), {"M": 5, "N": 7, "D": 3}
    (inputs,) = random_inputs(program, ranks=1, dims=numbers, dtype="f32", launches=1)
    found = compiler.compile(program, None, ranks=1, dims=numbers)(inputs)[0]
    q, k = (inputs[0][name].double() for name in "qk")
    for name, keys in (("y", k), ("z", torch.cat([k, q]))):
        assert relative_error([found[name]], [torch.softmax(q @ keys.T * 0.5, 1) @ keys]) < 1e-5


TWO_TYPES = """program two_types(M, whole: bool):
    x : in [M]
    y : out [M]
    compute f(i: M):
        if whole:
            t = FIRST
        else:
            t = SECOND
        y[i] = t + 0.5
"""


@pytest.mark.parametrize("pair", [("f16(x[i])", "i32(x[i])"), ("f16(x[i])", "x[i] > 0.0"), ("x[i]", "i32(x[i])")])
@pytest.mark.parametrize("turn", [1, -1])
def test_a_name_holds_the_values_of_all_its_types(pair: tuple[str, str], turn: int) -> None:
    """Whichever of them comes first."""
    first, second = pair[::turn]
    program = compiler.parse(TWO_TYPES.replace("FIRST", first).replace("SECOND", second)).program()
    x = torch.tensor([-1.25, 0.25, 2.5])
    for whole, value in ((True, first), (False, second)):
        kernel = compiler.compile(program, None, ranks=1, dims={"M": 3, "whole": whole})
        meant = {"i": x.int(), "f": x, "x": x > 0 if ">" in value else x}[value[0]]
        assert kernel([{"x": x}])[0]["y"].tolist() == (meant + 0.5).tolist()


def test_a_name_has_one_type_in_all_of_its_stage() -> None:
    text = "program p(M):\n    x : in [M] i32\n    y : out [M]\n    compute f(i: M):\n        t = x[i]\n"
    text += "        u = t * 1073741824\n        t = t + 0.5\n        y[i] = t + u\n"
    program, x = compiler.parse(text).program(), torch.tensor([4, 5], dtype=torch.int32)
    kernel = compiler.compile(program, None, ranks=1, dims={"M": 2})
    for y in (kernel([{"x": x}])[0]["y"], reference(program, [{"x": x}], {"M": 2})[0]["y"]):
        assert torch.equal(y, x.float() * 2**30)


EXTREMES = """program extremes(M, N):
    x : in [M, N]
    a : out [M]
    b : out [M]
    z : out [M, N]
    compute f(i: M):
        a[i] = max(x[i, :], axis=1)
        acc = full(3.0, f32)
        for (j: N):
            acc = minimum(acc, min(x[i, j], axis=1))
        b[i] = acc
    compute g(i: M, j: N):
        z[i, j] = maximum(x[i, j], 0.5)
schedule cut for extremes:
    f tile(i=2, j=2, n=2)
"""


@pytest.mark.parametrize("cut", [True, False])
def test_the_largest_of_what_is_nan_is_nan(cut: bool) -> None:
    """Whatever the tiles, and where all numbers of one are nan."""
    module = compiler.parse(EXTREMES)
    x = torch.arange(20.0).reshape(4, 5)
    x[0, 3], x[1, :], x[2, 2:4] = torch.nan, torch.nan, torch.nan
    program, dims = module.program(), {"M": 4, "N": 5}
    found = compiler.compile(program, module.schedules[0] if cut else None, ranks=1, dims=dims)([{"x": x}])[0]
    meant = reference(program, [{"x": x}], dims)[0]
    for name in "abz":
        torch.testing.assert_close(found[name], meant[name], rtol=0, atol=0, equal_nan=True)
    assert meant["a"].isnan().tolist() == [True, True, True, False]


PRODUCTS = """program products(M):
    a : in [M, M] {a}
    b : in [M, M] {b}
    y : out [M, M]
    z : out [M, M]
    compute f(i: M, j: M):
        y[i, j] = dot(a[i, :] * 4.0, b[:, j])
        z[i, j] = dot(a[i, :], b[:, j].T.T)
"""


@pytest.mark.parametrize(
    ("a", "b"), [("f32", "f16"), ("f32", "bf16"), ("bf16", "f16"), ("f16", "bf16"), ("bf16", "f32")]
)
def test_operands_of_two_types_meet_in_the_type_that_the_language_says(a: str, b: str) -> None:
    """Of which 99999 is none in f16, and 1.001 none in bf16."""
    program = compiler.parse(PRODUCTS.format(a=a, b=b)).program()
    inputs = [{"a": torch.eye(4) * 1.001, "b": torch.eye(4) * 1.001}]
    inputs[0]["a" if b == "f16" else "b"][0, 0] = 99999.0
    inputs = [{"a": inputs[0]["a"].to(DTYPES[a]), "b": inputs[0]["b"].to(DTYPES[b])}]
    found = compiler.compile(program, None, ranks=1, dims={"M": 4})(inputs)[0]
    meant = reference(program, inputs, {"M": 4})[0]
    for name in "yz":
        torch.testing.assert_close(found[name], meant[name], rtol=1e-6, atol=0, equal_nan=True)
    assert meant["z"].isfinite().all() == ({a, b} != {"f32", "f16"})


WHOLE = """program whole(M):
    n : in [M] i32
    a : out [M]
    b : out [M] i32
    c : out [M]
    compute f(i: M):
        a[i] = n[i] <= 16777216.0
        b[i] = i32(n[i] / 2)
        c[i] = where(n[i] > 0, n[i], 0.5) - 16777216.0
"""


def test_an_integer_beside_a_floating_point_number_is_rounded_to_one() -> None:
    program = compiler.parse(WHOLE).program()
    inputs = [{"n": torch.tensor([16777217, 2**31 - 1, -3], dtype=torch.int32)}]
    found = compiler.compile(program, None, ranks=1, dims={"M": 3})(inputs)[0]
    meant = reference(program, inputs, {"M": 3})[0]
    assert [found[x].tolist() for x in "abc"] == [meant[x].tolist() for x in "abc"]
    assert meant["b"].tolist() == [8388608, 2**30, -1]
