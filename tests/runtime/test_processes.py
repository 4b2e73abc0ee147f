"""Processes that do what they should: order, hooks, traces and many of them."""

import random
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.runtime.process_helpers import Log, children, moments, open_files, wait_for
from tilelink import settings
from tilelink.device import monitor
from tilelink.runtime.cpu.arena import Arena
from tilelink.runtime.cpu.processes import Process, RunReport, run_processes

ROOT = Path(__file__).resolve().parents[2]
BEGIN, FINISH = 100, 200


def single(step: Callable[[int], None], *, rank: int = 0) -> Process:
    return Process(rank=rank, stream="main", program=0, steps=(step,))


def noting(log: Log, process: int, what: int) -> Callable[[int], None]:
    """A step that takes a random time and notes its start (what) and end (what + 10)."""

    def step(epoch: int) -> None:
        log.note(process, what, epoch)
        time.sleep(random.Random(f"{process} {what} {epoch}").uniform(0, 0.02))
        log.note(process, what + 10, epoch)

    return step


def test_steps_streams_launches_and_hooks_are_in_order() -> None:
    # Rank 0: stream main with three programs and two steps, stream copy with one step. Rank 1: one process.
    shape = [(0, "main", 0, 2), (0, "main", 1, 2), (0, "main", 2, 2), (0, "copy", 0, 1), (1, "main", 0, 1)]
    log = Log(len(shape))
    processes = [
        Process(rank=rank, stream=stream, program=program, steps=tuple(noting(log, i, k) for k in range(steps)))
        for i, (rank, stream, program, steps) in enumerate(shape)
    ]
    hooks = {0: 0, 1: 4}

    def begin(rank: int, epoch: int) -> None:
        log.note(hooks[rank], BEGIN, epoch)
        time.sleep(0.01)
        log.note(hooks[rank], BEGIN + 10, epoch)

    def finish(rank: int, epoch: int) -> None:
        log.note(hooks[rank], FINISH, epoch)
        time.sleep(0.01)
        log.note(hooks[rank], FINISH + 10, epoch)

    run_processes(processes, launches=3, begin=begin, finish=finish, deadline_s=10, first_epoch=5)
    entries = log.entries()
    assert {one.epoch for one in entries} == {5, 6, 7}
    rank_0 = [one for one in entries if one.process < 4]
    main = [one for one in entries if one.process < 3]
    for epoch in (5, 6, 7):
        assert len(moments(main, what=0, epoch=epoch)) == 3
        assert max(moments(main, what=10, epoch=epoch)) < min(moments(main, what=1, epoch=epoch))
        begun = moments(rank_0, what=BEGIN + 10, epoch=epoch)[0]
        assert begun < min(moments(rank_0, what=0, epoch=epoch))
        done = moments(rank_0, what=11, epoch=epoch) + moments(rank_0, what=10, epoch=epoch)
        assert max(done) < moments(rank_0, what=FINISH, epoch=epoch)[0]
        assert epoch == 5 or moments(rank_0, what=FINISH + 10, epoch=epoch - 1)[0] < begun


def test_streams_of_a_rank_and_ranks_run_at_the_same_time() -> None:
    """Each process waits for a signal of the next one: in any sequence of processes, one would wait for ever."""
    counters = Arena(128).allocate((3,), torch.int32)

    def step(index: int) -> Callable[[int], None]:
        def run(epoch: int) -> None:
            counters[index] += 1
            wait_for(counters, epoch, stage=0, tile=0, channel=(index + 1) % 3)

        return run

    places = [(0, "main"), (0, "copy"), (1, "main")]
    processes = [Process(rank=rank, stream=name, program=0, steps=(step(i),)) for i, (rank, name) in enumerate(places)]
    run_processes(processes, launches=4, deadline_s=10)
    assert counters.tolist() == [4, 4, 4]


def test_a_program_without_part_in_a_step_keeps_its_place_in_the_order() -> None:
    log = Log(2)
    steps = [noting(log, 0, 0), noting(log, 0, 1), noting(log, 0, 2)]
    processes = [
        Process(rank=0, stream="main", program=0, steps=tuple(steps)),
        Process(rank=0, stream="main", program=1, steps=(None, noting(log, 1, 1), None)),
        Process(rank=1, stream="main", program=0, steps=()),
    ]
    run_processes(processes, launches=2, deadline_s=10)
    entries = log.entries()
    for epoch in (1, 2):
        mine = moments(entries, process=1, epoch=epoch)
        assert moments(entries, process=0, what=10, epoch=epoch)[0] < min(mine)
        assert max(mine) < moments(entries, process=0, what=2, epoch=epoch)[0]


