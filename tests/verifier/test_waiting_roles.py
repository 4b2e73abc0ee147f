"""Loader, consumers and storer at their two rings together: the condition under which consumers wait for each other.

The rule explores each ring by itself, and `wait_for_each_other` says when the two together end in a deadlock. Here the
roles run as coroutines that count positions. No step of a role can take back what another one waits for, so that one
order of steps ends in a deadlock if any does.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field, replace
from itertools import product

from tilelink.lowering.rings import Roles, number_ring, operand_ring, result_ring, wait_for_each_other

TILES = 4
Steps = Generator[bool]
"""The steps of a role: True for one that is done, False where it waits."""


@dataclass(kw_only=True)
class Kernel:
    """The roles of a kernel, and how far they are. iterations: positions of operands of a tile's product.

    there: of each tile, whether it is there. If the roles have a ring of numbers, all of them take it in each tile.
    """

    roles: Roles
    iterations: int
    ahead: int
    loaded: int = 0
    released: list[int] = field(default_factory=list[int])
    staged: list[int] = field(default_factory=list[int])
    drained: list[int] = field(default_factory=list[int])
    there: tuple[bool, ...] = (True,) * TILES
    told: int = 0
    heard: list[int] = field(default_factory=list[int])

    def __post_init__(self) -> None:
        zeros = [0] * self.roles.consumers
        self.heard = [0] * (self.roles.consumers + 1)
        self.released, self.staged, self.drained = [*zeros], [*zeros], [*zeros]

    def tell(self) -> Steps:
        """Hand on the numbers of a tile."""
        ring = self.roles.numbers
        while ring is not None and self.told - ring.buffers >= min(self.heard):
            yield False
        self.told += 1
        yield True

    def hear(self, own: int) -> Steps:
        """Take the numbers of a tile. own: number of the role."""
        while self.roles.numbers is not None and self.told <= self.heard[own]:
            yield False
        self.heard[own] += 1
        yield True

    def loader(self) -> Steps:
        for there in self.there:
            yield from self.tell()
            for _ in range((self.iterations + self.roles.addends * self.roles.pieces) * there):
                while self.loaded - self.roles.operands.buffers >= min(self.released):
                    yield False
                self.loaded += 1
                yield True

    def consumer(self, own: int) -> Steps:
        taken = handed = 0
        for there in self.there:
            yield from self.hear(own)
            if not there:
                continue
            for iteration in range(self.iterations):
                while self.loaded <= taken:
                    yield False
                taken += 1
                self.released[own] = taken - (self.ahead if iteration < self.iterations - 1 else 0)
                yield True
            for _ in range(self.roles.pieces):
                for _ in range(self.roles.addends):
                    while self.loaded <= taken:
                        yield False
                    self.released[own] = taken = taken + 1
                    yield True
                while handed - self.roles.results.buffers >= self.drained[own]:
                    yield False
                self.staged[own] = handed = handed + 1
                yield True

    def storer(self) -> Steps:
        stored = [0] * self.roles.consumers
        in_flight = int(self.roles.results.buffers > 1)
        for there in self.there:
            yield from self.hear(self.roles.consumers)
            for own, piece in product(range(self.roles.consumers * there), range(self.roles.pieces)):
                while self.staged[own] <= stored[own]:
                    yield False
                stored[own] += 1
                self.drained[own] = stored[own] - (in_flight if piece < self.roles.pieces - 1 else 0)
                yield True

    def deadlocks(self) -> bool:
        """Run all roles as far as they come; True if one of them never ends."""
        running = [self.loader(), *map(self.consumer, range(self.roles.consumers)), self.storer()]
        while running:
            steps = [(role, next(role, None)) for role in running]
            running = [role for role, step in steps if step is not None]
            if running and not any(step is not False for _, step in steps):
                return True
        return False


def made(addends: int, pieces: int, results: int, buffers: int, consumers: int) -> Roles:
    operands = operand_ring(
        buffers=buffers, consumers=consumers, ahead=0, left=1, right=1, further=addends * pieces, piece=1
    )
    return Roles(
        consumers=consumers, rows=64, columns=64 * pieces, block=64, pieces=pieces, registers=(232, 40),
        operands=operands, results=result_ring(buffers=results), addends=addends,
    )  # fmt: skip


def test_consumers_wait_for_each_other_exactly_where_the_condition_says() -> None:
    found: set[bool] = set()
    for addends, pieces, buffers, consumers in product(range(5), (1, 2, 4, 8), range(2, 7), (2, 3)):
        for results, iterations, ahead in product(range(min(pieces, 2), pieces + 1), (1, 3), (0, 1)):
            roles = made(addends, pieces, results, buffers, consumers)
            kernel = Kernel(roles=roles, iterations=iterations, ahead=ahead)
            found.add(wait_for_each_other(roles))
            assert kernel.deadlocks() is wait_for_each_other(roles), (addends, pieces, results, buffers, consumers)
    assert found == {False, True}


def test_the_ring_of_numbers_makes_no_roles_wait_for_each_other() -> None:
    """With it, whichever tiles are there, consumers wait for each other where they do without it, and nowhere else."""
    for addends, pieces, buffers, consumers in product((0, 1, 3), (1, 4), (2, 4), (2, 3)):
        for results, there in product(range(min(pieces, 2), pieces + 1), product((False, True), repeat=TILES)):
            plain = made(addends, pieces, results, buffers, consumers)
            roles = replace(plain, numbers=number_ring(buffers=buffers, consumers=consumers))
            kernel = Kernel(roles=roles, iterations=2, ahead=1, there=there)
            deadlock = any(there) and wait_for_each_other(plain)
            assert kernel.deadlocks() is deadlock, (addends, pieces, results, buffers, consumers, there)
