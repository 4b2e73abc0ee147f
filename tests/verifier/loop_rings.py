"""Roles of a loop that carries a state, run by coroutines in random orders over rings whose buffers hold numbers.

The loader puts the operands of each iteration, integers, into buffers by copies that take their time. Consumers
multiply what they find when a product completes, in the order of their steps, and carry a sum as the lowered program
says: `sums = sums * rescale(scores) + weigh(scores) * trailing`. Another content, or another order, gives another sum.
Nothing here is shared with verifier/rings.py but the steps.
"""

from __future__ import annotations

import random
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field

from tests.verifier.rings import Barrier, Failed
from tilelink.lowering.rings import Ring, Step

PRIME = 1_000_003
Coroutine = Generator[None, None, None]


def rescale(scores: int) -> int:
    return scores % 7 + 2


def weigh(scores: int) -> int:
    return scores % 11 + 1


def kept_of(tile: int) -> int:
    return 17 * tile + 5


def operand_of(what: str, tile: int, iteration: int) -> int:
    return (31 if what == "leading" else 47) * (tile * 100 + iteration) % PRIME + 3


def wanted(tile: int, iterations: int) -> int:
    """Return the sum of a tile, iteration by iteration."""
    sums = 0
    for iteration in range(iterations):
        scores = kept_of(tile) * operand_of("leading", tile, iteration) % PRIME
        sums = (sums * rescale(scores) + weigh(scores) * operand_of("trailing", tile, iteration)) % PRIME
    return sums


@dataclass
class Buffers:
    """A ring in memory."""

    ring: Ring
    contents: list[int] = field(init=False)
    barriers: dict[str, list[Barrier]] = field(init=False)

    def __post_init__(self) -> None:
        self.contents = [-1] * self.ring.buffers
        self.barriers = {name: [Barrier(count) for _ in range(self.ring.buffers)] for name, count in self.ring.barriers}


@dataclass
class Product:
    """A product in flight: what it is of, and where its operands are."""

    what: str
    slot: int
    weights: int


