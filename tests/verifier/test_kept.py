"""Tensors that are kept between launches: the order of their accesses, within a launch and from one to the next."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

import tilelink
from tests.kept_programs import OF_ITS_RANK, SHARED, SIZES
from tests.verifier.campaign import judge
from tests.verifier.dynamic import check
from tests.verifier.mutations import Case, mutants
from tilelink.errors import OrderingError, ReuseError, ScheduleError
from tilelink.planning.plan import Plan
from tilelink.verifier import refusals

PROGRAMS = {**OF_ITS_RANK, **SHARED}
LAUNCHES = (
    "waits for too early a launch", "lose wait", "lose notify", "notify first", "drop wait", "drop notify",
    "no reuse wait", "write to another rank",
)  # fmt: skip
"""Mistakes that concern the order of a launch and of the next one."""


def case(name: str, clauses: str = "", ranks: int = 3) -> Case:
    text = PROGRAMS[name]
    module = tilelink.parse(f"{text}schedule s for p:\n{clauses}" if clauses else text)
    program = module.program("p")
    schedule = module.schedule("s", program) if clauses else None
    numbers = {one.name: SIZES[one.name] for one in program.params}
    return Case(program=program, schedule=schedule, numbers=dict(numbers), ranks=ranks)


def without_lag(plan: Plan, kernel: str) -> Plan:
    kernels = tuple(replace(one, reuse_lag=0) if one.name == kernel else one for one in plan.bound.kernels)
    return replace(plan, bound=replace(plan.bound, kernels=kernels))


@pytest.mark.parametrize("name", PROGRAMS)
def test_accepted_and_no_interleaving_fails(name: str) -> None:
    plan = case(name).plan()
    assert not refusals(plan) and not check(plan)
    lags = {kernel.reuse_lag for kernel in plan.bound.kernels}
    assert lags == ({1} if name in SHARED else {0}), "launches of one rank follow one another"
    assert all(one.buffers == 1 for one in plan.bound.tensors.values() if one.decl.in_place)


@pytest.mark.parametrize("name", ["last", "pulled"])
def test_also_by_the_copy_engine(name: str) -> None:
    plan = case(name, f"    {'send' if name == 'last' else 'fetch'} on copy_engine\n").plan()
    assert not refusals(plan) and not check(plan)


FIRST = [("last", "take"), ("relayed", "take"), ("pulled", "fetch"), ("told", "before")]
"""Kernels that access what a peer has accessed in the launch before, with no signal of this launch before that."""


@pytest.mark.parametrize(("name", "kernel"), FIRST)
def test_a_kernel_waits_for_the_launch_before(name: str, kernel: str) -> None:
    """Also one that reaches no peer, and reads what a peer has written in the launch before."""
    plan = without_lag(case(name).plan(), kernel)
    assert [type(one) for one in refusals(plan, limit=1)] == [ReuseError]


@pytest.mark.parametrize(("name", "kernel"), [("last", "send"), ("relayed", "send"), ("pulled", "change")])
def test_a_signal_of_this_launch_is_as_good(name: str, kernel: str) -> None:
    plan = without_lag(case(name).plan(), kernel)
    assert not refusals(plan) and not check(plan)


@pytest.mark.parametrize(("name", "kernel"), [("relayed", "take"), ("pulled", "fetch")])
def test_without_that_wait_some_interleaving_fails(name: str, kernel: str) -> None:
    assert check(without_lag(case(name).plan(), kernel), range(40))


@pytest.mark.parametrize("name", SHARED)
def test_refused_if_ranks_do_not_wait_for_launches(name: str) -> None:
    plan = case(name, "    reuse_wait off\n").plan()
    (error,) = refusals(plan, limit=1)
    assert isinstance(error, ReuseError)
    assert "may still use for the previous launch" in error.message and error.hint == "drop `reuse_wait off`"


@pytest.mark.parametrize("name", SHARED)
def test_no_accepted_mutant_fails(name: str) -> None:
    """All ranks' launches, one mistake each."""
    one = case(name)
    chosen = [mutant for mutant in mutants(one, per_kind=1, seed=3) if mutant.kind in LAUNCHES]
    found = [judge(one, mutant) for mutant in chosen]
    outcomes = Counter(verdict.outcome for verdict in found)
    assert not outcomes["accepted, fails"], [str(v) for v in found if v.outcome == "accepted, fails"]
    assert outcomes["refused, fails"] >= 3, outcomes
    assert all(v.why for v in found if v.outcome == "refused, never failed")


def test_a_read_of_what_a_peer_writes_needs_a_signal() -> None:
    text = SHARED["last"].replace("        consumer_tile_wait(last[i, :])\n", "")
    program = tilelink.parse(text).program("p")
    with pytest.raises(OrderingError, match=r"reads last of rank \d, which .* orders the two") as caught:
        tilelink.plan(program, ranks=2, dims={"M": 12, "N": 8})
    assert "or notify it after the read and wait for it before the write" in str(caught.value)


@pytest.mark.parametrize("clause", ["buffers 2", "slots(m=2)"])
def test_it_has_one_place_in_memory(clause: str) -> None:
    with pytest.raises(ScheduleError) as caught:
        case("last", f"    last {clause.replace('m=', 'i=')}\n").plan()
    assert caught.value.hint
