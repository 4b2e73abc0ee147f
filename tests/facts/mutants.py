"""Mutants of formulas: what is said of drawn questions if one constraint of their encoding is wrong.

    python -m tests.facts.mutants 1500

The number is how many questions are drawn, and a second one is the first of them. Of each question the oracle tries all
launches of its small index tensors; what the package itself proves is true. A question is a formula that is to be
refuted, and of each kind of mistake one place of it is chosen by the number of the question.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from unittest import mock

from tests.facts.launches import Question, drawn
from tilelink.facts import questions
from tilelink.facts.linear import ONE, All, AtLeast, Equal, Formula, Some, plus, refuted

Making = Callable[[], Formula]


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Whether less or more is proved with the mistake than without it, and whether what is proved is true."""

    kind: str
    less: bool
    more: bool
    true: bool

    @property
    def outcome(self) -> str:
        if not self.true:
            return "proves what is not true"
        return "proves less" if self.less else "proves more that is true" if self.more else "as without it"


OUTCOMES = (
    "as without it", "proves less", "proves more that is true", "proves what is not true",
)  # fmt: skip


def _moved(formula: AtLeast | Equal, by: int) -> Formula:
    return type(formula)(tuple(sorted(plus(dict(formula.terms), {ONE: by}).items())))


def _shared(formula: Formula, one: int, other: int) -> Formula:
    """The formula with one symbol in place of another one."""
    match formula:
        case AtLeast(terms=terms) | Equal(terms=terms):
            total: dict[int, int] = {}
            for name, times in terms:
                total = plus(total, {one if name == other else name: times})
            return type(formula)(tuple(sorted(total.items())))
        case All(parts=parts) | Some(parts=parts):
            return type(formula)(tuple(_shared(part, one, other) for part in parts))


def _symbols(formula: Formula) -> set[int]:
    match formula:
        case AtLeast(terms=terms) | Equal(terms=terms):
            return {name for name, _ in terms} - {ONE}
        case All(parts=parts) | Some(parts=parts):
            return set[int]().union(*map(_symbols, parts))


def mutants(formula: Formula, outermost: bool = True) -> Iterator[tuple[str, Making]]:
    """Yield (kind, formula with a mistake) for each place of a formula."""
    match formula:
        case AtLeast() | Equal():
            yield "a threshold one less", lambda: _moved(formula, -1)
            yield "a threshold one more", lambda: _moved(formula, 1)
            if isinstance(formula, AtLeast):
                yield "no less is equal", lambda: Equal(formula.terms)
        case All(parts=parts) | Some(parts=parts):
            own = type(formula)
            for number, part in enumerate(parts):
                rest = (*parts[:number], *parts[number + 1 :])
                for kind, make in mutants(part, outermost=False):
                    yield kind, lambda n=number, make=make: own((*parts[:n], make(), *parts[n + 1 :]))
                yield "a part of a choice forgotten" if own is Some else "a part forgotten", lambda rest=rest: own(rest)
                if own is Some and number == len(parts) - 1 > 0:
                    yield "what is promised without its condition", lambda part=part: part
    if outermost:
        names = sorted(_symbols(formula))
        for one in names:
            for other in names:
                if one < other:
                    yield "two symbols are one", lambda a=one, b=other: _shared(formula, a, b)


def answered(question: Question, change: Callable[[int, Formula], Formula]) -> tuple[bool, list[Formula]]:
    """What the package says of a question if its formulas are changed, and these."""
    asked: list[Formula] = []

    def refute(formula: Formula) -> bool:
        asked.append(formula)
        return refuted(change(len(asked) - 1, formula))

    with mock.patch.object(questions, "refuted", refute):
        return question.answer(), asked


def judged(seed: int) -> Iterator[Verdict]:
    """Yield the verdicts on a mutant of each kind of a question."""
    question, draw = drawn(seed), Random(f"mutants {seed}")
    before, asked = answered(question, lambda _, formula: formula)
    true = question.true()
    assert true or not before, f"{seed}: {question}"
    places: dict[str, list[tuple[int, Making]]] = {}
    for number, formula in enumerate(asked):
        for kind, make in mutants(formula):
            places.setdefault(kind, []).append((number, make))
    for kind, found in places.items():
        number, make = draw.choice(found)
        wrong = make()
        said, _ = answered(question, lambda at, own, number=number, wrong=wrong: wrong if at == number else own)
        yield Verdict(kind=kind, less=before and not said, more=said and not before, true=true or not said)


def table(every: Sequence[Verdict]) -> Iterator[str]:
    """Yield the lines of a table: how many mutants of each kind have which outcome."""
    counts = Counter((one.kind, one.outcome) for one in every)
    yield "| mistake | " + " | ".join(OUTCOMES) + " |"
    yield "|---" * (len(OUTCOMES) + 1) + "|"
    for kind in sorted({one.kind for one in every}):
        yield f"| {kind} | " + " | ".join(str(counts[kind, outcome]) for outcome in OUTCOMES) + " |"


def main(number: int, first: int = 0) -> int:
    """Prints the table."""
    every = [one for seed in range(first, first + number) for one in judged(seed)]
    print(f"{len(every)} mutants of {number} questions\n", *table(every), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0))
