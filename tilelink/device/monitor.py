"""Reports of interpreted kernels to their process: pending waits, and events for a trace.

The device library calls `poll` and `record`. The monitor that the process has installed ends waits that take too long,
stops when another process of the run has failed, keeps a trace, and delays events to provoke other interleavings.
"""

import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from tilelink.device.spans import Span
from tilelink.errors import DeadlineError
from tilelink.settings import settings

DEFAULT_DEADLINE_S = 60.0
DELAYED = frozenset({"wait", "notify", "transfer"})
YIELDS = 8
SHORTEST_SLEEP_S = 0.00005
LONGEST_SLEEP_S = 0.002

Describe = Callable[[int, int], tuple[str, str]]
"""(stage, channel) -> their names in the program, for example ("gemm", "xs channel 3"); "" if unknown."""


class Event(NamedTuple):
    """One event of a process in the launch `epoch`.

    kind: "tile" (0, 0), "wait" (channel, expected), "notify" (rank, channel) or "transfer" (tensor, rank, offset).
    """

    kind: str
    stage: int
    tile: int
    a: int
    b: int
    c: int = 0
    epoch: int = 0


@dataclass(frozen=True, kw_only=True)
class Wait:
    """A wait that has not passed: it saw `seen` on `channel` and needs `expected`.

    seconds: duration so far, in the launch `epoch` (0: outside of a launch). Names are "" if unknown. A stage below 0
    is the runtime itself.
    """

    rank: int
    stage: int
    tile: int
    channel: int
    seen: int
    expected: int
    seconds: float = 0.0
    epoch: int = 0
    stage_name: str = ""
    channel_name: str = ""

    def __str__(self) -> str:
        """rank 2 gemm tile 5 waits for xs channel 3: 1 of 2"""
        stage = self.stage_name or (f"stage {self.stage}" if self.stage >= 0 else "")
        tile = f"tile {self.tile}" if self.tile >= 0 else ""
        place = " ".join(filter(None, (f"rank {self.rank}", stage, tile)))
        channel = self.channel_name or f"channel {self.channel}"
        return f"{place} waits for {channel}: {self.seen} of {self.expected}"

    def error(self) -> DeadlineError:
        """Return the error that ends the run because of this wait."""
        launch = f" in launch {self.epoch}" if self.epoch else ""
        return DeadlineError(
            f"{self}, after {self.seconds:.2f} s{launch}",
            rank=self.rank,
            stage=self.stage,
            tile=self.tile,
            channel=self.channel,
            seen=self.seen,
            expected=self.expected,
            seconds=self.seconds,
            stage_name=self.stage_name or None,
            channel_name=self.channel_name or None,
            hint="the notifies that are missing never came, or TILELINK_DEADLINE is too short for this machine",
        )


class Aborted(BaseException):
    """Raised to stop this process because another one of the run has failed. Not an error here, hence no Exception.

    waiting: the wait that it ended, as a sentence; "" if there was none. wait: the same, if it was for a counter.
    """

    def __init__(self, waiting: str = "", wait: Wait | None = None) -> None:
        super().__init__(waiting)
        self.waiting, self.wait = waiting, wait


