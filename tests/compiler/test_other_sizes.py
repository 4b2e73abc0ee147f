"""For which other sizes a proof is said to hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

import tilelink
from tilelink import compiler
from tilelink.compiler.other_sizes import Multiples, dimensions, other_ranks, other_sizes
from tilelink.planning.plan import make_plan
from tilelink.planning.queue_order import with_queue_order
from tilelink.verifier import verify

SHIFTED = """
program shifted(M, N, K):
    x    : in        [M, N]
    w    : in        [{w}]
    left : symmetric [M, N]
    y    : out       [M, N]

    comm send(i: M, j: N):
        tile_push_data(left[i, j] @ (rank + 1), x[i, j])
        producer_tile_notify(left[i, j] @ (rank + 1))

    compute add(i: M, j: N):
        consumer_tile_wait(left[{rows}, j])
        y[i, j] = x[i, j] + left[{rows}, j] * sum(w[:], axis=0)

schedule tiled for shifted:
    send on sm, tile(i=16, j=8)
    add on sm, tile(i=8, j=8){more}
    left channel(i=16, j=8)
"""


def found(rows: str = "i", more: str = "", w: str = "K", **dims: int) -> tuple[dict[str, Multiples | str], Any]:
    module = tilelink.parse(SHIFTED.format(rows=rows, more=more, w=w))
    sizes = {"M": 128, "N": 64, "K": 24, **dims}

    def bound_with(changed: Mapping[str, int]) -> Any:
        return compiler.bound(module.program(), module.schedules[0], ranks=3, dims={**sizes, **changed})

    plan = compiler.plan(module.program(), module.schedules[0], ranks=3, dims=sizes)
    assert dimensions(module.program()) == ["M", "N", *("K" for _ in w if w == "K")]
    return other_sizes(plan, bound_with), bound_with


def named(sizes: Mapping[str, Multiples | str]) -> set[str]:
    """The dimensions that may have other sizes."""
    return {name for name, one in sizes.items() if isinstance(one, Multiples)}


FOLDED = {
    "a loop": (
        "y[i, j] = x[i, j] +",
        "total = x[i, j]\n        for (u: M // 512):\n            total += x[i, j]\n        y[i, j] = total +",
    ),
    "a rank": ("left[i, j] @ (rank + 1), x", "left[i, j] @ (rank + 1 + M // 512), x"),
    "a condition": (
        "        producer_tile_notify(left",
        "        if (M // 16) % 5 // 4 == 0:\n            producer_tile_notify(left",
    ),
}


@pytest.mark.parametrize("what", FOLDED)
def test_a_dimension_whose_quotient_decides_something_is_not_named(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sizes that are looked at have the same quotient, and others have not."""
    old, new = FOLDED[what]
    assert old in SHIFTED
    monkeypatch.setitem(globals(), "SHIFTED", SHIFTED.replace(old, new))
    sizes, _ = found()
    assert named(sizes) == {"N"} and "a quotient, a remainder" in str(sizes["M"])


def test_dimensions_whose_blocks_are_alike_may_have_other_sizes() -> None:
    sizes, bound_with = found()
    held = {name: one for name, one in sizes.items() if isinstance(one, Multiples)}
    assert sizes == {**held, "K": "a tile takes all of it"}
    assert held == {"M": Multiples(of=16, least=48), "N": Multiples(of=8, least=24)}
    assert [str(one) for one in held.values()] == ["any multiple of 16 from 48 on", "any multiple of 8 from 24 on"]
    for name, sizes in held.items():
        for size in (sizes.least, sizes.least + sizes.of, 7 * sizes.of):
            verify(with_queue_order(make_plan(bound_with({name: size}))))  # all of its tiles are asked


@pytest.mark.parametrize(
    ("changes", "left", "why"),
    [
        ({"rows": "0"}, "N", "its blocks are not alike"),  # each tile waits for the first row
        ({"more": ", order(j, i = rank step +1)"}, "N", "its blocks are not alike"),  # ranks begin with other rows
        ({"w": "N"}, "M", "a tile takes all of it"),
        ({"M": 120}, "N", "it ends within a tile of 16: --set M=128 asks a multiple of that"),
        ({"M": 120, "rows": "0"}, "N", "its blocks are not alike"),  # whole tiles are not alike either
        ({"M": 32}, "N", "it has so few blocks that all of them were asked"),
        ({"M": 8}, "N", "it is less than a tile of 16: --set M=128 asks a multiple of that"),
        ({"M": 8, "rows": "0"}, "N", "its blocks are not alike"),
    ],
)
def test_others_are_not_named_and_it_is_said_why(changes: dict[str, Any], left: str, why: str) -> None:
    sizes, _ = found(**changes)
    (other,) = {"M", "N"} - {left}
    assert named(sizes) == {left} and str(sizes[other]).startswith(why)


ALL = """
program shared(M, N):
    x : in        [M, N]
    h : symmetric [ranks, M, N]
    y : out       [ranks, M, N]

    comm send(p: ranks, i: M, j: N):
        tile_push_data(h[rank, i, j] @ p, x[i, j])
        producer_tile_notify(h[rank, i, j] @ p)

    compute keep(s: ranks, i: M, j: N):
        consumer_tile_wait(h[s, i, j])
        {kept}

schedule s for shared:
    send on sm(1)
    keep on sm(1)
"""
KEPT = "y[s, i, j] = h[s, i, j]"


@pytest.mark.parametrize(("kept", "held"), [
    (KEPT, Multiples(of=1, least=16)),
    (f"total = h[s, i, j]\n        for (u: max(ranks, 8)):\n            total += x[i, j]\n        {KEPT}",
     "a quotient, a remainder, a minimum or the like of it decides something"),
    (f"if rank < ranks - 40:\n            {KEPT}\n        else:\n            {KEPT}", "each rank was asked"),
])  # fmt: skip
def test_numbers_of_ranks_are_named_if_few_stand_for_all(kept: str, held: Multiples | str) -> None:
    module = tilelink.parse(ALL.format(kept=kept))

    def bound_on(ranks: int) -> Any:
        return compiler.bound(module.program(), module.schedules[0], ranks=ranks, dims={"M": 64, "N": 32})

    plan = compiler.plan(module.program(), module.schedules[0], ranks=72, dims={"M": 64, "N": 32})
    assert other_ranks(plan, bound_on) == held
