"""Targets: the facts planning relies on, and the look-up by name."""

import dataclasses

import pytest

from tilelink.errors import TileLinkError, UnknownTargetError
from tilelink.target import CPU, H200, MI300X, TARGETS, Target, target


@pytest.mark.parametrize("one", TARGETS, ids=str)
def test_a_target_is_found_by_its_name(one: Target) -> None:
    assert target(one.name) is one


def test_names_are_unique() -> None:
    assert len({one.name for one in TARGETS}) == len(TARGETS)


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UnknownTargetError) as caught:
        target("sm_91")
    assert isinstance(caught.value, TileLinkError)
    for name in ("sm_91", "cpu", "sm_80", "sm_89", "sm_90", "gfx942"):
        assert name in str(caught.value)


def test_the_resident_programs_are_those_of_all_sms() -> None:
    assert H200.resident_programs == 132
    assert dataclasses.replace(H200, programs_per_sm=2).resident_programs == 264


@pytest.mark.parametrize(("one", "architecture"), [(CPU, 0), (H200, 90), (MI300X, "gfx942")], ids=str)
def test_architecture_is_what_triton_takes(one: Target, architecture: int | str) -> None:
    assert one.architecture == architecture


def test_only_hopper_has_bulk_copies_and_fits_its_largest_tile() -> None:
    assert [one.name for one in TARGETS if one.tma] == ["sm_90"]
    assert H200.shared_memory == 227 * 1024
