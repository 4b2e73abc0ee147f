"""Runs callables in forked processes, as the programs, streams and launches of several ranks.

A lane is a process. In each launch it runs its steps; all lanes of a stream finish step k before one starts step
k + 1, and all lanes of a rank finish a launch before one starts the next. Ranks do not wait for each other here: that
is what the steps' own signals are for.
"""

from tilelink.runtime.cpu.processes.run import run_lanes
from tilelink.runtime.cpu.processes.values import Lane, RunReport

__all__ = ["Lane", "RunReport", "run_lanes"]
