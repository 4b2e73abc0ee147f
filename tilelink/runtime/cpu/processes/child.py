"""The operating system's process of one `Process`: from the fork to its exit."""

import contextlib
import ctypes
import gc
import os
import pickle
import signal
import sys
import time
import traceback
from collections.abc import Iterable, Iterator
from typing import NoReturn

import numpy as np

from tilelink.device import monitor, network
from tilelink.errors import DeadlineError
from tilelink.runtime.cpu.processes.progress import (
    ARRIVED,
    AT_BEGIN,
    AT_FINISH,
    AT_JOIN,
    BEGUN,
    EPOCH,
    JOINED,
    PLACE,
    SharedProgress,
)
from tilelink.runtime.cpu.processes.values import Outcome, Process, Run
from tilelink.runtime.cpu.user_failures import called

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)


def main(run: Run, progress: SharedProgress, index: int, *, pipe: int, parent: int, mask: Iterable[int]) -> NoReturn:
    """Run process `index` and write its Outcome to `pipe`. Never return.

    parent: the process that forked it. mask: signals to be blocked.
    """
    code = 1
    try:
        _detach(parent, mask)
        with np.errstate(all="ignore"):  # as on a GPU; processes without a tile compute with undefined values
            outcome = _Execution(run, progress, index).outcome()
        _write(pipe, pickle.dumps(outcome))
        code = 0
    except BrokenPipeError:
        pass  # the parent has ended, so no process would read a message
    except BaseException:
        traceback.print_exc()
    finally:
        # Not sys.exit: it would run exit handlers that the parent has registered for itself.
        flush_output()
        os._exit(code)


def _detach(parent: int, mask: Iterable[int]) -> None:
    """Detach from what a fork inherits: end with `parent`, leave Ctrl-C to it, and handle no signals."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)  # it ended before it was watched
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    gc.freeze()  # do not collect the parent's garbage a second time


def flush_output() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):
            stream.flush()


class _Execution:
    """The launches of one process."""

    def __init__(self, run: Run, progress: SharedProgress, index: int) -> None:
        self._run = run
        self._progress = progress
        self._index = index
        self._process = process = run.processes[index]
        self._rank = [i for i, other in enumerate(run.processes) if other.rank == process.rank]
        self._stream = [i for i in self._rank if run.processes[i].stream == process.stream]
        self._first = self._rank[0]
        self._barriers = 0
        self._monitor = _monitor(run, progress, index, process)

    def outcome(self) -> Outcome:
        """Run all launches. A failure is reported to the parent, which stops the others."""
        monitor.install(self._monitor)
        seed = f"{self._run.seed or 0} {self._process.rank} {self._process.stream} {self._process.program}"
        network.install(network.Network(seed, self._run.max_delay_s if self._run.seed is not None else 0.0))
        try:
            for epoch in self._run.epochs:
                self._launch(epoch)
            network.installed().quiet()  # announcements of the last launch
        except BaseException as error:
            return self._explained(error)
        events, spans = tuple(self._monitor.events), tuple(self._monitor.spans)
        return Outcome(kind="done", moment=time.monotonic(), events=events, spans=spans)

    def _launch(self, epoch: int) -> None:
        self._monitor.epoch = epoch
        self._progress.put(self._index, EPOCH, epoch)
        self._begin(epoch)
        for number, step in enumerate(self._process.steps):
            if number:
                self._barrier(number - 1)
            self._at(number)
            if step is not None:
                step(epoch)
        self._join(epoch)

    def _begin(self, epoch: int) -> None:
        self._at(AT_BEGIN)
        if self._index != self._first:
            self._until([self._first], BEGUN, epoch, f"the begin of launch {epoch}")
            return
        if self._run.begin is not None:
            self._run.begin(self._process.rank, epoch)
        self._progress.put(self._index, BEGUN, epoch)

    def _join(self, epoch: int) -> None:
        self._at(AT_JOIN)
        self._progress.put(self._index, JOINED, epoch)
        if self._index != self._first:
            return  # the next begin, which it waits for, comes after the finish
        self._until(self._rank, JOINED, epoch, f"its rank at the end of launch {epoch}")
        self._at(AT_FINISH)
        if self._run.finish is not None:
            self._run.finish(self._process.rank, epoch)

    def _barrier(self, step: int) -> None:
        """Wait until all processes of the stream have done `step`."""
        self._barriers += 1
        self._progress.put(self._index, ARRIVED, self._barriers)
        self._until(self._stream, ARRIVED, self._barriers, f"its stream after step {step}")

    def _until(self, processes: list[int], word: int, value: int, what: str) -> None:
        """Wait without a limit: a computing process is not late, and a wait for a counter has its own deadline."""
        pause = monitor.Pause()
        while any(self._progress.get(process, word) < value for process in processes):
            if self._progress.aborted():
                raise monitor.Aborted(f"{self._process} waits for {what}")
            pause()

    def _at(self, place: int) -> None:
        if self._progress.aborted():
            raise monitor.Aborted
        self._progress.put(self._index, PLACE, place)
        self._progress.beat(self._index)

    def _explained(self, error: BaseException) -> Outcome:
        moment, where = time.monotonic(), self._progress.place(self._index)
        for cause in _causes(error):
            if isinstance(cause, monitor.Aborted):
                return Outcome(kind="aborted", moment=moment, where=where, waiting=cause.waiting, wait=cause.wait)
            if isinstance(cause, DeadlineError):
                return Outcome(kind="deadline", moment=moment, where=where, error=cause)
        summary = "".join(traceback.format_exception_only(error)).strip()
        details = "".join(traceback.format_exception(error))
        theirs = called(error)
        return Outcome(kind="failed", moment=moment, where=where, summary=summary, details=details, called=theirs)


def _monitor(run: Run, progress: SharedProgress, index: int, process: Process) -> monitor.Monitor:
    return monitor.Monitor(
        rank=process.rank,
        process=f"{process.stream} {process.program}",
        deadline_s=run.deadline_s,
        seed=run.seed,
        max_delay_s=run.max_delay_s,
        trace=run.trace,
        describe=run.describe,
        aborted=progress.aborted,
        beat=lambda: progress.beat(index),
    )


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield the error and its causes, which Triton's interpreter wraps in its own errors."""
    found: BaseException | None = error
    while found is not None:
        yield found
        found = found.__cause__ or found.__context__


def _write(pipe: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(pipe, rest) :]
