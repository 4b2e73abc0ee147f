"""CPU ranks: runs generated kernels in Triton's interpreter, in a process of their own.

Triton decides at its import whether kernels are interpreted, and ranks are forked; so a fresh Python process does
both, and the caller's process keeps its Triton, its threads and its memory.
"""

import contextlib
import os
import pickle
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager

from tilelink.errors import CallError, RankError
from tilelink.runtime.job import Job, RunResult
from tilelink.settings import environment

WORKER = "tilelink.runtime.worker"
PATIENCE_S = 5.0  # for a worker that was asked to end


class _Traceback(Exception):
    """The traceback of another process, which cannot send its own."""


def run_cpu(job: Job) -> RunResult:
    """Runs all launches of a job and returns their outputs.

    Raises RankError with the traceback of the rank that failed first, CallError, with that as its cause, where it was
    in a function that the program calls, DeadlineError for the first wait that outlived its deadline. When it returns
    or raises, all processes have ended and no shared memory is left.
    """
    data = pickle.dumps(job, protocol=pickle.HIGHEST_PROTOCOL)
    with _worker() as (process, answer):
        with contextlib.suppress(BrokenPipeError), process.stdin as pipe:  # pyright: ignore[reportOptionalContextManager]
            pipe.write(data)
        with open(answer, "rb") as pipe:
            reply = pipe.read()
        status = process.wait()
    if not reply:
        raise RankError(f"the process of the CPU ranks ended with status {status} and without a word")
    result = pickle.loads(reply)
    if isinstance(result, CallError):
        raise result from _Traceback(result.details)
    if isinstance(result, BaseException):
        raise result
    return result


@contextmanager
def _worker() -> Generator[tuple[subprocess.Popen[bytes], int]]:
    """A worker that waits for a job on its stdin, and the pipe of its answer."""
    read, write = os.pipe()
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    try:
        with environment(TRITON_INTERPRET="1", PYTHONPATH=path):
            command = [sys.executable, "-m", WORKER, str(write), str(os.getpid())]
            process = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=(write,))
    except BaseException:
        os.close(read)
        raise
    finally:
        os.close(write)
    try:
        yield process, read
    finally:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends a worker that still runs, which happens only when its caller was interrupted."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
