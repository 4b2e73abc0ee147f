"""Roles of a loop that carries a state, run by coroutines in random orders over rings whose buffers hold numbers.

The loader puts the operands of each iteration, integers, into buffers by copies that take their time. Consumers
multiply what they find when a product completes, in the order of their steps, and carry sums as the lowered program
says: `sums = sums * rescale(computed) + weigh(computed) * operand`, where each level computes with its leading product
and with the level before. Another content, or another order, gives another sum. Nothing here is shared with
verifier/rings.py but the steps.
"""

from __future__ import annotations

import random
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field

from tests.verifier.rings import Barrier, Failed
from tilelink.lowering.rings import LoopOrder, Ring, Step

PRIME = 1_000_003
Coroutine = Generator[None, None, None]


def rescale(scores: int) -> int:
    return scores % 7 + 2


def weigh(scores: int) -> int:
    return scores % 11 + 1


def kept_of(tile: int, number: int) -> int:
    return 17 * tile + 5 + 29 * number


def operand_of(number: int, tile: int, iteration: int) -> int:
    return (31 + 16 * number) * (tile * 100 + iteration) % PRIME + 3


def computed(scores: int, before: int) -> int:
    return (scores * 3 + before * 7 + 1) % PRIME


def kept_number(leading: int, several: int) -> int:
    """Return which of several kept operands a leading product multiplies."""
    return min(leading, several - 1)


def wanted(tile: int, iterations: int, order: LoopOrder, several: int) -> list[int]:
    """Return the sums of a tile, iteration by iteration."""
    sums = [0] * len(order.trailing)
    for iteration in range(iterations):
        levels, before = list[int](), 0
        for number, operand in enumerate(order.leading):
            kept = kept_of(tile, kept_number(number, several))
            before = computed(kept * operand_of(operand, tile, iteration) % PRIME, before)
            levels.append(before)
        for number, (operand, level) in enumerate(order.trailing):
            more = weigh(levels[level]) * operand_of(operand, tile, iteration)
            sums[number] = (sums[number] * rescale(levels[level]) + more) % PRIME
    return sums


@dataclass
class Buffers:
    """A ring in memory: what each buffer holds, by the names of loads. apart: True if each has a part of a buffer."""

    ring: Ring
    apart: bool
    contents: list[dict[str, int]] = field(init=False)
    barriers: dict[str, list[Barrier]] = field(init=False)

    def __post_init__(self) -> None:
        self.contents = [{} for _ in range(self.ring.buffers)]
        self.barriers = {name: [Barrier(count) for _ in range(self.ring.buffers)] for name, count in self.ring.barriers}


@dataclass
class Product:
    """A product in flight: what it is of, and where its operands are."""

    number: int
    slot: int
    weights: int


