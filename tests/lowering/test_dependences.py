"""Iterations of a loop over tiles that meet in memory would depend on how many there are: they are refused."""

from __future__ import annotations

import pytest

import tilelink
from tilelink.errors import TileSizeError
from tilelink.lowering.bind import bind
from tilelink.lowering.bound import Bound
from tilelink.target import CPU

PROGRAM = """\
program looped(K, L):
    x : in [L, L]
    c : local [L, L]
    d : symmetric [L, L]

    comm make(one: 1):
        {}

schedule tiled for looped:
    make on sm, tile(k={})
"""


def looped(body: str, size: int = 4, ranks: int = 2) -> Bound:
    module = tilelink.parse(PROGRAM.format(body.replace("\n", "\n        "), size))
    return bind(module.programs[0], module.schedules[0], {"K": 15, "L": 16}, ranks, CPU)


MEETING = {
    "for (k: K):\n    t = c[0, 0 + k]\n    c[0, 1 + k] = t": "c[0, 1 + k] in one iteration where it reads c[0, 0 + k]",
    "for (k: K):\n    if rank > 0:\n        t = c[:, 0 + k]\n        c[0 + k, :] = t.T": "writes c[0 + k, :]",
    "for (k: K):\n    c[0, 0 + k] = x[0, 0 + k]\n    c[0, 1 + k] = x[1, 0 + k]": "writes c[0, 1 + k]",
    "for (k: K):\n    c[0, :] = zeros(f32)\n    c[0, 0 + k] = x[0, 0 + k]": "where it writes c[0, :] in another",
    "for (k: K, s: 2):\n    c[0, s + k] = x[s, 0 + k]": "writes c[0, s + k] in one iteration where it",
    "for (k: K):\n    for (s: 2):\n        c[0, s + k] = x[s, 0 + k]": "writes c[0, s + k]",
    "for (s: 2):\n    for (k: K):\n        t = d[0, 0 + k]\n        tile_push_data(d[0, 1 + k] @ (rank + s), t)": (
        "writes d[0, 1 + k] @ ((rank + s) % 2) in one iteration where it reads d[0, 0 + k] in another"
    ),
}


@pytest.mark.parametrize(("body", "what"), MEETING.items())
def test_rounds_that_meet_in_memory_are_refused(body: str, what: str) -> None:
    with pytest.raises(TileSizeError, match="loops over tiles of k, of 4 elements each, and") as refused:
        looped(body)
    assert what in refused.value.message
    assert "tile(k=16) holds all of it" in str(refused.value.hint)


@pytest.mark.parametrize("body", [body for body in MEETING if "rank" not in body])
def test_one_round_meets_no_other(body: str) -> None:
    assert looped(body, 16).stages["make"].count("k") == 1


@pytest.mark.parametrize(
    "body",
    [
        "for (k: K):\n    t = c[0, 0 + k]\n    c[0, 0 + k] = t + 1.0",
        "for (k: K):\n    t = c[0, 0 + k]\n    c[1, 1 + k] = t",
        "for (s: 2, k: K):\n    c[0, s + k] = x[s, 0 + k]",
        "for (k: K):\n    t = d[0, 0 + k]\n    tile_push_data(d[0, 1 + k] @ (rank + 1), t)",
        "for (k: K):\n    if k > 0:\n        t = c[0, k - 1]\n        c[0, k] = t",
    ],
)
def test_rounds_that_do_not_meet_are_accepted(body: str) -> None:
    assert looped(body, 1 if "if k" in body else 4).stages["make"].count("k") > 1
