"""CPU ranks: runs generated kernels in Triton's interpreter, in separate processes.

Triton decides at its import if kernels are interpreted, and ranks are forked. So another Python process
(fork_server.py) imports it once, and forks a worker (worker.py) for each run, which forks the ranks. The caller's
process keeps its Triton, its threads and its memory.
"""

import atexit
import contextlib
import fcntl
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import BinaryIO

from tilelink.errors import CallError, RankError
from tilelink.runtime.cpu.request import LENGTH, LOST, NEW, NUMBER, Pipes, ProcessEnvironment
from tilelink.runtime.job import Job, RunResult, pickled

MODULE = "tilelink.runtime.cpu.fork_server"
PATIENCE_S = 5.0  # for a process to end after it was asked to
CHUNK = 1 << 20


class _Traceback(Exception):
    """The traceback of another process, which cannot send its own."""


def run_cpu(job: Job) -> RunResult:
    """Run all launches of a job and return their outputs.

    Raises RankError with the traceback of the rank that failed first. Raises CallError, with that as its cause, if the
    failure was in a function that the program calls. Raises DeadlineError for the first wait that exceeds its deadline.
    On return or exception all processes of the run have ended and no shared memory is left.
    """
    data = [pickled(one) for one in (ProcessEnvironment.here(), job)]
    with _worker() as worker:
        result = pickle.loads(worker.do(data))
    if isinstance(result, CallError):
        raise result from _Traceback(result.details)
    if isinstance(result, BaseException):
        raise result
    return result


class ForkServer:
    """The process that forks workers for this one. It is started on first use, and restarted if it has ended."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None

    def worker(self, pipes: Pipes) -> int:
        """Return the process of a new worker. Raises RankError if none can be started."""
        for _ in range(2):  # a server that was idle for long has ended, which only a request reveals
            with self._lock:
                self._ensure()
            process = self.ask(NEW, pipes)
            if process is not None:
                return process
        raise RankError("the process that starts CPU ranks does not run", hint="it wrote to stderr what is wrong")

    def ask(self, number: int, descriptors: Sequence[int] = ()) -> int | None:
        """Return the reply to a request, or None if the server is gone."""
        with self._lock:
            if self._socket is None:
                return None
            try:
                socket.send_fds(self._socket, [NUMBER.pack(number)], descriptors)
                reply = self._socket.recv(NUMBER.size)
            except ConnectionError:
                reply = b""
            except BaseException:
                self._end()  # a late reply would be taken for the reply to the next request
                raise
            if len(reply) == NUMBER.size:
                return NUMBER.unpack(reply)[0]
            self._end()
            return None

    def _ensure(self) -> None:
        if self._socket is not None:
            return
        own, other = (socket.socket(fileno=_high(one.detach())) for one in socket.socketpair())
        try:
            with other:
                process = _start(other.fileno())
            self._process, self._socket = process, own
        except BaseException:  # a server that was started nevertheless ends when the socket is closed
            self._process = self._socket = None
            own.close()
            raise

    def _end(self) -> None:
        # If this is interrupted, the next run still finds a consistent state.
        process, own = self._process, self._socket
        self._process = self._socket = None
        if own is not None:
            own.close()
        if process is not None:
            try:
                process.wait(PATIENCE_S)
            except BaseException as error:
                process.kill()
                process.wait()
                if not isinstance(error, subprocess.TimeoutExpired):
                    raise

    def end(self) -> None:
        """End the server and the workers that still run."""
        with self._lock:
            self._end()

    def forget(self) -> None:
        """Forget the server in a process forked from this one, which starts its own if it needs one."""
        if self._socket is not None:
            self._socket.close()
        if self._process is not None:
            self._process.returncode = 0  # only the parent may wait for it
        self.__init__()


def _start(number: int) -> subprocess.Popen[bytes]:
    """Start a fork server on the socket of that descriptor. It imports nothing from the caller's working directory."""
    here = ProcessEnvironment.here()
    variables = {"TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(here.path), "PYTHONSAFEPATH": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", MODULE, str(number)], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=None if _is_open(2) else subprocess.DEVNULL, pass_fds=(number,), env=here.variables | variables, cwd="/",
    )  # fmt: skip


FORK_SERVER = ForkServer()
os.register_at_fork(after_in_child=FORK_SERVER.forget)
atexit.register(FORK_SERVER.end)


