"""`lockstep`: stages of a kernel that go through an index together, what runs, and what is refused."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

import tilelink
from tests.lowered import parse_lowered
from tilelink import compiler
from tilelink.errors import ProgressError, ScheduleError, TileLinkError
from tilelink.lowering.bound import Bound
from tilelink.lowering.listing import listing
from tilelink.planning.plan import Plan

TEXT = """program chain(L, M, N):
    x    : in        [M, N]
    w    : in        [L, N, N]
    g    : symmetric [L, M, N]
    h    : local     [L + 1, M, N]
    y    : out       [M, N]

    compute take(l: L + 1 by 1, i: M, j: N):
        if l == 0:
            v = f32(x[i, j])
        else:
            v = f32(g[l - 1, i, j])
        if l == L:
            y[i, j] = v
        h[l, i, j] = v

    compute layer(l: L by 1, i: M, j: N):
        tile_push_data(g[l, i, j] @ (rank + 1), relu(dot(h[l, i, :], w[l, j, :].T)))

schedule steps for chain:
    take on sm(3), tile(i=4, j=16), order(l, i, j), lockstep l
    layer in take epilogue, tile(i=8, j=8, n=16), order(l, i, j)

schedule loops for chain like steps:
    take lockstep off

schedule inside for chain like steps:
    layer order(i, l, j)

schedule flat for chain like steps:
    layer flatten

schedule guest for chain like loops:
    layer lockstep l

schedule alone for chain like steps:
    layer on sm(2)
"""
RANKS, DIMS = 3, {"L": 3, "M": 20, "N": 16}
MODULE = tilelink.parse(TEXT, "chain.tl")
PROGRAM = MODULE.program()


def bound(schedule: str, **dims: int) -> Bound:
    return compiler.bound(PROGRAM, MODULE.schedule(schedule, PROGRAM), ranks=RANKS, dims={**DIMS, **dims})


def plan(schedule: str) -> Plan:
    return tilelink.plan(PROGRAM, MODULE.schedule(schedule, PROGRAM), ranks=RANKS, dims=DIMS)


def test_layers_of_two_stages_in_one_kernel_are_right() -> None:
    inputs = [{"x": torch.randn(20, 16), "w": torch.randn(3, 16, 16) / 4} for _ in range(RANKS)]
    outputs = tilelink.compile(PROGRAM, MODULE.schedule("steps", PROGRAM), ranks=RANKS, dims=DIMS)(inputs)
    rows = [one["x"] for one in inputs]
    for layer in range(3):
        rows = [torch.relu(rows[rank - 1] @ inputs[rank - 1]["w"][layer].T) for rank in range(RANKS)]
    assert all(torch.allclose(made["y"], own, atol=1e-4) for made, own in zip(outputs, rows, strict=True))


def test_a_program_executes_the_tiles_of_a_step_of_all_stages_before_the_next_step() -> None:
    made = plan("steps")
    tasks = sorted(range(made.tasks), key=lambda task: (int(made.worker[task]), int(made.sequence[task])))
    for one, other in pairwise(tasks):
        if made.worker[one] == made.worker[other]:
            first, second = made.tile_indices(one)["l"], made.tile_indices(other)["l"]
            assert made.sequence[one] < made.sequence[other] and first <= second
    shares = [int((made.worker == worker).sum()) for worker in range(len(made.workers))]
    assert sum(shares) == made.tasks and max(shares) - min(shares) <= 4  # what is left of a step goes round


def test_one_loop_after_the_other_waits_for_ever() -> None:
    with pytest.raises(ProgressError, match="waits for ever"):
        plan("loops")


AHEAD = """program ahead(L, M, N):
    x : in    [L + 1, M, N]
    h : local [L + 1, M, N]
    y : out   [L, M, N]

    compute make(l: L + 1 by 1, i: M, j: N):
        h[l, i, j] = x[l, i, j] * 2.0

    compute use(l: L by 1, i: M, j: N):
        y[l, i, j] = h[l + 1, i, j]

schedule loops for ahead:
    make on sm(1), tile(i=8, j=16), order(l, i, j)
    use in make epilogue, tile(i=8, j=8), order(l, i, j)

schedule steps for ahead like loops:
    make lockstep l
"""


def test_a_step_that_needs_the_next_one_waits_for_ever() -> None:
    module = tilelink.parse(AHEAD, "ahead.tl")
    program = module.program()
    dims = {"L": 3, "M": 8, "N": 16}
    assert tilelink.plan(program, module.schedule("loops", program), ranks=2, dims=dims).tasks == 20
    with pytest.raises(ProgressError, match="waits for ever"):
        tilelink.plan(program, module.schedule("steps", program), ranks=2, dims=dims)


@pytest.mark.parametrize(
    ("schedule", "reason"),
    [
        ("inside", "the order of layer does not take the numbers of l one after the other"),
        ("flat", "layer has `flatten`, which is about the tiles of all steps"),
        ("guest", "it runs in the kernel of another stage"),
    ],
)
def test_kernels_without_steps_are_refused(schedule: str, reason: str) -> None:
    with pytest.raises(ScheduleError, match=reason):
        bound(schedule)


def test_an_index_that_a_stage_lacks_is_refused() -> None:
    with pytest.raises(TileLinkError, match="take has no index 'm' in `lockstep`"):
        tilelink.parse(TEXT.replace("lockstep l", "lockstep m", 1), "chain.tl").schedule("steps", PROGRAM)
    guest = TEXT.replace("compute layer(l: L by 1,", "compute layer(m: L by 1,").replace("[l, i, j] @", "[m, i, j] @")
    guest = guest.replace("h[l, i, :], w[l, j, :]", "h[m, i, :], w[m, j, :]")
    guest = guest.replace("order(l, i, j)\n\n", "order(m, i, j)\n\n")
    module = tilelink.parse(guest, "chain.tl")
    with pytest.raises(ScheduleError, match="layer, which runs in it, has no index l"):
        compiler.bound(module.program(), module.schedule("steps", module.program()), ranks=RANKS, dims=DIMS)


def test_a_stage_that_is_alone_in_its_kernel_has_its_order_anyway() -> None:
    made = bound("alone")
    (left,) = made.left_out
    assert (left.clause, left.part, left.reason) == ("lockstep", "take", "no other stage runs in its kernel")


def test_lowered_steps_are_read_back_and_must_have_all_tiles() -> None:
    text = listing(bound("steps"))
    assert "steps 4" in text and "each 5" in text and listing(parse_lowered(text)) == text
    for old, new in (("each 5", "each 4"), ("steps 4", "steps 3"), (", steps 4", ""), ("each 5", "each 0")):
        wrong = text.replace(old, new)
        assert wrong != text
        with pytest.raises(TileLinkError, match=r"does not have its \d+ tiles in \d steps of"):
            parse_lowered(wrong)
