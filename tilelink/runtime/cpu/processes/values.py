"""Arguments and results of a run of processes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from tilelink.device.monitor import Describe, Event, Wait
from tilelink.device.spans import Span
from tilelink.dump import ProgramSeen, Seen, WaitSeen
from tilelink.errors import DeadlineError
from tilelink.runtime.cpu.user_failures import UserCallFailure

Step = Callable[[int], None]
"""Called with the epoch of the launch."""

Observe = Callable[[Mapping[int, Sequence[ProgramSeen]], WaitSeen | None, int | None], tuple[Seen, ...]]
"""Called after a hang with the programs of each rank, and with the wait that was late and its rank, if one was."""

Hook = Callable[[int, int], None]
"""Called with the rank and the epoch."""


@dataclass(frozen=True, kw_only=True)
class Process:
    """A process of one rank: program `program` of the stream `stream`.

    steps: its steps in each launch. Step k is its part of the stream's kernel k, or None if it has no part in it.
    """

    rank: int
    stream: str
    program: int
    steps: tuple[Step | None, ...]

    def __str__(self) -> str:
        return f"rank {self.rank} ({self.stream} program {self.program})"


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run of processes, as run_processes describes it."""

    processes: tuple[Process, ...]
    epochs: range
    begin: Hook | None
    finish: Hook | None
    deadline_s: float
    seed: int | None
    max_delay_s: float
    trace: bool
    describe: Describe | None


@dataclass(frozen=True, kw_only=True)
class RunReport:
    """Events and spans of each process of a successful run, in the order of the processes given, and its seconds."""

    traces: tuple[tuple[Event, ...], ...]
    spans: tuple[tuple[Span, ...], ...]
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The end of a process, as the process reports it.

    moment: time in seconds of the clock that all processes share (time.monotonic).
    where: "step 2 of launch 3". summary, details: the exception in a line, and its traceback.
    called: the failure of a function that the program calls, if it is the cause.
    error: the wait that exceeded its deadline. waiting: the wait that ended because others failed, as a sentence, and
    `wait`, if it was for a counter.
    """

    kind: Literal["done", "failed", "deadline", "aborted"]
    moment: float
    where: str = ""
    summary: str = ""
    details: str = ""
    called: UserCallFailure | None = None
    error: DeadlineError | None = None
    waiting: str = ""
    wait: Wait | None = None
    events: tuple[Event, ...] = ()
    spans: tuple[Span, ...] = ()
