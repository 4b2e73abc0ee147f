"""Points of a search: a choice for each knob of one of several subjects, and the ways from one point to others.

A strategy sees no more than this. What a point stands for, the space knows that extends these: a schedule of a program
(`space.py`), or a launch in which something may be slow (`tilelink/hunt`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from random import Random
from typing import Protocol

from tilelink.errors import SearchError


class Choice(Protocol):
    """What a knob says of its choices."""

    @property
    def name(self) -> str: ...

    @property
    def labels(self) -> tuple[str, ...]: ...


@dataclass(frozen=True, order=True, kw_only=True)
class Candidate:
    """A point: the number of a program, or of another subject, and one choice for each of its knobs."""

    program: int
    choices: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Points:
    """Every combination of the knobs of each subject. seeds: points to begin with."""

    knobs: Sequence[Sequence[Choice]]
    seeds: tuple[Candidate, ...] = ()

    @property
    def size(self) -> int:
        """Number of points, including those that will be refused."""
        return sum(prod(len(knob.labels) for knob in own) for own in self.knobs)

    def check(self, candidate: Candidate) -> None:
        """Raise SearchError if `candidate` is not a point of this space."""
        hint = "make points with Space.random, neighbour and cross; Space.knobs lists the choices"
        # Strategies need not be typed.
        if not isinstance(candidate, Candidate) or not isinstance(candidate.choices, tuple):  # pyright: ignore
            raise SearchError(f"a strategy proposes {candidate!r}", hint="a Candidate with a tuple of choices")
        if not 0 <= candidate.program < len(self.knobs):
            raise SearchError(f"a strategy proposes program {candidate.program} of {len(self.knobs)}", hint=hint)
        own = self.knobs[candidate.program]
        if len(candidate.choices) != len(own):
            raise SearchError(f"a strategy proposes {len(candidate.choices)} choices for {len(own)} knobs", hint=hint)
        for knob, choice in zip(own, candidate.choices, strict=True):
            if not 0 <= choice < len(knob.labels):
                message = f"a strategy proposes choice {choice} of {knob.name}, which has {len(knob.labels)}"
                raise SearchError(message, hint=hint)

    def describe(self, candidate: Candidate) -> dict[str, str]:
        """Return knob name -> label of the choice."""
        own = self.knobs[candidate.program]
        return {knob.name: knob.labels[choice] for knob, choice in zip(own, candidate.choices, strict=True)}

    def __iter__(self) -> Iterator[Candidate]:
        for number, own in enumerate(self.knobs):
            for choices in product(*(range(len(knob.labels)) for knob in own)):
                yield Candidate(program=number, choices=choices)

    def random(self, chance: Random) -> Candidate:
        """Return a random point; all programs are equally likely."""
        number = chance.randrange(len(self.knobs))
        return Candidate(program=number, choices=tuple(chance.randrange(len(k.labels)) for k in self.knobs[number]))

    def neighbour(self, candidate: Candidate, chance: Random) -> Candidate:
        """Return a point that differs in one choice, or, with a small probability, a random point of any program."""
        own = self.knobs[candidate.program]
        open_ones = [at for at, knob in enumerate(own) if len(knob.labels) > 1]
        if not open_ones or (len(self.knobs) > 1 and chance.random() < 1 / (len(own) + 1)):
            return self.random(chance)
        at = open_ones[chance.randrange(len(open_ones))]
        others = [choice for choice in range(len(own[at].labels)) if choice != candidate.choices[at]]
        choices = (*candidate.choices[:at], chance.choice(others), *candidate.choices[at + 1 :])
        return Candidate(program=candidate.program, choices=choices)

    def neighbours(self, candidate: Candidate) -> Iterator[Candidate]:
        """Yield all points of the same program that differ in one choice, knob by knob."""
        for at, knob in enumerate(self.knobs[candidate.program]):
            for choice in range(len(knob.labels)):
                if choice != candidate.choices[at]:
                    yield replace(candidate, choices=(*candidate.choices[:at], choice, *candidate.choices[at + 1 :]))

    def cross(self, one: Candidate, other: Candidate, chance: Random) -> Candidate:
        """Return a point with each choice from one of two points; if their programs differ, one of the two points."""
        if one.program != other.program:
            return chance.choice((one, other))
        mixed = tuple(chance.choice(pair) for pair in zip(one.choices, other.choices, strict=True))
        return Candidate(program=one.program, choices=mixed)
