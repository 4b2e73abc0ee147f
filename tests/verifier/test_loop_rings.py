"""Rings of loops that carry a state: those of the passes are right, and changes are refused or never fail when run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.tiers import thorough
from tests.verifier.loop_rings import fails
from tilelink.lowering.rings import LoopOrder, Ring, Role, Step, kept_ring, loop_ring
from tilelink.verifier.rings import wrong_together
from tilelink.verifier.roles import takes_in_order

KEPT = kept_ring(consumers=2, size=16)
RING = loop_ring(buffers=3, consumers=2, ahead=True, size=32)
AHEAD = loop_ring(buffers=2, consumers=2, ahead=True, size=32)
PLAIN = loop_ring(buffers=2, consumers=2, ahead=False, size=32)
Pair = tuple[Ring, Ring]


def refused(ring: Ring, kept: Ring, iterations: int = 5, order: LoopOrder | None = None) -> str | None:
    """Return why a pair of rings is refused, for any number of iterations from none up to some, or None."""
    if not takes_in_order(ring, order or LoopOrder()):
        return "out of iteration"
    return next(filter(None, (wrong_together(ring, kept, n, least=0) for n in range(1, iterations + 1))), None)


@thorough(unless=lambda buffers, consumers: (buffers, consumers) in ((2, 2), (3, 2), (4, 3)))
@pytest.mark.parametrize("buffers", [2, 3, 4, 6])
@pytest.mark.parametrize("consumers", [2, 3])
@pytest.mark.parametrize("ahead", [True, False])
def test_rings_of_loops_are_right(buffers: int, consumers: int, ahead: bool) -> None:
    ring, kept = loop_ring(buffers=buffers, consumers=consumers, ahead=ahead, size=32), KEPT
    kept = kept_ring(consumers=consumers, size=16)
    assert refused(ring, kept, 3 if buffers > 3 else 5) is None
    for iterations in ([1, 1, 1, 1], [5, 1, 3], [2, 7, 2], [2, 0, 0, 3, 0]):
        assert not fails(ring, kept, iterations, runs=10)


ROWS = LoopOrder(leading=(0, 1), trailing=((0, 1),))
COLUMNS = LoopOrder(leading=(0, 1), trailing=((1, 0), (0, 1)))
THREE = LoopOrder(leading=(0, 1, 2), trailing=((3, 2), (0, 0)))
ORDERS = {"rows": ROWS, "columns": COLUMNS, "three": THREE}
"""Loops of several products: those of attention's gradients, and one with operands that products share or do not."""


@thorough(unless=lambda name, buffers, ahead: ahead and name != "three")
@pytest.mark.parametrize("buffers", [2, 4])
@pytest.mark.parametrize("ahead", [True, False])
@pytest.mark.parametrize("name", ORDERS)
def test_rings_of_several_products_are_right(name: str, buffers: int, ahead: bool) -> None:
    order, buffers = ORDERS[name], buffers + 2 * (name == "three")
    ring = loop_ring(buffers=buffers, consumers=2, ahead=ahead, size=32, order=order)
    kept = kept_ring(consumers=2, size=16, several=2)
    assert refused(ring, kept, 3, order) is None
    for iterations in ([1, 1, 1, 1], [5, 1, 3], [2, 0, 0, 3, 0]):
        assert not fails(ring, kept, iterations, runs=10, order=order)


PARTS = ("first", "steps", "last")


def changed(ring: Ring, side: str, part: str, steps: list[Step]) -> Ring:
    role: Role = getattr(ring, side)
    return replace(ring, **{side: replace(role, **{part: tuple(steps)})})


def edit(ring: Ring, side: str, part: str, text: str, *new: str) -> Ring:
    """The steps `new` in place of the first step that is `text`."""
    steps = list(getattr(getattr(ring, side), part))
    at = next(n for n, step in enumerate(steps) if str(step) == text)
    return changed(ring, side, part, [*steps[:at], *map(step_of, new), *steps[at + 1 :]])


def step_of(text: str) -> Step:
    ahead = text.endswith(" next")
    word, *rest = text.removesuffix(" next").split()
    what = next((one for one in rest if not one.isdigit()), "")
    return Step(word=word, what=what, number=next((int(one) for one in rest if one.isdigit()), 0), ahead=ahead)


