"""Kernels that walk the tiles that a launch has: their numbers, what the rule refuses, and what programs execute."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest
import torch

import tilelink
from tests.lowering.interpreter import run_lowered
from tilelink import compiler
from tilelink.errors import ParseError, TilesError
from tilelink.lowering.bound import Bound, Kernel
from tilelink.lowering.listing import listing
from tilelink.planning.any_program import apart, together
from tilelink.planning.plan import Plan, make_plan
from tilelink.planning.traces import differences, most_spans
from tilelink.reference.trial import compared, random_inputs, relative_error
from tilelink.simulator.sampled import sampled
from tilelink.verifier import refusals

GROUPED = """
program grouped(M = 40, N = 20, K = 8, E = 3):
    x      : in  [M, K]
    w      : in  [E, N, K]
    starts : in  [E + 1] <= M offsets
    y      : out [M[: starts[E]], N]

    compute product(e: E, r: M[starts[e] : starts[e + 1]], j: N):
        y[r, j] = dot(x[r, :], w[e, j, :].T)

schedule rows for grouped:
    product tile(r=8, j=8), order(e, r, j)
schedule rows_in_bands for grouped:
    product tile(r=8, j=8), order(e, group(r, 2), j)
schedule columns for grouped:
    product tile(r=8, j=8), order(e, j, r)
schedule columns_in_bands for grouped:
    product tile(r=8, j=8), order(e, group(j, 2), r)
schedule columns_first for grouped:
    product tile(r=8, j=8), order(j, e, r)
schedule from_the_rank_on for grouped:
    product tile(r=8, j=8), order(e = rank step +1, r, j)
schedule rows_outside for grouped:
    product tile(r=8, j=8), order(r, e, j)
schedule rows_backwards for grouped:
    product tile(r=8, j=8), order(e, r = 0 step -1, j)
"""
COUNTED = """
program part(M = 40, N = 20):
    n : in  [] <= M
    x : in  [M, N]
    y : out [M[: n], N]

    compute f(i: M[: n], j: N):
        y[i, j] = x[i, j] + 1.0

schedule small for part:
    f tile(i=8, j=8), order(group(i, 2), j)
