# pyright: basic
"""What a GPU rank sees of a launch that hangs, without a GPU: before a late wait lets its kernels go on, and after."""

from __future__ import annotations

import ctypes
import random
import time
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.compiler import library
from tests.runtime.test_monitor import Clock
from tests.unit import hangs
from tilelink import compiler, dump
from tilelink.artifact import Artifact
from tilelink.cli.options import dims_of
from tilelink.compiler.cuda import gpu_artifact
from tilelink.compiler.postmortem import explain, report_of
from tilelink.device.debug import TRIPPED, WORDS, armed
from tilelink.dump import Seen
from tilelink.errors import DeadlineError
from tilelink.planning.plan import Plan
from tilelink.runtime.cuda import deadline
from tilelink.runtime.cuda.deadline import DebugBlock
from tilelink.runtime.witness import explained, seen_of
from tilelink.settings import override

RANKS, SECONDS, LAUNCH = 3, 0.2, 2


def planned(name: str, schedule: str) -> tuple[Plan, Artifact]:
    program, module = next((p, m) for m in compiler.library() for p in m.programs if p.name == name)
    dims = dims_of(program, None, library.SIZES)
    chosen = None if schedule == "default" else module.schedule(schedule, program)
    plan = compiler.plan(program, chosen, ranks=RANKS, dims=dims, dtype="f32", target="cpu")
    return plan, gpu_artifact(plan)


class Gpus:
    """Three ranks of a hung launch: their pads and debug blocks in memory of the host."""

    def __init__(self, patch: pytest.MonkeyPatch, plan: Plan, artifact: Artifact, fault: hangs.Fault) -> None:
        self.run = hangs.Execution(plan, fault, 7)
        assert not self.run.run() and fault.happened
        self.artifact = artifact
        self.pads = torch.tensor(self.run.pads, dtype=torch.int32)
        self.debugs = torch.tensor([armed(SECONDS)] * RANKS)
        patch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
        patch.setattr(deadline, "driver", lambda: SimpleNamespace(copy=lambda *given: (self._copy, given)))
        patch.setattr(deadline, "library", lambda: None)
        self.lost: set[int] = set()
        self.spoiled = False

    def _copy(self, stream: Any, target: Any, source: Any, size: int) -> int:
        if source.value in self.lost:
            return 700
        ctypes.memmove(target.value, source.value, size)
        return 0

    def block(self, rank: int) -> DebugBlock:
        found = object.__new__(DebugBlock)
        found._artifact, found._rank, found._seconds = self.artifact, rank, SECONDS
        places = [[row.data_ptr() for row in rows] for rows in (self.pads, self.debugs)]
        found._heap = SimpleNamespace(pad=self.pads[rank], pads=places[0], debugs=places[1])  # type: ignore[assignment]
        found._every = torch.zeros(RANKS, WORDS, dtype=torch.int64)
        found._pads = torch.zeros_like(self.pads)
        found._side = SimpleNamespace(cuda_stream=8)  # type: ignore[assignment]
        found._state = torch.tensor([self.run.launch[rank], 0, 0, 0])
        found._issued = min(self.run.launch[rank], hangs.LAUNCHES) - 1
        return found

    def goes_on(self, rank: int) -> None:
        """A wait of a rank is late: it reports itself, and the kernels notify what they have not done."""
        self.debugs[rank, TRIPPED] = 1
        self.pads += 1

    def end_of(self, rank: int, after_s: float) -> Any:
        """The end of a launch whose wait is late after so many seconds."""
        begin, tripped = time.monotonic(), list[int]()

        def query() -> bool:
            if time.monotonic() - begin > after_s and not tripped:
                tripped.append(rank)
                self.goes_on(rank)
            return bool(tripped)

        return SimpleNamespace(query=query, synchronize=lambda: None)


CASES = {
    "a ring": ("all_gather_ring", "chunks", "rank dies"),
    "a copy engine": ("ag_gemm", "copy_engine", "kernel never begins"),
    "a sum": ("gemm_rs_reduce_last", "default", "notify lost"),
}


