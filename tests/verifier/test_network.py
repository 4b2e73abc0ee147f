"""The rules of the network: lowered programs on several nodes, each beside one that a single edit makes unsafe."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from tests.lowered import parse_lowered
from tests.tiers import one_in, thorough
from tests.verifier.dynamic import check
from tilelink.artifact import LaunchProtocol
from tilelink.compiler import library_module
from tilelink.errors import BindingError, ScheduleError
from tilelink.frontend.parser import parse_text
from tilelink.lowering.bind import bind
from tilelink.lowering.bound import Bound, Transport
from tilelink.lowering.events import READ as READS
from tilelink.lowering.events import WRITE
from tilelink.lowering.listing import listing
from tilelink.planning.happens_before import HappensBefore
from tilelink.planning.network import Puts
from tilelink.planning.plan import Plan, make_plan
from tilelink.target import CPU, target
from tilelink.verifier import refusals

DIMS = {"M": 24, "N": 20}
HEAD = "program p(M, N):\n    x : in symmetric [M, N]\n    h : symmetric [M, N]\n    y : out [M, N]\n\n"
SEND = """    comm send(i: M):
        tile_push_data(h[i, :] @ (rank + 1), x[i, :])
        producer_tile_notify(h[i, :] @ (rank + 1))

"""
ADD = """    compute add(i: M):
        consumer_tile_wait(h[i, :])
        y[i, :] = x[i, :] + h[i, :]

"""
BESIDE = "schedule s for p:\n    send on sm(1), tile(i=8)\n    add on sm(1), tile(i=8)\n"
PUT = "tile_put_data(h[i, :] @ ((rank + 1) % 3), x[i, :], producer_tile_notify)"
ALONE = "tile_put_data(h[i, :] @ ((rank + 1) % 3), x[i, :])"
SIGNAL = "producer_tile_notify(h[i, :] @ ((rank + 1) % 3), by_network)"
FENCE, QUIET = "network_fence()", "network_quiet()"
SENT = HEAD + SEND + ADD + BESIDE
COMPUTED = HEAD + SEND.replace("x[i, :])", "x[i, :] * 2.0)") + ADD + BESIDE
_PARTS = SENT.replace("send(i: M)", "send(i: M, n: N)").replace("h[i, :] @", "h[i, n] @")
COLUMNS = _PARTS.replace("x[i, :])", "x[i, n])").replace("tile(i=8)\n    add", "tile(i=8, n=8)\n    add")
PART = "tile_put_data(h[i, n] @ ((rank + 1) % 3), x[i, n])"
SIGNAL_PART = "producer_tile_notify(h[i, n] @ ((rank + 1) % 3), by_network)"
# Data and what belongs to it, with one notify for both.
PAIR = (
    HEAD.replace("    y :", "    s : symmetric [M, N]\n    y :")
    + SEND.replace("        producer", "        tile_push_data(s[i, :] @ (rank + 1), x[i, :])\n        producer")
    + ADD.replace("+ h[i, :]", "+ h[i, :] + s[i, :]")
    + BESIDE
)
# Another stage notifies what this one has pushed, when it has heard of it.
RELAYED = (
    HEAD.replace("    y :", "    g : symmetric [M, N]\n    y :")
    + """    comm send(i: M):
        tile_push_data(h[i, :] @ (rank + 1), x[i, :])
        producer_tile_notify(g[i, :])

    comm relay(i: M):
        consumer_tile_wait(g[i, :])
        producer_tile_notify(h[i, :] @ (rank + 1))

"""
    + ADD
    + "schedule s for p:\n    send on sm(1), tile(i=8)\n    relay on sm(1), tile(i=8)\n    add on sm(1), tile(i=8)\n"
)
PULLED = """program p(M, N):
    x : in symmetric [M, N]
    l : local [M, N]
    y : out [M, N]

    comm fetch(i: M):
        tile_pull_data(l[i, :], x[i, :] @ (rank + 1))
        producer_tile_notify(l[i, :])

    compute add(i: M):
        consumer_tile_wait(l[i, :])
        y[i, :] = x[i, :] + l[i, :]