"""
MODULE = tilelink.parse(GROUPED)
DIMS = {"M": 40, "N": 20, "K": 8, "E": 3}
WALKED = ("rows", "rows_in_bands", "columns", "columns_in_bands", "columns_first", "from_the_rank_on")
COUNTS = ((0, 0, 0), (40, 0, 0), (0, 0, 40), (9, 1, 23), (16, 8, 16))


def bound_of(schedule: str, text: str = GROUPED) -> Bound:
    module = tilelink.parse(text)
    program = module.program()
    dims = {one.name: one.example for one in program.params if one.example is not None}
    plan = tilelink.plan(program, module.schedule(schedule, program), ranks=2, dims=dims)
    return plan.bound


def kernel_of(bound: Bound) -> Kernel:
    (kernel,) = bound.kernels
    return kernel


def offsets(counts: Sequence[int]) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)


def there(bound: Bound, rank: int, starts: np.ndarray) -> list[int]:
    """Return the tiles that have rows, by the sizes that the text of the program says."""
    stage = bound.stages["product"]
    plan = make_plan(bound)
    found: list[int] = []
    for tile in range(stage.total):
        at = plan.tile_indices(plan.first_task["product"] + rank * stage.total + tile)
        if starts[at["e"]] + 8 * at["r"] < starts[at["e"] + 1]:
            found.append(tile)
    return found


@pytest.mark.parametrize("schedule", WALKED)
@pytest.mark.parametrize("counts", COUNTS)
def test_programs_execute_in_turn_the_tiles_that_are_there(schedule: str, counts: Sequence[int]) -> None:
    bound = bound_of(schedule)
    starts = np.stack([offsets(counts), offsets(counts[::-1])])
    plan = make_plan(bound)
    launch = sampled(plan, {"starts": starts})
    programs = kernel_of(bound).programs
    for rank in range(2):
        wanted = there(bound, rank, starts[rank])
        first = plan.first_task["product"] + rank * bound.stages["product"].total
        for turn, tile in enumerate(wanted):
            _, owner, program = launch.workers[launch.worker[first + tile]]
            assert (owner, program, launch.sequence[first + tile]) == (rank, turn % programs, turn // programs)


@pytest.mark.parametrize("schedule", ["rows_outside", "rows_backwards"])
def test_orders_without_segments_walk_all_tiles(schedule: str) -> None:
    assert kernel_of(bound_of(schedule)).loops[0].compact is None


@pytest.mark.parametrize("schedule", WALKED)
def test_kernels_compute_and_do_what_the_plan_says(schedule: str) -> None:
    program = MODULE.program()
    kernel = compiler.compile(program, MODULE.schedule(schedule, program), ranks=2, dims=DIMS)
    inputs = random_inputs(program, ranks=2, dims=DIMS, dtype="f32", launches=2, seed=5)
    result = kernel.run(inputs, trace=True)
    for given, outputs in zip(inputs, result.outputs, strict=True):
        assert relative_error(*compared(outputs, kernel.reference(given), "y")) < 1e-5
    workers = {(one.rank, one.stream, one.program): list(one.events) for one in result.traces}
    assert differences(kernel.plan, workers, 2) == []
    busy = [key for key, events in workers.items() if events]
    swapped = {**workers, busy[0]: workers[busy[1]], busy[1]: workers[busy[0]]}
    assert any("not" in line for line in differences(kernel.plan, swapped, 2))
    assert max(map(len, workers.values())) <= 2 * most_spans(kernel.plan)


@pytest.mark.parametrize("schedule", WALKED)
def test_the_listed_numbers_mean_the_same(schedule: str) -> None:
    """The interpreter walks the tiles by the listed expressions, without code of the plan or the emitter."""
    program = MODULE.program()
    bound = bound_of(schedule)
    assert kernel_of(bound).loops[0].compact is not None
    (given,) = random_inputs(program, ranks=2, dims=DIMS, dtype="f32", launches=1, seed=7)
    expected = compiler.reference(program, given, dims=DIMS)
    for one, other in zip(run_lowered(bound, given), expected, strict=True):
        defined = ~other["y"].isnan()
        torch.testing.assert_close(one["y"][defined], other["y"][defined])
    assert compiler.parse_lowered(listing(bound)).kernels == bound.kernels


WRONG = [
    ("there = ", "there = 1 + ", "`there` is not the number of tiles of r"),
    ("there = ", "there = segment + ", "`there` is not the number of tiles of r"),
    ("tile = segment * 15 + ", "tile = segment * 15 + 1 + ", "`tile` does not name the tiles of a segment in order"),
    ("within % 6 //", "within % 6 * 0 //", "`tile` does not name the tiles of a segment in order"),
    ("segments 3, size 15", "segments 1, size 45", "a segment has 15 tiles of r, which has 5"),
    ("segments 3, size 15", "segments 3, size 16", "3 segments of 16 tiles are not its 45 tiles"),
    ("index r,", "index j,", "j is no counted index of its domain"),
]


@pytest.mark.parametrize(("old", "new", "message"), WRONG)
def test_other_numbers_are_refused(old: str, new: str, message: str) -> None:
    text = listing(bound_of("rows_in_bands"))
    assert old in text
    changed = compiler.parse_lowered(text.replace(old, new))
    (error,) = refusals(make_plan(changed), limit=1)
    assert isinstance(error, TilesError) and message in str(error)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("                there = ", "                their = "),
        ("                tile = segment", "                there = segment"),
        ("segments 3", "segments many"),
    ],
)
def test_numbers_that_are_not_complete_are_no_lowered_program(old: str, new: str) -> None:
    text = listing(bound_of("rows_in_bands"))
    assert old in text
    with pytest.raises(ParseError):
        compiler.parse_lowered(text.replace(old, new))


SENDS = """
program sends(M = 32, N = 8):
    n : in        [] <= M
    x : in        [M, N]
    h : symmetric [M, N]
    y : out       [M, N]

    comm send(i: M[: n]):
        tile_push_data(h[i, :] @ (rank + 1), x[i, :])
        producer_tile_notify(h[i, :] @ (rank + 1))

    compute take(i: M[: n], j: N):
        consumer_tile_wait(h[i, :])
        y[i, j] = x[i, j]
"""


def test_tiles_with_signals_keep_their_turns() -> None:
    program = tilelink.parse(SENDS.replace("y : out       [M, N]", "y : out       [M[: n], N]")).program()
    plan = tilelink.plan(program, ranks=2, dims={"M": 32, "N": 8})
    assert all(loop.compact is None for kernel in plan.bound.kernels for loop in kernel.loops)


def test_a_count_alone_has_one_segment() -> None:
    compact = kernel_of(bound_of("small", COUNTED)).loops[0].compact
    assert compact is not None and (compact.segments, compact.size, compact.across) == (1, 15, 3)


def _plans(schedule: str = "rows") -> Mapping[str, Plan]:
    plan = make_plan(bound_of(schedule))
    return {"plan": plan, "apart": apart(plan), "together": together(plan)}


def test_no_program_order_is_taken_for_granted() -> None:
    plans = _plans()
    assert len(np.unique(plans["apart"].worker)) == plans["plan"].tasks
    assert len(np.unique(plans["together"].worker)) == 2
    order = np.lexsort((plans["together"].sequence, plans["together"].worker))
    assert (np.diff(order) > 0).all()
