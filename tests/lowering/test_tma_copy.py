"""Copies by TMA: what may be copied so, in which boxes, and by how many programs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilelink import compiler
from tilelink.errors import ProgressError, ScheduleError
from tilelink.frontend.schedule_parser import parse_schedule
from tilelink.lowering.bound import Bound
from tilelink.lowering.clauses.pipeline import NUM_WARPS
from tilelink.lowering.clauses.resource import RESOURCE
from tilelink.lowering.clauses.tma_copy import ALIGNMENT, MAX_BOX, SHARED, SMEM_ALIGNMENT, TMA_COPY
from tilelink.planning.plan import make_plan
from tilelink.scheduling.schedule import Schedule
from tilelink.search.knobs import knobs
from tilelink.search.seeds import distance
from tilelink.target import target

PROGRAM = """program carry(Ms, K):
    x : in        [Ms, K]{given}
    z : in        [Ms, K]
    s : symmetric [ranks, Ms, K]{given}
    t : symmetric [ranks, Ms, K]
    y : out       [ranks, Ms, K]

    comm carry(p: ranks, i: Ms):
        {body}

    compute take(p: ranks, i: Ms, j: K):
        consumer_tile_wait(s[p, i, :])
        y[p, i, j] = s[p, i, j]

schedule one for carry:
    carry {place}
    take {taken}, tile(i=64, j=64)
"""
PUSH, TELL = "tile_push_data(s[rank, i, :] @ p, x[i, :])", "producer_tile_notify(s[rank, i, :] @ p)"
NEXT = "\n        "
PLACE = "on sm(8), tile(i=64), tma_copy 4"


def bound(
    *body: str, place: str = PLACE, Ms: int = 512, K: int = 4096, ranks: int = 4, on: str = "sm_90",
    dtype: str = "bf16", taken: str = "on sm", given: str = "",
) -> Bound:  # fmt: skip
    text = PROGRAM.format(body=NEXT.join(body or (PUSH, TELL)), place=place, taken=taken, given=given)
    module = compiler.parse(text, "carry.tl")
    sizes = {"Ms": Ms, "K": K}
    return compiler.bound(module.program(), module.schedules[0], ranks=ranks, dims=sizes, dtype=dtype, target=on)


def how_many(made: Bound, stage: str = "carry") -> int:
    """Programs that share an SM to copy by TMA."""
    boxes = made.stages[stage].tma_copy
    return boxes.programs if boxes else 0


def programs(made: Bound) -> list[tuple[int, int, int]]:
    return [(k.programs, k.programs_per_cta, k.blocks) for k in made.kernels]


def test_programs_share_the_sms_that_are_left_out_of_the_other_kernels() -> None:
    made = bound(Ms=4096)
    assert how_many(made) == 4
    assert programs(made) == [(32, 4, 8), (124, 1, 124)]


def test_no_more_sms_than_there_are_tiles_for() -> None:
    assert programs(bound(Ms=128, ranks=3))[0] == (8, 4, 2)  # six tiles


@pytest.mark.parametrize("on", ["cpu", "sm_80", "gfx942"])
def test_without_an_accelerator_programs_copy_as_they_do_without_it(on: str) -> None:
    plain = bound(place=PLACE.removesuffix(", tma_copy 4"), on=on)
    assert (programs(bound(on=on)), how_many(bound(on=on))) == (programs(plain), 0)


POSSIBLE = {
    "rows that no power of two divides": {"K": 1376},
    "long elements": {"dtype": "f32"},
    "parts of rows": {"place": "on sm(8), tile(i=64, k=512), tma_copy 4"},
    "one row at a time": {"place": "on sm(8), tile(i=1), tma_copy 2"},
    "parts of rows, the last one shorter": {"place": "on sm(8), tile(i=64, k=1024), tma_copy 4", "K": 1376},
    "parts of rows of an odd length": {"place": "on sm(8), tile(i=64, k=48), tma_copy 4", "K": 480},
    "odd tiles": {"place": "on sm(8), tile(i=48), tma_copy 4", "Ms": 480},
    "many programs": {"place": "on sm(2), tile(i=64), tma_copy 16"},
}
CONDITIONAL = (
    ("if rank != p:", "    " + PUSH, "    " + TELL),
    ("if rank != p:", "    " + PUSH, "else:", "    tile_push_data(s[rank, i, :], z[i, :])", TELL),
    ("if rank != p:", "    if p == 0:", "        " + PUSH, "    else:", "        " + PUSH, "    " + TELL),
)


@pytest.mark.parametrize("body", CONDITIONAL)
def test_which_copy_a_tile_is_may_depend_on_conditions(body: tuple[str, ...]) -> None:
    made = bound(*body)
    assert how_many(made)
    check_boxes(made)
    assert how_many(bound(*body, Ms=500)) == 0  # the end cuts a tile of each


def test_all_copies_of_a_tile_have_the_same_boxes() -> None:
    body = ("if rank != p:", "    tile_push_data(t[rank, i, :] @ p, z[i, :])", "else:", "    " + PUSH, TELL)
    assert how_many(bound(*body)) and how_many(bound(*body, given=" f32")) == 0


IMPOSSIBLE = {
    "a tile that its index's end cuts": {"Ms": 500},
    "rows of other than 16 bytes": {"K": 1372},
    "too many ranks for descriptors of all copies": {"ranks": 17},
    "elements that no descriptor has": {"given": " bool"},
    "boxes that lie too close together": {"place": "on sm(8), tile(i=1), tma_copy 4", "K": 32},
    "parts of rows that are too short": {"place": "on sm(8), tile(i=64, k=4), tma_copy 4"},
}


@pytest.mark.parametrize("case", POSSIBLE)
def test_tiles_that_are_whole_boxes(case: str) -> None:
    made = bound(**POSSIBLE[case])  # type: ignore[arg-type]
    assert how_many(made)
    check_boxes(made)


@pytest.mark.parametrize("case", IMPOSSIBLE)
def test_other_tiles_are_loaded_and_stored(case: str) -> None:
    made = bound(**IMPOSSIBLE[case])  # type: ignore[arg-type]
    assert how_many(made) == 0
    assert made.kernels[0].programs_per_cta == 1


NUMBER = """program p(M):
    m : in        [] <= M
    n : symmetric [] <= M
    y : out       [M]
    comm tell(p: ranks):
        if rank == 0:
            tile_push_data(n[] @ p, m)
            producer_tile_notify(n[] @ p)
    compute take(i: M):
        consumer_tile_wait(n)
        y[i] = n + zeros(f32)
