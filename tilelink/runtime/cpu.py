"""CPU ranks: runs generated kernels in Triton's interpreter, in processes of their own.

Triton decides at its import whether kernels are interpreted, and ranks are forked; so another Python process
(starter.py) imports it once, and forks a worker (worker.py) for each run, which forks the ranks. The caller's process
keeps its Triton, its threads and its memory.
"""

import atexit
import contextlib
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
from tilelink.runtime.job import Job, RunResult
from tilelink.runtime.request import NEW, NUMBER, Pipes, Surroundings
from tilelink.settings import environment

MODULE = "tilelink.runtime.starter"
PATIENCE_S = 5.0  # for a process that was asked to end


class _Traceback(Exception):
    """The traceback of another process, which cannot send its own."""


def run_cpu(job: Job) -> RunResult:
    """Runs all launches of a job and returns their outputs.

    Raises RankError with the traceback of the rank that failed first, CallError, with that as its cause, where it was
    in a function that the program calls, DeadlineError for the first wait that outlived its deadline. When it returns
    or raises, all processes of the run have ended and no shared memory is left.
    """
    data = [pickle.dumps(one, protocol=pickle.HIGHEST_PROTOCOL) for one in (Surroundings.here(), job)]
    with _worker() as worker:
        result = pickle.loads(worker.do(data))
    if isinstance(result, CallError):
        raise result from _Traceback(result.details)
    if isinstance(result, BaseException):
        raise result
    return result


class Starter:
    """The process that forks workers for this one: started when one is needed, and anew where it has ended."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None

    def worker(self, pipes: Pipes) -> int:
        """The process of a new worker. Raises RankError if there is none to be had."""
        for _ in range(2):  # one that was idle for long has ended, which a request finds out
            with self._lock:
                self._ensure()
            process = self.ask(NEW, pipes)
            if process is not None:
                return process
        raise RankError("the process that starts CPU ranks does not run", hint="it wrote to stderr what is wrong")

    def ask(self, number: int, descriptors: Sequence[int] = ()) -> int | None:
        """The reply to a request; None if there is nobody who replies."""
        with self._lock:
            if self._socket is None:
                return None
            try:
                socket.send_fds(self._socket, [NUMBER.pack(number)], descriptors)
                reply = self._socket.recv(NUMBER.size)
            except ConnectionError:
                reply = b""
            except BaseException:
                self._end()  # what it would reply now would be taken for the reply to the next request
                raise
            if len(reply) == NUMBER.size:
                return NUMBER.unpack(reply)[0]
            self._end()
            return None

    def _ensure(self) -> None:
        if self._process is not None:
            return
        own, other = socket.socketpair()
        path = os.pathsep.join(Surroundings.here().path)
        try:
            with other, environment(TRITON_INTERPRET="1", PYTHONPATH=path):
                command = [sys.executable, "-m", MODULE, str(other.fileno())]
                nothing = subprocess.DEVNULL
                self._process = subprocess.Popen(command, stdin=nothing, stdout=nothing, pass_fds=(other.fileno(),))
        except BaseException:
            own.close()
            raise
        self._socket = own

    def _end(self) -> None:
        if self._socket is not None:
            self._socket.close()
        if self._process is not None:
            try:
                self._process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._process = self._socket = None

    def end(self) -> None:
        """Ends it, and with it the workers that still run."""
        with self._lock:
            self._end()

    def forget(self) -> None:
        """Called in a process that was forked from this one, and has a starter of its own when it needs one."""
        if self._socket is not None:
            self._socket.close()
        if self._process is not None:
            self._process.returncode = 0  # it is not for this process to wait for
        self.__init__()


STARTER = Starter()
os.register_at_fork(after_in_child=STARTER.forget)
atexit.register(STARTER.end)


@dataclass(kw_only=True)
class _Worker:
    """A worker: its process, and where it takes its job and gives its answer."""

    process: int
    job: BinaryIO
    answer: BinaryIO
    ended: bool = False

    def do(self, data: Sequence[bytes]) -> bytes:
        """Its answer to a job, once it has ended. Raises RankError if it gave none."""
        with contextlib.suppress(BrokenPipeError), self.job as pipe:
            pipe.writelines(data)
        reply = self.answer.read()
        self.ended = True
        status = STARTER.ask(self.process)
        if not reply:
            raise RankError(f"the process of the CPU ranks ended with status {status} and without a word")
        return reply

    def end(self) -> None:
        """Ends one that still runs, which happens only when its caller was interrupted."""
        for number in () if self.ended else (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process, number)
            if self._silent(PATIENCE_S):
                STARTER.ask(self.process)
                return

    def _silent(self, seconds: float) -> bool:
        """Whether within so many seconds nobody is left who could answer."""
        poll, until = select.poll(), time.monotonic() + seconds
        poll.register(self.answer)
        while (left := until - time.monotonic()) > 0:
            if poll.poll(1000 * left) and not os.read(self.answer.fileno(), 1 << 16):
                return True
        return False


@contextmanager
def _worker() -> Generator[_Worker]:
    """A worker that waits for a job. All that it was given is closed behind it, and it has ended."""
    with ExitStack() as own:
        with ExitStack() as others:
            theirs, job = _pipe(others, own)
            answer, given = _pipe(own, others)
            pipes = Pipes(
                job=theirs.fileno(), answer=given.fileno(), stdout=_output(1, others), stderr=_output(2, others),
                folder=_folder(others),
            )  # fmt: skip
            worker = _Worker(process=STARTER.worker(pipes), job=job, answer=answer)
        try:
            yield worker
        finally:
            worker.end()


def _pipe(read: ExitStack, write: ExitStack) -> tuple[BinaryIO, BinaryIO]:
    """The ends of a pipe, which the stacks close."""
    source, sink = os.pipe()
    return read.enter_context(open(source, "rb")), write.enter_context(open(sink, "wb"))


def _output(number: int, stack: ExitStack) -> int:
    """The descriptor of this process's output, or of nothing where it has none."""
    try:
        os.fstat(number)
        return number
    except OSError:
        return stack.enter_context(open(os.devnull, "wb")).fileno()


def _folder(stack: ExitStack) -> int:
    """A descriptor of this process's folder, which may have no name any more."""
    descriptor = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
    stack.callback(os.close, descriptor)
    return descriptor
