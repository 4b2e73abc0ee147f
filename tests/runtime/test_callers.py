# pyright: basic
"""How a GPU kernel is called, without a GPU: other current devices, captures, groups, and peers that gave up."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests import artifacts
from tilelink.device.debug import CHANNEL, EXPECTED, SEEN, STAGE, TILE, TRIPPED, WORDS, armed
from tilelink.dump import Seen, WaitSeen
from tilelink.errors import BindingError, DeadlineError, RankError
from tilelink.ops import calls, groups
from tilelink.runtime.cuda import deadline, device
from tilelink.runtime.cuda.deadline import DebugBlock
from tilelink.runtime.cuda.kernel import GpuKernel

OWN = torch.device("cuda", 1)

# The current device ------------------------------------------------------------------------------------------


@pytest.fixture
def current(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The current device of this thread, last in the list."""
    stack = [0]

    @contextmanager
    def inside(which: Any) -> Iterator[None]:
        stack.append(torch.device(which).index)
        yield
        stack.pop()

    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: stack[-1], raising=False)
    monkeypatch.setattr(torch.cuda, "device", inside)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: stack[-1])
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    return stack


class Kernel(GpuKernel):
    """One that says with which current device it was launched."""

    def __init__(self, **more: Any) -> None:
        arguments = SimpleNamespace(
            given=SimpleNamespace(checked=lambda tensors: dict(tensors)), allocate=lambda results: {}, outputs=[],
            in_place=[],
        )  # fmt: skip
        driver = SimpleNamespace(slot=0, current=lambda: SimpleNamespace(cuda_stream=7), order=lambda *_: None)
        said: dict[str, Any] = {
            "device": OWN, "_handles": SimpleNamespace(closed=False), "_checks": None, "_debug_block": None,
            "_tracer": None, "_arguments": arguments, "_driver": driver,
            "_end_eager": lambda *_: None, "_explain": None, "_rank": 0, "artifact": None, "_promises": (),
            "_launch": lambda *_: self.launched.append(torch._C._cuda_getDevice()),
        }  # fmt: skip
        vars(self).update({**said, **more})
        self.launched: list[int] = []


def test_a_launch_is_made_with_the_ranks_gpu_as_the_current_one(current: list[int]) -> None:
    kernel = Kernel()
    kernel({})
    assert kernel.launched == [1] and current == [0]
    current.append(1)
    kernel({})
    assert kernel.launched == [1, 1]


def test_a_buffer_is_asked_for_with_the_ranks_gpu_and_takes_no_graph(current: list[int]) -> None:
    """A copy with gradients into a buffer would keep its graph there, and those of all launches before."""
    asked, memory = list[int](), torch.zeros(2, 4)
    artifact = replace(artifacts.EMPTY, tensors=(artifacts.tensor("x", symmetric=True, buffers=2),))
    driver = SimpleNamespace(skips=[], slot=3, current=lambda: asked.append(current[-1]), order=lambda *_: None)
    kernel = Kernel(artifact=artifact, _driver=driver, _memory=SimpleNamespace(own={"x": memory}))
    found = kernel.buffer("x")
    found.copy_(torch.ones(4, requires_grad=True))
    assert asked == [1] and memory.tolist() == [[0] * 4, [1] * 4] and not memory.requires_grad


