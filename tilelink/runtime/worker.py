"""The process of a run on CPU ranks: reads a Job from stdin, forks the ranks, answers with their outputs.

Started by cpu.py as `python -m tilelink.runtime.worker PIPE PARENT`, with TRITON_INTERPRET=1.
"""

import ctypes
import os
import pickle
import signal
import sys
import traceback

from tilelink.errors import RankError, TileLinkError
from tilelink.runtime.job import Job, RunResult
from tilelink.runtime.launches import run_job

_PR_SET_PDEATHSIG = 1


def main(pipe: int, parent: int) -> int:
    """Runs the job on stdin and writes its RunResult or its error to `pipe`. Returns the exit status."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        return 1
    signal.signal(signal.SIGTERM, _interrupt)
    os.set_inheritable(pipe, False)
    try:
        answer: RunResult | TileLinkError = _answer(pickle.load(sys.stdin.buffer))
    except KeyboardInterrupt:
        return 130
    with open(pipe, "wb") as stream:
        pickle.dump(answer, stream, protocol=pickle.HIGHEST_PROTOCOL)
    return 0


def _answer(job: Job) -> RunResult | TileLinkError:
    try:
        return run_job(job)
    except TileLinkError as error:
        return error
    except Exception as error:
        summary = "".join(traceback.format_exception_only(error)).strip()
        return RankError(f"the run could not start: {summary}", details=traceback.format_exc())


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2])))
