"""Parent of the processes of a run: forks them, reads their messages, stops them if one fails, and reaps all."""

import contextlib
import os
import pickle
import selectors
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import FrameType, TracebackType
from typing import Self

from tilelink.runtime.cpu.processes import child
from tilelink.runtime.cpu.processes.progress import SharedProgress
from tilelink.runtime.cpu.processes.threads import fork, single_thread
from tilelink.runtime.cpu.processes.values import Outcome, Run

GRACE_S = 1.0  # for processes to stop by themselves once one has failed
TICK_S = 0.1
_HELD_BACK = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGALRM})


@dataclass(kw_only=True)
class Child:
    """The operating system's process of process `index`, and its state.

    ended: time at which its end was seen; None while it runs. status: as waitpid gives it. stopped: True if the parent
    did not wait for its end. outcome: its last message; None if it sent none.
    """

    index: int
    pid: int
    pipe: int
    data: bytearray = field(default_factory=bytearray)
    ended: float | None = None
    status: int = 0
    reaped: bool = False
    stopped: bool = False
    outcome: Outcome | None = None

    @property
    def died(self) -> bool:
        """True if it ended by itself, without a message."""
        return self.outcome is None and self.ended is not None and not self.stopped

    @property
    def failed(self) -> bool:
        """True if it is to blame for something."""
        return self.died if self.outcome is None else self.outcome.kind in {"failed", "deadline"}


class Supervisor:
    """The processes of a run. When the context is left, all have ended and are reaped, whatever happened inside."""

    def __init__(self, run: Run, progress: SharedProgress) -> None:
        self._run = run
        self._progress = progress
        self._handlers = _Handlers()
        self.children: list[Child] = []

    def __enter__(self) -> Self:
        self._handlers.hold_back()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        try:
            for one in self.children:
                if one.ended is None:
                    one.stopped = True
                    self._end(one)
        finally:
            self._handlers.put_back()

    def start(self) -> None:
        """Fork all processes."""
        parent = os.getpid()
        child.flush_output()  # otherwise each child would print the buffered output again
        with single_thread():
            for index in range(len(self._run.processes)):
                self._handlers.run()
                self._start(index, parent)

    def _start(self, index: int, parent: int) -> None:
        read, write = os.pipe()
        os.set_blocking(read, False)
        # No handler of this process may run in the child.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, _HELD_BACK)
        try:
            pid = fork()
            if pid == 0:
                child.main(self._run, self._progress, index, pipe=write, parent=parent, mask=mask)
            self.children.append(Child(index=index, pid=pid, pipe=read))
        except OSError:
            os.close(read)
            raise
        finally:
            os.close(write)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def watch(self, limit_s: float | None, quiet_s: float) -> str | None:
        """Listen until every process has ended.

        After a failure the others have GRACE_S to stop. Return why the parent itself ended the run: it took more than
        limit_s, or for quiet_s no process gave a sign of life. Return None if it did not.
        """
        guard = _Guard(self._progress, limit_s, quiet_s)
        failed_at: float | None = None
        with selectors.DefaultSelector() as selector:
            for one in self.children:
                selector.register(one.pipe, selectors.EVENT_READ, one)
            while selector.get_map():
                self._handlers.run()
                ready = selector.select(TICK_S)
                for key, _ in ready:
                    self._receive(selector, key.data)
                if not ready:
                    self._sweep(selector)
                if failed_at is None and (guard.trips() or any(one.failed for one in self.children)):
                    failed_at = time.monotonic()
                    self._progress.abort()
                if failed_at is not None and time.monotonic() - failed_at > GRACE_S:
                    break
        return guard.reason

    def _receive(self, selector: selectors.BaseSelector, one: Child) -> None:
        if _read(one) == 0:
            selector.unregister(one.pipe)
            self._end(one, patience_s=GRACE_S)

    def _sweep(self, selector: selectors.BaseSelector) -> None:
        """End processes that died while a process forked elsewhere keeps their pipe open."""
        for key in list(selector.get_map().values()):
            if _reaped(key.data):
                while _read(key.data):
                    pass
                selector.unregister(key.fileobj)
                self._end(key.data)

    def _end(self, one: Child, patience_s: float = 0.0) -> None:
        """Reap a process, after a kill if it still runs after patience_s, and read its message."""
        until = time.monotonic() + patience_s
        while not _reaped(one):
            if time.monotonic() >= until:
                os.kill(one.pid, signal.SIGKILL)
                _reaped(one, block=True)
                break
            time.sleep(0.001)
        one.ended = time.monotonic()
        os.close(one.pipe)
        with contextlib.suppress(EOFError, pickle.UnpicklingError):
            one.outcome = pickle.loads(bytes(one.data))


class _Handlers:
    """Handlers of signals, which run where `run` is called: an error of one must not lose a child.

    It would, between a fork and the line that stores the child, or while children are ended.

    A mask of signals is not enough: the system gives a signal to any thread that does not block it, and Python runs its
    handler in the main thread.
    """

    def __init__(self) -> None:
        self._handlers: dict[int, Callable[[int, FrameType | None], object]] = {}
        self._came: list[tuple[int, FrameType | None]] = []

    def hold_back(self) -> None:
        """Note signals from here on, if this is the main thread: handlers run in no other one."""
        if threading.current_thread() is not threading.main_thread():
            return
        try:
            for number in _HELD_BACK:
                if callable(handler := signal.getsignal(number)):
                    self._handlers[number] = handler
                    signal.signal(number, self._note)
        except BaseException:  # a handler that was not held back yet
            self.put_back()
            raise

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._came.append((number, frame))

    def run(self) -> None:
        """Run the handlers of the signals that have come."""
        while self._came:
            number, frame = self._came.pop(0)
            self._handlers[number](number, frame)

    def put_back(self) -> None:
        """Let handlers run at once again, and run those of the signals that have come."""
        try:
            self._set()
        except BaseException:  # one that is in its place again, while others are not
            self._set()
            raise
        self.run()

    def _set(self) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)


class _Guard:
    """Ends a run that takes too long or makes no progress."""

    def __init__(self, progress: SharedProgress, limit_s: float | None, quiet_s: float) -> None:
        self._progress = progress
        self._limit_s = limit_s
        self._quiet_s = quiet_s
        self._start = self._moved = time.monotonic()
        self._beats = 0
        self.reason: str | None = None

    def trips(self) -> bool:
        now, beats = time.monotonic(), self._progress.beats()
        if beats != self._beats:
            self._beats, self._moved = beats, now
        if self._limit_s is not None and now - self._start > self._limit_s:
            self.reason = f"the run took more than {self._limit_s:g} s"
        elif now - self._moved > self._quiet_s:
            self.reason = f"no program of any rank got any further for {self._quiet_s:g} s"
        return self.reason is not None


def _read(one: Child) -> int | None:
    """Read what is in the pipe. Return the number of bytes: 0 at its end, None if there are none for now."""
    try:
        chunk = os.read(one.pipe, 1 << 16)
    except BlockingIOError:
        return None
    one.data += chunk
    return len(chunk)


def _reaped(one: Child, *, block: bool = False) -> bool:
    if not one.reaped:
        try:
            pid, one.status = os.waitpid(one.pid, 0 if block else os.WNOHANG)
        except ChildProcessError:
            pid = one.pid  # it was reaped elsewhere, so its status is unknown
        one.reaped = pid != 0
    return one.reaped
