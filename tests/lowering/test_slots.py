"""`slots(l=2)`: memory for some steps of a tensor, and the signals that keep a slot until its step has been read."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch

import tilelink
from tests.lowered import parse_lowered
from tests.lowering.test_passes_keep_results import check
from tests.tiers import thorough
from tests.verifier.dynamic import check as failures
from tests.verifier.mutations import Case as Verified
from tilelink import compiler
from tilelink.errors import ParseError, ProgressError, ScheduleError, TileLinkError, TileSizeError
from tilelink.ir.program import Program
from tilelink.lowering.bound import Bound
from tilelink.lowering.events import WAIT as WAITS
from tilelink.lowering.listing import listing
from tilelink.planning.plan import Plan, make_plan
from tilelink.reference.run import run as reference
from tilelink.reference.trial import random_inputs
from tilelink.scheduling.schedule import Schedule
from tilelink.target import CPU
from tilelink.verifier import refusals, verify
from tilelink.verifier.ordering import Orders
from tilelink.verifier.steps import steps

LIBRARY = Path(tilelink.__file__).parent / "programs"
PUSHED = """program p(L, M, N):
    x : in        [L, M, N]
    h : symmetric [L, ranks, M, N]
    y : out       [L, M, N]

    comm send(l: L, q: ranks, i: M):
        tile_push_data(h[l, rank, i, :] @ q, x[l, i, :])
        producer_tile_notify(h[l, rank, i, :] @ q)

    compute total(l: L, i: M, j: N):
        acc = zeros(f32)
        for (q: ranks):
            consumer_tile_wait(h[l, q, i, j])
            acc += h[l, q, i, j]
        y[l, i, j] = acc

schedule s for p:
    send  on sm(1)
    total on sm
    h slots(l=2)
"""
RING = """program p(M, N):
    x : in        [M, N]
    h : symmetric [ranks, M, N]
    y : out       [M, N]

    comm send(s: ranks, i: M):
        if s == 0:
            tile_push_data(h[0, i, :], x[i, :])
            peer_tile_notify(h[0, i, :])
        else:
            peer_tile_wait(h[s - 1, i, :])
            tile_push_data(h[s, i, :] @ (rank + 1), h[s - 1, i, :])
            peer_tile_notify(h[s, i, :] @ (rank + 1))

    compute add(i: M, j: N):
        total = zeros(f32)
        for (s: ranks):
            peer_tile_wait(h[s, i, j])
            total += h[s, i, j]
        y[i, j] = total

schedule s for p:
    send on sm(1)
    add  on sm
    h slots(s=2)
"""
PULLED = """program p(L, M, N):
    x : in        [L, M, N]
    h : symmetric [L, M, N]
    y : out       [L, ranks, M, N]

    compute fill(l: L, i: M):
        h[l, i, :] = x[l, i, :] * 2.0
        for (p: ranks):
            producer_tile_notify(h[l, i, :] @ p)

    compute take(l: L, q: ranks, i: M):
        consumer_tile_wait(h[l, i, :])
        y[l, q, i, :] = h[l, i, :] @ q

schedule s for p:
    fill on sm(1)
    take on sm, order(l, q = rank step +1, i)
    h slots(l=2), buffers 3
"""
ROWS = """program p(L, M, N):
    x : in        [L, M, N]
    h : symmetric [L, ranks, M, N]
    c : local     [L, M, N]
    y : out       [L, M, N]

    comm send(l: L, q: ranks, i: M):
        tile_push_data(h[l, rank, i, :] @ q, x[l, i, :])
        producer_tile_notify(h[l, rank, i, :] @ q)

    compute total(l: L by 1, i: M):
        consumer_tile_wait(h[l, :, i, :])
        c[l, i, :] = sum(h[l, :, i, :], axis=0)
        producer_tile_notify(c[l, i, :])

    compute keep(l: L, i: M, j: N):
        total = zeros(f32)
        for (t: 3):
            consumer_tile_wait(c[l, i, j])
            total += c[l, i, j]
        y[l, i, j] = total

schedule s for p:
    send  on sm(1)
    total on sm
    keep  on sm(2)
    h slots(l=3)
    c slots(l=2)
