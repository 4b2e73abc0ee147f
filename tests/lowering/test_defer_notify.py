"""Notifies that a program gives while it multiplies its next tile: what may be deferred, and what cannot be."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tilelink import compiler
from tilelink.backend.emit import emit
from tilelink.errors import ProgressError, ScheduleError
from tilelink.frontend.schedule_parser import parse_schedule
from tilelink.ir.program import Program
from tilelink.lowering.bound import Bound
from tilelink.lowering.clauses.defer_notify import DEFER_NOTIFY
from tilelink.lowering.events import NOTIFY, READ
from tilelink.planning.plan import Plan, make_plan
from tilelink.search import Space
from tilelink.search.seeds import distance
from tilelink.simulator import simulate
from tilelink.simulator.machine import load_machine
from tilelink.target import target
from tilelink.verifier import refusals, verify

PROGRAM = """program make(M, N, K):
    x : in        [M, K]
    w : in        [N, K]
    u : in        [K, K]
    c : local     [M, N]
    d : symmetric [M, N]
    y : out       [M, N]

    compute product(i: M, j: N):
        {body}

    compute take(i: M, j: N):
        consumer_tile_wait({taken}[i, j])
        y[i, j] = {taken}[i, j]

schedule one for make:
    product on sm, tile(i={rows}, j=16), {more}
    take {place}, tile(i=16, j=16)
    {taken} channel(i=16, j=16)
