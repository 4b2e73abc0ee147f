"""The timeline that viewers open: complete, in order, with arrows that lead somewhere."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from tests.simulator.cases import H200S, SHIFT, planned
from tilelink.errors import OutputError
from tilelink.simulator import Simulated, simulate
from tilelink.simulator.plot import most_at_once, save_plot
from tilelink.simulator.trace import Event, trace_text

RANKS = 3


@pytest.fixture(
    scope="module", params=[("engine", H200S), ("copy_sms", H200S), ("copy_sms", replace(H200S, fence=0.0))]
)
def result(request: pytest.FixtureRequest) -> Simulated:
    schedule, machine = request.param
    return simulate(planned(SHIFT, ranks=RANKS, schedule=schedule, M=256, N=128), machine)


@pytest.fixture(scope="module")
def events(result: Simulated) -> dict[str, list[Event]]:
    found: dict[str, list[Event]] = defaultdict(list)
    for event in json.loads(trace_text(result))["traceEvents"]:
        found[event["ph"]].append(event)
    return found


def test_ranks_are_processes_and_programs_are_tracks(result: Simulated, events: dict[str, list[Event]]) -> None:
    processes = {e["pid"]: e["args"]["name"] for e in events["M"] if e["name"] == "process_name"}
    assert processes == {rank: f"rank {rank}" for rank in range(RANKS)}
    tracks = [(e["pid"], e["tid"]) for e in events["M"] if e["name"] == "thread_name"]
    assert len(set(tracks)) == len(tracks) == len(result.plan.workers)
    assert {(e["pid"], e["tid"]) for e in events["X"]} <= set(tracks)


def test_slices_of_a_track_follow_each_other(result: Simulated, events: dict[str, list[Event]]) -> None:
    tracks: dict[tuple[int, int], list[Event]] = defaultdict(list)
    for event in events["X"]:
        assert event["dur"] >= 0
        assert 0 <= event["ts"] <= event["ts"] + event["dur"] <= result.seconds * 1e6 + 1e-6
        tracks[event["pid"], event["tid"]].append(event)
    for own in tracks.values():
        own.sort(key=lambda e: e["ts"])
        assert all(a["ts"] + a["dur"] <= b["ts"] + 1e-6 for a, b in pairwise(own))


def test_every_tile_that_computes_is_there_once(result: Simulated, events: dict[str, list[Event]]) -> None:
    tiles = [(e["pid"], e["args"]["tile"]) for e in events["X"] if e["cat"] == "compute"]
    assert len(tiles) == len(set(tiles)) == result.plan.bound.stages["add"].total * RANKS
    first = next(e for e in events["X"] if e["cat"] == "compute" and e["args"]["tile"] == 1)
    assert (first["args"]["i"], first["args"]["j"]) == (0, 1)


def test_arrows_lead_from_the_notify_to_the_wait_of_its_neighbour(events: dict[str, list[Event]]) -> None:
    starts, ends = ({e["id"]: e for e in events[phase]} for phase in ("s", "f"))
    assert starts.keys() == ends.keys()
    assert starts
    waits = {(e["pid"], e["tid"], round(e["ts"] + e["dur"], 6)) for e in events["X"] if e["cat"] == "wait"}
    for number, end in ends.items():
        start = starts[number]
        assert end["pid"] == (start["pid"] + 1) % RANKS
        assert end["ts"] - start["ts"] >= H200S.signal_latency * 1e6 - 1e-6
        assert (end["pid"], end["tid"], round(end["ts"], 6)) in waits
        assert any(
            e["cat"] == "notify" and (e["pid"], e["tid"]) == (start["pid"], start["tid"]) and e["ts"] == start["ts"]
            for e in events["X"]
        )


def test_transfers_begin_and_end_on_both_links(result: Simulated, events: dict[str, list[Event]]) -> None:
    begins, ends = ({(e["pid"], e["cat"], e["id"]): e["ts"] for e in events[phase]} for phase in ("b", "e"))
    assert begins.keys() == ends.keys()
    assert all(begins[key] < ends[key] for key in begins)
    assert len(begins) == 2 * len(result.plan.transfers.task)


def test_counters_end_at_nothing(result: Simulated, events: dict[str, list[Event]]) -> None:
    last = {(e["pid"], e["name"]): e["args"] for e in events["C"]}
    assert all(args == {"compute": 0, "wait": 0} for args in last.values())
    adding = [e["args"] for e in events["C"] if e["name"] == "add programs"]
    assert max(args["compute"] + args["wait"] for args in adding) == result.plan.bound.kernels[1].programs
    assert max(args["compute"] for args in adding) > 0


def test_the_picture_is_drawn_or_refused(result: Simulated, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    save_plot(result, tmp_path / "out.png")
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(OutputError, match="cannot be drawn"):
        save_plot(result, tmp_path / "out.nothing")
    with pytest.raises(OutputError, match="Format 'a name without ending' is not supported"):
        save_plot(result, tmp_path / "out")
    with pytest.raises(OutputError, match=r"nowhere/out\.png cannot be written: No such file or directory"):
        save_plot(result, tmp_path / "nowhere" / "out.png")
    assert [one.name for one in tmp_path.iterdir()] == ["out.png"]


def test_kernels_that_follow_one_another_fill_the_same_sms_of_a_plot() -> None:
    """Two kernels of four programs on four SMs: at most four run at the same time, though a rank has eight."""
    text = """program twice(M, N):
    x : in    [M, N]
    h : local [M, N]
    y : out   [M, N]

    compute first(i: M, j: N):
        h[i, j] = x[i, j] + 1
        producer_tile_notify(h[i, j])

    compute second(i: M, j: N):
        consumer_tile_wait(h[i, j])
        y[i, j] = h[i, j] + 1

schedule s for twice:
    first on sm, tile(i=16, j=64)
    second on sm, tile(i=16, j=64)
"""
    found = simulate(planned(text, ranks=1, sms=4, M=64, N=64), replace(H200S, kernel_gap=0.0))
    assert len(found.plan.workers) == 8
    assert most_at_once(found, np.ones(8, bool)) == 4
    assert most_at_once(found, np.zeros(8, bool)) == 1, "no programs: nothing is divided by zero"
