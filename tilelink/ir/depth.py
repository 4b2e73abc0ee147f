"""Limits on the nesting depth of programs, and a recursion limit high enough to walk programs within them.

A program within these limits works everywhere: Python compiles the generated modules, and no walk over the program
overflows the stack. A deeper program is refused before anything walks it, so `too_deep` and `nested_blocks` do not
recurse.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from typing import TypeVar

Node = TypeVar("Node")

VALUE_LEVELS = 1000
"""Maximum nesting of operations in a value; `a + b + c` has depth two, because `a + b` is an operand."""
NUMBER_LEVELS = 100
"""The same limit for an integer expression, which is printed as one expression: CPython accepts 200 brackets."""
BLOCKS = 32
"""Maximum nesting of conditions and loops: CPython accepts 100 indents."""
LOOPS = 12
"""Maximum nesting of loop indices: CPython accepts 20 loops, including the emitted ones over tiles and slices."""

_FRAMES = 20 * VALUE_LEVELS
"""Stack frames of the deepest walk, including its callers."""
_lock = threading.Lock()
_inside = 0
_before = 0


def too_deep(root: Node, parts: Callable[[Node], Iterable[Node]], limit: int) -> Node | None:
    """Return a node deeper than `limit` levels (the root is level 1), or None if there is none."""
    stack = [(root, 1)]
    while stack:
        node, level = stack.pop()
        if level > limit:
            return node
        stack.extend((part, level + 1) for part in parts(node))
    return None


def nested_blocks(body: Iterable[Node], parts: Callable[[Node], tuple[int, Iterable[Node]] | None]) -> Node | None:
    """Return the first statement nested in too many blocks or loops, or None.

    parts: maps a statement to the number of its loops and its inner statements, or to None if it is not a block.
    """
    stack = [(statement, 0, 0) for statement in body][::-1]
    while stack:
        statement, blocks, loops = stack.pop()
        if (block := parts(statement)) is None:
            continue
        more, inner = block
        if blocks + 1 > BLOCKS or loops + more > LOOPS:
            return statement
        stack.extend([(child, blocks + 1, loops + more) for child in inner][::-1])
    return None


@contextmanager
def deep() -> Generator[None]:
    """Raise the recursion limit for walks over programs of the greatest depth; a context manager and decorator.

    The limit is shared by all threads. Calls of Python functions use no C stack; each level of the hash or the copy
    of a frozen value uses a quarter of a kilobyte of it.
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
