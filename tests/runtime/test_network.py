# pyright: basic
"""The network of CPU ranks by itself: deliveries, fences, and waits for them that have an end."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Generator
from typing import Any

import pytest

from tilelink.device.monitor import Aborted, Monitor
from tilelink.device.network import Network
from tilelink.errors import DeadlineError


@pytest.fixture
def late() -> Generator[Network]:
    """A network whose messages take minutes; it ends with the test, since its counters do."""
    network = Network("1", 1000.0)
    yield network
    network.end()


def buffer(*values: int) -> Any:
    return (ctypes.c_int64 * max(1, len(values)))(*values)


def test_all_has_arrived_after_a_quiet_and_signals_follow_their_data() -> None:
    network = Network("1", 0.001)
    sources, targets, counter = buffer(*range(1, 9)), buffer(*[0] * 8), buffer(0)
    for at in range(8):
        network.put(1, ctypes.addressof(targets) + 8 * at, ctypes.addressof(sources) + 8 * at, 8)
        network.signal(1, ctypes.addressof(counter))
    network.quiet()
    assert list(targets) == list(sources)
    assert counter[0] == 8


def test_a_wait_for_what_is_not_delivered_ends_at_the_deadline(late: Network) -> None:
    monitor = Monitor(rank=2, process="main 0", deadline_s=0.1)
    counter = buffer(0)
    for _ in range(3):
        late.signal(1, ctypes.addressof(counter))
    begin = time.monotonic()
    with pytest.raises(DeadlineError, match=r"rank 2 waits for [23] messages to other nodes") as caught:
        late.quiet(monitor.poll_network)
    assert 0.1 <= time.monotonic() - begin < 2
    assert caught.value.rank == 2 and caught.value.hint


def test_a_wait_for_the_network_ends_when_another_process_has_failed(late: Network) -> None:
    monitor = Monitor(rank=0, process="", deadline_s=60.0, aborted=lambda: True)
    counter = buffer(0)
    late.signal(1, ctypes.addressof(counter))
    with pytest.raises(Aborted, match="has not delivered"):
        late.quiet(monitor.poll_network)


def test_a_network_that_has_ended_writes_nothing() -> None:
    network, counter = Network("1", 0.05), buffer(0)
    for _ in range(20):
        network.signal(1, ctypes.addressof(counter))
    network.end()
    found = counter[0]
    assert found < 20
    time.sleep(0.3)
    assert counter[0] == found and network._agent is not None and not network._agent.is_alive()
    with pytest.raises(RuntimeError, match="has ended"):
        network.signal(1, ctypes.addressof(counter))
