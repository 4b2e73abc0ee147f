"""Verifier against dynamic checker: what breaks one rule breaks only that, and on mutants of the library both agree."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from zlib import crc32

import numpy as np
import pytest

from tests.compiler import library
from tests.tiers import one_in, thorough
from tests.verifier.campaign import (
    NOT_FOLLOWED,
    OUTCOMES,
    Verdict,
    campaign,
    cases,
    judge,
    judged,
    line,
    network_cases,
    scheduled,
)
from tests.verifier.dynamic import check
from tests.verifier.mutations import Case, Mutant, mutants, with_room
from tilelink.frontend.parser import parse_text
from tilelink.ir.link import strip
from tilelink.ir.program import For, If, Notify, Program, Read, Region, Statement, Transfer, Wait
from tilelink.ir.scalar import Index, Whole, add, const, walk
from tilelink.ir.visitor import reads, value_of
from tilelink.lowering.bind import bind
from tilelink.lowering.events import WAIT
from tilelink.lowering.walk import executions
from tilelink.planning.plan import Plan, make_plan
from tilelink.target import CPU, H200, Target
from tilelink.verifier import RULES, refusals, rules

HEAD = "program p(M, N):\n    x : in [M, N]\n    h : symmetric [M, N]\n    y : out [M, N]\n"
SEND = "    comm send(i: M):\n        tile_push_data(h[i, :] @ (rank + 1), x[i, :])\n"
NOTICE = "        producer_tile_notify(h[i, :] @ (rank + 1))\n"
AWAIT = "        consumer_tile_wait(h[i, j])\n"
ADD = "    compute add(i: M, j: N):\n" + AWAIT + "        y[i, j] = x[i, j] + h[i, j]\n"
SAFE = HEAD + SEND + NOTICE + ADD
BESIDE = "schedule s for p:\n    send on sm(1), tile(i=8)\n    add on sm, tile(i=8)\n"
PULL = """    comm fill(i: M):
        h[i, :] = x[i, :]
        producer_tile_notify(h[i, :] @ (rank + 1))
    compute add(i: M, j: N):
        consumer_tile_wait(h[i, j])
        y[i, j] = h[i, j] @ (rank - 1)
"""
COPY = "    compute copy(i: M):\n        y[i, :] = x[i, :]\n"


@dataclass(frozen=True, kw_only=True)
class Breach:
    """A program, a schedule and a change of its plan that break `rule` alone; `fails`: whether running shows it."""

    rule: str
    text: str
    change: Callable[[Plan], Plan] = lambda plan: plan
    sms: int = 8
    fails: bool = True
    nodes: int = 1
    numbers: Mapping[str, int] = field(default_factory=lambda: {"M": 25, "N": 6})
    dtype: str = "f32"
    target: Target = CPU


def lower_threshold(plan: Plan) -> Plan:
    ((key, counts),) = plan.thresholds.items()
    return replace(plan, thresholds={key: counts - 1})


def late_waits(plan: Plan) -> Plan:
    position = np.where(plan.signals.kind == WAIT, 1000, plan.signals.position)
    return replace(plan, signals=replace(plan.signals, position=position))


def narrow_write(plan: Plan) -> Plan:
    a = plan.accesses
    out = plan.bound.tensors["y"].number
    hi = np.where((a.tensor == out)[:, None] & (a.hi > 1), a.hi - 1, a.hi)
    return replace(plan, accesses=replace(a, hi=hi))


def unguarded_loads(plan: Plan) -> Plan:
    """Let a loader fill buffers without waiting until they are free."""
    stage = plan.bound.stages["multiply"]
    assert stage.roles is not None
    ring = stage.roles.operands
    loader = replace(ring.writer, steps=ring.writer.steps[1:])
    wrong = replace(stage, roles=replace(stage.roles, operands=replace(ring, writer=loader)))
    return replace(plan, bound=replace(plan.bound, stages={**plan.bound.stages, "multiply": wrong}))


def passed_over(plan: Plan) -> Plan:
    """Let a kernel with compact numbers begin with the second tile of each segment."""
    (kernel,) = plan.bound.kernels
    (loop,) = kernel.loops
    assert loop.compact is not None
    loop = replace(loop, compact=replace(loop.compact, tile=add(loop.compact.tile, const(1))))
    kernels = (replace(kernel, loops=(loop,)),)
    return replace(plan, bound=replace(plan.bound, kernels=kernels))


def fewer_slots(plan: Plan) -> Plan:
    """Let memory have one slot less than there are credits for."""
    tensor = plan.bound.tensors["h"]
    assert tensor.steps is not None
    dim, slots = tensor.steps
    tensors = {**plan.bound.tensors, "h": replace(tensor, steps=(dim, slots - 1))}
    return replace(plan, bound=replace(plan.bound, tensors=tensors))


def shifted_words(plan: Plan) -> Plan:
    """Let words have elements of two tiles."""
    tensors = {**plan.bound.tensors, "h": replace(plan.bound.tensors["h"], packed=2)}
    return replace(plan, bound=replace(plan.bound, tensors=tensors))


STEPS = """program p(M, N):
    x : in        [4, M, N]
    h : symmetric [4, M, N]
    y : out       [4, M, N]
    comm send(l: 4 by 1, i: M):
        tile_push_data(h[l, i, :] @ (rank + 1), x[l, i, :])
        producer_tile_notify(h[l, i, :] @ (rank + 1))
    compute keep(l: 4 by 1, i: M):
        consumer_tile_wait(h[l, i, :])
        y[l, i, :] = h[l, i, :]
