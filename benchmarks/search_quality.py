# pyright: basic
"""How good the schedules are that the search chooses: a few measurements beside a sweep of twenty times as many.

    python benchmarks/search_quality.py --choose --points benchmarks/results/search_quality_points.json
    torchrun --nproc-per-node 4 --max-restarts 3 benchmarks/agreement.py \\
        --points benchmarks/results/search_quality_points.json \\
        --out benchmarks/results/search_quality_4xH200.json --prepare 90 --budget 280
    python benchmarks/search_quality.py --report benchmarks/results/search_quality_4xH200.json \\
        --points benchmarks/results/search_quality_points.json

The points are chosen without GPUs and before anything is measured; what each of a sweep comes from is in its `sources`:

search    the best by the model that differ, as `tilelink tune` chooses them: what it would measure
random    drawn evenly from the points of the space that can be planned, every program as likely as any other
declared  the schedules of the operator's file
next      the model's best with other predictions, one of each
near      one knob away from the best of the search or from a good declared schedule, by chance

Two schedules with the same generated kernels are one point. Random points that the model thinks far slower than the
best are not measured, they are in `too_slow`: whoever searches by chance has them too. `--report` writes the figures
into the measured file, for `benchmarks/report.py`. `--again` searches anew, as after a change of the model, and says
what a measured file knows of the choices.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from random import Random
from typing import Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.agreement_points import DTYPE, RANKS, TARGET, dims_of, point_of, programs_of
from benchmarks.prepared import plan_of
from benchmarks.search_quality_figures import evaluated, table_of
from tilelink import compiler
from tilelink.errors import TileLinkError
from tilelink.lowering.registers import spills
from tilelink.lowering.shared_memory import does_not_fit
from tilelink.scheduling.schedule import Schedule
from tilelink.search import Found, Space
from tilelink.simulator import simulate
from tilelink.simulator.machine import Machine, load_machine
from tilelink.target import target
from tilelink.tuning import distinct, kernels_of, rank

Point = dict[str, Any]
GROUPS = (("ag_gemm", "mlp-5"), ("gemm_rs", "mlp-2"), ("ag_gemm", "mlp-1"), ("gemm_rs", "mlp-5@1024"),
          ("ag_gemm", "mlp-2@512"))  # fmt: skip
"""Operators and shapes; those that take longest to choose first."""
SEARCH, RANDOM, NEXT, NEAR = 7, 70, 20, 40
"""Points of a sweep by their sources, besides the declared schedules: a twentieth are the search's."""
TRIALS = 600
"""Points that the search tries: 15 to 150 s of one core, where `tilelink tune` takes 60 s if nobody says otherwise."""
SLOWEST = 8.0
"""Random points that are predicted to take longer than this many times the best are not measured."""
BASES, PROMISING = 3, 1.25
"""How many of the search's best have neighbours taken, and how much slower than the best those may be predicted."""
RUN = 20
"""Neighbours in the file of one group: its data and references are made anew for each such run."""


