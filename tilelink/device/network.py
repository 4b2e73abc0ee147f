# pyright: basic
"""The network of CPU ranks: what a process puts and signals arrives late and in any order that its fences allow.

Each process has one agent, a thread. A put waits in the agent's bag; its source is read when it is delivered, so that
a source that is written too early shows. A signal that is put with data is delivered right after that data.
"""

import ctypes
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from triton._C.libtriton import interpreter  # pyright: ignore[reportMissingTypeStubs, reportMissingImports]

LONGEST_DELAY_S = 0.002
"""Largest delay of a delivery if the run asks for none."""

LONGEST_LOOK_S = 0.01
"""Largest time between two looks at what is missing."""

STRAGGLERS, STRAGGLER = 0.25, 10.0
"""Share of messages that may be later than others, and by which factor: what follows them then comes long before."""


@dataclass(frozen=True, kw_only=True, eq=False)
class _Sent:
    """A message on its way to a rank. fences: of its sender before it. signal: address of a counter, None for none."""

    peer: int
    fences: int
    due: float
    target: int = 0
    source: int = 0
    size: int = 0
    signal: int | None = None


class Network:
    """Messages that the process has sent and the network has not delivered. seed: determines delays and the order.

    max_delay_s: of a delivery that is no straggler.
    """

    def __init__(self, seed: str, max_delay_s: float = 0.0) -> None:
        self._random = random.Random(seed)
        self._delay = max_delay_s or LONGEST_DELAY_S
        self._bag: list[_Sent] = []
        self._changed = threading.Condition()
        self._fences = 0
        self._agent: threading.Thread | None = None
        self._failure: BaseException | None = None
        self._ended = False

    def put(self, peer: int, target: int, source: int, size: int, signal: int | None = None) -> None:
        """Send `size` bytes from address `source` to `target`, memory of a peer; then add 1 to the counter `signal`."""
        self._send(peer, signal, target=target, source=source, size=size)

    def signal(self, peer: int, counter: int) -> None:
        """Add 1 to a counter of a peer, by its address."""
        self._send(peer, counter)

    def fence(self) -> None:
        """Deliver what is sent to a rank after this, after what was sent to it before."""
        self._fences += 1

    def quiet(self, poll: Callable[[int, float], None] = lambda missing, seconds: None) -> None:
        """Return when all that was sent has been delivered.

        poll: called again and again with the number of messages that are missing, and the seconds of this wait so far;
        it ends the wait by an exception.
        """
        begin = time.monotonic()
        with self._changed:
            while self._bag and self._failure is None:
                self._changed.wait(LONGEST_LOOK_S)
                poll(len(self._bag), time.monotonic() - begin)
        if self._failure is not None:
            raise self._failure

    def end(self) -> None:
        """Drop what has not been delivered and end the agent: nothing is read or written afterwards."""
        with self._changed:
            self._ended = True
            self._bag.clear()
            self._changed.notify_all()
        if self._agent is not None:
            self._agent.join()

    def _send(self, peer: int, signal: int | None, **what: int) -> None:
        longest = self._delay * (STRAGGLER if self._random.random() < STRAGGLERS else 1.0)
        due = time.monotonic() + self._random.uniform(0.0, longest)
        with self._changed:
            if self._ended:
                raise RuntimeError("the network has ended")
            self._bag.append(_Sent(peer=peer, fences=self._fences, due=due, signal=signal, **what))
            self._changed.notify_all()
        if self._agent is None:
            self._agent = threading.Thread(target=self._deliver_all, daemon=True)
            self._agent.start()

    def _deliver_all(self) -> None:
        try:
            while not self._ended:
                with self._changed:
                    now = time.monotonic()
                    ready = [one for one in self._bag if one.due <= now and not self._fenced(one)]
                    if ready:
                        self._deliver(self._random.choice(ready))
                    elif self._bag:
                        later = [one.due - now for one in self._bag if one.due > now]
                        self._changed.wait(min(later, default=0.0001))
                    elif not self._ended:
                        self._changed.wait()
        except BaseException as error:
            with self._changed:
                self._failure = error
                self._changed.notify_all()

    def _fenced(self, sent: _Sent) -> bool:
        return any(other.peer == sent.peer and other.fences < sent.fences for other in self._bag)

    def _deliver(self, sent: _Sent) -> None:
        ctypes.memmove(sent.target, sent.source, sent.size)
        if sent.signal is not None:
            _add_one(sent.signal)
        self._bag.remove(sent)
        self._changed.notify_all()


def _add_one(counter: int) -> None:
    one, there = np.ones(1, np.int32), np.ones(1, bool)
    at = np.array([counter], np.uint64)
    interpreter.atomic_rmw(interpreter.RMW_OP.ADD, at, one, there, interpreter.MEM_SEMANTIC.RELEASE)


_installed: Network | None = None


def install(network: Network | None) -> None:
    """Install the process's network. None: a new one at its first use."""
    global _installed
    _installed = network


def installed() -> Network:
    """Return this process's network."""
    global _installed
    if _installed is None:
        _installed = Network("0")
    return _installed
