"""Rings run by coroutines in random orders: real barriers, buffers with contents, and copies that take their time.

Nothing here is shared with verifier/rings.py but the steps. A role that would use a buffer too early or too late finds
another content than it expects.
"""

from __future__ import annotations

import random
from collections.abc import Generator
from dataclasses import dataclass, field

from tilelink.lowering.rings import Ring, Role, Step

Coroutine = Generator[None, None, None]


class Failed(Exception):
    """Raised for a wrong content, or if no role can go on."""


@dataclass
class Barrier:
    """Counts arrivals and bytes, as an mbarrier does."""

    count: int
    phase: int = 0
    missing: int = field(init=False)
    bytes: int = 0

    def __post_init__(self) -> None:
        self.missing = self.count

    def change(self, arrivals: int, more: int) -> None:
        self.missing -= arrivals
        self.bytes += more
        if self.missing == 0 and self.bytes == 0:
            self.phase ^= 1
            self.missing = self.count


class Run:
    """One run of a ring: `places` places by its writer and its readers, in an order drawn from `seed`."""

    def __init__(self, ring: Ring, tile: int, tiles: int, seed: int) -> None:
        self.ring, self.tile, self.tiles = ring, tile, tiles
        self.random = random.Random(seed)
        self.barriers = {name: [Barrier(count) for _ in range(ring.buffers)] for name, count in ring.barriers}
        self.taken = tile + max(ring.writer.further, ring.reader.further)
        parts = max(1, self.loads(0), self.loads(tile))
        self.buffers: list[list[object]] = [[None] * parts for _ in range(ring.buffers)]
        self.visible: list[list[object]] = [[None] * parts for _ in range(ring.buffers)]
        self.copies: list[tuple[int, int, int, int, Barrier]] = []
        self.blocked = 0

    def loads(self, place: int) -> int:
        """Return the number of loads at a place of a tile."""
        writer = self.ring.writer
        return sum(step.word == "load" for step in (writer.steps if place < self.tile else writer.after))

    def go(self) -> None:
        """Run to the end. Raises Failed."""
        roles: list[Coroutine] = [self.role(self.ring.writer, True)]
        roles += [self.role(self.ring.reader, False) for _ in range(self.ring.reader.groups)]
        idle = 0
        while roles:
            if self.copies and self.random.random() < 0.3:
                self.land()
                idle = 0
            one = self.random.choice(roles)
            before = self.blocked
            try:
                next(one)
            except StopIteration:
                roles.remove(one)
            idle = idle + 1 if self.blocked > before else 0
            if idle > 200 and not self.copies:
                raise Failed("no role can go on")

    def land(self) -> None:
        """Complete the oldest copy into a buffer."""
        slot, part, number, size, barrier = self.copies.pop(0)
        self.buffers[slot][part] = self.visible[slot][part] = number
        barrier.change(0, -size)

    def role(self, role: Role, writes: bool) -> Coroutine:
        reads: list[int] = []
        for tile in range(self.tiles):
            first = tile * self.taken
            for at in range(self.tile):
                yield from self.place(role.steps, first + at, at, writes, reads)
            late = [step for step in role.steps if step.word == "arrive" and step.number]
            if late:
                last = first + self.tile - 1
                yield from self.retire(reads, 0)
                for step in late:
                    yield
                    self.barriers[step.what][last % self.ring.buffers].change(1, 0)
            for at in range(self.tile, self.tile + role.further):
                yield from self.place(role.after, first + at, at, writes, reads)

    def place(self, steps: tuple[Step, ...], number: int, at: int, writes: bool, reads: list[int]) -> Coroutine:
        slot, part = number % self.ring.buffers, 0
        for step in steps:
            yield
            match step.word:
                case "await":
                    barrier = self.barriers[step.what][slot]
                    while barrier.phase == (number // self.ring.buffers + step.number) % 2:
                        self.blocked += 1
                        yield
                case "arrive" if step.number <= at:
                    self.barriers[step.what][(number - step.number) % self.ring.buffers].change(1, 0)
                case "expect":
                    self.barriers[step.what][slot].change(1, step.number)
                case "load":
                    full = self.barriers[next(s.what for s in steps if s.word == "expect")][slot]
                    self.copies.append((slot, part, number, step.number, full))
                    part += 1
                case "fill":
                    self.buffers[slot] = [number] * len(self.buffers[slot])
                case "fence":
                    self.visible[slot] = list(self.buffers[slot])
                case "multiply" | "store":
                    reads.append(number)
                    self.read(number)
                case "take":
                    self.read(number)
                case "retire" if not writes:
                    yield from self.retire(reads, step.number)
                case _:
                    pass

    def retire(self, reads: list[int], flying: int) -> Coroutine:
        """Reads last until they are waited for: what they read must not have changed by then."""
        yield
        while len(reads) > flying:
            self.read(reads.pop(0))
        for number in reads:
            self.read(number)

    def read(self, number: int) -> None:
        seen = self.visible[number % self.ring.buffers]
        seen = seen[: self.loads(number % self.taken) or len(seen)]
        if any(content != number for content in seen):
            raise Failed(f"place {number} holds {seen}")


def fails(ring: Ring, tile: int, runs: int = 150) -> str:
    """Return the failure of some run of a ring, "" if there is none."""
    for steps in (ring.writer.steps, ring.writer.after):
        words = [step.word for step in steps]
        if "load" in words and "expect" not in words:
            return "nobody is told of what is loaded"
    tiles = max(-(-(3 * ring.buffers + 2) // tile), 2)
    for seed in range(runs):
        try:
            Run(ring, tile, tiles, seed).go()
        except Failed as found:
            return str(found) or "failed"
    return ""