def ring(count: int, launches: int, **options: object) -> RunReport:
    """`count` ranks that pass a token around in each launch: rank r waits for a signal of rank r - 1."""
    counters = Arena(count * 4 + 128).allocate((count,), torch.int32)

    def step(rank: int) -> Callable[[int], None]:
        def run(epoch: int) -> None:
            monitor.record("tile", 0, rank, 0, 0)
            if rank:
                wait_for(counters, epoch, stage=0, tile=rank, channel=rank)
            monitor.record("notify", 0, rank, (rank + 1) % count, (rank + 1) % count)
            counters[(rank + 1) % count] += 1
            if not rank:
                wait_for(counters, epoch, stage=0, tile=rank, channel=0)

        return run

    processes = [single(step(rank), rank=rank) for rank in range(count)]
    report = run_processes(processes, launches=launches, deadline_s=20, **options)  # type: ignore[arg-type]
    assert counters.tolist() == [launches] * count
    return report


def test_forty_processes_on_few_cores() -> None:
    before = children(), open_files()
    report = ring(40, 5)
    assert report.seconds < 20
    assert (children(), open_files()) == before


def test_traces_are_those_of_the_processes_in_order() -> None:
    report = ring(3, 2, trace=True, seed=3, max_delay_s=0.002)
    for rank, trace in enumerate(report.traces):
        assert [one.epoch for one in trace] == [1, 1, 1, 2, 2, 2]
        assert {one.tile for one in trace} == {rank}
        assert [one.kind for one in trace[:3]] == ["tile", *(["wait", "notify"] if rank else ["notify", "wait"])]
    assert report.traces[-1][1] == monitor.Event("wait", 0, 2, 2, 1, 0, 1)
    assert ring(3, 1).traces == ((), (), ())


def slept(seed: int | None) -> list[list[float]]:
    """The delays of two processes, as they asked for them."""
    log = Arena(1024).allocate((2, 8), torch.float64)

    def step(process: int) -> Callable[[int], None]:
        def run(epoch: int) -> None:
            for i in range(4):
                with pytest.MonkeyPatch.context() as patched:
                    patched.setattr(time, "sleep", partial(log[process].__setitem__, 4 * (epoch - 1) + i))
                    monitor.record("notify", 0, 0, 0, 0)

        return run

    processes = [Process(rank=0, stream="main", program=i, steps=(step(i),)) for i in range(2)]
    run_processes(processes, launches=2, deadline_s=5, seed=seed, max_delay_s=0.04)
    return log.tolist()


def test_delays_are_those_of_the_seed_for_each_process() -> None:
    for process, found in enumerate(slept(11)):
        delays = random.Random(f"11 0 main {process}")
        assert found == [delays.uniform(0, 0.04) for _ in range(8)]
    assert slept(None) == [[0.0] * 8] * 2


def test_arithmetic_in_processes_uses_one_thread_and_the_parent_keeps_its_own() -> None:
    threads = torch.get_num_threads()
    a = torch.ones(512, 512)
    torch.matmul(a, a)  # starts the parent's threads, which a child does not have
    b = np.ones((192, 192), dtype=np.float32)
    assert np.sum(b @ b) == 192**3
    out = Arena(1024).allocate((4, 2), torch.float64)

    def step(process: int) -> Callable[[int], None]:
        def run(epoch: int) -> None:
            assert torch.get_num_threads() == 1
            out[process, 0] = torch.matmul(a, a).double().mean()
            all_threads, this_thread = time.process_time(), time.thread_time()
            for _ in range(200):
                np.matmul(b, b)
            out[process, 1] = (time.process_time() - all_threads) / (time.thread_time() - this_thread)

        return run

    run_processes([single(step(i), rank=i) for i in range(4)], launches=1, deadline_s=10, timeout_s=30)
    assert out[:, 0].tolist() == [512.0] * 4
    assert out[:, 1].max() < 1.2, "NumPy's BLAS used more than one thread"
    assert torch.get_num_threads() == threads


def test_output_comes_once_and_exit_handlers_of_the_parent_do_not_run_in_processes() -> None:
    program = """
import atexit
from tilelink.runtime.cpu.processes import Process, run_processes
atexit.register(lambda: print("exit", flush=True))
print("parent")
step = lambda epoch: print(f"launch {epoch}")
run_processes([Process(rank=0, stream="main", program=0, steps=(step,))], launches=2, deadline_s=5)
"""
    with settings.environment(PYTHONUNBUFFERED=None):  # what is in a buffer must not come twice or be lost
        run = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (run.stdout.splitlines(), run.stderr) == (["parent", "launch 1", "launch 2", "exit"], "")


def test_processes_that_do_not_fit_together() -> None:
    one = Process(rank=0, stream="main", program=0, steps=(None,))
    with pytest.raises(ValueError, match="same rank, stream and program"):
        run_processes([one, one], launches=1, deadline_s=1)
    two = Process(rank=0, stream="main", program=1, steps=(None, None))
    with pytest.raises(ValueError, match="stream main of rank 0 differ in their number of steps"):
        run_processes([one, two], launches=1, deadline_s=1)
    with pytest.raises(ValueError, match="count from 1"):
        run_processes([one], launches=1, deadline_s=1, first_epoch=0)
    assert run_processes([], launches=1, deadline_s=1).traces == ()
