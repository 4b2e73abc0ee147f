"""Callables in forked processes, as the programs, streams and launches of several ranks.

In each launch a process runs its steps. All processes of a stream finish step k before one of them starts step k + 1,
and all processes of a rank finish a launch before one of them starts the next. There is no barrier between ranks: the
signals of the steps order them.
"""

from tilelink.runtime.cpu.processes.run import run_processes
from tilelink.runtime.cpu.processes.values import Process, RunReport

__all__ = ["Process", "RunReport", "run_processes"]