"""
TEXTS = {"pushed": PUSHED, "ring": RING, "pulled": PULLED, "rows": ROWS}
CREDITS = {
    "pushed": ["if l >= 2:", "consumer_tile_wait(h_free[l - 2, q])", "producer_tile_notify(h_free[l, rank] @ q)"],
    "ring": [
        "if s >= 2:",
        "consumer_tile_wait(h_free[(s - 2) % 4])",
        "producer_tile_notify(h_free[(s - 1) % 4] @ ((rank + 3) % 4))",
        "producer_tile_notify(h_free[s] @ ((rank + 3) % 4))",
    ],
    "pulled": ["if l >= 2:", "consumer_tile_wait(h_free[l - 2])", "producer_tile_notify(h_free[l] @ q)"],
    "rows": [
        "if l >= 3:",
        "consumer_tile_wait(h_free[l - 3, q])",
        "for (writer: ranks):",
        "producer_tile_notify(h_free[l, rank] @ writer)",
        "if l >= 2:",
        "consumer_tile_wait(c_free[l - 2])",
        "producer_tile_notify(c_free[l])",
    ],
}
DIMS = {"L": 5, "M": 12, "N": 10}


def case(text: str) -> tuple[Program, Schedule]:
    module = compiler.parse(text)
    return module.program(), module.schedules[0]


def dims(text: str) -> dict[str, int]:
    return {param.name: DIMS[param.name] for param in case(text)[0].params}


def bound(text: str, ranks: int = 4) -> Bound:
    return compiler.bound(*case(text), ranks=ranks, dims=dims(text))


@pytest.mark.parametrize("name", TEXTS)
def test_credits_go_to_the_rank_that_wrote_a_step_when_it_has_been_read(name: str) -> None:
    made = bound(TEXTS[name])
    body = [line.strip() for line in listing(made).splitlines()]
    written = [line.strip() for line in TEXTS[name].splitlines()]
    signals = [line for line in body if "_free[" in line or line.startswith("for (writer")]
    guards = [line for line in body if line.startswith("if ") and line not in written]
    assert sorted(signals + guards) == sorted(CREDITS[name])
    for at, line in enumerate(body):
        if line.startswith("consumer_tile_wait") and "_free[" in line:  # right before what is written
            assert body[at + 1].startswith(("tile_push_data(", "h[", "c["))


def test_a_loop_that_has_nothing_to_do_with_the_step_reads_it_when_it_ends() -> None:
    lines = listing(bound(ROWS)).splitlines()
    at = next(n for n, line in enumerate(lines) if line.strip() == "producer_tile_notify(c_free[l])")
    assert lines[at - 1].strip() == "total = total + c[l, i, j]"
    assert lines[at - 1].index("total") > lines[at].index("producer")


@thorough(unless=lambda name, ranks: ranks == (3 if name in ("pushed", "ring") else 2))
@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("name", TEXTS)
def test_a_program_with_slots_means_the_same_after_every_pass(name: str, ranks: int) -> None:
    found = check(case(TEXTS[name]), ranks, dims(TEXTS[name]))
    for made in found.values():
        verify(make_plan(made))
        text = listing(made)
        assert listing(parse_lowered(text)) == text


@thorough(unless=lambda name, ranks: ranks == 3 and name in ("pushed", "pulled"))
@pytest.mark.parametrize("ranks", [3, 4])
@pytest.mark.parametrize("name", TEXTS)
def test_launches_with_few_slots_give_the_results_of_all_steps(name: str, ranks: int) -> None:
    program, schedule = case(TEXTS[name])
    kernel = compiler.compile(program, schedule, ranks=ranks, dims=dims(TEXTS[name]))
    launches = random_inputs(program, ranks=ranks, dims=dims(TEXTS[name]), dtype="f32", launches=3, seed=5)
    results = kernel.run(launches, seed=2, max_delay_s=1e-3).outputs
    for given, found in zip(launches, results, strict=True):
        for rank, wanted in enumerate(reference(program, given, dims(TEXTS[name]))):
            torch.testing.assert_close(found[rank]["y"], wanted["y"], rtol=1e-5, atol=1e-5)


def test_steps_that_the_network_carries_wait_for_credits_too() -> None:
    program, schedule = case(PUSHED)
    kernel = compiler.compile(program, schedule, ranks=4, nodes=2, dims=DIMS)
    assert "tile_put_data(h[l, rank, " in listing(kernel.bound)
    assert failures(kernel.plan, range(6)) == []
    (given,) = random_inputs(program, ranks=4, dims=DIMS, dtype="f32", launches=1, seed=6)
    (found,) = kernel.run([given], seed=3).outputs
    for rank, wanted in enumerate(reference(program, given, DIMS)):
        torch.testing.assert_close(found[rank]["y"], wanted["y"], rtol=1e-5, atol=1e-5)
    text = listing(kernel.bound)
    assert {one.rule for one in refusals(changed(text, WAIT.format(2), ""))} == {"steps"}


@pytest.mark.parametrize("said", ["on copy_engine, tile(i=64)", "pull"])
def test_steps_may_be_moved_in_other_ways(said: str) -> None:
    text = PUSHED.replace("x : in        [", "x : in symmetric [").replace("send  on sm(1)", f"send on sm(1), {said}")
    if "copy_engine" in said:
        text = text.replace("on sm(1), on", "on")
    program, schedule = case(text)
    kernel = compiler.compile(program, schedule, ranks=3, dims=DIMS)
    assert kernel.bound.tensors["h"].memory == (2, 3, 12, 10)
    launches = random_inputs(program, ranks=3, dims=DIMS, dtype="f32", launches=2, seed=7)
    for given, found in zip(launches, kernel.run(launches, seed=4).outputs, strict=True):
        for rank, wanted in enumerate(reference(program, given, DIMS)):
            torch.testing.assert_close(found[rank]["y"], wanted["y"], rtol=1e-5, atol=1e-5)


def test_memory_has_the_slots_and_no_more() -> None:
    kernel = compiler.compile(*case(PULLED), ranks=2, dims=DIMS)
    shapes = {tensor.name: (tensor.buffers, *tensor.shape) for tensor in kernel.artifact.tensors}
    assert shapes["h"] == (3, 2, 12, 10)
    assert shapes["h_free"] == (3, 5)  # as many buffers as the tensor has


def test_as_many_slots_as_steps_are_no_slots() -> None:
    program, schedule = case(PULLED)
    plain = schedule.slots("h").buffers("h", 3)
    for slots in (5, 8):
        made = compiler.bound(program, schedule.slots("h", l=slots), ranks=2, dims=DIMS)
        assert listing(made) == listing(compiler.bound(program, plain, ranks=2, dims=DIMS))


WAIT = "        if l >= {0}:\n            consumer_tile_wait(h_free[l - {0}, q])\n"
MISTAKES = {
    "no wait": (WAIT.format(2), "", "steps"),
    "a wait for the step before that": (WAIT.format(2), WAIT.format(3), "steps"),
    "no credit": ("            producer_tile_notify(h_free[l, rank] @ q)\n", "", "accounting"),
    "a credit before the step is read": (
        "            acc = acc + h[l, q, i, j]\n            producer_tile_notify(h_free[l, rank] @ q)\n",
        "            producer_tile_notify(h_free[l, rank] @ q)\n            acc = acc + h[l, q, i, j]\n",
        "steps",
    ),
    "a credit for another rank": ("h_free[l, rank] @ q)", "h_free[l, rank] @ ((q + 1) % 3))", "steps"),
    "one slot less": ("memory[2, ", "memory[1, ", "steps"),
}  # fmt: skip


def changed(text: str, old: str, new: str) -> Plan:
    assert text.count(old) == 1
    return make_plan(parse_lowered(text.replace(old, new)))


@pytest.mark.parametrize("name", MISTAKES)
def test_each_credit_is_needed(name: str) -> None:
    old, new, rule = MISTAKES[name]
    text = listing(bound(PUSHED, 3))
    assert not refusals(make_plan(parse_lowered(text)))
    plan = changed(text, old, new)
    refused = refusals(plan)
    assert {one.rule for one in refused} == {rule}
    assert failures(plan, range(40)) != [] or name == "no credit"


@pytest.mark.parametrize("name", TEXTS)
def test_steps_side_by_side_are_refused_if_any_two_are(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given = dims(TEXTS[name])
    plan = make_plan(compiler.bound(*case(TEXTS[name]), ranks=3, dims={**given, **({"L": 9} if "L" in given else {})}))
    numbers, plans = np.random.default_rng(7), [plan]
    waits = np.flatnonzero(plan.signals.kind == WAITS)
    for few in (1, 2, 8, 8, 60):
        gone = numbers.choice(waits, min(few, len(waits)), replace=False)
        plans.append(replace(plan, signals=plan.signals.pick(~np.isin(np.arange(len(plan.signals.kind)), gone))))

    def refused() -> list[bool]:
        return [next(steps(one, Orders(one)), None) is not None for one in plans]

    asked = refused()
    never = np.iinfo(np.int64).max
    of_rule = import_module("tilelink.verifier.steps")  # the package has the rule by this name
    monkeypatch.setattr(of_rule, "_written_between", lambda part, first, second, step: np.full(len(first), never))
    assert asked == refused()
    assert not asked[0]
    assert any(asked)


GUARDED = """program p(L = 3, M = 4, N = 4):
    n : in    [] <= 1
    x : in    [L, M, N]
    h : local [L, M, N]
    y : out   [2, M, N]

    compute work(i: M):
        h[0, i, :] = x[0, i, :]
        y[0, i, :] = h[0, i, :]
        if n >= 1:
            h[1, i, :] = x[1, i, :]
        h[2, i, :] = x[2, i, :]
        y[1, i, :] = h[2, i, :]