@pytest.mark.parametrize("case", CASES)
def test_the_counters_are_those_before_the_late_wait(case: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """Each rank dumps all ranks' counters, as they were before any kernel went on without what it waited for."""
    Clock(monkeypatch)
    name, schedule, kind = CASES[case]
    plan, artifact = planned(name, schedule)
    fault = hung = None
    draw = random.Random(name)
    while hung is None:
        fault = hangs.drawn_fault(plan, kind, hangs.LAUNCHES - 1, draw)  # peers wait in a later launch
        try:
            hung = fault and Gpus(monkeypatch, plan, artifact, fault)
        except AssertionError:
            continue
    assert fault is not None
    with override(dumps=tmp_path):
        first = next(one for one in range(RANKS) if one != fault.rank)
        for rank in sorted(range(RANKS), key=lambda one: one != first):
            late = rank != fault.rank
            block = hung.block(rank)
            with (
                pytest.raises(DeadlineError) as caught,
                explained(lambda error: explain(error, plan, {}, SECONDS), artifact, rank, {}),
            ):
                block.settle(hung.end_of(rank, SECONDS if late else 0.0), [])
            (seen,) = caught.value.witnesses
            assert isinstance(seen, Seen) and {pad.rank for pad in seen.pads} == {*range(RANKS)}
            if rank == first:
                before = {pad.rank: list(pad.counters) for pad in seen.pads}
                assert before == dict(enumerate(hung.run.pads)), "not what came after the late wait"
            assert seen.spoiled == ("because: " not in str(caught.value)) == bool(hung.spoiled)
            assert seen.launch == seen.issued == min(hung.run.launch[rank], hangs.LAUNCHES)
            hung.spoiled = True
        early = next(path for path in dump.newest(tmp_path) if dump.read(path).seen.rank == first)
        one = dump.read(early)
        late_clock = replace(one, seen=replace(one.seen, time=one.seen.time + 1))
        (path,) = dump.write([late_clock])
        early.unlink(missing_ok=path != early)
    report, left = report_of([tmp_path])
    assert not left and report.root is not None
    assert hangs.judged(plan, case, fault, report).among, f"{fault}\n{report}"


def test_peers_that_cannot_be_read_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    plan, artifact = planned("all_gather_ring", "chunks")
    gpus = Gpus(monkeypatch, plan, artifact, hangs.Fault(kind="launch not begun", launch=2, rank=1))
    gpus.lost = {gpus.pads[1].data_ptr()}
    gpus.goes_on(0)
    with pytest.raises(DeadlineError) as caught:
        gpus.block(0).check()
    (seen,) = caught.value.witnesses
    assert isinstance(seen, Seen) and [pad.rank for pad in seen.pads] == [0, 2]


def test_the_number_of_a_launch_is_that_of_the_device() -> None:
    """Also where programs are counted; never one that the host has not issued."""
    _, artifact = planned("all_gather_ring", "chunks")
    counted = artifact.counted or 1
    for state, issued, launch in (([4, 0, 0, 0], 9, 4), ([4, 0, 2 * counted, 0], 9, 6 if artifact.counted else 4)):
        assert seen_of(artifact, 0, {}, state, issued, False).launch == launch
    assert seen_of(artifact, 0, {}, [4, 0, 0, 0], 3, False).launch == 3


def test_nothing_is_read_in_a_launch_that_is_well(monkeypatch: pytest.MonkeyPatch) -> None:
    plan, artifact = planned("all_gather_ring", "chunks")
    block = Gpus(monkeypatch, plan, artifact, hangs.Fault(kind="launch not begun", launch=2, rank=1)).block(0)
    Clock(monkeypatch)
    monkeypatch.setattr(block, "_look", lambda: pytest.fail("it reads counters"))
    begin = time.monotonic()
    block.settle(SimpleNamespace(query=lambda: time.monotonic() - begin > SECONDS / 4), [])  # type: ignore[arg-type]


def test_a_broken_promise_is_explained(tmp_path: Any) -> None:
    program, _ = next((p, m) for m in compiler.library() for p in m.programs if p.name == "expert_parallel")
    plan = compiler.plan(program, ranks=RANKS, dims=dims_of(program, None, library.SIZES), dtype="f32")
    artifact = gpu_artifact(plan)
    shapes = {t.name: t.shape for t in artifact.tensors if t.space == "in" and t.dtype == "i32"}
    given = {name: torch.full(shape, -1, dtype=torch.int32) for name, shape in shapes.items()}
    error = DeadlineError("late")
    pads = {rank: [0] * artifact.pad_size for rank in range(RANKS)}
    error.witnesses = (seen_of(artifact, 1, pads, [1, 0, 0, 0], 1, False),)
    with (
        override(dumps=tmp_path),
        pytest.raises(DeadlineError, match="because: rank 1 breaks a promise"),
        explained(lambda one: explain(one, plan, {}, 1.0), artifact, 1, given),
    ):
        raise error
    assert "is -1" in dump.read(next(iter(tmp_path.iterdir()))).seen.broken
