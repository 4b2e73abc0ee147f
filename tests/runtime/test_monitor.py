"""The monitor of one process: deadlines, traces and delays."""

import pickle
import time
from collections.abc import Generator
from typing import Any

import pytest

from tilelink import settings
from tilelink.device import monitor
from tilelink.device.monitor import Aborted, Event, Monitor, Wait
from tilelink.errors import DeadlineError

WAIT = {"channel": 3, "seen": 1, "expected": 2, "stage": 1, "tile": 5}


@pytest.fixture(autouse=True)
def restored() -> Generator[None]:
    yield
    monitor.install(None)


class Clock:
    """Time of which a look takes ten microseconds, and a sleep as long as it was asked for: no machine is too busy."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        patch.setattr(time, "monotonic", self.monotonic)
        patch.setattr(time, "sleep", self.sleep)

    def monotonic(self) -> float:
        self.now += 1e-5
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def poll_until_it_raises(**where: int) -> DeadlineError:
    with pytest.raises(DeadlineError) as caught:
        for _ in range(100_000):
            monitor.poll(**where)
    return caught.value


def test_a_wait_that_outlives_its_deadline_names_itself(clock: Clock) -> None:
    monitor.install(
        Monitor(
            rank=2, process="main 0", deadline_s=0.05, describe=lambda stage, channel: ("gemm", f"xs channel {channel}")
        )
    )
    error = poll_until_it_raises(**WAIT)
    assert 0.05 <= clock.now < 0.06
    assert error.message == "rank 2 gemm tile 5 waits for xs channel 3: 1 of 2, after 0.05 s"
    assert (error.rank, error.stage, error.tile, error.channel) == (2, 1, 5, 3)
    assert (error.seen, error.expected, error.stage_name, error.channel_name) == (1, 2, "gemm", "xs channel 3")
    assert error.seconds is not None and error.seconds >= 0.05
    assert "TILELINK_DEADLINE" in str(error)


def test_without_names_there_are_numbers() -> None:
    wait = Wait(rank=0, stage=4, tile=7, channel=9, seen=0, expected=1)
    assert str(wait) == "rank 0 stage 4 tile 7 waits for channel 9: 0 of 1"
    assert str(Wait(rank=0, stage=-1, tile=-1, channel=9, seen=0, expected=1)) == "rank 0 waits for channel 9: 0 of 1"
    assert (wait.error().stage_name, "launch" in wait.error().message) == (None, False)
    assert Wait(rank=0, stage=4, tile=7, channel=9, seen=0, expected=1, epoch=6).error().message.endswith("in launch 6")


@pytest.mark.parametrize("change", [{"channel": 4}, {"expected": 3}, {"tile": 6}, {"stage": 2}])
def test_the_clock_starts_at_the_first_look_of_each_wait(change: dict[str, int], clock: Clock) -> None:
    monitor.install(Monitor(rank=0, process="", deadline_s=0.2))
    monitor.poll(**WAIT)
    clock.sleep(0.25)
    monitor.poll(**(WAIT | change))
    clock.sleep(0.25)
    with pytest.raises(DeadlineError):
        monitor.poll(**(WAIT | change))


def test_the_same_wait_after_an_event_is_a_new_one(clock: Clock) -> None:
    monitor.install(Monitor(rank=0, process="", deadline_s=0.1))
    monitor.poll(**WAIT)
    clock.sleep(0.15)
    monitor.record("wait", 1, 5, 3, 2)
    monitor.poll(**WAIT)


def test_a_count_that_grows_is_the_same_wait(clock: Clock) -> None:
    monitor.install(Monitor(rank=0, process="", deadline_s=0.1))
    monitor.poll(**(WAIT | {"seen": 0}))
    clock.sleep(0.15)
    with pytest.raises(DeadlineError, match="1 of 2"):
        monitor.poll(**WAIT)


def test_polls_of_a_long_wait_are_rare(clock: Clock) -> None:
    count = 0
    monitor.install(Monitor(rank=0, process="", deadline_s=60))
    while clock.now < 0.2:
        monitor.poll(**WAIT)
        count += 1
    assert 20 < count < 400


@pytest.mark.usefixtures("clock")
def test_a_process_without_a_monitor_has_the_deadline_of_the_settings() -> None:
    with settings.override(deadline=0.05):
        poll_until_it_raises(**WAIT)
    monitor.install(None)
    assert monitor.installed().deadline_s == monitor.DEFAULT_DEADLINE_S
    monitor.record("tile", 0, 0, 0, 0)
    assert monitor.installed().events == []


def test_events_are_kept_when_tracing() -> None:
    watching = Monitor(rank=0, process="", deadline_s=1, trace=True)
    monitor.install(watching)
    watching.epoch = 3
    monitor.record("tile", 1, 2, 0, 0)
    monitor.record("transfer", 1, 2, 4, 5, 6)
    assert watching.events == [Event("tile", 1, 2, 0, 0, 0, 3), Event("transfer", 1, 2, 4, 5, 6, 3)]
    monitor.install(Monitor(rank=0, process="", deadline_s=1))
    monitor.record("tile", 1, 2, 0, 0)
    assert monitor.installed().events == []


def test_another_failure_ends_waits_and_events() -> None:
    monitor.install(Monitor(rank=1, process="", deadline_s=1, aborted=lambda: True))
    with pytest.raises(Aborted) as caught:
        monitor.poll(**WAIT)
    assert caught.value.waiting == "rank 1 stage 1 tile 5 waits for channel 3: 1 of 2"
    with pytest.raises(Aborted) as caught:
        monitor.record("tile", 0, 0, 0, 0)
    assert caught.value.waiting == ""
    assert not isinstance(caught.value, Exception)


def test_events_are_signs_of_life_and_polls_are_not() -> None:
    beats: list[int] = []
    monitor.install(Monitor(rank=1, process="", deadline_s=1, beat=lambda: beats.append(1)))
    monitor.poll(**WAIT)
    assert beats == []
    monitor.record("tile", 0, 0, 0, 0)
    assert beats == [1]


def delays(monkeypatch: pytest.MonkeyPatch, seed: int | None, rank: int, process: str) -> list[float]:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    watching = Monitor(rank=rank, process=process, deadline_s=1, seed=seed, max_delay_s=0.01)
    for kind in ("tile", "wait", "notify", "transfer", "wait"):
        watching.record(kind, 0, 0, 0, 0)
    return slept


def test_delays_depend_on_seed_rank_and_process_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    first = delays(monkeypatch, 7, 1, "main 0")
    assert len(first) == 4 and all(0 <= one <= 0.01 for one in first) and len(set(first)) == 4
    assert delays(monkeypatch, 7, 1, "main 0") == first
    others: list[tuple[Any, ...]] = [(8, 1, "main 0"), (7, 2, "main 0"), (7, 1, "main 1")]
    assert all(delays(monkeypatch, *other) != first for other in others)
    assert delays(monkeypatch, None, 1, "main 0") == []


def test_errors_cross_processes() -> None:
    error = Wait(rank=2, stage=1, tile=5, channel=3, seen=1, expected=2, seconds=0.5).error()
    error.waiting = ("rank 0 waits too",)
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), vars(copy)) == (str(error), vars(error))
    assert str(copy).endswith("  then:\n    rank 0 waits too")
