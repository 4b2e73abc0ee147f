"""Processes that fail: what the error says, how soon the others stop, and what stays (nothing)."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.runtime.process_helpers import alive, children, open_files, wait_for
from tilelink.device import monitor
from tilelink.errors import DeadlineError, RankError
from tilelink.runtime.cpu.arena import Arena
from tilelink.runtime.cpu.processes import Process, parent, run_processes
from tilelink.runtime.cpu.processes import run as run_module

ROOT = Path(__file__).resolve().parents[2]
NAMES = {0: "copy", 1: "gemm"}
SOON_S = 10.0  # far less than what would otherwise be waited for, far more than a busy machine needs


@pytest.fixture(autouse=True)
def nothing_stays() -> Generator[None]:
    """No process and no open file is left by any of these tests, and what was shared has no name to be left."""
    before = (children(), open_files())
    yield
    assert (children(), open_files()) == before
    assert "/dev/shm" not in Path("/proc/self/maps").read_text()


def processes_of(*steps: Callable[[int], None]) -> list[Process]:
    """One rank for each step."""
    return [Process(rank=rank, stream="main", program=0, steps=(step,)) for rank, step in enumerate(steps)]


def describe(stage: int, channel: int) -> tuple[str, str]:
    return NAMES[stage], f"xs channel {channel}"


def waits_for_ever(tile: int) -> Callable[[int], None]:
    counter = torch.ones(8, dtype=torch.int32)
    return lambda epoch: wait_for(counter, 2, stage=1, tile=tile, channel=3)


def boom(epoch: int) -> None:
    if epoch == 2:
        raise LookupError("no such thing")


def test_an_exception_reaches_the_parent_with_its_traceback_and_ends_the_others() -> None:
    start = time.monotonic()
    processes = processes_of(lambda epoch: None if epoch == 1 else waits_for_ever(0)(epoch), boom)
    with pytest.raises(RankError) as caught:
        run_processes(processes, launches=3, deadline_s=30)
    assert time.monotonic() - start < SOON_S
    error = caught.value
    assert (error.rank, error.stream, error.program) == (1, "main", 0)
    assert error.message.startswith(
        "rank 1 (main program 0) failed in step 0 of launch 2: LookupError: no such thing\n"
    )
    assert 'raise LookupError("no such thing")' in error.details and error.details.rstrip() in error.message


@pytest.mark.parametrize("hook", ["begin", "finish"])
def test_an_exception_in_a_hook(hook: str) -> None:
    def fails(rank: int, epoch: int) -> None:
        if (rank, epoch) == (1, 2):
            raise LookupError(hook)

    processes = processes_of(*[lambda epoch: None] * 3)
    begin, finish = (fails, None) if hook == "begin" else (None, fails)
    with pytest.raises(RankError, match=rf"rank 1 \(main program 0\) failed in the {hook} of launch 2: LookupError"):
        run_processes(processes, launches=3, deadline_s=30, begin=begin, finish=finish)


def test_the_first_failure_wins() -> None:
    def late(epoch: int) -> None:
        with pytest.raises(monitor.Aborted):  # by the other's failure
            waits_for_ever(0)(epoch)
        raise LookupError("late")

    def early(epoch: int) -> None:
        raise LookupError("early")

    with pytest.raises(RankError, match="early"):
        run_processes(processes_of(late, early, late), launches=1, deadline_s=30)


def test_a_process_that_leaves_python_is_no_success() -> None:
    with pytest.raises(RankError, match=r"rank 1 \(main program 0\) ended with status 5 in step 0 of launch 1"):
        run_processes(processes_of(waits_for_ever(0), lambda epoch: os._exit(5)), launches=1, deadline_s=30)
    with pytest.raises(RankError, match="SystemExit: 0"):
        run_processes(processes_of(lambda epoch: sys.exit(0)), launches=1, deadline_s=30)


def test_a_killed_process_is_named_and_nothing_stays() -> None:
    def killed(epoch: int) -> None:
        if "/dev/shm" not in Path("/proc/self/maps").read_text():
            os.kill(os.getpid(), signal.SIGKILL)

    start = time.monotonic()
    with pytest.raises(RankError) as caught:
        run_processes(processes_of(waits_for_ever(0), killed, waits_for_ever(0)), launches=1, deadline_s=30)
    assert time.monotonic() - start < SOON_S
    assert caught.value.message == "rank 1 (main program 0) was killed by SIGKILL in step 0 of launch 1"
    assert (caught.value.rank, caught.value.hint is not None) == (1, True)


def test_a_death_is_seen_although_another_process_holds_the_pipe() -> None:
    def killed(epoch: int) -> None:
        if os.fork() == 0:
            time.sleep(1.2 * SOON_S)
            os._exit(0)
        os.kill(os.getpid(), signal.SIGKILL)

    start = time.monotonic()
    with pytest.raises(RankError, match=r"rank 0 .* killed by SIGKILL"):
        run_processes(processes_of(killed), launches=1, deadline_s=30)
    assert time.monotonic() - start < SOON_S


def busy(epoch: int) -> None:
    while True:
        pass


def test_a_process_that_is_busy_when_another_fails_is_killed() -> None:
    start = time.monotonic()
    with pytest.raises(RankError, match="rank 1"):
        run_processes(processes_of(busy, lambda epoch: boom(2)), launches=1, deadline_s=30)
    assert time.monotonic() - start < SOON_S


def test_a_deadline_says_who_waits_for_what_and_what_the_others_do() -> None:
    late, early, waits = waits_for_ever(9), waits_for_ever(5), Arena(128).allocate((1,), torch.int32)

    def slow(epoch: int) -> None:
        time.sleep(20)

    def first(epoch: int) -> None:
        waits[0] = 1
        early(epoch)

    def second(epoch: int) -> None:
        while not int(waits[0]):
            time.sleep(0.01)
        time.sleep(1.2)
        late(epoch)

    processes = [
        Process(rank=0, stream="main", program=0, steps=(slow,)),
        Process(rank=1, stream="main", program=0, steps=(second,)),
        Process(rank=2, stream="main", program=0, steps=(first, None)),
        Process(rank=2, stream="main", program=1, steps=(None, None)),
    ]
    start = time.monotonic()
    with pytest.raises(DeadlineError) as caught:
        run_processes(processes, launches=1, deadline_s=2.5, describe=describe)
    assert time.monotonic() - start < SOON_S
    error = caught.value
    assert (error.rank, error.stage, error.tile, error.channel, error.seen, error.expected) == (2, 1, 5, 3, 1, 2)
    assert (error.stage_name, error.channel_name) == ("gemm", "xs channel 3")
    assert error.seconds is not None and 2.5 <= error.seconds < SOON_S
    assert error.message.startswith("rank 2 gemm tile 5 waits for xs channel 3: 1 of 2, after ")
    assert error.message.endswith("s in launch 1")
    assert error.waiting == (
        "rank 0 (main program 0) was busy in step 0 of launch 1",
        "rank 1 gemm tile 9 waits for xs channel 3: 1 of 2",
        "rank 2 (main program 1) waits for its stream after step 0",
    )
    assert all(line in str(error) for line in error.waiting)


def test_a_deadline_inside_errors_of_others_is_found() -> None:
    def wrapped(epoch: int) -> None:
        try:
            waits_for_ever(0)(epoch)
        except Exception as error:
            raise RuntimeError("the interpreter says") from error

    with pytest.raises(DeadlineError) as caught:
        run_processes(processes_of(wrapped), launches=1, deadline_s=0.1)
    assert caught.value.tile == 0


def test_computing_longer_than_the_deadline_is_no_failure() -> None:
    def busy(epoch: int) -> None:
        until = time.monotonic() + 0.6
        while time.monotonic() < until:
            pass

    processes = [
        Process(rank=0, stream="main", program=0, steps=(busy, None)),
        Process(rank=0, stream="main", program=1, steps=(None, None)),
    ]
    assert run_processes(processes, launches=1, deadline_s=0.1).seconds >= 0.6


def test_a_run_may_have_a_limit() -> None:
    start = time.monotonic()
    processes = [
        Process(rank=0, stream="main", program=0, steps=(lambda epoch: time.sleep(20), None)),
        Process(rank=0, stream="main", program=1, steps=(None, None)),
    ]
    with pytest.raises(DeadlineError, match=r"took more than 1.5 s") as caught:
        run_processes(processes, launches=1, deadline_s=30, timeout_s=1.5)
    assert time.monotonic() - start < SOON_S
    assert caught.value.waiting == (
        "rank 0 (main program 0) was busy in step 0 of launch 1",
        "rank 0 (main program 1) waits for its stream after step 0",
    )


def test_a_run_in_which_nothing_happens_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "QUIET_S", 2.0)

    def ticks(epoch: int) -> None:
        for _ in range(10):
            time.sleep(0.25)
            monitor.record("tile", 0, 0, 0, 0)

    run_processes(processes_of(ticks), launches=1, deadline_s=0.01)
    run_processes(processes_of(lambda epoch: time.sleep(0.25)), launches=10, deadline_s=0.01)
    monkeypatch.setattr(run_module, "QUIET_S", 0.3)
    with pytest.raises(DeadlineError, match=r"no program of any rank got any further for 0\.3 s"):
        run_processes(processes_of(lambda epoch: time.sleep(20)), launches=1, deadline_s=0.01)


def test_an_interrupt_of_the_parent_ends_everything() -> None:
    timer = threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    try:
        timer.start()
        start = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            run_processes(processes_of(*[waits_for_ever(0)] * 3), launches=1, deadline_s=30)
        timer.join()
        assert time.monotonic() - start < SOON_S
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("where", ["fork", "_reaped"])
def test_an_interrupt_that_another_thread_takes_loses_no_process(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes after a fork, before the child is known, or while children are ended: a mask would not hold it back."""
    ended = threading.Event()
    thread = threading.Thread(target=ended.wait)
    unchanged, sent = getattr(parent, where), list[float]()

    def interrupted(*args: Any, **options: Any) -> Any:
        result = unchanged(*args, **options)
        stopped = where == "fork" or args[0].stopped
        if result and stopped and not sent:  # 0 is the child after a fork, and one that still runs
            sent.append(time.monotonic())
            assert thread.ident
            signal.pthread_kill(thread.ident, signal.SIGINT)
            time.sleep(0.2)
        return result

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    monkeypatch.setattr(parent, where, interrupted)
    thread.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            run_processes(processes_of(lambda epoch: boom(2), busy, busy), launches=1, deadline_s=30)
        assert time.monotonic() - sent[0] < SOON_S
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == set()
    finally:
        signal.signal(signal.SIGINT, before)
        ended.set()
        thread.join()


