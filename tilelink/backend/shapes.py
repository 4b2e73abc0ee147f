"""Shapes of tensors."""

from __future__ import annotations


def strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return row-major strides in elements."""
    result: list[int] = []
    below = 1
    for n in reversed(shape):
        result.append(below)
        below *= n
    return tuple(reversed(result))
