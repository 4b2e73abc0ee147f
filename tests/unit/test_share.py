"""Programs of one rank's share, run by two: they do what the program does on many ranks, tile for tile."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch

from benchmarks import tp
from benchmarks.baselines import Problem
from benchmarks.share import Share, arguments, main
from benchmarks.shares import share, standing_for
from tests.compiler.library import fitted
from tests.tiers import one_in, thorough
from tilelink import compiler
from tilelink.frontend.schedule_parser import parse_schedule
from tilelink.ir.program import Program
from tilelink.lowering.bind import bind
from tilelink.planning.plan import Plan, make_plan
from tilelink.reference import run
from tilelink.scheduling.schedule import Schedule
from tilelink.simulator import simulate
from tilelink.simulator.machine import load_machine
from tilelink.target import target
from tilelink.verifier import verify

SIZES = {"Ms": 256, "M": 1024, "N": 512, "K": 512}
RANKS, PAIR = 4, 2
FILES = ("ag_gemm", "gemm_rs", "gemm_ar", "all_gather", "reduce_scatter", "ag_gemm_epilogues")


def cases() -> list[tuple[Program, Schedule]]:
    modules = [compiler.load(name) for name in FILES]
    pairs = [(p, s) for module in modules for p in module.programs for s in module.schedules_of(p)]
    # A stage of few rows sends to the ranks in its own order, which a share of many ranks does not have.
    return [(p, s) for p, s in pairs if s.name.startswith("h200") and p.name != "gemm_ar_one_shot"]


def name(case: Any) -> str:
    return case.name if isinstance(case, Program | Schedule) else str(case)


def plan(program: Program, schedule: Schedule, ranks: int, sizes: dict[str, int] = SIZES) -> Plan:
    numbers = fitted((program, schedule), {p.name: sizes[p.name] for p in program.params})
    return make_plan(bind(program, schedule, numbers, ranks, target("sm_90"), "bf16"))


def work(plan: Plan) -> dict[str, Any]:
    """What a rank does: programs, tiles, elements moved, and how often it waits and notifies by each statement."""
    ranks, bound = plan.bound.ranks, plan.bound
    tiles = {name: stage.total for name, stage in bound.stages.items()}
    kernels = [(k.name, k.programs, k.programs_per_cta, k.num_warps, k.loops) for k in bound.kernels]
    signals = Counter(zip(plan.signals.kind.tolist(), plan.signals.statement.tolist(), strict=True))
    moved = Counter[int]()
    for tensor, elements in zip(plan.transfers.tensor.tolist(), plan.transfers.elements.tolist(), strict=True):
        moved[tensor] += elements
    return {
        "tiles": tiles, "kernels": kernels, "moved": {t: n / ranks for t, n in moved.items()},
        "signals": {key: n / ranks for key, n in signals.items()},
    }  # fmt: skip


@thorough(unless=lambda program, schedule: one_in(6, program.name, schedule.name))
@pytest.mark.parametrize(("program", "schedule"), cases(), ids=name)
def test_each_of_two_ranks_does_what_each_of_many_does(program: Program, schedule: Schedule) -> None:
    """And each of three, who stand for the others by turns."""
    wanted = work(plan(program, schedule, RANKS))
    for gpus in (PAIR, 3):
        shared = plan(*share(program, schedule, RANKS, gpus), gpus)
        verify(shared)
        assert work(shared) == wanted


def test_who_stands_for_whom() -> None:
    assert [standing_for(away, 2) for away in range(8)] == [0, 1, 1, 1, 1, 1, 1, 1]
    assert [standing_for(away, 4) for away in range(8)] == [0, 1, 2, 3, 1, 2, 3, 1]
    assert [standing_for(away, 8) for away in range(8)] == [*range(8)]


@pytest.mark.parametrize(
    ("file", "program", "schedule"),
    [
        ("ag_gemm", "ag_gemm_in_place", "h200_slices"), ("ag_gemm", "ag_gemm_ring", "h200_slices"),
        ("ag_gemm", "ag_gemm_in_place", "h200"), ("gemm_rs", "gemm_rs_local_last", "h200_copy_sms"),
        ("gemm_rs", "gemm_rs_ring_carried", "h200_copy_sms"),
    ],
)  # fmt: skip
def test_it_is_predicted_to_take_as_long(file: str, program: str, schedule: str) -> None:
    module, machine = compiler.load(file), load_machine("8xH200")
    chosen = module.program(program)
    case = chosen, module.schedule(schedule, chosen)
    sizes = {"Ms": 1024, "N": 1376, "K": 4096} if file == "ag_gemm" else {"Ms": 1024, "N": 4096, "K": 1376}
    whole = simulate(plan(*case, 8, sizes), machine).seconds
    assert simulate(plan(*share(*case, 8), PAIR, sizes), machine).seconds == pytest.approx(whole, rel=0.01)


class Few(Share):
    """What one of few ranks expects, without GPUs."""

    def __init__(self, problem: Problem, rank: int, given: list[dict[str, torch.Tensor]]) -> None:
        self.problem, self.gathers, self.dtype = problem, problem.op == "ag_gemm", torch.float32
        self.session: Any = type("Session", (), {"rank": rank, "ranks": len(given)})()
        self.every_x = torch.stack([one["x"].reshape(-1, problem.K) for one in given])
        self.every_w = torch.stack([one["w"] for one in given])


def products() -> list[tuple[Program, Schedule]]:
    """What the benchmark measures."""
    cases = [case for op in ("ag_gemm", "gemm_rs") for case in tp.choices(op, None)]
    return [(program, schedule) for program, schedule in cases if schedule is not None]


@thorough(unless=lambda gpus: gpus == 2)
@pytest.mark.parametrize("gpus", [2, 3])
@pytest.mark.parametrize(("program", "schedule"), products(), ids=name)
def test_the_expected_results_are_those_of_the_shared_program(program: Program, schedule: Schedule, gpus: int) -> None:
    made, _ = share(program, schedule, RANKS, gpus)
    problem = Problem(
        op="ag_gemm" if program.name.startswith("ag") else "gemm_rs",
        shape="tiny",
        ranks=RANKS,
        S=RANKS * 6,
        H=8,
        I=RANKS * 5,
    )
    numbers = {p.name: problem.dims[p.name] for p in made.params}
    random = torch.Generator().manual_seed(3)
    shape = [problem.shard, problem.K] if problem.op == "ag_gemm" else [RANKS, problem.shard, problem.K]
    given = [
        {"x": torch.randn(shape, generator=random), "w": torch.randn(problem.N, problem.K, generator=random)}
        for _ in range(gpus)
    ]
    found = run(made, given, ranks=gpus, dims=numbers)
    for rank in range(gpus):
        one = Few(problem, rank, given)
        got = found[rank]["y"].reshape(-1, problem.N)
        assert torch.allclose(got, one.expected(got), atol=1e-4)
        assert not torch.allclose(got + 1, one.expected(got + 1), atol=1e-4)


TWICE = "if rank == 0:\n            y[i, j] = x[i, j]\n        else:\n            y[i, j] = x[i, j] * 2.0"
REFUSED = {
    "only one rank": (TWICE, "same on all ranks"),
    "the third one": ("tile_push_data(s[rank, i, j] @ 2, x[i, j])", "same on all ranks"),
    "a fixed place": ("tile_push_data(s[2, i, j] @ (rank + 1), x[i, j])", "same on all ranks"),
    "all but the last": (TWICE.replace("rank == 0", "rank // 3 == 0"), "same on all ranks"),
    "the first ones": (TWICE.replace("rank == 0", "rank < 3"), "compares the numbers of ranks"),
    "a part of a dimension": ("y[i, j] = z[rank * M + i, j]", "by the number of a rank"),
    "a table": (TWICE.replace("rank == 0", "t[rank] == 0"), "looks ranks up"),
    "its number": ("y[i, j] = x[i, j] * rank", "computes with the number of its rank"),
}
TEXT = """program odd(M, N):
    x : in        [M, N]
    z : in        [ranks * M, N]
    t : table     [ranks] < M
    s : symmetric [ranks, M, N]
    y : out       [M, N]

    compute all(i: M, j: N):
        {}
