"""Operations of a copy engine as one CUDA graph: the host then issues a single call instead of one for each.

The driver takes several microseconds for a copy to a peer, and a launch has two of them for every peer and channel. A
graph holds the addresses of the tensors that a caller passed; so there is one for each set of addresses that comes
again, as a training step's do.
"""

from __future__ import annotations

import ctypes
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Protocol

from tilelink.runtime.cuda.driver import function_of, library

KEPT = 32
"""Sets of addresses that are remembered: all that have a graph, and of the others the last ones."""
ENOUGH = 3
"""Operations that are worth a graph."""
Addresses = tuple[int, ...]
_THREAD_LOCAL = 1  # CU_STREAM_CAPTURE_MODE_THREAD_LOCAL


class Issues(Protocol):
    """What can be captured: `names` are the tensors whose addresses it takes."""

    @property
    def names(self) -> frozenset[str]: ...

    def __len__(self) -> int: ...

    def issue(self, stream: int, bases: Mapping[str, int], captured: bool = False) -> None: ...


class Graphs:
    """The driver's calls around a capture. Signatures: CUDA driver API reference, "Graph Management"."""

    def __init__(self, library: Any) -> None:
        handle, pointer = ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p)
        self._begin = function_of(library, "cuStreamBeginCapture_v2", handle, ctypes.c_int)
        self._end = function_of(library, "cuStreamEndCapture", handle, pointer)
        self._instantiate = function_of(library, "cuGraphInstantiateWithFlags", pointer, handle, ctypes.c_ulonglong)
        self._destroy = function_of(library, "cuGraphDestroy", handle)
        self._upload = function_of(library, "cuGraphUpload", handle, handle)
        self.launch = function_of(library, "cuGraphLaunch", handle, handle)
        self.drop = function_of(library, "cuGraphExecDestroy", handle)

    def captured(self, issue: Callable[[], None], stream: int) -> int | None:
        """What `issue` puts on the stream as an executable graph, or None if the driver cannot have it as one."""
        graph, executable = ctypes.c_void_p(), ctypes.c_void_p()
        if self._begin(stream, _THREAD_LOCAL):
            return None
        try:
            issue()
        finally:
            status = self._end(stream, ctypes.byref(graph))
        if status or not graph.value:
            return None
        status = self._instantiate(ctypes.byref(executable), graph, 0)
        self._destroy(graph)
        if status or not executable.value:
            return None
        self._upload(executable, stream)  # else the first launch does it, when kernels may wait already
        return executable.value


class Replay:
    """Issues a queue: as it is for addresses that are new, as a graph for those that it has seen."""

    def __init__(self, queue: Issues, graphs: Callable[[], Graphs], worth: bool = True) -> None:
        """worth: False never makes a graph, as where operations are timed one by one."""
        self._queue, self._graphs = queue, graphs
        self._new: OrderedDict[Addresses, None] = OrderedDict()
        self._known: dict[Addresses, int] = {}
        self._names = sorted(queue.names)
        self._worth = worth and len(queue) >= ENOUGH
        weakref.finalize(self, _free, self._known, graphs)

    def graph(self, stream: int, bases: Mapping[str, int], capturing: bool) -> int | None:
        """The graph that `issue` is to launch, if there is one; it may be made now, which takes a while.

        capturing: the stream is being captured already, by the caller.
        """
        return None if capturing or not self._worth else self._executable(stream, bases)

    def issue(self, stream: int, bases: Mapping[str, int], executable: int | None, capturing: bool = False) -> None:
        """Issues all operations on a stream. executable: their graph."""
        if executable is None:
            self._queue.issue(stream, bases, capturing)
        elif self._graphs().launch(executable, stream):
            self._worth = False
            self._queue.issue(stream, bases)

    def _executable(self, stream: int, bases: Mapping[str, int]) -> int | None:
        key = tuple(bases[name] for name in self._names)
        if key in self._known:
            return self._known[key]
        if key not in self._new:
            self._new[key] = None
            if len(self._new) + len(self._known) > KEPT:
                self._new.popitem(last=False)
            return None
        del self._new[key]
        made = self._graphs().captured(lambda: self._queue.issue(stream, bases, True), stream)
        if made is None:
            self._worth = False
        else:
            self._known[key] = made
        return made


def _free(executables: dict[Addresses, int], graphs: Callable[[], Graphs]) -> None:
    for executable in executables.values():
        graphs().drop(executable)


@cache
def graphs() -> Graphs:
    """The driver's calls on this machine."""
    return Graphs(library())