class Run:
    """One run of a loop of `iterations` iterations in each of `tiles` tiles, in an order drawn from `seed`."""

    def __init__(self, ring: Ring, kept: Ring, iterations: list[int], seed: int, order: LoopOrder) -> None:
        self.iterations, self.random, self.order = iterations, random.Random(seed), order
        self.streamed, self.kept = Buffers(ring, apart=False), Buffers(kept, apart=True)
        self.several = sum(step.word == "load" for step in kept.writer.steps)
        self.products = [name for name, _ in order.products]
        self.copies: list[tuple[Buffers, int, str, int, int, Barrier]] = []
        self.blocked = 0

    def go(self) -> None:
        """Run to the end. Raises Failed."""
        roles = [self.loader(), *(self.consumer() for _ in range(self.streamed.ring.reader.groups))]
        idle = 0
        while roles:
            if self.copies and self.random.random() < 0.3:
                to, slot, what, value, size, barrier = self.copies.pop(0)
                to.contents[slot][what] = value
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
                    held = of.contents[slot]  # nothing while it is written
                    held.pop(step.what, None) if of.apart else held.clear()
                    value = next(values[step.what], -3) if step.what in values else -3
                    self.copies.append((of, slot, step.what, value, step.number, of.barriers[full][slot]))
                case _:
                    raise Failed(f"a loader does not {step.word}")

    def loader(self) -> Coroutine:
        role, place = self.streamed.ring.writer, 0
        for tile, iterations in enumerate(self.iterations):
            values = {
                what: iter([operand_of(number, tile, iteration) for iteration in range(iterations)])
                for number, what in enumerate(self.order.operands)
            }
            kept = {f"kept{number or ''}": iter([kept_of(tile, number)]) for number in range(self.several)}
            yield from self.loads(self.kept, self.kept.ring.writer.steps, tile, kept)
            for iteration in range(iterations):
                steps = role.steps if iteration or role.first is None else role.first
                yield from self.loads(self.streamed, steps, place, values)
                place += 1 + max(step.ahead for step in steps)
            if role.last and iterations:
                yield from self.loads(self.streamed, role.last, place, values)
                place += 1

    def consumer(self) -> Coroutine:
        role, place = self.streamed.ring.reader, 0
        held = self.kept.ring.reader.steps
        release = next((n for n, step in enumerate(held) if step.word == "arrive"), len(held))
        for tile, iterations in enumerate(self.iterations):
            state = _State(sums=[0] * len(self.order.trailing))
            yield from self.steps(self.kept, held[:release], tile, state)
            for iteration in range(iterations):
                steps = role.steps if iteration or role.first is None else role.first
                yield from self.steps(self.streamed, steps, place, state)
                place += 1 + max(step.ahead for step in steps)
            yield from self.steps(self.kept, held[release:], tile, state)
            if role.last and iterations:
                yield from self.steps(self.streamed, role.last, place, state)
                place += 1
            if state.flying or state.sums != wanted(tile, iterations, self.order, self.several):
                raise Failed(f"tile {tile} has the sums {state.sums}")

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
                    number = self.products.index(step.what)
                    weights = state.weights.get(number - len(self.order.leading), 0)
                    state.flying.append(Product(number, slot, weights))
                case "retire" if of is self.streamed:
                    yield
                    while len(state.flying) > step.number:
                        self.complete(state.flying.pop(0), state)
                case "compute":
                    if any(one.number <= step.number for one in state.flying):
                        raise Failed("a product is not complete")
                    before = state.computed.get(step.number - 1, 0)
                    state.computed[step.number] = computed(state.scores.get(step.number, 0), before)
                case "carry":
                    if step.number >= len(self.order.trailing):
                        raise Failed("there is no such product")
                    if any(one.number == len(self.order.leading) + step.number for one in state.flying):
                        raise Failed("a product is not complete")
                    found = state.computed.get(self.order.trailing[step.number][1], 0)
                    state.sums[step.number] = state.sums[step.number] * rescale(found) % PRIME
                    state.weights[step.number] = weigh(found)
                case _:
                    pass

    def complete(self, product: Product, state: _State) -> None:
        """Read the operands as late as they may be read."""
        number = product.number - len(self.order.leading)
        kept = f"kept{kept_number(product.number, self.several) or ''}"
        held, there = list(self.streamed.contents[product.slot].values()), self.kept.contents[0]
        if len(held) != 1 or held[0] < 0 or (number < 0 and there.get(kept, -1) < 0):
            raise Failed("an operand is not there")
        if number < 0:
            state.scores[product.number] = there[kept] * held[0] % PRIME
        else:
            state.sums[number] = (state.sums[number] + product.weights * held[0]) % PRIME


@dataclass
class _State:
    """The values that a consumer has in registers, and its products in flight. Numbers are those of products, levels,
    and trailing products."""

    sums: list[int]
    scores: dict[int, int] = field(default_factory=dict[int, int])
    computed: dict[int, int] = field(default_factory=dict[int, int])
    weights: dict[int, int] = field(default_factory=dict[int, int])
    flying: list[Product] = field(default_factory=list[Product])


def fails(
    ring: Ring, kept: Ring, iterations: list[int], runs: int = 150, order: LoopOrder | None = None
) -> str:  # fmt: skip
    """Return the failure of some run, "" if there is none."""
    for seed in range(runs):
        try:
            Run(ring, kept, iterations, seed, order or LoopOrder()).go()
        except Failed as found:
            return str(found) or "failed"
    return ""