"""
PRODUCT = "c[i, j] = dot(x[i, :], w[j, :].T)"
TELL = "producer_tile_notify(c[i, j])"
NEXT = "\n        "
SIZES = {"M": 64, "N": 64, "K": 64}


def bound(
    *body: str, more: str = "defer_notify", place: str = "on sm(1)", rows: int = 16, taken: str = "c", depth: int = 64
) -> Bound:
    text = PROGRAM.format(body=NEXT.join(body), more=more, place=place, rows=rows, taken=taken)
    module = compiler.parse(text, "make.tl")
    return compiler.bound(module.program(), module.schedules[0], ranks=2, dims=SIZES | {"K": depth})


def test_what_notifies_its_rank_behind_a_product_may_be_deferred() -> None:
    for more in ("defer_notify", "flatten, defer_notify"):
        assert bound(PRODUCT, TELL, more=more).stages["product"].defer_notify


WAIT = "consumer_tile_wait(c[i, j])"
ATTEND = "state = attend(state, dot(x[i, :], u[:, :]), u[:, :], w[j, :].T, 1.0)"
SUM, WITHIN = "acc = dot(x[i, :], w[j, :].T)", "sum(dot(x[i, :], u[:, :]), axis=1)[:, None]"


def test_a_wait_behind_the_product_comes_behind_the_last_tiles_notify_too() -> None:
    """As it does where nothing is deferred: the notify is given in the product."""
    module = compiler.load("gemm_rs")
    program = module.program("gemm_rs_ring_carried")
    schedule = module.schedule("h200_copy_sms", program)
    sizes = {"Ms": 256, "N": 512, "K": 512}
    made = compiler.bound(program, schedule, ranks=4, dims=sizes, dtype="bf16", target=target("sm_90"))
    assert made.stages["first"].defer_notify and made.stages["gemm"].defer_notify
    verify(make_plan(made))
    loops = emit(made, make_plan(made).thresholds).text.split("for tile in")
    (tile,) = (loop for loop in loops if "dl.wait(" in loop and "dl.opaque(" in loop)
    assert tile.index("dl.notify(") < tile.index("dl.wait(") < tile.index(" = dl.opaque(")


PUSH = (
    "acc = dot(x[i, :], w[j, :].T)", "tile_push_data(d[i, j] @ (rank + 1), acc)",
    "producer_tile_notify(d[i, j] @ (rank + 1))",
)  # fmt: skip


@pytest.mark.parametrize(
    ("body", "others", "reason"),
    [
        ((PRODUCT, TELL, "c[i, j] = c[i, j] * 2.0"), {}, "its tiles do not end with a notify"),
        ((PRODUCT, TELL, "c[i, j] = c[i, j] * 2.0", TELL), {}, "it also notifies before the end of a tile"),
        (("if rank == 0:\n            " + TELL, PRODUCT, TELL), {}, "it also notifies before the end of a tile"),
        ((WAIT, PRODUCT, TELL), {}, "it waits before its last product is over, and what it waits for may need"),
        ((SUM, WAIT, "acc += dot(x[i, :], w[j, :].T)", "c[i, j] = acc", TELL), {}, "it waits before its last product"),
        ((SUM, WAIT, "acc += " + WITHIN, "c[i, j] = acc", TELL), {}, "it waits before its last product"),
        (PUSH, {"taken": "d"}, "it notifies peers"),
        (("if rank == 0:\n            " + PRODUCT, TELL), {}, "its tiles have conditions or loops"),
        (("c[i, j] = 2.0", TELL), {}, "its tiles have no product"),
        (("c[i, j] = sum(dot(x[i, :], u[:, :]), axis=1)[:, None]", TELL), {}, "its tiles have no product, or only one"),
        (("state = online_softmax(f32)", ATTEND, "c[i, j] = finish(state)", TELL), {}, "its tiles have no product, or"),
        ((PRODUCT, TELL), {"rows": 32}, "a tile touches several channels of c"),
        ((PRODUCT, TELL), {"place": "in product epilogue"}, "it has no tiles of its own on SMs"),
        ((PRODUCT, TELL), {"more": "split_k_tail 2, defer_notify"}, "its last tiles are divided"),
    ],
)  # fmt: skip
def test_what_cannot_be_deferred_says_why(body: tuple[str, ...], others: dict[str, object], reason: str) -> None:
    with pytest.raises(ScheduleError, match=f"product cannot defer its notifies: {reason}") as refused:
        bound(*body, **others)  # pyright: ignore[reportArgumentType]
    assert refused.value.location and refused.value.location.line > 15, "the line of the schedule"


def test_it_is_said_as_it_is_printed() -> None:
    text = "schedule one for make:\n    product on sm, num_stages 4, flatten, defer_notify"
    schedule = parse_schedule(text)
    assert str(schedule).rstrip() == text and schedule.stage("product")[DEFER_NOTIFY]
    assert "defer_notify" not in str(schedule.defer_notify("product", False))


def rs() -> tuple[compiler.Module, Program]:
    module = compiler.load("gemm_rs")
    return module, module.program("gemm_rs_local_last")


def test_it_is_a_choice_of_the_search() -> None:
    _, program = rs()
    sizes = {"Ms": 1024, "N": 4096, "K": 1376}
    space = Space.of([program], dims=sizes, ranks=8, dtype="bf16", target=target("sm_90"))
    (knob,) = (k for k in space.knobs[0] if k.name.endswith("notified"))
    found = [change(parse_schedule("schedule one for gemm_rs_local_last:\n    gemm on sm")) for change in knob.changes]
    assert [schedule.stage("gemm")[DEFER_NOTIFY] for schedule in found] == [False, True]
    assert not found[1].stage("own")[DEFER_NOTIFY], "it waits"
    assert distance(found[0], found[1], sizes, 8) > 0 == distance(found[0], found[0], sizes, 8)


def test_the_model_knows_what_it_saves() -> None:
    module, program = rs()
    seconds = [
        simulate(
            compiler.plan(
                program, module.schedule("h200", program).defer_notify("gemm", on), ranks=2,
                dims={"Ms": 4096, "N": 4096, "K": 1376}, dtype="bf16", target="sm_90",
            ),
            load_machine("8xH200"),
        ).seconds
        for on in (False, True)
    ]  # fmt: skip
    saved = 1e6 * (seconds[0] - seconds[1])
    assert 1 < saved < 5, "a fence for each of seven tiles, as far as the copy engine does not hide it"


@pytest.mark.parametrize(("K", "saves"), [(128, False), (192, True)])
def test_the_model_knows_where_it_saves_nothing(K: int, saves: bool) -> None:
    """A product of two steps is over before; the last tile of a program is notified behind the loop."""
    module, program = rs()
    sizes = {"Ms": 4096, "N": 4096, "K": K}
    plans = [
        compiler.plan(
            program, module.schedule("h200", program).defer_notify("gemm", on), ranks=2, dims=sizes, dtype="bf16",
            target="sm_90",
        )
        for on in (False, True)
    ]  # fmt: skip
    machine = replace(load_machine("8xH200"), fence=1e-3)  # so that nothing hides it
    off, on = (simulate(plan, machine).seconds for plan in plans)
    tiles = -(-512 // 132)
    assert (off == on) != saves
    assert not saves or off - on == pytest.approx((tiles - 1) * 1e-3, rel=0.1)


def test_a_deferred_notify_stands_in_the_product_of_the_next_tile() -> None:
    made = bound(PRODUCT, TELL, depth=512)
    plan = make_plan(made)
    notifies = plan.signals.kind == NOTIFY
    own = notifies & (plan.signals.task < made.stages["product"].total * 2)
    last = [task for task in plan.signals.task[own].tolist() if task_after(plan, task) is None]
    assert plan.signals.task[own & (plan.signals.later == 0)].tolist() == last and last
    for row in np.flatnonzero(own & (plan.signals.later > 0)).tolist():
        following = task_after(plan, int(plan.signals.task[row]))
        assert following is not None
        reads = plan.accesses.position[(plan.accesses.task == following) & (plan.accesses.kind == READ)]
        assert plan.signal_keys[row] == plan.key(np.array([following]), reads[:1])[0]


AHEAD = """program ahead(B, M, K):
    x : in    [B, M, K]
    d : local [B, M, K]
    c : local [B, M, M]
    y : out   [B, M, M]

    compute make(b: B):
        d[b, :, :] = x[b, :, :] * 2.0
        c[b, :, :] = dot(x[b, :, :], x[b, :, :].T)
        producer_tile_notify(c[b, :, :])

    compute take(b: B):
        consumer_tile_wait(c[b, :, :])
        if b < B - 1:
            y[b, :, :] = c[b, :, :] + sum(d[{read}, :, :], axis=1)[:, None]
        else:
            y[b, :, :] = c[b, :, :]

