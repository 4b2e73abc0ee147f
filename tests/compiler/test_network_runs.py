"""Programs on several nodes on CPU ranks: right with late and reordered puts, and wrong where a rule is broken."""

from __future__ import annotations

from itertools import cycle
from typing import Any

import numpy as np
import pytest
import torch

from tests.tiers import one_in, thorough
from tests.traces import differences
from tests.verifier.test_network import ALONE, COMPUTED, DIMS, FENCE, PUT_KEPT, QUIET, SIGNAL, Case, edited, put
from tilelink import compile, load, parse, plan
from tilelink.backend.emit import emit
from tilelink.compiler.cpu import Kernel
from tilelink.compiler.modules import Module
from tilelink.planning.plan import make_plan
from tilelink.reference import trial

SIZES = {"M": 25, "Ms": 25, "N": 36, "K": 20}
LIBRARY = [
    ("two_level_all_gather", "copy_sms"), ("two_level_ag_gemm", "copy_sms"), ("two_level_reduce_scatter", "copy_sms"),
    ("two_level_gemm_rs", "copy_sms"), ("all_gather", "pull"), ("all_gather_ring", "ring"), ("ag_gemm", None),
    ("all_reduce_two_shot_pushed", "large"), ("gemm_rs_local_last", None), ("reduce_scatter_pushed", "small"),
    ("two_level_all_reduce", "copy_sms"), ("two_level_all_to_all", "messages"),
]  # fmt: skip


def inputs_of(case: Kernel, launches: int) -> Any:
    b = case.bound
    return trial.random_inputs(b.source, ranks=b.ranks, dims=b.numbers, dtype="f32", launches=launches)


def worst(kernel: Kernel, seed: int, launches: int = 3, reference: Kernel | None = None, inputs: Any = None) -> float:
    """Return the largest error of any output, with random delays."""
    inputs = inputs or inputs_of(kernel, launches)
    result = kernel.run(inputs, seed=seed, max_delay_s=0.002, deadline_s=10)
    errors: list[float] = []
    for given, outputs in zip(inputs, result.outputs, strict=True):
        expected = (reference or kernel).reference(given)
        names = outputs[0]
        errors += [trial.relative_error([o[n] for o in outputs], [e[n] for e in expected]) for n in names]
    return max(errors)


