"""Counts what small programs prove and what rules say of the whole ones: the table of docs/verification.md.

    python -m tests.verifier.cutoff_verdicts 300
    python -m tests.verifier.cutoff_verdicts 600 ranks

The number is how many random programs of each kind are drawn; beside these are mutants of one in MUTANTS programs of
the library. Of a mutant that has no blocks any more nothing is proved. With `ranks` small programs are those on few of
eight ranks: of random programs, of their mutants and of those of the library.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator

from tests.campaign.combined import combined_case
from tests.campaign.drawing import case
from tests.campaign.launches import launch_case
from tests.compiler import library
from tests.tiers import one_in
from tests.verifier import test_few_ranks as few_ranks
from tests.verifier.test_cutoff import NAMES, Whole, mutated, of_campaign
from tests.verifier.test_families import case_of
from tilelink.planning import cutoff as cutoffs

MUTANTS = 32


def wholes(numbers: int) -> Iterator[Whole]:
    for draw in (case, launch_case, combined_case):
        for number in range(numbers):
            if (whole := of_campaign(draw, number)) is not None:
                yield whole
    for name in NAMES:
        if one_in(MUTANTS, name):
            for _, plan in mutated(name):
                yield Whole(plan=plan)


def on_many_ranks(numbers: int) -> Iterator[Whole]:
    cutoffs.MANY_RANKS = few_ranks.RANKS
    for number in range(numbers):
        yield from (whole for _, whole in few_ranks.drawn(number))
    for one in library.cases():
        if one_in(MUTANTS, library.name(one)):
            yield from (whole for _, whole in few_ranks.mutated(case_of(*one, few_ranks.RANKS), 2))


def table(every: Iterator[Whole]) -> list[str]:
    found = Counter((bool(whole.verdict()), not whole.said()) for whole in every)
    names = {True: "proved", False: "not proved"}
    rows = [f"| {name} | {found[proved, True]} | {found[proved, False]} |" for proved, name in names.items()]
    return ["| by a small program | safe | refused |", "|---|---|---|", *rows]


if __name__ == "__main__":
    print("\n".join(table((on_many_ranks if "ranks" in sys.argv else wholes)(int(sys.argv[1])))))
