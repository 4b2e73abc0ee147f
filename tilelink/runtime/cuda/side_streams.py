"""Side streams of a launch: they start after the caller's earlier work, and the caller's stream waits for them.

They use the driver's own calls, without torch's objects, because a launch makes four of these calls. Signatures: CUDA
driver API reference, "Event Management" and "Stream Management".
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from tilelink.errors import RankError
from tilelink.runtime.cuda.driver import function_of, with_context
from tilelink.runtime.cuda.handles import Handles


class Events:
    """Events of a kernel, and waits of streams for them."""

    def __init__(self, handles: Handles) -> None:
        self.new = handles.event
        library = self._library = handles.library
        event, stream = ctypes.c_void_p, ctypes.c_void_p
        self._record = function_of(library, "cuEventRecord", event, stream)
        self._wait = function_of(library, "cuStreamWaitEvent", stream, event, ctypes.c_uint)

    def record(self, event: int, stream: int) -> None:
        """Record the event after all earlier work of the stream."""
        self._call(self._record, event, stream)

    def wait(self, stream: int, event: int) -> None:
        """Make all later work of the stream wait for the event."""
        self._call(self._wait, stream, event, 0)

    def follow(self, first: int, second: int, event: int) -> None:
        """Make the second stream wait for all earlier work of the first."""
        self.record(event, first)
        self.wait(second, event)

    def _call(self, function: Any, *arguments: int) -> None:
        if status := function(*arguments):
            status = with_context(self._library, status, function, *arguments)
        if status:
            raise RankError(f"the CUDA driver does not order streams: error {status}", hint="see what failed before it")


class Sides:
    """Streams, by their handles, with an event for each."""

    def __init__(self, handles: Handles, streams: Sequence[int]) -> None:
        """Create the events. Raises RankError if the driver has none."""
        self._events = Events(handles)
        self._begin = self._events.new() if streams else 0
        self._streams = [(stream, self._events.new()) for stream in streams]

    def fork(self, stream: int) -> None:
        """Make the side streams wait for all earlier work of the caller's stream."""
        if self._streams:
            self._events.record(self._begin, stream)
            for side, _ in self._streams:
                self._events.wait(side, self._begin)

    def join(self, stream: int) -> None:
        """Make the caller's stream wait for all earlier work of the side streams."""
        for side, end in self._streams:
            self._events.follow(side, stream, end)
