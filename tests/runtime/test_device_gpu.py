# pyright: basic, reportCallIssue=false
"""The device library compiled and run on a GPU."""

from collections.abc import Callable

import pytest
import torch

from tests.runtime import device_expected as expected
from tests.runtime import device_kernels as kernels
from tilelink.device.debug import Trip, armed, trip

pytestmark = pytest.mark.gpu

CHECKS: dict[str, Callable[[], None]] = {
    "integers": lambda: expected.check_integers("cuda"),
    "elementwise f32": lambda: expected.check_elementwise("cuda", torch.float32),
    "elementwise bf16": lambda: expected.check_elementwise("cuda", torch.bfloat16),
    "extremes f32": lambda: expected.check_extremes("cuda", torch.float32),
    "extremes i32": lambda: expected.check_extremes("cuda", torch.int32),
    "relu": lambda: expected.check_relu_keeps_nan("cuda"),
    "convert": lambda: expected.check_convert("cuda"),
    "convert_f8e4m3": lambda: expected.check_convert_f8("cuda", "f8e4m3"),
    "convert_f8e5m2": lambda: expected.check_convert_f8("cuda", "f8e5m2"),
    "convert_integers": lambda: expected.check_convert_integers("cuda"),
    "product_of_bytes": lambda: expected.check_product_of_bytes("cuda"),
    "product f32": lambda: expected.check_product("cuda", torch.float32),
    "product bf16": lambda: expected.check_product("cuda", torch.bfloat16),
    "attention f32": lambda: expected.check_attention("cuda", torch.float32),
    "attention bf16": lambda: expected.check_attention("cuda", torch.bfloat16),
    "low level": lambda: expected.check_low_level("cuda"),
    "notifies together": lambda: expected.check_notify_each("cuda"),
    "boundaries": lambda: expected.check_boundaries("cuda"),
    "counted launches": lambda: expected.check_counted_launches("cuda"),
    "begun copies": lambda: expected.check_begun_copies("cuda"),
    "wait for all": lambda: expected.check_wait_all("cuda"),
    "push": lambda: expected.check_push("cuda"),
    "wrapped counters": lambda: expected.check_wrapped_counters("cuda"),
}


@pytest.mark.parametrize("name", CHECKS)
def test_it_computes_what_the_interpreter_computes(name: str) -> None:
    CHECKS[name]()


def test_a_wait_that_outlives_its_deadline_reports_itself_and_ends() -> None:
    signals = torch.tensor([0, 4], dtype=torch.int32, device="cuda")
    debug = torch.tensor(armed(0.05), device="cuda")
    kernels.await_one[(1,)](signals, 1, 4, debug, 7)
    assert trip(debug.tolist()) is None
    kernels.await_one[(2,)](signals, 1, 5, debug, 8)
    found = trip(debug.tolist())
    assert found is not None
    assert found in [Trip(stage=2, tile=8, channel=1, seen=4, expected=5, program=program) for program in (0, 1)]
    # Every later wait gives up at once and leaves the first report as it is. (The first launch compiles.)
    kernels.await_one[(1,)](signals, 0, 9, debug, 9)
    torch.cuda.synchronize()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(20):
        kernels.await_one[(1,)](signals, 0, 9, debug, 9)
    end.record()
    end.synchronize()
    assert begin.elapsed_time(end) < 50
    assert trip(debug.tolist()) == found


@pytest.mark.parametrize("deferred", [False, True])
def test_a_gemm_waits_for_data_that_arrives_while_it_runs(deferred: bool) -> None:
    """A second stream copies a's columns in, slice by slice, and signals each: every product must see its data."""
    from triton.tools.tensor_descriptor import TensorDescriptor

    size, slices = 1024, 4
    torch.manual_seed(0)
    b = torch.randn(size, size, device="cuda").bfloat16()
    a, c = torch.zeros_like(b), torch.zeros_like(b)
    described = [TensorDescriptor.from_tensor(one, shape) for one, shape in ((a, [128, 64]), (b, [128, 64]))]
    described.append(TensorDescriptor.from_tensor(c, [128, 128]))
    signals = torch.zeros(256, dtype=torch.int32, device="cuda")
    debug = torch.tensor(armed(10.0), device="cuda")
    mover = torch.cuda.Stream()

    def move(source: torch.Tensor, epoch: int) -> None:
        width = size // slices
        for part in range(slices):
            a[:, part * width : (part + 1) * width] = source[:, part * width : (part + 1) * width]
            signals[part] = epoch

    # CUDA loads a kernel when it is first launched, and may wait for running ones to end: load the copies' first.
    move(a.clone(), 0)
    for epoch in range(1, 11):
        source = torch.randn(size, size, device="cuda").bfloat16()
        a.zero_()
        torch.cuda.synchronize()
        kernels.gemm_descriptors[(32,)](
            *described, signals, epoch, debug, 64, 8, 16, 128, 128, 64, 4, deferred, num_warps=8, num_stages=4
        )
        with torch.cuda.stream(mover):
            move(source, epoch)
        torch.cuda.synchronize()
        assert trip(debug.tolist()) is None
        torch.testing.assert_close(c.float(), (source @ b.T).float(), rtol=2e-2, atol=2e-1)
        notified = 32 if deferred else 64
        assert signals[100 : 100 + notified].tolist() == [epoch] * notified
