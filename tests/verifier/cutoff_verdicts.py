"""Counts what small programs prove and what rules say of the whole ones: the table of docs/verification.md.

    python -m tests.verifier.cutoff_verdicts 300

The number is how many random programs of each kind are drawn; beside these are mutants of one in MUTANTS programs of
the library. Of a mutant that has no blocks any more nothing is proved.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator

from tests.campaign.combined import combined_case
from tests.campaign.drawing import case
from tests.campaign.launches import launch_case
from tests.tiers import one_in
from tests.verifier.test_cutoff import NAMES, Whole, mutated, of_campaign

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


def table(numbers: int) -> list[str]:
    found = Counter((bool(whole.verdict()), not whole.said()) for whole in wholes(numbers))
    names = {True: "proved", False: "not proved"}
    rows = [f"| {name} | {found[proved, True]} | {found[proved, False]} |" for proved, name in names.items()]
    return ["| by a small program | safe | refused |", "|---|---|---|", *rows]


if __name__ == "__main__":
    print("\n".join(table(int(sys.argv[1]))))