"""
FETCHED = """program p(M, N):
    x : in symmetric [M, N]
    y : out [M, N]

    comm fetch(i: M):
        tile_pull_data(y[i, :], x[i, :] @ (rank + 1))
"""
# What peers write, the end of a launch waits for.
OUTPUT = """program p(M, N):
    x : in symmetric [M, N]
    y : out symmetric [M, N]

    comm send(i: M):
        tile_push_data(y[i, :] @ (rank + 1), x[i, :])
        producer_tile_notify(y[i, :] @ (rank + 1))
"""
# The receiver answers, and then the sender writes again what it has put.
ANSWERED = (
    HEAD.replace("    y :", "    c : local [M, N]\n    g : symmetric [M, N]\n    y :")
    + """    comm send(i: M):
        c[i, :] = x[i, :]
        program_barrier()
        tile_push_data(h[i, :] @ (rank + 1), c[i, :])
        producer_tile_notify(h[i, :] @ (rank + 1))

    comm answer(i: M):
        consumer_tile_wait(h[i, :])
        y[i, :] = h[i, :]
        producer_tile_notify(g[i, :] @ (rank - 1))

    comm again(i: M):
        consumer_tile_wait(g[i, :])
        c[i, :] = x[i, :]

schedule s for p:
    send on sm(1), tile(i=8)
    answer on sm(1), tile(i=8)
    again on sm(1), tile(i=8)
"""
)
READ = """program p(M, N):
    x : in symmetric [M, N]
    y : out [M, N]

    compute add(i: M):
        y[i, :] = x[i, :] + x[i, :] @ (rank + 1)
"""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A program on 3 nodes, edits of its lowered text (before, after), and the rule that refuses the result, if any.

    fails: whether some interleaving must show that; None for what no machine of cells can show.
    """

    text: str
    edits: tuple[tuple[str, str], ...] = ()
    rule: str = ""
    fails: bool | None = True


def put(*lines: str, text: str = SENT, rule: str = "", fails: bool | None = True) -> Case:
    """The put of a tile and its signal in other words."""
    return Case(text=text, edits=((PUT, "\n        ".join(lines)),), rule=rule, fails=fails)


