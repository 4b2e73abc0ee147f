"""Side streams of a launch: they start after the caller's earlier work, and the caller's stream waits for them.

They use the driver's own calls, without torch's objects, because a launch makes four of these calls. Signatures: CUDA
driver API reference, "Event Management" and "Stream Management".
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from typing import Any

import torch

from tilelink.errors import RankError
from tilelink.runtime.cuda.driver import driver_error, function_of, with_context

SIDE_PRIORITY = -1  # not the hardware queues of a caller's stream of default priority
_DISABLE_TIMING = 2  # CU_EVENT_DISABLE_TIMING
_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING


class Events:
    """Events of the driver, freed with this object, and waits of streams for them."""

    def __init__(self, library: Any) -> None:
        self._library = library
        event, stream = ctypes.c_void_p, ctypes.c_void_p
        self._record = function_of(library, "cuEventRecord", event, stream)
        self._wait = function_of(library, "cuStreamWaitEvent", stream, event, ctypes.c_uint)
        self._events: list[int] = []
        weakref.finalize(self, _destroy, library, self._events)

    def new(self) -> int:
        """Return a new event. Raises RankError if the driver has none."""
        create = function_of(self._library, "cuEventCreate", ctypes.POINTER(ctypes.c_void_p), ctypes.c_uint)
        made = ctypes.c_void_p()
        status = create(ctypes.byref(made), _DISABLE_TIMING)
        if status or made.value is None:
            raise driver_error("cannot make an event", status)
        self._events.append(made.value)
        return made.value

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


def new_stream(library: Any, device: torch.device, priority: int = 0) -> torch.cuda.ExternalStream:
    """Return a stream that is used nowhere else. torch's streams come from a pool, which a caller's stream may share.

    It is freed with this object. Raises RankError if the driver has none.
    """
    create = function_of(
        library, "cuStreamCreateWithPriority", ctypes.POINTER(ctypes.c_void_p), ctypes.c_uint, ctypes.c_int
    )
    made = ctypes.c_void_p()
    with torch.cuda.device(device):
        status = create(ctypes.byref(made), _NON_BLOCKING, priority)
    if status or made.value is None:
        raise driver_error("cannot make a stream", status)
    stream = torch.cuda.ExternalStream(made.value, device)
    weakref.finalize(stream, function_of(library, "cuStreamDestroy_v2", ctypes.c_void_p), made.value)
    return stream


class Sides:
    """Streams, by their handles, with an event for each."""

    def __init__(self, library: Any, streams: Sequence[int]) -> None:
        """Create the events. Raises RankError if the driver has none."""
        self._events = Events(library)
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


def _destroy(library: Any, events: Sequence[int]) -> None:
    destroy = function_of(library, "cuEventDestroy_v2", ctypes.c_void_p)
    for event in events:
        destroy(event)