"""


@pytest.mark.parametrize("case", REFUSED)
def test_programs_that_are_not_the_same_on_all_ranks(case: str) -> None:
    body, why = REFUSED[case]
    program = compiler.parse(TEXT.format(body), "odd.tl").program()
    with pytest.raises(ValueError, match=why):
        share(program, parse_schedule("schedule one for odd:\n    all on sm"), RANKS)


@pytest.mark.parametrize(
    "order",
    ["order(s, i)", "order(s = rank xor)", "order(i)", "order(s = 1 step +1)", "order(s = 2 * rank step +1)",
     "order(s = rank // 2 step +1)", "order(s = rank step +1, i = rank step +1)", ""],
)  # fmt: skip
def test_orders_that_do_not_begin_with_the_own_rank(order: str) -> None:
    module = compiler.load("ag_gemm")
    program = module.program("ag_gemm")
    text = str(module.schedule("h200", program))
    share(program, parse_schedule(text), RANKS)  # as it is, it is not refused
    lines = [f"    gemm on sm, {order}".rstrip(", ") if "gemm on" in line else line for line in text.splitlines()]
    with pytest.raises(ValueError, match=r"the order of \w in gemm"):
        share(program, parse_schedule("\n".join(lines)), RANKS)
    without = [line for line in text.splitlines() if "gemm on" not in line]
    with pytest.raises(ValueError, match="the order of s in gemm"):
        share(program, parse_schedule("\n".join(without)), RANKS)


def test_what_is_asked_for(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert main(["--of", "8"]) == 2 and "torchrun --nproc-per-node 2" in capsys.readouterr().err
    for wrong in (["--of", "1"], ["--op", "gemm_ar"]):
        with pytest.raises(SystemExit):
            arguments(wrong)
    assert arguments([]).of == 8
