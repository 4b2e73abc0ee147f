"""Launches of a kernel that a caller captures into CUDA graphs: each follows the one before it, on whatever stream.

A graph may run two nodes at once if neither depends on the other, as on streams that forked from the captured one. Two
launches of one kernel must not overlap, so the second one waits for an event behind the first, as launches outside of
graphs do. Signatures: CUDA driver API reference, "Stream Management".
"""

from __future__ import annotations

import ctypes

from tilelink.errors import RankError
from tilelink.runtime.cuda.driver import driver_error, function_of
from tilelink.runtime.cuda.handles import Handles
from tilelink.runtime.cuda.side_streams import Events


class Captures:
    """The captured launches of a kernel. number: captures so far; node: launches in the last one."""

    def __init__(self, handles: Handles) -> None:
        """Create an event. Raises RankError if the driver has none."""
        self.number = self.node = 0
        self._events = Events(handles)
        self._end, self._capture, self._stream = handles.event(), 0, 0
        pointer = ctypes.c_void_p
        self._info = function_of(
            handles.library, "cuStreamGetCaptureInfo_v2",
            pointer, ctypes.POINTER(ctypes.c_int), ctypes.POINTER(ctypes.c_uint64), pointer, pointer, pointer,
        )  # fmt: skip

    def follow(self, stream: int) -> None:
        """Make a captured stream wait for the launch captured before.

        Raises RankError if another capture has begun since that one: its launches would follow each other no more.
        """
        capture = self._of(stream)
        if capture < self._capture:
            hint = "end a capture before the next one begins, or compile the program twice"
            raise RankError("launches of one kernel are captured into two graphs by turns", hint=hint)
        if capture == self._capture and stream != self._stream:
            self._events.wait(stream, self._end)

    def next(self, stream: int) -> tuple[int, int]:
        """Return the number of the capture of a stream, and that of its next launch, both counted from 1."""
        return (self.number, self.node + 1) if self._of(stream) == self._capture else (self.number + 1, 1)

    def done(self, stream: int) -> None:
        """Note that a launch was captured on a stream."""
        self.number, self.node = self.next(stream)
        self._capture, self._stream = self._of(stream), stream
        self._events.record(self._end, stream)

    def _of(self, stream: int) -> int:
        """Return the number of the capture of a stream. Later ones have larger numbers."""
        status, number = ctypes.c_int(), ctypes.c_uint64()
        if error := self._info(stream, ctypes.byref(status), ctypes.byref(number), None, None, None):
            raise driver_error("does not say which capture a stream is in", error)
        return number.value
