"""Recorded operations of copy engines, with addresses filled in, as each launch issues them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tilelink.runtime.cuda.driver import Call, Driver, Handle, driver, driver_error, library, with_context
from tilelink.runtime.cuda.graph_branches import Branches
from tilelink.runtime.cuda.record_copies import Box, Copy, Operation, StreamWait, StreamWrite

Bases = Mapping[str, int]
"""Addresses of the tensors that a caller passes, by name."""
Places = Callable[[str, int], int | None]
"""Address of a rank's copy of a tensor, by name and rank; None for a tensor that the caller passes."""


@dataclass(frozen=True, kw_only=True)
class End:
    """One side of a copy: an address, or an offset in bytes from a tensor that the caller passes."""

    address: int
    name: str | None

    def at(self, bases: Bases) -> int:
        return self.address if self.name is None else self.address + bases[self.name]


@dataclass(frozen=True, kw_only=True)
class Move:
    """A copy of `rows` runs of `width` bytes, with a pitch on either side."""

    target: End
    target_pitch: int
    source: End
    source_pitch: int
    width: int
    rows: int


@dataclass(frozen=True, kw_only=True)
class Word:
    """A four-byte copy of a flag's value to a counter."""

    target: int
    source: int


@dataclass(frozen=True, kw_only=True)
class Ready:
    """A wait until the four-byte word at an address is 1, which then becomes zero again."""

    address: int


Step = Move | Word | StreamWait | Ready


class Queue:
    """The operations of one launch on one stream, as driver calls with prepared arguments.

    Only the stream and the addresses of a caller's tensors change. They are cells that all calls share.
    """

    def __init__(
        self, operations: Sequence[Operation], places: Places, pads: Sequence[int], rank: int, values: int,
        new_event: Callable[[], int] | None = None, branches: Branches | None = None, ready: int | None = None,
    ) -> None:  # fmt: skip
        """pads: address of each rank's counters. values: address of the values of the flags.

        ready: address of a word that all operations wait for.
        new_event: makes events, one before the first operation and one after each; see `self.timed` and `elapsed_ns`.
        None: operations are not timed.
        branches: puts captured waits into a branch; None if they must stay in line.
        """
        self._pad = pads[rank]
        self._stream, self._waits = Handle(), Handle()
        self._branches = branches
        self._cells: list[tuple[ctypes.c_uint64, End]] = []
        self._calls: list[tuple[bool, Call]] = []
        self.timed: list[tuple[Operation, Handle, Handle]] = []
        """The timed operations, with the events before and after each."""
        if ready is not None:
            self._calls.append((True, self._prepared(driver(), Ready(address=ready))))
        before = self._mark(new_event) if new_event and operations else None
        for operation in operations:
            for step in _steps(operation, places, pads, values):
                self._calls.append((isinstance(step, StreamWait), self._prepared(driver(), step)))
            if new_event and before is not None:
                after = self._mark(new_event)
                self.timed.append((operation, before, after))
                before = after

    def __len__(self) -> int:
        return len(self._calls)

    @property
    def names(self) -> frozenset[str]:
        """Return the names of the caller's tensors whose addresses it uses."""
        return frozenset(end.name for _, end in self._cells if end.name is not None)

    def issue(self, stream: int, bases: Bases, captured: bool = False) -> None:
        """Issue all operations on a stream (its handle). Raises RankError if the driver refuses one.

        captured: True if the stream is being captured, so that the waits may become a branch of a graph.
        """
        for cell, end in self._cells:
            cell.value = end.at(bases)
        branches = self._branches if captured else None
        self._stream.value, self._waits.value = stream, branches.waits if branches else stream
        if branches:
            branches.begin(stream)
        for waits, (function, arguments) in self._calls:
            if branches and waits:
                branches.before_wait()
            elif branches:
                branches.before_copy(stream)
            if status := function(*arguments):
                status = with_context(library(), status, function, *arguments)
            if status:
                raise driver_error("refused an operation of a copy engine", status)
        if branches:
            branches.before_copy(stream)

    def elapsed_ns(self, first: int, second: Handle) -> float:
        """Return the ns from an event (its handle) to one of `timed`. Raises RankError if one is not complete."""
        return driver().elapsed_ns(Handle(first), second)

    def _mark(self, new_event: Callable[[], int]) -> Handle:
        event = Handle(new_event())
        self._calls.append((False, driver().record(self._stream, event)))
        return event

    def _prepared(self, calls: Driver, step: Step) -> Call:
        match step:
            case Word(target=target, source=source):
                return calls.copy(self._stream, ctypes.c_uint64(target), ctypes.c_uint64(source), 4)
            case StreamWait(channel=channel, threshold=threshold):
                return calls.wait_and_zero(self._waits, self._pad + 4 * channel, threshold)
            case Ready(address=address):
                return calls.wait_and_zero(self._waits, address, 1)
            case Move(target=target, source=source, width=width, rows=rows):
                to, of = self._cell(target), self._cell(source)
                if rows == 1:
                    return calls.copy(self._stream, to, of, width)
                pitches = step.target_pitch, step.source_pitch
                return calls.copy_rows(self._stream, to, of, pitches, width, rows)

    def _cell(self, end: End) -> ctypes.c_uint64:
        cell = ctypes.c_uint64(end.address)
        if end.name is not None:
            self._cells.append((cell, end))
        return cell


def _steps(operation: Operation, places: Places, pads: Sequence[int], values: int) -> list[Step]:
    match operation:
        case Copy(target=target, source=source):
            return [*_moves(target, source, places)]
        case StreamWrite(number=number, rank=peer, channel=channel):
            return [Word(target=pads[peer] + 4 * channel, source=values + 4 * number)]
        case StreamWait():
            return [operation]


def _moves(target: Box, source: Box, places: Places) -> list[Move]:
    """Return one move if the rows are evenly spaced on both sides, else one for each row."""
    rows = len(target.offsets)
    to, of = _pitch(target.offsets), _pitch(source.offsets)
    if rows == 1 or (to is not None and of is not None and min(to, of) >= target.width):
        pitches = (to or target.width, of or target.width)
        return [_move(target, source, 0, pitches, rows, places)]
    return [_move(target, source, row, (target.width, target.width), 1, places) for row in range(rows)]


def _move(target: Box, source: Box, row: int, pitches: tuple[int, int], rows: int, places: Places) -> Move:
    return Move(
        target=_end(target, row, places),
        target_pitch=pitches[0],
        source=_end(source, row, places),
        source_pitch=pitches[1],
        width=target.width,
        rows=rows,
    )


def _end(box: Box, row: int, places: Places) -> End:
    base = places(box.tensor, box.rank)
    if base is None:
        return End(address=box.offsets[row], name=box.tensor)
    return End(address=base + box.offsets[row], name=None)


def _pitch(offsets: Sequence[int]) -> int | None:
    """Return the constant distance between offsets, or None."""
    steps = {b - a for a, b in pairwise(offsets)}
    return steps.pop() if len(steps) == 1 else None