def test_handlers_that_raise_nothing_run_while_processes_do() -> None:
    seen = Arena(128).allocate((1,), torch.int32)

    def until_seen(epoch: int) -> None:
        os.kill(os.getppid(), signal.SIGALRM)
        while not int(seen[0]):
            time.sleep(0.01)

    before = signal.signal(signal.SIGALRM, lambda number, frame: seen.fill_(number))
    try:
        run_processes(processes_of(until_seen), launches=1, deadline_s=30, timeout_s=SOON_S)
        assert int(seen[0]) == signal.SIGALRM
    finally:
        signal.signal(signal.SIGALRM, before)


def test_the_parent_alone_decides_on_ctrl_c_and_handlers_are_not_inherited() -> None:
    found = Arena(128).allocate((3,), torch.int32)

    def step(epoch: int) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        found[0] = signal.getsignal(signal.SIGINT) == signal.SIG_IGN
        found[1] = signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
        found[2] = not signal.pthread_sigmask(signal.SIG_BLOCK, ())

    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        run_processes(processes_of(step), launches=1, deadline_s=5)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert found.tolist() == [1, 1, 1]
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == set()


def test_processes_die_with_their_parent() -> None:
    program = """
import os, time
from tilelink.runtime.cpu.processes import Process, parent, run_processes
def step(epoch):
    os.write(1, b"%d\\n" % os.getpid())
    time.sleep(60)
run_processes([Process(rank=r, stream="main", program=0, steps=(step,)) for r in range(3)], launches=1, deadline_s=60)
"""
    with subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pids = [int(parent.stdout.readline()) for _ in range(3)]
        assert all(map(alive, pids))
        parent.kill()
        parent.wait(SOON_S)
        until = time.monotonic() + SOON_S
        while any(map(alive, pids)) and time.monotonic() < until:
            time.sleep(0.01)
        assert not any(map(alive, pids))


def test_a_thread_can_run_processes_while_another_does() -> None:
    failures: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(3):
                run_processes(processes_of(*[lambda epoch: None] * 3), launches=3, deadline_s=10, timeout_s=20)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for one in threads:
        one.start()
    for one in threads:
        one.join(30)
    assert failures == []
