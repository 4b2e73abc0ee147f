"""Launches as CUDA graphs: the host makes a single call instead of one for each operation.

The driver takes several microseconds for a kernel or a copy to a peer, and a launch has two copies for every peer and
channel. A graph holds the addresses of the tensors that a caller passed. So there is one for each set of addresses that
recurs, as the addresses of a training step do.
"""

from __future__ import annotations

import ctypes
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Protocol

from tilelink.errors import BindingError, RankError
from tilelink.runtime.cuda.driver import function_of, with_context
from tilelink.runtime.cuda.handles import Handles

KEPT = 32
"""Number of address sets that are remembered, and number of sets that have a graph. The most recent ones are kept."""
ENOUGH = 3
"""Least number of operations for which a graph is created."""
Key = tuple[int, ...]
_THREAD_LOCAL = 1  # CU_STREAM_CAPTURE_MODE_THREAD_LOCAL


class Issues(Protocol):
    """An object that can be captured. `names` are the tensors whose addresses it uses."""

    @property
    def names(self) -> frozenset[str]: ...

    def __len__(self) -> int: ...

    def issue(self, stream: int, bases: Mapping[str, int], captured: bool = False) -> None: ...


class Graphs:
    """The driver's calls around a capture, for the graphs of a kernel.

    Signatures: CUDA driver API reference, "Graph Management".
    """

    def __init__(self, handles: Handles) -> None:
        handle, pointer = ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p)
        library = self._library = handles.library
        self._adopt, self.drop = handles.adopt, handles.drop
        self._begin = function_of(library, "cuStreamBeginCapture_v2", handle, ctypes.c_int)
        self._end = function_of(library, "cuStreamEndCapture", handle, pointer)
        self._instantiate = function_of(library, "cuGraphInstantiateWithFlags", pointer, handle, ctypes.c_ulonglong)
        self._destroy = function_of(library, "cuGraphDestroy", handle)
        self._upload = function_of(library, "cuGraphUpload", handle, handle)
        self._launch = function_of(library, "cuGraphLaunch", handle, handle)

    def captured(self, issue: Callable[[], None], stream: int) -> int | None:
        """Return what `issue` puts on the stream as an executable graph, or None if the driver refuses.

        If None, nothing was done, and `issue` may be called again for the intended stream.
        """
        graph, executable = ctypes.c_void_p(), ctypes.c_void_p()
        if self._done(self._begin, stream, _THREAD_LOCAL):
            return None
        refused = True
        try:
            with suppress(RankError):
                issue()
                refused = False
        finally:
            status = self._end(stream, ctypes.byref(graph))
        if not graph.value:
            return None
        if not (status or refused):
            status = self._instantiate(ctypes.byref(executable), graph, 0)
        self._destroy(graph)
        if status or refused or not executable.value:
            return None
        self._upload(executable, stream)  # otherwise the first launch uploads it, when kernels may already be waiting
        return self._adopt(executable.value)

    def launch(self, executable: int, stream: int) -> int:
        """Launch an executable graph on a stream. Return the driver's error number, 0 for success."""
        return self._done(self._launch, executable, stream)

    def _done(self, function: Callable[..., int], *arguments: int) -> int:
        """Return the result of a call. A thread without a context is given one: it can have graphs too."""
        status = function(*arguments)
        return with_context(self._library, status, function, *arguments) if status else 0


class GraphCache:
    """Executable graphs by key. A graph is created the second time that its key occurs."""

    def __init__(self, graphs: Graphs, worth: bool = True, kept: int = KEPT) -> None:
        """worth: False never creates a graph.

        kept: number of keys that are remembered, and of graphs; the most recent ones are kept.
        """
        self.worth = worth
        self._graphs, self._kept = graphs, kept
        self._new: OrderedDict[Key, None] = OrderedDict()
        self._known: OrderedDict[Key, int] = OrderedDict()

    def find(self, key: Key, issue: Callable[[], None], stream: int) -> int | None:
        """Return the graph of what `issue` puts on a stream, or None. It may be created now, which takes a while."""
        if not self.worth:
            return None
        if key in self._known:
            self._known.move_to_end(key)
            return self._known[key]
        if key not in self._new:
            self._new[key] = None
            if len(self._new) > self._kept:
                self._new.popitem(last=False)
            return None
        del self._new[key]
        made = self._graphs.captured(issue, stream)
        if made is None:
            self.worth = False
            return None
        self._known[key] = made
        if len(self._known) > self._kept:
            self._graphs.drop(self._known.popitem(last=False)[1])  # the driver frees it after its last launch
        return made

    def launch(self, executable: int, stream: int) -> bool:
        """Launch a graph on a stream. Return True if the driver did; after a failure there are no more graphs."""
        refused = self._graphs.launch(executable, stream) != 0
        self.worth = self.worth and not refused
        return not refused


class Replay:
    """Issues a queue: directly for new addresses, as a graph for addresses that recur."""

    def __init__(self, queue: Issues, graphs: Graphs, worth: bool = True) -> None:
        """worth: False never creates a graph, for example if operations are timed one by one."""
        self._queue = queue
        self._names = sorted(queue.names)
        self._seen = GraphCache(graphs, worth and len(queue) >= ENOUGH)

    def graph(self, stream: int, bases: Mapping[str, int], capturing: bool) -> int | None:
        """Return the graph that `issue` is to launch, or None. It may be created now, which takes a while.

        capturing: True if the caller is capturing the stream.
        """
        if capturing:
            return None
        key = tuple(bases[name] for name in self._names)
        return self._seen.find(key, lambda: self._queue.issue(stream, bases, True), stream)

    def issue(self, stream: int, bases: Mapping[str, int], executable: int | None, capturing: bool = False) -> None:
        """Issue all operations on a stream. executable: their graph."""
        if executable is None:
            self._queue.issue(stream, bases, capturing)
        elif not self._seen.launch(executable, stream):
            self._queue.issue(stream, bases)


def check_captured(capturing: bool, measured: bool) -> None:
    """Raise BindingError for a captured launch of a kernel that waits for each launch."""
    if capturing:
        what, hint = "with a deadline", "compile it without a deadline, and without TILELINK_DEADLINE"
        if measured:
            what, hint = "that is measured", "compile it without trace"
        raise BindingError(f"a launch {what} cannot be captured", hint=hint)
