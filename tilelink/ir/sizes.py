"""Sizes of blocks."""

from __future__ import annotations


def power_of_two(n: int) -> int:
    """The smallest power of two that is at least n: blocks of Triton have such sizes."""
    return 1 << max(0, n - 1).bit_length()
