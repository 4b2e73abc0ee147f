"""python -m tests.mutation: makes a sample of small mistakes in the code that the proof stands on, and says which of
them the tests see."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import queue
import random
import sys
import tempfile
import time
import tomllib
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.mutation.choose import Chooser
from tests.mutation.edits import Edit, edits
from tests.mutation.lines import measure
from tests.mutation.server import Choice, Server, Verdict, preload, snapshot

ROOT = Path(__file__).resolve().parents[2]
EXPLAINED = Path(__file__).with_name("explained.toml")
# What the proof stands on. The simulator and the search cost time when they are wrong, never a result.
SCOPE = (
    "tilelink/scheduling/*.py",
    "tilelink/lowering/*.py",
    "tilelink/planning/*.py",
    "tilelink/lowering/clauses/*.py",
    "tilelink/verifier/*.py",
    "tilelink/backend/*.py",
    "tilelink/ir/mapping.py",
    "tilelink/reference/*.py",
)
# These only word refusals.
WORDS = ("tilelink/verifier/refusal.py", "tilelink/verifier/mismatched_signals.py")
TESTS = (
    "tests/ir/test_*.py",
    "tests/scheduling/test_*.py",
    "tests/lowering/test_*.py",
    "tests/verifier/test_*.py",
    "tests/backend/test_*.py",
    "tests/reference/test_*.py",
    "tests/simulator/test_machine.py",
    "tests/compiler/test_timelines.py",
    "tests/search/test_knobs.py",
    "tests/search/test_names.py",
    "tests/cli/test_check.py",
    "tests/frontend/test_*.py",
)
FIRST = 4.0
"""Seconds of tests in the first round: most mutants end there."""


@dataclass(frozen=True, kw_only=True)
class Judged:
    edit: Edit
    verdict: Verdict


def main() -> int:
    options = _options()
    began = time.monotonic()
    files = [f for f in _found(options.files or SCOPE) if f not in WORDS]
    sample = _sample(files, options)
    print(f"{len(sample)} mutants of {len(files)} files, seed {options.seed}", flush=True)
    if options.list:
        print("\n".join(map(str, sample)))
        return 0
    print("measuring which test executes which line", flush=True)
    # All of the scope, whatever is mutated: so the measurement can be kept.
    scope = sorted({*files, *_found(SCOPE)})
    measured = measure(ROOT, _found(options.tests or TESTS), scope, Path(options.cache), options.jobs)
    chooser = Chooser(measured, FIRST, options.seconds)
    print(f"{len(measured.seconds())} tests, measured after {time.monotonic() - began:.0f} s", flush=True)
    judged = _judge(sample, chooser, options, began)
    _report(sample, judged, time.monotonic() - began)
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("--mutants", type=int, default=300, help="how many")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--minutes", type=float, default=60, help="no mutant is begun after these")
    parser.add_argument("--seconds", type=float, default=45, help="of tests, as they were measured, for one mutant")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--files", nargs="*", help="patterns of files to mutate instead of the scope")
    parser.add_argument("--tests", nargs="*", help="patterns of files of tests instead of the usual ones")
    parser.add_argument("--again", help="a result: judge its survivors again, as far as the code still has them")
    parser.add_argument("--json", help="where the result is written, after every mutant")
    parser.add_argument("--resume", action="store_true", help="what --json names has begun this sample: go on with it")
    cache = Path(tempfile.gettempdir()) / f"tilelink-mutation-{os.getuid()}"
    parser.add_argument("--cache", default=str(cache), help="folder that keeps measurements")
    parser.add_argument("--list", action="store_true", help="print the sample and end")
    return parser.parse_args()


def _found(patterns: list[str] | tuple[str, ...]) -> list[str]:
    return sorted({str(p.relative_to(ROOT)) for pattern in patterns for p in ROOT.glob(pattern)})


def _sample(files: list[str], options: argparse.Namespace) -> list[Edit]:
    every = [edit for file in files for edit in edits(file, (ROOT / file).read_bytes())]
    if options.again:
        kept = json.loads(Path(options.again).read_text())["mutants"]
        wanted = {(m["file"], m["function"], m["old"], m["new"]) for m in kept if m["outcome"] == "survived"}
        return [edit for edit in every if _key(edit) in wanted]
    return random.Random(options.seed).sample(every, min(options.mutants, len(every)))


def _key(edit: Edit) -> tuple[str, str, str, str]:
    return edit.file, edit.function, edit.old, edit.new


def _judge(sample: list[Edit], chooser: Chooser, options: argparse.Namespace, began: float) -> list[Judged]:
    """Every mutant that there is time for, by as many workers as there are jobs."""
    preload()
    fork = multiprocessing.get_context("fork")
    tasks, results = fork.Queue(), fork.Queue()
    judged = _earlier(sample, options)
    done = {(one.edit.file, one.edit.start, one.edit.put) for one in judged}
    left = {n: edit for n, edit in enumerate(sample) if (edit.file, edit.start, edit.put) not in done}
    rounds = {n: chooser.rounds(edit) for n, edit in left.items()}

    def add(edit: Edit, verdict: Verdict) -> None:
        judged.append(Judged(edit=edit, verdict=verdict))
        _say(judged[-1], len(judged), len(sample))
        _write(sample, judged, options)

    for n, edit in left.items():
        if not rounds[n]:
            add(edit, Verdict(outcome="survived", by="no test executes it"))
    with tempfile.TemporaryDirectory(prefix="tilelink-mutants-") as folder:
        trees = [Path(folder) / f"worker{n}" for n in range(options.jobs)]
        for tree in trees:
            snapshot(ROOT, tree)
        _control(Server(trees[0]), list(rounds.values()))
        until = began + options.minutes * 60
        workers = [fork.Process(target=_work, args=(Server(t), sample, rounds, tasks, results, until)) for t in trees]
        waiting = [n for n in rounds if rounds[n]]
        for n in [*waiting, *[None] * len(workers)]:
            tasks.put(n)
        for worker in workers:
            worker.start()
        ended = 0
        while ended < len(workers):
            try:
                n, verdict = results.get(timeout=5)
            except queue.Empty:
                if not any(worker.is_alive() for worker in workers):
                    break
                continue
            if n is None:
                ended += 1
                continue
            add(sample[n], verdict)
        for worker in workers:
            worker.join()
    return judged


def _control(server: Server, rounds: list[list[Choice]]) -> None:
    """The tests must pass on the code as it is, where and as mutants are judged: else all would count as killed."""
    for choice in [found[0] for found in rounds if found][:3]:
        verdict = server.judge(None, choice)
        if verdict.outcome != "survived":
            print(server.output.read_text()[-3000:])
            sys.exit(f"the code as it is was {verdict.outcome} by {verdict.by}: nothing can be said of mutants")


def _work(server: Server, sample: list[Edit], rounds: dict[int, list[Choice]], tasks, results, until: float) -> None:  # type: ignore[no-untyped-def]
    while (n := tasks.get()) is not None:
        if time.monotonic() > until:
            continue
        ran, seconds = 0, 0.0
        verdict = Verdict(outcome="survived")
        for choice in rounds[n]:
            verdict = server.judge(sample[n], choice)
            ran, seconds = ran + verdict.ran, seconds + verdict.seconds
            if verdict.outcome != "survived":
                break
        results.put((n, Verdict(outcome=verdict.outcome, by=verdict.by, ran=ran, seconds=round(seconds, 2))))
    results.put((None, None))


def _say(judged: Judged, number: int, of: int) -> None:
    v = judged.verdict
    print(f"[{number}/{of}] {v.outcome:9} {v.seconds:5.1f} s {v.ran:4} tests  {judged.edit}  {v.by}", flush=True)


def _earlier(sample: list[Edit], options: argparse.Namespace) -> list[Judged]:
    """The mutants of the sample that an interrupted result has judged."""
    if not (options.resume and options.json and Path(options.json).exists()):
        return []
    known = {(m["file"], m["start"], m["put"]): m for m in json.loads(Path(options.json).read_text())["mutants"]}
    judged: list[Judged] = []
    for edit in sample:
        if (m := known.get((edit.file, edit.start, edit.put))) and (m["old"], m["new"]) == (edit.old, edit.new):
            outcome = "survived" if m["outcome"] == "explained" else m["outcome"]
            verdict = Verdict(outcome=outcome, by=m["by"], ran=m["ran"], seconds=m["seconds"])
            judged.append(Judged(edit=edit, verdict=verdict))
    return judged


def _records(judged: list[Judged]) -> list[dict[str, Any]]:
    """What is known of each mutant, in the order of the code; the explained ones have their reasons."""
    reasons = {
        (one["file"], one["function"], one["old"], one["new"]): one["reason"]
        for one in tomllib.loads(EXPLAINED.read_text()).get("survivor", [])
    }
    records: list[dict[str, Any]] = []
    for one in sorted(judged, key=lambda j: (j.edit.file, j.edit.start)):
        reason = reasons.get(_key(one.edit)) if one.verdict.outcome == "survived" else None
        record = {k: v for k, v in asdict(one.edit).items() if k not in ("spans", "stop")} | asdict(one.verdict)
        records.append(record | ({"outcome": "explained", "reason": reason} if reason else {"reason": ""}))
    return records


def _score(records: list[dict[str, Any]]) -> tuple[Counter[str], float]:
    outcomes = Counter(str(m["outcome"]) for m in records)
    seen = outcomes["killed"] + outcomes["timed out"]
    counted = seen + outcomes["survived"]
    return outcomes, 100 * seen / counted if counted else 100.0


def _write(sample: list[Edit], judged: list[Judged], options: argparse.Namespace) -> None:
    if not options.json:
        return
    records = _records(judged)
    outcomes, score = _score(records)
    head = {"seed": options.seed, "asked": len(sample), "score": round(score, 1), **outcomes}
    part = Path(options.json).with_suffix(".part")
    part.write_text(json.dumps(head | {"mutants": records}, indent=1) + "\n")
    part.rename(options.json)


def _report(sample: list[Edit], judged: list[Judged], seconds: float) -> None:
    records = _records(judged)
    outcomes, score = _score(records)
    for title in ("explained", "timed out", "survived"):
        print(f"\n{title}: {outcomes[title]}")
        for m in records:
            if m["outcome"] == title:
                print(f"  {m['file']}:{m['line']} {m['old']} -> {m['new']}")
                print(f"      {m['function']}, {m['kind']}, {m['ran']} tests. {m['reason'] or m['by']}")
    print(
        f"\n{len(judged)} of {len(sample)} mutants in {seconds / 60:.0f} minutes: {outcomes['killed']} killed, "
        f"{outcomes['timed out']} timed out, {outcomes['survived']} survived, {outcomes['explained']} explained: "
        f"{score:.1f} %"
    )


if __name__ == "__main__":
    sys.exit(main())