OF_Y = tuple(one.replace("h[i, :]", "y[i, :]") for one in (PUT, ALONE, SIGNAL))
KEPT = "send_sent[i, :]"
PUT_KEPT = f"tile_put_data(h[i, :] @ ((rank + 1) % 3), {KEPT}, producer_tile_notify)"
CASES = {
    "a signal with its data": Case(text=SENT),
    "a signal after a fence": put(ALONE, FENCE, SIGNAL),
    "a signal after a quiet": put(ALONE, QUIET, SIGNAL),
    "a signal apart from its data": put(ALONE, SIGNAL, rule="ordering"),
    "a signal before its data": put(SIGNAL, ALONE, rule="ordering"),
    "a fence after the signal": put(ALONE, SIGNAL, FENCE, rule="ordering"),
    "a fence before the put": put(FENCE, ALONE, SIGNAL, rule="ordering"),
    "the same twice, one signal": put(ALONE, PUT, rule="ordering"),
    "the same twice, two signals": put(PUT, PUT, rule="exclusive writes"),
    "the same twice, in order": put(ALONE, FENCE, PUT),
    "the same twice, one after the other": put(ALONE, QUIET, PUT),
    "a push between nodes": put("tile_push_data(h[i, :] @ ((rank + 1) % 3), x[i, :])", SIGNAL, rule="network"),
    "a notify by address": put(ALONE, FENCE, SIGNAL.replace(", by_network", ""), rule="network"),
    "no end of the sending": Case(text=COMPUTED, edits=((", quiet", ""),), rule="network"),
    "quiet in the tile": Case(text=SENT, edits=((", quiet", ""), (PUT, PUT + "\n        " + QUIET))),
    "two tensors, one fence": Case(text=PAIR),
    "two tensors, the signal with one": Case(
        text=PAIR,
        edits=(
            ("        network_fence()\n", ""),
            ("        producer_tile_notify(h[i, :] @ ((rank + 1) % 3), by_network)\n", ""),
            (ALONE, PUT),
        ),
        rule="ordering",
    ),
    "memory of its own": Case(text=COMPUTED),
    "memory that is written early": Case(
        text=COMPUTED, edits=((PUT_KEPT, f"{PUT_KEPT}\n        {KEPT} = x[i, :]"),), rule="ordering"
    ),
    "memory that is written after a fence": Case(
        text=COMPUTED, edits=((PUT_KEPT, f"{PUT_KEPT}\n        {FENCE}\n        {KEPT} = x[i, :]"),), rule="ordering"
    ),
    "memory that is written after a quiet": Case(
        text=COMPUTED, edits=((PUT_KEPT, f"{PUT_KEPT}\n        {QUIET}\n        {KEPT} = x[i, :]"),)
    ),
    "one memory for all tiles": Case(
        text=COMPUTED.replace("tile(i=8)\n    add", "tile(i=1)\n    add").replace("send(i: M)", "send(i: M by 1)"),
        edits=(("send_sent[i, :]", "send_sent[0, :]"),),
        rule="ordering",
    ),
    "a tensor of the caller": Case(text=SENT.replace("in symmetric", "in")),
    "a tensor of the caller, as it is": Case(
        text=SENT.replace("in symmetric", "in"), edits=(("% 3), send_sent", "% 3), x"),), rule="network", fails=None
    ),
    "an output": Case(text=OUTPUT),
    "an output, after a fence": Case(
        text=OUTPUT, edits=((OF_Y[0], f"{OF_Y[1]}\n        {FENCE}\n        {OF_Y[2]}"),)
    ),
    "an output, after a quiet": Case(
        text=OUTPUT, edits=((OF_Y[0], f"{OF_Y[1]}\n        {QUIET}\n        {OF_Y[2]}"),)
    ),
    "an output, with a signal apart": Case(
        text=OUTPUT, edits=((OF_Y[0], f"{OF_Y[1]}\n        {OF_Y[2]}"),), rule="ordering"
    ),
    # The data is there, but the rules take no more from that than the library says of sources.
    "a source that is written after an answer": Case(text=ANSWERED, rule="ordering", fails=None),
    "a get": Case(text=PULLED),
    "a get for the caller": Case(text=FETCHED),
    "elements of another type": Case(text=SENT.replace("x : in symmetric [M, N]", "x : in symmetric [M, N] f16")),
    "elements of another type, as they are": Case(
        text=SENT.replace("x : in symmetric [M, N]", "x : in symmetric [M, N] f16"),
        edits=(("% 3), send_sent", "% 3), x"),),
        rule="network",
        fails=None,
    ),
    "a store that only fetches": Case(text=READ.replace("x[i, :] + ", "")),
    "a get turned into loads": Case(text=PULLED, edits=(("tile_get_data", "tile_pull_data"),), rule="network"),
    "a value that loads": Case(text=READ, rule="network"),
    "a notify of another stage": Case(text=RELAYED, rule="ordering"),
    "a notify of another stage, after a quiet": Case(
        text=RELAYED, edits=((ALONE, f"{ALONE}\n        {QUIET}"),)
    ),
    "a notify of another stage, after a fence": Case(
        text=RELAYED, edits=((ALONE, f"{ALONE}\n        {FENCE}"),), rule="ordering"
    ),
    "two counters": Case(text=SENT + "    h channel(i=4)\n"),
    "two counters with the data": Case(
        text=SENT + "    h channel(i=4)\n",
        edits=((f"{ALONE}\n        {FENCE}\n        {SIGNAL}", PUT),),
        rule="network",
        fails=None,
    ),
    "rows that are apart": Case(text=COLUMNS),
    "rows that are apart, as one message": Case(
        text=COLUMNS,
        edits=((f"{PART}\n        {FENCE}\n        {SIGNAL_PART}", f"{PART[:-1]}, producer_tile_notify)"),),
        rule="network", fails=None,
    ),
}  # fmt: skip


