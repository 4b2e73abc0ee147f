"""How deep programs may nest, and room on Python's stack for walking those that do.

What is within these limits works everywhere: Python compiles the generated modules, and no walk over a program
overflows. What is not is refused before anything walks it, so `too_deep` and `nested_blocks` do not recurse.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from typing import TypeVar

Node = TypeVar("Node")

VALUE_LEVELS = 1000
"""Operations inside one another in a value; `a + b + c` are two, for `a + b` is inside."""
NUMBER_LEVELS = 100
"""The same in an integer expression, which is rendered as one: CPython takes 200 brackets."""
BLOCKS = 32
"""Conditions and loops inside one another: CPython takes 100 indents."""
LOOPS = 12
"""Indices of loops inside one another: CPython takes 20 loops, and those over tiles and slices are more."""

_FRAMES = 20 * VALUE_LEVELS
"""What the deepest walk takes, with the callers of it."""
_lock = threading.Lock()
_inside = 0
_before = 0


def too_deep(root: Node, parts: Callable[[Node], Iterable[Node]], limit: int) -> Node | None:
    """Something more than `limit` levels below the outside, which is the first level; None where nothing is."""
    stack = [(root, 1)]
    while stack:
        node, level = stack.pop()
        if level > limit:
            return node
        stack.extend((part, level + 1) for part in parts(node))
    return None


def nested_blocks(body: Iterable[Node], parts: Callable[[Node], tuple[int, Iterable[Node]] | None]) -> Node | None:
    """The first statement inside too many blocks or loops; parts: how many loops a block is, and its statements."""
    stack = [(statement, 0, 0) for statement in body][::-1]
    while stack:
        statement, blocks, loops = stack.pop()
        if (block := parts(statement)) is None:
            continue
        more, inner = block
        if blocks + 1 > BLOCKS or loops + more > LOOPS:
            return statement
        stack.extend([(one, blocks + 1, loops + more) for one in inner][::-1])
    return None


@contextmanager
def deep() -> Generator[None]:
    """Room for walks over programs as deep as may be, as a context or a decorator; threads share it.

    Calls of Python functions take nothing of C's stack, and what a level of a frozen value's hash or copy takes is
    a quarter of a kilobyte.
    """
    global _inside, _before
    with _lock:
        if not _inside:
            _before = sys.getrecursionlimit()
            sys.setrecursionlimit(max(_before, _FRAMES))
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if not _inside:
                sys.setrecursionlimit(_before)
