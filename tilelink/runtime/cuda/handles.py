"""Handles of the driver that a kernel owns: streams, events and executable graphs, all freed by one object.

torch's objects own none of them, and nothing is attached to torch's objects: with finalizers on torch's streams,
processes crashed at their end (torch 2.11, which frees streams without their weak references: pytorch#183403).
Signatures: CUDA driver API reference, "Stream Management", "Event Management" and "Graph Management".
"""

from __future__ import annotations

import ctypes
import weakref
from collections import Counter
from typing import Any, Literal

import torch

from tilelink.runtime.cuda.driver import driver_error, function_of

SIDE_PRIORITY = -1  # not the hardware queues of a caller's stream of default priority
_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING
_DISABLE_TIMING = 2  # CU_EVENT_DISABLE_TIMING

Kind = Literal["graph", "event", "stream"]

_DESTROY: dict[Kind, str] = {
    "graph": "cuGraphExecDestroy", "event": "cuEventDestroy_v2", "stream": "cuStreamDestroy_v2",
}  # fmt: skip
"""Functions that free handles, in the order in which `close` frees them: a graph may name streams and events."""

open_handles: Counter[str] = Counter()
"""Number of handles of each kind that this process owns at present."""


class Handles:
    """The handles of a kernel.

    `close` frees them all, and so does the end of this object. The end of the process does not: the driver may be gone
    by then, and frees them itself.
    """

    def __init__(self, library: Any) -> None:
        self.library = library
        self._owned: dict[tuple[Kind, int], None] = {}
        self._finalizer = weakref.finalize(self, _free, library, self._owned)
        self._finalizer.atexit = False
        self.closed = False

    def stream(self, device: torch.device, priority: int = 0) -> int:
        """Return a stream that is used nowhere else. torch's streams come from a pool, which a caller's may share.

        Raises RankError if the driver has none.
        """
        create = function_of(
            self.library, "cuStreamCreateWithPriority", ctypes.POINTER(ctypes.c_void_p), ctypes.c_uint, ctypes.c_int
        )
        made = ctypes.c_void_p()
        with torch.cuda.device(device):
            status = create(ctypes.byref(made), _NON_BLOCKING, priority)
        return self._made("stream", made, status)

    def event(self, timed: bool = False) -> int:
        """Return an event; timed: one that records its time. Raises RankError if the driver has none."""
        create = function_of(self.library, "cuEventCreate", ctypes.POINTER(ctypes.c_void_p), ctypes.c_uint)
        made = ctypes.c_void_p()
        return self._made("event", made, create(ctypes.byref(made), 0 if timed else _DISABLE_TIMING))

    def adopt(self, graph: int) -> int:
        """Own an executable graph from now on, and return it."""
        return self._own("graph", graph)

    def drop(self, graph: int) -> None:
        """Free an executable graph now. The driver keeps it until its last launch has ended."""
        del self._owned["graph", graph]
        _free(self.library, {("graph", graph): None})

    def close(self) -> None:
        """Free all handles: graphs, then events, then streams. Nothing that uses them may be issued afterwards."""
        self.closed = True
        self._finalizer()

    def _made(self, kind: Kind, made: ctypes.c_void_p, status: int) -> int:
        if status or made.value is None:
            raise driver_error(f"cannot make a{'n' if kind == 'event' else ''} {kind}", status)
        return self._own(kind, made.value)

    def _own(self, kind: Kind, handle: int) -> int:
        self._owned[kind, handle] = None
        open_handles[kind] += 1
        return handle


def _free(library: Any, owned: dict[tuple[Kind, int], None]) -> None:
    order = list(_DESTROY)
    for kind, handle in sorted(owned, key=lambda one: order.index(one[0])):
        function_of(library, _DESTROY[kind], ctypes.c_void_p)(handle)
        open_handles[kind] -= 1
    owned.clear()