def lowered(text: str, nodes: int = 3) -> Bound:
    module = parse_text(text, "test.tl")
    schedule = module.schedules[0] if module.schedules else None
    return bind(module.programs[0], schedule, DIMS, 3, CPU, nodes=nodes)


def edited(case: Case) -> Bound:
    text = listing(lowered(case.text))
    for before, after in case.edits:
        assert before in text, f"{before} is not in\n{text}"
        text = text.replace(before, after)
    return parse_lowered(text)


@pytest.mark.parametrize("name", CASES)
def test_the_rule_that_refuses(name: str) -> None:
    case = CASES[name]
    found = refusals(make_plan(edited(case)), limit=1)
    assert (found[0].rule if found else "") == case.rule, found and found[0].message


@thorough(unless=lambda name: one_in(2, name))
@pytest.mark.parametrize("name", CASES)
def test_running_agrees(name: str) -> None:
    case = CASES[name]
    failures = check(make_plan(edited(case)), range(60 if case.rule else 10))
    if not case.rule or case.fails is not None:
        assert bool(failures) == bool(case.rule), failures[:1]


def test_what_is_right_inside_a_node_is_refused_with_the_reason() -> None:
    assert refusals(make_plan(lowered(RELAYED, nodes=1)), limit=1) == []
    (refusal,) = refusals(make_plan(lowered(RELAYED)), limit=1)
    assert str(refusal).splitlines()[0] == (
        "OrderingError: rank 0, add tile (i=0): reads h of rank 0, where rank 2, send tile (i=0) puts from another "
        "node, and no signal follows that put"
    )
    assert "in the stage that pushes it, after the push, and wait for h" in str(refusal.hint)
    (refusal,) = refusals(make_plan(edited(CASES["memory that is written early"])), limit=1)
    assert "may write before the put has read it" in refusal.message
    assert "wait for" in str(refusal.hint) and "reads its source late" in str(refusal.hint)


def test_a_stage_that_sends_is_done_by_whole_programs() -> None:
    bound = lowered(SENT)
    assert refusals(make_plan(bound)) == []
    for stage in ("send", "add"):
        by_warps = replace(bound.stages[stage], transport=Transport.TMA)
        found = refusals(make_plan(replace(bound, stages={**bound.stages, stage: by_warps})))
        assert [one.rule for one in found] == ["network"] * (stage == "send"), found


COUNTED = """program p(M, N):
    n : in [ranks] <= N
    x : in symmetric [M, N]
    ns : symmetric [ranks] <= N
    h : symmetric [ranks, M, N]
    y : out [ranks, M, N[:ns]]

    comm tell(p: ranks):
        tile_push_data(ns[rank] @ p, n[p])
        producer_tile_notify(ns[rank] @ p)

    comm send(p: ranks, i: M, j: N[: n[p]]):
        tile_push_data(h[rank, i, j] @ p, x[i, j])
        producer_tile_notify(h[rank, i, j] @ p)

    compute keep(s: ranks, i: M, j: N[: ns[s]]):
        consumer_tile_wait(ns[s])
        consumer_tile_wait(h[s, i, j])
        y[s, i, j] = h[s, i, j]
"""


def counted(before: str = "", after: str = "") -> list[str]:
    """Return the refusals of a lowered program of which a launch has some columns, after an edit of its text."""
    text = listing(lowered(COUNTED))
    assert before in text, text
    return [
        f"{one.rule}: {one.message}" for one in refusals(make_plan(parse_lowered(text.replace(before, after))), limit=1)
    ]


