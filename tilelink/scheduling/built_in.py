"""The built-in words of the schedule language: how they are loaded when a schedule is first written or read.

They are clauses, which rewrite lowered programs and so stand above schedules. This layer cannot import them, so the
package says how it is done (tilelink/__init__.py).
"""

from __future__ import annotations

from collections.abc import Callable

_loaders: list[Callable[[], object]] = []


def load_by(loader: Callable[[], object]) -> None:
    """Set the function that registers all built-in words when it is called first. Further calls do nothing."""
    _loaders[:] = [loader]


def load() -> None:
    """Register the built-in words, unless that has been done."""
    for loader in _loaders:
        loader()
