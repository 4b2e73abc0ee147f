"""Names that a tile may read before it has assigned them, as the tasks of a stage do.

A read has a value if, in every launch in which it is executed, an assignment that comes before it in its task is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from tilelink.lowering.columns import Ints
from tilelink.lowering.guards import Guards
from tilelink.lowering.places import Fault


@dataclass(kw_only=True)
class NameUses:
    """Reads and assignments of a name by the tasks of a stage: tasks, positions and guards, for reads after the number
    of the statement. A guard has the branches and the iterations that a launch may leave out."""

    read: list[tuple[int, Ints, Ints, Ints]] = field(default_factory=list[tuple[int, Ints, Ints, Ints]])
    assigned: list[tuple[Ints, Ints, Ints]] = field(default_factory=list[tuple[Ints, Ints, Ints]])

    def faults(self, name: str, guards: Guards) -> Iterator[Fault]:
        """Yield a fault for the first task that may read the name before it has assigned it."""
        none = (np.zeros(0, np.int64),) * 3
        task, position, guard = (np.concatenate(columns) for columns in zip(none, *self.assigned, strict=True))
        order = np.lexsort((position, task))
        task, position, guard = task[order], position[order], guard[order]
        known: dict[tuple[int, tuple[int, ...]], bool] = {}

        def covered(theirs: int, ours: list[int]) -> bool:
            key = theirs, tuple(dict.fromkeys(ours))
            if key not in known:
                known[key] = guards.facts.covered(guards.of(theirs), [guards.of(one) for one in key[1]])
            return known[key]

        most = 1 + max((int(at.max(initial=0)) for _, _, at, _ in (*self.read, (0, *none))), default=0)
        most = max(most, 1 + int(position.max(initial=0)))
        for number, reader, at, theirs in self.read:
            begin, end = np.searchsorted(task, reader), np.searchsorted(task * most + position, reader * most + at)
            for row in np.flatnonzero(~self._always(task, guard, begin, end)).tolist():
                ours = guard[begin[row] : end[row]].tolist()
                own = int(theirs[row])  # the last assignment and the first one settle most reads
                if ours and (covered(own, ours[-1:]) or covered(own, ours[:1]) or covered(own, ours)):
                    continue
                message = f"reads {name}, to which nothing has been assigned"
                if ours:
                    message = f"reads {name}, to which nothing has been assigned in some launches"
                hint = f"assign {name} before the loop or the condition that may leave it out"
                yield Fault(task=int(reader[row]), statement=number, message=message, hint=hint)
                return

    def _always(self, task: Ints, guard: Ints, begin: Ints, end: Ints) -> np.ndarray:
        """Mask of the reads before which an assignment is made in every launch: rows begin to end have one."""
        sure = np.concatenate([[0], np.cumsum(guard == 0)])
        return sure[end] > sure[begin]