def test_a_part_of_the_columns_is_several_messages() -> None:
    put, signal = "tile_put_data(h[rank, i, j] @ p, x[i, j]", "producer_tile_notify(h[rank, i, j] @ p, by_network)"
    assert counted() == []
    text = listing(lowered(COUNTED))
    apart = text[text.index(f"{put})") : text.index(signal) + len(signal)]
    assert FENCE in apart
    (refusal,) = counted(apart, f"{put}, producer_tile_notify)")
    assert refusal.startswith("network: ") and "a launch has only a part of them" in refusal


def test_a_fence_in_a_branch_that_a_launch_decides_orders_nothing() -> None:
    (refusal,) = counted(FENCE, f"if n[p] > 3:\n                {FENCE}")
    assert refusal.startswith("ordering: ")


def test_a_peer_that_a_launch_decides_may_be_on_any_node() -> None:
    text = COUNTED.replace("tile_push_data(ns[rank] @ p,", "tile_push_data(ns[rank] @ n[p],")
    with pytest.raises(BindingError, match="reaches a rank that only a launch decides") as error:
        lowered(text.replace("<= N\n    x", "< ranks\n    x"))
    assert "loop over the ranks" in str(error.value.hint)


def test_what_a_launch_decides_of_one_rank_reaches_no_node() -> None:
    alone = "program p(M, N):\n    n : in [] <= M\n    x : in [M, N]\n    y : out [M[: n], N]\n\n"
    assert refusals(make_plan(lowered(alone + "    compute f(i: M[: n]):\n        y[i, :] = x[i, :]\n")), limit=1) == []


def broken(plan: Plan, what: str) -> Plan:
    """The plan of a put with a signal that no lowered text can say."""
    puts, s, a = Puts(plan=plan), plan.signals, plan.accesses
    told, read = puts.by_network, puts.rows[a.kind[puts.rows] == READS]
    match what:
        case "a put without its read":
            position = a.position.copy()
            position[read] = 100
            return replace(plan, accesses=replace(a, position=position))
        case "a signal in the next tile":
            return replace(plan, signals=replace(s, later=np.where(told, 1, s.later)))
        case "a put on the copy engine":
            kernels = tuple(replace(k, stream="copy") if k.name == "send" else k for k in plan.bound.kernels)
            return replace(plan, bound=replace(plan.bound, kernels=kernels))
        case "kernels that announce themselves":
            return replace(plan, bound=replace(plan.bound, protocol=LaunchProtocol.IN_KERNEL))
        case _:
            return plan


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("a put without its read", "puts without reading what it puts"),
        ("a signal in the next tile", "defers a signal of the network"),
        ("a put on the copy engine", "puts or gets on the copy engine"),
        ("kernels that announce themselves", "kernels announce entry and end by themselves (IN_KERNEL)"),
        ("nothing", ""),
    ],
)
def test_plans_that_no_text_says_are_refused(what: str, said: str) -> None:
    found = refusals(broken(make_plan(lowered(SENT)), what), limit=1)
    assert [one.rule for one in found] == ["network"] * bool(said)
    assert not found or said in found[0].message


SPREAD = """program p(M, N):
    x : in symmetric [M, N]
    h : symmetric [ranks, M, N]
    y : out [M, N]

    comm send(i: M, p: ranks):
        tile_push_data(h[rank, i, :] @ p, x[i, :])
        producer_tile_notify(h[rank, i, :] @ p)

    compute add(i: M):
        acc = zeros(f32)
        for (r: ranks):
            consumer_tile_wait(h[r, i, :])
            acc += h[r, i, :]
        y[i, :] = acc

schedule s for p:
    send on sm(1), tile(i=8)
    add on sm(1), tile(i=8)
    h channel(r=SENDERS)
"""


