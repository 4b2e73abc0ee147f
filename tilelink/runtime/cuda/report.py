"""What a GPU reports before it stops, because launches of a kernel overlap or come in another order than on a peer.

The report is in memory of the host, since nothing can be read from a GPU afterwards. The host looks at it in the next
call of the kernel, and wherever a call of the driver fails. A process that only replays graphs makes no such call: it
finds torch's error at its next synchronisation, and the report is printed when the process ends.
"""

from __future__ import annotations

import atexit
import ctypes
import sys
from weakref import WeakSet

import torch

from tilelink.errors import LaunchOrderError, OverlapError, RankError

OVERLAPPED, DIFFERENT = 1, 2
"""Kinds of reports. The words of a report are its kind, 0 if there is none, and: how many launches had begun and how
many had ended when one began; or what is launched here, what a peer launches instead, and the peer."""
_WORDS = 4
_KIND, _FIRST, _SECOND, _PEER = range(_WORDS)
_LOST = "this process can no longer use its GPU"


class Report:
    """The report of a kernel. words: as the GPU writes them; reading one costs no call of torch."""

    def __init__(self, program: str, rank: int, device: torch.device) -> None:
        self._memory = torch.zeros(_WORDS, dtype=torch.int64, pin_memory=device.type == "cuda")
        self.address = self._memory.data_ptr()
        self.words = (ctypes.c_int64 * _WORDS).from_address(self.address)
        self._program, self._rank = program, rank
        _reports.add(self)

    def check(self) -> None:
        """Raise the error that the GPU has reported, if it has: OverlapError or LaunchOrderError."""
        if self.words[_KIND]:
            raise self._error()

    def _error(self) -> RankError:
        first, second = self.words[_FIRST], self.words[_SECOND]
        if self.words[_KIND] == OVERLAPPED:
            late = f"launch {second + 1} had ended"
            message = f"launch {first + 1} of {self._program} on rank {self._rank} began before {late}"
            hint = (
                "order launches of one kernel that are on several streams, replays of graphs too, by an event "
                "(docs/decode.md)"
            )
            return OverlapError(f"{message}; {_LOST}", hint=hint)
        peer = self.words[_PEER]
        message = f"rank {self._rank} launches {self._program} {_which(first)}, rank {peer} {_which(second)}"
        hint = "all ranks replay their graphs, and make other calls, in one order (docs/decode.md)"
        return LaunchOrderError(f"{message}; {_LOST}", hint=hint)


def identity(capture: int, node: int) -> int:
    """Return a number, below 2**32, of the launch `node` of the capture `capture`, both counted from 1; 0 is eager."""
    return (capture % 2**16) << 16 | node % 2**16


def _which(number: int) -> str:
    """Return what launches a kernel, from its identity."""
    if not number:
        return "outside of graphs"
    return f"as launch {number % 2**16} of capture {number >> 16}"


_reports = WeakSet[Report]()


def check_all() -> None:
    """Raise what the GPU has reported of any kernel of this process. It is why the driver fails."""
    for one in [*_reports]:
        one.check()


@atexit.register
def _tell() -> None:
    try:
        check_all()
    except RankError as error:
        print(error, file=sys.stderr)
