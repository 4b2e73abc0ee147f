"""From made-up times to a machine, the programs that are timed, and the command where there is no GPU."""

import itertools
import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tilelink import compiler
from tilelink.calibration import Timings, fit, programs
from tilelink.cli import app, gpus
from tilelink.lowering.clauses.tma_copy import SHARED
from tilelink.simulator import simulate
from tilelink.simulator.machine import Machine, load_machine, save_machine

BASE = load_machine("8xH200")
START, OVERHEAD = 9e-6, 1.5e-6
RATES = {(128, 256): 8e14, (64, 128): 5e14}
MIB = 2.0**20
GAIN = 0.9e-6
BETWEEN = 0.4e-6
"""Seconds between the tiles of products with roles."""
HOP = {
    field: 4.3e-6 * getattr(BASE, field) / (BASE.fence + BASE.signal_latency)
    for field in ("signal_latency", "fence", "local_signal_latency")
}
PROGRAMS = programs.BULK_SMS * programs.BULK_PROGRAMS
BULK_S = {size: (took + HOP["fence"]) / (size * PROGRAMS) + 2 / 4e12 for size, took in ((16384, 6e-6), (131072, 15e-6))}


def products(sms: int = 100) -> list[list[float]]:
    return [
        [rows, columns, waves, inner, START + waves * (OVERHEAD + 2 * rows * columns * sms * inner / rate)]
        for (rows, columns), rate in RATES.items()
        for waves, inner in ((2, 1000), (2, 4000), (5, 1000))
    ]


def moved(few: float, many: float, extra: float) -> list[list[float]]:
    """8 programs at `few` bytes a second together, 64 at `many`, and `extra` seconds for each byte besides."""
    sizes = (64 * MIB, 128 * MIB)
    return [[n, size, 2e-5 + size / rate + size * extra] for n, rate in ((8, few), (64, many)) for size in sizes]


def timings(**failures: str) -> Timings:
    rows: dict[str, list[list[float]]] = {
        "products": products(),
        "local": [[size, 4e-6 + 2 * size / 4e12] for size in (128 * MIB, 512 * MIB)],
        "copies": [
            *([1, size, 1e-5 + size / 4e11] for size in (64 * MIB, 256 * MIB)),
            *([count, 4096, 1.2e-5 + (count - 1) * 3e-6] for count in (1, 33)),
        ],
        "push": moved(1.6e11, 3.6e11, 2 / 4e12),
        "pull": moved(0.8e11, 3.0e11, 0.0),
        "bulk": [[tile, size, 2e-5 + size * s] for tile, s in BULK_S.items() for size in (64 * MIB, 128 * MIB)],
        "flat": [[flat, waves, START + waves * (4e-5 - flat * GAIN)] for flat in (False, True) for waves in (2, 6)],
        "roles": [
            [roles, waves, START + waves * (4e-5 - roles * (OVERHEAD - BETWEEN))]
            for roles in (False, True)
            for waves in (2, 6)
        ],
        "hops": [[hops, 2e-5 + hops * 4.3e-6] for hops in (8, 72)],
        "chain": [[kernels, 8e-6 + (kernels - 1) * 2e-6] for kernels in (1, 5)],
    }
    return Timings(
        gpu="a GPU", target="sm_90", sms=100, ranks=4, versions="torch 1",
        rows={name: own for name, own in rows.items() if name not in failures}, failures=failures,
    )  # fmt: skip


EXPECTED = {
    "sms": 100, "matmul_flops": 8e14, "tile_overhead": OVERHEAD, "memory_bandwidth": 4e12, "link_bandwidth": 4e11,
    "copy_start": 1.2e-5, "copy_call": 3e-6, "sm_push_rate": 2e10, "sm_push_efficiency": 0.9, "sm_pull_rate": 1e10,
    "sm_pull_efficiency": 0.75, **HOP, "copy_signal": 3e-6, "flat_gain": GAIN,
    "roles_overhead": BETWEEN,
    "sm_bulk_rate": 131072 * programs.BULK_PROGRAMS / 15e-6,
    "bulk_latency": 6e-6 / (1.5 + 16384 * programs.BULK_PROGRAMS / SHARED),
    "kernel_start": 8e-6, "kernel_gap": 2e-6,
}  # fmt: skip