@pytest.mark.parametrize(("senders", "nodes", "refused"), [(4, 2, True), (1, 2, False), (2, 2, False), (4, 1, False)])
def test_a_counter_is_added_to_by_the_network_or_inside_its_node(senders: int, nodes: int, refused: bool) -> None:
    module = parse_text(SPREAD.replace("SENDERS", str(senders)), "test.tl")
    bound = bind(module.programs[0], module.schedules[0], DIMS, 4, CPU, nodes=nodes)
    found = refusals(make_plan(bound), limit=1)
    assert [one.rule for one in found] == ["network"] * refused
    if refused:
        assert "by the network, and rank 0, send tile (i=0, p=0) notifies it from inside the node" in found[0].message
        assert found[0].location and found[0].related and "channels of their own" in str(found[0].hint)


def test_a_signal_to_another_rank_follows_no_put() -> None:
    plan = make_plan(lowered(SENT))
    puts = Puts(plan=plan)
    row = int(puts.rows[plan.accesses.kind[puts.rows] == WRITE][0])
    put = puts.at(int(plan.accesses.task[row]), int(plan.accesses.position[row]))
    (signal,) = puts.carriers(put)
    peer = plan.signals.peer.copy()
    peer[signal] = (peer[signal] + 1) % 3
    assert list(Puts(plan=replace(plan, signals=replace(plan.signals, peer=peer))).carriers(put)) == []


def test_the_next_kernel_comes_after_puts_of_one_that_ends_quiet() -> None:
    text = HEAD + SEND + ADD  # one kernel after the other
    plan = make_plan(lowered(text))
    row = int(Puts(plan=plan).rows[0])
    put = plan.accesses.task[[row]], plan.accesses.position[[row]]
    later = np.array([plan.first_task["add"]]), np.array([0])
    assert HappensBefore(plan=plan).before(*put, *later).all()
    kernels = tuple(replace(one, quiet=False) for one in plan.bound.kernels)
    hasty = replace(plan, bound=replace(plan.bound, kernels=kernels))
    assert not HappensBefore(plan=hasty).before(*put, *later).any()


def test_puts_are_in_no_flattened_loop() -> None:
    text = HEAD.replace("    y :", "    w : in [M, N]\n    y :") + SEND.replace(
        "x[i, :])", "dot(x[i, :], w[:, :].T) + x[i, :])"
    )
    text = (
        text.replace("w : in [M, N]", "w : in [N, N]") + ADD + "schedule s for p:\n    send on sm, flatten, tile(i=4)\n"
    )
    assert lowered(text, nodes=1).stages["send"].flatten
    assert not lowered(text).stages["send"].flatten


def test_tiles_of_whole_rows_are_one_message() -> None:
    cut, whole = (listing(lowered(COLUMNS.replace("n=8", f"n={size}"))) for size in (8, 20))
    assert f"{PART}\n        {FENCE}" in cut
    assert f"{PART[:-1]}, producer_tile_notify)" in whole and "network_fence" not in whole


def test_one_fence_is_before_all_notifies_of_a_loop() -> None:
    module = library_module("all_reduce_two_shot_pushed")
    program = module.program()
    bound = bind(program, module.schedule("small", program), {"Ms": 25, "N": 100}, 4, CPU, nodes=2)
    text = listing(bound).partition("compute reduce")[2].partition("compute keep")[0]
    assert text.count("network_fence()") == 1
    assert text.index("network_fence()") < text.rindex("for (q: ranks - 1 by 1):")


def test_nodes_have_equally_many_ranks() -> None:
    with pytest.raises(BindingError, match="3 ranks on 2 nodes"):
        lowered(SENT, nodes=2)
    with pytest.raises(BindingError, match="3 ranks on 0 nodes"):
        lowered(SENT, nodes=0)


def test_the_copy_engine_reaches_no_other_node() -> None:
    text = SENT.replace("send on sm(1)", "send on copy_engine")
    lowered(text, nodes=1)
    with pytest.raises(ScheduleError, match="send is on the copy engine and moves data or signals to other nodes"):
        lowered(text)


