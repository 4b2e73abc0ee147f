"""What launches leave: of simulated ones, of traced ones on CPU ranks, in files, and on the command line."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner, Result

import tilelink
from tests.stragglers.cases import MACHINE, deviation, place, plan, pool, traces
from tilelink import compiler
from tilelink.cli import app
from tilelink.errors import DataError, OutputError, TileLinkError
from tilelink.simulator import simulate
from tilelink.stragglers import Column, Series, next_launch, read_traces, save, table_of, table_of_spans
from tilelink.stragglers.metrics import NUMBER, PROGRAM, joined, keys_of, split
from tilelink.stragglers.report import verdict
from tilelink.stragglers.simulated import row_of_simulated

RANKS, LAUNCHES = 2, 3


def run_command(*args: str) -> Result:
    return CliRunner().invoke(app, list(args))


Spans = list[tuple[int, int, str, int, int, int, int, int, int, int]]


@pytest.fixture(scope="module")
def traced() -> tuple[compiler.Kernel, Spans]:
    program = compiler.load("ag_gemm").program("ag_gemm")
    dims = {"Ms": 32, "N": 32, "K": 32}
    kernel = tilelink.compile(program, "copy_engine", ranks=RANKS, dims=dims, dtype="f32", trace=True)
    inputs = [{"x": torch.ones(32, 32), "w": torch.ones(32, 32)} for _ in range(RANKS)]
    return kernel, list(kernel.run([inputs] * LAUNCHES).spans)


def test_a_simulated_launch_leaves_what_its_timeline_says() -> None:
    result = simulate(plan(2), MACHINE)
    found = table_of([row_of_simulated(result, [1e-6, 2e-6])])
    row = dict(zip(found.columns, found.values[0].tolist(), strict=True))
    t, s = result.timeline, result.timeline.script
    move = int(np.flatnonzero((s.moves.source == 0) & (s.moves.target == 1))[0])
    assert row[Column("engine_out", 0, 0, 1)] == pytest.approx(t.moved[move] - t.started[move])
    took = [row[Column("took", rank)] for rank in range(2)]
    assert took == pytest.approx(np.array(result.rank_seconds) - t.prepared)
    assert [row[Column("gap", rank)] for rank in range(2)] == pytest.approx([1e-6, 2e-6])
    assert row[Column("signal", 0, -1, 1)] == pytest.approx(2 * MACHINE.signal_latency)
    assert {c.sm for c in row if c.metric == "work"} == set(t.worker_sm[t.worker_sm >= 0].tolist())


def test_traced_launches_leave_what_their_spans_say(traced: tuple[compiler.Kernel, Spans]) -> None:
    kernel, spans = traced
    found = table_of_spans(kernel.plan, spans)
    assert found.first == 0 and len(found.values) == LAUNCHES
    last = dict(zip(found.columns, found.values[-1].tolist(), strict=True))
    own: dict[tuple[str, int, int], float] = defaultdict(float)
    for rank, track, kind, stage, _, a, _, epoch, begin, end in spans:
        if epoch == LAUNCHES and stage == 1:
            own["work", rank, track] += (end - begin) * (1 if kind == "tile" else -1) * 1e-9
        if epoch == LAUNCHES and kind == "transfer":
            own["moved", rank, a] += (end - begin) * 1e-9
    for rank in range(RANKS):
        assert last[Column("work", rank, 1, -1, 1)] == pytest.approx(own["work", rank, 1], rel=1e-5)
        assert last[Column("engine_out", rank, 0, 1 - rank)] == pytest.approx(own["moved", rank, 1 - rank], rel=1e-5)
        assert Column("wait", rank, -1, 1 - rank) in last and last[Column("gap", rank)] >= 0
        begins: dict[int, int] = {}
        for span in (one for one in spans if one[0] == rank and one[7] == LAUNCHES):
            begins[span[1]] = min(span[8], begins.get(span[1], span[8]))
        started = max(begin for track, begin in begins.items() if track > 0) - min(begins.values())
        assert last[Column("start", rank)] == pytest.approx(started * 1e-9, rel=1e-6, abs=1e-9)  # track 0: the engine


def test_a_clock_that_drifts_changes_nothing(traced: tuple[compiler.Kernel, Spans]) -> None:
    """The clock of rank 1 is 5 s ahead, and gains 30 millionths."""
    kernel, spans = traced
    zero = min(span[8] for span in spans)

    def drifted(time: int) -> int:
        return time + 5_000_000_000 + (time - zero) * 30 // 1_000_000

    moved: Spans = [(*s[:8], drifted(s[8]), drifted(s[9])) if s[0] == 1 else s for s in spans]  # pyright: ignore
    one, other = (table_of_spans(kernel.plan, own) for own in (spans, moved))
    assert one.columns == other.columns
    np.testing.assert_allclose(one.values, other.values, rtol=1e-3, atol=2e-9)


def test_a_folder_gives_back_what_was_saved_and_its_files_are_joined(tmp_path: Path) -> None:
    table = table_of(pool(2)[:6])
    half = len(table.keys) // 2
    for part in (slice(0, half), slice(half, None)):  # as two ranks write them
        own = replace(table, keys=table.keys[part], values=table.values[:, part], counts=table.counts[part])
        save(tmp_path, plan(2), own, machine=MACHINE)
    save(tmp_path, plan(2), replace(table, first=6), machine=MACHINE)
    found = read_traces(tmp_path)
    np.testing.assert_array_equal(found.table.keys, table.keys)
    np.testing.assert_array_equal(found.table.values, np.concatenate([table.values] * 2))
    assert next_launch(tmp_path) == 12 and found.norm is not None and found.ranks == 2
    assert joined([table]) is table


def test_a_folder_is_of_one_program(tmp_path: Path) -> None:
    save(tmp_path, plan(2), table_of(pool(2)[:1]))
    with pytest.raises(OutputError, match="has launches of another program"):
        save(tmp_path, plan(4), table_of(pool(4)[:1]))


@pytest.mark.parametrize("content", [b"", b"not a zip file", b"PK\x03\x04 cut"])
def test_a_file_that_is_not_as_it_was_written_is_refused(tmp_path: Path, content: bytes) -> None:
    save(tmp_path, plan(2), table_of(pool(2)[:1]))
    (tmp_path / "launches-000000009-00000000.npz").write_bytes(content)
    with pytest.raises(DataError, match="cannot be read"):
        read_traces(tmp_path)


@pytest.mark.parametrize(("change", "reason"), [
    ({"ranks": 1}, "columns of more than 1 ranks"),
    ({"ranks": 0}, "is of 0 ranks"),
    ({"ranks": True}, "is of True ranks"),
    ({"ranks": 10**9}, "is of 1000000000 ranks"),
    ({"machine": "8xH200"}, "machine"),
    ({"stages": []}, "and 0 stages"),
    ({"machine": [1]}, "machine"),
    ({"machine": {"node_ranks": {}}}, "machine"),
])  # fmt: skip
def test_a_program_that_is_not_that_of_the_launches_is_refused(
    tmp_path: Path, change: dict[str, Any], reason: str
) -> None:
    save(tmp_path, plan(2), table_of(pool(2)[:1]))
    path = tmp_path / "program.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(TileLinkError, match=reason):
        read_traces(tmp_path)


@pytest.mark.parametrize(("change", "reason"), [
    (lambda table: replace(table, values=-table.values), "times that are none"),
    (lambda table: replace(table, values=table.values * np.inf), "times that are none"),
    (lambda table: replace(table, values=table.values * np.nan), "took any time"),
    (lambda table: replace(table, values=table.values[:0]), "took any time"),
])  # fmt: skip
def test_launches_of_no_time_are_refused(tmp_path: Path, change: Any, reason: str) -> None:
    save(tmp_path, plan(2), change(table_of(pool(2)[:1])))
    with pytest.raises(DataError, match=reason):
        read_traces(tmp_path)


def test_calls_have_more_kinds_than_a_program_has_stages(tmp_path: Path) -> None:
    program = compiler.load("all_gather").program("all_gather")
    schedule = next(s for s in compiler.load("all_gather").schedules_of(program) if "copy_engine" in str(s))
    one = compiler.plan(program, schedule, ranks=2, dims={"Ms": 256, "K": 256}, dtype="bf16", target=MACHINE.processor)
    save(tmp_path, one, table_of([Series(one, MACHINE).launch()]))
    table = read_traces(tmp_path).table
    assert max(split(table.keys)[2]) >= len(one.bound.stages)


def test_launches_that_are_far_apart_are_refused(tmp_path: Path) -> None:
    table = table_of(pool(2)[:1])
    save(tmp_path, plan(2), table)
    save(tmp_path, plan(2), replace(table, first=2**40))
    with pytest.raises(DataError, match="apart"):
        read_traces(tmp_path)


def test_columns_are_those_that_were_encoded_or_refused() -> None:
    """Programs of a launch with one for each tile are more than SMs."""
    at = np.array([3])
    for sm in (-1, 131, 8191, 2**21 - 2):
        keys = keys_of(NUMBER["work"], at, 0, -1, sm)
        assert [int(part[0]) for part in split(keys)] == [NUMBER["work"], 3, 0, -1, sm]
    with pytest.raises(OutputError, match="no column for"):
        keys_of(NUMBER["work"], at, 0, -1, 2**21 - 1)


@pytest.mark.parametrize("more", [[], ["--plot", "ranks.svg"]])
def test_a_folder_that_is_not_there_is_named(tmp_path: Path, more: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = run_command("diagnose", "traces", *more)
    assert done.exit_code == 1 and "there is no traces" in done.output and "--traces FOLDER" in done.output


def test_a_folder_without_launches_is_refused(tmp_path: Path) -> None:
    file = save(tmp_path, plan(2), table_of(pool(2)[:1]))
    file.unlink()
    with pytest.raises(DataError, match="has no launches"):
        read_traces(tmp_path)
    (tmp_path / PROGRAM).write_text("{}")
    with pytest.raises(DataError, match="says of no launches"):
        read_traces(tmp_path)


def test_the_command_names_a_straggler_and_draws_it(tmp_path: Path) -> None:
    bad = pool(4, (deviation("link_bandwidth", 0.5, 0, peer=3),))
    rows = [*(list(pool(4)) * 5), *(list(bad) * 10)]
    save(tmp_path / "traces", plan(4), table_of(rows), machine=MACHINE)
    done = run_command("diagnose", str(tmp_path / "traces"), "--plot", str(tmp_path / "ranks.svg"))
    assert done.exit_code == 0 and done.stdout.startswith("link 0 -> 3 at ")
    assert "<svg" in (tmp_path / "ranks.svg").read_text()
    said = json.loads(run_command("diagnose", str(tmp_path / "traces"), "--json").stdout)
    assert said["ok"] and (said["causes"][0]["rank"], said["causes"][0]["peer"]) == (0, 3)
    refused = run_command("diagnose", "--plot", str(tmp_path / "ranks.svg"))
    assert refused.exit_code == 1 and "are for traces of launches" in refused.output


def test_a_run_leaves_traces_and_a_machine_is_their_norm(tmp_path: Path) -> None:
    run = ("run", "ag_gemm", "--schedule", "copy_engine", "-n", "2", "--set", "Ms=16", "N=16", "K=16", "--repeat", "2")
    for _ in range(2):
        done = run_command(*run, "--traces", str(tmp_path / "traces"))
        assert done.exit_code == 0, done.output
    found = read_traces(tmp_path / "traces")
    assert len(found.table.values) == 4 and found.programs and found.norm is None
    said = run_command("diagnose", str(tmp_path / "traces"), "--machine", "8xH200")
    assert said.exit_code == 0 and "no straggler in 4 launches of ag_gemm on 2 ranks" in said.output


def test_half_of_the_launches_may_be_of_another_machine() -> None:
    """The norm is not of the launches: what differs from it alike on all ranks is no straggler."""
    slow = pool(4, tuple(deviation("clock", 0.5, rank) for rank in range(4)))
    bad = pool(4, (*(deviation("clock", 0.5, rank) for rank in range(4)), deviation("link_bandwidth", 0.4, 2, peer=1)))
    assert not verdict(traces(4, [(slow, 400)])).causes
    assert place(verdict(traces(4, [(slow, 200), (bad, 200)])).causes[0])[:3] == ("link", 2, 1)
