"""Random programs before the rules, families, enumeration and simulated interleavings: do they agree?

    python -m tests.verifier.random_verdicts 10000 --jobs 2 --log FILE

The number is how many are drawn of each kind: of the campaign, with integers of a launch, and combined. What is judged
goes in parts into the file, from which another run goes on. Programs of which a launch decides something are not
followed by the machine of dynamic.py, which takes all that an access may name. Reasons are those of accepted programs:
of the others some pairs have none.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path

from tests.campaign.case import Case
from tests.campaign.combined import combined_case
from tests.campaign.drawing import case
from tests.campaign.launches import launch_case
from tests.verifier.dynamic import check
from tests.verifier.test_families import Enumerated, of_campaign, pairwise, said
from tilelink.planning.plan import Plan
from tilelink.verifier import refusals
from tilelink.verifier.families import Families

DRAWS: dict[str, Callable[[int], Case]] = {
    "campaign": case,
    "integers of a launch": launch_case,
    "combined": combined_case,
}
PART = 50
"""Programs that one process judges before it writes what it has found."""
RUNS = 3
"""Interleavings of each program."""
MANY = 4000
"""Accesses and signals of a plan whose interleavings are simulated, at most."""
OUTCOMES = (
    "no plan", "refused", "refused, fails", "accepted, safe", "accepted, not followed", "accepted, fails",
    "families and pairs differ", "families are wrong",
)  # fmt: skip


def judged(draw: Callable[[int], Case], number: int) -> tuple[str, Counter[str]]:
    """What becomes of a program, and the reasons for the order of its pairs of statements if it is accepted."""
    plan = of_campaign(draw, number)
    if plan is None:
        return "no plan", Counter()
    refused = [*refusals(plan)]
    reasons = Counter(reason or "left to pairs" for reason in Families(plan).answers.values() if not refused)
    if [*map(str, refused)] != said(pairwise(plan)):
        return "families and pairs differ", reasons
    # families take for granted what other rules show, as that waits end
    if all(error.rule in ("ordering", "words") for error in refused) and Enumerated.of(plan).wrong():
        return "families are wrong", reasons
    failed = _failed(plan)
    if refused:
        return ("refused, fails" if failed else "refused"), reasons
    return ("accepted, fails" if failed else "accepted, safe" if failed is not None else OUTCOMES[4]), reasons


def _failed(plan: Plan) -> bool | None:
    """True if an interleaving fails, None if the machine does not follow the plan."""
    decided = any(t.decl.bound is not None and t.decl.space != "table" for t in plan.bound.tensors.values())
    if decided or len(plan.accesses.task) + len(plan.signals.task) > MANY:
        return None
    return bool(check(plan, range(RUNS)))


def _part(kind: str, first: int) -> str:
    """The line of the log for some programs."""
    outcomes, reasons, wrong = Counter[str](), Counter[str](), list[int]()
    for number in range(first, first + PART):
        outcome, why = judged(DRAWS[kind], number)
        outcomes[outcome] += 1
        reasons += why
        wrong += [number] if outcome in OUTCOMES[5:] else []
    return json.dumps({"kind": kind, "first": first, "outcomes": outcomes, "reasons": reasons, "wrong": wrong})


def _report(log: Path) -> int:
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    print("| programs | " + " | ".join(OUTCOMES) + " |", "|---" * (len(OUTCOMES) + 1) + "|", sep="\n")
    for kind in DRAWS:
        counts = sum((Counter(one["outcomes"]) for one in lines if one["kind"] == kind), Counter[str]())
        print(f"| {kind} | " + " | ".join(str(counts[name]) for name in OUTCOMES) + " |")
    reasons = sum((Counter(one["reasons"]) for one in lines), Counter[str]())
    print("\n" + ", ".join(f"{reason} {count}" for reason, count in reasons.most_common()))
    wrong = [(one["kind"], number) for one in lines for number in one["wrong"]]
    print(*wrong, sep="\n")
    return int(bool(wrong))


def main() -> int:
    """Prints the table; 1 if a program is accepted that fails, or families say what enumeration does not."""
    parser = argparse.ArgumentParser(prog="python -m tests.verifier.random_verdicts", description=__doc__)
    parser.add_argument("number", type=int)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--log", type=Path, required=True, help="what was judged; start a new one after a change")
    options = parser.parse_args()
    options.log.touch()
    known = {(one["kind"], one["first"]) for one in map(json.loads, options.log.read_text().splitlines())}
    left = [(kind, first) for first in range(0, options.number, PART) for kind in DRAWS if (kind, first) not in known]
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool, options.log.open("a") as log:
        for done in as_completed([pool.submit(_part, *one) for one in left]):
            print(done.result(), file=log, flush=True)
    return _report(options.log)


if __name__ == "__main__":
    sys.exit(main())
