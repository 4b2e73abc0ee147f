"""The process of a run on CPU ranks: reads a Job from a pipe, forks the ranks, answers with their outputs.

fork_server.py forks it. It behaves as if its caller had started it, with the caller's environment variables, working
directory and output.
"""

import ctypes
import os
import pickle
import signal
import traceback
from typing import BinaryIO

from tilelink.errors import RankError, TileLinkError
from tilelink.runtime.cpu.launches import run_job
from tilelink.runtime.cpu.request import LENGTH, Pipes
from tilelink.runtime.job import RunResult, pickled

_PR_SET_PDEATHSIG = 1


def main(pipes: Pipes, fork_server: int) -> int:
    """Run the job from one pipe and write its RunResult or its error to another. Return the exit status."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != fork_server:
        return 1
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, _interrupt)
    os.dup2(pipes.stdout, 1)
    os.dup2(pipes.stderr, 2)
    os.fchdir(pipes.folder)
    try:
        with open(pipes.job, "rb") as stream:
            answer = _answer(stream)
        data = pickled(answer)
        with open(pipes.answer, "wb") as stream:
            stream.writelines((LENGTH.pack(len(data)), data))
    except KeyboardInterrupt:
        return 130
    return 0


def _answer(stream: BinaryIO) -> RunResult | TileLinkError:
    """Return the answer to a job. stream: the caller's ProcessEnvironment and then the Job."""
    try:
        pickle.load(stream).enter()
        return run_job(pickle.load(stream))
    except TileLinkError as error:
        return error
    except MemoryError as error:
        return RankError(f"the run could not start: {error}", hint="take smaller sizes, or fewer ranks or buffers")
    except Exception as error:
        summary = "".join(traceback.format_exception_only(error)).strip()
        hint = "the traceback ends at what failed: importing a module that is called, or a generated one, say"
        return RankError(f"the run could not start: {summary}", details=traceback.format_exc(), hint=hint)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt
