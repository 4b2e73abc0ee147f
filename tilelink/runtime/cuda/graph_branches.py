"""Waits of a copy engine's queue as a branch of a graph, in parallel with its copies and flags.

In line a wait begins only after the previous copy and its flag, and each such step takes 2 to 3 us. A product with a
reduce-scatter of seven copies took 263 us in line and 237 us with the waits in a branch (2 H200s, 8 MB a copy). Flags
stay with the copies: in a branch they made an all-gather of seven copies 32 us longer, as if each came only after the
next copy.
"""

from __future__ import annotations

from tilelink.runtime.cuda.handles import Handles
from tilelink.runtime.cuda.side_streams import Events


class Branches:
    """Sets the dependences of operations, which are issued on two streams.

    A copy or flag depends on all operations that were issued before it, a wait only on earlier waits. It cannot be
    observed whether a wait ends before a copy that was issued earlier, unless it waits for the effect of that copy's
    flag.
    """

    def __init__(self, handles: Handles, waits: int) -> None:
        """waits: a stream, by its handle, on which nothing else is issued."""
        self.waits = waits
        self._events = Events(handles)
        self._begin, self._end = self._events.new(), self._events.new()
        self._forked = self._new = False

    def begin(self, stream: int) -> None:
        """Note the earlier work of the copies' stream, on which all waits depend."""
        self._events.record(self._begin, stream)
        self._forked = self._new = False

    def before_wait(self) -> None:
        """Prepare for a wait. The first one creates the branch: a branch without operations would be left open."""
        if not self._forked:
            self._events.wait(self.waits, self._begin)
        self._forked = self._new = True

    def before_copy(self, stream: int) -> None:
        """Prepare for an operation on the copies' stream, which depends on all waits that were issued."""
        if self._new:
            self._events.follow(self.waits, stream, self._end)
            self._new = False