class Sweep:
    """The points of one operator and shape, none twice: `points` to be measured, and `too_slow` ones."""

    def __init__(self, op: str, shape: str, machine: Machine, seed: int = 0) -> None:
        self._op, self._shape, self._machine, self._seed = op, shape, machine, seed
        self._programs = programs_of(op)
        self._space = Space.of(self._programs, dims=dims_of(op, shape), ranks=RANKS, target=target(TARGET), dtype=DTYPE)
        self._by_text: dict[tuple[str, str], Point | None] = {}
        self._by_kernels: dict[str, Point] = {}
        self._chance = Random(seed)
        self._limit = float("inf")

    @property
    def points(self) -> list[Point]:
        """All points, in the order in which they were found."""
        return list(self._by_kernels.values())

    def find(self, program: str, schedule: Schedule) -> Point | None:
        """The point of a schedule, which is new if it has no `sources`; None if it cannot be planned or generated."""
        point = point_of(self._op, self._shape, program, str(schedule))
        key = (program, point["schedule"])
        if key not in self._by_text:
            self._by_text[key] = self._planned(point)
        return self._by_text[key]

    def _planned(self, point: Point) -> Point | None:
        try:
            plan = plan_of(point, TARGET)
            kernels = kernels_of(plan)
        except TileLinkError:
            return None
        if does_not_fit(plan.bound) or spills(plan.bound):
            return None
        if kernels not in self._by_kernels:
            seconds = simulate(plan, self._machine).seconds
            self._by_kernels[kernels] = point | {"chosen_us": round(seconds * 1e6, 2), "sources": []}
        return self._by_kernels[kernels]

    def fill(self, counts: Sequence[int], trials: int) -> dict[str, Any]:
        """Takes so many points of each source (SEARCH, RANDOM, NEXT, NEAR). Returns what searching took."""
        found = self._search(trials)
        best = self._best(found, counts[0])
        self._limit = SLOWEST * best[0]["chosen_us"]
        declared = self._declared()
        drawn = self._random(counts[1])
        self._next(found, counts[2], best)
        self._near([*best[:BASES], *declared], counts[3])
        self._by_kernels = {key: point for key, point in self._by_kernels.items() if point["sources"]}
        return {
            "op": self._op, "shape": self._shape, "space": found.size, "trials": trials,
            "search_s": round(found.elapsed, 1), "refused": sum(found.refused.values()), "drawn": drawn,
        }  # fmt: skip

    def _search(self, trials: int) -> Found:
        """What `tilelink tune` does before it measures, with a number of trials in place of seconds."""
        return rank(
            self._programs, dims=dims_of(self._op, self._shape), ranks=RANKS, machine=self._machine,
            target=target(TARGET), dtype=DTYPE, declared=self._known(), by="evolution", budget_s=None, trials=trials,
            seed=self._seed,
        )  # fmt: skip

    def _best(self, found: Found, count: int) -> list[Point]:
        """Takes so many of the search's best as `tilelink tune` chooses them; best first."""
        kept: list[Point] = []
        for one in distinct(found, count):
            point = self.find(self._programs[one.candidate.program].name, one.schedule)
            if point is not None and not point["sources"]:
                point["sources"].append("search")
                kept.append(point)
        return kept

    def _next(self, found: Found, count: int, best: Sequence[Point]) -> None:
        """Takes so many of the search's points whose predictions differ from those of the best and of each other."""
        known = {point["chosen_us"] for point in best}
        for one in found.ranking:
            if count == 0:
                return
            if round(one.seconds * 1e6, 2) in known:
                continue
            point = self.find(self._programs[one.candidate.program].name, one.schedule)
            if point is not None:
                point["sources"].append("next")
                known.add(point["chosen_us"])
                count -= 1

    def _declared(self) -> list[Point]:
        kept = list[Point]()
        for schedule in self._known():
            point = self.find(schedule.program, schedule)
            if point is None or point["chosen_us"] > self._limit:
                continue
            point["sources"] += ["declared"] * ("declared" not in point["sources"])
            point.setdefault("declared", []).append(f"{schedule.program}:{schedule.name}")
            kept += [point] * (point not in kept)
        return kept

    def _known(self) -> list[Schedule]:
        """What the operator's file declares."""
        module = compiler.load(self._op)
        return [schedule for program in self._programs for schedule in module.schedules_of(program)]

    def _random(self, count: int) -> dict[str, int]:
        """Draws until there are so many. Returns how many draws that took, by what became of them."""
        became = {"taken": 0, "again": 0, "refused": 0}
        while became["taken"] < count and sum(became.values()) < 20 * count:
            candidate = self._space.random(self._chance)
            point = self.find(self._programs[candidate.program].name, self._space.schedule(candidate))
            if point is None:
                became["refused"] += 1
            elif "random" in point["sources"]:
                became["again"] += 1
            else:
                point["sources"].append("random")
                became["taken"] += 1
        return became

    def _near(self, bases: Sequence[Point], count: int) -> None:
        """Takes so many promising neighbours that are not there yet."""
        limit = PROMISING * min(base["chosen_us"] for base in bases)
        around = [one for base in bases if base["chosen_us"] <= limit for one in self._neighbours(base)]
        self._chance.shuffle(around)
        for program, schedule in around:
            if count == 0:
                return
            point = self.find(program, schedule)
            if point is not None and not point["sources"] and point["chosen_us"] <= limit:
                point["sources"].append("near")
                count -= 1

    def chosen(self, trials: int, count: int = SEARCH) -> list[Point]:
        """What a search would measure, best first."""
        return self._best(self._search(trials), count)

    def same(self, point: Point) -> Point | None:
        """The point of the kernels of a point of another sweep."""
        return self.find(point["program"], self._parsed(point)[1])

    def _parsed(self, point: Point) -> tuple[int, Schedule]:
        number = next(n for n, p in enumerate(self._programs) if p.name == point["program"])
        return number, compiler.parse(f"{self._programs[number]}\n{point['schedule']}").schedules[-1]

    def _neighbours(self, point: Point) -> Iterator[tuple[str, Schedule]]:
        number, schedule = self._parsed(point)
        for knob in self._space.knobs[number]:
            for change in knob.changes:
                yield point["program"], change(schedule)

    def measured(self) -> list[Point]:
        """The points to be measured: the search's best first, in its order, the others by chance."""
        kept = [p for p in self.points if p["sources"] != ["random"] or p["chosen_us"] <= self._limit]
        first = [p for p in kept if "search" in p["sources"]]
        others = [p for p in kept if "search" not in p["sources"]]
        self._chance.shuffle(others)
        return [*sorted(first, key=lambda p: p["chosen_us"]), *others]

    def too_slow(self) -> list[Point]:
        return [p for p in self.points if p["sources"] == ["random"] and p["chosen_us"] > self._limit]


