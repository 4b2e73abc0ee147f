"""Processes that rate points beside the search, which asks them for what is proposed together.

They are forked from the search when it has taken a while: short ones do not pay for them, and programs, knobs and cost
models need not be pickled. A point goes to one of them, and what it says comes back. A search has none in a process of
`multiprocessing`, in another thread than the main one, and where CUDA or a group of ranks was used before.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from typing import Any

MOST = 16
"""Processes at most: `sampling` and `exhaustive` propose as many points together, others mostly fewer."""
_PR_SET_PDEATHSIG = 1
_rate: Callable[..., Any] | None = None
"""In one of the processes: what it does with a point."""


def available() -> int:
    """Return how many processes a search may have, this one alone if it must not fork."""
    torch: Any = sys.modules.get("torch")
    groups = torch.distributed if torch is not None and torch.distributed.is_available() else None
    begun = (torch is not None and torch.cuda.is_initialized()) or (groups is not None and groups.is_initialized())
    inside = multiprocessing.parent_process() or threading.current_thread() is not threading.main_thread()
    if begun or inside or sys.platform != "linux":
        return 1
    return min(MOST, len(os.sched_getaffinity(0)))


def forked(count: int, rate: Callable[..., Any]) -> ProcessPoolExecutor:
    """Return processes that answer what `rate` returns in them."""
    context = multiprocessing.get_context("fork")
    return ProcessPoolExecutor(count, context, _begin, (rate, os.getpid()))


def asked(pool: ProcessPoolExecutor, *about: Any) -> Future[Any]:
    """Return what one of the processes will answer."""
    with warnings.catch_warnings():  # of the threads of a command that says how far it is, which is not forked
        warnings.simplefilter("ignore", DeprecationWarning)
        return pool.submit(_answer, *about)


def kill(pool: ProcessPoolExecutor) -> None:
    """Kill a pool's processes in any state."""
    left = list((getattr(pool, "_processes", None) or {}).values())
    pool.shutdown(wait=False, cancel_futures=True)
    for process in left:
        process.kill()


def _begin(rate: Callable[..., Any], parent: int) -> None:
    global _rate
    _rate = rate
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the search, which ends this process
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)  # it ended before it was watched


def _answer(*about: Any) -> Any:
    assert _rate is not None
    return _rate(*about)
