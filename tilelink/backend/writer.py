"""Lines of source with indentation, and fresh names."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass(kw_only=True)
class Writer:
    """Collects lines; `name` gives each temporary a name of its own."""

    depth: int = 0
    lines: list[str] = field(default_factory=list[str])
    taken: frozenset[str] = frozenset()
    """Names that `name` must not give."""
    _used: dict[str, int] = field(default_factory=dict[str, int])

    def line(self, text: str) -> None:
        """One line at the current depth."""
        self.lines.append("    " * self.depth + text if text else "")

    @contextmanager
    def block(self, head: str) -> Generator[None]:
        """A line ending in a colon and the lines under it; a block of nothing but comments gets a `pass`."""
        self.line(head)
        self.depth += 1
        before = len(self.lines)
        yield
        if all(line.lstrip().startswith("#") for line in self.lines[before:]):
            self.line("pass")
        self.depth -= 1

    def name(self, stem: str) -> str:
        """A name not given before and not taken: stem_0, stem_1, ..."""
        count = self._used.get(stem, 0)
        while f"{stem}_{count}" in self.taken:
            count += 1
        self._used[stem] = count + 1
        return f"{stem}_{count}"