schedule one for ahead:
    make on sm(1), tile(k=16){more}
    take on sm(1)
"""


@pytest.mark.parametrize("more", ["", ", defer_notify"])
@pytest.mark.parametrize(("read", "safe"), [("b", True), ("b + 1", False)])
def test_nothing_is_proved_by_how_late_a_notify_is_given(read: str, safe: bool, more: str) -> None:
    """A traced kernel gives it at the end of its tile, before the next one stores anything."""
    module = compiler.parse(AHEAD.format(read=read, more=more))
    made = compiler.bound(module.program(), module.schedules[0], ranks=1, dims={"B": 3, "M": 16, "K": 64})
    assert (made.stages["make"].notified_in is not None) == bool(more)
    found = refusals(make_plan(made))
    assert (found == []) is safe
    assert all("nothing orders the two" in one.message for one in found)


def task_after(plan: Plan, task: int) -> int | None:
    """The next task of a task's program."""
    after = np.flatnonzero((plan.worker == plan.worker[task]) & (plan.sequence == plan.sequence[task] + 1))
    return int(after[0]) if len(after) else None


ANSWERED = """program answered(B, M, K):
    x : in    [B, M, K]
    c : local [B, M, M]
    e : local [B, M, M]
    y : out   [B, M, M]

    compute ask(b: B, i: M):
        if b > 0:
            consumer_tile_wait(e[b - 1, i, :])
        c[b, i, :] = dot(x[b, i, :], x[b, :, :].T)
        producer_tile_notify(c[b, i, :])

    compute answer(b: B, i: M):
        consumer_tile_wait(c[b, i, :])
        e[b, i, :] = c[b, i, :]
        y[b, i, :] = c[b, i, :]
        producer_tile_notify(e[b, i, :])

schedule one for answered:
    ask on sm(1), tile(i=16, k=16)
    answer on sm(1), tile(b=1, i=16)
"""


def test_a_notify_that_is_deferred_past_what_needs_it_is_refused() -> None:
    module = compiler.parse(ANSWERED, "answered.tl")
    made = compiler.bound(module.program(), module.schedules[0], ranks=1, dims={"B": 3, "M": 16, "K": 64})
    verify(make_plan(made))
    for notified_in in (0, 1):
        ask = replace(made.stages["ask"], notified_in=notified_in)
        found = refusals(make_plan(replace(made, stages={**made.stages, "ask": ask})))
        assert bool(found) == (notified_in == 1)
        assert all(isinstance(one, ProgressError) for one in found)
