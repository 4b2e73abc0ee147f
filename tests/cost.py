"""CPU seconds of tests: what a default run may take, and one test of it, on a machine that may be busy.

A default run is to take eight minutes on two cores with nothing beside it. On a busy machine its minutes say nothing,
and its CPU seconds say more. They are those of the workers and of all processes that tests start: ranks, commands, and
servers that stay. conftest.py measures them, and says at the end of a run what it took, and what of that is too much.

Processors differ, and two workers that share a core take more of its seconds. So a short loop is timed now and then
while tests run, and their seconds are divided by how many times as long it takes as where the budgets were set.
Where CI=true, a run fails for one test that takes too much, and for a whole that takes SLACK times its budget.
"""

import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

BUDGET_S = 2 * 8 * 60.0
"""CPU seconds of a default run, as those of all limits on the processor that takes LOOP_S for a loop."""
LIMIT_S = 40.0
"""CPU seconds of one test of it. The first one that needs it starts a server, which imports torch."""
SLACK = 1.6
"""How many times its budget a whole run may take before it fails: no loop is as slow or fast as all code of a run."""
LOOP_S = 2.7e-3
"""CPU seconds that `slowness` takes on the processor where the budgets were set."""
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


def slowness() -> float:
    """Return how many times as long this processor takes now for a short loop as the one where the budgets were set."""
    before = time.thread_time()
    found: dict[int, int] = {}
    for number in range(40_000):
        found[number & 255] = found.get(number & 255, 0) + number
    return (time.thread_time() - before) / LOOP_S


def dearest(costs: Mapping[str, float], count: int = LISTED) -> dict[str, float]:
    """Return the tests that have cost most, the dearest first."""
    return dict(sorted(costs.items(), key=lambda one: -one[1])[:count])


def listed(costs: Mapping[str, float]) -> str:
    """Return a line for each test, after a line break."""
    return "".join(f"\n  {seconds:6.1f}  {name}" for name, seconds in costs.items())


def fails(total: float, costs: Mapping[str, float], whole: bool) -> bool:
    """True if a run takes so much that it fails where CI=true. whole: it is all of the default tier."""
    return any(seconds > LIMIT_S for seconds in costs.values()) or (whole and total > SLACK * BUDGET_S)


def exceeded(total: float, costs: Mapping[str, float], whole: bool) -> Iterator[str]:
    """Yield what of a run took more than it may. whole: it is all of the default tier."""
    for name, seconds in costs.items():
        if seconds > LIMIT_S:
            yield f"{name} took {seconds:.0f} CPU s, and a test of the default tier may take {LIMIT_S:.0f}"
    if whole and total > BUDGET_S:
        may = f"a default run may take {BUDGET_S:.0f}"
        yield f"the tests took {total:.0f} CPU s, and {may}; the dearest:{listed(dearest(costs))}"
