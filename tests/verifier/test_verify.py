"""The rules: each refuses what breaks it, and safe programs pass."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.compiler.library import cases, dims, groups, is_featured, is_one_of_few, is_own
from tests.tiers import thorough
from tilelink.compiler import library
from tilelink.errors import (
    AccountingError,
    CoverageError,
    ExclusiveWriteError,
    OrderingError,
    ProgressError,
    ReuseError,
    VerificationError,
)
from tilelink.frontend.parser import parse_text
from tilelink.ir.link import link, strip
from tilelink.ir.program import Program, Store, Transfer
from tilelink.ir.scalar import RANK
from tilelink.ir.visitor import reads, statements
from tilelink.lowering.bind import bind
from tilelink.lowering.events import NOTIFY
from tilelink.planning.happens_before import HappensBefore
from tilelink.planning.plan import Plan, make_plan
from tilelink.scheduling.schedule import IndexOrder
from tilelink.target import CPU
from tilelink.verifier import refusals, verify

DIMS = {"M": 50, "Ms": 50, "N": 36, "K": 40}
HEAD = "program p(M, N):\n    x : in [M, N]\n    h : symmetric [M, N]\n    y : out [M, N]\n"
SEND = "    comm send(i: M):\n        tile_push_data(h[i, :] @ (rank + 1), x[i, :])\n"
NOTICE = "        producer_tile_notify(h[i, :] @ (rank + 1))\n"
ADD = "    compute add(i: M, j: N):\n        consumer_tile_wait(h[i, j])\n        y[i, j] = x[i, j] + h[i, j]\n"


def planned(text: str, ranks: int = 3, numbers: dict[str, int] | None = None) -> Plan:
    """The plan of the first program and (if there is one) the first schedule of a text."""
    module = parse_text(text, "test.tl")
    program = module.programs[0]
    dims = {p.name: (numbers or DIMS)[p.name] for p in program.params}
    return make_plan(bind(program, module.schedules[0] if module.schedules else None, dims, ranks, CPU))


def sizes(program: Program, ranks: int) -> dict[str, Any]:
    """Return sizes of a program of the library: those of these tests, or else its examples."""
    known = {p.name: DIMS[p.name] for p in program.params if p.kind == "dim" and p.name in DIMS}
    return dims(program, ranks) | (known if len(known) == len(program.params) else {}) | groups(program, ranks)


ON = [(*case, ranks) for case in cases() for ranks in (1, 3, 5) if ranks >= len(case[0].groups)]
"""Each case on numbers of ranks of which every group of it has one."""


@thorough(
    unless=lambda program, schedule, ranks: (
        is_one_of_few((program, schedule))
        or (ranks == 3 and (is_featured((program, schedule)) or is_own((program, schedule))))
    )
)
@pytest.mark.parametrize(("program", "schedule", "ranks"), ON, ids=str)
def test_the_library_is_safe(program, schedule, ranks: int) -> None:  # pyright: ignore
    dims = sizes(program, ranks)
    assert refusals(make_plan(bind(program, schedule, dims, ranks, CPU))) == []


@pytest.mark.parametrize("program", [p for m in library() for p in m.programs], ids=lambda p: p.name)
def test_linking_a_stripped_program_makes_it_safe_again(program) -> None:  # pyright: ignore
    linked = link(strip(program))
    assert link(linked) == linked
    dims = sizes(program, 3)
    found = refusals(make_plan(bind(linked, None, dims, 3, CPU)))
    names = pulled(program)
    assert bool(found) == bool(names)
    assert all(any(f" reads {name} of rank " in error.message for name in names) for error in found)


def pulled(program: Program) -> set[str]:
    """The tensors that stages write and others pull from peers: `link` does not know which ranks to tell."""
    every = [s for stage in program.stages for s in statements(stage.body)]
    written = {s.region.tensor for s in every if isinstance(s, Store)}
    read = {r for s in every if isinstance(s, Transfer) for r in reads(s.source) if r.rank is not None}
    return {region.tensor for region in read} & written


BROKEN = {
    "an output nobody writes": (CoverageError, HEAD + SEND + NOTICE, "output y of rank 0 is never written"),
    "an output written twice": (
        CoverageError,
        HEAD + "    compute a(i: M):\n        y[i, :] = x[i, :]\n    compute b(i: M):\n        y[i, :] = x[i, :]\n",
        "which is written 2 times",
    ),
    "a read of what nobody writes": (
        CoverageError,
        HEAD + "    compute a(i: M, j: N):\n        y[i, j] = h[i, j]\n",
        "parts of which no stage writes",
    ),
    "an access outside": (
        CoverageError,
        HEAD + "    compute a(i: M):\n        y[i, :] = x[0 - 1 + i, :]\n",
        "reaches outside x",
    ),
    "a missing wait": (
        OrderingError,
        HEAD + SEND + NOTICE + ADD.replace("        consumer_tile_wait(h[i, j])\n", ""),
        "nothing orders the two",
    ),
    "a notify before the data": (
        OrderingError,
        HEAD + "    comm send(i: M):\n" + NOTICE + SEND.splitlines(keepends=True)[1] + ADD,
        "nothing orders the two",
    ),
    "a missing notify": (AccountingError, HEAD + SEND + ADD, "which no stage notifies"),
    "a notify of the wrong kind": (
        AccountingError,
        HEAD + SEND + NOTICE.replace("producer", "peer") + ADD,
        "which no stage notifies",
    ),
    "a circle of waits": (
        ProgressError,
        HEAD
        + "    compute a(i: M):\n        peer_tile_wait(h[i, :])\n        y[i, :] = h[i, :]\n"
        + "        tile_push_data(h[i, :] @ (rank + 1), x[i, :])\n"
        + "        peer_tile_notify(h[i, :] @ (rank + 1))\n",
        "waits for ever",
    ),
    "a wait for a kernel that comes behind": (
        ProgressError,
        "program p(M):\n    x : in [M]\n    h : local [M]\n    y : out [M]\n"
        "    compute early(i: M):\n        consumer_tile_wait(h[i])\n        y[i] = h[i]\n"
        "    compute late(i: M):\n        h[i] = x[i]\n        producer_tile_notify(h[i])\n"
        "schedule s for p:\n    late on sm\n",
        "has not notified",
    ),
    "two writers": (
        ExclusiveWriteError,
        HEAD.replace("h : symmetric", "h : symmetric")
        + "    comm a(p: ranks, i: M):\n        tile_push_data(h[i, :] @ p, x[i, :])\n"
        + "        producer_tile_notify(h[i, :] @ p)\n"
        + ADD,
        "nothing orders the two",
    ),
    "two writes of which the order of tiles says the last": (
        ExclusiveWriteError,
        "program p(M):\n    x : in [M]\n    h : local [M]\n    y : out [M]\n"
        "    compute fill(l: 4, i: M):\n        h[i] = x[i] * l\n        producer_tile_notify(h[i])\n"
        "    compute use(i: M):\n        consumer_tile_wait(h[i])\n        y[i] = h[i]\n"
        "schedule s for p:\n    fill on sm(1), order(l, i)\n",
        "only the schedule orders the two",
    ),
    "a read that only the order of kernels puts before a write": (
        OrderingError,
        HEAD.replace("symmetric", "local") + "    compute fill(i: M, j: N):\n        h[i, j] = x[i, j]\n"
        "        producer_tile_notify(h[i, j])\n"
        "    compute use(i: M, j: N):\n        consumer_tile_wait(h[i, j])\n        y[i, j] = h[i, j]\n"
        "    compute again(i: M, j: N):\n        h[i, j] = x[i, j] * 2.0\n",
        "only the schedule orders the two",
    ),
    "a write that only follows the kernel of another one": (
        ExclusiveWriteError,
        "program p(M):\n    x : in [M]\n    c : local [M]\n    h : local [M]\n    y : out [M]\n"
        "    compute first(i: M):\n        c[i] = x[i]\n"
        "    compute tell(i: M):\n        h[i] = x[i]\n        producer_tile_notify(h[i])\n"
        "    compute again(i: M):\n        consumer_tile_wait(h[i])\n        c[i] = h[i] * 2.0\n        y[i] = c[i]\n"
        "schedule s for p:\n    again on sm(1)\n",
        "only the schedule orders the two",
    ),
    "an output its owner cannot wait for": (
        OrderingError,
        "program p(M, N):\n    x : in [M, N]\n    y : out symmetric [M, N]\n"
        "    comm a(i: M):\n        tile_push_data(y[i, :] @ (rank + 1), x[i, :])\n        notify(y[i, :])\n",
        "cannot know when its output is complete",
    ),
    "an output that its owner is told of too early": (
        OrderingError,
        "program p(M, N):\n    x : in [M, N]\n    y : out symmetric [M, N]\n"
        "    comm a(i: M):\n        producer_tile_notify(y[i, :] @ (rank + 1))\n"
        "        tile_push_data(y[i, :] @ (rank + 1), x[i, :])\n",
        "cannot know when its output is complete",
    ),
    "no wait for peers' launches": (
        ReuseError,
        HEAD + SEND + NOTICE + ADD + "schedule s for p:\n    h buffers 2\n    reuse_wait off\n",
        "may still use for the launch 2 before",
    ),
}


@pytest.mark.parametrize("case", BROKEN, ids=str)
def test_each_rule_refuses_with_place_and_hint(case: str) -> None:
    kind, text, words = BROKEN[case]
    found = refusals(planned(text))
    assert found, "accepted"
    assert type(found[0]) is kind
    assert words in found[0].message
    assert found[0].location is not None
    assert found[0].location.file == "test.tl"
    assert found[0].hint
    with pytest.raises(kind):
        verify(planned(text))


def test_a_missing_notify_names_what_is_written() -> None:
    """A tensor of which one signal is written by hand has no others."""
    found = refusals(planned(HEAD + SEND + ADD))[0]
    assert found.related is not None and found.related.line == 6
    assert found.hint is not None and "rank 2, send tile (i=0) writes it: notify it there" in found.hint


def test_an_order_whose_first_tiles_wait_for_the_last_is_refused() -> None:
    (module,) = (m for m in library() if any(p.name == "gemm_rs_ring" for p in m.programs))
    program = module.program("gemm_rs_ring")
    turned = IndexOrder(index="s", kind="sequence", start=RANK, step=1)
    backwards = module.schedule("ring", program).order("gemm", turned)
    plan = make_plan(bind(program, backwards, {"Ms": 200, "N": 64, "K": 32}, 4, CPU))
    found = refusals(plan)
    assert found
    assert isinstance(found[0], ProgressError)


def test_too_few_resident_programs_are_refused() -> None:
    text = HEAD + SEND + NOTICE + ADD + "schedule s for p:\n    add on sm, tile(i=8)\n    send on sm(1), tile(i=8)\n"
    module = parse_text(text)
    small = replace(CPU, sms=2, grows=False)
    assert refusals(make_plan(bind(module.programs[0], module.schedules[0], {"M": 50, "N": 36}, 3, small))) == []
    tiny = replace(CPU, sms=1, grows=False)
    found = refusals(make_plan(bind(module.programs[0], module.schedules[0], {"M": 50, "N": 36}, 3, tiny)))
    assert found
    assert isinstance(found[0], ProgressError)


def test_the_order_of_kernels_is_named_where_it_is_the_reason() -> None:
    text = HEAD + ADD + SEND + NOTICE + "schedule s for p:\n    add on sm\n    send on sm\n"
    found = refusals(planned(text))[0]
    assert isinstance(found, ProgressError)
    assert "send tile (i=0) has not notified: the kernel of send runs after that of add" in found.message
    assert found.hint == "declare send before add, or give send SMs of its own: `on sm(n)`"


def test_kernels_that_wait_for_each_other_are_told_to_have_sms_of_their_own() -> None:
    text = """
