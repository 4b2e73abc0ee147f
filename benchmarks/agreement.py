# pyright: basic
"""What the model predicts beside what GPUs measure, over many schedules.

    python benchmarks/agreement.py --choose --points benchmarks/results/agreement_points.json
    torchrun --nproc-per-node 4 --max-restarts 3 benchmarks/agreement.py \\
        --points benchmarks/results/agreement_points.json --out benchmarks/results/agreement_4xH200.json --budget 120
    python benchmarks/agreement.py --report benchmarks/results/agreement_4xH200.json [--machine machine.json]

The points are chosen by the model and by chance, without GPUs and before anything is measured. A run that is started
again goes on with what its file lacks; a point during which it ended counts as failed. --report predicts anew.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
import torch.distributed as dist

from benchmarks import agreement_points, prepared, tp
from benchmarks.agreement_figures import figures, predict, table_of
from benchmarks.baselines import Case, Problem
from benchmarks.measure import Session, Variant, Watchdog
from tilelink.errors import TileLinkError
from tilelink.runtime.cuda.device import current_target
from tilelink.runtime.cuda.kernel import GpuKernel
from tilelink.simulator.machine import load_machine
from tilelink.target import Target

Point = dict[str, Any]
Report = dict[str, Any]
LIMIT_S = 20.0
"""Seconds that one step of measuring may take before the run is ended."""


class State:
    """What is measured so far, as the file says it. Rank 0 writes."""

    def __init__(self, points: Sequence[Point], out: Path, rank: int) -> None:
        self._out, self._rank = out, rank
        self.points = [dict(p) for p in points]
        self.report: Report = {
            "benchmark": "agreement", "points": self.points, "began": [], "alone": [], "spent_s": 0.0,
            "ended_early": None,
        }  # fmt: skip
        before = _read(out)
        if before and [p["id"] for p in before["points"]] == [p["id"] for p in points]:
            self.report = before | {"ended_early": None}
            self.points = self.report["points"]
            if before["began"]:
                self._judge(before["began"])

    def _judge(self, began: list[int]) -> None:
        """Several points that ended a run are tried alone; one that did has failed."""
        self.report["spent_s"] += LIMIT_S
        if len(began) > 1:
            self.report["alone"] = sorted({*self.report["alone"], *began})
        for point in self.points:
            if [point["id"]] == began:
                point |= {"measured_us": None, "failure": "the run ended while this point was measured"}
        self.report["began"] = []

    def left(self) -> list[Point]:
        """The points without a result, those that may end the run last."""
        alone = set(self.report["alone"])
        open_ones = [p for p in self.points if "measured_us" not in p]
        return sorted(open_ones, key=lambda p: p["id"] in alone)

    def begin(self, batch: Sequence[Point], spent_s: float) -> None:
        self.report["began"], self.report["spent_s"] = [p["id"] for p in batch], round(spent_s, 2)
        self.write()

    def end(self, batch: Sequence[Point], rows: Mapping[int, Mapping[str, Any]], spent_s: float) -> None:
        for point in batch:
            row = rows[point["id"]]
            kept = ("failure", "error", "samples_us", "host_us", "build_s")
            point |= {"measured_us": row["us"], **{name: row[name] for name in kept if row.get(name) is not None}}
        self.report["began"], self.report["spent_s"] = [], round(spent_s, 2)
        self.write()

    def write(self, ended_early: str | None = None) -> None:
        """Puts a new file in the place of the old one, so that no end of the process leaves half a file."""
        self.report["ended_early"] = ended_early
        if self._rank == 0:
            self._out.parent.mkdir(parents=True, exist_ok=True)
            temporary = self._out.with_suffix(".part")
            temporary.write_text(json.dumps(self.report, indent=1) + "\n", encoding="utf-8")
            temporary.replace(self._out)


def _read(path: Path) -> Report | None:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def batches(points: Sequence[Point], size: int, alone: Sequence[int] = ()) -> list[list[Point]]:
    """Neighbours of the same operator and shape, `size` at most; those in `alone` by themselves."""
    found: list[list[Point]] = []
    for point in points:
        last = found[-1] if found else []
        fits = last and len(last) < size and _case_key(last[0]) == _case_key(point)
        if fits and not {last[0]["id"], point["id"]} & set(alone):
            last.append(point)
        else:
            found.append([point])
    return found


def _case_key(point: Point) -> tuple[str, str]:
    return point["op"], point["shape"]


# On GPUs -----------------------------------------------------------------------------------------------------


def problem_of(point: Point) -> Problem:
    """The product whose data a point works on; operators that only communicate take what such a product does."""
    op: str = point["op"]
    op = {"all_gather": "ag_gemm", "reduce_scatter": "gemm_rs"}.get(op, op)
    return tp.problems(op, point["shape"], point["ranks"], point["dtype"])[0]


def variant_of(point: Point, case: Case, machine: Target) -> Variant:
    """A point's kernel as something to time. Collective."""
    artifact = prepared.program_of(point, machine)
    kernel = GpuKernel(artifact, case.session.group)
    moves_only = point["op"] in ("all_gather", "reduce_scatter")
    given = {"x": case.sent} if moves_only else {"x": case.x, "w": case.w}
    output = case.scratch("received", *case.received.shape) if moves_only else case.output
    inputs, out = (
        {name: tensor.view(artifact.tensor(name).shape) for name, tensor in one.items()}
        for one in (given, {"y": output})
    )
    return Variant(
        name=str(point["id"]), kind="ours", run=lambda: kernel(inputs, out=out)["y"], outputs=(output,),
        expected=lambda: case.received if moves_only else case.result,
    )  # fmt: skip