def test_times_give_back_the_numbers_that_they_were_made_of() -> None:
    found = fit(timings(), BASE, name="mine")
    for field, value in EXPECTED.items():
        assert getattr(found, field) == pytest.approx(value), field
        assert found.sources[field].startswith(("measured: ", "derived: ")), field
    assert dict(found.tile_flops) == pytest.approx({f"{r}x{c}": rate for (r, c), rate in RATES.items()})
    assert found.name == "mine" and found.vector_flops == BASE.vector_flops
    assert found.sources["vector_flops"] == BASE.sources["vector_flops"]


def test_the_time_between_tiles_is_that_of_large_ones_though_smaller_ones_are_the_fastest() -> None:
    rows = [row for row in products() if row[:2] == [64, 128]]
    assert rows
    given = timings()
    given["rows"]["products"] = rows
    found = fit(given, BASE, name="mine")
    assert found.tile_overhead == pytest.approx(GAIN + 4 * (OVERHEAD - GAIN))


def test_what_failed_is_as_before_and_its_source_says_why() -> None:
    found = fit(timings(push="RankError: there is one rank"), BASE, name="mine")
    for field in ("sm_push_rate", "sm_push_efficiency"):
        assert getattr(found, field) == getattr(BASE, field)
        assert found.sources[field] == f"{BASE.sources[field]}; not measured: RankError: there is one rank"
    assert found.sm_pull_rate == pytest.approx(1e10)


@pytest.mark.parametrize(
    ("name", "rows", "field", "says"),
    [
        ("chain", [[1, 8e-6], [5, 7e-6]], "kernel_gap", "kernel_gap came out as -2.5e-07"),
        ("local", [[1e6, 1e-5]], "memory_bandwidth", "too few times"),
        ("hops", [], "fence", "there are no measured times"),
        ("products", products()[:2], "tile_flops", "too few times of 128x256"),
        ("pull", moved(1e11, 1e11, 0)[:2], "sm_pull_rate", "too few times"),
        ("copies", [[1, 64 * MIB, 1e-4], [1, 64 * MIB, 1e-4]], "link_bandwidth", "too few times"),
        ("flat", [[False, 2, 1e-4], [False, 6, 3e-4]], "flat_gain", "too few times"),
        (
            "roles",
            [[False, 2, 1e-4], [False, 6, 2e-4], [True, 2, 1e-4], [True, 6, 1.2e-4]],
            "roles_overhead",
            "came out",
        ),
        ("bulk", [[16384, 64 * MIB, 1e-3], [16384, 128 * MIB, 2e-3]], "bulk_latency", "too few times"),
    ],
)
def test_times_that_make_no_sense_change_nothing(name: str, rows: list[list[float]], field: str, says: str) -> None:
    given = timings()
    given["rows"][name] = rows
    found = fit(given, BASE, name="mine")
    assert getattr(found, field) == getattr(BASE, field)
    assert says in found.sources[field]


def predicted(text: str, **dims: int) -> float:
    module = compiler.parse(text)
    program, schedule = module.programs[0], module.schedules[0]
    plan = compiler.plan(program, schedule, ranks=2, dims=dims, dtype="bf16", target="sm_90")
    return simulate(plan, BASE).seconds


def test_what_the_model_predicts_of_the_programs_gives_back_its_own_numbers() -> None:
    rows, columns, warps, stages = programs.FLAT_TILE
    own: dict[str, list[list[float]]] = {"flat": [], "roles": [], "bulk": []}
    for (name, clause), said, waves in itertools.product(
        (("flat", ", flatten"), ("roles", programs.ROLES)), (False, True), programs.FLAT_WAVES
    ):
        text = programs.PRODUCT.format(rows=rows, columns=columns, warps=warps, stages=stages, more=clause * said)
        all_rows, all_columns = programs.product_sizes(BASE.sms, rows, columns, waves)
        seconds = predicted(text, M=all_rows, N=all_columns, K=programs.FLAT_INNER)
        own[name].append([said, waves, seconds])
    for high, moved in itertools.product(programs.BULK_ROWS, programs.MOVED_ROWS):
        text = programs.BULK.format(sms=programs.BULK_SMS, programs=programs.BULK_PROGRAMS, rows=high, columns=512)
        own["bulk"].append([2 * high * 512, 2 * moved * 4096, predicted(text, M=moved, K=4096)])
    given = timings()
    given["rows"], given["sms"] = own, BASE.sms
    found = fit(given, BASE, name="mine")
    for field in ("flat_gain", "roles_overhead", "sm_bulk_rate", "bulk_latency"):
        assert found.sources[field].startswith(("measured: ", "derived: ")), found.sources[field]
        assert getattr(found, field) == pytest.approx(getattr(BASE, field), rel=0.02), field


