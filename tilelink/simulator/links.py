"""Fair sharing of links: processor sharing in virtual time, at O(log n) per transfer for n transfers on a link.

A port serves all its transfers at the same rate. Its clock counts the bytes served to each of them. A transfer that
arrives at clock c with b bytes leaves at clock c + b, regardless of arrivals and departures in between (Parekh and
Gallager, 1993). A transfer passes a port out of its source and a port into its target. Each port serves it as if the
other were no limit, and the transfer ends when both are done. This is exact if one port is the bottleneck throughout,
and optimistic if the bottleneck changes on the way. Max-min fairness over both ports would touch every transfer at
every event.
"""

from __future__ import annotations

from heapq import heappop, heappush


class Port:
    """One direction of one rank's link. Times are in seconds, sizes in bytes, `bandwidth` in bytes per second."""

    __slots__ = ("bandwidth", "clock", "now", "served", "version")

    def __init__(self, bandwidth: float) -> None:
        self.bandwidth = bandwidth
        self.clock = 0.0
        self.now = 0.0
        self.served: list[tuple[float, int]] = []
        """Heap of (clock at which the transfer leaves, transfer)."""
        self.version = 0
        """Number of changes so far: a departure announced before the latest change is void."""

    def advance(self, now: float) -> None:
        """Advance the clock to a time."""
        if self.served:
            self.clock += (now - self.now) * self.bandwidth / len(self.served)
        self.now = now

    def join(self, now: float, transfer: int, size: float) -> None:
        """Add a transfer of `size` bytes."""
        self.advance(now)
        heappush(self.served, (self.clock + size, transfer))
        self.version += 1

    def leave(self, now: float) -> int:
        """Remove the transfer that is due, and return it."""
        self.advance(now)
        self.clock, transfer = heappop(self.served)
        self.version += 1
        return transfer

    def due(self) -> float:
        """Return the time at which the next transfer leaves if nothing changes. The port must serve a transfer."""
        return self.now + max(0.0, self.served[0][0] - self.clock) * len(self.served) / self.bandwidth