class Monitor:
    """Monitor of one process: of its sequential work.

    rank, process: identify the process. Together with `seed` they determine the delays.
    deadline_s: seconds that a wait may take, from its first unsuccessful look.
    seed, max_delay_s: with a seed, each wait, notify and transfer is delayed by 0..max_delay_s seconds.
    trace: True to keep the events, in `events`. Spans, which only traced kernels report, are always kept, in `spans`.
    describe: names stages and channels in messages.
    aborted: returns True if another process has failed. beat: called at every event, as a sign of life.
    """

    def __init__(
        self,
        *,
        rank: int,
        process: str,
        deadline_s: float,
        seed: int | None = None,
        max_delay_s: float = 0.0,
        trace: bool = False,
        describe: Describe | None = None,
        aborted: Callable[[], bool] = lambda: False,
        beat: Callable[[], None] = lambda: None,
    ) -> None:
        self.rank = rank
        self.process = process
        self.deadline_s = deadline_s
        self.epoch = 0
        self.events: list[Event] = []
        self.spans: list[Span] = []
        self._begun: dict[str, int] = {}
        self._trace = trace
        self._random = None if seed is None else random.Random(f"{seed} {rank} {process}")
        self._max_delay_s = max_delay_s
        self._describe = describe
        self._aborted = aborted
        self._beat = beat
        self._pause = Pause()
        self._waiting_for: tuple[int, int, int, int] | None = None

    def poll(self, *, channel: int, seen: int, expected: int, stage: int, tile: int) -> None:
        """Called after each look at a counter that was too small. Yields the processor for a moment.

        A new wait begins with another channel, count, stage or tile, and after every event. Raises DeadlineError if the
        wait has taken too long, Aborted if another process has failed.
        """
        wait = (channel, expected, stage, tile)
        if wait != self._waiting_for:
            self._waiting_for = wait
            self._pause = Pause()
        seconds = self._pause.seconds()
        if self._aborted():
            found = self._wait(seen, seconds, *wait)
            raise Aborted(str(found), found)
        if seconds >= self.deadline_s:
            raise self._wait(seen, seconds, *wait).error()
        self._pause()

    def poll_network(self, missing: int, seconds: float) -> None:
        """Called while the process waits for `missing` messages that it has sent, for so many seconds so far.

        Raises DeadlineError if the wait has taken too long, Aborted if another process has failed.
        """
        launch = f" in launch {self.epoch}" if self.epoch else ""
        what = f"rank {self.rank} waits for {missing} messages to other nodes, which the network has not delivered"
        if self._aborted():
            raise Aborted(what)
        if seconds >= self.deadline_s:
            hint = "fences and stragglers make messages late: a longer deadline may be enough"
            raise DeadlineError(f"{what}, after {seconds:.2f} s{launch}", rank=self.rank, seconds=seconds, hint=hint)

    def record(self, kind: str, stage: int, tile: int, a: int, b: int, c: int = 0) -> None:
        """Record an event, possibly after a delay. Raises Aborted if another process has failed."""
        self._waiting_for = None
        if self._aborted():
            raise Aborted
        if kind in DELAYED:
            self.delay()
        self._beat()
        if self._trace:
            self.events.append(Event(kind, stage, tile, a, b, c, self.epoch))

    def delay(self) -> None:
        """Sleep for a random time, if the run has delays: between events, and between the words of a tile."""
        if self._random is not None:
            time.sleep(self._random.uniform(0.0, self._max_delay_s))

    def begin(self, kind: str) -> None:
        """Record the start of a span of a kind, in ns of the clock that all processes share."""
        self._begun[kind] = time.perf_counter_ns()

    def end(self, track: int, kind: str, stage: int, tile: int, a: int, b: int) -> None:
        """Keep the span of the last begun operation of this kind."""
        end = time.perf_counter_ns()
        self.spans.append(Span(self.rank, track, kind, stage, tile, a, b, self.epoch, self._begun[kind], end))

    def _wait(self, seen: int, seconds: float, channel: int, expected: int, stage: int, tile: int) -> Wait:
        stage_name, channel_name = self._describe(stage, channel) if self._describe else ("", "")
        return Wait(
            rank=self.rank,
            stage=stage,
            tile=tile,
            channel=channel,
            seen=seen,
            expected=expected,
            seconds=seconds,
            epoch=self.epoch,
            stage_name=stage_name,
            channel_name=channel_name,
        )


class Pause:
    """Yields the processor, each time for longer: first once, then in sleeps of an eighth of the time so far.

    So a wait ends at most an eighth late, and many waiting processes on few cores do not starve the working ones.
    """

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._calls = 0

    def seconds(self) -> float:
        """Return the seconds since this pause was created."""
        return time.monotonic() - self._start

    def __call__(self) -> None:
        self._calls += 1
        if self._calls <= YIELDS:
            os.sched_yield()
        else:
            time.sleep(min(max(self.seconds() / 8, SHORTEST_SLEEP_S), LONGEST_SLEEP_S))


_installed: Monitor | None = None


def install(monitor: Monitor | None) -> None:
    """Install the process's monitor. None: one that only checks the deadline, which is installed from the start."""
    global _installed
    _installed = monitor


def installed() -> Monitor:
    """Return this process's monitor."""
    global _installed
    if _installed is None:
        _installed = Monitor(rank=0, process="", deadline_s=settings().deadline or DEFAULT_DEADLINE_S)
    return _installed


def poll(*, channel: int, seen: int, expected: int, stage: int, tile: int) -> None:
    """Call Monitor.poll of the installed monitor, after each look at a counter that was too small."""
    installed().poll(channel=channel, seen=seen, expected=expected, stage=stage, tile=tile)


def record(kind: str, stage: int, tile: int, a: int, b: int, c: int = 0) -> None:
    """Call Monitor.record of the installed monitor.

    kind: "tile" (0, 0), "wait" (channel, expected), "notify" (rank, channel) or "transfer" (tensor, rank, offset).
    """
    installed().record(kind, stage, tile, a, b, c)


def delay() -> None:
    """Call Monitor.delay of the installed monitor."""
    installed().delay()


def begin(kind: str) -> None:
    """Call Monitor.begin of the installed monitor."""
    installed().begin(kind)


def end(track: int, kind: str, stage: int, tile: int, a: int, b: int) -> None:
    """Call Monitor.end of the installed monitor. a and b are those of Span."""
    installed().end(track, kind, stage, tile, a, b)
