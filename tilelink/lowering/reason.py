"""Reasons why a form of kernel is not possible: a text, and the place in the program to which it applies."""

from __future__ import annotations

from typing import Protocol

from tilelink.errors import Location


class Placed(Protocol):
    """A node of a program."""

    @property
    def location(self) -> Location | None: ...


class Reason(str):
    """A reason with a place. It compares and prints as its text."""

    location: Location | None = None


def reason_at(node: Placed, text: str) -> Reason:
    """Return a reason that applies to a node."""
    made = Reason(text)
    made.location = node.location
    return made


def place_of(reason: str) -> Location | None:
    """Return the place to which a reason applies, None if it has none."""
    return reason.location if isinstance(reason, Reason) else None
