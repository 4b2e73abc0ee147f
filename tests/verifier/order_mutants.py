"""Mutants of the formulas that families ask: what is said of plans if one constraint of one question is wrong.

    python -m tests.verifier.order_mutants 3000

The number is how many mutants are judged, and a second one is the seed. Of the corpus of test_families.py, in which
some reads are in no order after a write, a plan is drawn for each, with one of the formulas that its pairs of
statements ask and a place of it. The oracle is the enumeration: all pairs of a write and a read that overlap.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import cache
from random import Random
from unittest import mock

from tests.facts.mutants import Verdict, mutants, table
from tests.verifier.test_families import Enumerated, corpus
from tilelink.facts.linear import Formula, refuted
from tilelink.verifier import families
from tilelink.verifier.families import Families

Places = dict[str, list[Callable[[], Formula]]]


def changed(plan: Enumerated, change: Callable[[Formula], Formula]) -> tuple[int, bool]:
    """How many pairs of a plan are decided if the formulas are changed, and whether what is said of them is true."""
    with mock.patch.object(families, "refuted", lambda formula: refuted(change(formula))):
        decided = sum(reason is not None for reason in Families(plan.plan).answers.values())
        return decided, not plan.wrong()


@cache
def asked(number: int) -> tuple[tuple[Formula, ...], int]:
    """The formulas that are asked of a plan of the corpus, and how many of its pairs are decided."""
    found: dict[Formula, None] = {}
    decided, true = changed(corpus()[number], lambda formula: found.setdefault(formula) or formula)
    assert true
    return tuple(found), decided


@cache
def places(formula: Formula) -> Places:
    """The mutants of a formula, by their kinds."""
    found: Places = {}
    for kind, make in mutants(formula):
        found.setdefault(kind, []).append(make)
    return found


def verdicts(seed: int) -> Iterator[Verdict]:
    """Yield verdicts on mutants without an end."""
    draw = Random(seed)
    with_questions = [number for number in range(len(corpus())) if asked(number)[0]]
    while True:
        number = draw.choice(with_questions)
        formulas, before = asked(number)
        formula = draw.choice(formulas)
        kind = draw.choice([*places(formula)])
        wrong = draw.choice(places(formula)[kind])()
        decided, true = changed(corpus()[number], lambda own, at=formula, wrong=wrong: wrong if own == at else own)
        yield Verdict(kind=kind, less=decided < before, more=decided > before, true=true)


def main(number: int, seed: int = 0) -> int:
    """Prints the table."""
    every = [verdict for verdict, _ in zip(verdicts(seed), range(number), strict=False)]
    print(f"{len(every)} mutants of {len(corpus())} plans\n", *table(every), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0))
