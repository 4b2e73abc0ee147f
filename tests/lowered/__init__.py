"""Texts of lowered programs read back, so that tests can change what passes made, and mutate it."""

from tests.lowered.reader import parse_lowered

__all__ = ["parse_lowered"]