@thorough(unless=lambda case, ranks: one_in(6, *case, ranks))
@pytest.mark.parametrize(("case", "ranks"), [*zip(LIBRARY, cycle((4, 2))), *zip(LIBRARY[::3], cycle((2, 4)))], ids=str)
def test_the_library_is_right_between_two_nodes(case: tuple[str, str | None], ranks: int) -> None:
    name, schedule = case
    module = load(name)
    program = module.program(name)
    dims = {p.name: SIZES.get(p.name, ranks // 2) for p in program.params}
    chosen = module.schedule(schedule, program) if schedule else None
    kernel = compile(program, chosen, ranks=ranks, nodes=2, dims=dims)
    assert "dl.put" in kernel.source or "dl.get" in kernel.source
    assert worst(kernel, seed=ranks) < 1e-4


def test_two_nodes_of_three_ranks() -> None:
    program = load("two_level_all_gather").program()
    dims = {"Ms": 25, "K": 20, "g": 3}
    assert worst(compile(program, ranks=6, nodes=2, dims=dims), seed=5) == 0


RAGGED = """program columns(M = 9, C = 24):
    n  : in [ranks] <= C
    x  : in [ranks, M, C]
    ns : symmetric [ranks] <= C
    h  : symmetric [ranks, M, C]
    y  : out [ranks, M]

    comm tell(p: ranks):
        tile_push_data(ns[rank] @ p, n[p])
        producer_tile_notify(ns[rank] @ p)

    comm send(p: ranks, i: M, c: C[: n[p]]):
        tile_push_data(h[rank, i, c] @ p, x[p, i, c] * 2.0)
        producer_tile_notify(h[rank, i, c] @ p)

    compute add(s: ranks, i: M):
        total = zeros(f32)
        consumer_tile_wait(ns[s])
        for (c: C[: ns[s]]):
            consumer_tile_wait(h[s, i, c])
            total += sum(h[s, i, c], axis=1)
        y[s, i] = total

schedule small for columns:
    send tile(i=4, c=8)
    add tile(i=4, c=8)
"""


def of_routings(routings: str, module: Module, name: str, nodes: int) -> float:
    """Return the largest error of a program whose integers come with a launch, for a launch of each kind in turn."""
    program = module.program(name)
    chosen = next((s for s in module.schedules if s.program == name), None)
    dims = {p.name: 2 if p.example is None else p.example for p in program.params}
    kernel = compile(program, chosen, ranks=4, nodes=nodes, dims=dims)
    options: dict[str, Any] = {"ranks": 4, "dims": kernel.bound.numbers, "dtype": "f32"}
    kinds = list(enumerate(routings.split()))
    launches = [trial.random_inputs(kernel.bound.source, launches=1, seed=n, routing=r, **options) for n, r in kinds]
    return worst(kernel, seed=11, inputs=[given for own in launches for given in own])


def every(*often: str, also: str) -> pytest.MarkDecorator:
    """The routings of launches, one after the other, of the default tier; and others as thorough ones."""
    more = pytest.param(also, marks=pytest.mark.thorough)
    return pytest.mark.parametrize("routings", [" ".join(often), more])


@every("one", "empty", "uniform", also="uniform one empty full uniform")
def test_rows_go_to_experts_of_other_nodes(routings: str) -> None:
    assert of_routings(routings, load("expert_parallel"), "expert_parallel", nodes=2) < 1e-5


@every("uniform", "empty", also="uniform empty uniform uniform")
def test_rows_go_to_experts_by_the_ranks_of_their_place(routings: str) -> None:
    name = "two_level_expert_parallel"
    assert of_routings(routings, load(name), name, nodes=2) < 1e-5


@every("uniform", "empty", also="uniform empty uniform uniform")
def test_tiles_of_which_a_launch_has_columns(routings: str) -> None:
    assert of_routings(routings, parse(RAGGED), "columns", nodes=4) < 1e-5


TABLES = """program g(B, N):
    x : in symmetric [B, N]
    source : table [B] < ranks
    rows : local [B, N]
    y : out [B, N]

    comm fetch(b: B):
        tile_pull_data(rows[b, :], x[b, :] @ source[b])
        producer_tile_notify(rows[b, :])

    compute add(b: B, j: N):
        consumer_tile_wait(rows[b, j])
        y[b, j] = rows[b, j] + 1.0

program s(B, N):
    x : in [B, N]
    twice : table [B] < ranks
    h : symmetric [ranks, B, N]
    y : out [ranks, B, N]

    comm send(b: B, p: ranks):
        if p == twice[b]:
            tile_push_data(h[rank, b, :] @ twice[b], x[b, :] * 2.0)
        else:
            tile_push_data(h[rank, b, :] @ p, x[b, :])
        producer_tile_notify(h[rank, b, :] @ p)

    compute keep(s: ranks, b: B):
        consumer_tile_wait(h[s, b, :])
        y[s, b, :] = h[s, b, :]
"""


@pytest.mark.parametrize(("name", "table"), [("g", "source"), ("s", "twice")])
def test_ranks_that_a_table_names_may_be_on_any_node(name: str, table: str) -> None:
    program = parse(TABLES).program(name)
    tables = {table: np.random.default_rng(3).integers(0, 4, (4, 9))}
    kernel = compile(program, ranks=4, nodes=2, dims={"B": 9, "N": 20}, tables=tables)
    inputs = [{"x": torch.randn(9, 20)} for _ in range(4)]
    done = kernel.run([inputs, inputs], seed=1, max_delay_s=0.001)
    for got, expected in zip(done.outputs[1], kernel.reference(inputs), strict=True):
        torch.testing.assert_close(got["y"], expected["y"], rtol=0, atol=0)


@thorough(unless=lambda name: name == "two_level_all_gather")
@pytest.mark.parametrize("name", ["all_reduce_two_shot_pushed", "two_level_all_gather"])
def test_kernels_do_what_the_plan_says(name: str) -> None:
    program = load(name).program(name)
    dims = {p.name: SIZES.get(p.name, 2) for p in program.params}
    kernel = compile(program, ranks=4, nodes=2, dims=dims)
    done = kernel.run(inputs_of(kernel, 2), trace=True)
    events = {(one.rank, one.stream, one.program): one.events for one in done.traces}
    assert differences(kernel.plan, events, 2) == []


def test_traced_kernels_of_several_nodes_are_right_too() -> None:
    program = load("all_gather").program()
    kernel = compile(program, ranks=4, nodes=2, dims={"Ms": 25, "K": 20}, trace=True)
    inputs = inputs_of(kernel, 1)
    done = kernel.run(inputs)
    assert {span.kind for span in done.spans} >= {"tile", "notify", "transfer"}
    torch.testing.assert_close(done.outputs[0][0]["y"], kernel.reference(inputs[0])[0]["y"], rtol=0, atol=0)


def test_tma_does_not_reach_another_node() -> None:
    module = load("all_gather")
    program = module.program()
    bulk = module.schedule("h200_bulk", program)
    options: dict[str, Any] = {"ranks": 4, "dims": {"Ms": 256, "K": 512}, "dtype": "bf16", "target": "sm_90"}
    assert plan(program, bulk, **options).bound.stages["gather"].tma_copy is not None
    there = plan(program, bulk, nodes=2, **options).bound
    assert there.stages["gather"].tma_copy is None
    assert [one.programs_per_cta for one in there.kernels] == [1]


def unverified(case: Case) -> Kernel:
    bound = edited(case)
    made = make_plan(bound)
    return Kernel(plan=made, emitted=emit(bound, made.thresholds), tables={})


def intended(case: Case) -> Kernel:
    """The program of a case as it is written, for its reference."""
    return compile(parse(case.text).program(), ranks=3, dims=DIMS)


EARLY = Case(text=COMPUTED, edits=((PUT_KEPT, f"{PUT_KEPT}\n        send_sent[i, :] = x[i, :] * 3.0"),))
BROKEN = {
    "a signal apart from its data": put(ALONE, SIGNAL),
    "a signal before its data": put(SIGNAL, ALONE),
    "a fence that is dropped": put(ALONE, SIGNAL, FENCE),
    "a source that is written early": EARLY,
    "a source of a kernel that does not end quiet": Case(text=COMPUTED, edits=((", quiet", ""),)),
}


@thorough(unless=lambda name: name not in ("a fence that is dropped", "a source of a kernel that does not end quiet"))
@pytest.mark.parametrize("name", BROKEN)
def test_what_the_rules_refuse_goes_wrong_here(name: str) -> None:
    kernel = unverified(BROKEN[name])
    right = intended(BROKEN[name])
    assert any(worst(kernel, seed, reference=right) > 1e-4 for seed in range(20))


@thorough(unless=lambda case: case.edits[0][1] == put(ALONE, FENCE, SIGNAL).edits[0][1])
@pytest.mark.parametrize(
    "case",
    [
        put(ALONE, FENCE, SIGNAL),
        put(ALONE, QUIET, SIGNAL),
        Case(text=COMPUTED, edits=((PUT_KEPT, f"{PUT_KEPT}\n        {QUIET}\n        send_sent[i, :] = x[i, :]"),)),
    ],
    ids=["fence", "quiet", "source after a quiet"],
)
def test_what_they_accept_goes_right(case: Case) -> None:
    kernel, right = unverified(case), intended(case)
    assert all(worst(kernel, seed, reference=right) == 0 for seed in range(4))
