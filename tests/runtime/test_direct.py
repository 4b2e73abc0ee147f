# pyright: basic
"""Launches by place, without a GPU: what they point kernels at, and which ones they leave to the kernel itself."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.runtime.fake_gpu import CALLER, FakeGpu
from tilelink import compiler
from tilelink.artifact import KernelSpec
from tilelink.compiler import library_module
from tilelink.compiler.cuda import gpu_artifact
from tilelink.ops.calls import Launch
from tilelink.ops.operators import OPERATORS
from tilelink.ops.pairs import Pair
from tilelink.ops.rows import Rows, rows_of
from tilelink.runtime.cuda import direct, launch_driver
from tilelink.runtime.cuda.functions import Aimed
from tilelink.runtime.cuda.launch import Target, UnsupportedLaunch

M, N, K = 16, 32, 64
WITH_M = {"M": M, "N": N, "K": K}


class Prepared:
    """A compiled kernel, whose launches note the stream and the addresses that its parameters have."""

    def __init__(self, spec: KernelSpec, function: Any, argument: Any, artifact: Any) -> None:
        names = {getattr(one, "tensor", "") for one in spec.parameters if argument(spec, one) is None} - {""}
        self._cells = {name: ctypes.c_uint64(0) for name in names}
        self.launched: list[tuple[int, dict[str, int]]] = []
        self._name, self.refuses = spec.name, False
        self.sizes: list[Any] = []
        self.prepared = self._aimed()

    def _aimed(self) -> Aimed:
        descriptor: Any = SimpleNamespace(point=self._describe)
        targets = {name: Target([cell], [descriptor]) for name, cell in self._cells.items()}
        return Aimed(self._launch, self._name, targets)  # type: ignore[arg-type]

    def of_sizes(self, sizes: Any) -> Aimed:
        self.sizes.append(sizes)
        return self._aimed()

    def _describe(self, address: int) -> None:
        if self.refuses:
            raise UnsupportedLaunch("no such tensor")

    def _launch(self, stream: int) -> int:
        self.launched.append((stream, {name: cell.value for name, cell in self._cells.items()}))
        return 0

    def __call__(self, stream: int, tensors: Any, instead: Any = None) -> None:
        for name, target in self.prepared.targets.items():
            target.point(tensors[name].data_ptr())
        self._launch(stream)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    made = FakeGpu(monkeypatch)
    monkeypatch.setattr(launch_driver, "Function", Prepared)
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: -1)  # as tensors of the host say it
    return made


def built(gpu: FakeGpu, name: str, schedule: str, **dims: int) -> Any:
    module = library_module(name)
    program = module.program(name)
    plan = compiler.plan(
        program, module.schedule(schedule, program), ranks=2, dims=dims, dtype="bf16", target="sm_90"
    )  # fmt: skip
    kernel = gpu.built(gpu_artifact(plan), 0)
    kernel.device = SimpleNamespace(type="cpu", index=-1)
    return kernel


def product(gpu: FakeGpu) -> Any:
    return built(gpu, "gemm_ar_one_shot", "h200", **WITH_M)


def launched(kernel: Any) -> list[tuple[int, dict[str, int]]]:
    return [one for _, function in kernel._driver._functions for one in function.launched]


def operands() -> tuple[torch.Tensor, torch.Tensor, None]:
    return torch.randn(M, K, dtype=torch.bfloat16), torch.randn(N, K, dtype=torch.bfloat16), None


@pytest.fixture(autouse=True)
def allocates_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct, "_allocation", lambda owner, name, shape: lambda: torch.empty(shape))


# What they do ------------------------------------------------------------------------------------------------


def test_a_direct_launch_is_on_the_callers_stream_and_points_at_its_tensors(gpu: FakeGpu) -> None:
    kernel = product(gpu)
    launch, given = kernel.direct({"x": 0, "w": 1}, [("y", (4, 4, N))]), operands()
    assert launch(given) is None, "the first launch orders streams"
    kernel({"x": given[0], "w": given[1]})
    for one in (given, operands()):
        (y,) = launch(one)
        assert y.shape == (4, 4, N)
        stream, addresses = launched(kernel)[-1]
        assert stream == CALLER and {n: addresses[n] for n in ("x", "w", "y")} == {
            "x": one[0].data_ptr(), "w": one[1].data_ptr(), "y": y.data_ptr(),
        }  # fmt: skip
    assert len(launched(kernel)) == 3 and not kernel.captured


def test_a_launch_of_fewer_rows_has_descriptors_and_counts_of_its_own(gpu: FakeGpu) -> None:
    kernel, (x, w, _) = built(gpu, "gemm_ar_batch", "h200", **WITH_M), operands()
    count = torch.tensor(5, dtype=torch.int32)
    kernel({"m": count, "x": x, "w": w})
    rows = {"x": (5, K), "y": (5, N)}
    launch = kernel.direct({"x": 0, "w": 1}, [("y", (5, N))], {"m": count}, rows)
    given = x[:5].clone(), w
    (y,) = launch(given)
    assert y.shape == (5, N) and kernel._driver._functions[0][1].sizes == [rows]
    addresses = launched(kernel)[-1][1]
    assert {n: addresses[n] for n in ("m", "x", "w", "y")} == {
        "m": count.data_ptr(), "x": given[0].data_ptr(), "w": w.data_ptr(), "y": y.data_ptr(),
    }  # fmt: skip


def test_what_a_direct_launch_does_not_make_is_not_begun(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = product(gpu)
    launch, (x, w, _) = kernel.direct({"x": 0, "w": 1}, [("y", (M, N))]), operands()
    kernel({"x": x, "w": w})
    odd = torch.empty(M * K + 1, dtype=torch.bfloat16)[1:].view(M, K)
    for other in (x.t().contiguous().t(), odd):
        assert launch((other, w)) is None
    with monkeypatch.context() as patch:
        patch.setattr(torch._C, "_cuda_getDevice", lambda: 5)
        assert launch((x, w)) is None
    with monkeypatch.context() as patch:
        patch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda _: CALLER + 1)
        assert launch((x, w)) is None
    with monkeypatch.context() as patch:
        patch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        patch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda _: CALLER + 1)
        order: list[str] = []
        for name in ("follow", "done"):
            patch.setattr(kernel._driver.captures, name, lambda stream, name=name: order.append(f"{name} {stream}"))
        assert launch((odd, w)) is None and not order and not kernel.captured
        assert launch((x, w)) is not None and kernel.captured
        assert order == [f"follow {CALLER + 1}", f"done {CALLER + 1}"] and launched(kernel).pop()[0] == CALLER + 1
    before = len(launched(kernel))
    assert launch((x, w)) is not None and len(launched(kernel)) == before + 1
    kernel._driver._functions[0][1].refuses = True
    assert launch(operands()) is None and len(launched(kernel)) == before + 1
    kernel._driver._functions[0][1].refuses = False
    assert launch(operands()) is not None
    kernel.close()
    assert launch((x, w)) is None


@pytest.mark.parametrize(
    ("name", "schedule", "dims"),
    [
        ("all_reduce_one_shot", "few", {"M": M, "N": N}),  # peers read x: it is staged
        ("all_reduce_two_shot", "few", {"Ms": M // 2, "N": N}),  # peers write y
        ("ag_gemm", "h200", {"Ms": 256, "N": 256, "K": 64}),  # a copy engine
    ],
)
def test_programs_that_need_more_have_none(gpu: FakeGpu, name: str, schedule: str, dims: dict[str, int]) -> None:
    kernel = built(gpu, name, schedule, **dims)
    names = [one.name for one in kernel.artifact.tensors if one.is_given]
    assert kernel.direct({name: at for at, name in enumerate(names)}, [("y", (M, N))]) is None


def test_kernels_that_are_checked_or_not_prepared_have_none(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = product(gpu)
    assert kernel.direct({"x": 0, "w": 1}, [("y", (M, N))]) is not None
    assert kernel.direct({"x": 0, "w": 1}, [("z", (M, N))]) is None
    for name in ("_promises", "_checks"):
        with monkeypatch.context() as patch:
            patch.setattr(kernel, name, ("one",))
            assert kernel.direct({"x": 0, "w": 1}, [("y", (M, N))]) is None
    kernel._driver._functions[0][1].prepared = None
    assert kernel.direct({"x": 0, "w": 1}, [("y", (M, N))]) is None


# Operators ---------------------------------------------------------------------------------------------------


class Recorder:
    """A kernel that has launches by place: their results are ones, those of a usual launch twos."""

    def __init__(self, works: bool = True) -> None:
        self.works, self.asked, self.usual = works, list[Any](), list[Any]()
        self.artifact = SimpleNamespace(tensor=lambda name: SimpleNamespace(shape=(2, M // 2, N)))

    def direct(self, inputs: Any, outputs: Any, *of_rows: Any) -> Any:
        self.inputs, self.outputs, self.of_rows = inputs, outputs, of_rows
        return lambda tensors: self.asked.append(tensors) or ([torch.ones(M, N)] if self.works else None)

    def __call__(self, inputs: Any) -> dict[str, torch.Tensor]:
        self.usual.append(inputs)
        return {"y": torch.full((2, M // 2, N), 2.0)}


@pytest.mark.parametrize("works", [True, False])
def test_operators_launch_directly_where_their_kernels_do(works: bool) -> None:
    operator, kernel, given = OPERATORS["gemm_ar"], Recorder(works), operands()
    named = {"x": given[0], "w": given[1]}
    program = library_module("gemm_ar_one_shot").program("gemm_ar_one_shot")
    launch = Launch(kernel, program, operator, named, 2, "silu", rows_of(operator, M, 1))  # type: ignore[arg-type]
    y = launch(*given)
    assert (kernel.inputs, kernel.outputs) == ({"x": 0, "w": 1}, [("y", (M, N))])
    assert torch.equal(y, torch.nn.functional.silu(torch.full((M, N), 1.0 if works else 2.0)))
    assert len(kernel.asked) == 1 and len(kernel.usual) == (not works)


def test_operators_take_just_their_rows_of_a_kernel_with_room() -> None:
    operator, kernel, (x, w, _) = OPERATORS["gemm_ar"], Recorder(), operands()
    program, count = library_module("gemm_ar_batch").program("gemm_ar_batch"), {"m": torch.tensor(5)}
    given, rows = {"x": x[:5], "w": w}, Rows(parts=1, results=1, call=5, kernel=M)
    launch = Launch(kernel, program, operator, given, 2, "", rows, count)
    assert kernel.inputs == {"x": 0, "w": 1} and kernel.outputs == [("y", (5, N))]
    assert kernel.of_rows == (count, {"y": (5, N)})
    launch(x[:5].clone(), w, None)
    assert len(kernel.asked) == 1 and not kernel.usual
    assert kernel.asked[0][0].shape == (M, K) and torch.equal(kernel.asked[0][0][:5], x[:5])


@pytest.mark.parametrize("works", [True, False])
def test_a_product_before_a_direct_launch_is_computed_once(works: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, (x, w, _) = Recorder(works), operands()
    pair = Pair(kernel, False, "", rows_of(OPERATORS["gemm_ar"], M, 2), kernel.direct({"x": 0}, []))
    times: list[int] = []
    linear = torch.nn.functional.linear
    monkeypatch.setattr(torch.nn.functional, "linear", lambda *given: times.append(1) or linear(*given))
    y = pair(x, w, None)
    expected = x @ w.t()
    assert y.shape == (M, N) and len(times) == 1
    assert torch.equal(kernel.asked[0][0], expected)
    assert works or torch.equal(kernel.usual[0]["x"], expected.view(2, M // 2, N))
