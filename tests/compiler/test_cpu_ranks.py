"""The CPU runtime alone, on a kernel written by hand as the emitter would."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tests import artifacts
from tilelink.artifact import (
    CopyProgram,
    DebugBlockPointer,
    EpochPointer,
    FirstProgram,
    NumPrograms,
    PeersPointer,
    Rank,
    SignalGrid,
    SignalsPointer,
    SignalTablePointer,
    TensorPointer,
    TensorSpec,
)
from tilelink.backend import store
from tilelink.errors import DeadlineError, EmitError, RankError
from tilelink.runtime.cpu.client import run_cpu
from tilelink.runtime.job import Job
from tilelink.settings import environment

RANKS, M, LAUNCHES = 3, 8, 5

SOURCE = """
import triton
import triton.language as tl
from tilelink import device as dl

@triton.jit
def add(x, y, xs, xs_peers, signals, signal_table, epoch, debug_block, rank, first_program, num_programs):
    e = tl.load(epoch).to(tl.int32)
    slot = (e - 1) % 2
    p = first_program
    peer = (rank + 1) % 3
    for q in range(3):
        dl.wait(signals, 8 + q, e - 2, debug_block, -1, 0)
    cols = p * 4 + tl.arange(0, 4)
    dl.tile_begin(debug_block, 0, p)
    there = dl.symm_at(xs_peers, peer, xs)
    dl.transfer(debug_block, 0, p, 1, peer, p * 4)
    tl.store(there + slot * 8 + cols, tl.load(x + cols))
    pad = dl.symm_at(signal_table, peer, signals)
    dl.notify(pad, slot * 2 + p, peer, debug_block, 0, p, True)
    token = dl.wait(signals, slot * 2 + p, (e - 1) // 2 + 1, debug_block, 0, p)
    tl.store(y + cols, tl.load(x + cols) + tl.load(xs + slot * 8 + cols + token))
"""
PARAMETERS = (
    *(TensorPointer(tensor=name) for name in ("x", "y", "xs")), PeersPointer(tensor="xs"), SignalsPointer(),
    SignalTablePointer(), EpochPointer(), DebugBlockPointer(), Rank(), FirstProgram(), NumPrograms(),
)  # fmt: skip


def tensor(name: str, number: int, space: str, buffers: int = 1) -> TensorSpec:
    symmetric = space == "symmetric"
    return artifacts.tensor(name, number=number, space=space, symmetric=symmetric, shape=(M,), buffers=buffers)


def make_job(folder: Path, source: str = SOURCE, deadline_s: float = 20.0) -> Job:
    with environment(TILELINK_CACHE=str(folder)):
        path = store.save(source)
    ones = np.ones((RANKS, 2), np.int64)
    grid = SignalGrid(tensor="xs", kind="tile", base=0, counts=(2,), buffers=2, thresholds=ones)
    artifact = replace(
        artifacts.EMPTY,
        ranks=RANKS,
        tensors=(tensor("x", 0, "in"), tensor("xs", 1, "symmetric", 2), tensor("y", 2, "out")),
        grids=(grid,),
        pad_size=4 + 4 + 2 * RANKS,
        entered_base=5,
        finished_base=8,
        stages=("add",),
        kernels=(artifacts.kernel("add", programs=2, parameters=PARAMETERS),),
    )
    inputs = tuple(tuple({"x": torch.randn(M)} for _ in range(RANKS)) for _ in range(LAUNCHES))
    return Job(artifact=artifact, source=path, inputs=inputs, deadline_s=deadline_s, trace=True)


def test_launches_back_to_back(tmp_path: Path) -> None:
    job = replace(make_job(tmp_path), seed=3, max_delay_s=0.005)
    result = run_cpu(job)
    assert len(result.outputs) == LAUNCHES
    for inputs, outputs in zip(job.inputs, result.outputs, strict=True):
        for rank in range(RANKS):
            expected = inputs[rank]["x"] + inputs[(rank - 1) % RANKS]["x"]
            torch.testing.assert_close(outputs[rank]["y"], expected)
    assert len(result.traces) == RANKS * 2
    own = [event for event in result.traces[0].events if event.stage == 0 and event.epoch == 1]
    assert [event.kind for event in own] == ["tile", "transfer", "notify", "wait"]
    assert os.environ.get("TRITON_INTERPRET") is None


NO_CHECKS = """
from triton.language.semantic import TritonSemantic

def refuse(*_):
    raise AssertionError("an overflow is looked for")

TritonSemantic.device_assert = refuse
"""


def test_no_overflow_of_integers_is_looked_for(tmp_path: Path) -> None:
    """The interpreter would compute each sum in 64 bits too, compare it with both limits, and make no use of it."""
    assert len(run_cpu(make_job(tmp_path, SOURCE + NO_CHECKS)).outputs) == LAUNCHES


QUEUED = (
    SOURCE.replace("    there = dl.symm_at", "    there = 0  #")
    .replace("    dl.transfer(", "    0  # (")
    .replace("    tl.store(there", "    0  # tl.store(there")
    .replace("    pad = dl", "    0  # pad = dl")
    .replace("    dl.notify(", "    0  # dl.notify(")
    + """
def send(queue, rank, epoch):
    slot = (epoch - 1) % 2
    peer = (rank + 1) % 3
    for q in range(3):
        queue.wait(8 + q, epoch - 2, -1, 0)
    for t in range(2):
        queue.tile_begin(1, t)
        queue.copy("xs", peer, (t * 4,), (4,), "x", rank, (t * 4,), (4,), 1, t)
        queue.notify(peer, slot * 2 + t, 1, t)
"""
)


def test_a_changed_module_is_not_run(tmp_path: Path) -> None:
    job = make_job(tmp_path)
    job.source.write_text(SOURCE.replace("+", "-"))
    with pytest.raises(EmitError, match="was changed after it was generated"):
        run_cpu(job)
    job.source.unlink()
    with pytest.raises(EmitError, match="cannot read"):
        run_cpu(job)


def test_a_copy_engine_moves_the_data(tmp_path: Path) -> None:
    job = make_job(tmp_path, QUEUED)
    send = CopyProgram(name="send", stream="copy", position=0, track=2, needs_entry=False)
    result = run_cpu(replace(job, artifact=replace(job.artifact, copy_programs=(send,)), seed=1, max_delay_s=0.002))
    for inputs, outputs in zip(job.inputs, result.outputs, strict=True):
        torch.testing.assert_close(outputs[2]["y"], inputs[2]["x"] + inputs[1]["x"])
    copies = next(process.events for process in result.traces if process.stream == "copy" and process.rank == 0)
    moved = [(e.kind, e.tile, e.a, e.b, e.c) for e in copies if e.stage == 1 and e.epoch == 2]
    assert moved[:3] == [("tile", 0, 0, 0, 0), ("transfer", 0, 1, 1, 0), ("notify", 0, 1, 2, 0)]
    assert moved[4] == ("transfer", 1, 1, 1, 4)


def test_outputs_not_written_are_poison(tmp_path: Path) -> None:
    job = make_job(tmp_path, SOURCE.replace("tl.store(y + cols,", "tl.store(y + tl.minimum(cols, 6),"))
    outputs = run_cpu(job).outputs[-1]
    assert outputs[0]["y"][:6].isfinite().all()
    assert outputs[0]["y"][7].isnan()


def test_a_kernel_that_raises_ends_the_run(tmp_path: Path) -> None:
    job = make_job(tmp_path, SOURCE.replace("peer = (rank", "nothing_of_the_kind(rank)\n    peer = (rank"))
    with pytest.raises(RankError, match="nothing_of_the_kind"):
        run_cpu(job)


def test_memory_that_the_machine_does_not_give_is_an_error_without_a_traceback(tmp_path: Path) -> None:
    job = make_job(tmp_path)
    large = tuple(replace(one, buffers=2**45) for one in job.artifact.tensors)
    with pytest.raises(RankError, match=r"could not start: cannot map \d+ bytes of shared memory") as caught:
        run_cpu(replace(job, artifact=replace(job.artifact, tensors=large)))
    assert "Traceback" not in str(caught.value)
    assert caught.value.hint == "take smaller sizes, or fewer ranks or buffers"


def test_a_module_that_does_not_load(tmp_path: Path) -> None:
    with pytest.raises(RankError, match="could not start: ZeroDivisionError"):
        run_cpu(make_job(tmp_path, "1 / 0"))


def test_a_notify_that_never_comes(tmp_path: Path) -> None:
    job = make_job(tmp_path, SOURCE.replace("    dl.notify(", "    if p == 0:\n        dl.notify("), deadline_s=2.0)
    with pytest.raises(DeadlineError, match=r"rank \d add tile 1 waits for xs tile channel \[1\].*0 of 1") as caught:
        run_cpu(job)
    assert (caught.value.tile, caught.value.channel, caught.value.expected) == (1, 1, 1)
