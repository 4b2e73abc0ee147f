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

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import accumulate

from tilelink.lowering.rings import (
    ARRIVE,
    AWAIT,
    COMPUTE,
    EXPECT,
    KEPT,
    LEADING,
    LOAD,
    MULTIPLY,
    RETIRE,
    STORE,
    TAKE,
    TRAILING,
    Ring,
    Role,
    Step,
    numbered,
    of_tile,
    parts_of,
    taken,
)

KEPT_RING = 1
"""Number of the ring of what is kept, which is next to that of a loop's operands."""
STARTED, WRITTEN, VISIBLE = range(3)
"""Contents of a buffer: a write is in flight; written by threads; all can read it."""

Place = tuple[int, int, Step]
"""Number of a ring, number of a buffer there, counted over all rounds, and a step at it."""
State = tuple[int, ...]
"""See _Model."""
MANY = 1 << 32
"""More than there are arrivals."""
AT_ONCE = (LOAD, EXPECT, MULTIPLY, STORE, TAKE)
"""Steps that a role makes at once after a wait. A wrong one is wrong as early as it can be."""
TILES = 3
"""Tiles of few iterations that the rings of a loop are explored for: what is kept changes its phase with each."""


_Act = Callable[[list[int]], bool]
"""Changes a state as a step does. False if the step must wait. Raises _Wrong for a wrong one."""
_Move = tuple[tuple[_Act, ...], int]
"""Steps that are made at once, and the step of their role after them."""


class _Wrong(Exception):
    """Raised with what goes wrong in a state."""


