"""Which tests look at a mutant, and in which order: the fastest of those that execute the mutated line, then those of
its layer."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from tests.mutation.edits import Edit
from tests.mutation.lines import Measured
from tests.mutation.server import Choice

COLLECTING = 0.5
"""Seconds that reading one more file of tests is taken to cost in a process that has everything imported."""


class Chooser:
    """Rounds of tests for mutants: a short one, then what else fits."""

    def __init__(self, measured: Measured, first: float, seconds: float) -> None:
        self.measured = measured
        self.first = first
        self.limit = seconds
        self.seconds = measured.seconds()
        self.by_file: dict[str, list[str]] = defaultdict(list)
        for test in self.seconds:
            self.by_file[test.partition("::")[0]].append(test)

    def rounds(self, edit: Edit) -> list[Choice]:
        """Disjoint choices of tests, to be asked in turn; none where no test executes the line."""
        near = self._who(edit)
        if not near:
            return []
        wanted = self._ordered(near)
        # Tests share what a file's helpers keep: who comes later does not execute the line, but may see the mistake.
        mates = {test for name in {t.partition("::")[0] for t in near} for test in self.by_file[name]} - near
        wanted += self._ordered(mates)
        early = self._fitting(wanted, self.first)
        taken = set(early)
        rest = sorted((test for test in wanted if test not in taken), key=lambda test: _distance(edit.file, test))
        late = self._fitting(rest, self.limit - self.first)
        return [self._choice(tests) for tests in (early, late) if tests]

    def _who(self, edit: Edit) -> set[str]:
        # The test that happens to import the module first executes all that importing does, and need not use it.
        importing = self.measured.who(edit.file, 1, 1)
        for first, last in edit.spans:
            if found := self.measured.who(edit.file, first, last) - importing:
                return found
        # What is executed on import alone belongs to all who use the module; a function that none enters to none.
        first, last = edit.spans[0]
        imported = not edit.function or self.measured.who(edit.file, first, last)
        return self.measured.who(edit.file, 1, 1 << 30) if imported else set()

    def _ordered(self, tests: set[str]) -> list[str]:
        """The fastest first, and cases of one test in turn with those of others."""
        cases: dict[str, int] = defaultdict(int)
        cost: dict[str, float] = {}
        for test in sorted(tests, key=lambda t: (self.seconds[t], t)):
            name = test.partition("[")[0]
            cases[name] += 1
            cost[test] = (self.seconds[test] + 0.01) * cases[name]
        return sorted(cost, key=lambda test: (cost[test], test))

    def _fitting(self, tests: list[str], limit: float) -> list[str]:
        total, files, taken = 0.0, set[str](), list[str]()
        for test in tests:
            file = test.partition("::")[0]
            cost = self.seconds[test] + (COLLECTING if file not in files else 0.0)
            if total + cost <= limit or not taken:
                total += cost
                files.add(file)
                taken.append(test)
        return taken

    def _choice(self, tests: list[str]) -> Choice:
        return Choice(tests=tuple(tests), seconds=tuple(self.seconds[test] for test in tests))


def _distance(module: str, test: str) -> int:
    """0 for tests in a file that has the module's name, 1 for tests of its layer, 2 for those of others."""
    path, file = Path(module), Path(test.partition("::")[0])
    if path.stem in file.stem:
        return 0
    return 1 if path.parts[1] == file.parts[1] else 2
