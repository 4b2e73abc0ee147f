"""What interpreted kernels report to their process: waits that go on, and events for a trace."""

import time

_INTERVAL = 0.0002


def poll(*, channel: int, seen: int, expected: int, stage: int, tile: int) -> None:
    """Called after each look at a counter that was too small; leaves the processor to others for a moment."""
    time.sleep(_INTERVAL)


def record(kind: str, stage: int, tile: int, a: int, b: int, c: int = 0) -> None:
    """Notes an event: kind "tile" (0, 0), "wait" (channel, expected), "notify" (rank, channel) or
    "transfer" (tensor, rank, offset)."""