program layers(L, M):
    x : in [M]
    u : local [L + 1, M]
    d : local [L, M]
    y : out [M]
    compute begin(i: M):
        u[0, i] = x[i]
        notify(u[0, i])
    compute up(l: L by 1, i: M):
        wait(u[l, i])
        d[l, i] = u[l, i] * 2.0
        notify(d[l, i])
    compute down(l: L by 1, i: M):
        wait(d[l, i])
        u[l + 1, i] = d[l, i] + 1.0
        notify(u[l + 1, i])
    compute end(i: M):
        wait(u[L, i])
        y[i] = u[L, i]
schedule s for layers:
    begin on sm, tile(i=8)
    up on sm{own}, tile(i=8)
    down on sm{own}, tile(i=8)
    end on sm, tile(i=8)
"""

    def found(own: str) -> list[VerificationError]:
        module = parse_text(text.format(own=own), "layers.tl")
        return refusals(make_plan(bind(module.programs[0], module.schedules[0], {"L": 3, "M": 16}, 1, CPU)))

    (refusal,) = found("")[:1]
    assert isinstance(refusal, ProgressError) and "the kernel of down runs after that of up" in refusal.message
    assert refusal.hint is not None and "give up and down SMs of their own, `on sm(n)` each" in refusal.hint
    assert found("(1)") == [], "and that is right"


def test_kernels_that_do_not_fit_are_named_with_their_schedule() -> None:
    text = """
