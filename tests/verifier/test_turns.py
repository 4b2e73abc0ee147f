"""Progress that is read off the order of tiles: what it accepts ends, by the rule that runs all programs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import pytest

import tilelink
from tests.tiers import thorough
from tests.verifier.campaign import cases
from tests.verifier.mutations import Case, mutants
from tilelink import compiler
from tilelink.errors import ProgressError, TileLinkError
from tilelink.planning.any_program import together
from tilelink.planning.plan import Plan, make_plan
from tilelink.planning.queue_order import with_queue_order
from tilelink.verifier import RULES, Orders
from tilelink.verifier.progress import progress
from tilelink.verifier.turns import in_turn

NAMES = ("all_gather_ring", "gemm_rs_ring", "ag_gemm", "ag_gemm_ring", "all_reduce_two_shot", "fsdp", "gemm_ar")
"""Programs whose tiles wait for peers' ones, of the same kernel, of earlier ones and of copy engines."""
CROSSED = """
program crossed(M):
    x : in        [M]
    a : symmetric [M]
    b : symmetric [M]
    y : out       [M]

    compute first(i: M):
        consumer_tile_wait(b[i])
        a[i] = x[i] + b[i]
        producer_tile_notify(a[i])

    compute second(i: M):
        {before}
        b[i] = x[i]
        producer_tile_notify(b[i])
        {after}
        y[i] = a[i]

schedule one for crossed:
    first on sm, tile(i=4)
    second on sm{many}, tile(i=4)
"""
WAIT = "consumer_tile_wait(a[i])"


@cache
def case_of(name: str) -> Case:
    return next(cases(of=name))


def plans(case: Case) -> Iterator[Plan]:
    for mutant in mutants(case, 3):
        if mutant.level != "plan":
            try:
                yield with_queue_order(mutant.make())
            except TileLinkError:
                continue


@thorough(unless=lambda name: name in NAMES[:2])
@pytest.mark.parametrize("name", NAMES)
def test_what_is_in_turn_ends(name: str) -> None:
    found: set[bool] = set()
    for plan in (with_queue_order(case_of(name).plan()), *plans(case_of(name))):
        if next(RULES["accounting"](plan, Orders(plan)), None) is None:
            found.add(in_turn(plan))
            assert not in_turn(plan) or not [*progress(together(plan))]
    assert found


def plan(before: str, after: str, many: str) -> Plan:
    module = tilelink.parse(CROSSED.format(before=before, after=after, many=many))
    return make_plan(compiler.bound(module.program(), module.schedules[0], ranks=2, dims={"M": 16}))


@pytest.mark.parametrize("many", ["", "(2)"])
@pytest.mark.parametrize(("before", "after"), [(WAIT, ""), ("", WAIT)])
def test_what_never_ends_is_in_no_turn(before: str, after: str, many: str) -> None:
    """Kernels that wait for one another, or for a later one of their stream; tiles of two kernels may take turns."""
    one = plan(before, after, many)
    assert not in_turn(one)
    assert bool([*progress(one)]) is not (after == WAIT and bool(many))


def test_columns_that_are_not_those_of_the_program_are_not_read() -> None:
    good = make_plan(case_of(NAMES[0]).bound())
    assert in_turn(good)
    assert not in_turn(replace(good, worker=good.worker.copy()))


def test_programs_that_do_not_fit_are_asked_as_before() -> None:
    good = make_plan(case_of(NAMES[0]).bound())
    crowd = replace(good, bound=replace(good.bound, target=replace(good.bound.target, grows=False, sms=0)))
    assert good.bound.coresident_throughout > crowd.bound.resident_programs and crowd.as_enumerated
    assert not in_turn(crowd)
    with pytest.raises(ProgressError):
        raise next(RULES["progress"](crowd, Orders(crowd)))