def test_links_are_never_beaten() -> None:
    given = timings()
    given["rows"]["pull"] = moved(1e11, 4.4e11, 0.0)
    assert fit(given, BASE, name="mine").sm_pull_efficiency == 1.0


def test_a_measured_machine_comes_back_from_its_file(tmp_path: Path) -> None:
    found = fit(timings(hops="TileLinkError: late"), BASE, name="mine")
    save_machine(found, tmp_path / "m.json")
    again = load_machine(tmp_path / "m.json")
    assert again == found and again.sources["fence"].endswith("not measured: TileLinkError: late")


@pytest.mark.parametrize("ranks", [2, 4])
def test_the_programs_are_safe_and_as_large_as_meant(ranks: int) -> None:
    bulk = programs.BULK.format(sms=4, programs=4, rows=16, columns=512)
    texts = [programs.PUSH.format(programs=8), programs.PULL.format(programs=8), programs.HOP, programs.chain(3), bulk]
    sizes = [{"M": 8192, "K": 4096}, {"M": 8192, "K": 4096}, {"S": 8, "M": 256}, {"M": 256}, {"M": 512, "K": 4096}]
    kernels: list[list[int]] = []
    for text, dims in zip(texts, sizes, strict=True):
        module = compiler.parse(text)
        plan = compiler.plan(
            module.programs[0], module.schedules[0], ranks=ranks, dims=dims, dtype="bf16", target="sm_90"
        )
        kernels.append([k.programs for k in plan.bound.kernels])
    assert kernels == [[8], [8], [1, 1], [1, 1, 1], [16]]


@pytest.mark.parametrize("sms", [132, 108, 78, 7])
def test_every_sm_has_as_many_tiles(sms: int) -> None:
    for rows, columns, _, _ in programs.PRODUCT_TILES:
        m, n = programs.product_sizes(sms, rows, columns, 3)
        assert m % rows == n % columns == 0 and m // rows * (n // columns) == 3 * sms


# The command -------------------------------------------------------------------------------------------------


def test_without_gpus_the_command_says_so(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["calibrate", "--ranks", "2", "--out", str(tmp_path / "m.json")])
    assert done.exit_code == 1 and "2 ranks need 2 GPUs" in done.output and not list(tmp_path.iterdir())


def test_a_folder_that_is_not_there_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["calibrate", "--out", str(tmp_path / "deep" / "m.json"), "--json"])
    assert done.exit_code == 1 and json.loads(done.stdout)["mistakes"][0]["error"] == "OutputError"


@pytest.mark.parametrize("as_json", [False, True])
def test_the_command_writes_what_the_ranks_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, as_json: bool
) -> None:
    asked: list[object] = []

    def answer(request: object, ranks: int) -> dict[str, object]:
        asked.append((request, ranks))
        return json.loads(json.dumps(timings(hops="late")))

    monkeypatch.setattr(gpus, "require_gpus", lambda *_, **__: None)
    monkeypatch.setattr(gpus, "on_gpus", answer)
    out, raw = tmp_path / "m.json", tmp_path / "t.json"
    command = ["calibrate", "--ranks", "4", "--out", str(out), "--timings", str(raw), "--budget", "20"]
    done = CliRunner().invoke(app, [*command, *(["--json"] if as_json else [])])
    assert done.exit_code == 0, done.output
    assert asked == [({"what": "calibrate", "budget": 20.0}, 4)]
    found: Machine = load_machine(out)
    assert found.name == "4xa-GPU" and found.link_bandwidth == pytest.approx(4e11)
    assert json.loads(raw.read_text())["rows"]["chain"] == timings()["rows"]["chain"]
    if as_json:
        assert json.loads(done.stdout)["machine"]["fence"]["source"].endswith("not measured: late")
    else:
        assert "link_bandwidth" in done.stdout and "4 x a GPU" in done.stdout