MISTAKES: dict[str, tuple[Pair, str]] = {
    "one buffer": ((replace(RING, buffers=1), KEPT), "wait for each other"),
    "scores that are not complete": (
        (edit(RING, "reader", "steps", "retire 1", "retire 2"), KEPT), "still reads|in flight"
    ),
    "sums that are not complete": (
        (edit(RING, "reader", "steps", "retire 0 next", "retire 1 next"), KEPT), "still reads|in flight"
    ),
    "a trailing operand that is released early": (
        (edit(RING, "reader", "steps", "arrive empty 0", "arrive empty 0", "arrive empty 0 next"), KEPT), "still reads"
    ),
    "a place that is not released": ((edit(RING, "reader", "last", "arrive empty 0"), KEPT), "wait for each other"),
    "what is kept is overwritten": ((RING, edit(KEPT, "writer", "steps", "await vacant 1")), "still"),
    "what is kept is not waited for": ((RING, edit(KEPT, "reader", "steps", "await ready 0")), "before it is loaded"),
    "what is kept is released early": (
        (RING, changed(KEPT, "reader", "steps", list(map(step_of, ("arrive vacant", "await ready"))))), "before it is"
    ),
    "too few arrivals for what is kept": ((RING, replace(KEPT, barriers=(("ready", 1), ("vacant", 1)))), "."),
    "the operands in another order": (
        (edit(RING, "writer", "first", "load leading 32", "load trailing 32"), KEPT), "out of iteration"
    ),
    "a product of what is not computed": (
        (changed(RING, "reader", "first", [s for s in RING.reader.first or () if s.word != "carry"]), KEPT),
        "out of iteration",
    ),
    "another number of consumers": ((RING, kept_ring(consumers=3, size=16)), "other groups of warps"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_refused(name: str) -> None:
    (ring, kept), reason = MISTAKES[name]
    found = refused(ring, kept)
    assert found is not None and re.search(reason, found), found


def test_what_is_kept_is_released_after_the_products_that_read_it() -> None:
    """Without the wait for a tile's last leading product, and without what is computed with it."""
    assert RING.reader.last is not None
    hasty = [step for step in RING.reader.steps if step.word not in ("retire", "compute", "carry", "arrive")]
    first = [step for step in RING.reader.first or () if step.word not in ("retire", "compute", "carry", "arrive")]
    ring = changed(changed(RING, "reader", "steps", hasty), "reader", "first", first)
    found = wrong_together(ring, KEPT, 2)
    assert found == "a consumer releases a buffer that it still reads"


def mutants(ring: Ring, kept: Ring) -> Iterator[Pair]:
    """Every step left out, exchanged with the next one, at the other place, or with another number; other counts."""
    for which in (0, 1):
        one = (ring, kept)[which]

        def pair(made: Ring, which: int = which) -> Pair:
            return (ring, made) if which else (made, kept)

        for side in ("writer", "reader"):
            for part in PARTS:
                steps: list[Step] = list(getattr(getattr(one, side), part) or ())
                for at, step in enumerate(steps):
                    yield pair(changed(one, side, part, steps[:at] + steps[at + 1 :]))
                    if at + 1 < len(steps):
                        swapped = [*steps[:at], steps[at + 1], step, *steps[at + 2 :]]
                        yield pair(changed(one, side, part, swapped))
                    for number in {step.number - 1, step.number + 1} - {-1}:
                        other = [*steps[:at], replace(step, number=number), *steps[at + 1 :]]
                        yield pair(changed(one, side, part, other))
        for name, count in one.barriers:
            for arrivals in {count - 1, count + 1} - {0}:
                yield pair(replace(one, barriers=tuple((n, arrivals if n == name else c) for n, c in one.barriers)))
    yield replace(ring, buffers=ring.buffers - 1), kept
    yield replace(ring, buffers=ring.buffers + 1), kept


SEVERAL = {name: loop_ring(buffers=2, consumers=2, ahead=True, size=32, order=ORDERS[name]) for name in ORDERS}
RINGS = {
    "ahead": (AHEAD, LoopOrder()), "plain": (PLAIN, LoopOrder()),
    **{name: (SEVERAL[name], ORDERS[name]) for name in ("rows", "columns")},
}  # fmt: skip


@pytest.mark.parametrize("name", RINGS)
def test_what_is_not_refused_never_fails(name: str) -> None:
    ring, order = RINGS[name]
    turned_down = accepted = failing = 0
    for mutant, kept in mutants(ring, KEPT if order == LoopOrder() else kept_ring(consumers=2, size=16, several=2)):
        loads = [step for one in (mutant, kept) for step in one.writer.every if step.word == "load"]
        if any(step.number < 1 for step in loads):
            continue
        if refused(mutant, kept, 3, order) is None:
            accepted += 1
            for iterations in ([1, 1, 1, 1], [4, 1, 3], [0, 2, 0, 0, 3]):
                assert not fails(mutant, kept, iterations, runs=15, order=order), (mutant, kept)
        else:
            turned_down += 1
            failing += any(
                fails(mutant, kept, iterations, runs=15, order=order) for iterations in ([1, 1, 1, 1], [4, 1, 3])
            )
    assert accepted > 2 and turned_down > 30 and failing >= 0.6 * turned_down
