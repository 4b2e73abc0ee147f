# pyright: basic
"""The benchmark of mixtures of experts: its routings, and whole runs on CPU ranks with a clock of the host."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import weakref
from functools import partial
from pathlib import Path
from unittest.mock import MagicMock

import pytest
import torch
import torch.distributed as dist

from benchmarks import baselines, measure
from tests.unit.test_benchmarks import Clock
from tests.unit.two_ranks import ROOT, free_port
from tilelink.runtime.cuda import timing

CASES = ("tiny:6+5:zipf", "tiny/tp:8:heavy")


def shares(routing: str) -> list[float]:
    """Parts of the tokens that each expert has, from the most to the least."""
    from benchmarks.experts import drawn

    ids = drawn(16, 4, 4000, routing, seed=1, own=0)
    assert all(len(set(one)) == 4 for one in ids.tolist())
    return sorted((torch.bincount(ids.flatten(), minlength=16) / 4000).tolist(), reverse=True)


def test_routings_are_as_they_say() -> None:
    uniform, zipf, heavy = (shares(routing) for routing in ("uniform", "zipf", "heavy"))
    assert max(uniform) < 0.28 and min(uniform) > 0.22
    assert zipf[0] > 0.8 and zipf[-1] < 0.1
    assert heavy[0] == pytest.approx(0.4, abs=0.03) and heavy[1] < 0.28


def test_ranks_draw_other_tokens_of_the_same_popularity() -> None:
    from benchmarks.experts import drawn

    one, other = (drawn(16, 4, 4000, "zipf", seed=1, own=rank) for rank in (0, 1))
    assert not torch.equal(one, other)
    assert one.flatten().mode().values == other.flatten().mode().values
    assert one.flatten().mode().values != drawn(16, 4, 4000, "zipf", seed=3, own=0).flatten().mode().values


def test_a_graph_keeps_what_it_reads_and_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "cuda", MagicMock())
    operand = torch.ones(2)
    alive = weakref.ref(operand)
    replay = baselines.captured(partial(torch.sum, operand))
    del operand
    assert replay() == 2 and alive() is not None
    del replay
    assert alive() is None


def test_what_is_measured_alone_is_in_the_library() -> None:
    from benchmarks import experts

    own, library = experts.COMBINE.read_text(), experts.FILE.read_text()
    stages, clauses = own[own.index("    compute") : own.index("schedule")].rstrip(), own.split("on sm_90:\n")[1]
    assert stages in library and all(line in library for line in clauses.splitlines())


def test_a_report_says_how_far_losses_are_apart() -> None:
    from benchmarks import experts

    cases = [
        {"name": f"losses:{seed}", "losses": [[2.0, 1.5]] * 3, "apart": [1e-5, (1 + seed) * 1e-5]} for seed in (0, 1)
    ]
    text = "\n".join(experts.report({"cases": cases, "machine": {"gpu": "G"}, "ranks": 2}, "trained"))
    assert "| losses:1 | 2.0000 | 1.5000 | 1.5000 | 1.0e-05 | 2.0e-05 |" in text
    assert "All seeds: two orders 1.0e-05, ours 1.5e-05." in text and "Microseconds" not in text


def run(arguments: list[str]) -> None:
    """One rank of a small run of some cases, with kernels in Triton's interpreter."""
    from benchmarks import experts

    torch.cuda.Event = Clock  # type: ignore[assignment,misc]
    torch.cuda.synchronize = lambda *_: None
    torch.cuda._sleep = lambda *_: None
    timing.FLUSH_BYTES, experts.FEW, experts.POOL, experts.CHECKED = 1 << 10, 0, 2, 4
    experts.LAYERS["tiny"] = (4, 2, 32, 48)
    dist.init_process_group("gloo")
    assert dist.group.WORLD
    session = measure.Session(dist.group.WORLD, measure.Watchdog(120, dist.get_rank()), torch.device("cpu"))
    args = experts.arguments(["--samples", "1", "--warmups", "0", "--graded", "--parts", "--cases", ",".join(CASES)])
    found = [experts.measured(experts.Case(session, name), args) for name in args.cases]
    if session.rank == 0:
        machine = {"gpu": "G", "driver": "1", "torch": "2", "triton": "3", "nccl": "4"}
        text = experts.report({"cases": found, "machine": machine, "ranks": 2, "samples": 2}, "tiny")
        Path(arguments[0]).write_text(json.dumps([found, text]))
    dist.barrier()
    os._exit(0)


@pytest.mark.thorough
def test_a_run_measures_unfused_layers_and_their_gradients(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    more = {"TRITON_INTERPRET": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", __name__, str(out)],
            env={**os.environ, **more, "RANK": str(rank), "LOCAL_RANK": str(rank)}, cwd=ROOT,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    said = [rank.communicate(timeout=400)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], said
    found, text = json.loads(out.read_text())
    for case in found:
        rows = {row["name"]: row for row in case["rows"]}
        divided = "/tp" in case["name"]
        for name in ("alone", "exchange", "NCCL known", *(() if divided else ("NCCL found",))):
            assert rows[name]["failure"] is None
            assert rows[name]["us"] > 0
            assert (rows[name]["error"] or 0.0) < measure.ALLOWED
        assert "NCCL found" not in rows or not divided
        for part in ("dispatch", "combine") if divided else ():
            assert rows[part]["failure"] is None and rows[part]["error"] < measure.ALLOWED
        for way in (", with gradients", ", backward"):
            for of in ("NCCL known", "ours"):
                assert rows[of + way]["failure"] is None
                assert rows[of + way]["error"] < 2e-2
    assert found[0]["work"] > 0
    assert sum(line.startswith("| tiny") for line in text) == 6
    assert text[-2].startswith("In the geometric mean ")


if __name__ == "__main__":
    run(sys.argv[1:])
