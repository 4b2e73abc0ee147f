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

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple, TypeVar

from tilelink.lowering.rings import (
    ARRIVE,
    AWAIT,
    COMPUTE,
    EXPECT,
    LEADING,
    LOAD,
    MULTIPLY,
    RETIRE,
    STORE,
    TRAILING,
    Ring,
    Role,
    Step,
    of_tile,
    parts_of,
    taken,
)

STARTED, WRITTEN, VISIBLE = range(3)
"""Contents of a buffer: a write is in flight; written by threads; all can read it."""

Place = tuple[int, int, Step]
"""Number of a ring, number of a buffer there, counted over all rounds, and a step at it."""
Barriers = tuple[tuple[int, int, int], ...]
"""Phase, missing arrivals and missing bytes of each barrier of each buffer."""
T = TypeVar("T")
AT_ONCE = (LOAD, EXPECT, MULTIPLY, STORE)
"""Steps that a role makes at once after a wait. A wrong one is wrong as early as it can be."""
TILES = 3
"""Tiles of few turns that the rings of a loop are explored for: what is kept changes its phase with each."""


class _Wrong(Exception):
    """Raised with what goes wrong in a state."""


class _State(NamedTuple):
    """A state of rings that roles share.

    at: step of each role, the writer first. holds: number and content of what each buffer of each ring holds. flying:
    writes in flight, (ring, number, bytes, barrier). reading: (ring, number) of the buffers that each reader reads.
    """

    at: tuple[int, ...]
    barriers: Barriers
    holds: tuple[tuple[int, int], ...]
    flying: tuple[tuple[int, int, int, int], ...]
    reading: tuple[tuple[tuple[int, int], ...], ...]