def test_a_kernel_is_built_with_its_groups_gpu_and_writable_buffers(
    current: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Buffers that are made in inference mode could only be written there."""
    made: list[Any] = []
    monkeypatch.setattr(GpuKernel, "_build", lambda self, deadline_s: made.append((current[-1], torch.zeros(2))))
    monkeypatch.setattr(device.dist, "get_rank", lambda group: 1)
    with torch.inference_mode():
        kernel = GpuKernel(SimpleNamespace(), SimpleNamespace(bound_device_id=OWN))  # type: ignore[arg-type]
    ((gpu, buffer),) = made
    assert (kernel.device, gpu, buffer.is_inference()) == (OWN, 1, False)


@pytest.mark.parametrize(
    ("own", "world", "gpu"),
    [("cuda:1", None, "cuda:1"), (None, "cuda:2", "cuda:2"), ("cuda:1", "cuda:2", "cuda:1"), (None, None, "cuda:0"),
     ("cuda", "cpu", "cuda:0")],
)  # fmt: skip
def test_a_ranks_gpu_is_that_of_its_group(
    own: str | None, world: str | None, gpu: str, current: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The current one of a thread says nothing where the thread never chose one."""
    bound = [SimpleNamespace(bound_device_id=torch.device(one) if one else None) for one in (own, world)]
    monkeypatch.setattr(device.dist, "group", SimpleNamespace(WORLD=bound[1]))
    assert device.gpu_of(bound[0]) == torch.device(gpu)  # type: ignore[arg-type]


def test_an_operator_is_prepared_with_the_gpu_of_its_tensors(
    current: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    group: Any = SimpleNamespace(group_name="g")
    prepared: list[int] = []
    monkeypatch.setattr(groups, "is_destroyed", lambda group: False)
    monkeypatch.setattr(calls, "_prepared", lambda *_: prepared.append(current[-1]) or (lambda *operands: None))
    monkeypatch.setattr(calls._made, "_kept", {})
    for one in (SimpleNamespace(is_cuda=True, device=OWN), SimpleNamespace(is_cuda=False, device="cpu")):
        x: Any = SimpleNamespace(**vars(one), shape=(1,), dtype=one.device)
        calls.run("all_gather", (x,), "", group, None)
    assert prepared == [1, 0]


# Groups ------------------------------------------------------------------------------------------------------


def test_a_rank_outside_of_a_group_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch gives it a number in place of the group."""
    outside: Any = dist.GroupMember.NON_GROUP_MEMBER
    monkeypatch.setattr(device.dist, "is_initialized", lambda: True)
    from tilelink import ops

    wanted = torch.ones(2, requires_grad=True)
    for call in (
        lambda: device.group_of(outside), lambda: ops.all_gather(torch.ones(2), group=outside),
        lambda: ops.all_gather(wanted, group=outside),
    ):  # fmt: skip
        with pytest.raises(RankError, match="this rank is not in the group"):
            call()


def test_what_is_no_group_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device.dist, "is_initialized", lambda: True)
    number: Any = 5
    with pytest.raises(RankError, match="the group is of type int, which is no process group"):
        device.group_of(number)


# Captures ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("tracer", "text"), [(None, "with a deadline"), ("a tracer", "that is measured")])
def test_a_launch_that_is_waited_for_is_not_captured(
    tracer: Any, text: str, current: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    asked: list[str] = []
    kernel = Kernel(_debug_block=SimpleNamespace(check=lambda: asked.append("the GPU")), _tracer=tracer)
    with pytest.raises(BindingError, match=f"a launch {text} cannot be captured"):
        kernel({})
    assert asked == kernel.launched == [], "reading the block would end the capture"


# Peers that gave up ------------------------------------------------------------------------------------------

RANKS, SECONDS = 3, 0.5
CALLERS, SIDE = 7, 8
"""Streams."""


class Blocks:
    """The debug blocks of all ranks, in this process's memory."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.memory = torch.tensor([armed(SECONDS)] * RANKS)
        self.status, self.slept = 0, list[float]()
        self.streams = set[int]()
        """Those by which blocks were read."""
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(cuda_stream=CALLERS))
        monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
        monkeypatch.setattr(deadline, "driver", lambda: SimpleNamespace(copy=lambda *given: (self._copy, given)))
        monkeypatch.setattr(deadline, "library", lambda: None)
        monkeypatch.setattr(deadline, "time", SimpleNamespace(sleep=self._sleep))
        self.writes_later: tuple[int, dict[int, int]] | None = None

    def _copy(self, stream: Any, target: Any, source: Any, size: int) -> int:
        self.streams.add(stream.value)
        ctypes.memmove(target.value, source.value, size)
        return self.status

    def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        if self.writes_later:
            self.trip(*self.writes_later)

    def trip(self, rank: int, words: dict[int, int]) -> None:
        for word, value in words.items():
            self.memory[rank, word] = value

    def watch(self, rank: int) -> DebugBlock:
        found = object.__new__(DebugBlock)
        layout = SimpleNamespace(describe=lambda stage, channel: (f"stage{stage}", f"channel {channel}"))
        places = [row.data_ptr() for row in self.memory]
        found._artifact, found._rank, found._seconds = layout, rank, SECONDS  # type: ignore[assignment]
        found._heap = SimpleNamespace(debugs=places)  # type: ignore[assignment]
        found._look = lambda: KNOWN  # type: ignore[method-assign]
        found._every = torch.zeros(RANKS, WORDS, dtype=torch.int64)
        found._side = SimpleNamespace(cuda_stream=SIDE)  # type: ignore[assignment]
        return found


@pytest.fixture
def blocks(monkeypatch: pytest.MonkeyPatch) -> Blocks:
    return Blocks(monkeypatch)


KNOWN = Seen(rank=1, time=0.0, launch=1, pads=())
LATE = {TRIPPED: 1, STAGE: 2, TILE: 5, CHANNEL: 9, SEEN: 3, EXPECTED: 4}


def test_nobody_is_late(blocks: Blocks) -> None:
    """What a caller's stream has still to do, such as a meeting of all ranks before the launch, is not waited for."""
    blocks.watch(1).check()
    assert blocks.slept == [] and blocks.streams == {SIDE}


def test_a_rank_knows_of_peers_that_gave_up(blocks: Blocks) -> None:
    """Such a peer goes on with what is worthless, and notifies: a launch that waits for it ends well."""
    blocks.trip(2, LATE)
    with pytest.raises(
        DeadlineError, match=r"rank 2: tile 5 of stage2 waited 0\.5 s for channel 9: it was 3"
    ) as caught:
        blocks.watch(1).check()
    assert caught.value.witnesses == (KNOWN,), "what it knows itself"
    assert caught.value.rank == 2 and "what rank 1 was sent since is worthless" in str(caught.value)
    with pytest.raises(DeadlineError) as own:
        blocks.watch(2).check()
    assert own.value.rank == 2 and "worthless" not in own.value.message
    late = WaitSeen(stage=2, tile=5, channel=9, seen=3, expected=4)
    assert own.value.witnesses == (replace(KNOWN, late=late),)


def test_the_own_wait_is_said_before_a_peers(blocks: Blocks) -> None:
    blocks.trip(0, LATE)
    blocks.trip(1, {**LATE, TILE: 7})
    with pytest.raises(DeadlineError, match="rank 1: tile 7"):
        blocks.watch(1).check()


def test_where_a_peer_was_late_is_read_once_it_is_written(blocks: Blocks) -> None:
    blocks.trip(0, {TRIPPED: 1})
    blocks.writes_later = 0, LATE
    with pytest.raises(DeadlineError, match="rank 0: tile 5 of stage2"):
        blocks.watch(1).check()


def test_a_block_that_cannot_be_read_is_an_error(blocks: Blocks) -> None:
    blocks.status = 700
    with pytest.raises(RankError, match="does not read what rank 0 reports: error 700"):
        blocks.watch(1).check()