schedule one for p:
    tell on sm(2), tma_copy 2
"""


def test_one_number_is_loaded_and_stored() -> None:
    module = compiler.parse(NUMBER)
    made = compiler.bound(module.program(), module.schedules[0], ranks=2, dims={"M": 64}, dtype="bf16", target="sm_90")
    assert not how_many(made, "tell")


def test_a_rank_alone_has_nothing_to_copy() -> None:
    module = compiler.load("gemm_rs")
    program = module.program("gemm_rs_local_last")
    schedule = module.schedule("h200_copy_sms", program)
    for ranks, programs in ((1, 0), (2, 4)):
        made = compiler.bound(
            program, schedule, ranks=ranks, dims={"Ms": 256, "N": 512, "K": 64}, dtype="bf16", target="sm_90"
        )
        assert how_many(made, "scatter") == programs


@given(
    rows=st.sampled_from([1, 2, 3, 8, 24, 64, 128, 512]),
    columns=st.integers(1, 600).map(lambda n: 8 * n),
    dtype=st.sampled_from(["bf16", "f32"]),
    together=st.integers(1, 16),
)
def test_boxes_are_the_tile_and_fit_an_sm(rows: int, columns: int, dtype: str, together: int) -> None:
    made = bound(place=f"on sm(8), tile(i={rows}), tma_copy {together}", Ms=4 * rows, K=columns, dtype=dtype)
    if made.stages["carry"].tma_copy or columns >= 64:
        check_boxes(made)


SHIFTED = """program shift(Ms, R, K, L):
    x : in        [ranks, Ms, K]
    s : symmetric [ranks, Ms, K]
    y : out       [ranks, {rows}, {columns}]

    comm carry(p: ranks, i: {rows}, j: {columns}):
        tile_push_data(s[rank, {at}i, {to}j] @ p, x[p, {at}i, {to}j])
        producer_tile_notify(s[rank, {at}i, {to}j] @ p)

    compute take(p: ranks, i: {rows}, j: {columns}):
        consumer_tile_wait(s[p, {at}i, {to}j])
        y[p, i, j] = s[p, {at}i, {to}j]