def measure(batch: Sequence[Point], case: Case, machine: Target, samples: int) -> dict[int, dict[str, Any]]:
    """Times points of one case by turns: id -> row. Collective."""
    session, rows, variants = case.session, dict[int, dict[str, Any]](), list[Variant]()
    for point in batch:
        session.watchdog.note(str(point["id"]))
        built = session.build(str(point["id"]), "ours", lambda point=point: variant_of(point, case, machine))
        if isinstance(built, Variant):
            variants.append(built)
        else:
            rows[point["id"]] = built
    timed = session.time(variants, case.refresh, samples=samples, warmups=3) if variants else []
    rows |= {int(row["name"]): row for row in timed}
    with session.watchdog.step("meeting"):
        session.meet()  # nobody frees what a peer may still reach
    return rows


def run(args: argparse.Namespace, begin: float) -> int:
    """A rank of a run. Returns its exit status."""
    os.environ.update(tp.ENVIRONMENT)
    local, ranks = int(os.environ["LOCAL_RANK"]), int(os.environ["WORLD_SIZE"])
    torch.cuda.set_device(local)
    machine, points = current_target(), json.loads(args.points.read_text(encoding="utf-8"))["points"]
    state = State(points, args.out, local)
    todo = [p for p in state.left() if p["ranks"] == ranks]
    missing = [p for p in todo[local::ranks] if not prepared.prepared_file(p, machine).is_file()]
    if args.prepare > 0 and missing:
        workers = max(1, min(args.workers, (os.cpu_count() or 1) // ranks))
        reasons = prepared.prepare_all(missing, machine, workers=workers, seconds=args.prepare)
        late = sum(bool(r) for r in reasons)
        print(f"rank {local}: {late} of {len(reasons)} not prepared {_first(reasons)}", file=sys.stderr, flush=True)
    dist.init_process_group("nccl", device_id=torch.device("cuda", local))
    watchdog = Watchdog(args.limit, local, on_end=state.write)
    assert dist.group.WORLD is not None
    session = Session(dist.group.WORLD, watchdog)
    ready: list[Any] = [[p["id"] for p in todo if prepared.prepared_file(p, machine).is_file()]]
    dist.broadcast_object_list(ready, src=0)
    todo.sort(key=lambda p: p["id"] not in ready[0])
    if "machine" not in state.report:
        state.report |= {"machine": tp.machine(), "commit": args.commit or tp.commit(), "ranks": ranks}
    return _measure_all(todo, state, session, machine, args, begin)


def _first(reasons: Sequence[str]) -> str:
    return next((r for r in reasons if r), "")


def _measure_all(
    todo: Sequence[Point], state: State, session: Session, machine: Target, args: argparse.Namespace, begin: float
) -> int:
    """Batch after batch until the budget is spent: rank 0's clock decides for all."""
    before = state.report["spent_s"]
    case: Case | None = None
    for batch in batches(todo, args.batch, state.report["alone"]):
        spent = before + time.monotonic() - begin
        if not session.agree(spent < args.budget):
            state.write(f"the budget of {args.budget:g} s is spent")
            return 0
        state.begin(batch, spent)
        session.watchdog.context(f"{_case_key(batch[0])} {[p['id'] for p in batch]}")
        problem = problem_of(batch[0])
        if case is None or case.problem != problem:
            case = None
            gc.collect()
            with session.watchdog.step("reference"):
                case = Case(problem, session)
                case.refresh()
                session.meet()
        rows = measure(batch, case, machine, args.samples)
        state.end(batch, rows, before + time.monotonic() - begin)
        gc.collect()
    state.write()
    return 0


# Without GPUs ------------------------------------------------------------------------------------------------


def report(path: Path, machine: str, write: Callable[[str], Any] = print) -> int:
    """Predicts every point of a file anew, writes the figures into it and shows them."""
    found = json.loads(path.read_text(encoding="utf-8"))
    found["points"] = predict(found["points"], load_machine(machine))
    found["figures"] = figures(found["points"])
    found["predicted_for"] = machine if machine.count("/") == 0 else Path(machine).name
    path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    write("\n".join(table_of(found)))
    return 0


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=Path, help="the points: written by --choose, else read")
    parser.add_argument("--choose", action="store_true", help="choose points")
    parser.add_argument("--report", type=Path, help="a file of measured points")
    parser.add_argument("--machine", default="8xH200", help="a shipped machine or a JSON file")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--budget", type=float, default=120.0, help="seconds, from the start of the first run")
    parser.add_argument("--prepare", type=float, default=25.0, help="seconds in which a pool compiles; 0: no pool")
    parser.add_argument("--workers", type=int, default=12, help="processes of each rank's pool, at most")
    parser.add_argument("--batch", type=int, default=5, help="points that are timed by turns")
    parser.add_argument("--samples", type=int, default=12)
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="seconds that one step may take")
    parser.add_argument("--commit", help="what to write for the commit where there is no git")
    parser.add_argument("--trials", type=int, default=60, help="points that a search of --choose tries")
    args = parser.parse_args(argv)
    if not args.report and not args.points:
        parser.error("give --points or --report")
    if not args.report and not args.choose and not args.out:
        parser.error("measuring needs --out")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    begin = time.monotonic()
    args = arguments(argv)
    try:
        if args.report:
            return report(args.report, args.machine)
        if args.choose:
            return agreement_points.choose(args.points, args.machine, args.trials)
    except (OSError, ValueError, TileLinkError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if not torch.cuda.is_available() or "LOCAL_RANK" not in os.environ:
        print("measuring needs GPUs and torchrun: torchrun --nproc-per-node N benchmarks/agreement.py ...",
              file=sys.stderr)  # fmt: skip
        return 2
    status = 1
    try:
        status = run(args, begin)
    except Exception:
        import traceback

        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # an orderly shutdown could wait for ranks that failed


if __name__ == "__main__":
    sys.exit(main())
