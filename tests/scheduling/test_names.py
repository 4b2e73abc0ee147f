"""Wrong names in a schedule that is built in Python: refused by the call that gives them, as binding refuses them."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import pytest

import tilelink
from tests.compiler.library import cases
from tilelink import compiler
from tilelink.errors import OrderError, ScheduleError, TileSizeError
from tilelink.frontend.parser import parse_text
from tilelink.lowering.bind import bind
from tilelink.scheduling.schedule import Fused, IndexOrder, Schedule
from tilelink.scheduling.words import check_names
from tilelink.target import CPU

PROGRAM = parse_text("""
program neighbour_sum(M, N):
    x    : in symmetric [M, N]
    left : symmetric [ranks, M, N]
    y    : out       [M, N]

    comm send(p: ranks, i: M):
        tile_push_data(left[rank, i, :] @ p, x[i, :])
        producer_tile_notify(left[rank, i, :] @ p)

    compute add(i: M, j: N):
        consumer_tile_wait(left[rank, i, :])
        y[i, j] = x[i, j] + left[rank, i, j]
""").programs[0]
Build = Callable[[Schedule], Schedule]

WRONG: dict[str, tuple[type[ScheduleError], Build, str, str, str]] = {
    "stage": (
        ScheduleError,
        lambda s: s.tile("sned", i=32),
        "no stage 'sned'", 's.tile("sned", i=32)', "did you mean send? stages: send, add",
    ),
    "stage to run in": (
        ScheduleError,
        lambda s: s.on("send", Fused(stage="ad")),
        "no stage 'ad' to run in", 's.on("send", Fused(stage="ad"))', "did you mean add? stages: send, add",
    ),
    "tensor": (
        ScheduleError,
        lambda s: s.tile("add", i=8).buffers("letf", 2),
        "no tensor 'letf'", 's.tile("add", i=8).buffers("letf", 2)', "did you mean left? tensors: x, left, y",
    ),
    "tile": (
        TileSizeError,
        lambda s: s.tile("send", i=4).tile("add", q=32).tile("send", i=8),
        "stage add has nothing named 'q' to tile", 's.tile("send", i=4).tile("add", q=32)',
        "its indices are i, j, and n is whole in it",
    ),
    "order": (
        OrderError,
        lambda s: s.order("add", IndexOrder(index="jj")),
        "order of unknown index 'jj'", 's.order("add", IndexOrder(index="jj"))', "did you mean j? indices: i, j",
    ),
    "warps": (
        ScheduleError,
        lambda s: s.tile("add", i=8).knobs("add", num_stages=2, num_warps=3),
        "3 warps for add", 's.tile("add", i=8).knobs("add", num_stages=2, num_warps=3)', "one of 1, 2, 4, 8, 16, 32",
    ),
    "channel": (
        TileSizeError,
        lambda s: s.channel("left", q=8),
        "channel(q=8): left has no dimension 'q'", 's.channel("left", q=8)',
        "its dimensions, and indices along them, are ranks, M, N, i, j",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG, ids=str)
def test_a_wrong_name_is_refused_at_the_call_that_has_it(case: str) -> None:
    kind, build, message, call, hint = WRONG[case]
    with pytest.raises(kind) as caught:
        build(tilelink.schedule(PROGRAM))
    error = caught.value
    assert (type(error), error.message, error.hint) == (kind, message, hint)
    place = error.location
    assert place is not None
    assert place.file == __file__
    line = place.source_line()
    assert line is not None
    assert "lambda s: s." in line
    assert line[place.column - 1 :][: place.length] == call


@pytest.mark.parametrize("case", WRONG, ids=str)
def test_binding_reports_the_same_error_for_a_program_given_by_name(case: str) -> None:
    kind, build, message, _, _ = WRONG[case]
    schedule = build(tilelink.schedule("neighbour_sum"))
    with pytest.raises(kind) as caught:
        bind(PROGRAM, schedule, {"M": 20, "N": 8}, 2, CPU)
    assert (type(caught.value), caught.value.message) == (kind, message)


def test_in_a_chain_of_several_lines_an_error_is_at_the_line_of_its_call() -> None:
    with pytest.raises(ScheduleError) as caught:
        (
            tilelink.schedule(PROGRAM)
            .tile("send", i=4)
            .knobs("ad", num_warps=4)
            .tile("add", i=4)
        )  # fmt: skip
    assert '    .knobs("ad", num_warps=4)\n                 ^^^^^^^^^^^^^^^^^^^^' in str(caught.value)


def test_an_error_of_a_call_of_several_lines_is_at_its_first_line() -> None:
    with pytest.raises(TileSizeError) as caught:
        tilelink.schedule(PROGRAM).tile(
            "add",
            i=8, q=4,
        )  # fmt: skip
    place = caught.value.location
    assert place is not None
    assert (place.source_line() or "")[place.column - 1 :] == "tilelink.schedule(PROGRAM).tile("


def test_columns_count_characters() -> None:
    with pytest.raises(ScheduleError) as caught:
        _ = "ä", tilelink.schedule(PROGRAM).tile("ü", i=32)
    place = caught.value.location
    assert place is not None
    covered = (place.source_line() or "")[place.column - 1 :][: place.length]
    assert covered == 'tilelink.schedule(PROGRAM).tile("ü", i=32)'


def test_a_part_keeps_its_location_when_clauses_are_added() -> None:
    first = tilelink.schedule(PROGRAM).tile("add", i=8)
    more = (
        first.order("add", IndexOrder(index="i"))
        .knobs("add", num_warps=4)
    )  # fmt: skip
    assert more.stage("add").at("tile.i") == first.stage("add").at("tile.i") != more.stage("add").at("order")


LATER: dict[str, tuple[Build, str]] = {
    "what is called": (lambda s: s.flatten("send").tile("add", i=8), 's.flatten("send")'),
    "a size": (lambda s: s.tile("send", i=8, p=2).order("add", IndexOrder(index="i")), 's.tile("send", i=8, p=2)'),
    "a resource": (
        lambda s: s.on("send", Fused(stage="add")).on("add", Fused(stage="send")),
        's.on("send", Fused(stage="add"))',
    ),
    "an order": (
        lambda s: s.order("add", IndexOrder(index="j"), IndexOrder(index="j")),
        's.order("add", IndexOrder(index="j"), IndexOrder(index="j"))',
    ),
    "what was changed last": (
        lambda s: s.split_k_tail("send", 2).split_k_tail("send", 3),
        's.split_k_tail("send", 2).split_k_tail("send", 3)',
    ),
}


@pytest.mark.parametrize("case", LATER, ids=str)
def test_an_error_of_binding_is_at_the_call_that_gave_the_value(case: str) -> None:
    build, call = LATER[case]
    schedule = build(tilelink.schedule(PROGRAM))
    with pytest.raises(ScheduleError) as caught:
        tilelink.plan(PROGRAM, schedule, ranks=2, dims={"M": 20, "N": 8})
    place = caught.value.location
    assert place is not None and place.file == __file__, caught.value
    line = place.source_line() or ""
    assert line[place.column - 1 :][: place.length] == call, caught.value


def test_a_part_that_is_given_again_has_its_new_location() -> None:
    schedule = tilelink.schedule(PROGRAM).tile("add", i=8)
    first = schedule.stage("add").at("tile.i")
    schedule = schedule.tile("add", i=4).knobs("add", num_warps=4)
    again, warps = schedule.stage("add").at("tile.i"), schedule.stage("add").at("num_warps")
    assert first and again and warps
    assert again.line == warps.line == first.line + 2


def test_schedules_for_a_program_and_for_its_name_are_equal() -> None:
    build: Build = lambda s: s.tile("send", i=8).channel("left", i=8)  # noqa: E731 - the same for both
    checked, free = build(tilelink.schedule(PROGRAM)), build(tilelink.schedule("neighbour_sum"))
    assert checked == free == pickle.loads(pickle.dumps(checked))
    assert (hash(checked), str(checked), repr(checked)) == (hash(free), str(free), repr(free))


def test_names_that_other_parts_of_the_schedule_make_are_known() -> None:
    made = tilelink.schedule(PROGRAM).order("send", IndexOrder(index="n"), IndexOrder(index="p")).tile("send", n=4)
    bind(PROGRAM, made, {"M": 20, "N": 8}, 2, CPU)
    pulled = tilelink.schedule(PROGRAM).channel("left", p=1).direction("send", "pull")
    bind(PROGRAM, pulled, {"M": 20, "N": 8}, 2, CPU)


@pytest.mark.parametrize(("program", "schedule"), cases(), ids=str)
def test_the_schedules_of_the_library_use_existing_names(program, schedule) -> None:  # pyright: ignore
    for part in (*schedule.stages, *schedule.tensors) if schedule else ():
        check_names(program, part)


RESOURCES = {
    "sm": "on sm", "sm(3)": "on sm(3)", "on sm(3)": "on sm(3)", "copy_engine": "on copy_engine",
    "in add": "in add epilogue", "in add prologue": "in add prologue",
}  # fmt: skip


@pytest.mark.parametrize("text", RESOURCES)
def test_resources_and_orders_may_be_given_as_text(text: str) -> None:
    schedule = tilelink.schedule(PROGRAM).on("send", text).order("send", "i", IndexOrder(index="p"), group=("p", 2))
    assert str(schedule.stage("send")) == f"send {RESOURCES[text]}, order(i, p, group(p, 2))"


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda s: s.on("send", "sms(1)"), "no resource 'sms(1)'"),
        (lambda s: s.on("send", 3), "3 runs no stage"),
        (lambda s: s.on("send", "sm(0)"), "sm 0 of send"),
        (lambda s: s.tile("send", i="a"), "size i='a' of send"),
        (lambda s: s.tile("send", i=2.5), "size i=2.5 of send"),
        (lambda s: s.channel("left", M=0), "size M=0 of left"),
        (lambda s: s.order("send", "p", "i", group=5), "group 5 of send"),
        (lambda s: s.order("send", "p", "i", group=("i", 0)), "group ('i', 0) of send"),
        (lambda s: s.order("send", 3), "order (3,) of send"),
    ],
)
def test_invalid_values_are_refused(build: Build, says: str) -> None:
    with pytest.raises(ScheduleError) as caught:
        build(tilelink.schedule(PROGRAM))
    assert caught.value.message == says


HALO = """program halo(M):
    x : in        [M]
    h : symmetric [2, M + 2]
    y : out       [M]

    comm send(i: M):
        tile_push_data(h[0, 1 + i] @ (rank + 1), x[i])
        producer_tile_notify(h[0, 1 + i] @ (rank + 1))

    compute take(i: M):
        consumer_tile_wait(h[0, 1 + i])
        y[i] = h[0, 1 + i]