schedule one for shift:
    carry on sm(8), tile(i=64, j=64), tma_copy 4
    take on sm, tile(i=64, j=64)
"""


@pytest.mark.parametrize(("rows", "at", "columns", "to", "possible"), [
    ("Ms", "", "K", "", True), ("R", "61 + ", "K", "", True), ("Ms", "", "L", "8 + ", False),
])  # fmt: skip
@pytest.mark.parametrize("R", [448, 512])
def test_what_lies_behind_a_dimension_is_never_touched(
    rows: str, at: str, columns: str, to: str, possible: bool, R: int
) -> None:
    module = compiler.parse(SHIFTED.format(rows=rows, at=at, columns=columns, to=to), "shift.tl")
    sizes = {"Ms": 512, "R": R, "K": 512, "L": 256}
    made = compiler.bound(module.program(), module.schedules[0], ranks=2, dims=sizes, dtype="bf16", target="sm_90")
    assert bool(made.stages["carry"].tma_copy) is possible
    assert [(one.clause, one.part) for one in made.left_out] == [("tma_copy", "carry")] * (not possible)
    assert all("columns are shifted in s[rank, i, 8 + j]" in one.reason for one in made.left_out)
    # rows that are shifted beyond the dimension, where those of the next one would be, are refused as of all copies
    beyond = rows == "R" and R == 512
    assert any("reaches outside" in fault.message for fault in make_plan(made).faults) == beyond


@pytest.mark.parametrize(("change", "reason"), [
    ({"Ms": 500}, "the end of i cuts a tile in s[rank, i, :] @ p"),
    ({"K": 1372}, "rows are no multiple of 16 bytes in s[rank, i, :] @ p"),
    ({"ranks": 17}, "there are descriptors for 16 ranks at most"),
    ({"given": " bool"}, "no descriptor is of bool"),
    ({"place": "on sm(8), tile(i=1), tma_copy 4", "K": 32}, "boxes that divide a tile have 1 x 32 elements of 2 bytes"),
])  # fmt: skip
def test_what_has_no_boxes_is_left_out_with_the_reason(change: dict[str, object], reason: str) -> None:
    (one,) = bound(**change).left_out  # type: ignore[arg-type]
    assert (one.clause, one.part, one.lacking) == ("tma_copy", "carry", False) and reason in one.reason


def check_boxes(made: Bound) -> None:
    """That the boxes of a tile are all of it once, and what is said of their sizes."""
    boxes = made.stages["carry"].tma_copy
    assert boxes is not None
    down, wide = boxes.box
    corners = [(n // boxes.across * down, n % boxes.across * wide) for n in range(boxes.count)]
    assert corners == [(r, c) for r in range(0, boxes.rows, down) for c in range(0, boxes.columns, wide)]
    assert boxes.rows % down == 0
    whole = boxes.columns == made.numbers["K"]
    assert boxes.columns % wide == 0 or (whole and boxes.across * wide - boxes.columns < wide)
    bytes_of = 4 if made.dtype == "f32" else 2
    assert wide * bytes_of % ALIGNMENT == 0 and max(down, wide) <= MAX_BOX
    assert down * wide * bytes_of % SMEM_ALIGNMENT == 0
    assert boxes.programs * boxes.buffers * down * wide * bytes_of <= SHARED <= target("sm_90").shared_memory
    assert 0 < boxes.ahead < boxes.buffers
    assert all(side & (side - 1) == 0 for side in boxes.box)


REFUSED = {
    "no SMs of its own": ((PUSH, TELL), {"place": "on sm, tile(i=64), tma_copy 4"}, "it has no SMs of its own"),
    "a copy engine": ((PUSH, TELL), {"place": "on copy_engine, tma_copy 4"}, "it has no SMs of its own"),
    "another kernel": ((PUSH, TELL), {"place": "in take prologue, tma_copy 4"}, "it has no SMs of its own"),
    "two copies": (
        (PUSH, "tile_push_data(t[rank, i, :] @ p, z[i, :])", TELL), {}, "its tiles are not one copy each"
    ),
    "a computation": (("tile_push_data(s[rank, i, :] @ p, x[i, :] + z[i, :])", TELL), {}, "not one copy each"),
    "a loop": (("for (q: ranks):", "    " + PUSH, TELL), {}, "its tiles are not one copy each"),
    "a condition beside a copy": ((PUSH, "if rank != p:", "    " + TELL), {}, "its tiles are not one copy each"),
    "two copies under a condition": (
        ("if rank != p:", "    " + PUSH, "    tile_push_data(t[rank, i, :] @ p, z[i, :])", TELL),
        {}, "its tiles are not one copy each",
    ),
    "two copies in the other branch": (
        ("if rank != p:", "    " + PUSH, "else:", "    " + PUSH, "    tile_push_data(t[rank, i, :], z[i, :])", TELL),
        {}, "its tiles are not one copy each",
    ),
    "a notify before": ((TELL, PUSH, TELL), {}, "do more than to wait, copy and notify"),
    "a guest": ((PUSH, TELL), {"taken": "in carry epilogue"}, "another stage runs in its kernel"),
    "a crowd": ((PUSH, TELL), {"place": "on sm(8), tile(i=64), tma_copy 17"}, "runs 16 such programs at most"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_a_stage_that_is_not_one_copy_on_sms_of_its_own_is_refused(case: str) -> None:
    body, options, reason = REFUSED[case]
    with pytest.raises(ScheduleError, match="carry cannot copy by TMA: .*" + reason) as caught:
        bound(*body, **options)  # type: ignore[arg-type]
    assert caught.value.location is not None and caught.value.location.line > 15


def test_the_text_and_the_methods_say_the_same() -> None:
    text = "schedule s for p:\n    a on sm(8), tma_copy 4\n"
    made = Schedule(name="s", program="p").on("a", parse_schedule(text).stage("a")[RESOURCE]).tma_copy("a", 4)  # type: ignore[arg-type]
    assert str(made) == text and parse_schedule(text) == made
    assert str(made.tma_copy("a", None)) == "schedule s for p:\n    a on sm(8)\n"
    with pytest.raises(ScheduleError, match="tma_copy 0 of a"):
        made.tma_copy("a", 0)


WAITING = """program hand(Ms, K):
    x : in        [Ms, K]
    c : local     [Ms, K]
    s : symmetric [ranks, Ms, K]
    y : out       [ranks, Ms, K]

    compute make(i: Ms):
        c[i, :] = exp(x[i, :])
        producer_tile_notify(c[i, :])

    comm carry(p: ranks, i: Ms):
        consumer_tile_wait(c[i, :])
        tile_push_data(s[rank, i, :] @ p, c[i, :])
        producer_tile_notify(s[rank, i, :] @ p)

    compute take(p: ranks, i: Ms):
        consumer_tile_wait(s[p, i, :])
        y[p, i, :] = s[p, i, :]

