"""Names that a tile may read before it has assigned them, as the tasks of a stage do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from tilelink.lowering.columns import Ints
from tilelink.lowering.places import Fault


@dataclass(kw_only=True)
class NameUses:
    """Reads and assignments of a name by the tasks of a stage: (statement, tasks, positions) and (tasks, positions)."""

    read: list[tuple[int, Ints, Ints]] = field(default_factory=list[tuple[int, Ints, Ints]])
    assigned: list[tuple[Ints, Ints]] = field(default_factory=list[tuple[Ints, Ints]])

    def faults(self, name: str) -> Iterator[Fault]:
        """Yield a fault for the first task that reads the name before it has assigned it."""
        tasks = max((int(task.max(initial=-1)) for _, task, _ in self.read), default=-1) + 1
        first = np.full(tasks, np.iinfo(np.int64).max)
        for task, position in self.assigned:
            in_range = task < tasks
            np.minimum.at(first, task[in_range], position[in_range])
        for number, task, position in self.read:
            for row in np.flatnonzero(first[task] >= position)[:1]:
                message = f"reads {name}, to which nothing has been assigned"
                hint = f"assign {name} before the loop or the condition that may leave it out"
                yield Fault(task=int(task[row]), statement=number, message=message, hint=hint)
                return
