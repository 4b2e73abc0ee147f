"""Roles of warps and the rings of buffers in shared memory between them, as values of the lowered program.

A ring has `buffers` positions. Its writer fills them in turn and its readers read them in the same order. Two barriers
for each position order them: readers wait until a position is full, and the writer waits until it is empty. A barrier
counts arrivals (and, when the tensor memory accelerator writes, bytes). When all have come, its phase changes.

A role executes the steps of its ring once for each position, in the order in which they are written here.
`verifier/rings.py` runs these steps in every order that roles may have, and the template of the kernel renders the same
steps. So the protocol that is verified is the one that runs.

    await BARRIER n     wait for the phase of the current round, or of the previous one for n = 1
    expect BARRIER n    arrive, and let the phase last until n more bytes have been written
    load NAME n         start to write n bytes by the tensor memory accelerator, which arrive at the barrier of `expect`
    fill                write the position by the role's own threads
    fence               order the role's own accesses to the position before those of others, and of the accelerator
    multiply            start a product of the position's operands
    store               start to store the position by the tensor memory accelerator
    retire n            wait until at most n of these reads are in flight
    arrive BARRIER n    arrive for the position n before the current one
    compute n           compute what needs the leading products of an iteration up to number n, which are complete
    carry n             bring what the loop adds a product to, trailing product n, up to what was computed
    sum                 add the product of the position to the sums of the tile
    take                read the position into the role's registers

A role may take several positions in an iteration: a step with `next` is at the position after the current one, one
with `next 2` at the position after that. It may have other steps in the first iteration of a tile, and some after its
last one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, replace

AWAIT, EXPECT, LOAD, FILL, FENCE, MULTIPLY, STORE, RETIRE, ARRIVE, COMPUTE, CARRY, SUM, TAKE = WORDS = (
    "await", "expect", "load", "fill", "fence", "multiply", "store", "retire", "arrive", "compute", "carry", "sum",
    "take",
)  # fmt: skip
KEPT, LEADING, TRAILING = "kept", "leading", "trailing"
"""The first operand of a loop that carries a state that all its iterations multiply, and the first one of the products
of an iteration that multiply such operands, and of those that multiply what it computes. Further ones have numbers."""
LEFT = "left"
"""The left operand of a product, whose rows consumers divide among them; see right_operand for the others."""
ADDEND = "addend"
"""A piece of a tile that is computed with, next to the product if there is one."""
NEXT = "next"
LOADER, CONSUMER, STORER = "loader", "consumer", "storer"
"""The roles: one warp that waits and loads, several that multiply and compute, and one that stores and notifies."""
OTHERS = "others"
"""All roles but the loader."""
NUMBERS, OPERANDS, RESULTS = "numbers", "operands", "results"
"""The names of rings; a loop that carries a state has one named KEPT besides."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """A step of a role. word: one of WORDS. what: a barrier, or the name of an operand. number: see above.

    ahead: 1 at the position after the current one, and so on.
    """

    word: str
    what: str = ""
    number: int = 0
    ahead: int = 0

    def __str__(self) -> str:
        numbered = self.number or self.word in (AWAIT, EXPECT, LOAD, RETIRE, ARRIVE)
        later = f"{NEXT} {self.ahead}" if self.ahead > 1 else NEXT if self.ahead else ""
        return " ".join(filter(None, (self.word, self.what, str(self.number) if numbered else "", later)))


@dataclass(frozen=True, kw_only=True)
class Role:
    """A role at a ring: its name, the number of groups of warps that have it, and its steps.

    first, last: steps in place of these in the first iteration of a tile, and those after its last iteration. None:
    those that follow from `steps` (see parts_of). further: the number of further positions of a tile, after those of
    its iterations. after: the steps at each of these.
    """

    name: str
    groups: int
    steps: tuple[Step, ...]
    first: tuple[Step, ...] | None = None
    last: tuple[Step, ...] | None = None
    further: int = 0
    after: tuple[Step, ...] = ()

    @property
    def every(self) -> tuple[Step, ...]:
        """Return all steps that it has in some iteration or at a further position."""
        return (*(self.first or ()), *self.steps, *(self.last or ()), *self.after)

    @property
    def released_late(self) -> int:
        """Return how many positions the role releases late: the largest number of an `arrive`."""
        return max((step.number for step in self.every if step.word == ARRIVE), default=0)


@dataclass(frozen=True, kw_only=True)
class Ring:
    """A ring of buffers. barriers: (name, arrivals of a phase) pairs; each position has one barrier of each name."""

    name: str
    buffers: int
    barriers: tuple[tuple[str, int], ...]
    writer: Role
    reader: Role


@dataclass(frozen=True, kw_only=True)
class Roles:
    """The roles of a kernel that multiplies: a loader, `consumers` groups of four warps, and a storer.

    The loader waits for signals and loads the operands. Each consumer multiplies and computes `rows` rows of a tile.
    The storer stores them and notifies. rows, columns: of a consumer's part of the result. block: contracted elements
    of a buffer, or rows of one of which a loop multiplies all columns. products: number of products of the same left
    operand, side by side in a consumer's registers, each of so many columns; 0 for tiles that are computed from loaded
    tiles alone, next to tiles with products. kept: the ring of what all iterations of a loop that carries a state
    multiply; None for a product along a whole dimension. numbers: the ring in which the loader hands on what a launch
    decides of a tile, which it has read after its waits; None if each role reads that for itself.
    pieces: number of pieces, side by side, in which a consumer hands its part to the storer. results: one such ring for
    each consumer; the storer takes all positions of a tile in one of them before those in the next. registers: of a
    thread of a consumer, and of the other roles. cut: True if a launch decides where the rows of a tile end. The rows
    of a tile that is cut are stored by the consumers, and at `fill` and `store` of such a tile there is nothing to do.
    direct: True if consumers store all results themselves, for the rings of the kernel hold another type: at `fill` and
    `store` there is nothing to do.
    addends: number of tiles that are computed with, next to the product if there is one, and loaded into the ring of
    operands after it: a position has a piece of one of them. skips_repeated_waits: True if the loader leaves out a wait
    for the channel that the iteration before has waited for (lowering/channel_waits.py). reads_early: True if consumers
    load what they compute with before the signals of a tile or of an iteration have come, since nobody writes it then:
    vectors before a loop, and what the next iteration of a sum of products scales its product with. n_major: True if
    the right operand is [K, N] in memory and in its buffers, not [N, K].
    """

    consumers: int
    rows: int
    columns: int
    block: int
    pieces: int
    registers: tuple[int, int]
    operands: Ring
    results: Ring
    kept: Ring | None = None
    products: int = 1
    cut: bool = False
    direct: bool = False
    addends: int = 0
    skips_repeated_waits: bool = False
    reads_early: bool = False
    numbers: Ring | None = None
    n_major: bool = False

    @property
    def numbered(self) -> dict[str, int]:
        """Return field -> its number, of those that are numbers, or 1 for True, and not as usual."""
        every = ((one, getattr(self, one.name)) for one in fields(self))
        return {one.name: int(own) for one, own in every if isinstance(own, int) and own != one.default}

    @property
    def rings(self) -> tuple[Ring, ...]:
        return (*(ring for ring in (self.numbers, self.operands, self.kept) if ring is not None), self.results)


def widest_of(several: Iterable[Roles]) -> Roles:
    """Return the roles whose tiles have the most columns, of those that multiply. A kernel's rings have their sizes.

    Among equally wide ones, it prefers one whose results the rings hold.
    """
    return max(several, key=lambda roles: (roles.products > 0, roles.columns, not roles.direct))


def fit_together(one: Roles, other: Roles) -> bool:
    """True if two stages of a kernel may have these roles, of the same buffers and barriers.

    A tile of one may have fewer columns, which take a part of a buffer and fewer pieces, or no product. Columns of rows
    that are contracted take all of a buffer.
    """
    several = one.products != other.products and 0 not in (one.products, other.products)
    if several or (one.n_major and one.columns != other.columns):
        return False
    return _of_any_width(one) == _of_any_width(other) and one.columns * other.pieces == other.columns * one.pieces


def _of_any_width(roles: Roles) -> Roles:
    results = replace(roles.results, reader=replace(roles.results.reader, steps=()))  # one may store at more places
    operands = _of_any_size(roles.operands)
    return replace(
        roles,
        columns=0, pieces=0, products=0, addends=0, direct=False, reads_early=False, operands=operands, results=results,
        numbers=None,
    )  # fmt: skip


def _of_any_size(ring: Ring) -> Ring:
    steps = tuple(replace(step, number=0) if step.word in (EXPECT, LOAD) else step for step in ring.writer.steps)
    writer = replace(ring.writer, steps=steps, further=0, after=())
    return replace(ring, writer=writer, reader=replace(ring.reader, further=0, after=()))


def without_addends(roles: Roles) -> Roles:
    """Return the roles of a stage whose consumers read what they compute with next to the product from memory."""
    return replace(roles, addends=0, operands=with_further(roles.operands, further=0, piece=0))


def wait_for_each_other(roles: Roles) -> bool:
    """True if consumers wait for each other for ever, by the rings of operands and of results together.

    The storer takes all results of the first consumer before those of another one. Another consumer takes what is added
    to as many pieces as it has buffers for results and to one more, and then waits for the storer. The loader is ahead
    of it by all buffers of operands at most. The first consumer needs what is added to all pieces.
    """
    most = roles.addends * (roles.results.buffers + 1) + roles.operands.buffers
    return roles.addends * roles.pieces > most


def numbered(stem: str, number: int) -> str:
    """Return the name of one of several operands or products, without a number for the first one."""
    return f"{stem}{number or ''}"


def right_operand(number: int) -> str:
    """Return the name of the right operand of one of several products."""
    return numbered("right", number)


def operand_ring(
    *, buffers: int, consumers: int, ahead: int, left: int, right: int, products: int = 1, sums: bool = False,
    further: int = 0, piece: int = 0,
) -> Ring:  # fmt: skip
    """Return the ring of a product's operands, of `left` and `right` bytes in a buffer.

    products: number of products of the same left operand, with as many right operands in a buffer. ahead: 1 if a
    consumer starts a product before the one before it has ended, and then releases the buffer of that; 0 if it waits
    for each product. sums: True if tensor cores add with fewer bits than the sums of a tile have (8-bit floats): each
    product is added to them. further: number of further positions of a tile, each with `piece` bytes of a tile that
    is computed with next to the product.
    """
    ahead = 0 if sums else ahead
    loader = (
        Step(word=AWAIT, what="empty", number=1),
        Step(word=EXPECT, what="full", number=left + products * right),
        Step(word=LOAD, what="left", number=left),
        *(Step(word=LOAD, what=right_operand(number), number=right) for number in range(products)),
    )
    consumer = (
        Step(word=AWAIT, what="full"),
        Step(word=MULTIPLY),
        Step(word=RETIRE, number=ahead),
        Step(word=ARRIVE, what="empty", number=ahead),
        *([Step(word=SUM)] if sums else ()),
    )
    ring = Ring(
        name=OPERANDS,
        buffers=buffers,
        barriers=(("full", 1), ("empty", consumers)),
        writer=Role(name=LOADER, groups=1, steps=loader),
        reader=Role(name=CONSUMER, groups=consumers, steps=consumer),
    )
    return with_further(ring, further=further, piece=piece)


def with_further(ring: Ring, *, further: int, piece: int) -> Ring:
    """Return a ring of operands with `further` positions of a tile, each with `piece` bytes of a tile that is added."""
    added = taken = ()
    if further:
        added = (
            Step(word=AWAIT, what="empty", number=1),
            Step(word=EXPECT, what="full", number=piece),
            Step(word=LOAD, what=ADDEND, number=piece),
        )
        taken = (
            Step(word=AWAIT, what="full"),
            Step(word=TAKE),
            Step(word=FENCE),  # the buffer is read by threads, and written next by the tensor memory accelerator
            Step(word=ARRIVE, what="empty"),
        )
    writer, reader = (
        replace(ring.writer, further=further, after=added),
        replace(ring.reader, further=further, after=taken),
    )
    return replace(ring, writer=writer, reader=reader)


def kept_ring(*, consumers: int, size: int, several: int = 1) -> Ring:
    """Return the ring of the `several` operands that all iterations multiply, of `size` bytes each.

    Each tile has one position of all of them. Consumers read it in the leading products of the tile, and release it
    after the last one.
    """
    loader = (
        Step(word=AWAIT, what="vacant", number=1),
        Step(word=EXPECT, what="ready", number=several * size),
        *(Step(word=LOAD, what=numbered(KEPT, number), number=size) for number in range(several)),
    )
    consumer = (
        Step(word=AWAIT, what="ready"),
        Step(word=ARRIVE, what="vacant"),
    )
    return Ring(
        name=KEPT,
        buffers=1,
        barriers=(("ready", 1), ("vacant", consumers)),
        writer=Role(name=LOADER, groups=1, steps=loader),
        reader=Role(name=CONSUMER, groups=consumers, steps=consumer),
    )


def number_ring(*, buffers: int, consumers: int) -> Ring:
    """Return the ring of the integers that a launch decides of a tile. Each tile has one position, there or not.

    All roles take it before any other position of the tile, and no role waits for a later tile: so they cannot wait
    for one another around this ring and the others.
    """
    loader = (
        Step(word=AWAIT, what="taken", number=1),
        Step(word=FILL),
        Step(word=FENCE),
        Step(word=ARRIVE, what="known"),
    )
    others = (
        Step(word=AWAIT, what="known"),
        Step(word=TAKE),
        Step(word=ARRIVE, what="taken"),
    )
    return Ring(
        name=NUMBERS,
        buffers=buffers,
        barriers=(("known", 1), ("taken", consumers + 1)),
        writer=Role(name=LOADER, groups=1, steps=loader),
        reader=Role(name=OTHERS, groups=consumers + 1, steps=others),
    )


@dataclass(frozen=True, kw_only=True)
class LoopOrder:
    """The products of an iteration of a loop that carries a state, and the streamed operands that they multiply.

    leading: the number of the operand of each leading product, in their order. trailing: that of each trailing product,
    and its level (lowering/carried.py). Operands have numbers in the order in which they are needed.
    """

    leading: tuple[int, ...] = (0,)
    trailing: tuple[tuple[int, int], ...] = ((1, 0),)

    @property
    def products(self) -> tuple[tuple[str, int], ...]:
        """Return the name of each product, and the number of its streamed operand, in the order of their numbers."""
        trailing = ((numbered(TRAILING, number), operand) for number, (operand, _) in enumerate(self.trailing))
        return *((numbered(LEADING, number), operand) for number, operand in enumerate(self.leading)), *trailing

    @property
    def operands(self) -> tuple[str, ...]:
        """Return the names of streamed operands: each has that of the first product that multiplies it."""
        return tuple({operand: name for name, operand in reversed(self.products)}[n] for n in range(self.several))

    @property
    def several(self) -> int:
        return 1 + max(operand for _, operand in self.products)

    @property
    def overlaps(self) -> bool:
        """True if the trailing product of an iteration may be in flight with the leading one of the next iteration."""
        return self == LoopOrder()


def loop_ring(*, buffers: int, consumers: int, ahead: bool, size: int, order: LoopOrder | None = None) -> Ring:
    """Return the ring of the streamed operands, of `size` bytes each, that an iteration of a loop multiplies.

    An iteration multiplies what is kept and streamed operands, computes with the products, and multiplies the results
    and streamed operands. order: None for one product of each kind. ahead: True if a product may be in flight next to
    another one: all leading products start together, and a trailing one is in flight while an iteration computes for
    the next. If there is one of each kind, the trailing product is in flight together with the leading one of the next
    iteration, while that is computed with.
    """
    order = order or LoopOrder()

    def loaded(number: int, place: int) -> tuple[Step, ...]:
        return (
            Step(word=AWAIT, what="empty", number=1, ahead=place),
            Step(word=EXPECT, what="full", number=size, ahead=place),
            Step(word=LOAD, what=order.operands[number], number=size, ahead=place),
        )

    def begun(what: str, place: int = 0) -> tuple[Step, ...]:
        return Step(word=AWAIT, what="full", ahead=place), Step(word=MULTIPLY, what=what, ahead=place)

    def ended(flying: int = 0, place: int = 0) -> tuple[Step, ...]:
        return Step(word=RETIRE, number=flying, ahead=place), Step(word=ARRIVE, what="empty", ahead=place)

    compute, carry = Step(word=COMPUTE), Step(word=CARRY)
    if ahead and order.overlaps:
        loader = Role(
            name=LOADER, groups=1, first=loaded(0, 0), steps=(*loaded(0, 0), *loaded(1, 1)), last=loaded(1, 0),
        )  # fmt: skip
        consumer = Role(
            name=CONSUMER, groups=consumers,
            first=(*begun(LEADING), *ended(), compute, carry),
            steps=(*begun(LEADING), *begun(TRAILING, 1), *ended(1), compute, *ended(0, 1), carry),
            last=(*begun(TRAILING), *ended()),
        )  # fmt: skip
    else:
        steps = tuple(step for number in range(order.several) for step in loaded(number, number))
        loader = Role(name=LOADER, groups=1, steps=steps)
        consumer = Role(name=CONSUMER, groups=consumers, steps=_iteration(order, ahead))
    return Ring(
        name=OPERANDS,
        buffers=buffers,
        barriers=(("full", 1), ("empty", consumers)),
        writer=loader,
        reader=consumer,
    )


def _iteration(order: LoopOrder, ahead: bool) -> tuple[Step, ...]:
    """Return the steps of a consumer in an iteration after which no product is in flight."""
    steps, flying, awaited = list[Step](), list[tuple[str, int]](), set[int]()
    levels = [*(-1 for _ in order.leading), *(level for _, level in order.trailing)]
    in_turn = sorted(zip(levels, order.products, strict=True), key=lambda one: one[0])
    last = {operand: name for _, (name, operand) in in_turn}

    def begin(number: int) -> None:
        name, place = order.products[number]
        if place not in awaited:
            steps.append(Step(word=AWAIT, what="full", ahead=place))
        steps.append(Step(word=MULTIPLY, what=name, ahead=place))
        awaited.add(place)
        flying.append((name, place))
        if not ahead:
            end(0)

    def end(most: int) -> None:
        """Wait for products until so many are in flight, and release operands that no later product multiplies."""
        done = flying[: len(flying) - most]
        del flying[: len(done)]
        if done:
            steps.append(Step(word=RETIRE, number=most, ahead=done[-1][1]))
        steps.extend(Step(word=ARRIVE, what="empty", ahead=place) for name, place in done if last[place] == name)

    for number in range(len(order.leading)):
        begin(number)
    for level in range(len(order.leading)):
        names = [name for name, _ in flying]
        if (name := numbered(LEADING, level)) in names:
            end(len(names) - 1 - names.index(name))
        steps.append(Step(word=COMPUTE, number=level))
        for number, (_, needed) in enumerate(order.trailing):
            if needed == level:
                steps.append(Step(word=CARRY, number=number))
                begin(len(order.leading) + number)
    while flying:
        end(len(flying) - 1)
    return tuple(steps)


def least_buffers(ring: Ring) -> int:
    """Return how many buffers the positions of an iteration take at a time: those from the first one that its reader
    has not released to the one that it awaits."""
    least, released = 1, set[int]()
    for step in ring.reader.steps:
        if step.word == ARRIVE:
            released.add(step.ahead)
        elif step.word == AWAIT:
            first = next(place for place in range(step.ahead + 1) if place not in released)
            least = max(least, step.ahead + 1 - first)
    return least


def target_of(number: int, targets: int) -> str:
    """Return the name of one of the places that results are stored at, "" for the only one."""
    return f"target{number}" if targets > 1 else ""


def result_ring(*, buffers: int, targets: int = 1) -> Ring:
    """Return the ring of a consumer's results, which the storer stores at some places.

    If there are several buffers, the storer starts to store one before the one before it has been read.
    """
    lag = int(buffers > 1)
    consumer = (
        Step(word=AWAIT, what="drained", number=1),
        Step(word=FILL),
        Step(word=FENCE),
        Step(word=ARRIVE, what="staged"),
    )
    storer = (
        Step(word=AWAIT, what="staged"),
        *(Step(word=STORE, what=target_of(number, targets)) for number in range(targets)),
        Step(word=RETIRE, number=lag * targets),
        Step(word=ARRIVE, what="drained", number=lag),
    )
    return Ring(
        name=RESULTS,
        buffers=buffers,
        barriers=(("staged", 1), ("drained", 1)),
        writer=Role(name=CONSUMER, groups=1, steps=consumer),
        reader=Role(name=STORER, groups=1, steps=storer),
    )


@dataclass(frozen=True, kw_only=True)
class Parts:
    """The steps of a role in a tile: in its first iteration, in each further one, and at the last position after."""

    first: tuple[Step, ...]
    each: tuple[Step, ...]
    last: tuple[Step, ...]


def parts_of(role: Role) -> Parts:
    """Return the steps of a role in a tile. A role that releases positions late releases none of another tile."""
    if role.first is not None:
        return Parts(first=role.first, each=role.steps, last=role.last or ())
    if not role.released_late:
        return Parts(first=role.steps, each=role.steps, last=())
    first = tuple(step for step in role.steps if not (step.word == ARRIVE and step.number))
    released = (Step(word=ARRIVE, what=step.what) for step in role.steps if step.word == ARRIVE and step.number)
    return Parts(first=first, each=role.steps, last=(Step(word=RETIRE), *released))


def positions_of(steps: tuple[Step, ...]) -> int:
    """Return how many positions an iteration takes."""
    return 1 + max((step.ahead for step in steps), default=0)


def of_tile(role: Role, iterations: int) -> Iterator[tuple[int, Step]]:
    """Yield (position, step) of a tile of some iterations, 0 for one without a product.

    Positions are counted from the tile's first one.
    """
    parts = parts_of(role)
    position = 0
    for iteration in range(iterations):
        steps = parts.each if iteration else parts.first
        for step in steps:
            yield position + step.ahead, step
        position += positions_of(steps)
    last = position if role.first is not None else position - 1
    for step in parts.last if iterations else ():
        yield last, step
    for number in range(role.further):
        for step in role.after:
            yield position + number, step


def taken(role: Role, iterations: int) -> int:
    """Return how many positions of a ring a tile takes in some iterations."""
    parts = parts_of(role)
    if not iterations:
        return role.further
    more = 1 if role.first is not None and parts.last else 0
    return positions_of(parts.first) + (iterations - 1) * positions_of(parts.each) + more + role.further
