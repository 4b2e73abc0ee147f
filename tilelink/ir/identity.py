"""Results of pure functions of programs and their parts, kept for the same objects.

`functools.cache` would compare arguments by their values, and so walk a program at every call.
"""

from __future__ import annotations

from typing import Generic, TypeVar

Result = TypeVar("Result")


class ByIdentity(Generic[Result]):
    """The last `entries` results, by the identities of the immutable objects that each result is computed from."""

    def __init__(self, entries: int = 1024) -> None:
        self._entries = entries
        self._results: dict[tuple[int, ...], tuple[tuple[object, ...], Result]] = {}
        """Identities -> the objects, which an entry keeps alive so that their identities stay taken, and the result."""

    def get(self, *objects: object) -> Result | None:
        """Return the result for these objects, or None."""
        entry = self._results.get(tuple(map(id, objects)))
        return entry[1] if entry else None

    def put(self, result: Result, *objects: object) -> None:
        """Keep the result for these objects."""
        self._results[tuple(map(id, objects))] = objects, result
        while len(self._results) > self._entries:
            self._results.pop(next(iter(self._results)), None)
