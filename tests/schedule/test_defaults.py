"""Tile sizes that nobody named: as large as what the body keeps allows."""

from __future__ import annotations

import pytest

from tilelink.errors import ScheduleError
from tilelink.frontend.parser import parse_text
from tilelink.schedule.bind import bind
from tilelink.target import CPU, target

ROWS = """program rows(M, N):
    x : in [M, N]
    y : out [M, N]
    compute f(i: M{more}):
        a = {value}
        y{region} = a
"""
WHOLE = ROWS.format(more="", value="x[i, :] * x[i, :]", region="[i, :]")
TILED = ROWS.format(more=", j: N", value="x[i, j] * x[i, j]", region="[i, j]")
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
        (WHOLE + NAMED, {"M": 4096, "N": 4096}, {"i": 32}),
    ],
    ids=["tiles", "few rows", "short rows", "padded rows", "long rows", "rounded down", "one row", "named"],
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
