"""Programs with numbers below zero in entries, ends and places are refused, or right in all of their launches."""

from __future__ import annotations

import pytest

from tests.tiers import thorough
from tests.verifier.negatives import drawn, judge
from tilelink.verifier import undefined_reads

FEW, MANY = 20, 1200
FAMILIES_OF_ALL_NUMBERS = (566,)
"""Programs that are accepted, and wrong, if what is proved of a family for numbers from 0 on is taken for others."""


@thorough(unless=lambda first: first < 2 * FEW)
@pytest.mark.parametrize("first", range(0, MANY, FEW))
def test_what_is_accepted_is_right_in_all_launches(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(undefined_reads, "FEW", 0)  # families are asked of each box, however few its reads are
    said = {seed: judge(drawn(seed)) for seed in range(first, first + FEW)}
    assert {seed: one for seed, one in said.items() if one.wrong} == {}
    assert sum(not one.refused for one in said.values()) >= FEW // 5, "it is not silence"


@pytest.mark.parametrize("few", [0, undefined_reads.FEW])
@pytest.mark.parametrize("seed", FAMILIES_OF_ALL_NUMBERS)
def test_a_family_stands_for_no_numbers_below_zero(seed: int, few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(undefined_reads, "FEW", few)
    verdict = judge(drawn(seed))
    assert verdict.refused == "coverage" and verdict.unwritten
