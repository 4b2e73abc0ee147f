"""Sizes that `check --sizes` names, and that a kept proof takes, are safe tile by tile (claims.py)."""

from __future__ import annotations

import random
from itertools import islice

import pytest

import tilelink
from tests.tiers import thorough
from tests.verifier.claims import Claim, all_claims, claims, making
from tilelink.planning import statement


@thorough(unless=lambda seed: seed == 0)
@pytest.mark.parametrize("seed", range(40))
def test_no_claim_is_false(seed: int) -> None:
    found = [*islice(all_claims(seed), 10 if seed == 0 else 60)]
    assert [one for one in found if one.wrong is not None] == []
    assert sum(one.taken for one in found) > len(found) // 2, "the proof of the first size is taken for most"


TOLD = tilelink.parse("""
program told(M, N, K):
    to   : in        [4] < M
    x    : in        [M, N]
    c    : in        [K, N]
    y    : out       [M, N]

    compute add(i: M, j: N):
        y[i, j] = x[i, j] + c[to[0], j]
""").program()


def of_told() -> list[Claim]:
    make = making(TOLD, tilelink.schedule(TOLD).tile("add", i=1, j=8), {"M": 8, "N": 32, "K": 16}, 2)
    return [*claims("told", make, random.Random(0), 8)]


def test_a_false_claim_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries are below M, and name rows of K."""
    right = of_told()
    assert right and all(one.wrong is None and one.size.startswith("N=") for one in right)
    monkeypatch.setattr(statement, "_sizes", lambda _: iter(()))
    assert any("outside c" in str(one.wrong) for one in of_told())
