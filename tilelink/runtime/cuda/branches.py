"""The waits of a copy engine's queue as a branch of a graph, beside its copies and flags.

In one line a copy begins only when its wait has begun behind the copy before and its flag, and a step from the copy
engine to anything else takes 2 to 3 us: seven copies of 8 MB to a peer, with a wait before and a flag behind each, take
215 us, with waits aside 206 (measured on 2 H200s). Flags stay with the copies: aside they end up behind the next copy.
"""

from __future__ import annotations

from typing import Any

from tilelink.runtime.cuda.sides import Events


class Branches:
    """Says what comes behind what, while operations are issued on two streams.

    A copy or flag comes behind all waits that were issued before it, and all are in order otherwise. That a wait comes
    behind copies nobody can see, as long as it is not for what comes of their flags.
    """

    def __init__(self, library: Any, waits: int) -> None:
        """waits: a stream, by its handle, that nothing else is issued on."""
        self.waits = waits
        self._events = Events(library)
        self._begin, self._end = self._events.new(), self._events.new()
        self._forked = self._new = False

    def begin(self, stream: int) -> None:
        """Notes what the stream of the copies has done, which all waits come behind."""
        self._events.record(self._begin, stream)
        self._forked = self._new = False

    def before_wait(self) -> None:
        """The next operation is a wait. The first one makes the branch: one without operations would be left open."""
        if not self._forked:
            self._events.wait(self.waits, self._begin)
        self._forked = self._new = True

    def before_copy(self, stream: int) -> None:
        """The next operation is the stream's of the copies, behind all waits that were issued."""
        if self._new:
            self._events.follow(self.waits, stream, self._end)
            self._new = False