"""


def test_an_index_with_an_offset_names_the_dimension_that_it_runs_along() -> None:
    program = parse_text(HALO).programs[0]
    schedule = tilelink.schedule(program).channel("h", i=8)
    (grid,) = bind(program, schedule, {"M": 30}, 2, CPU).channels.values()
    assert (grid.sizes, grid.counts) == ((1, 8), (2, 4))


@pytest.mark.parametrize("key", ["ranks", "m"])
def test_a_number_or_a_sum_has_no_name_as_a_dimension(key: str) -> None:
    with pytest.raises(TileSizeError) as caught:
        tilelink.schedule(parse_text(HALO).programs[0]).channel("h", **{key: 2})
    assert caught.value.message == f"channel({key}=2): h has no dimension {key!r}"
    assert caught.value.hint == "its dimensions, and indices along them, are i"


def test_a_tile_size_for_nothing_names_what_is_whole_in_the_stage() -> None:
    module = compiler.parse(
        "program mm(M, N, K):\n    x : in  [M, K]\n    w : in  [N, K]\n    y : out [M, N]\n\n"
        "    compute gemm(i: M, j: N):\n        y[i, j] = dot(x[i, :], w[j, :].T)\n\n"
        "schedule s for mm:\n    gemm tile(m=16)\n"
    )
    with pytest.raises(TileSizeError, match="stage gemm has nothing named 'm' to tile") as caught:
        compiler.plan(module.programs[0], "s", ranks=1, dims={"M": 32, "N": 32, "K": 32})
    assert caught.value.hint == "its indices are i, j, and k is whole in it"


CONTRACTED = """
program con(D = 64, M = 32, N = 32):
    let K = ranks * D
    x : in  [M, ranks * D]
    w : in  [N, ranks * D]
    y : out [M, N]

    compute product(i: M, j: N):
        y[i, j] = {body}

schedule small for con:
    product tile(i=16, j=16, k=32)
"""


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ("dot(x[i, :], w[j, :].T)", ""),
        ("dot(x[i, rank * D : (rank + 1) * D], w[j, rank * D : (rank + 1) * D].T)", ""),
        ("x[i, 0][:, None] * w[j, 0][None, :]", "nothing named 'k'"),
        ("sum(x[i, :], axis=1)[:, None] + w[j, 0][None, :]", "nothing named 'k'"),
    ],
)
def test_k_is_what_a_product_contracts_whatever_it_is_called(body: str, error: str) -> None:
    module = compiler.parse(CONTRACTED.format(body=body), "con.tl")
    if error:
        with pytest.raises(TileSizeError, match=error):
            compiler.bound(module.program(), "small", ranks=2, dims={"D": 64, "M": 32, "N": 32})
        return
    made = compiler.bound(module.program(), "small", ranks=2, dims={"D": 64, "M": 32, "N": 32})
    assert made.stages["product"].block == 32