# A rank ------------------------------------------------------------------------------------------------------

RANK = """
import json, os, time
import torch, torch.distributed as dist
from tests.unit.test_benchmarks import Clock
from tilelink.calibration import measure as m, programs
from tilelink.target import target

class Kernel:
    def __init__(self, clock, text, dims):
        self.text, self.dims, self.clock = text, dims, clock
        module = m.compiler.parse(text)
        m.compiler.plan(module.programs[0], module.schedules[0], ranks=4, dims=dims, dtype="bf16", target="sm_90")
    def buffer(self, name):
        return self.clock.random(self.dims["M"], self.dims["K"])
    def __call__(self, inputs, out):
        if "hops" in self.text:
            raise RuntimeError("no hops\\nhere")
        time.sleep(1e-3)

def clock(self, group):
    self.group, self.rank, self.ranks, self.device = group, 0, 1, torch.device("cpu")
    self._flushed = torch.zeros(1)

torch.cuda.Event, torch.cuda.synchronize, torch.cuda._sleep = Clock, lambda *_: None, lambda *_: None
torch.cuda.get_device_name = lambda: "NVIDIA a GPU"
m._Clock.compiled = lambda self, text, dims: Kernel(self, text, dims)
m._Clock.__init__, m.current_target = clock, lambda: target("sm_90")
m.LOCAL_BYTES, programs.MOVED_ROWS = (1 << 16, 1 << 20), (64, 128)
programs.PRODUCT_TILES, programs.WAVES_AND_INNER = programs.PRODUCT_TILES[-1:], ((1, 64), (1, 128), (2, 64))
programs.MOVED_COLUMNS, programs.FLAT_TILE, programs.FLAT_INNER = 64, programs.PRODUCT_TILES[-1], 64
programs.ROLES_TILE = (128, 128, 8, 4)
for between, budget in ((frozenset(), 60), (m.BETWEEN_RANKS, 60), (m.BETWEEN_RANKS, 0)):
    if os.fork():
        assert os.wait()[1] == 0
        continue
    m.BETWEEN_RANKS = between
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    print(json.dumps(m.measure(dist.group.WORLD, budget)), flush=True)
    os._exit(0)
"""


@cache
def _measured() -> tuple[Timings, ...]:
    """What a rank measures as if there were others, alone, and without time: of one process that forks each."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", RANK], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    every = tuple(json.loads(line) for line in done.stdout.splitlines())
    assert len(every) == 3
    return every


def test_a_rank_measures_what_it_can_and_says_what_it_cannot() -> None:
    found, _, _ = _measured()
    assert found["failures"].keys() == {"copies", "hops"} and found["failures"]["hops"] == "RuntimeError: no hops"
    assert (found["gpu"], found["target"], found["sms"], found["ranks"]) == ("NVIDIA a GPU", "sm_90", 132, 1)
    sizes = {name: [row[:-1] for row in rows] for name, rows in found["rows"].items()}
    assert sizes == {
        "local": [[1 << 16], [1 << 20]],
        "chain": [[1], [5]],
        "push": [[n, 2 * rows * 64] for n in programs.MOVERS for rows in (64, 128)],
        "pull": [[n, 2 * rows * 64] for n in programs.MOVERS for rows in (64, 128)],
        "bulk": [[2 * tile * 512, 2 * rows * 64] for tile in programs.BULK_ROWS for rows in (64, 128)],
        "flat": [[flat, waves] for flat in (False, True) for waves in (2, 6)],
        "roles": [[roles, waves] for roles in (False, True) for waves in (2, 6)],
        "products": [[64, 128, *one] for one in ((1, 64), (1, 128), (2, 64))],
    }
    assert all(row[-1] > 0 for rows in found["rows"].values() for row in rows)
    fit(found, BASE, name="mine")


def test_one_rank_alone_and_a_spent_budget_are_reasons() -> None:
    _, found, late = _measured()
    assert {n for n, r in found["failures"].items() if r == "RankError: there is one rank"} == {
        "copies", "hops", "push", "pull", "bulk",
    }  # fmt: skip
    assert not late["rows"] and set(late["failures"].values()) == {"0 s were over"}
