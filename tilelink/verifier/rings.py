"""Rings of buffers (tilelink/lowering/rings.py) in every order that their roles may have.

The states of a ring are explored from the start: each role at one of its steps, the phases and counts of all barriers,
what the buffers hold, and the reads and writes that are in flight. A write that is in flight may complete at any time,
in the order in which writes were started. A read is in flight until its role has waited for it. A ring is refused if in
some state

- a buffer is written while it is read or written, or before all readers have read it,
- a buffer is read that does not hold, completely and visibly, what its reader expects,
- a buffer is released while its reader still reads it,
- or no role can go on, and not all have finished.

Two rounds of the ring and one buffer more are explored: after two rounds all phases are those of the beginning.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

from tilelink.lowering.rings import ARRIVE, AWAIT, EXPECT, LOAD, MULTIPLY, STORE, Ring, Role, Step, of_tile

STARTED, WRITTEN, VISIBLE = range(3)
"""Contents of a buffer: a write is in flight; written by threads; all can read it."""

Place = tuple[int, Step]
"""Number of a buffer, counted over all rounds, and a step there."""
Barriers = tuple[tuple[int, int, int], ...]
"""Phase, missing arrivals and missing bytes of each barrier of each buffer."""
T = TypeVar("T")


class _Wrong(Exception):
    """Raised with what goes wrong in a state."""


@dataclass(frozen=True, kw_only=True)
class _State:
    """A state of a ring.

    at: step of each role, the writer first. holds: number and content of what each buffer holds. flying: writes in
    flight, (number, bytes, barrier). reading: numbers of the buffers that each reader reads.
    """

    at: tuple[int, ...]
    barriers: Barriers
    holds: tuple[tuple[int, int], ...]
    flying: tuple[tuple[int, int, int], ...]
    reading: tuple[tuple[int, ...], ...]


@lru_cache(maxsize=256)
def wrong(ring: Ring, tile: int) -> str | None:
    """Return what may go wrong in a ring whose readers read `tile` buffers for each tile, or None."""
    total = 2 * ring.buffers + 1
    tile = min(tile, total)
    tiles = -(-total // tile)
    scripts = (_script(ring.writer, tile, tiles), *[_script(ring.reader, tile, tiles)] * ring.reader.groups)
    return _Model(ring=ring, scripts=scripts).explore()


def _script(role: Role, tile: int, tiles: int) -> tuple[Place, ...]:
    """Return all steps of a role, tile after tile."""
    return tuple((number * tile + place, step) for number in range(tiles) for place, step in of_tile(role, tile))


@dataclass(frozen=True, kw_only=True)
class _Model:
    ring: Ring
    scripts: tuple[tuple[Place, ...], ...]

    def explore(self) -> str | None:
        ring = self.ring
        names = [name for name, _ in ring.barriers]
        steps = (*ring.writer.steps, *ring.reader.steps)
        wanted = {step.what for step in steps if step.word in (AWAIT, EXPECT, ARRIVE)}
        if missing := sorted(wanted - set(names)):
            return f"it has no barrier {missing[0]}"
        words = [step.word for step in ring.writer.steps]
        if LOAD in words and EXPECT not in words:
            return "no barrier expects what is loaded"
        if ring.writer.behind or ring.reader.behind > 1:
            return "a writer releases buffers late, or a reader more than one late"
        first = _State(
            at=(0,) * len(self.scripts),
            barriers=tuple((0, count, 0) for _ in range(ring.buffers) for _, count in ring.barriers),
            holds=((-1, VISIBLE),) * ring.buffers,
            flying=(),
            reading=((),) * ring.reader.groups,
        )
        seen, todo = {first}, [first]
        try:
            while todo:
                state = todo.pop()
                following = self._following(state)
                if not following and any(len(script) > at for script, at in zip(self.scripts, state.at, strict=True)):
                    return f"its roles wait for each other: {self._places(state)}"
                for one in following:
                    if one not in seen:
                        seen.add(one)
                        todo.append(one)
        except _Wrong as found:
            return str(found)
        return None

    def _places(self, state: _State) -> str:
        """Return the steps at which roles wait."""
        names = [self.ring.writer.name, *[self.ring.reader.name] * self.ring.reader.groups]
        waiting = [
            f"{name} at `{script[at][1]}` of buffer {script[at][0] % self.ring.buffers}"
            for name, script, at in zip(names, self.scripts, state.at, strict=True) if at < len(script)
        ]  # fmt: skip
        return ", ".join(dict.fromkeys(waiting))

    def _following(self, state: _State) -> list[_State]:
        following = [self._landed(state)]
        for role, (script, at) in enumerate(zip(self.scripts, state.at, strict=True)):
            if at < len(script):
                following.append(self._step(state, role, *script[at]))
        return [self._sorted(one) for one in following if one is not None]

    def _sorted(self, state: _State) -> _State:
        """Return the state with its readers in a fixed order: they are interchangeable."""
        pairs = sorted(zip(state.at[1:], state.reading, strict=True))
        at = (state.at[0], *(one for one, _ in pairs))
        return _State(
            at=at, barriers=state.barriers, holds=state.holds, flying=state.flying,
            reading=tuple(reading for _, reading in pairs),
        )  # fmt: skip

    def _step(self, state: _State, role: int, number: int, step: Step) -> _State | None:
        """Return the state after a step of a role, or None if the step must wait. Raise _Wrong for a wrong one."""
        slot = number % self.ring.buffers
        barriers, holds, flying, reading = state.barriers, state.holds, state.flying, state.reading
        match step.word:
            case "await":
                phase = barriers[self._barrier(step.what, slot)][0]
                if phase == (number // self.ring.buffers & 1) ^ step.number & 1:
                    return None
            case "arrive":
                number -= step.number
                if role and number in reading[role - 1]:
                    raise _Wrong(f"a {self.ring.reader.name} releases a buffer that it still reads")
                barriers = self._arrived(barriers, self._barrier(step.what, number % self.ring.buffers), 0)
            case "expect":
                barriers = self._arrived(barriers, self._barrier(step.what, slot), step.number)
            case "load":
                self._may_write(state, number)
                full = next(s.what for s in self.ring.writer.steps if s.word == EXPECT)
                holds = _with(holds, slot, (number, STARTED))
                flying = (*flying, (number, step.number, self._barrier(full, slot)))
            case "fill":
                self._may_write(state, number)
                holds = _with(holds, slot, (number, WRITTEN))
            case "fence":
                if holds[slot][1] == WRITTEN:
                    holds = _with(holds, slot, (holds[slot][0], VISIBLE))
            case "multiply" | "store":
                if holds[slot] != (number, VISIBLE):
                    raise _Wrong(f"a {self.ring.reader.name} reads a buffer before it is loaded")
                reading = _with(reading, role - 1, (*reading[role - 1], number))
            case "retire":
                kept = reading[role - 1][-step.number :] if step.number else ()
                reading = _with(reading, role - 1, kept)
            case _:
                raise _Wrong(f"`{step.word}` is no step of a role")
        return _State(
            at=_with(state.at, role, state.at[role] + 1), barriers=barriers, holds=holds, flying=flying, reading=reading
        )

    def _may_write(self, state: _State, number: int) -> None:
        slot, buffers = number % self.ring.buffers, self.ring.buffers
        if any(one % buffers == slot for reading in state.reading for one in reading):
            raise _Wrong(f"a {self.ring.writer.name} writes a buffer that is still read")
        if any(other != number and other % buffers == slot for other, _, _ in state.flying):
            raise _Wrong(f"a {self.ring.writer.name} writes a buffer that is still written")
        for script, at in zip(self.scripts[1:], state.at[1:], strict=True):
            if any(n == number - buffers and step.word in (MULTIPLY, STORE) for n, step in script[at:]):
                raise _Wrong(f"a {self.ring.writer.name} writes a buffer that has not been read")

    def _barrier(self, name: str, slot: int) -> int:
        """Return the place of a barrier in a state."""
        names = [one for one, _ in self.ring.barriers]
        return slot * len(names) + names.index(name)

    def _arrived(self, barriers: Barriers, at: int, more: int) -> Barriers:
        phase, missing, expected = barriers[at]
        return _with(barriers, at, self._turned(at, phase, missing - 1, expected + more))

    def _turned(self, at: int, phase: int, missing: int, expected: int) -> tuple[int, int, int]:
        """Return a barrier, in its next phase if nothing is missing."""
        if missing or expected:
            return phase, missing, expected
        return 1 - phase, self.ring.barriers[at % len(self.ring.barriers)][1], 0

    def _landed(self, state: _State) -> _State | None:
        """Return the state after the first write in flight has completed."""
        if not state.flying:
            return None
        (number, size, at), *rest = state.flying
        phase, missing, expected = state.barriers[at]
        barriers = _with(state.barriers, at, self._turned(at, phase, missing, expected - size))
        holds = state.holds
        if all(other != number for other, _, _ in rest):
            loads = sum(step.word == LOAD for step in self.ring.writer.steps)
            begun = sum(n == number and s.word == LOAD for n, s in self.scripts[0][: state.at[0]])
            if begun == loads:
                holds = _with(holds, number % self.ring.buffers, (number, VISIBLE))
        return _State(at=state.at, barriers=barriers, holds=holds, flying=tuple(rest), reading=state.reading)


def _with(values: tuple[T, ...], at: int, value: T) -> tuple[T, ...]:
    """Return a tuple with another value at a place."""
    return (*values[:at], value, *values[at + 1 :])
