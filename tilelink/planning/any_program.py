"""Plans of kernels whose tiles any of their programs may execute.

They are those with compact numbers (lowering/compact.py), those with a program for each tile, of which not all are
resident (lowering/clauses/program_per_tile.py), and those whose programs take tiles by a counter
(lowering/clauses/dynamic.py).

A launch decides which program executes such a tile. Two plans stand for all launches:

* In `apart` each of these tiles is executed by a program of its own. What happens before what in it does so in each
  launch, because nothing but the order of one program was taken away.
* In `together` one program executes all of them in the order of their numbers, those that are not there too. If no task
  of it waits for ever, none does in a launch. Proof: take the first event of an execution of `together` that a launch
  does not come to. All events before it are executed in the launch, and so are all tiles of the kernel with smaller
  numbers. So the program that has the tile of the event has come to it, for programs take tiles in rising order (or
  begin in it, each when one with a smaller number has ended). The event is a wait, and all notifies that it waits for
  are events before it. Which programs fit on a rank is another question: until the last tile is done, each of the
  kernel's programs may have one, so all of them keep their places (verifier/progress.py).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tilelink.lowering.bound import Kernel
from tilelink.lowering.columns import Ints
from tilelink.planning.plan import Plan


def assigns_in_launch(kernel: Kernel) -> bool:
    """True if a launch decides which of a kernel's programs executes a tile."""
    return kernel.program_per_tile or kernel.dynamic or any(loop.compact for loop in kernel.loops)


def of_any_program(plan: Plan) -> NDArray[np.bool_]:
    """Return which tasks a launch assigns to programs."""
    kernels = np.array([assigns_in_launch(kernel) for kernel in plan.bound.kernels], bool)
    return kernels[plan.task_kernels]


def taken(plan: Plan) -> NDArray[np.bool_]:
    """Return which tasks are of kernels whose programs take tiles by a counter."""
    kernels = np.array([kernel.dynamic for kernel in plan.bound.kernels], bool)
    return kernels[plan.task_kernels]


def apart(plan: Plan) -> Plan:
    """Return the plan in which each task that a launch assigns to programs has a worker of its own."""
    return each_alone(plan, _in_launch(plan))


def each_alone(plan: Plan, tasks: Ints) -> Plan:
    """Return the plan in which each of some tasks has a worker of its own: no order of a program orders them."""
    if not len(tasks):
        return plan
    worker, sequence = plan.worker.copy(), plan.sequence.copy()
    worker[tasks], sequence[tasks] = len(plan.workers) + np.arange(len(tasks)), 0
    own = tuple(plan.workers[number] for number in plan.worker[tasks].tolist())
    return replace(plan, worker=worker, sequence=sequence, workers=(*plan.workers, *own))


def together(plan: Plan) -> Plan:
    """Return the plan in which one program of a kernel executes all tasks that a launch assigns to programs."""
    return by_one(plan, _in_launch(plan))


def by_one(plan: Plan, tasks: Ints) -> Plan:
    """Return the plan in which the first program of each kernel executes some tasks of it, by their numbers."""
    if not len(tasks):
        return plan
    first = {(n, rank): number for number, (n, rank, program) in enumerate(plan.workers) if program == 0}
    owners = [first[plan.workers[number][:2]] for number in plan.worker[tasks].tolist()]
    worker, sequence = plan.worker.copy(), plan.sequence.copy()
    worker[tasks], sequence[tasks] = owners, tasks  # numbers of tasks rise with those of tiles
    return replace(plan, worker=worker, sequence=sequence)


def _in_launch(plan: Plan) -> Ints:
    return np.flatnonzero(of_any_program(plan)) if plan.tasks else np.zeros(0, np.int64)
