"""Counts what is said of all tiles at once beside what their enumeration says: the tables of docs/verification.md.

    python -m tests.verifier.order_verdicts 3000 low_latency

The number is that of the mutants of the library's programs and schedules that are asked, with random programs between
them. With a word only schedules that have it are taken. Turns (turns.py) are beside a run of all programs, families
beside the search of all pairs of accesses.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from itertools import islice

from tests.campaign.combined import combined_case
from tests.campaign.drawing import case
from tests.campaign.launches import launch_case
from tests.compiler import library
from tests.verifier.mutations import mutants
from tests.verifier.test_families import Enumerated, case_of, of_campaign, pairwise
from tilelink.errors import TileLinkError
from tilelink.planning.any_program import together
from tilelink.planning.plan import Plan
from tilelink.planning.queue_order import with_queue_order
from tilelink.verifier import RULES, Orders
from tilelink.verifier.ordering import ordering
from tilelink.verifier.progress import progress
from tilelink.verifier.turns import in_turn

MANY = 4000
"""Accesses and signals of a plan, at most."""
DRAWS = (case, launch_case, combined_case)


def plans(word: str) -> Iterator[Plan]:
    """The plans of mutants of the library, one of each kind of each case in turn, with random programs between them."""
    made = 0
    for seed in range(100):
        for program, schedule in (one for one in library.cases() if word in str(one[1])):
            for mutant in mutants(case_of(program, schedule), 1, seed):
                if mutant.level != "plan":
                    try:
                        yield with_queue_order(mutant.make())
                    except TileLinkError:
                        continue
            for draw in DRAWS:
                made += 1
                if (plan := of_campaign(draw, made)) is not None:
                    yield plan


def tables(numbers: int, word: str) -> list[str]:
    turns, families, reasons = Counter[tuple[bool, bool]](), Counter[tuple[bool, bool]](), Counter[str | None]()
    few = (plan for plan in plans(word) if len(plan.accesses.task) + len(plan.signals.task) < MANY)
    for number, plan in enumerate(islice(few, numbers)):
        if number % 100 == 99:
            print(number + 1, dict(turns), dict(families), file=sys.stderr, flush=True)
        if next(RULES["accounting"](plan, Orders(plan)), None) is None:
            turns[in_turn(plan), next(progress(together(plan)), None) is None] += 1
        order = Orders(plan)
        if order.families is None or next(RULES["words"](plan, order), None) is not None:
            continue
        found = Enumerated.of(plan)
        alone = pairwise(plan)
        by_all = next(ordering(plan, order), None) is None
        by_pairs = next(ordering(alone, Orders(alone)), None) is None
        families[by_all and not found.wrong(), by_pairs] += 1
        if found.wrong() or by_all != by_pairs:
            print("differs:", plan.bound.source.name, found.wrong(), file=sys.stderr)
        reasons.update(order.families.answers.values())
    lines = list[str]()
    for name, counts, yes in (("turns", turns, "in turn"), ("families", families, "safe")):
        lines += [f"| {name} | by enumeration safe | refused |", "|---|---|---|"]
        for said in (True, False):
            row = yes if said else f"not {yes}"
            lines.append(f"| {row} | {counts[said, True]} | {counts[said, False]} |")
        lines.append("")
    return [*lines, ", ".join(f"{reason or 'left to pairs'} {count}" for reason, count in reasons.most_common())]


if __name__ == "__main__":
    print("\n".join(tables(int(sys.argv[1]), "".join(sys.argv[2:3]))))