@lru_cache(maxsize=256)
def wrong(ring: Ring, turns: int) -> str | None:
    """Return what may go wrong in a ring that a tile has some turns at, or None."""
    total = 2 * ring.buffers + 1
    turns = min(turns, total)
    tiles = -(-total // taken(ring.reader, turns))
    scripts = (_script(ring.writer, turns, tiles), *[_script(ring.reader, turns, tiles)] * ring.reader.groups)
    return _Model(rings=(ring,), scripts=scripts).explore()


def wrong_together(ring: Ring, kept: Ring, turns: int) -> str | None:
    """Return what may go wrong at the rings of a loop that carries a state, or None.

    The same roles are at both: the loader loads what is kept before the first turn of a tile, and consumers release it
    after the last one. Nothing multiplies it then, because a turn computes with its product, which must be complete.
    """
    if (ring.writer.groups, ring.reader.groups) != (kept.writer.groups, kept.reader.groups):
        return "its rings have other roles"
    long = min(turns, ring.buffers + 2)  # more than two rounds of the ring in a tile
    for number, tiles in {min(turns, 2): TILES, long: 2 if long > 2 else TILES}.items():
        if reason := _wrong_in_loop(ring, kept, number, tiles):
            return reason
    return None


@lru_cache(maxsize=256)
def _wrong_in_loop(ring: Ring, kept: Ring, turns: int, tiles: int) -> str | None:
    """Return what may go wrong in so many tiles of a loop, each of so many turns, or None."""
    return _loop(ring, kept, turns, tiles).explore()


def _loop(ring: Ring, kept: Ring, turns: int, tiles: int) -> _Model:
    """Return the model of so many tiles of a loop, each of so many turns."""
    loader = tuple(_tiles(ring.writer, turns, tiles, lambda tile: (_kept(kept.writer.steps, tile), ())))
    held = next((n for n, step in enumerate(kept.reader.steps) if step.word == RETIRE), len(kept.reader.steps))
    before, after = kept.reader.steps[:held], kept.reader.steps[held:]
    consumer = tuple(_tiles(ring.reader, turns, tiles, lambda tile: (_kept(before, tile), _kept(after, tile))))
    return _Model(rings=(ring, kept), scripts=(loader, *[consumer] * ring.reader.groups))


def _kept(steps: tuple[Step, ...], tile: int) -> tuple[Place, ...]:
    return tuple((1, tile, step) for step in steps)


def _tiles(
    role: Role, turns: int, tiles: int, around: Callable[[int], tuple[tuple[Place, ...], tuple[Place, ...]]]
) -> Iterator[Place]:
    """Yield the steps of a role at the rings of a loop. around: those before the first turn, and after the last one."""
    size, parts = taken(role, turns), parts_of(role)
    for tile in range(tiles):
        before, after = around(tile)
        yield from before
        own = [(0, tile * size + place, step) for place, step in of_tile(role, turns)]
        end = len(own) - len(parts.last)
        yield from (*own[:end], *after, *own[end:])


def _script(role: Role, turns: int, tiles: int) -> tuple[Place, ...]:
    """Return all steps of a role, tile after tile."""
    size = taken(role, turns)
    return tuple((0, tile * size + place, step) for tile in range(tiles) for place, step in of_tile(role, turns))


@dataclass(frozen=True, kw_only=True)
class _Model:
    rings: tuple[Ring, ...]
    scripts: tuple[tuple[Place, ...], ...]

    def explore(self) -> str | None:
        for ring in self.rings:
            if reason := _unusable(ring):
                return reason
        first = _State(
            at=(0,) * len(self.scripts),
            barriers=tuple(
                (0, count, 0) for ring in self.rings for _ in range(ring.buffers) for _, count in ring.barriers
            ),
            holds=((-1, VISIBLE),) * sum(ring.buffers for ring in self.rings),
            flying=(),
            reading=((),) * (len(self.scripts) - 1),
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

    @cached_property
    def _firsts(self) -> tuple[tuple[int, int], ...]:
        """The first buffer and the first barrier of each ring, in a state."""
        found, buffers, barriers = list[tuple[int, int]](), 0, 0
        for ring in self.rings:
            found.append((buffers, barriers))
            buffers, barriers = buffers + ring.buffers, barriers + ring.buffers * len(ring.barriers)
        return tuple(found)

    @cached_property
    def _arrivals(self) -> tuple[int, ...]:
        """The arrivals of a phase of each barrier of each buffer."""
        return tuple(count for ring in self.rings for _ in range(ring.buffers) for _, count in ring.barriers)

    @cached_property
    def _reads(self) -> Mapping[tuple[int, int], int]:
        """(ring, number of a buffer) -> the last step of a reader that reads it."""
        return {(r, n): at for at, (r, n, step) in enumerate(self.scripts[-1]) if step.word in (MULTIPLY, STORE)}

    @cached_property
    def _operands(self) -> Mapping[tuple[int, int], str]:
        """(ring, number of a buffer) -> the operand that readers multiply there."""
        return {(r, n): step.what for r, n, step in self.scripts[-1] if step.word == MULTIPLY}

    def _places(self, state: _State) -> str:
        """Return the steps at which roles wait."""
        ring = self.rings[0]
        names = [ring.writer.name, *[ring.reader.name] * ring.reader.groups]
        waiting = [
            f"{name} at `{script[at][2]}` of buffer {script[at][1] % self.rings[script[at][0]].buffers}"
            for name, script, at in zip(names, self.scripts, state.at, strict=True) if at < len(script)
        ]  # fmt: skip
        return ", ".join(dict.fromkeys(waiting))

    def _following(self, state: _State) -> list[_State]:
        following = [self._landed(state)]
        for role, (script, at) in enumerate(zip(self.scripts, state.at, strict=True)):
            if at < len(script):
                following.append(self._begun(state, role, script, at))
        return [self._sorted(one) for one in following if one is not None]

    def _begun(self, state: _State, role: int, script: tuple[Place, ...], at: int) -> _State | None:
        """Return the state after a step of a role and those that it makes at once then."""
        after = self._step(state, role, *script[at])
        together = script[at][2].word == AWAIT
        while after is not None and together and at + 1 < len(script) and script[at + 1][2].word in AT_ONCE:
            at += 1
            after = self._step(after, role, *script[at])
        return after

    def _sorted(self, state: _State) -> _State:
        """Return the state with its readers in a fixed order: they are interchangeable."""
        if len(state.reading) == 1:
            return state
        pairs = [*zip(state.at[1:], state.reading, strict=True)]
        ordered = sorted(pairs)
        if ordered == pairs:
            return state
        at, reading = zip(*ordered, strict=True)
        return state._replace(at=(state.at[0], *at), reading=reading)

    def _step(self, state: _State, role: int, which: int, number: int, step: Step) -> _State | None:
        """Return the state after a step of a role, or None if the step must wait. Raises _Wrong for a wrong one."""
        ring = self.rings[which]
        slot = self._firsts[which][0] + number % ring.buffers
        barriers, holds, flying, reading = state.barriers, state.holds, state.flying, state.reading
        match step.word:
            case "await":
                phase = barriers[self._barrier(which, step.what, number)][0]
                if phase == (number // ring.buffers & 1) ^ step.number & 1:
                    return None
            case "arrive":
                number -= step.number
                if role and (which, number) in reading[role - 1]:
                    raise _Wrong(f"a {ring.reader.name} releases a buffer that it still reads")
                barriers = self._arrived(barriers, self._barrier(which, step.what, number), 0)
            case "expect":
                barriers = self._arrived(barriers, self._barrier(which, step.what, number), step.number)
            case "load":
                self._may_write(state, which, number)
                full = next(s.what for s in ring.writer.every if s.word == EXPECT)
                holds = _with(holds, slot, (number, STARTED))
                flying = (*flying, (which, number, step.number, self._barrier(which, full, number)))
            case "fill":
                self._may_write(state, which, number)
                holds = _with(holds, slot, (number, WRITTEN))
            case "fence":
                if holds[slot][1] == WRITTEN:
                    holds = _with(holds, slot, (holds[slot][0], VISIBLE))
            case "multiply" | "store":
                if holds[slot] != (number, VISIBLE):
                    raise _Wrong(f"a {ring.reader.name} reads a buffer before it is loaded")
                reading = _with(reading, role - 1, (*reading[role - 1], (which, number)))
            case "retire":
                own = [one for one in reading[role - 1] if one[0] == which]
                others = tuple(one for one in reading[role - 1] if one[0] != which)
                reading = _with(reading, role - 1, (*others, *(own[-step.number :] if step.number else ())))
            case "compute" | "carry":
                wanted = LEADING if step.word == COMPUTE else TRAILING
                if any(self._operands.get(one) == wanted for one in reading[role - 1]):
                    raise _Wrong(f"a {ring.reader.name} computes with a product that is in flight")
            case _:
                raise _Wrong(f"`{step.word}` is no step of a role")
        return _State(
            at=_with(state.at, role, state.at[role] + 1), barriers=barriers, holds=holds, flying=flying, reading=reading
        )

    def _may_write(self, state: _State, which: int, number: int) -> None:
        ring = self.rings[which]
        slot, buffers = number % ring.buffers, ring.buffers
        if any(r == which and n % buffers == slot for reading in state.reading for r, n in reading):
            raise _Wrong(f"a {ring.writer.name} writes a buffer that is still read")
        if any(r == which and n != number and n % buffers == slot for r, n, _, _ in state.flying):
            raise _Wrong(f"a {ring.writer.name} writes a buffer that is still written")
        if any(at <= self._reads.get((which, number - buffers), -1) for at in state.at[1:]):
            raise _Wrong(f"a {ring.writer.name} writes a buffer that has not been read")

    def _barrier(self, which: int, name: str, number: int) -> int:
        """Return the place of a barrier in a state."""
        ring = self.rings[which]
        return self._firsts[which][1] + number % ring.buffers * len(ring.barriers) + self._named[which][name]

    @cached_property
    def _named(self) -> tuple[Mapping[str, int], ...]:
        """For each ring its barriers by their names, numbered."""
        return tuple({name: at for at, (name, _) in enumerate(ring.barriers)} for ring in self.rings)

    def _arrived(self, barriers: Barriers, at: int, more: int) -> Barriers:
        phase, missing, expected = barriers[at]
        return _with(barriers, at, self._turned(at, phase, missing - 1, expected + more))

    def _turned(self, at: int, phase: int, missing: int, expected: int) -> tuple[int, int, int]:
        """Return a barrier, in its next phase if nothing is missing."""
        if missing or expected:
            return phase, missing, expected
        return 1 - phase, self._arrivals[at], 0

    def _landed(self, state: _State) -> _State | None:
        """Return the state after the first write in flight has completed."""
        if not state.flying:
            return None
        (which, number, size, at), *rest = state.flying
        phase, missing, expected = state.barriers[at]
        barriers = _with(state.barriers, at, self._turned(at, phase, missing, expected - size))
        holds = state.holds
        if all(other[:2] != (which, number) for other in rest) and state.at[0] > self._loaded[which, number]:
            slot = self._firsts[which][0] + number % self.rings[which].buffers
            holds = _with(holds, slot, (number, VISIBLE))
        return _State(at=state.at, barriers=barriers, holds=holds, flying=tuple(rest), reading=state.reading)

    @cached_property
    def _loaded(self) -> Mapping[tuple[int, int], int]:
        """(ring, number of a buffer) -> the step of the writer that is the last load into it."""
        return {(r, n): at for at, (r, n, step) in enumerate(self.scripts[0]) if step.word == LOAD}


def _unusable(ring: Ring) -> str | None:
    """Return why the steps of a ring cannot be executed, or None."""
    names = [name for name, _ in ring.barriers]
    steps = (*ring.writer.every, *ring.reader.every)
    wanted = {step.what for step in steps if step.word in (AWAIT, EXPECT, ARRIVE)}
    if missing := sorted(wanted - set(names)):
        return f"it has no barrier {missing[0]}"
    words = [step.word for step in ring.writer.every]
    if LOAD in words and EXPECT not in words:
        return "no barrier expects what is loaded"
    if ring.writer.released_late or ring.reader.released_late > 1:
        return "a writer releases buffers late, or a reader more than one late"
    return None


def _with(values: tuple[T, ...], at: int, value: T) -> tuple[T, ...]:
    """Return a tuple with another value at a place."""
    return (*values[:at], value, *values[at + 1 :])