schedule one for hand:
    make {make}, tile(i=1)
    carry on sm({sms}), tile(i=1), tma_copy 8
    take {take}, tile(i=1)
    c channel(i=1)
    s channel(i=1)
"""


def hand(sms: int, make: str = "on sm", take: str = "in make epilogue") -> None:
    module = compiler.parse(WAITING.format(sms=sms, make=make, take=take), "hand.tl")
    compiler.plan(
        module.program(), module.schedules[0], ranks=2, dims={"Ms": 2048, "K": 64}, dtype="bf16", target="sm_90"
    )


def test_programs_that_share_an_sm_are_resident_together() -> None:
    hand(16)  # 116 programs and 16 x 8, on 132 SMs
    hand(131)
    with pytest.raises(ScheduleError, match="take 132 programs"):
        hand(132)
    hand(111, "on sm(20)", "in make epilogue")
    with pytest.raises(ProgressError):  # all places are taken by programs that wait for others
        hand(132, "on sm(20)", "in make epilogue")


def test_of_programs_that_wait_the_places_on_sms_are_counted() -> None:
    hand(120, "on sm(20)", "on sm(1)")  # more than there are, but never all of them with programs that wait


HALVES = """program halves(Ms, K):
    x : in        [Ms, K]
    h : local     [ranks, Ms, K]
    y : out       [ranks, Ms, K]

    comm fetch(i: Ms):
        tile_push_data(h[0, i, :], x[i, :])
        producer_tile_notify(h[0, i, :])

    compute make(i: Ms):
        h[1, i, :] = exp(x[i, :])
        producer_tile_notify(h[1, i, :])

    comm carry(p: ranks, i: Ms):
        consumer_tile_wait(h[{which}, i, :])
        tile_push_data(y[p, i, :], h[{which}, i, :])