schedule s for p:
    work on sm(1)
    h slots(l=1)
"""
BARRIER = "program_barrier()\n"


def test_a_write_that_a_launch_leaves_out_orders_no_steps_around_it() -> None:
    """The barriers beside it are left out with it."""
    text = listing(bound(GUARDED, 1))
    for line in ("consumer_tile_wait(h_free[0])\n", "consumer_tile_wait(h_free[1])\n"):
        assert text.count(line) == 1
    inside = text.replace("consumer_tile_wait(h_free[0])\n", BARRIER)
    inside = inside.replace(f"{' ' * 8}consumer_tile_wait(h_free[1])\n", f"{' ' * 12}{BARRIER}")
    outside = inside.replace(f"{' ' * 12}{BARRIER}{' ' * 8}h[2", f"{' ' * 8}{BARRIER}{' ' * 8}h[2")
    assert outside != inside
    for one, safe in ((inside, False), (outside, True)):
        plan = make_plan(parse_lowered(one))
        assert (not [*steps(plan, Orders(plan))]) is safe
        assert ("steps" in {refusal.rule for refusal in refusals(plan)}) is not safe


def test_a_credit_that_is_too_strict_is_safe() -> None:
    """With one more slot than there are credits for, or a wait for a newer step, nothing is wrong."""
    text = listing(bound(PUSHED, 3))
    for old, new in (("memory[2, ", "memory[3, "), (WAIT.format(2), WAIT.format(1))):
        plan = changed(text, old, new)
        assert refusals(plan) == []
        assert failures(plan, range(6)) == []


def test_a_refusal_names_both_steps_and_where_they_are_used() -> None:
    old, new, _ = MISTAKES["no wait"]
    (refused, *_) = refusals(changed(listing(bound(PUSHED, 3)), old, new))
    assert "writes h[2:3, 0:1, 0:12, 0:10] of rank 0, in whose slot, one of 2, is h[0:1, 0:1, " in refused.message
    assert "which rank 0, total tile (l=0, i=0, j=0) may not have read yet" in refused.message
    assert refused.hint == "wait until that has been read, or give h more slots"
    assert refused.location is not None
    assert refused.related is not None


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("    send  on sm(1)\n", "    send on sm(1), order(q = rank step +1, l, i)\n"),
        ("    total on sm\n", "    total on sm, tile(i=1), order(i, l = 0 step -1, j)\n"),
        ("    send  on sm(1)\n", "    send on sm\n"),
        ("h[l, rank, i, :]", "h[L - 1 - l, rank, i, :]"),
    ],
)
def test_steps_in_another_order_wait_for_ever(old: str, new: str) -> None:
    program, schedule = case(PUSHED.replace(old, new))
    target = replace(CPU, grows=False, sms=2, max_programs=2)
    with pytest.raises(TileLinkError, match="waits for ever for h_free") as caught:
        compiler.plan(program, schedule, ranks=3, dims={"L": 5, "M": 40, "N": 10}, target=target)
    hint = caught.value.hint or ""
    assert any(word in hint for word in ("make the step the outermost index", "SMs of its own"))


REFUSED = {
    "an output": ("    h slots(l=2)\n", "    y slots(l=2)\n", "slots(l=2) of y, which is out", "slots"),
    "an input": ("    h slots(l=2)\n", "    x slots(l=2)\n", "slots(l=2) of x, which is in", "slots"),
    "no dimension": ("slots(l=2)", "slots(k=2)", "slots(k=2): h has no dimension 'k'", "k"),
    "steps at a time": ("consumer_tile_wait(h[l, q, i, j])\n            acc += h[l, q, i, j]",
                        "consumer_tile_wait(h[:, q, i, j])\n            acc += sum(h[:, q, i, j], axis=0)",
                        "slots(l=2) of h, of which a statement accesses several steps at a time", "slots"),
    "a step that is an axis": ("y[l, i, j] = acc", "y[l, i, j] = acc + max(h[l, 0, i, j], axis=0)",
                              "slots(l=2) of h: l of stage total is a tile of several steps", "slots"),
    "no writer": ("h[l, rank, i, :] @ q", "h[l, q, i, :] @ ((rank + l) % ranks)",
                  "who reads a step cannot tell which rank has written it", "slots"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_have_slots_is_refused_with_a_remedy(name: str) -> None:
    old, new, message, at = REFUSED[name]
    assert old in PUSHED
    with pytest.raises((ScheduleError, TileSizeError)) as caught:
        bound(PUSHED.replace(old, new))
    assert message in caught.value.message
    assert caught.value.hint
    marked = caught.value.location
    assert marked is not None
    assert (marked.text or "")[marked.column - 1 :].startswith(at)


def test_a_tensor_has_one_dimension_of_steps() -> None:
    with pytest.raises(ParseError):
        compiler.parse(PUSHED.replace("slots(l=2)", "slots(l=2, i=2)"))
    with pytest.raises(ScheduleError, match="slots of two dimensions of h"):
        tilelink.schedule(case(PUSHED)[0]).slots("h", l=2, i=2)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("memory[2, 4, 12, 10]", "memory[5, 4, 12, 10]", "memory of h is not its shape with fewer steps"),
        ("memory[2, 4, 12, 10]", "memory[2, 3, 12, 10]", "memory of h is not its shape with fewer steps"),
        ("memory[2, 4, 12, 10]", "memory[6, 4, 12, 10]", "memory of h is"),
        ("memory[2, 4, 12, 10], ", "", "h_free has the credits of h, which has memory for all of its steps"),
        ("credits h", "credits x", "h_free has the credits of x, which has memory for all of its steps"),
    ],
)
def test_a_lowered_text_with_another_memory_is_refused(old: str, new: str, words: str) -> None:
    text = listing(bound(PUSHED))
    assert old in text
    with pytest.raises(ParseError) as caught:
        parse_lowered(text.replace(old, new))
    assert words in caught.value.message


def test_two_slots_of_sharded_layers_are_proved_by_credits_alone() -> None:
    """The rule is needed: without it, a program without one wait passes all others."""
    module = compiler.library_module("fsdp")
    program = module.program("fsdp")
    schedule = module.schedule("two_slots", program)
    one = Verified(program=program, schedule=schedule, numbers={"L": 5, "M": 16, "Ds": 8}, ranks=3)
    text = listing(one.plan().bound)
    plan = changed(text, "        if l >= 2:\n            consumer_tile_wait(weights_free[l - 2, q])\n", "")
    assert [refused.rule for refused in refusals(plan, limit=1)] == ["steps"]


def test_the_program_of_sharded_layers_is_short() -> None:
    text = (LIBRARY / "fsdp.tl").read_text().partition("schedule gpu")[0]
    assert len([line for line in text.splitlines() if line.strip() and not line.startswith("#")]) <= 30


def test_a_slot_too_few_says_what_slots_need() -> None:
    """A tile that writes the next step while it reads this one needs two."""
    text = """
program p(L = 4, M = 8):
    x : in    [M]
    h : local [L + 1, M]
    y : out   [M]
    compute begin(i: M):
        h[0, i] = x[i]
        peer_tile_notify(h[0, i])
    compute layer(l: L by 1, i: M):
        peer_tile_wait(h[l, i])
        h[l + 1, i] = h[l, i] * 2.0
        peer_tile_notify(h[l + 1, i])
    compute take(i: M):
        peer_tile_wait(h[L, i])
        y[i] = h[L, i]
schedule few for p:
    h slots(l=1)
"""
    module = tilelink.parse(text)
    with pytest.raises(ProgressError, match="waits for ever for h_free") as caught:
        tilelink.plan(module.program(), module.schedules[0], ranks=1, dims={"L": 4, "M": 8})
    assert "or give h more slots" in str(caught.value.hint)
