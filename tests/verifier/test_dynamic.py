"""The dynamic checker: it sees each kind of failure, and none in the library."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.compiler.library import Case, cases, groups, is_featured, name, spread
from tests.tiers import thorough
from tests.verifier import dynamic
from tests.verifier.dynamic import KINDS, Failure, Script, check
from tilelink.frontend.parser import parse_text
from tilelink.lowering.bind import bind
from tilelink.lowering.events import NOTIFY
from tilelink.planning.plan import Plan, make_plan
from tilelink.target import CPU
from tilelink.verifier import refusals

DIMS = {"L": 4, "Ds": 16, "H": 16, "E": 8, "k": 2, "M": 50, "Ms": 50, "N": 36, "K": 40}
HEAD = "program p(M, N):\n    x : in [M, N]\n    h : symmetric [M, N]\n    y : out [M, N]\n"
SEND = "    comm send(i: M):\n        tile_push_data(h[i, :] @ (rank + 1), x[i, :])\n"
NOTICE = "        producer_tile_notify(h[i, :] @ (rank + 1))\n"
WAIT = "        consumer_tile_wait(h[i, j])\n"
ADD = "    compute add(i: M, j: N):\n" + WAIT + "        y[i, j] = x[i, j] + h[i, j]\n"
BESIDE = "schedule s for p:\n    send on sm(2), tile(i=16)\n"


def planned(text: str, ranks: int = 3, nodes: int = 1) -> Plan:
    module = parse_text(text, "test.tl")
    dims = {p.name: DIMS[p.name] for p in module.programs[0].params}
    schedule = module.schedules[0] if module.schedules else None
    return make_plan(bind(module.programs[0], schedule, dims, ranks, CPU, nodes=nodes))


def kinds(plan: Plan, seeds: int = 40) -> set[str]:
    return {failure.kind for failure in every_failure(plan, seeds)}


def every_failure(plan: Plan, seeds: int = 40) -> list[Failure]:
    """The failures of each of some interleavings, not only of the first one that fails."""
    script = Script(plan)
    return [failure for seed in range(seeds) for failure in check(script, [seed])]


@thorough(unless=lambda case: is_featured(case))
@pytest.mark.parametrize(("case", "ranks"), spread(cases(), 2, 3, 4), ids=name)
def test_the_library_runs_without_failure(case: Case, ranks: int) -> None:
    program, schedule = case
    if any(tensor.bound is not None for tensor in program.tensors):
        pytest.skip("a launch decides about its tiles; `python -m tests.campaign --launches` runs them instead")
    dims = {p.name: p.example or DIMS[p.name] for p in program.params if p.kind == "dim"} | groups(program, ranks)
    dims |= {p.name: 0.5 for p in program.params if p.kind == "f32"}
    assert check(make_plan(bind(program, schedule, dims, ranks, CPU)), range(2)) == []


CASES = {
    "nothing orders the read": (HEAD + SEND + NOTICE + ADD.replace(WAIT, "") + BESIDE, {"unwritten", "race"}),
    "notified too early": (
        HEAD + "    comm send(i: M):\n" + NOTICE + SEND.splitlines(keepends=True)[1] + ADD + BESIDE,
        {"unwritten", "race"},
    ),
    "a circle of waits": (
        HEAD
        + "    compute a(i: M):\n        peer_tile_wait(h[i, :])\n        y[i, :] = h[i, :]\n"
        + "        tile_push_data(h[i, :] @ (rank + 1), x[i, :])\n        peer_tile_notify(h[i, :] @ (rank + 1))\n",
        {"deadlock"},
    ),
    "an output nobody writes": (HEAD + SEND + NOTICE, {"output"}),
    "an output written twice": (
        HEAD
        + "    compute a(i: M):\n        y[i, :] = x[i, :]\n        program_barrier()\n        y[i, :] = x[i, :]\n",
        {"output"},
    ),
    "threads that do not meet": (
        HEAD + "    compute a(i: M):\n        y[i, :] = x[i, :]\n        y[i, :] = x[i, :]\n",
        {"threads"},
    ),
    "an access outside": (HEAD + "    compute a(i: M):\n        y[i, :] = x[0 - 1 + i, :]\n", {"outside"}),
    "a buffer overtaken": (
        HEAD + SEND + NOTICE + ADD + BESIDE + "    h buffers 1\n    reuse_wait off\n",
        {"race", "epoch", "overshoot"},
    ),
    "two writers at once": (
        HEAD
        + "    comm a(p: ranks, i: M):\n        tile_push_data(h[i, :] @ p, x[i, :])\n"
        + "        producer_tile_notify(h[i, :] @ p)\n"
        + ADD,
        {"race"},
    ),
}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_each_kind_of_failure_is_seen(case: str) -> None:
    text, expected = CASES[case]
    assert kinds(planned(text)) == expected


def test_a_race_is_seen_from_both_sides() -> None:
    text = (
        "program p(M, N):\n    x : in [M, N]\n    h : local [M, N]\n    y : out [M, N]\n"
        "    compute a(i: M):\n        h[i, :] = x[i, :]\n        producer_tile_notify(h[i, :])\n"
        "    compute b(i: M):\n        consumer_tile_wait(h[i, :])\n        y[i, :] = h[i, :]\n"
        "    compute c(i: M):\n        consumer_tile_wait(h[i, :])\n        h[i, :] = x[i, :]\n"
        "schedule s for p:\n    b on sm(1)\n    c on sm(1)\n"
    )
    found = every_failure(planned(text))
    assert {failure.kind for failure in found} == {"race"}
    assert {failure.what.split()[1] for failure in found} == {"b", "c"}


def test_every_kind_has_a_case() -> None:
    assert set().union(*(expected for _, expected in CASES.values())) == set(KINDS) - {"unreachable", "step"}


def test_a_step_that_another_one_has_overwritten_is_seen() -> None:
    text = (
        "program p(M, N):\n    x : in [M, N]\n    h : symmetric [4, M, N]\n    y : out [M, N]\n"
        "    comm send(l: 4 by 1):\n        if l > 0:\n            peer_tile_wait(h[l - 1, :, :])\n"
        "        tile_push_data(h[l, :, :] @ (rank + 1), x[:, :])\n        peer_tile_notify(h[l, :, :] @ (rank + 1))\n"
        "    compute keep(i: M):\n        peer_tile_wait(h[:, i, :])\n        y[i, :] = h[2, i, :]\n"
        "schedule s for p:\n    send on sm(1)\n"
    )
    plan = planned(text)
    for slots, expected in ((4, set[str]()), (3, set[str]()), (2, set[str]()), (1, {"step"})):
        tensors = {**plan.bound.tensors, "h": replace(plan.bound.tensors["h"], steps=(0, slots))}
        made = replace(plan, bound=replace(plan.bound, tensors=tensors))
        assert kinds(made, 10) == expected
        assert {refused.rule for refused in refusals(made)} == ({"steps"} if expected else set())


def test_another_node_is_not_reached_by_an_address() -> None:
    text = "program p(M, N):\n    x : in symmetric [M, N]\n    y : out [M, N]\n"
    text += "    compute a(i: M):\n        y[i, :] = x[i, :] @ (rank + 1) + 1.0\n"
    assert kinds(planned(text)) == set()
    assert kinds(planned(text, nodes=3)) == {"unreachable"}


def test_a_notify_too_many_overshoots_and_one_too_few_hangs() -> None:
    plan = planned(HEAD + SEND + NOTICE + ADD + BESIDE)
    row = int(np.flatnonzero(plan.signals.kind == NOTIFY)[0])
    names = plan.signals.__dataclass_fields__
    more = {f: np.append(getattr(plan.signals, f), getattr(plan.signals, f)[row]) for f in names}
    fewer = {f: np.delete(getattr(plan.signals, f), row) for f in names}
    assert kinds(plan) == set()
    assert "overshoot" in kinds(replace(plan, signals=replace(plan.signals, **more)))
    assert kinds(replace(plan, signals=replace(plan.signals, **fewer))) == {"deadlock"}


def test_the_end_of_a_launch_waits_for_what_peers_write_into_outputs() -> None:
    text = "program p(M, N):\n    x : in [M, N]\n    y : out symmetric [M, N]\n"
    push = "    comm a(i: M):\n        tile_push_data(y[i, :] @ (rank + 1), x[i, :])\n"
    assert kinds(planned(text + push + "        producer_tile_notify(y[i, :] @ (rank + 1))\n")) == set()
    assert "output" in kinds(planned(text + push + "        producer_tile_notify(y[i, :])\n"))


def test_a_peers_input_is_read_after_it_entered() -> None:
    text = "program p(M, N):\n    x : in symmetric [M, N]\n    y : out [M, N]\n"
    plan = planned(text + "    compute a(i: M):\n        y[i, :] = x[i, :] @ (rank + 1)\n")
    early = tuple(replace(k, needs_entry=False) for k in plan.bound.kernels)
    assert kinds(plan) == set()
    assert kinds(replace(plan, bound=replace(plan.bound, kernels=early))) & {"unwritten", "epoch"}


def test_programs_that_do_not_fit_wait_for_their_turn() -> None:
    plan = planned(HEAD + SEND + NOTICE + ADD + BESIDE)
    tiny = replace(plan, bound=replace(plan.bound, target=replace(CPU, grows=False, sms=1)))
    assert kinds(tiny) == {"deadlock"}


def test_it_shares_nothing_with_the_verifier() -> None:
    tree = ast.parse(Path(dynamic.__file__).read_text())
    names = [n.module or "" for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)]
    names += [a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names]
    columns = {"tilelink.lowering.columns", "tilelink.lowering.events", "tilelink.planning.plan"}
    statements = {"tilelink.ir.program", "tilelink.ir.visitor"}
    assert {n for n in names if n.startswith("tilelink")} == columns | statements
