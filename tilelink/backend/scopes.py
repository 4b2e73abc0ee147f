"""Names that a body reads but that Triton's scoping rules would hide.

In Triton a name is visible after an `if` that assigns it in both branches, and after a loop only if it was assigned
before the loop. The language has Python's rules: such a name keeps its value. So it is declared before the outermost
statement that first assigns it.
"""

from __future__ import annotations

from collections.abc import Mapping

from tilelink.ir.program import Assign, For, If, Local, Statement
from tilelink.ir.visitor import statements, value_of, values


def undeclared(body: tuple[Statement, ...]) -> Mapping[int, tuple[str, ...]]:
    """Return the names to declare before each statement of the body, by the number of the statement."""
    hidden: dict[str, None] = {}
    _visible(body, frozenset(), hidden)
    names: dict[int, tuple[str, ...]] = {}
    for number, statement in enumerate(body):
        assigned = {s.name for s in statements((statement,)) if isinstance(s, Assign)}
        names[number] = tuple(name for name in hidden if name in assigned)
        hidden = {name: None for name in hidden if name not in assigned}
    return names


def _visible(body: tuple[Statement, ...], known: frozenset[str], hidden: dict[str, None]) -> frozenset[str]:
    """Return the names that are visible after a body. Its hidden reads are added to `hidden`."""
    for statement in body:
        value = value_of(statement)
        for node in values(value) if value is not None else ():
            if isinstance(node, Local) and node.name not in known:
                hidden[node.name] = None
        match statement:
            case Assign(name=name):
                known |= {name}
            case If(then=then, orelse=orelse):
                known = _visible(then, known, hidden) & _visible(orelse, known, hidden)
            case For(body=inner):
                _visible(inner, known, hidden)
            case _:
                pass
    return known
