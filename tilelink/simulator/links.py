"""Links shared fairly: processor sharing in virtual time, so that a transfer costs O(log n) however many share a link.

A port serves all its transfers at the same rate. Its clock counts the bytes that each of them has been served; a
transfer that arrives at clock c with b bytes leaves at clock c + b, whatever comes and goes in between (Parekh and
Gallager, 1993). A transfer passes a port out of its source and a port into its target. Each serves it as if the other
were no limit, and it is done when both are: exact where one of them is the bottleneck throughout, optimistic where
that changes on the way. Max-min fairness over both at once would touch every transfer at every event.
"""

from __future__ import annotations

from heapq import heappop, heappush


class Port:
    """One direction of one rank's link. Times are seconds, sizes bytes; `bandwidth` bytes a second."""

    __slots__ = ("bandwidth", "clock", "now", "served", "version")

    def __init__(self, bandwidth: float) -> None:
        self.bandwidth = bandwidth
        self.clock = 0.0
        self.now = 0.0
        self.served: list[tuple[float, int]] = []
        """(clock at which it leaves, transfer), a heap."""
        self.version = 0
        """Counts changes: a departure that was announced before one is void."""

    def advance(self, now: float) -> None:
        """Brings the clock to a time."""
        if self.served:
            self.clock += (now - self.now) * self.bandwidth / len(self.served)
        self.now = now

    def join(self, now: float, transfer: int, size: float) -> None:
        """A transfer begins."""
        self.advance(now)
        heappush(self.served, (self.clock + size, transfer))
        self.version += 1

    def leave(self, now: float) -> int:
        """The transfer that is due ends."""
        self.advance(now)
        self.clock, transfer = heappop(self.served)
        self.version += 1
        return transfer

    def due(self) -> float:
        """When the next transfer leaves, if nothing changes. Only for a port that serves one."""
        return self.now + max(0.0, self.served[0][0] - self.clock) * len(self.served) / self.bandwidth
