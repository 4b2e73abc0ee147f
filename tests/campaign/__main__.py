"""`python -m tests.campaign --programs 3000 --seed 0 --minutes 40`: random programs and mutants, run and compared.

With `--pairs` the cases are pairs of clauses on programs of the library, in an order that is drawn once. With
`--launches` they are mutants of programs whose integers come with a launch (launches.py), with `--combined` of programs
that combine such integers with slots, groups, additions and tensors in place (combined.py). With `--nodes` the ranks of
every case are on several nodes, where it has several ranks.

`--only SEED` judges one and makes it smaller where it is wrong; `--file FILE` judges a saved one. Wrong ones are saved
under `--out` with their reason. Returns 1 if there are any.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.campaign.case import Case, read
from tests.campaign.combined import combined_case
from tests.campaign.drawing import case
from tests.campaign.judge import Verdict, judge
from tests.campaign.launches import launch_case
from tests.campaign.minimal import smaller
from tests.campaign.pairs import pair_case
from tests.campaign.report import Count
from tests.campaign.runs import of_combined, of_launch, of_launch_on_nodes, of_nodes, of_pair, of_seed, verdicts


def main(words: list[str] | None = None) -> int:
    options = _options(words)
    if options.file is not None:
        return _one(read(options.file.read_text()), options.out)
    if options.only is not None:
        draw = pair_case if options.pairs else launch_case if options.launches else case
        draw = combined_case if options.combined else draw
        return _one(draw(options.only), options.out)
    start, count = time.monotonic(), Count()
    for verdict in verdicts(options.seed, options.programs, options.jobs, _judge_of(options)):
        if count.add(verdict):
            print(f"seed {verdict.case.seed}: {verdict}", flush=True)
            _save(verdict, options.out)
        count.seconds = time.monotonic() - start
        if len(count.wrong) >= options.wrong or count.seconds > 60 * options.minutes:
            break
    print(count.text())
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "report.md").write_text(count.text())
    (options.out / "report.json").write_text(json.dumps(count.json(), indent=1))
    return 1 if count.wrong else 0


def _judge_of(options: argparse.Namespace) -> Callable[[int], Verdict]:
    if options.nodes:
        return of_launch_on_nodes if options.launches else of_nodes
    if options.combined:
        return of_combined
    return of_pair if options.pairs else of_launch if options.launches else of_seed


def _options(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.campaign", description=__doc__)
    parser.add_argument("--programs", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=0, help="the number of the first case")
    parser.add_argument("--minutes", type=float, default=40.0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--wrong", type=int, default=20, help="stop at so many that are wrong in different ways")
    parser.add_argument("--only", type=int, help="one case by its number")
    parser.add_argument("--pairs", action="store_true", help="every two clauses together, on the library")
    parser.add_argument("--nodes", action="store_true", help="every case of several ranks on several nodes")
    parser.add_argument("--launches", action="store_true", help="mutants of programs with integers of a launch")
    parser.add_argument("--combined", action="store_true", help="mutants of programs that combine what is new")
    parser.add_argument("--file", type=Path, help="one case that was saved")
    parser.add_argument("--out", type=Path, default=Path("campaign"))
    return parser.parse_args(words)


def _one(one: Case, out: Path) -> int:
    verdict = judge(one)
    print(f"{one}\n{verdict}")
    if verdict.outcome != "wrong":
        return 0
    least = smaller(one, lambda c: _alike(judge(c), verdict))
    verdict = judge(least)
    print(f"\nsmaller:\n{least}\n{verdict}")
    _save(verdict, out, "_smaller")
    return 1


def _alike(one: Verdict, other: Verdict) -> bool:
    return (one.outcome, one.step, one.error) == (other.outcome, other.step, other.error)


def _save(verdict: Verdict, out: Path, suffix: str = "") -> None:
    out.mkdir(parents=True, exist_ok=True)
    remark = f"# {verdict}\n"
    (out / f"{verdict.case.seed}{suffix}.txt").write_text(remark + str(verdict.case))


if __name__ == "__main__":
    sys.exit(main())
