"""Rings of buffers: those of the passes are right, and every change of one is refused or never fails when it runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import pytest

from tests.tiers import thorough
from tests.verifier.rings import fails
from tilelink.lowering.rings import Ring, Role, Step, operand_ring, result_ring
from tilelink.verifier.rings import wrong

OPERANDS = operand_ring(buffers=3, consumers=2, ahead=1, left=16, right=32)
ADDENDS = operand_ring(buffers=3, consumers=2, ahead=1, left=16, right=32, further=2, piece=8)
RESULTS = result_ring(buffers=2)


@pytest.mark.parametrize("tile", [1, 2, 3, 64])
@pytest.mark.parametrize("buffers", [2, 3, 4])
@pytest.mark.parametrize("consumers", [2, 3])
@pytest.mark.parametrize("ahead", [0, 1])
@pytest.mark.parametrize("addends", [0, 1, 4])
def test_rings_of_operands_are_right(tile: int, buffers: int, consumers: int, ahead: int, addends: int) -> None:
    ring = operand_ring(buffers=buffers, consumers=consumers, ahead=ahead, left=16, right=32, further=addends, piece=8)
    assert wrong(ring, tile) is None
    assert not fails(ring, min(tile, 7), runs=15)


@pytest.mark.parametrize("tile", [1, 2, 4])
@pytest.mark.parametrize("buffers", [1, 2, 4])
def test_rings_of_results_are_right(tile: int, buffers: int) -> None:
    assert wrong(result_ring(buffers=buffers), tile) is None
    assert not fails(result_ring(buffers=buffers), tile, runs=15)


def with_steps(ring: Ring, side: str, steps: list[Step], when: str = "steps") -> Ring:
    role: Role = getattr(ring, side)
    return replace(ring, **{side: replace(role, **{when: tuple(steps)})})


def find(ring: Ring, side: str, text: str) -> tuple[list[Step], int]:
    steps = list(getattr(ring, side).steps)
    return steps, next(n for n, step in enumerate(steps) if str(step).startswith(text))


def without(side: str, text: str, ring: Ring = OPERANDS) -> Ring:
    steps, at = find(ring, side, text)
    return with_steps(ring, side, steps[:at] + steps[at + 1 :])


def numbered(side: str, text: str, number: int, ring: Ring = OPERANDS) -> Ring:
    steps, at = find(ring, side, text)
    return with_steps(ring, side, [*steps[:at], replace(steps[at], number=number), *steps[at + 1 :]])


def before(side: str, text: str, other: str, ring: Ring = OPERANDS) -> Ring:
    """The step `text` directly before `other`."""
    steps, at = find(ring, side, text)
    moved = steps.pop(at)
    to = next(n for n, step in enumerate(steps) if str(step).startswith(other))
    return with_steps(ring, side, [*steps[:to], moved, *steps[to:]])


def counting(name: str, arrivals: int, ring: Ring = OPERANDS) -> Ring:
    return replace(ring, barriers=tuple((one, arrivals if one == name else n) for one, n in ring.barriers))


MISTAKES = {
    "a single buffer": (replace(OPERANDS, buffers=1), "wait for each other"),
    "a loader that does not wait": (without("writer", "await"), "still written"),
    "a loader that waits for the wrong phase": (numbered("writer", "await", 0), "wait for each other"),
    "a loader that loads and then waits": (before("writer", "load left", "await"), "still"),
    "a consumer that does not wait": (without("reader", "await"), "before it is loaded"),
    "a consumer that waits for the wrong phase": (numbered("reader", "await", 1), "before it is loaded"),
    "a consumer that multiplies and then waits": (before("reader", "multiply", "await"), "before it is loaded"),
    "a consumer that does not release": (without("reader", "arrive"), "wait for each other"),
    "a consumer that releases first": (before("reader", "arrive", "retire"), "that it still reads"),
    "a consumer that releases too much": (numbered("reader", "arrive", 0), "that it still reads"),
    "a consumer that waits for too little": (numbered("reader", "retire", 2), "that it still reads"),
    "too few arrivals": (counting("empty", 1), "."),
    "too many arrivals": (counting("empty", 3), "wait for each other"),
    "too many arrivals of the loader": (counting("full", 2), "wait for each other"),
    "too few bytes": (numbered("writer", "expect", 32), "."),
    "too many bytes": (numbered("writer", "expect", 64), "wait for each other"),
    "no bytes at all": (numbered("writer", "expect", 0), "before it is loaded"),
    "a result that is not fenced": (without("writer", "fence", RESULTS), "before it is loaded"),
    "a result that is fenced too early": (before("writer", "fence", "fill", RESULTS), "before it is loaded"),
    "a result that is told of too early": (before("writer", "arrive", "fence", RESULTS), "before it is loaded"),
    "a result over another": (without("writer", "await", RESULTS), "still read|not been read"),
    "a result that is released too early": (before("reader", "arrive", "retire", RESULTS), "."),
    "an addend that is taken before it is loaded": (
        with_steps(ADDENDS, "reader", [*ADDENDS.reader.after[1:]], "after"), "before it is loaded"
    ),
    "an addend over another": (
        with_steps(ADDENDS, "writer", [*ADDENDS.writer.after[1:]], "after"), "still read|not been read|still written"
    ),
    "an addend that is not released": (
        with_steps(ADDENDS, "reader", [*ADDENDS.reader.after[:-1]], "after"), "wait for each other"
    ),
    "an addend too many": (
        replace(ADDENDS, writer=replace(ADDENDS.writer, further=3)), "further positions of different numbers"
    ),
    "a barrier that there is not": (
        replace(OPERANDS, barriers=(("full", 1),)), "it has no barrier empty"
    ),
    "a role that is two late": (numbered("reader", "arrive", 2), "more than one late"),
    "a step that there is not": (
        with_steps(OPERANDS, "reader", [*OPERANDS.reader.steps, Step(word="dance")]), "no step of a role"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_refused(name: str) -> None:
    import re

    ring, reason = MISTAKES[name]
    found = wrong(ring, 3)
    assert found is not None and re.search(reason, found), found


def mutants(ring: Ring) -> Iterator[Ring]:
    """Every step left out, exchanged with the next one, or with another number; other counts; fewer buffers."""
    for side, when in product(("writer", "reader"), ("steps", "after")):
        steps = list(getattr(getattr(ring, side), when))
        for at, step in enumerate(steps):
            yield with_steps(ring, side, steps[:at] + steps[at + 1 :], when)
            yield with_steps(ring, side, [*steps[:at], *steps[at + 1 : at + 2], step, *steps[at + 2 :]], when)
            for number in {step.number - 1, step.number + 1} - {-1}:
                yield with_steps(ring, side, [*steps[:at], replace(step, number=number), *steps[at + 1 :]], when)
        if steps and when == "after":
            for further in (-1, 1):
                role = getattr(ring, side)
                yield replace(ring, **{side: replace(role, further=role.further + further)})
    for name, count in ring.barriers:
        for arrivals in {count - 1, count + 1} - {0}:
            yield counting(name, arrivals, ring)
    if ring.buffers > 1:
        yield replace(ring, buffers=ring.buffers - 1)
    yield replace(ring, buffers=ring.buffers + 1)


@thorough(unless=lambda tile: tile == 3)
@pytest.mark.parametrize(
    "ring", [OPERANDS, ADDENDS, RESULTS, result_ring(buffers=1)], ids=["operands", "addends", "results", "a result"]
)
@pytest.mark.parametrize("tile", [1, 3, 8])
def test_what_is_not_refused_never_fails(ring: Ring, tile: int) -> None:
    refused = accepted = failing = 0
    for mutant in mutants(ring):
        if any(step.word == "load" and step.number < 1 for step in mutant.writer.every):
            continue
        if wrong(mutant, tile) is None:
            accepted += 1
            assert not fails(mutant, tile), mutant
        else:
            refused += 1
            failing += bool(fails(mutant, tile))
    assert accepted > 2 and refused > 8 and failing >= 0.7 * refused
