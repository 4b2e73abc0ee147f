"""Mutants of the whole library before the verifier and the dynamic checker: do the two agree?

`python -m tests.verifier.campaign` writes what it counts into docs/verification.md (an hour or two of one core), and
with `--nodes` what it counts of programs on two nodes; the test runs a sample. What it has judged goes case by case
into a file (`--log`), from which another run goes on.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cache
from itertools import product
from multiprocessing import get_context
from pathlib import Path

from tests.compiler.library import groups
from tests.verifier.dynamic import check
from tests.verifier.mutations import Case, Mutant, mutants
from tilelink.compiler import library
from tilelink.errors import TileLinkError
from tilelink.ir.program import Program
from tilelink.lowering.bind import bind
from tilelink.lowering.clauses.tile import TILE
from tilelink.lowering.walk import executions
from tilelink.scheduling.schedule import Schedule
from tilelink.target import CPU
from tilelink.verifier import RULES, refusals, rules

PAGE = Path(__file__).parents[2] / "docs" / "verification.md"
SIZES: dict[str, int] = {"M": 25, "Ms": 25, "N": 36, "K": 20}
MOST_ACCESSES = 1500
"""Accesses of a case, if numbers below 20 make it have fewer. Interleavings of some ten thousand take minutes each, and
on several nodes those of some thousand."""
MANY = 100
"""How many times as many executions of statements as accesses say that a case is too large before it is planned."""
FULL = 400
"""Accesses and signals of a case, up to which all mutants that are asked for are judged; above, fewer of each kind."""
RUNS, MORE_RUNS = 6, 40
"""Interleavings of each mutant, and of those that the verifier refuses and that have not failed yet."""
FEW_RUNS = 3
"""Interleavings of each mutant of a sample, where the refusal says why it may be safe or there is none."""

OUTCOMES = ("no plan", "refused, fails", "accepted, safe", "refused, never failed", "accepted, fails")
STRICT = {
    ("accounting", "no stage notifies"): (
        "A wait for signals that nobody sends passes at once. It is harmless where something else orders the data, but "
        "it never says what its author meant."
    ),
    ("words", "are not inside of what is read and sent"): (
        "Words are read by whole channels, whatever a tile needs of them. The machine reads cells, which are there."
    ),
    ("coverage", "writes up to"): (
        "A launch decides how many elements are written and how many are read. The machine takes all of them for both."
    ),
    ("coverage", "stay as they are for a launch"): (
        "An entry of an index tensor has one value in a launch. The machine knows no values; here the second is the "
        "first again."
    ),
    ("words", "reads nothing of it afterwards"): (
        "Words carry their own signals. A wait that no read follows would wait for nothing, and never says what its "
        "author meant."
    ),
    ("words", "and has not waited for all of it"): (
        "Words tell nobody that they are there but who waits for them. A read that does not may still be in time "
        "because an earlier kernel of its rank has sent them."
    ),
    ("ordering", "cannot know when its output is complete"): (
        "A task that writes a peer's output has to notify it there itself. Without that the write may still be in time "
        "because a later notify of the same program covers it."
    ),
    ("coverage", "nothing has been assigned"): (
        "A task reads a name before it has assigned it. The machine knows of tensors and signals alone."
    ),
    ("ordering", "nothing orders the two"): (
        "The two accesses are ordered by a chance that this machine always takes, such as the order of two events at "
        "one place of a task."
    ),
    ("ordering", "only the schedule orders the two"): (
        "What a read of a tensor that is changed in place sees must not be the schedule's choice. The schedule at hand "
        "always takes one order, in which nothing fails."
    ),
    ("ordering", "while it writes"): (
        "A tile is copied in blocks, of which some threads store while others still load. The machine moves tiles at "
        "once."
    ),
    ("exclusive_writes", "only the schedule orders the two"): (
        "Which of two writes is the last one must not be the schedule's choice. The schedule at hand always takes one "
        "order, in which nothing fails."
    ),
    ("progress", ""): (
        "Programs that do not all fit on a rank may start in any mixture; the deadlock needs a mixture that the "
        "interleavings did not meet, or the rule did not look for the one that shows it safe."
    ),
    ("tiles", "a flattened loop begins the next tile early"): (
        "The machine executes tiles one after the other, also those of a loop that loads for the next tile."
    ),
    ("network", "its program ends before"): (
        "A rank is finished when nothing of it is on its way. What is late may still be in time, because somebody "
        "waits for it."
    ),
    ("network", "defers a signal"): (
        "A program may have no next tile in which it sends what it has deferred, and no bound on the delay is promised."
    ),
    ("network", ""): (
        "The network moves single contiguous messages of what a rank has, with one counter each; the machine has "
        "cells, and does not ask where they lie."
    ),
    ("reuse", ""): (
        "Without a wait for peers' earlier launches, the rule asks how far apart whole launches can be and what comes "
        "after a launch's start; it does not follow the order of single accesses of different launches."
    ),
}
"""(rule, words of the refusal) -> why a refused mutant may still be safe."""
STRICT_OF_LAUNCHES = {
    ("ordering", "no signal follows that put"): (
        "A wait of a tile that a launch may leave out orders what that tile does. The machine executes all tiles, so "
        "a wait of an earlier one orders it too."
    ),
}
"""The same of programs of whose tiles a launch decides."""

_SEGMENTS = "segments of an index tensor say which rows its tiles write, and the machine takes all for each"
_PLACES = "a launch decides at which places its tiles write entries, and the machine takes all places for each"
NOT_FOLLOWED = {
    **dict.fromkeys(("grouped_gemm", "moe_experts", "moe_experts_f8", "moe_rows_experts"), _SEGMENTS),
    **dict.fromkeys(("moe_dispatch", "moe_rows_dispatch", "sort_by_expert"), _PLACES),
}
"""Programs of which the machine finds that the unmutated plan fails, and why that is a mistake of the machine."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What became of a mutant (`level`, `kind`, `what`: see there).

    rule, message: of the refusal. failure: the kind that was met.
    """

    case: str
    level: str
    kind: str
    what: str
    rule: str = ""
    message: str = ""
    failure: str = ""
    planned: bool = True

    @property
    def outcome(self) -> str:
        if not self.planned:
            return "no plan"
        if self.rule:
            return "refused, fails" if self.failure else "refused, never failed"
        return "accepted, fails" if self.failure else "accepted, safe"

    @property
    def why(self) -> str:
        """The explanation of a refusal of what did not fail; empty if there is none."""
        known = {**STRICT, **(STRICT_OF_LAUNCHES if self.case.split("-")[0] in _decided() else {})}
        return next((text for (rule, words), text in known.items() if rule == self.rule and words in self.message), "")

    def __str__(self) -> str:
        where = f"{self.case}: {self.level}, {self.kind}, {self.what}"
        return f"{where}: {self.outcome} ({self.rule} {self.message}{self.failure})"


@cache
def _decided() -> frozenset[str]:
    """The programs of the library of whose tiles a launch decides."""
    every = (program for module in library() for program in module.programs)
    return frozenset(p.name for p in every if any(t.bound is not None and t.space != "table" for t in p.tensors))


def cases(of: str = "") -> Iterator[Case]:
    """Every program of the library that the machine follows, with every schedule, on 2, 3 or 4 ranks in turn.

    of: one program of the library, also of those that the machine does not follow.
    """
    for number, program, schedule in scheduled(of):
        ranks = 2 + (number + len(program.name)) % 3
        case = _small(Case(program=program, schedule=schedule, numbers=_numbers(program, ranks), ranks=ranks))
        yield case
        yield from _in_parts(case)


def network_cases(of: str = "") -> Iterator[Case]:
    """As `cases`, with every schedule that nodes can run, on 2 nodes of 1 or 2 ranks."""
    for number, program, schedule in scheduled(of):
        ranks = 2 + 2 * ((number + len(program.name)) % 2)
        numbers = _numbers(program, ranks) | ({"g": ranks // 2} if groups(program, ranks) else {})
        case = Case(program=program, schedule=schedule, numbers=numbers, ranks=ranks, nodes=2)
        case = _small(case)
        try:
            safe = not refusals(case.plan(), limit=1)
        except TileLinkError:
            continue
        if safe:
            yield case


def scheduled(of: str = "") -> Iterator[tuple[int, Program, Schedule | None]]:
    """(number of the schedule, program, schedule), of one program or of those that the machine follows."""
    for module in library():
        for program in module.programs:
            if of == program.name or (not of and program.name not in NOT_FOLLOWED):
                for number, schedule in enumerate((None, *module.schedules_of(program))):
                    yield number, program, schedule


def _in_parts(case: Case) -> Iterator[Case]:
    """The same with the last tiles of a stage in parts, on a processor that leaves some over."""
    for stage, programs in product((s.name for s in case.program.stages), (2, 3, 5)):
        cut = (case.schedule or Schedule(name="default", program=case.program.name)).split_k_tail(stage, 2)
        cut = cut.tile(stage, **{**dict(cut.stage(stage)[TILE]), "k": 2})
        cut = replace(cut, name=f"{cut.name}_in_parts")
        found = replace(case, schedule=cut, target=replace(CPU, grows=False, sms=6, max_programs=programs))
        try:
            stages = bind(found.program, cut, found.numbers, found.ranks, found.target).stages
        except TileLinkError:
            continue
        if any(name.endswith("_parts") for name in stages):
            yield found
            return


def _numbers(program: Program, ranks: int) -> dict[str, int | float | bool]:
    """No more than a program gives as an example: of some, all sizes are numbers of tiles."""
    sizes = {p.name: (SIZES.get(p.name, 20), p.example) for p in program.params}
    return {
        **{name: size if example is None else min(size, example) for name, (size, example) in sizes.items()},
        **groups(program, ranks),
    }


def _small(case: Case) -> Case:
    """The case with at most MOST_ACCESSES, if halves of the numbers that have no size of their own allow it."""
    kept = {*SIZES, *groups(case.program, case.ranks)}
    fitting = case
    with suppress(TileLinkError):  # the program may not be for smaller numbers
        while _has_more(case):
            fitting = case
            halves = {n: v // 2 for n, v in case.numbers.items() if n not in kept and type(v) is int and v > 3}
            if not halves:
                break
            case = replace(case, numbers={**case.numbers, **halves})
        return case
    return fitting


def _has_more(case: Case) -> bool:
    """True if a case has more than MOST_ACCESSES. A plan of very many takes gigabytes, as do passes of nodes."""
    known = executions(replace(case, nodes=1).bound()) > MANY * MOST_ACCESSES
    return known or len(case.plan().accesses.task) > MOST_ACCESSES


def judge(case: Case, mutant: Mutant, *, sample: bool = False) -> Verdict:
    """Asks both: of a sample with no more interleavings than it takes to see them agree."""
    verdict = Verdict(case=case.name, level=mutant.level, kind=mutant.kind, what=mutant.what)
    try:
        plan = mutant.make()
        assert plan.bound.typing  # rules take it for granted: what a mutant moves may no longer fit
    except TileLinkError:
        return replace(verdict, planned=False)
    for name, of_rule in rules(plan):
        found = next(of_rule, None)
        if found is not None:
            verdict = replace(verdict, rule=name, message=found.message)
            break
    runs = FEW_RUNS if sample else RUNS
    more = range(runs, MORE_RUNS) if verdict.rule and not (sample and verdict.why) else ()
    failures = check(plan, range(runs)) or (check(plan, more) if more else [])
    return replace(verdict, failure=failures[0].kind if failures else "")


def campaign(
    per_kind: int | None, seed: int = 0, only: Iterable[Case] | None = None, *, sample: bool = False
) -> Iterator[Verdict]:
    """The verdicts on all mutants of all cases, or on `per_kind` of each kind."""
    for case in cases() if only is None else only:
        for mutant in mutants(case, per_kind, seed):
            yield judge(case, mutant, sample=sample)


def report(verdicts: list[Verdict]) -> str:
    """The counted part of the page."""
    outcomes = Counter(v.outcome for v in verdicts)
    programs = len({v.case for v in verdicts})
    lines = [f"{len(verdicts)} mutants of {programs} scheduled programs:", "", "| outcome | mutants |", "|---|---|"]
    lines += [f"| {name} | {outcomes[name]} |" for name in OUTCOMES]
    lines += ["", "| mistake | " + " | ".join(OUTCOMES) + " |", "|---" * (len(OUTCOMES) + 1) + "|"]
    kinds: dict[tuple[str, str], Counter[str]] = {}
    for verdict in verdicts:
        kinds.setdefault((verdict.level, verdict.kind), Counter())[verdict.outcome] += 1
    for (level, kind), count in sorted(kinds.items()):
        lines.append(f"| {level}: {kind} | " + " | ".join(str(count[name] or "") for name in OUTCOMES) + " |")
    lines += ["", "| rule | refused, fails | refused, never failed |", "|---|---|---|"]
    outcomes = Counter((v.rule, v.outcome) for v in verdicts if v.rule)
    for rule in RULES:
        lines.append(f"| {rule} | {outcomes[rule, 'refused, fails']} | {outcomes[rule, 'refused, never failed']} |")
    return "\n".join([*lines, "", *_strict(verdicts)]) + "\n"


def _strict(verdicts: list[Verdict]) -> Iterator[str]:
    odd = [v for v in verdicts if v.outcome == "refused, never failed"]
    yield f"Refused, and failed in none of {MORE_RUNS} interleavings: {len(odd)}."
    yield from ("", *(f"Left out: {name}, because {why}." for name, why in NOT_FOLLOWED.items()), "")
    groups: dict[str, Counter[str]] = {}
    for verdict in odd:
        text = f"**{verdict.rule}**: {verdict.why}"
        groups.setdefault(text, Counter())[f"{verdict.level}: {verdict.kind}"] += 1
    for text, kinds in sorted(groups.items()):
        yield f"* {text} ({', '.join(f'{kind} {count}' for kind, count in sorted(kinds.items()))})"


def _of_case(case: Case, per_kind: int, seed: int) -> tuple[float, list[Verdict]]:
    """(seconds of this process, verdicts) of the mutants of one case, in a process of its own."""
    start = time.process_time()
    verdicts = list(campaign(_fewer(case, per_kind), seed, [case]))
    return time.process_time() - start, verdicts


def _fewer(case: Case, per_kind: int) -> int:
    """So many mutants of each kind that a case of many events takes about as long as one of FULL: at least one."""
    plan = case.plan()
    return max(1, per_kind * FULL // max(FULL, len(plan.accesses.task) + len(plan.signals.task)))


def judged(log: Path) -> dict[str, list[Verdict]]:
    """What a log has, by case."""
    if not log.exists():
        return {}
    records = map(json.loads, log.read_text().splitlines())
    return {r["case"]: [Verdict(**fields) for fields in r["verdicts"]] for r in records}


def line(case: str, verdicts: Sequence[Verdict]) -> str:
    """The line of a log for a case."""
    return json.dumps({"case": case, "verdicts": [asdict(verdict) for verdict in verdicts]})


def _verdicts(options: argparse.Namespace) -> list[Verdict]:
    """All verdicts, in the order of the cases; a line on stderr for each case."""
    every = {case.name: case for case in (network_cases() if options.nodes else cases())}
    known = judged(options.log)
    left = [name for name in every if name not in known]
    random.Random(options.seed).shuffle(left)  # what is judged before an end is a sample
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool, options.log.open("a") as log:
        found = {pool.submit(_of_case, every[name], options.per_kind, options.seed): name for name in left}
        for done in as_completed(found):
            name = found[done]
            seconds, known[name] = done.result()
            print(line(name, known[name]), file=log, flush=True)
            told = f"{len(known)}/{len(every)} {name}: {len(known[name])} mutants, {seconds:.0f} s"
            print(told, file=sys.stderr, flush=True)
    return [verdict for name in every for verdict in known[name]]


def main() -> int:
    """Writes the page; 1 if the two disagree without an explanation."""
    parser = argparse.ArgumentParser(prog="python -m tests.verifier.campaign", description=__doc__)
    parser.add_argument("per_kind", type=int, nargs="?", default=6, help="mutants of each kind of a case (default: 6)")
    parser.add_argument("--nodes", action="store_true", help="programs on two nodes")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--log", type=Path, required=True, help="verdicts, a line of JSON for each case; start a new one after a change"
    )
    parser.add_argument("--sample", action="store_true", help="print what the log has by now, and judge nothing")
    options = parser.parse_args()
    if options.sample:
        print(report([verdict for verdicts in judged(options.log).values() for verdict in verdicts]))
        return 0
    verdicts = _verdicts(options)
    page = PAGE.read_text()
    if options.nodes:
        head, _, rest = page.partition(NODES_MARK)
        PAGE.write_text(f"{head}{NODES_MARK}\n\n{report(verdicts)}\n{NODES_END}{rest.partition(NODES_END)[2]}")
    else:
        PAGE.write_text(f"{page.split(MARK)[0]}{MARK}\n\n{report(verdicts)}")
    wrong = [v for v in verdicts if v.outcome == "accepted, fails" or (v.outcome == OUTCOMES[3] and not v.why)]
    for verdict in verdicts:
        if verdict.outcome in OUTCOMES[3:]:
            print(verdict)
    return 1 if wrong else 0


MARK = "<!-- what follows is written by python -m tests.verifier.campaign -->"
NODES_MARK = "<!-- of two nodes, written by python -m tests.verifier.campaign --nodes -->"
NODES_END = "<!-- end of what it wrote of two nodes -->"

if __name__ == "__main__":
    sys.exit(main())
