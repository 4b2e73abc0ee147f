"""The waits of a copy engine's queue as a branch of a graph, beside its copies and flags.

In line a wait begins only behind the copy before it and its flag, and each such step takes 2 to 3 us. A product with a
reduce-scatter of seven copies took 263 us in line and 237 with the waits aside (2 H200s, 8 MB a copy). Flags stay with
the copies: aside they made an all-gather of seven copies 32 us longer, as if each came only behind the next copy.
"""

from __future__ import annotations

from typing import Any

from tilelink.runtime.cuda.side_streams import Events


class Branches:
    """Says what comes behind what, while operations are issued on two streams.

    A copy or flag comes behind all that was issued before it, a wait only behind the waits. Whether it is over before a
    copy that was issued before it nobody can see, as long as it does not wait for what comes of that copy's flag.
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