schedule one for halves:
    fetch on copy_engine, tile(i=1)
    make on sm(20), tile(i=1)
    carry on sm({sms}), tile(i=1), order(i, p), tma_copy 2
    h channel(i=1)
"""


def test_a_place_is_free_when_the_last_program_of_its_block_ends() -> None:
    def halves(sms: int, which: str = "p") -> None:
        module = compiler.parse(HALVES.format(sms=sms, which=which), "halves.tl")
        compiler.plan(
            module.program(), module.schedules[0], ranks=2, dims={"Ms": 132, "K": 64}, dtype="bf16", target="sm_90"
        )

    halves(112)
    halves(132, "0")  # all end, and what has no place until then begins
    with pytest.raises(ProgressError):  # one of two programs ends everywhere, the other waits for what cannot start
        halves(132)


def test_programs_that_share_an_sm_fill_one_place_when_all_of_a_rank_wait() -> None:
    """20 and 112 places of 132: all are resident, though their programs are 20 and 224."""
    text = HALVES.replace("        h[1, i", "        consumer_tile_wait(h[0, i, :])\n        h[1, i")
    module = compiler.parse(text.format(sms=112, which="p"), "halves.tl")
    plan = compiler.plan(
        module.program(), module.schedules[0], ranks=2, dims={"Ms": 132, "K": 64}, dtype="bf16", target="sm_90"
    )
    assert [kernel.blocks for kernel in plan.bound.kernels if not kernel.on_copy_engine] == [20, 112]


def test_the_search_tries_it_where_there_is_an_accelerator() -> None:
    module = compiler.load("gemm_rs")
    program = module.program("gemm_rs_local_last")
    sizes = {"Ms": 1024, "N": 4096, "K": 1376}
    knob = next(k for k in knobs(program, sizes, 8, target("sm_90")) if k.name == "scatter on")
    assert [label for label in knob.labels if "TMA" in label] == ["8 SMs by TMA", "12 SMs by TMA", "16 SMs by TMA"]
    empty = Schedule(name="s", program=program.name)
    made = knob.changes[knob.labels.index("12 SMs by TMA")](empty).stage("scatter")
    assert (str(made[RESOURCE]), made[TMA_COPY], made[NUM_WARPS]) == ("on sm(12)", 4, None)
    plain = knob.changes[knob.labels.index("16 programs")](empty)
    assert plain.stage("scatter")[TMA_COPY] is None
    assert distance(plain, plain.tma_copy("scatter", 4), sizes, 8) == 1
    for other in ("sm_80", "cpu"):
        assert not any("TMA" in label for k in knobs(program, sizes, 8, target(other)) for label in k.labels)
