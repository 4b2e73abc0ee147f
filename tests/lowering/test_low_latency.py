"""Which signals belong to which accesses, where a launch decides about both."""

from __future__ import annotations

import numpy as np

from tilelink.lowering.clauses.low_latency import reached


def test_rows_reach_others_of_their_key_whose_guard_matches() -> None:
    random = np.random.default_rng(7)
    for _ in range(200):
        keys, places, guards = (int(n) for n in random.integers(1, 6, 3))
        rows, others = (
            tuple(random.integers(0, n, int(random.integers(0, 30))) for n in (keys, places, guards)) for _ in range(2)
        )
        rows, others = (tuple(column[: min(map(len, one))] for column in one) for one in (rows, others))
        fits = random.random((guards, guards)) < 0.3
        np.fill_diagonal(fits, val=True)  # a guard matches itself
        found = reached(
            (rows[0], rows[1], rows[2]), (others[0], others[1], others[2]), lambda a, b, f=fits: bool(f[a, b])
        )
        wanted = [
            any(key == other and at > place and fits[guard, own] for other, at, own in zip(*others, strict=True))
            for key, place, guard in zip(*rows, strict=True)
        ]
        assert found.tolist() == wanted
