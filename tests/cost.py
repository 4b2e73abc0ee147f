"""CPU seconds of tests: what a default run may take, and one test of it, on a machine that may be busy.

A default run is to take eight minutes on two cores with nothing beside it. On a busy machine its minutes say nothing,
and its CPU seconds say more. They are those of the workers and of all processes that tests start: ranks, commands, and
servers that stay. conftest.py measures them, and says at the end of a run what it took, and what of that is too much.
Nothing fails for it: processors differ, and two workers that share a core take more of its seconds.
"""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

BUDGET_S = 2 * 8 * 60.0
"""CPU seconds of a default run."""
LIMIT_S = 40.0
"""CPU seconds of one test of it. The first one that needs it starts a server, which imports torch."""
GPUS = Path("/dev/nvidia0").exists()
"""Where there are any, their tests are in what a run takes, and it has no budget."""
LISTED = 10
"""How many tests of a run that took too much are named."""


def cpu_seconds(process: int | None = None) -> float:
    """Return what a process, this one if None, and all that it started have used, but for what was left alone."""
    folder = Path("/proc") / str(process or os.getpid())
    if not folder.exists():  # it has just ended, or this is no Linux
        return 0.0 if process else sum(os.times()[:4])
    try:
        used = (folder / "stat").read_text().rpartition(")")[2].split()[11:15]  # own, and of children that were awaited
        started = [int(one) for thread in folder.glob("task/*/children") for one in thread.read_text().split()]
    except OSError:
        return 0.0
    return sum(map(int, used)) / os.sysconf("SC_CLK_TCK") + sum(map(cpu_seconds, started))


def dearest(costs: Mapping[str, float]) -> dict[str, float]:
    """Return the tests that have cost most, the dearest first."""
    return dict(sorted(costs.items(), key=lambda one: -one[1])[:LISTED])


def exceeded(total: float, costs: Mapping[str, float], whole: bool) -> Iterator[str]:
    """Yield what of a run took more than it may. whole: it is all of the default tier."""
    for name, seconds in costs.items():
        if seconds > LIMIT_S:
            yield f"{name} took {seconds:.0f} CPU s, and a test of the default tier may take {LIMIT_S:.0f}"
    if whole and total > BUDGET_S:
        dear = "".join(f"\n  {seconds:6.1f}  {name}" for name, seconds in costs.items())
        yield f"the tests took {total:.0f} CPU s, and a default run may take {BUDGET_S:.0f}; the dearest:{dear}"
