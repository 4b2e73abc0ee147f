"""Kernels that walk the tiles that a launch has: their numbers, what the rule refuses, and what programs execute."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest
import torch

import tilelink
from tests.lowered import parse_lowered
from tests.lowering.interpreter import run_lowered
from tests.traces import differences
from tilelink import compiler
from tilelink.errors import ParseError, TilesError
from tilelink.lowering.bound import Bound, Kernel
from tilelink.lowering.compact_tiles import obstacle
from tilelink.lowering.events import READ, WRITE
from tilelink.lowering.listing import listing
from tilelink.planning.any_program import apart, together
from tilelink.planning.happens_before import HappensBefore
from tilelink.planning.plan import Plan, make_plan
from tilelink.planning.traces import most_spans
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
        for step, tile in enumerate(wanted):
            _, owner, program = launch.workers[launch.worker[first + tile]]
            assert (owner, program, launch.sequence[first + tile]) == (rank, step % programs, step // programs)


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
    assert parse_lowered(listing(bound)).kernels == bound.kernels


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
    changed = parse_lowered(text.replace(old, new))
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
        parse_lowered(text.replace(old, new))


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


TAKES = (
    SENDS.replace("y : out       [M, N]", "y : out       [M[: n], N]")
    .replace("[] <= M", "[] <= M replicated")
    .replace("y[i, j] = x[i, j]", "y[i, j] = h[i, j]")
)
"""Its tiles wait for the rows that a launch has."""
LATER = """
    compute last(j: N):
        z[j] = x[0, j]
"""
OFF = """
schedule small for sends:
    reuse_wait off
"""


def _takes(text: str) -> tuple[Bound, Kernel]:
    module = tilelink.parse(text)
    schedule = module.schedules[0] if module.schedules else None
    bound = tilelink.plan(module.program(), schedule, ranks=2, dims={"M": 32, "N": 8}).bound
    return bound, next(kernel for kernel in bound.kernels if kernel.name == "take")


def test_tiles_that_wait_are_passed_over_with_their_waits() -> None:
    bound, kernel = _takes(TAKES)
    assert obstacle(bound, kernel) is None and kernel.loops[0].compact is not None
    assert all(loop.compact is None for loop in bound.kernel_of["send"].loops), "its tiles notify"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (TAKES.replace("    y :", "    z : out [N]\n    y :") + LATER, "a later kernel on its stream"),
        (TAKES + OFF, "reuse_wait off"),
        (TAKES.replace("consumer_", "if ranks > 0:\n            consumer_"), "a branch"),
    ],
)  # fmt: skip
def test_tiles_whose_waits_others_may_need_keep_their_iterations(text: str, reason: str) -> None:
    bound, kernel = _takes(text)
    assert reason in (obstacle(bound, kernel) or "") and kernel.loops[0].compact is None


def test_a_wait_that_a_launch_leaves_out_orders_its_tile_alone() -> None:
    bound, _ = _takes(TAKES)
    plan = apart(make_plan(bound))
    order, a = HappensBefore(plan=plan), plan.accesses
    h = bound.tensors["h"].number
    write, read = (np.flatnonzero((a.tensor == h) & (a.kind == kind)) for kind in (WRITE, READ))
    first, second = (grid.ravel() for grid in np.meshgrid(write, read))
    same = (a.peer[first] == a.peer[second]) & (a.lo[first, 0] == a.lo[second, 0])
    same |= plan.task_ranks[a.task[first]] == plan.task_ranks[a.task[second]]  # an earlier kernel
    one, other = (a.task[first], a.position[first]), (a.task[second], a.position[second])
    for few in (0, 4):  # by a search from each event, and along a line
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("tilelink.planning.happens_before.FEW", few or len(first))
            patch.setattr(HappensBefore, "_one_hop", lambda self, *events: np.zeros(len(events[0]), bool))
            assert (HappensBefore(plan=plan).before(*one, *other) == same).all()
    takers = {n for n, (kernel, _, _) in enumerate(plan.workers) if bound.kernels[kernel].name == "take"}
    for sender in set(plan.worker[a.task[write]].tolist()):
        rank = plan.workers[sender][1]
        assert all(plan.workers[worker][1] == rank for worker in order.reach({sender: -1}) if worker in takers)


def test_a_count_alone_has_one_segment() -> None:
    compact = kernel_of(bound_of("small", COUNTED)).loops[0].compact
    assert compact is not None and (compact.segments, compact.size, compact.across) == (1, 15, 3)


BY_ONE = """
program by_one(M = 9, N = 20, B = 3):
    n : in  [B] <= M
    x : in  [B, M, N]
    y : out [B, M[: n], N]

    compute f(b: B by 1, i: M[: n[b]] by 1, j: N):
        if i % 2 == 0:
            y[b, i, j] = x[b, i, j] + 1.0
        else:
            y[b, i, j] = x[b, i, j] * 2.0

schedule small for by_one:
    f tile(j=8)
"""


def test_counted_elements_one_by_one_have_compact_numbers_too() -> None:
    module = tilelink.parse(BY_ONE)
    program = module.program()
    kernel = compiler.compile(program, module.schedule("small", program), ranks=2, dims={"M": 9, "N": 20, "B": 3})
    compact = kernel_of(kernel.plan.bound).loops[0].compact
    assert compact is not None and (compact.segments, compact.size, compact.across) == (3, 27, 3)
    counts = np.array([[4, 0, 9], [0, 1, 2]], np.int32)
    inputs = random_inputs(program, ranks=2, dims={"M": 9, "N": 20, "B": 3}, dtype="f32", launches=1, seed=5)
    for rank, given in enumerate(inputs[0]):
        given["n"] = torch.from_numpy(counts[rank])
    result = kernel.run(inputs, trace=True)
    assert relative_error(*compared(result.outputs[0], kernel.reference(inputs[0]), "y")) < 1e-5
    workers = {(one.rank, one.stream, one.program): list(one.events) for one in result.traces}
    assert differences(kernel.plan, workers, 1) == []
    launch = sampled(kernel.plan, {"n": counts.astype(np.int64)})
    tiles = [(launch.workers[worker][1:], step) for worker, step in zip(launch.worker, launch.sequence, strict=True)]
    for rank in range(2):
        number = counts[rank].sum() * 3
        assert {one for one in tiles if one[0][0] == rank and one[1] < 99} >= {
            ((rank, at % 2), at // 2) for at in range(number)
        }


def _plans(schedule: str = "rows") -> Mapping[str, Plan]:
    plan = make_plan(bound_of(schedule))
    return {"plan": plan, "apart": apart(plan), "together": together(plan)}


def test_no_program_order_is_taken_for_granted() -> None:
    plans = _plans()
    assert len(np.unique(plans["apart"].worker)) == plans["plan"].tasks
    assert len(np.unique(plans["together"].worker)) == 2
    order = np.lexsort((plans["together"].sequence, plans["together"].worker))
    assert (np.diff(order) > 0).all()
