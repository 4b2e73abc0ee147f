# pyright: basic
"""Kernels whose warps have roles, on one GPU: the result of every form, and rows that arrive while a kernel waits."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks.measure import Watchdog
from tests.gpu import roles_counted
from tests.gpu.roles_forms import FORMS, check_form, check_late_rows, check_notifies

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def ended() -> Iterator[None]:
    with Watchdog(60.0).step("a kernel with roles"):
        yield


@pytest.mark.parametrize("form", FORMS)
def test_a_form_computes_what_is_meant_and_nothing_else(form: str) -> None:
    check_form(form)


@pytest.mark.parametrize("form", roles_counted.FORMS)
def test_one_kernel_computes_the_rows_of_every_launch(form: str) -> None:
    roles_counted.check_form(form)


def test_notifies_follow_what_they_announce_finished() -> None:
    check_notifies()


def test_rows_that_arrive_late_are_waited_for() -> None:
    check_late_rows()
