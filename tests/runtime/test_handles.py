# pyright: basic
"""Handles of the driver that kernels own, without a GPU: all that are made are freed, in order, and by whom."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch

from tests.runtime.fake_gpu import FakeGpu
from tests.runtime.process_helpers import ends_of
from tests.runtime.test_order import case_of
from tests.tiers import thorough
from tilelink import ops
from tilelink.errors import BindingError
from tilelink.ops import calls, groups
from tilelink.runtime.cuda.handles import Handles, open_handles


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    return FakeGpu(monkeypatch)


CASES = ("gemm_rs_local_last-copy_engine", "ag_gemm-copy_sms", "all_reduce_one_shot-small")


@thorough(unless=lambda case, closed: closed == (case == CASES[0]))
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("closed", [True, False])
def test_all_that_a_kernel_makes_is_freed(case: str, closed: bool, gpu: FakeGpu) -> None:
    gc.collect()  # kernels of other tests
    before = open_handles.total()
    kernel = gpu.built(case_of(case), 0)
    assert gpu.library.created and not gpu.library.destroyed
    assert open_handles.total() - before == len(gpu.library.created)
    if closed:
        kernel.close()
        kernel.close()
    else:
        del kernel
        gc.collect()
    assert sorted(gpu.library.destroyed) == gpu.library.created and open_handles.total() == before


def test_graphs_are_freed_before_events_and_streams(gpu: FakeGpu) -> None:
    library = gpu.library
    handles = Handles(library)
    stream, event = handles.stream(torch.device("cpu")), handles.event()
    kept, dropped = handles.adopt(1000), handles.adopt(1001)
    handles.drop(dropped)
    assert library.destroyed == [dropped]
    handles.close()
    assert library.destroyed == [dropped, kept, event, stream]


def test_a_closed_kernel_is_refused_by_name(gpu: FakeGpu) -> None:
    kernel = gpu.built(case_of(CASES[0]), 0)
    kernel.close()
    for call in (lambda: kernel({}), lambda: kernel.buffer("x"), kernel.state, lambda: kernel.symmetric_bytes):
        with pytest.raises(BindingError, match="the kernel of gemm_rs_local_last is closed"):
            call()


def test_the_end_of_a_process_frees_nothing() -> None:
    """The driver may be gone by then."""
    text = (
        "from tests.runtime.fake_gpu import FakeDriver; from tilelink.runtime.cuda.handles import Handles\n"
        "class Driver(FakeDriver):\n"
        "    def __getattr__(self, name):\n"
        "        call = super().__getattr__(name)\n"
        "        return (lambda *_: print(name)) if 'Destroy' in name else call\n"
        "from tilelink.runtime.cuda import handles\n"
        "handles.function_of = lambda library, name, *_: getattr(library, name)\n"
        "kept = Handles(Driver()); kept.event()\n"
    )
    ways = {"": "", "kept = [kept]; kept.append(kept)": "", "del kept": "cuEventDestroy_v2\n"}
    assert ends_of(text, *ways) == [(said, "") for said in ways.values()]


class Group:
    group_name = "g"


@pytest.mark.parametrize("captured", [False, True])
def test_kernels_that_graphs_hold_are_kept(captured: bool, gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """A replay writes to the memory of peers, which may be somebody else's by then."""
    group: Any = Group()
    monkeypatch.setattr(groups, "check_member", lambda group: None)
    monkeypatch.setattr(groups, "is_destroyed", lambda group: False)
    made = calls._made.of(group)
    replayed, other = gpu.built(case_of(CASES[2]), 0), gpu.built(case_of(CASES[0]), 0)
    replayed.captured = True
    made.kernels.update(replayed=replayed, other=other)
    made.calls["call"] = (other, None)
    assert ops.clear(captured=captured) == (0 if captured else 1)
    assert other._handles.closed and replayed._handles.closed is captured
    assert (calls._made.of(group) is made) is not captured
    assert made.kernels == ({} if captured else {"replayed": replayed}) and not made.calls
    assert ops.clear(captured=True) == 0 and replayed._handles.closed
