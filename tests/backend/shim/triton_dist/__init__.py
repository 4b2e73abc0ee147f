# pyright: basic
"""Stands in for Triton-distributed: its language, over the interpreter of CPU ranks or compiled by stock Triton.

It takes only what the library itself takes, which is less than the interpreter would.
"""

from triton import jit

__all__ = ["jit"]