def sweep(group: tuple[str, str], machine: str, counts: Sequence[int], trials: int) -> dict[str, Any]:
    """The points of one group, without numbers, and what is known of choosing them."""
    begin, own = time.perf_counter(), Sweep(*group, load_machine(machine))
    about = own.fill(counts, trials)
    took = time.perf_counter() - begin
    print(f"{group}: {len(own.measured())} points, {len(own.too_slow())} too slow, {took:.0f} s", file=sys.stderr)
    return {"about": about, "points": own.measured(), "too_slow": own.too_slow()}


def choose(
    path: Path, machine: str, trials: int = TRIALS, counts: Sequence[int] = (SEARCH, RANDOM, NEXT, NEAR),
    groups: Sequence[tuple[str, str]] = GROUPS, workers: int | None = None,
) -> int:  # fmt: skip
    """Writes the points of all groups, chosen by a process for each processor. Returns 0."""
    with ProcessPoolExecutor(workers) as pool:
        jobs = [pool.submit(sweep, group, machine, counts, trials) for group in groups]
        found = [job.result() for job in jobs]
    points = [{"id": number, **p} for number, p in enumerate(_in_order([one["points"] for one in found], counts[0]))]
    written = {
        "benchmark": "search quality points", "machine": machine, "groups": [one["about"] for one in found],
        "too_slow": [p for one in found for p in one["too_slow"]], "points": points,
    }  # fmt: skip
    path.write_text(json.dumps(written, separators=(",", ":")).replace('{"id"', '\n{"id"') + "\n", encoding="utf-8")
    return 0


def _in_order(groups: Sequence[Sequence[Point]], first: int) -> Iterator[Point]:
    """The search's points of all groups, then the others by turns: a run that ends early has something of all."""
    for group in groups:
        yield from group[:first]
    for begin in range(first, max(map(len, groups)), RUN):
        for group in groups:
            yield from group[begin : begin + RUN]


def report(path: Path, points: Path) -> int:
    """Writes the figures of a measured file into it and shows them. Returns 0."""
    measured, chosen = (json.loads(p.read_text(encoding="utf-8")) for p in (path, points))
    found = evaluated(measured, chosen)
    path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print("\n".join(table_of(found)))
    return 0


def again(
    path: Path, machine: str, trials: int = TRIALS, groups: Sequence[tuple[str, str]] = GROUPS
) -> int:  # fmt: skip
    """Searches anew and shows what a measured file knows of the choices. Returns 0."""
    points = json.loads(path.read_text(encoding="utf-8"))["points"]
    for group in groups:
        own = Sweep(*group, load_machine(machine))
        chosen = own.chosen(trials)
        times = {id(own.same(p)): p["measured_us"] for p in points if (p["op"], p["shape"]) == group}
        best = min(times.values())
        known = [f"{n}: {100 * (times[id(p)] / best - 1):.1f} %" for n, p in enumerate(chosen, 1) if id(p) in times]
        print(f"{' '.join(group)}: choices of {len(chosen)} that were measured, over the best: {', '.join(known)}")
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=Path, help="the points: written by --choose, else read")
    parser.add_argument("--choose", action="store_true", help="choose points")
    parser.add_argument("--report", type=Path, help="a file of measured points")
    parser.add_argument("--again", type=Path, help="a file of measured points: what it knows of new searches' choices")
    parser.add_argument("--machine", default="8xH200", help="a shipped machine or a JSON file")
    parser.add_argument("--trials", type=int, default=TRIALS, help="points that the search of --choose tries")
    args = parser.parse_args(argv)
    points: Path = args.points
    if args.choose + bool(args.report) + bool(args.again) != 1:
        parser.error("give one of --choose, --report and --again")
    if args.points is None and not args.again:
        parser.error("give --points")
    try:
        if args.again:
            return again(args.again, args.machine, args.trials)
        return choose(points, args.machine, args.trials) if args.choose else report(args.report, points)
    except (OSError, ValueError, TileLinkError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
