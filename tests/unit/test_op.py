# pyright: basic
"""`tilelink.op`: programs of one's own as functions on torch tensors, on CPU ranks."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import tilelink
from tests.own_programs import FORWARD, MODULE, SEND_BACK, TEXT, doubled, weight_gradient
from tests.runtime.fake_gpu import FakeGpu
from tests.tiers import thorough
from tests.unit.two_ranks import ROOT, run_on_ranks, run_on_two_ranks
from tilelink import compiler
from tilelink.compiler.cuda import gpu_artifact
from tilelink.errors import BindingError, DtypeError, ParseError, RankError, UnknownNameError
from tilelink.ops import calls, context_parallel, torch_attention
from tilelink.ops.torch_attention import CUDNN, FLASH, kernel_for
from tilelink.target import target
from tilelink.tuning.found import Suggestion

Tensor = torch.Tensor

SCENARIOS = {
    "calls": ("results", "library", "out", "in_place", "groups", "tables", "mistakes", "odd_tensors", "kernels"),
    "tracing": ("gradients", "functions", "traced", "checks"),
    "more calls": ("any_rows",),
    "attention": (
        "attended",
        "graded_by_choice",
        "attended_oddly",
        "attended_in_f64",
        "attended_compiled",
        "attended_mistakes",
        "attended_alone",
        "attended_without_zeros",
    ),
    "decoding": ("decoded", "decoded_mistakes"),
    "decoding, compiled": ("decoded_compiled",),
}


THIRD = ("attended", "attended_in_documents_as_they_lie", "attended_as_on_gpus")
"""Scenarios of the second tier for three ranks."""


@thorough(unless=lambda kind: kind in ("calls", "tracing", "attention", "decoding"))
@pytest.mark.parametrize("kind", SCENARIOS)
def test_on_two_ranks(kind: str) -> None:
    run_on_two_ranks("tests.unit.op_scenarios", SCENARIOS[kind])


def test_attention_on_one_rank_has_its_gradients_at_once() -> None:
    run_on_ranks("tests.unit.op_scenarios", ("attended", "graded_at_once"), 1)


@pytest.mark.parametrize("rows", [slice(4), slice(8)])
def test_gradients_by_cudnn_are_of_dense_tensors(rows: slice, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch keeps a plan by the strides of queries, keys and values: results and gradients have no other ones."""
    given: list[tuple[Tensor, ...]] = []

    def kernel(do: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, *_: Any, **named: Any) -> tuple[Tensor, ...]:
        given.append((do, q, o))
        return q, k, v

    stand_in = SimpleNamespace(_scaled_dot_product_cudnn_attention_backward=kernel)
    monkeypatch.setattr(torch_attention, "aten", stand_in)
    monkeypatch.setattr(torch_attention, "kernel_for", lambda _: CUDNN)
    q, o, k = torch.randn(2, 3, 8, 16), torch.randn(2, 3, 8, 16), torch.randn(2, 8, 16)
    do = torch.randn(2, 3, 16, 16)[:, :, :8]
    lse = q[..., 0]
    q, o, lse, do = (x[:, :, rows] for x in (q, o, lse, do))
    torch_attention.gradients(q, k, k, o, lse, do, 1.0, False)
    assert all(x.is_contiguous() for x in given[0])