schedule s for p:
    send on sm(1), tile(i=8)
    keep on sm, tile(i=8)
    h slots(l=2)
"""
COUNTED = """program p(M, N):
    n : in [] <= M
    x : in [M, N]
    y : out [M[: n], N]
    compute copy(i: M[: n], j: N):
        y[i, j] = x[i, j]
schedule s for p:
    copy on sm, tile(i=8, j=2)
"""
PRODUCT = """program p(M, N, K):
    a : in [M, K]
    b : in [N, K]
    y : out [M, N]
    compute multiply(i: M, j: N):
        y[i, j] = dot(a[i, :], b[j, :].T)
schedule s for p:
    multiply on sm, tile(i=128, j=128, k=64), roles(consumers=2, buffers=4)
"""

BREACHES = {
    "lowered program that passes over a tile": Breach(rule="tiles", text=COUNTED, change=passed_over, fails=False),
    "lowered program without order of its roles": Breach(
        rule="roles",
        text=PRODUCT,
        change=unguarded_loads,
        fails=False,
        numbers={"M": 256, "N": 256, "K": 256},
        dtype="bf16",
        target=H200,
    ),
    "lowered program with credits for more slots": Breach(rule="steps", text=STEPS, change=fewer_slots),
    "lowered program with words of two tiles": Breach(
        rule="words",
        text=SAFE.replace(AWAIT, "        consumer_tile_wait(h[i, j])\n")
        + BESIDE.replace("add on sm, tile(i=8)", "add on sm, tile(i=8, j=3)")
        + "    h low_latency\n",
        change=shifted_words,
        fails=False,
    ),
    "program without coverage": Breach(
        rule="coverage", text=HEAD + COPY.replace("    y[", "    if rank != 1:\n            y[")
    ),
    "plan without coverage": Breach(rule="coverage", text=SAFE + BESIDE, change=narrow_write),
    "program without ordering": Breach(rule="ordering", text=SAFE.replace(AWAIT, "") + BESIDE),
    "plan without ordering": Breach(rule="ordering", text=SAFE + BESIDE, change=late_waits),
    "program without accounting": Breach(
        rule="accounting", text=SAFE.replace(AWAIT, AWAIT + "        peer_tile_wait(h[i, j])\n") + BESIDE, fails=False
    ),
    "plan without accounting": Breach(
        rule="accounting", text=SAFE + BESIDE + "    h channel(i=16)\n", change=lower_threshold
    ),
    "program without progress": Breach(
        rule="progress",
        text=HEAD
        + "    comm send(i: M):\n        peer_tile_wait(h[i, :])\n"
        + "        peer_tile_notify(h[i, :] @ (rank + 1))\n"
        + COPY,
    ),
    "schedule without progress": Breach(rule="progress", text=SAFE + BESIDE, sms=1),
    "program without exclusive writes": Breach(
        rule="exclusive_writes", text=HEAD + "    comm send(p: ranks):\n        tile_push_data(h @ p, x)\n" + COPY
    ),
    "program that loads from another node": Breach(
        rule="network",
        text=HEAD.replace("x : in", "x : in symmetric") + COPY.replace("= x[i, :]", "= x[i, :] @ (rank + 1) * 2.0"),
        nodes=3,
    ),
    "schedule without reuse": Breach(rule="reuse", text=SAFE + BESIDE + "    reuse_wait off\n"),
    "program without reuse": Breach(
        rule="reuse",
        text=HEAD + PULL + "schedule s for p:\n    fill on sm(1), tile(i=8)\n    reuse_wait off\n",
    ),
}


@pytest.mark.parametrize("name", BREACHES, ids=str)
def test_each_rule_alone_refuses_what_breaks_it(name: str) -> None:
    breach = BREACHES[name]
    module = parse_text(breach.text, "test.tl")
    schedule = module.schedules[0] if module.schedules else None
    target = replace(breach.target, sms=breach.sms, grows=False)
    made = bind(module.programs[0], schedule, breach.numbers, 3, target, breach.dtype, nodes=breach.nodes)
    plan = breach.change(make_plan(made))
    assert [name for name, of_rule in rules(plan) if next(of_rule, None)] == [breach.rule]
    assert bool(check(plan, range(40))) is breach.fails


def test_every_rule_is_broken() -> None:
    assert {breach.rule for breach in BREACHES.values()} == RULES.keys()


def signals_are_static(program: Program) -> bool:
    """True for a program with signals of which no launch decides parts, which `tests.campaign --launches` mutates."""
    return strip(program) != program and all(tensor.bound is None for tensor in program.tensors)


def links(program: Program) -> set[str]:
    """What a program says to move and signal data, each thing in its own form: without names, sizes and places."""
    found: set[str] = set()
    spaces = {t.name: f"{t.space}{' symmetric' * (t.symmetric and t.space != 'symmetric')}" for t in program.tensors}

    def place(region: Region) -> str:
        rank = region.rank
        far = "" if rank is None else " there" if any(isinstance(one, Index) for one in walk(rank)) else " next"
        return f"{spaces[region.tensor]}{' whole' * any(isinstance(c, Whole) for c in region.coords)}{far}"

    def look(body: tuple[Statement, ...], around: str) -> None:
        for statement in body:
            match statement:
                case If(then=then, orelse=orelse):
                    look((*then, *orelse), f"{around} if".replace("if if", "if"))
                case For(body=inner):
                    look(inner, f"{around} for".replace("for for", "for"))
                case Notify(kind=kind, region=region) | Wait(kind=kind, region=region):
                    found.add(f"{around} {type(statement).__name__} {kind} {place(region)}")
                case Transfer(mode=mode, target=target, source=source):
                    what = spaces[source.region.tensor] if isinstance(source, Read) else "computed"
                    found.add(f"{around} {mode} {place(target)} of {what}")
                case _:
                    pass
            value = value_of(statement)
            far = [region for region in (reads(value) if value is not None else ()) if region.rank is not None]
            found.update(f"{around} read {place(region)}" for region in far)

    for stage in program.stages:
        look(stage.body, stage.kind)
    return found


def covering(programs: Sequence[Program]) -> tuple[str, ...]:
    """The names of programs that say together what all of them say: next is always the one that says most that is new.

    Python -m tests.verifier.campaign mutates the others.
    """
    said = {program.name: links(program) for program in programs}
    left, chosen = set[str]().union(*said.values()), list[str]()
    while left:
        chosen.append(max(said, key=lambda name: len(said[name] & left)))
        left -= said[chosen[-1]]
    return tuple(chosen)


STATIC = tuple({program.name: program for program, _ in library.unlike() if signals_are_static(program)}.values())
LINKED = covering(STATIC)
"""The programs that link tiles by signals, each in a way of its own."""
MOST = 6_000
"""Executions of statements, at most, of a program whose mutants are made."""
LOOPS = {"L": 3, "KB": 3, "k": 3}
"""How often programs repeat what they do: a fourth time is like the third."""


def several_tiles(case: Case) -> bool:
    """True if some stage has more than one tile for each rank."""
    stages = case.bound().stages.values()
    return any(s.total > (case.ranks if any(d.over_ranks for d in s.stage.indices) else 1) for s in stages)


def linked(name: str) -> Case:
    """One case of a program, the same one whatever else the library has; with several tiles, if there is such a one."""
    found = [replace(c, numbers={**c.numbers, **{n: LOOPS[n] for n in LOOPS.keys() & c.numbers}}) for c in cases(name)]
    first = crc32(name.encode()) % len(found)
    chosen = next(filter(several_tiles, found[first:] + found[:first]), found[first])
    while executions(chosen.bound()) > MOST:  # a program of many dimensions has tiles of all of them
        largest = max(chosen.numbers, key=lambda one: chosen.numbers[one])
        chosen = replace(chosen, numbers={**chosen.numbers, largest: -(-chosen.numbers[largest] // 2)})
    return chosen


SHORTER = {"zigzag_attention_gradients": "ag_attention_gradients"}
"""Programs that execute many statements, and others with the same ones and fewer of them, for the default tier."""


@thorough(unless=lambda name: name in SHORTER.values() or (one_in(6, name) and name not in SHORTER))
@pytest.mark.parametrize("name", LINKED)
def test_the_verifier_and_the_dynamic_checker_agree_on_mutants(name: str) -> None:
    verdicts = list(campaign(1, only=[linked(name)], sample=True))
    assert [str(v) for v in verdicts if v.outcome == "accepted, fails"] == []
    assert [str(v) for v in verdicts if v.outcome == "refused, never failed" and not v.why] == []
    assert sum(v.outcome == "refused, fails" for v in verdicts) > 5, "mutants do nothing"
    assert sum(v.outcome == "accepted, safe" for v in verdicts) > 5, "all mutants are wrong"


NETWORK = ("two_level_gemm_rs-default-4-2", "all_reduce_two_shot_pushed-small-4-2", "all_gather-pull-2-2")


SMALLER = "two_level_gemm_rs-copy_sms-2-2"


@cache
def of_nodes(name: str) -> Case:
    return next(c for c in network_cases(name.split("-")[0]) if c.name == name)


@thorough(unless=lambda name: name == "all_gather-pull-2-2")
@pytest.mark.parametrize("name", NETWORK)
def test_they_agree_on_mutants_between_nodes(name: str) -> None:
    case = of_nodes(name)
    verdicts = list(campaign(1, only=[case], sample=True))
    assert [str(v) for v in verdicts if v.outcome == "accepted, fails"] == []
    assert [str(v) for v in verdicts if v.outcome == "refused, never failed" and not v.why] == []
    assert any(v.outcome == "refused, fails" and v.rule == "network" for v in verdicts)


def test_a_verifier_without_the_rule_of_the_network_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    case = of_nodes(SMALLER)
    kept = {name: rule for name, rule in RULES.items() if name != "network"}
    monkeypatch.setattr("tilelink.verifier.RULES", kept)
    assert any(v.outcome == "accepted, fails" for v in campaign(1, only=[case], sample=True))


def test_a_verifier_for_which_puts_are_stores_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    case = of_nodes(SMALLER)
    monkeypatch.setattr("tilelink.planning.network.Puts.late", lambda _self, task, _position: np.zeros(len(task), bool))
    assert any(v.outcome == "accepted, fails" for v in campaign(2, only=[case], sample=True))


def test_a_verifier_without_a_rule_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    case = next(cases("ag_gemm"))
    for missing in ("coverage", "accounting", "ordering"):
        kept = {name: rule for name, rule in RULES.items() if name != missing}
        monkeypatch.setattr("tilelink.verifier.RULES", kept)
        assert any(v.outcome == "accepted, fails" for v in campaign(1, only=[case], sample=True)), missing


LINKS = {
    "a kind of signal": ("producer_tile_notify", "peer_tile_notify"),
    "a rank": ("h[i, :] @ (rank + 1), x", "h[i, :], x"),
    "another rank than the next one": ("h[i, :] @ (rank + 1), x", "h[i, :] @ i, x"),
    "a space": ("h : symmetric", "h : out symmetric"),
    "what is sent": ("x[i, :])", "x[i, :] + 1.0)"),
    "a condition": (NOTICE, NOTICE.replace("        ", "        if rank > 0:\n            ")),
    "a loop": (NOTICE, NOTICE.replace("        ", "        for (p: ranks):\n            ")),
    "all of a dimension": ("wait(h[i, j])", "wait(h[i, :])"),
    "a stage": ("comm send", "compute send"),
    "a wait": (AWAIT, ""),
    "a read of a peer": (AWAIT + "        y[i, j] = x[i, j] + h[i, j]", "        y[i, j] = h[i, j] @ (rank + 1)"),
}


@pytest.mark.parametrize("what", LINKS)
def test_a_program_that_links_tiles_in_another_way_is_mutated_too(what: str) -> None:
    old, new = LINKS[what]
    assert old in SAFE
    one, other = (parse_text(text, "test.tl").programs[0] for text in (SAFE, SAFE.replace(old, new, 1)))
    assert links(one) != links(other)
    more = links(other) - links(one)
    assert covering([one, replace(other, name="other")]) == (("p", "other") if more else ("p",))


def test_whatever_programs_say_of_links_a_program_says_that_is_mutated() -> None:
    mutated = set[str]().union(*(links(program) for program in STATIC if program.name in LINKED))
    assert all(links(program) <= mutated for program in STATIC)
    assert len(LINKED) == len(set(LINKED)) < len(STATIC)


def test_names_and_sizes_are_no_other_way() -> None:
    renamed = SAFE.replace("send", "carry").replace("h[", "g[").replace("h :", "g :").replace("i: M", "i: M by 1")
    one, other = (parse_text(text, "test.tl").programs[0] for text in (SAFE, renamed))
    assert links(one) == links(other)


def test_mutants_of_a_kind_are_counted_and_each_differs() -> None:
    case = next(cases("gemm_rs_ring"))
    found: list[Mutant] = list(mutants(case))
    assert {m.level for m in found} == {"program", "schedule", "lowered", "plan"}
    assert len({(m.level, m.kind, m.what) for m in found}) == len(found)
    kinds = [(m.level, m.kind) for m in mutants(case, 2)]
    assert max(kinds.count(kind) for kind in kinds) <= 2


def test_a_mutant_that_no_plan_can_be_made_of_is_told_apart() -> None:
    case = next(cases("ag_gemm"))
    wrong = replace(case, numbers={})
    verdict: Verdict = judge(case, Mutant(level="program", kind="no numbers", what="", make=wrong.plan))
    assert verdict.outcome == OUTCOMES[0]


APART = {
    "signal apart from its data": False,
    "signal before its data": False,
    "signal after a fence": True,
    "signal after a quiet": True,
}
"""A way to send a signal of the network beside a put -> whether the data has arrived when the signal has."""


@pytest.mark.parametrize("kind", APART)
def test_a_place_that_a_launch_decides_is_ready_when_a_signal_has_followed_its_put(kind: str) -> None:
    found = [m for m in mutants(of_nodes("ag_gemm_batch-small-2-2")) if m.kind == kind]
    assert found
    for mutant in found:
        verdict = judge(of_nodes("ag_gemm_batch-small-2-2"), mutant)
        assert verdict.outcome == ("accepted, safe" if APART[kind] else "refused, fails"), str(verdict)


@pytest.mark.thorough
@pytest.mark.parametrize("name", NOT_FOLLOWED)
def test_a_program_is_left_out_only_if_the_machine_finds_fault_with_it(name: str) -> None:
    assert name not in {program.name for _, program, _ in scheduled()}  # of these `cases` are made
    for case in cases(name):
        assert check(case.plan(), range(3)), f"{case.name} need not be left out"


def test_the_machine_waits_for_entries_that_arrive_as_words() -> None:
    (case,) = (one for one in cases("low_latency_experts") if "-words-" in one.name)
    assert check(case.plan(), range(2)) == []


@pytest.mark.parametrize("name", ["gemm_ar_one_shot", "all_reduce_one_shot_pushed"])
def test_room_for_mutants_of_words_is_no_mistake_itself(name: str) -> None:
    (case, *_) = (one for one in cases(name) if "words" in one.name)
    assert refusals(with_room(case.plan())) == []


def test_a_campaign_goes_on_from_what_it_has_judged(tmp_path: Path) -> None:
    case = next(cases("gemm_rs_ring"))
    verdicts = [judge(case, mutant, sample=True) for mutant in list(mutants(case, 1))[:3]]
    log = tmp_path / "log"
    log.write_text(line(case.name, verdicts) + "\n" + line("another", []) + "\n")
    assert judged(log) == {case.name: verdicts, "another": []}
    assert judged(tmp_path / "none") == {}