def test_gpus_of_several_nodes_have_no_copy_engine() -> None:
    program = library_module("two_level_all_gather").program("two_level_all_gather")
    text = "schedule s for two_level_all_gather:\n    across on sm(1)\n    inside on copy_engine\n"
    schedule, sizes = parse_text(text, "test.tl").schedules[0], {"Ms": 64, "K": 64, "g": 2}
    for machine, nodes, refused in ((target("sm_90"), 2, True), (target("sm_90"), 1, False), (CPU, 2, False)):
        found = refusals(make_plan(bind(program, schedule, sizes, 4, machine, "bf16", nodes=nodes)), limit=1)
        assert [one.rule for one in found] == ["network"] * refused
        assert not refused or "inside is on the copy engine" in found[0].message


def test_large_copies_are_done_by_programs_unless_a_schedule_says_otherwise() -> None:
    text = HEAD + SEND.replace("tile_push_data", "rank_copy_data") + ADD
    assert lowered(text, nodes=1).kernel_of["send"].on_copy_engine
    assert not lowered(text).kernel_of["send"].on_copy_engine
    assert refusals(make_plan(lowered(text)), limit=1) == []


BY_TABLE = """program p(B, N):
    x  : in symmetric [B, N]
    to : table [B] < ranks
    h  : symmetric [ranks, B, N]
    y  : out [ranks, B, N]

    comm send(b: B, p: ranks):
        if p == to[b]:
            tile_push_data(h[rank, b, :] @ to[b], x[b, :])
        else:
            tile_push_data(h[rank, b, :] @ p, x[b, :])
        producer_tile_notify(h[rank, b, :] @ p)

    compute keep(s: ranks, b: B):
        consumer_tile_wait(h[s, b, :])
        y[s, b, :] = h[s, b, :]
"""


@pytest.mark.parametrize("seed", range(3))
def test_ranks_of_a_table_are_asked_for_their_node_when_they_are_known(seed: int) -> None:
    bound = bind(parse_text(BY_TABLE, "test.tl").programs[0], None, {"B": 5, "N": 8}, 4, CPU, nodes=2)
    send = listing(bound).partition("comm send")[2].partition("compute")[0]
    assert "if to[b] % 4 // 2 != rank // 2:" in send and "if p // 2 != rank // 2:" in send
    assert send.count("tile_put_data") == send.count("tile_push_data") == 2
    assert "network_fence()" in send  # how many counters a notify has is not known without the table
    tables = {"to": np.random.default_rng(seed).integers(0, 4, (4, 5))}
    plan = make_plan(bound, tables)
    assert refusals(plan, limit=1) == [] and check(plan, range(4)) == []


def test_one_node_has_nothing_of_it() -> None:
    text = listing(lowered(SENT, nodes=1))
    assert not any(word in text for word in ("tile_put_data", "network", "nodes", "quiet"))


def test_ranks_of_one_node_are_reached_by_address() -> None:
    module = parse_text(SENT, "test.tl")
    four = bind(module.programs[0], module.schedules[0], DIMS, 4, CPU, nodes=2)
    send = listing(four).partition("comm send")[2].partition("compute")[0]
    assert "if (rank + 1) % 4 // 2 != rank // 2:" in send
    assert "tile_put_data" in send and "tile_push_data" in send
    plan = make_plan(four)
    assert refusals(plan, limit=1) == []
    # What the rules judge is where the statements reach, not how the condition is written.
    apart = make_plan(replace(four, nodes=4))
    assert refusals(apart, limit=1)[0].rule == "network"


@pytest.mark.parametrize("text", [SENT, PAIR, COMPUTED, PULLED, RELAYED])
def test_the_lowered_program_is_printed_and_read_back(text: str) -> None:
    bound = lowered(text)
    assert listing(parse_lowered(listing(bound))) == listing(bound)
    assert "lowered for 3 ranks on 3 nodes:" in listing(bound)
