"""A hunt on the simulator in all operators and in the library's programs with their schedules for GPUs.

    python benchmarks/hunt.py --points 12 --out benchmarks/results/hunt_8xH200.json
    python benchmarks/hunt.py --report benchmarks/results/hunt_8xH200.json

Each operator, and each program with a schedule for GPUs, has a hunt of its own, with the same seed. `--report` writes
the table of docs/hunt.md: the worst cases of all, at most two of a program or operator.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tilelink import compiler
from tilelink.cli.hunt import base_of, tables_of
from tilelink.errors import TileLinkError
from tilelink.hunt import as_json, hunt
from tilelink.hunt.anomaly import US
from tilelink.hunt.programs import Vary
from tilelink.hunt.targets import Target, subjects_of
from tilelink.ops.operators import OPERATORS
from tilelink.search import strategy

PATTERNS = ("h200*", "gpu*", "more*", "few*", "words*")
"""Names of schedules of the library that are for GPUs; others have small tiles, for CPU ranks."""
EACH = 2
SHOWN = 20
"""Cases of one program or operator in the table, and in all."""


def targets(ranks: tuple[int, ...]) -> Iterator[tuple[str, Target]]:
    """Yield the operators, and the files of the library."""
    vary = Vary(ranks=ranks, dtypes=("bf16",))
    for name in OPERATORS:
        yield f"ops.{name}", Target(names=(name,), vary=vary)
    for module in compiler.library():
        file = Path(module.file).stem
        for program in module.programs:
            if any(one.name.startswith(tuple(p.rstrip("*") for p in PATTERNS)) for one in module.schedules_of(program)):
                yield program.name, Target(names=(file,), programs=(program.name,), schedules=PATTERNS, vary=vary)


def run(args: argparse.Namespace) -> None:
    found: dict[str, Any] = {"points": args.points, "seed": args.seed, "hunts": {}}
    begin = time.process_time()
    for name, target in targets(tuple(args.ranks)):
        if args.only and name not in args.only:
            continue
        if time.process_time() - begin > args.seconds:
            break
        start = time.process_time()
        try:
            result = hunt(
                subjects_of(target, base_of, tables_of), strategy("evolution"), points=args.points, seed=args.seed,
                top=args.top,
            )  # fmt: skip
            one: dict[str, Any] = as_json(result)
        except TileLinkError as error:  # of the sizes that it would begin with
            one = {"refused": {type(error).__name__: 1}, "reasons": {type(error).__name__: error.message}, "cases": []}
        one["cpu_s"] = round(time.process_time() - start, 1)
        found["hunts"][name] = one
        args.out.write_text(json.dumps(found, indent=1) + "\n")
        print(name, one.get("rated", 0), len(one["cases"]), one["cpu_s"], flush=True)


def shown(found: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Return the cases of the table, worst first."""
    every = [(name, case) for name, one in found["hunts"].items() for case in one["cases"]]
    every.sort(key=lambda pair: -pair[1]["ratio"])
    counted, taken = Counter[str](), list[tuple[str, dict[str, Any]]]()
    for name, case in every:
        counted[name] += 1
        if counted[name] <= EACH and len(taken) < SHOWN:
            taken.append((name, case))
    return taken


def report(found: dict[str, Any]) -> list[str]:
    """Return the table of a document."""
    rows = [
        f"| {name} | {case['what']} | {case['ratio']:.2f} | {case['seconds'] * US:.1f} | {case['against'] * US:.1f} | "
        f"{case['cause']} | {', '.join(f'{key}={value}' for key, value in case['point'].items())} |"
        for name, case in shown(found)
    ]
    hunts = found["hunts"].values()
    total, cases = sum(one.get("rated", 0) for one in hunts), sum(len(one["cases"]) for one in hunts)
    said = f"{cases} cases in {total} launches of {len(found['hunts'])} operators and programs, seed {found['seed']}. "
    said += f"The table has the worst ones, at most {EACH} of each."
    return [said, "", "| of | what | x | us | against us | cause | at |", "|---|---|---|---|---|---|---|", *rows, ""]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, default=12)
    parser.add_argument("--top", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--seconds", type=float, default=600.0, help="of CPU, after which no further hunt begins")
    parser.add_argument("--out", type=Path, default=Path("hunt.json"))
    parser.add_argument("--report", type=Path)
    args = parser.parse_args()
    if args.report:
        print("\n".join(report(json.loads(args.report.read_text()))))
    else:
        run(args)
    return 0


if __name__ == "__main__":
    sys.exit(main())
