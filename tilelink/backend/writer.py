"""Collects the nodes of a kernel's body and generates unique names."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tilelink.backend.nodes import Block, Let, Node


@dataclass(kw_only=True)
class Writer:
    """Collects nodes; `name` generates unique names for temporaries."""

    nodes: list[Node] = field(default_factory=list[Node])
    taken: frozenset[str] = frozenset()
    """Names that `name` must not generate."""
    _generated: set[str] = field(default_factory=set[str])
    _open: list[list[Node]] = field(default_factory=list[list[Node]])

    def add(self, *nodes: Node) -> None:
        """Add statements at the current depth."""
        (self._open[-1] if self._open else self.nodes).extend(nodes)

    def let(self, name: str, value: str) -> str:
        """Add `name = value` and return the name."""
        self.add(Let(name=name, value=value))
        return name

    @property
    def depth(self) -> int:
        """Return the number of open blocks."""
        return len(self._open)

    @contextmanager
    def block(self, block: Block) -> Generator[None]:
        """Add a block. Statements that are added in the context go into it."""
        self.add(block)
        self._open.append(block.body)
        yield
        self._open.pop()

    def name(self, stem: str) -> str:
        """Return an unused name: the stem itself, else stem_1, stem_2, ..."""
        name, count = stem, 0
        while name in self.taken or name in self._generated:
            count += 1
            name = f"{stem}_{count}"
        self._generated.add(name)
        return name
