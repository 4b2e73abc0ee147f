"""What nobody said: tile sizes, as large as what the body keeps allows, and how many programs are left."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.simulator.cases import H200S, SHIFT, planned
from tilelink.errors import ScheduleError
from tilelink.frontend.parser import parse_text
from tilelink.lowering.bind import bind
from tilelink.lowering.bound import Bound
from tilelink.simulator import simulate
from tilelink.target import CPU, H200, Target, target
from tilelink.verifier import refusals

ROWS = """program rows(M, N):
    x : in [M, N]
    y : out [M, N]
    compute f(i: M{more}):
        a = {value}
        y{region} = a
"""
WHOLE = ROWS.format(more="", value="x[i, :] * x[i, :]", region="[i, :]")
TILED = ROWS.format(more=", j: N", value="x[i, j] * x[i, j]", region="[i, j]")
SPREAD = ROWS.format(more="", value="x[i, :][:, None, :]", region="[i, :]").replace("] = a", "] = sum(a, axis=1)")
NAMED = "schedule s for rows:\n    f on sm, tile(i=32)\n"


@pytest.mark.parametrize(
    ("text", "numbers", "tiles"),
    [
        (TILED, {"M": 4096, "N": 4096}, {"i": 64, "j": 64}),
        (TILED, {"M": 40, "N": 4096}, {"i": 40, "j": 64}),
        (WHOLE, {"M": 4096, "N": 128}, {"i": 64}),
        (WHOLE, {"M": 4096, "N": 129}, {"i": 32}),
        (WHOLE, {"M": 4096, "N": 4096}, {"i": 2}),
        (WHOLE, {"M": 40, "N": 512}, {"i": 16}),
        (WHOLE, {"M": 4096, "N": 100000}, {"i": 1}),
        (SPREAD, {"M": 4096, "N": 128}, {"i": 64}),
        (WHOLE + NAMED, {"M": 4096, "N": 4096}, {"i": 32}),
    ],
    ids=["tiles", "few rows", "short rows", "padded rows", "long rows", "rounded down", "one row", "spread", "named"],
)
def test_values_of_whole_rows_get_fewer_rows(text: str, numbers: dict[str, int], tiles: dict[str, int]) -> None:
    module = parse_text(text, "test.tl")
    schedule = module.schedules[0] if module.schedules else None
    assert bind(module.programs[0], schedule, numbers, 1, CPU).stages["f"].tiles == tiles


@pytest.mark.parametrize(("programs", "left"), [(131, 1), (100, 32), (132, None), (500, None)])
def test_stages_on_their_own_leave_room_for_the_others(programs: int, left: int | None) -> None:
    text = ROWS.format(more=", j: N", value="x[i, j]", region="[i, j]").replace(
        "    compute", "    z : out [M, N]\n    compute"
    )
    text += "    compute g(i: M, j: N):\n        z[i, j] = x[i, j]\n"
    text += f"schedule s for rows:\n    f on sm({programs})\n    g on sm\n"
    module = parse_text(text, "test.tl")

    def main_programs(processor: str) -> int:
        bound = bind(module.programs[0], module.schedules[0], {"M": 4096, "N": 4096}, 1, target(processor))
        return next(k for k in bound.kernels if k.name == "g").programs

    if left is None:
        with pytest.raises(ScheduleError, match=f"take {programs} programs, and a rank of sm_90 holds 132"):
            main_programs("sm_90")
    else:
        assert main_programs("sm_90") == left
    assert main_programs("cpu") >= 1


BESIDE = """program beside(M, N):
    x : in [M, N]
    y : out [M, N]
    z : out [M, N]
    w : out [M, N]

    compute few(i: M):
        y[i, :] = x[i, :]

    compute after(i: M, j: N):
        w[i, j] = x[i, j]

    compute rest(i: M, j: N):
        z[i, j] = x[i, j]

schedule s for beside:
    few on sm({asked}), tile(i=1024)
    after {after}
    rest on sm, tile(i=64, j=64)
