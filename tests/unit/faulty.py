"""Signals of generated sources that go wrong on one rank: `spoiled` puts them into a source, TEST_FAULT says how.

TEST_FAULT: KIND:RANK:LAUNCH:STAGE:TILE, of the program that executes the signal. KIND is kill, sleep (for long), lose
(a notify), more (a wait for one more notify).
"""

from __future__ import annotations

import os
import signal
import time
from typing import Any

from tilelink.settings import variable

LONG_S = 60.0


def spoiled(source: str) -> str:
    """Return a generated source whose notifies and waits are those of this module."""
    named = source.replace("import triton\n", "import triton\nfrom tests.unit import faulty\n", 1)
    calls = {"dl.notify(": "faulty.notify(", "dl.wait(": "faulty.wait(", "queue.notify(": "faulty.flag(queue, "}
    for old, new in calls.items():
        named = named.replace(old, new)
    return named


def _kind(stage: Any, tile: Any) -> str:
    from tilelink.device import monitor
    from tilelink.device.mode import number

    kind, *place = str(variable("TEST_FAULT")).split(":")
    here = monitor.installed()
    if [int(one) for one in place] != [here.rank, here.epoch, number(stage), number(tile)]:
        return ""
    if kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "sleep":
        time.sleep(LONG_S)
    return kind


def notify(pad: Any, channel: Any, rank: Any, **named: Any) -> Any:
    """Notify as the device library does, or not."""
    from tilelink import device as dl

    return None if _kind(named["stage"], named["tile"]) == "lose" else dl.notify(pad, channel, rank, **named)


def flag(queue: Any, rank: int, channel: int, stage: int, t: int) -> None:
    """Notify as a copy engine does, or not."""
    if _kind(stage, t) != "lose":
        queue.notify(rank, channel, stage, t)


def wait(signals: Any, channel: Any, **named: Any) -> Any:
    """Wait as the device library does, or for one notify more."""
    from tilelink import device as dl

    more = _kind(named["stage"], named["tile"]) == "more"
    return dl.wait(signals, channel, **(named | {"target": named["target"] + more}))