@dataclass(kw_only=True)
class _Worker:
    """A worker: its process, the pipe for its job and the pipe for its answer.

    life: a descriptor that becomes readable when the process has ended; None if the system has none.
    """

    process: int
    job: BinaryIO
    answer: BinaryIO
    life: int | None = None
    ended: bool = False

    def do(self, data: Sequence[bytes]) -> bytes:
        """Return its answer to a job, after it has ended. Raises RankError if it gave none."""
        with contextlib.suppress(BrokenPipeError), self.job as pipe:
            pipe.writelines(data)
        reply = self._reply()
        self.ended = True
        status = FORK_SERVER.ask(self.process)
        if reply is None:
            hint = "stderr has what it wrote; SIGKILL is mostly a lack of memory: smaller sizes, fewer ranks or buffers"
            raise RankError(f"the process of the CPU ranks {_end(status)} before it answered", hint=hint)
        return reply

    def _reply(self) -> bytes | None:
        """Return its answer, or None if it ended before the answer was complete."""
        length = self._read(LENGTH.size)
        return None if length is None else self._read(LENGTH.unpack(length)[0])

    def _read(self, size: int) -> bytes | None:
        data = bytearray()
        while len(data) < size and (more := self._said(None, size - len(data))):
            data += more
        return bytes(data) if len(data) == size else None

    def _said(self, milliseconds: float | None, most: int) -> bytes | None:
        """Return bytes of its answer.

        They are empty if no process is left that could write more. Return None if no bytes came in that time. A process
        that another thread forked may hold the pipe open long after the worker has ended, so the end of the pipe is not
        the only condition.
        """
        poll = select.poll()
        for one in filter(None, (self.answer.fileno(), self.life)):
            poll.register(one, select.POLLIN)
        ready = [one for one, _ in poll.poll(milliseconds)]
        if self.answer.fileno() in ready:
            return os.read(self.answer.fileno(), min(most, CHUNK))
        return b"" if ready else None

    def end(self) -> None:
        """End a process that still runs, which happens only if its caller was interrupted."""
        for number in () if self.ended else (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process, number)
            if self._silent(PATIENCE_S):
                FORK_SERVER.ask(self.process)
                return

    def _silent(self, seconds: float) -> bool:
        """True if within that time no process is left that could answer."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            if self._said(1000 * left, CHUNK) == b"":
                return True
        return False


@contextmanager
def _worker() -> Generator[_Worker]:
    """Start a worker that waits for a job. When the context is left, its descriptors are closed and it has ended."""
    with ExitStack() as own:
        with ExitStack() as others:
            theirs, job = _pipe(others, own)
            answer, given = _pipe(own, others)
            pipes = Pipes(
                job=theirs.fileno(), answer=given.fileno(), stdout=_output(1, others), stderr=_output(2, others),
                folder=_folder(others),
            )  # fmt: skip
            worker = _Worker(process=FORK_SERVER.worker(pipes), job=job, answer=answer)
        worker.life = _life(worker.process, own)
        try:
            yield worker
        finally:
            worker.end()


def _pipe(read: ExitStack, write: ExitStack) -> tuple[BinaryIO, BinaryIO]:
    """Return the ends of a pipe, which the stacks close."""
    source, sink = map(_high, os.pipe())
    return read.enter_context(open(source, "rb")), write.enter_context(open(sink, "wb"))


def _output(number: int, stack: ExitStack) -> int:
    """Return the descriptor of this process's output, or of the null device if it has none."""
    return number if _is_open(number) else _opened(os.devnull, os.O_WRONLY, stack)


def _folder(stack: ExitStack) -> int:
    """Return a descriptor of this process's working directory, which may have been deleted."""
    return _opened(".", os.O_RDONLY | os.O_DIRECTORY, stack)


def _life(process: int, stack: ExitStack) -> int | None:
    """Return a descriptor that becomes readable when a process has ended, or None on systems without."""
    try:
        descriptor = _high(os.pidfd_open(process))
    except (AttributeError, OSError):
        return None
    stack.callback(os.close, descriptor)
    return descriptor


def _opened(path: str, flags: int, stack: ExitStack) -> int:
    descriptor = _high(os.open(path, flags))
    stack.callback(os.close, descriptor)
    return descriptor


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
        return True
    except OSError:
        return False


def _end(status: int | None) -> str:
    """Return how a process ended, as a verb. status: as `os.waitpid` has it; None or LOST if it is not known."""
    if status in (None, LOST):
        return "is gone"
    code = os.waitstatus_to_exitcode(status)
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"


def _high(descriptor: int) -> int:
    """Duplicate a descriptor to a number above the standard streams', which this process may have closed."""
    if descriptor > 2:
        return descriptor
    try:
        return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 3)
    finally:
        os.close(descriptor)