class Run:
    """One run of a loop of `iterations` iterations in each of `tiles` tiles, in an order drawn from `seed`."""

    def __init__(self, ring: Ring, kept: Ring, iterations: list[int], seed: int) -> None:
        self.iterations, self.random = iterations, random.Random(seed)
        self.streamed, self.kept = Buffers(ring), Buffers(kept)
        self.copies: list[tuple[Buffers, int, int, int, Barrier]] = []
        self.blocked = 0

    def go(self) -> None:
        """Run to the end. Raises Failed."""
        roles = [self.loader(), *(self.consumer() for _ in range(self.streamed.ring.reader.groups))]
        idle = 0
        while roles:
            if self.copies and self.random.random() < 0.3:
                to, slot, value, size, barrier = self.copies.pop(0)
                to.contents[slot] = value
                barrier.change(0, -size)
                idle = 0
            one, before = self.random.choice(roles), self.blocked
            try:
                next(one)
            except StopIteration:
                roles.remove(one)
            idle = idle + 1 if self.blocked > before else 0
            if idle > 200 and not self.copies:
                raise Failed("no role can go on")

    def wait(self, of: Buffers, step: Step, place: int) -> Coroutine:
        barrier = of.barriers[step.what][place % of.ring.buffers]
        while barrier.phase == (place // of.ring.buffers + step.number) % 2:
            self.blocked += 1
            yield

    def loads(self, of: Buffers, steps: tuple[Step, ...], place: int, values: dict[str, Iterator[int]]) -> Coroutine:
        for step in steps:
            yield
            at = place + step.ahead
            slot = at % of.ring.buffers
            match step.word:
                case "await":
                    yield from self.wait(of, step, at)
                case "expect":
                    of.barriers[step.what][slot].change(1, step.number)
                case "load":
                    full = next((s.what for s in of.ring.writer.every if s.word == "expect"), "")
                    if not full:
                        raise Failed("no barrier counts what is loaded")
                    of.contents[slot] = -2  # while it is written
                    self.copies.append((of, slot, next(values[step.what], -3), step.number, of.barriers[full][slot]))
                case _:
                    raise Failed(f"a loader does not {step.word}")

    def loader(self) -> Coroutine:
        role, place = self.streamed.ring.writer, 0
        for tile, iterations in enumerate(self.iterations):
            values = {
                what: iter([operand_of(what, tile, iteration) for iteration in range(iterations)])
                for what in ("leading", "trailing")
            }
            yield from self.loads(self.kept, self.kept.ring.writer.steps, tile, {"kept": iter([kept_of(tile)])})
            for iteration in range(iterations):
                steps = role.steps if iteration or role.first is None else role.first
                yield from self.loads(self.streamed, steps, place, values)
                place += 1 + any(step.ahead for step in steps)
            if role.last and iterations:
                yield from self.loads(self.streamed, role.last, place, values)
                place += 1

    def consumer(self) -> Coroutine:
        role, place = self.streamed.ring.reader, 0
        held = self.kept.ring.reader.steps
        release = next((n for n, step in enumerate(held) if step.word == "arrive"), len(held))
        for tile, iterations in enumerate(self.iterations):
            state = _State()
            yield from self.steps(self.kept, held[:release], tile, state)
            for iteration in range(iterations):
                steps = role.steps if iteration or role.first is None else role.first
                yield from self.steps(self.streamed, steps, place, state)
                place += 1 + any(step.ahead for step in steps)
            yield from self.steps(self.kept, held[release:], tile, state)
            if role.last and iterations:
                yield from self.steps(self.streamed, role.last, place, state)
                place += 1
            if state.flying or state.sums != wanted(tile, iterations):
                raise Failed(f"tile {tile} has the sum {state.sums}")

    def steps(self, of: Buffers, steps: tuple[Step, ...], place: int, state: _State) -> Coroutine:
        for step in steps:
            yield
            at = place + step.ahead
            slot = at % of.ring.buffers
            match step.word:
                case "await":
                    yield from self.wait(of, step, at)
                case "arrive":
                    of.barriers[step.what][(at - step.number) % of.ring.buffers].change(1, 0)
                case "multiply" if of is self.streamed:
                    state.flying.append(Product(step.what, slot, state.weights))
                case "retire" if of is self.streamed:
                    yield
                    while len(state.flying) > step.number:
                        self.complete(state.flying.pop(0), state)
                case "compute":
                    if any(one.what == "leading" for one in state.flying):
                        raise Failed("a product is not complete")
                    state.computed = state.scores
                case "carry":
                    if any(one.what == "trailing" for one in state.flying):
                        raise Failed("a product is not complete")
                    state.sums = state.sums * rescale(state.computed) % PRIME
                    state.weights = weigh(state.computed)
                case _:
                    pass

    def complete(self, product: Product, state: _State) -> None:
        """Read the operands as late as they may be read."""
        found = self.streamed.contents[product.slot]
        if found < 0 or (product.what == "leading" and self.kept.contents[0] < 0):
            raise Failed("an operand is not there")
        if product.what == "leading":
            state.scores = self.kept.contents[0] * found % PRIME
        else:
            state.sums = (state.sums + product.weights * found) % PRIME


@dataclass
class _State:
    """The values that a consumer has in registers, and its products in flight."""

    sums: int = 0
    scores: int = 0
    computed: int = 0
    weights: int = 0
    flying: list[Product] = field(default_factory=list[Product])


def fails(ring: Ring, kept: Ring, iterations: list[int], runs: int = 150) -> str:
    """Return the failure of some run, "" if there is none."""
    for seed in range(runs):
        try:
            Run(ring, kept, iterations, seed).go()
        except Failed as found:
            return str(found) or "failed"
    return ""