@pytest.mark.parametrize("kind", [CUDNN, FLASH])
@pytest.mark.parametrize("documents", [False, True])
def test_kernels_of_torch_are_given_rows_without_gaps(
    kind: str, documents: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Models may lay out queries, keys and values in any way."""
    given: list[Tensor] = []

    def kernel(*operands: Any, **_: Any) -> tuple[Tensor, ...]:
        given.extend(one for one in operands if isinstance(one, Tensor) and one.dim() > 2 and one.shape[-1] == 16)
        q = next(one for one in operands if isinstance(one, Tensor))
        return q, q[..., 0].clone(), q

    forward, backward = (f"_scaled_dot_product_{kind}_attention", f"_scaled_dot_product_{kind}_attention_backward")
    if documents:
        forward, backward = "_flash_attention_forward", "_flash_attention_backward"
    monkeypatch.setattr(torch_attention, "aten", SimpleNamespace(**dict.fromkeys((forward, backward), kernel)))
    monkeypatch.setattr(torch_attention, "kernel_for", lambda _: kind)
    q, o, do = (torch.randn(2, 1, 8, 32)[..., ::2] for _ in range(3))
    k, v = torch.randn(2, 16, 8).mT, torch.randn(2, 16, 8).mT
    edges = torch.tensor([0, 3, 8], dtype=torch.int32)
    packed = (edges, edges) if documents else None
    torch_attention.attend(q, k, v, 1.0, False, packed)
    torch_attention.gradients(q, k, v, o.contiguous(), q[..., 0], do.contiguous(), 1.0, False, packed)
    assert len(given) == 8 and all(x.stride(-1) == 1 for x in given)


def test_attention_by_heads_and_in_a_ring() -> None:
    """On three ranks, which do not divide most numbers of heads, and of which a ring has a direction."""
    run_on_ranks("tests.unit.op_scenarios", ("attended_by_other_methods",), 3)


@thorough(unless=lambda scenario: scenario == "attended_in_documents")
@pytest.mark.parametrize(
    ("scenario", "ranks"),
    [*((one, 3) for one in ("attended_in_documents", "attended_in_documents_compiled", *THIRD)), ("attended", 4),
     ("attended", 5)],
)  # fmt: skip
def test_attention_on_more_ranks(scenario: str, ranks: int) -> None:
    """Documents do not end with the chunks of three. Two ranks attend in other ways by default."""
    run_on_ranks("tests.unit.op_scenarios", (scenario,), ranks)


@pytest.mark.parametrize(
    ("depth", "dtype", "kernels"),
    [(128, torch.bfloat16, CUDNN), (256, torch.bfloat16, FLASH), (264, torch.bfloat16, ""), (320, torch.float16, ""),
     (60, torch.float16, ""), (128, torch.float32, "")],
)  # fmt: skip
def test_attention_of_torch_takes_what_its_kernels_take(
    depth: int, dtype: torch.dtype, kernels: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    q: Any = SimpleNamespace(is_cuda=True, dtype=dtype, device="cuda", shape=(2, 1, 16, depth))
    assert kernel_for(q) == kernels


@pytest.mark.parametrize(
    ("name", "major", "rows", "depth", "chosen"),
    [("an H200", 9, 256, 128, "gpu_roles"), ("an H200", 9, 256, 256, "gpu_roles_deep"),
     ("an H200", 9, 128, 128, "unfused"), ("an H200", 9, 256, 96, "unfused"), ("a B200", 10, 256, 128, "unfused"),
     ("a gfx942", 9, 256, 128, "unfused")],
)  # fmt: skip
def test_attention_has_roles_where_the_processor_has(
    name: str, major: int, rows: int, depth: int, chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """gfx942 calls itself 9.4."""
    found = SimpleNamespace(name=name, major=major, minor=4 if "gfx" in name else 0, multi_processor_count=132)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (found.major, found.minor))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: found)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "device", lambda _: nullcontext())
    q: Any = SimpleNamespace(is_cuda=True, dtype=torch.float16, device=name, shape=(2, 1, rows, depth))
    calls.has_roles.cache_clear()
    assert context_parallel._chosen(q) == chosen
    calls.has_roles.cache_clear()


# What an operator is -----------------------------------------------------------------------------------------


def test_equal_arguments_give_the_same_operator() -> None:
    """A name is the same in every process, and another one for what differs."""
    first = tilelink.op(FORWARD, "fine")
    assert tilelink.op(compiler.parse(TEXT, "own.tl").program("neighbour_product"), "fine") is first
    assert first.name.startswith("tilelink_own::neighbour_product_")
    others = [
        tilelink.op(FORWARD), tilelink.op(FORWARD, "fine", scale=1.0), tilelink.op(FORWARD, "fine", sums="f32"),
        tilelink.op(FORWARD, "fine", dtype="f32"), tilelink.op(FORWARD, "fine", backward=SEND_BACK),
    ]  # fmt: skip
    assert len({first.name, *(one.name for one in others)}) == 6
    text = TEXT.replace("* scale + bias[j]", "+ bias[j] * scale")  # the same without a bias, but for this text
    assert tilelink.op(compiler.parse(text, "own.tl").program("neighbour_product"), "fine").name != first.name


def test_functions_that_enclose_other_values_are_others() -> None:
    def times(factor: float) -> Any:
        return lambda dy: {"dx": dy * factor}

    two = times(2.0)
    names = [tilelink.op(FORWARD, backward=one).name for one in (two, times(3.0), two)]
    assert names[1] == f"{names[0]}_2" and names[2] == names[0]


def test_copies_and_pickles_are_the_operator_itself() -> None:
    """As modules that hold one are copied, saved, and sent to other processes."""
    tables = {"owner": torch.tensor([[1, 0], [0, 1]])}
    backward = (SEND_BACK, weight_gradient)
    for one in (
        tilelink.op(FORWARD, "fine", scale=2.0, backward=backward), tilelink.op(doubled, dtype="f32"),
        tilelink.op(MODULE.program("shuffled"), tables=tables),
    ):  # fmt: skip
        assert copy.deepcopy(one) is one and pickle.loads(pickle.dumps(one)) is one
    code = f"import pickle, sys; print(pickle.loads(bytes.fromhex({pickle.dumps(one).hex()!r})).name)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == one.name, done.stderr


def test_the_schema_says_what_an_operator_takes() -> None:
    own = tilelink.op(FORWARD)
    assert own.signature.schema() == (
        "(Tensor x, Tensor w, Tensor? bias, SymInt? Ms, SymInt? N, SymInt? K, float? scale, str? activation, "
        "str? sums, str group, str schedule) -> (Tensor, Tensor)"
    )
    assert repr(own) == f"<tilelink.op {own.name}(x, w, bias)>"
    with_bias = tilelink.variant(FORWARD, "with_bias", bias=True)
    assert "Tensor bias" in tilelink.op(with_bias).signature.schema(), "what a variant has chosen is not left out"
    without = tilelink.variant(FORWARD, "without_bias", bias=False)
    assert "bias" not in tilelink.op(without).signature.schema()
    assert tilelink.op(doubled).signature.inputs == ("x",), "a program that is a Python function"
    linked = tilelink.link(MODULE.program("counted"))
    assert tilelink.op(linked).signature.inputs == ("x",)


def test_a_process_that_is_no_rank_is_told_so() -> None:
    with pytest.raises(RankError, match="no rank"):
        tilelink.op(FORWARD, scale=1.0)(torch.ones(2, 3), torch.ones(4, 3))


def own_program(declared: str, body: str = "y[i] = 1.0") -> Any:
    return compiler.parse(f"program p(M):\n{declared}    y : out [M]\n    compute s(i: M):\n        {body}\n").program()


@pytest.mark.parametrize(
    ("make", "kind", "message", "hint"),
    [
        (lambda: tilelink.op(FORWARD, "fin"), UnknownNameError, "no schedule 'fin'", "did you mean fine?"),
        (lambda: tilelink.op(FORWARD, tilelink.schedule("other", "s")), BindingError, "schedule s is for", "take"),
        (lambda: tilelink.op(MODULE), BindingError,  # type: ignore[arg-type]
         "a Module is not a program", "module.program("),
        (lambda: tilelink.op(FORWARD, scael=1.0), BindingError, "no parameter 'scael'", "did you mean scale?"),
        (lambda: tilelink.op(FORWARD, activation="rel"), ParseError, "activation is a function, not rel", "relu"),
        (lambda: tilelink.op(FORWARD, dtype="f64"), DtypeError, "unknown dtype 'f64'", "f16, bf16, f32"),
        (lambda: tilelink.op(own_program("")), BindingError, "p has no input", "tilelink.compile"),
        (lambda: tilelink.op(own_program("    out : in [M]\n")), BindingError, "out of p is a keyword", "another name"),
        (lambda: tilelink.op(FORWARD, N=2**31), BindingError, "N = 2147483648", "below 2**31"),
        (lambda: tilelink.op(FORWARD, N=0), BindingError, "N = 0", "a dimension is a positive integer"),
        (lambda: tilelink.op(FORWARD, scale=1e39), BindingError, "scale = 1e+39", "3.4028235e38"),
        (lambda: tilelink.op(FORWARD, backward=3), BindingError, "is a int", "a function"),
        (lambda: tilelink.op(FORWARD, backward=lambda dz: {}), BindingError, "takes 'dz'", "it may take x, w, bias"),
        (lambda: tilelink.op(FORWARD, backward=lambda *dy: {}), BindingError, "takes *dy", "(dy, dxs, ...)"),
        (lambda: tilelink.op(FORWARD, backward=MODULE.program("relu_backward")), BindingError,
         "relu_backward takes 'dz'", "some of x, w, bias, y, xs, dy, dxs"),
        (lambda: tilelink.op(FORWARD, backward=FORWARD), BindingError, "neighbour_product gives 'y'", "some of dx, dw"),
        (lambda: tilelink.op(FORWARD, backward=(SEND_BACK, SEND_BACK)), BindingError, "dx of neighbour_product is",
         "by one"),
    ],
)  # fmt: skip
def test_what_makes_no_operator_is_refused(make: Any, kind: type[Exception], message: str, hint: str) -> None:
    with pytest.raises(kind) as caught:
        make()
    assert message in str(caught.value) and hint in str(caught.value.hint), caught.value  # type: ignore[attr-defined]


@pytest.mark.parametrize("program", [FORWARD, SEND_BACK], ids=lambda one: one.name)
def test_what_runs_on_gpus_is_safe_and_compiles_there(program: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels of the scenario on GPUs, at its uneven sizes, and their copy engines."""
    schedule = "gpu" if program is FORWARD else None
    dims = {"Ms": 136, "N": 200, "K": 264, "scale": 0.5}
    assert ".target sm_90" in compiler.assembly(program, schedule, ranks=2, dims=dims)
    gpu = FakeGpu(monkeypatch)
    plan = compiler.plan(program, schedule, ranks=2, dims={**dims, "Ms": 512}, dtype="bf16", target="sm_90")
    artifact = gpu_artifact(plan)
    assert bool(artifact.copy_programs) == (program is FORWARD)
    for rank in range(2):
        assert gpu.built(artifact, rank).symmetric_bytes > 2 * 512 * 264 * 2


PLAIN = """\
program plain(M, N, K):
    x : in  [M, K]
    w : in  [N, K]
    y : out [M, N]

    compute multiply(i: M, j: N):
        y[i, j] = dot(x[i, :], w[j, :].T)
"""


def test_on_gpus_rank_0_finds_a_schedule_for_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    own = sys.modules["tilelink.ops.own"]
    searched: list[dict[str, Any]] = []
    compiled: list[str] = []
    told: list[Any] = []

    def found(program: Any, **options: Any) -> Any:
        searched.append(options)
        way = tilelink.schedule(program).tile("multiply", i=64, j=64, k=64)
        return Suggestion(machine="8xH200", schedule=way, seconds=1e-5, built_in=2e-5)

    def of_first(given: Any, _: Any) -> Any:
        told.append(given)
        return told[0]

    patched = {
        "found": found, "of_first": of_first, "agree": lambda *_: None,
        "made_for": lambda group: calls.Made(group=group),
        "target_of": lambda _: None, "current_target": lambda *_: target("sm_90"), "nodes_of": lambda _: 1,
    }  # fmt: skip
    for name in ("target_of", "nodes_of"):
        monkeypatch.setattr(calls, name, patched[name])
    for name, value in patched.items():
        monkeypatch.setattr(own, name, value)
    monkeypatch.setattr(own.compiler, "compile", lambda _, schedule, **__: compiled.append(str(schedule)))
    monkeypatch.setattr(own.Op, "_check_devices", lambda *_: None)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H200")
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    x, w = torch.zeros(48, 64), torch.zeros(32, 64)
    program = tilelink.parse(PLAIN).program()
    for way in (None, "default"):
        operator, told = tilelink.op(program, way), []
        for rank in range(2):
            group: Any = SimpleNamespace(rank=lambda rank=rank: rank, size=lambda: 2)
            operator._made(operator._as_call({"x": x, "w": w}), torch.device("cuda"), group, operator.schedule)
    assert [dict(one["dims"]) for one in searched] == [{"M": 48, "N": 32, "K": 64}] and searched[0]["ranks"] == 2
    assert searched[0]["machine"].name == "8xH200" and searched[0]["target"].name == "sm_90"
    assert "multiply tile(i=64, j=64, k=64)" in compiled[0]
    assert compiled == [compiled[0], compiled[0], "None", "None"]

    def failing(*_: Any, **__: Any) -> Any:
        raise KeyError("built_in")

    monkeypatch.setattr(own, "found", failing)  # whatever it is, the other ranks are told
    operator, told = tilelink.op(program), []
    for rank, error in enumerate((KeyError, RankError)):
        group = SimpleNamespace(rank=lambda rank=rank: rank, size=lambda: 2)
        with pytest.raises(error, match="built_in" if rank == 0 else "rank 0 cannot search a schedule for plain"):
            operator._made(operator._as_call({"x": x, "w": w}), torch.device("cuda"), group, operator.schedule)


CHOOSING = """\
program choosing(M, N, f: function):
    x    : in [M, N]
    more : in [M, N] = 0
    y    : out [M, N]

    compute go(i: M, j: N):
        y[i, j] = f(x[i, j] + more[i, j])
"""


def test_on_gpus_variants_of_a_program_have_kernels_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the same sizes and types: with another function, and with an input that may be left out."""
    monkeypatch.setattr(calls, "target_of", lambda _: None)
    monkeypatch.setattr(calls, "nodes_of", lambda _: 1)
    monkeypatch.setattr(calls.compiler, "compile", lambda program, *_, **__: program)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    group: Any = SimpleNamespace(size=lambda: 2)
    operator, made = tilelink.op(tilelink.parse(CHOOSING).program()), calls.Made(group=group)
    x = torch.zeros(32, 32)
    for _ in range(2):
        for given in ({"f": "silu"}, {"f": "relu"}, {"f": "relu", "more": x}):
            form = operator._specializations.of(operator._as_call({"x": x, **given}), 2)
            kernel: Any = made.kernel(operator.name, form.program, None, form.dims, form.dtype)
            assert kernel == form.program
    assert len(made.kernels) == 3
