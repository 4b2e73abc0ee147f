"""Collects the nodes of a kernel's body and generates unique names."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tilelink.backend.nodes import Block, Call, Let, Node


@dataclass(kw_only=True)
class Writer:
    """Collects nodes; `name` generates unique names for temporaries."""

    nodes: list[Node] = field(default_factory=list[Node])
    taken: frozenset[str] = frozenset()
    """Names that `name` must not generate."""
    _generated: set[str] = field(default_factory=set[str])
    _open: list[list[Node]] = field(default_factory=list[list[Node]])
    _known: list[dict[str, str]] = field(default_factory=lambda: [{}])
    """Expression -> the name that `shared` gave it, for the tile and each open block."""

    def add(self, *nodes: Node) -> None:
        """Add statements at the current depth."""
        (self._open[-1] if self._open else self.nodes).extend(nodes)

    def let(self, name: str, value: str) -> str:
        """Add `name = value` and return the name."""
        self.add(Let(name=name, value=value))
        return name

    def call(self, function: str, *arguments: str, to: str = "", **constants: object) -> None:
        """Add a call of a function of the device library. to: the name of its result, "" for none."""
        given = (*arguments, *(f"{name}={value}" for name, value in constants.items()))
        self.add(Call(function=function, arguments=given, name=to))

    def load(self, name: str, pointers: str, mask: str | None, other: str = "0") -> None:
        """Add a load of a tile. mask: elements that exist, None for all. other: 0 in a form that becomes an element."""
        self.call("tl.load", pointers, to=name, **({} if mask is None else {"mask": mask, "other": other}))

    def shared(self, stem: str, value: str) -> str:
        """Return a name of an expression, which is assigned unless an open block has it already.

        value: constant in the block, as positions are that follow from indices.
        """
        for known in self._known:
            if value in known:
                return known[value]
        self._known[-1][value] = name = self.name(stem)
        return self.let(name, value)

    def forget(self) -> None:
        """Share no expression with what was added before: a stage assigns its indices anew."""
        self._known = [{} for _ in self._known]

    @contextmanager
    def block(self, block: Block) -> Generator[None]:
        """Add a block. Statements that are added in the context go into it."""
        self.add(block)
        self._open.append(block.body)
        self._known.append({})
        yield
        self._open.pop()
        self._known.pop()

    @contextmanager
    def apart(self) -> Generator[None]:
        """Share expressions that are named in the context with nothing after it: what they are made of changes."""
        self._known.append({})
        yield
        self._known.pop()

    def name(self, stem: str) -> str:
        """Return an unused name: the stem itself, else stem_1, stem_2, ..."""
        name, count = stem, 0
        while name in self.taken or name in self._generated:
            count += 1
            name = f"{stem}_{count}"
        self._generated.add(name)
        return name
