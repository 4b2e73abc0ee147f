"""Waits with no store, transfer or notify after them. In a dialect with tokens nothing would consume their tokens."""

from __future__ import annotations

from collections.abc import Iterator

from tilelink.ir.program import For, If, Notify, Statement, Store, Transfer, Wait
from tilelink.ir.visitor import statements


def last_waits(body: tuple[Statement, ...], *, followed: bool = False) -> Iterator[Wait]:
    """Yield the waits that no store, transfer or notify can follow. followed: True if one follows the body."""
    for statement in reversed(body):
        match statement:
            case Wait():
                if not followed:
                    yield statement
            case If(then=then, orelse=orelse):
                yield from last_waits(then, followed=followed)
                yield from last_waits(orelse, followed=followed)
            case For(body=inner):
                yield from last_waits(inner, followed=followed or _seen(inner))
            case _:
                pass
        followed = followed or _seen((statement,))


def _seen(body: tuple[Statement, ...]) -> bool:
    return any(isinstance(s, Store | Transfer | Notify) for s in statements(body))