"""
OWN, FUSED, COPIED = "on sm(4), tile(i=1024, j=1024)", "in few epilogue, tile(i=1024, j=2048)", "on sm"


def beside(asked: int, after: str, processor: Target = H200) -> Bound:
    """4 tiles of `few`; 16 of `after` on its own, 8 in `few`, 4096 with the rest; 4096 of `rest`."""
    module = parse_text(BESIDE.format(asked=asked, after=after), "test.tl")
    return bind(module.programs[0], module.schedules[0], {"M": 4096, "N": 4096}, 1, processor)


@pytest.mark.parametrize(
    ("asked", "after", "programs"),
    [
        (3, OWN, {"few": 3, "after": 4, "rest": 125}),
        (16, OWN, {"few": 4, "after": 4, "rest": 124}),
        (500, OWN, {"few": 4, "after": 4, "rest": 124}),
        (16, FUSED, {"few": 8, "rest": 124}),
        (16, COPIED, {"few": 4, "after": 128, "rest": 128}),
    ],
)
def test_stages_too_small_for_their_sms_leave_them_to_the_others(
    asked: int, after: str, programs: dict[str, int]
) -> None:
    bound = beside(asked, after)
    assert {k.name: k.programs for k in bound.kernels} == programs
    streams = {k.stream: k.programs for k in bound.kernels}
    assert sum(streams.values()) == bound.target.resident_programs, "all are resident, and no SM is idle"


def test_stages_on_their_own_take_no_more_than_a_kernel_may_have() -> None:
    few = beside(16, COPIED, replace(CPU, grows=False)).kernels
    assert {k.name: k.programs for k in few} == {"few": 2, "after": 2, "rest": 2}


def test_cpu_ranks_have_as_many_programs_as_a_schedule_asks_for() -> None:
    """Those without SMs of their own have two each. All are processes, so all have room."""
    bound = beside(16, OWN, CPU)
    assert {k.name: k.programs for k in bound.kernels} == {"few": 4, "after": 4, "rest": 2}
    assert bound.together == bound.resident_programs == 10
    assert {k.name: k.programs for k in beside(3, COPIED, CPU).kernels} == {"few": 3, "after": 2, "rest": 2}


@pytest.mark.parametrize("name", ["copy", "main"])
def test_a_stage_may_have_the_name_of_a_stream(name: str) -> None:
    text = BESIDE.format(asked=2, after=COPIED).replace("few", name)
    module = parse_text(text, "test.tl")
    bound = bind(module.programs[0], module.schedules[0], {"M": 4096, "N": 4096}, 1, target("sm_90"))
    places = {k.name: (k.position, k.programs, k.on_side_stream) for k in bound.kernels}
    assert places == {name: (0, 2, True), "after": (0, 130, False), "rest": (1, 130, False)}
    assert not any(k.on_copy_engine for k in bound.kernels)


def test_asking_for_more_than_there_are_tiles_changes_nothing() -> None:
    """6 programs that wait fill what 2 others leave of 8 SMs: all fit, so it is safe and none begins late."""
    text = SHIFT + "schedule own for shift:\n    send on sm({asked}), tile(i=32)\n    add on sm, tile(i=8, j=8)\n"
    two, many = (planned(text.format(asked=asked), schedule="own", sms=8, M=64, N=64) for asked in (2, 16))
    assert {k.name: k.programs for k in many.bound.kernels} == {"send": 2, "add": 6}
    assert many.workers == two.workers and (many.worker == two.worker).all()
    assert refusals(many) == []
    simulated = [simulate(plan, H200S) for plan in (two, many)]
    assert len({one.seconds for one in simulated}) == 1
    begins = zip((kernel for kernel, _, _ in many.workers), simulated[1].timeline.worker_begin.tolist(), strict=True)
    assert len(set(begins)) == len(many.bound.kernels), "all programs of a kernel begin at once, on both ranks"