@lru_cache(maxsize=256)
def wrong(ring: Ring, iterations: int) -> str | None:
    """Return what may go wrong in a ring that a tile has some iterations at, or None."""
    total = 2 * ring.buffers + 1
    if ring.writer.further != ring.reader.further:
        return "its roles have further positions of different numbers"
    writer, reader = (_few(role, total) for role in (ring.writer, ring.reader))
    iterations = min(iterations, total)
    tiles = max(-(-total // taken(reader, iterations)), 2 if reader.further else 1)  # a tile after further positions
    scripts = (_script([(writer, iterations)] * tiles), *[_script([(reader, iterations)] * tiles)] * reader.groups)
    return _Model(rings=(ring,), scripts=scripts).explore()


@lru_cache(maxsize=256)
def wrong_between(ring: Ring, product_ring: Ring, iterations: int) -> str | None:
    """Return what may go wrong in a ring where tiles without a product take turns with tiles that have one, or None.

    product_ring: the ring in tiles of so many iterations, with the same buffers and barriers.
    """
    if (ring.buffers, ring.barriers) != (product_ring.buffers, product_ring.barriers):
        return "its tiles have other buffers or barriers"
    total = 2 * ring.buffers + 1
    few, iterations = min(ring.writer.further, total), min(iterations, total)
    both = few + taken(_few(product_ring.reader, total), iterations)

    def script(product: Role, alone: Role) -> tuple[Place, ...]:
        turn = ((_few(product, total), iterations), (_few(alone, total), 0))
        return _script((*turn * -(-total // both), turn[0]))

    readers = [script(product_ring.reader, ring.reader)] * ring.reader.groups
    return _Model(rings=(ring,), scripts=(script(product_ring.writer, ring.writer), *readers)).explore()


def _few(role: Role, most: int) -> Role:
    """Return a role with so many further positions at most."""
    return replace(role, further=min(role.further, most))


def wrong_together(ring: Ring, kept: Ring, iterations: int, *, least: int = 1) -> str | None:
    """Return what may go wrong at the rings of a loop that carries a state, or None.

    The same roles are at both: the loader loads what is kept before the first iteration of a tile, and consumers
    release it after the last one. Each leading product reads it until it is complete. least: the fewest iterations of a
    tile: one with none takes turns with others.
    """
    if (ring.writer.groups, ring.reader.groups) != (kept.writer.groups, kept.reader.groups):
        return "its two rings are between other groups of warps"
    long = min(iterations, ring.buffers + 2)  # more than two rounds of the ring in a tile
    few = min(iterations, 2)
    several = [(few,) * TILES, (long,) * (2 if long > 2 else TILES), *([(few, 0, 0, few)] if not least else [])]
    return next(filter(None, (_wrong_in_loop(ring, kept, one) for one in dict.fromkeys(several))), None)


@lru_cache(maxsize=256)
def _wrong_in_loop(ring: Ring, kept: Ring, iterations: tuple[int, ...]) -> str | None:
    """Return what may go wrong in tiles of a loop, each of so many iterations, or None."""
    return _loop(ring, kept, iterations).explore()


def _loop(ring: Ring, kept: Ring, iterations: tuple[int, ...]) -> _Model:
    """Return the model of tiles of a loop, each of so many iterations."""
    held = next((n for n, step in enumerate(kept.reader.steps) if step.word == ARRIVE), len(kept.reader.steps))
    # It must be there when a consumer has waited for it, and not because a leading operand that was loaded later is.
    before, after = (*kept.reader.steps[:held], Step(word=TAKE, what=KEPT)), kept.reader.steps[held:]
    loader = _script(((ring.writer, number) for number in iterations), kept.writer.steps)
    consumer = _script(((ring.reader, number) for number in iterations), before, after)
    scripts = (loader, *[consumer] * ring.reader.groups)
    begins = accumulate((taken(ring.reader, number) for number in iterations[:-1]), initial=0)
    return _Model(rings=(ring, kept), scripts=scripts, tiles=tuple(begins))


def _script(
    tiles: Iterable[tuple[Role, int]], before: tuple[Step, ...] = (), after: tuple[Step, ...] = ()
) -> tuple[Place, ...]:
    """Return all steps of a role in tiles that follow one another, each of so many iterations.

    before, after: its steps at a second ring, before the first iteration of a tile and after the last one.
    """
    found, first = list[Place](), 0
    for tile, (role, iterations) in enumerate(tiles):
        own = [(0, first + place, step) for place, step in of_tile(role, iterations)]
        end = max(0, len(own) - len(parts_of(role).last))
        around = [tuple((KEPT_RING, tile, step) for step in steps) for steps in (before, after)]
        found += (*around[0], *own[:end], *around[1], *own[end:])
        first += taken(role, iterations)
    return tuple(found)


@dataclass(frozen=True, kw_only=True)
class _Model:
    """Rings and the steps of the roles that share them: the writer's, and the same ones for each reader.

    A state is a tuple of integers, so that exploring many is fast: the number of completed writes, the step of
    each role, the writer first, each barrier, and what each buffer holds. A barrier is
    `2 * (missing arrivals + MANY * missing bytes) + phase`, and what a buffer holds is
    `3 * number of the buffer + content`. The writes and reads in flight follow from the steps of the roles and the
    number of completed writes.
    """

    rings: tuple[Ring, ...]
    scripts: tuple[tuple[Place, ...], ...]
    tiles: tuple[int, ...] = ()
    """The first positions of tiles in the ring of a loop's operands; none if there is no ring of what is kept."""

    def explore(self) -> str | None:
        for ring in self.rings:
            if reason := _unusable(ring):
                return reason
        first, moves = self._first(), self._moves()
        seen, todo = {first}, [first]
        try:
            while todo:
                state = todo.pop()
                following = self._following(state, moves)
                if not following and any(len(script) > at for script, at in zip(self.scripts, state[1:], strict=False)):
                    return f"its roles wait for each other: {self._places(state)}"
                for one in following:
                    if one not in seen:
                        seen.add(one)
                        todo.append(one)
        except _Wrong as found:
            return str(found)
        return None

    def _first(self) -> State:
        holds = (3 * -1 + VISIBLE,) * sum(ring.buffers for ring in self.rings)
        return (0, *(0 for _ in self.scripts), *(2 * count for count in self._arrivals), *holds)

    def _moves(self) -> tuple[tuple[_Move, ...], ...]:
        """Return what each role does at each of its steps."""
        writer, reader = self._moves_of(self.scripts[0], self._written), self._moves_of(self.scripts[-1], self._read)
        return (writer, *[reader] * (len(self.scripts) - 1))

    def _moves_of(self, script: tuple[Place, ...], step_of: Callable[[int], _Act]) -> tuple[_Move, ...]:
        """Return, for each step, it and those that are made at once then, and the step after these."""
        acts, found = [step_of(at) for at in range(len(script))], list[_Move]()
        for at, (_, _, step) in enumerate(script):
            end = at + 1
            while step.word == AWAIT and end < len(script) and script[end][2].word in AT_ONCE:
                end += 1
            found.append((tuple(acts[at:end]), end))
        return tuple(found)

    @cached_property
    def _firsts(self) -> tuple[tuple[int, int], ...]:
        """The places of the first buffer and of the first barrier of each ring in a state."""
        barriers = 1 + len(self.scripts)
        found, buffers = list[tuple[int, int]](), barriers + len(self._arrivals)
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
        return {one: at for at, (r, n, step) in enumerate(self.scripts[-1]) for one in self._read_at(r, n, step)}

    def _read_at(self, which: int, number: int, step: Step) -> tuple[tuple[int, int], ...]:
        """Return (ring, number) of the buffers that a step of a reader reads."""
        if step.word not in (MULTIPLY, STORE, TAKE):
            return ()
        if self.tiles and step.word == MULTIPLY and step.what.startswith(LEADING):
            return (which, number), (KEPT_RING, bisect_right(self.tiles, number) - 1)
        return ((which, number),)

    @cached_property
    def _reading(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """(ring, number) of the buffers that a reader reads before each of its steps, and after the last one."""
        found: list[tuple[tuple[int, int], ...]] = [()]
        flying: list[tuple[tuple[int, int], ...]] = []
        for which, number, step in self.scripts[-1]:
            if step.word in (MULTIPLY, STORE):
                flying.append(self._read_at(which, number, step))
            elif step.word == RETIRE:
                flying = flying[-step.number :] if step.number else []
            found.append(tuple(one for reads in flying for one in reads))
        return tuple(found)

    @cached_property
    def _products(self) -> tuple[tuple[str, ...], ...]:
        """The products in flight before each step of a reader, and after the last one."""
        found: list[tuple[str, ...]] = [()]
        for _, _, step in self.scripts[-1]:
            flying = found[-1]
            if step.word == MULTIPLY:
                flying = (*flying, step.what)
            elif step.word == RETIRE:
                flying = flying[-step.number :] if step.number else ()
            found.append(flying)
        return tuple(found)

    @cached_property
    def _slots_read(self) -> tuple[frozenset[int], ...]:
        """The places of the buffers that a reader reads before each of its steps, and after the last one."""
        return tuple(frozenset(self._slot(*one) for one in reading) for reading in self._reading)

    @cached_property
    def _loads(self) -> tuple[int, ...]:
        """The steps of the writer that start a write, which complete in this order."""
        return tuple(at for at, (_, _, step) in enumerate(self.scripts[0]) if step.word == LOAD)

    @cached_property
    def _started(self) -> tuple[int, ...]:
        """The number of writes started before each step of the writer, and after the last one."""
        return tuple(accumulate((step.word == LOAD for _, _, step in self.scripts[0]), initial=0))

    @cached_property
    def _landings(self) -> tuple[_Act, ...]:
        """The effect of each write when it completes. A buffer is loaded when the last write to it has completed."""
        last = {self.scripts[0][at][:2]: at for at in self._loads}
        found = list[_Act]()
        for at in self._loads:
            which, number, step = self.scripts[0][at]
            barrier, count = self._barrier(which, self._full(which), number)
            holds = (self._slot(which, number), 3 * number + VISIBLE) if last[which, number] == at else None
            found.append(_landing(barrier, count, step.number, holds))
        return tuple(found)

    def _places(self, state: State) -> str:
        """Return the steps at which roles wait."""
        ring = self.rings[0]
        names = [ring.writer.name, *[ring.reader.name] * ring.reader.groups]
        waiting = [
            f"{name} at `{script[at][2]}` of buffer {script[at][1] % self.rings[script[at][0]].buffers}"
            for name, script, at in zip(names, self.scripts, state[1:], strict=False) if at < len(script)
        ]  # fmt: skip
        return ", ".join(dict.fromkeys(waiting))

    def _following(self, state: State, moves: tuple[tuple[_Move, ...], ...]) -> list[State]:
        following, readers, several = list[State](), slice(2, 1 + len(moves)), len(moves) > 2
        if state[0] < self._started[state[1]]:
            after = list(state)
            self._landings[state[0]](after)
            following.append(tuple(after))
        for place, own in enumerate(moves, start=1):
            if place > 2 and state[place] == state[place - 1]:
                continue  # a reader at the same step does the same
            if state[place] < len(own):
                acts, end = own[state[place]]
                after = list(state)
                for act in acts:
                    if not act(after):
                        break
                else:
                    after[place] = end
                    if place > 1 and several:  # readers are interchangeable
                        after[readers] = sorted(after[readers])
                    following.append(tuple(after))
        return following

    def _written(self, at: int) -> _Act:
        """Return what a step of the writer does."""
        which, number, step = self.scripts[0][at]
        ring, slot = self.rings[which], self._slot(which, number)
        match step.word:
            case "load":
                return _writing(self._unwritable(at), slot, 3 * number + STARTED)
            case "fill":
                return _writing(self._unwritable(at), slot, 3 * number + WRITTEN)
            case "arrive":
                return self._arriving(which, step.what, number - step.number, 0)
            case "multiply" | "store" | "retire" | "compute" | "carry" | "sum" | "take":
                return _refused(f"`{step.word}` is no step of a {ring.writer.name}")
            case _:
                return self._ordered(which, number, step)

    def _read(self, at: int) -> _Act:
        """Return what a step of a reader does."""
        which, number, step = self.scripts[-1][at]
        ring, reading = self.rings[which], self._reading[at]
        match step.word:
            case "arrive":
                if (which, number - step.number) in reading:
                    return _refused(f"a {ring.reader.name} releases a buffer that it still reads")
                return self._arriving(which, step.what, number - step.number, 0)
            case "multiply" | "store" | "take":
                early = f"a {ring.reader.name} reads a buffer before it is loaded"
                read = self._read_at(which, number, step)
                return _using([(self._slot(*one), 3 * one[1] + VISIBLE) for one in read], early)
            case "compute" | "carry":
                wanted = {numbered(TRAILING, step.number)}
                if step.word == COMPUTE:
                    wanted = {numbered(LEADING, number) for number in range(step.number + 1)}
                if wanted & {*self._products[at]}:
                    return _refused(f"a {ring.reader.name} computes with a product that is in flight")
                return _nothing
            case "sum":
                return _refused(f"a {ring.reader.name} adds a product that is in flight") if reading else _nothing
            case "retire":
                return _nothing
            case "load" | "fill":
                return _refused(f"`{step.word}` is no step of a {ring.reader.name}")
            case _:
                return self._ordered(which, number, step)

    def _ordered(self, which: int, number: int, step: Step) -> _Act:
        """Return what a step does that each role may have."""
        match step.word:
            case "await":
                earlier = (number // self.rings[which].buffers & 1) ^ step.number & 1
                return _waiting(self._barrier(which, step.what, number)[0], earlier)
            case "expect":
                return self._arriving(which, step.what, number, step.number)
            case "fence":
                return _fence(self._slot(which, number))
            case _:
                return _refused(f"`{step.word}` is no step of a role")

    def _unwritable(self, at: int) -> Callable[[list[int]], str | None]:
        """Return what says why the writer may not write a buffer at a step, or None."""
        which, number, _ = self.scripts[0][at]
        ring, slot = self.rings[which], self._slot(which, number)
        name, readers, slots_read = ring.writer.name, slice(2, 1 + len(self.scripts)), self._slots_read
        before = [self.scripts[0][load][:2] for load in self._loads if load < at]
        others = [n for n, one in enumerate(before) if one != (which, number) and self._slot(*one) == slot]
        other, read = max(others, default=-1), self._reads.get((which, number - ring.buffers), -1)

        def reason(state: list[int]) -> str | None:
            at_steps = state[readers]
            for reader in at_steps:
                if slot in slots_read[reader]:
                    return f"a {name} writes a buffer that is still read"
            if other >= state[0]:
                return f"a {name} writes a buffer that is still written"
            if min(at_steps) <= read:
                return f"a {name} writes a buffer that has not been read"
            return None

        return reason

    def _arriving(self, which: int, name: str, number: int, more: int) -> _Act:
        """Return an arrival at a barrier that lets its phase last until `more` bytes have been written."""
        return _changing(*self._barrier(which, name, number), 2 * MANY * more - 2)

    def _slot(self, which: int, number: int) -> int:
        """Return the place of a buffer in a state."""
        return self._firsts[which][0] + number % self.rings[which].buffers

    def _barrier(self, which: int, name: str, number: int) -> tuple[int, int]:
        """Return the place of a barrier in a state, and the arrivals of its phases."""
        ring = self.rings[which]
        named = {own: at for at, (own, _) in enumerate(ring.barriers)}[name]
        place = self._firsts[which][1] + number % ring.buffers * len(ring.barriers) + named
        return place, ring.barriers[named][1]

    def _full(self, which: int) -> str:
        """Return the barrier of a ring at which written bytes arrive."""
        return next(step.what for step in self.rings[which].writer.every if step.word == EXPECT)


def _nothing(_: list[int]) -> bool:
    return True


def _refused(reason: str) -> _Act:
    def act(_: list[int]) -> bool:
        raise _Wrong(reason)

    return act


def _waiting(barrier: int, earlier: int) -> _Act:
    """Return a wait until the phase of a barrier is no more the earlier one."""

    def act(state: list[int]) -> bool:
        return state[barrier] & 1 != earlier

    return act


def _changing(barrier: int, count: int, change: int) -> _Act:
    """Return a change of what a barrier misses. It is in its next phase if nothing is missing then."""

    def act(state: list[int]) -> bool:
        value = state[barrier] + change
        state[barrier] = 2 * count + 1 - value if 0 <= value <= 1 else value
        return True

    return act


def _landing(barrier: int, count: int, size: int, holds: tuple[int, int] | None) -> _Act:
    """Return the end of a write. holds: the place of the buffer that is loaded then, and what it holds, if any is."""
    arrived = _changing(barrier, count, -2 * MANY * size)

    def act(state: list[int]) -> bool:
        state[0] += 1
        if holds is not None:
            state[holds[0]] = holds[1]
        return arrived(state)

    return act


def _writing(unwritable: Callable[[list[int]], str | None], slot: int, value: int) -> _Act:
    def act(state: list[int]) -> bool:
        if reason := unwritable(state):
            raise _Wrong(reason)
        state[slot] = value
        return True

    return act


def _using(wanted: Sequence[tuple[int, int]], early: str) -> _Act:
    """Return a read of buffers. wanted: the places of buffers, and what they must hold."""

    def act(state: list[int]) -> bool:
        if any(state[slot] != value for slot, value in wanted):
            raise _Wrong(early)
        return True

    return act


def _fence(slot: int) -> _Act:
    def act(state: list[int]) -> bool:
        if state[slot] % 3 == WRITTEN:
            state[slot] += VISIBLE - WRITTEN
        return True

    return act


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