program tree(M):
    x : in [M]
    u : symmetric [M]
    d : symmetric [M]
    y : out [M]
    compute up(i: M):
        if rank == 1:
            tile_push_data(u[i] @ 0, x[i])
            producer_tile_notify(u[i] @ 0)
        else:
            consumer_tile_wait(u[i])
            d[i] = u[i]
            producer_tile_notify(d[i])
    compute down(i: M):
        if rank == 0:
            consumer_tile_wait(d[i])
            tile_push_data(d[i] @ 1, d[i])
            producer_tile_notify(d[i] @ 1)
    compute store(i: M):
        consumer_tile_wait(d[i])
        y[i] = d[i]
schedule s for tree:
    up on sm(4), tile(i=8)
    down on sm(4), tile(i=8)
    store tile(i=8)
"""
    module = parse_text(text, "tree.tl")
    found = refusals(make_plan(bind(module.programs[0], module.schedules[0], {"M": 64}, 2, replace(CPU, grows=False))))[
        0
    ]
    assert isinstance(found, ProgressError)
    assert found.message == "programs of up, down, store wait for one another, and only 4 programs fit on a rank"
    assert found.location is not None and found.location.line == 23
    assert found.hint is not None and found.hint.startswith("reserve fewer SMs (`on sm(n)`)")


def test_reuse_without_waiting_is_safe_where_the_program_keeps_ranks_together() -> None:
    text = "\n".join(str(p) for m in library() for p in m.programs if p.name == "ag_gemm")
    for buffers, safe in ((1, False), (2, True), (3, True)):
        schedule = f"schedule s for ag_gemm:\n    xs buffers {buffers}\n    reuse_wait off\n"
        assert (refusals(planned(text + "\n" + schedule)) == []) is safe


@thorough(unless=lambda program, schedule: is_one_of_few((program, schedule)))
@pytest.mark.parametrize(("program", "schedule"), cases(), ids=str)
def test_a_lost_notify_is_always_refused(program, schedule) -> None:  # pyright: ignore
    """Plan mutation: any one notify that is not sent leaves its channel short."""
    dims = sizes(program, 3)
    plan = make_plan(bind(program, schedule, dims, 3, CPU))
    waits = plan.signals.kind != NOTIFY
    awaited = set(zip(plan.signals.peer[waits], plan.signals.channel[waits], strict=True))
    rows = [r for r in np.flatnonzero(plan.signals.kind == NOTIFY)
            if (plan.signals.peer[r], plan.signals.channel[r]) in awaited]  # fmt: skip
    for row in rows[:: max(1, len(rows) // 5)]:
        columns = {f: np.delete(getattr(plan.signals, f), row) for f in plan.signals.__dataclass_fields__}
        mutant = replace(plan, signals=replace(plan.signals, **columns))
        found: list[VerificationError] = refusals(mutant)
        assert found
        assert isinstance(found[0], AccountingError)


def test_writes_that_signals_order_are_safe() -> None:
    """Twice into one buffer, of which the second waits until the first was read."""
    text = HEAD.replace("symmetric", "local").replace("    y :", "    z : local [M, N]\n    y :") + (
        "    compute fill(i: M, j: N):\n        h[i, j] = x[i, j]\n        producer_tile_notify(h[i, j])\n"
        "    compute use(i: M, j: N):\n        consumer_tile_wait(h[i, j])\n        z[i, j] = h[i, j]\n"
        "        producer_tile_notify(z[i, j])\n"
        "    compute again(i: M, j: N):\n        consumer_tile_wait(z[i, j])\n        h[i, j] = z[i, j] * 2.0\n"
        "        y[i, j] = h[i, j]\n"
    )
    assert refusals(planned(text)) == []


STEPS = (
    "program steps(M, T, P):\n    x : in [M]\n    u : local [P, M]\n    y : out [M]\n"
    "    compute init(i: M):\n        u[1, i] = x[i]\n        producer_tile_notify(u[1, i])\n"
    "    compute step(t: T, i: M):\n        consumer_tile_wait(u[1 + t, i])\n        u[2 + t, i] = u[1 + t, i] * 2.0\n"
    "        producer_tile_notify(u[2 + t, i])\n"
    "    compute take(i: M):\n        consumer_tile_wait(u[T + 1, i])\n        y[i] = u[T + 1, i]\n"
    "schedule s for steps:\n    u channel(p=1)\n    step on sm(1), "
)


@pytest.mark.parametrize(
    ("step", "who", "hint"),
    [
        ("tile(t=4)", "which the same tile notifies later", "smaller tiles"),
        ("tile(t=1), order(t = [2, 1, 0])", "which rank 0, step tile (t=1, i=0) notifies, after it in", "order of"),
        ("tile(t=1), order(t)", "", ""),
    ],
)
def test_who_has_not_notified_is_said(step: str, who: str, hint: str) -> None:
    found = refusals(planned(f"{STEPS}{step}\n", ranks=1, numbers={"M": 8, "T": 3, "P": 5}))
    if not who:
        assert found == []
    else:
        assert type(found[0]) is ProgressError and who in found[0].message and hint in (found[0].hint or "")


BEHIND_A_KERNEL = (
    "program p(M):\n    x : in [M]\n    c : symmetric [M]\n    h : symmetric [M]\n    y : out [M]\n"
    "    compute first(i: M):\n        c[i] = x[i]\n"
    "    compute tell(i: M):\n        tile_push_data(h[i] @ (rank + 1), x[i])\n"
    "        producer_tile_notify(h[i] @ (rank + 1))\n"
    "    comm fetch(i: M):\n        consumer_tile_wait(h[i])\n        tile_pull_data(y[i], c[i] @ (rank - 1))\n"
    "schedule s for p:\n    fetch on sm(1), tile(i=8)\n    "
)


@pytest.mark.parametrize(
    ("schedule", "safe"),
    [("tell on sm", True), ("tell in first epilogue", True), ("tell on sm(1)", False), ("first on sm(1)", False)],
)
def test_who_is_told_by_a_later_kernel_may_read_what_an_earlier_one_wrote(schedule: str, safe: bool) -> None:
    """The writer itself notifies nobody: its kernel is over when the next one, or its own program, does."""
    found = refusals(planned(f"{BEHIND_A_KERNEL}{schedule}\n", numbers={"M": 20}))
    assert (found == []) == safe, found
    assert safe or type(found[0]) is OrderingError


OWN = "program p(N):\n    x : in [N]\n    c : local [4, 2, N]\n    y : out [4, N]\n    compute a(j: N):\n        {}\n"


def own(*lines: str) -> Plan:
    return planned(OWN.format("\n        ".join(lines)), ranks=1, numbers={"N": 8})


def test_the_first_element_that_nobody_writes_is_named() -> None:
    found = refusals(own("y[1, j] = x[j]", "y[2, j] = x[j]"))
    assert [error.message for error in found] == ["y[0, 0] of rank 0 is never written"]


def test_what_writes_an_element_twice_is_shown_and_not_what_writes_beside_it() -> None:
    (found,) = refusals(own(*(f"y[{row}, j] = x[j]" for row in (0, 1, 2, 3, 1))))
    assert "writes y[1, 0] of rank 0, which is written 2 times" in found.message
    assert (found.location and found.location.line) == 10 and (found.related and found.related.line) == 7


def test_writes_that_fill_a_read_together_may_reach_beyond_it() -> None:
    """The second write is of one column of all rows, of which the read has one."""
    lines = ["c[1, 1, j] = x[j]", "c[:, 0, j] = x[j]", "t = c[1, :, j]", "c[1, :, j] = t * 2.0", "y[:, j] = x[j]"]
    assert refusals(own(*lines)) == []


def test_what_one_notify_orders_takes_no_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a large plan these are nearly all questions, and each search goes through all of its workers."""
    searched: list[int] = []
    monkeypatch.setattr(HappensBefore, "reach", lambda _, worker, key: searched.append(worker) or {})
    assert refusals(planned(HEAD + SEND + NOTICE + ADD)) == [] == searched


def test_nothing_happens_before_itself() -> None:
    plan = planned(HEAD + SEND + NOTICE + ADD)
    a, order = plan.accesses, HappensBefore(plan=plan)
    assert not order.before(a.task, a.position, a.task, a.position).any()
    assert order.before(a.task, a.position, a.task, a.position + 1).all()
