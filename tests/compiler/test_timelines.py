"""Measured timelines on CPU ranks: all that was planned is there, in place, and as the simulator's trace has it."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from tests.backend.samples import unbroken
from tests.compiler.library import cases, covering, dims, name
from tests.tiers import one_in, thorough
from tests.traces import PlanEvent, differences, planned_events, stage_numbered
from tilelink import compiler
from tilelink.backend import emit as emitter
from tilelink.backend.dialects import Dialect
from tilelink.backend.emit import emit
from tilelink.backend.source import needed
from tilelink.cli import app
from tilelink.errors import EmitError
from tilelink.planning.traces import Pad, most_spans, receives
from tilelink.reference import trial
from tilelink.runtime.job import RunResult
from tilelink.simulator import simulate
from tilelink.simulator.machine import load_machine
from tilelink.simulator.measured import Measured, measured_text
from tilelink.simulator.trace import trace_text

RANKS = 2
LAUNCHES = 2
DIMS = {"Ms": 40, "N": 72, "K": 64}
Run = tuple[compiler.Kernel, RunResult]


@pytest.fixture(scope="module", params=["copy_engine", "copy_sms"])
def run(request: pytest.FixtureRequest) -> Run:
    module = compiler.load("ag_gemm")
    program = module.program()
    schedule = module.schedule(request.param, program)
    kernel = compiler.compile(program, schedule, ranks=RANKS, dims=DIMS, trace=True)
    inputs = trial.random_inputs(program, ranks=RANKS, dims=DIMS, dtype="f32", launches=LAUNCHES, seed=1)
    result = kernel.run(inputs, trace=True)
    for given, outputs in zip(inputs, result.outputs, strict=True):
        for got, wanted in zip(outputs, kernel.reference(given), strict=True):
            torch.testing.assert_close(got["y"], wanted["y"], rtol=1e-4, atol=1e-4)
    return kernel, result


def spans_of(run: Run) -> Any:
    return Measured(plan=run[0].plan, raw=run[1].spans).spans


def test_every_tile_does_what_was_planned_once_in_each_launch(run: Run) -> None:
    plan = run[0].plan
    pad = Pad(plan)
    tiles: dict[tuple[int, int], int] = defaultdict(int)
    done: dict[tuple[int, int], list[PlanEvent]] = defaultdict(list)
    for span in spans_of(run):
        if span.stage >= len(plan.bound.stages):
            continue
        stage = stage_numbered(plan, span.stage)
        key = span.epoch, plan.first_task[stage.name] + span.rank * stage.total + span.tile
        if span.kind == "tile":
            tiles[key] += 1
        elif span.kind == "transfer":
            done[key].append(PlanEvent("transfer", span.a, span.b))
        elif span.kind == "wait":
            done[key].append(PlanEvent("wait", span.rank, pad.place(span.a, span.epoch)[0]))
        else:
            done[key].append(PlanEvent("notify", span.a, pad.place(span.b, span.epoch)[0]))
    planned = planned_events(plan)
    everything = {(epoch, task) for epoch in range(1, LAUNCHES + 1) for task in planned}
    assert tiles == dict.fromkeys(everything, 1)
    for epoch, task in everything:
        assert sorted(done[epoch, task]) == sorted(event._replace(value=0) for event in planned[task])
    workers = {(worker.rank, worker.stream, worker.program): worker.events for worker in run[1].traces}
    assert differences(plan, workers, LAUNCHES) == []


def test_what_a_tile_does_lies_inside_of_it_in_order(run: Run) -> None:
    workers: dict[tuple[int, int], list[Any]] = defaultdict(list)
    for span in spans_of(run):
        assert 0 <= span.begin <= span.end
        workers[span.rank, span.track].append(span)
    assert len(workers) == len(run[0].plan.workers)
    for own in workers.values():
        tiles = [span for span in own if span.kind == "tile"]
        parts = [span for span in own if span.kind != "tile"]
        assert all(a.end <= b.begin for a, b in pairwise(tiles))
        assert all(a.end <= b.begin for a, b in pairwise(parts))
        for part in parts:
            around = [t for t in tiles if t.begin <= part.begin and part.end <= t.end]
            inside = [(t.stage, t.tile, t.epoch) for t in around] == [(part.stage, part.tile, part.epoch)]
            assert inside or (part.stage == len(run[0].bound.stages) and not around)


def test_there_is_room_for_every_span(run: Run) -> None:
    counts: dict[tuple[int, int, int], int] = defaultdict(int)
    for span in spans_of(run):
        counts[span.rank, span.track, span.epoch] += 1
    assert max(counts.values()) <= most_spans(run[0].plan)


@pytest.fixture(scope="module")
def events(run: Run) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for event in json.loads(measured_text(Measured(plan=run[0].plan, raw=run[1].spans)))["traceEvents"]:
        found[event["ph"]].append(event)
    return found


def test_tracks_and_arguments_are_those_of_the_simulated_trace(run: Run, events: dict[str, list[Any]]) -> None:
    simulated = json.loads(trace_text(simulate(run[0].plan, load_machine("8xH200"))))["traceEvents"]
    assert events["M"] == [event for event in simulated if event["ph"] == "M"]
    assert {e["name"] for e in events["C"]} == {e["name"] for e in simulated if e["ph"] == "C"}
    predicted = indices_of([e for e in simulated if e["ph"] == "X" and e["cat"] == "compute"])
    assert len(predicted) == RANKS * run[0].bound.stages["gemm"].total
    assert predicted == indices_of([e for e in events["X"] if e["cat"] == "tile" and e["name"] == "gemm"])


def indices_of(slices: list[Any]) -> dict[tuple[int, int, int], tuple[int, int, int]]:
    """(rank, track, tile) -> its place."""
    return {
        (e["pid"], e["tid"], e["args"]["tile"]): (e["args"]["s"], e["args"]["i"], e["args"]["j"]) for e in slices
    }  # fmt: skip


def test_arrows_lead_from_the_last_notify_to_the_wait(run: Run, events: dict[str, list[Any]]) -> None:
    starts, ends = ({e["id"]: e for e in events[phase]} for phase in ("s", "f"))
    assert starts.keys() == ends.keys()
    counter = ("rank", "tensor", "signal", "channel")
    waits = {(e["pid"], e["tid"], round(e["ts"] + e["dur"], 3)): e for e in events["X"] if e["cat"] == "wait"}
    notifies = {(e["pid"], e["tid"], e["ts"]): e for e in events["X"] if e["cat"] == "notify"}
    for number, end in ends.items():
        start = starts[number]
        wait = waits[end["pid"], end["tid"], round(end["ts"], 3)]
        notify = notifies[start["pid"], start["tid"], start["ts"]]
        assert [wait["args"][key] for key in counter] == [notify["args"][key] for key in counter]
        assert wait["args"]["launch"] == notify["args"]["launch"]
        assert start["ts"] <= end["ts"]
    late = [
        wait for wait in waits.values() if wait["args"]["stage"] != "runtime"
        and any(n["ts"] > wait["ts"] and [n["args"][k] for k in (*counter, "launch")]
                == [wait["args"][k] for k in (*counter, "launch")] for n in notifies.values())
    ]  # fmt: skip
    assert len(ends) >= len(late)


def test_transfers_to_peers_are_on_both_links_with_their_bytes(run: Run, events: dict[str, list[Any]]) -> None:
    begins, ends = ({(e["pid"], e["cat"], e["id"]): e for e in events[phase]} for phase in ("b", "e"))
    assert begins.keys() == ends.keys()
    assert all(begins[key]["ts"] <= ends[key]["ts"] for key in begins)
    for way in ("link out", "link in"):
        for rank in range(RANKS):
            moved = [e["args"]["bytes"] for (pid, cat, _), e in begins.items() if (pid, cat) == (rank, way)]
            assert sum(moved) == LAUNCHES * (RANKS - 1) * DIMS["Ms"] * DIMS["K"] * 4


def test_counters_end_at_nothing_and_never_below(events: dict[str, list[Any]]) -> None:
    assert all(value >= 0 for e in events["C"] for value in e["args"].values())
    last = {(e["pid"], e["name"]): e["args"] for e in events["C"]}
    assert all(args == {"compute": 0, "wait": 0} for args in last.values())


@thorough(unless=lambda case: one_in(3, name(case)))
@pytest.mark.parametrize("case", covering(cases()), ids=name)
def test_without_tracing_nothing_of_it_is_in_the_source(case: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    program, schedule = case
    sizes = dims(program, RANKS)
    tables = trial.random_tables(program, ranks=RANKS, dims=sizes, seed=0)
    where: dict[str, Any] = {"ranks": RANKS, "dims": sizes, "tables": tables}
    untold, plan = (compiler.plan(program, schedule, **where, dialect=name) for name in ("triton", "traced"))
    plain, traced = (emit(one.bound, one.thresholds).text for one in (untold, plan))
    assert "tracing" not in plain and "trace_track" not in plain and "queue.trace" not in plain
    assert read(untraced(traced)) == read(own_lines(unbroken(one_by_one(plan, monkeypatch))))
    busy: dict[tuple[int, ...], int] = defaultdict(int)
    received = Counter(receives(plan).tolist())
    for task, planned in planned_events(plan).items():
        kernel, rank, program = plan.workers[plan.worker[task]]
        taken = plan.bound.kernels[kernel].dynamic  # then one program may execute all tiles
        busy[(kernel, rank) if taken else (kernel, rank, program)] += 1 + len(planned) + received[task]
    assert most_spans(plan) == max(busy.values()) + 2 * RANKS


def one_by_one(plan: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    """The source in stock Triton of what was lowered to be traced, with a line for each notify."""
    with monkeypatch.context() as patched:
        patched.setitem(emitter.DIALECTS, "traced", Dialect(waits_together=False))
        return emit(plan.bound, plan.thresholds).text


def untraced(text: str) -> list[str]:
    """The source without what tracing adds, which is all that it may do."""
    added = ("dl.tile_end(", "dl.transfer_begin(", "trace_track = ", "queue.trace(", "queue.tile_end(")
    kept = [line for line in own_lines(unbroken(text)) if not line.strip().startswith(added)]
    return [line.replace(", trace=trace_track", "") for line in kept]


def read(lines: list[str]) -> list[str]:
    """Without the names that nothing reads."""
    return "\n\n\n".join(map(needed, "\n".join(lines).split("\n\n\n"))).split("\n")


def own_lines(text: str) -> list[str]:
    """Without the waits for launches of peers: in one step, but one by one where each is measured."""
    waits = ("for peer in range(0, ", "dl.wait_all(")
    return [line for line in text.split("\n") if not line.strip().startswith(waits) and "+ peer, target" not in line]


def test_processors_of_amd_are_not_traced() -> None:
    program = compiler.load("ag_gemm").program()
    with pytest.raises(EmitError, match="gfx942 cannot be traced"):
        compiler.bound(program, ranks=RANKS, dims=DIMS, dtype="bf16", target="gfx942", dialect="traced")


def test_run_writes_a_timeline(tmp_path: Path) -> None:
    text = (
        "program twice(M):\n    x : in [M]\n    y : out [M]\n\n    compute double(i: M):\n        y[i] = x[i] + x[i]\n"
    )
    file, out = tmp_path / "twice.tl", tmp_path / "out.json"
    file.write_text(text)
    done = CliRunner().invoke(app, ["run", str(file), "-n", "1", "--trace", str(out)])
    assert done.exit_code == 0, done.output
    trace = json.loads(out.read_text())
    assert trace["otherData"]["measured"] is True and trace["otherData"]["launch_seconds"].keys() == {"1"}
    assert {e["name"] for e in trace["traceEvents"] if e["ph"] == "X"} == {"double"}
