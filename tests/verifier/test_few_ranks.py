"""What is proved on few ranks is true on all of them, and on other numbers of ranks; and wrong classes are seen.

The oracle is the program on all ranks, one by one: its plan, its rules, and the notifies of its counters.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

import tilelink
from tests.campaign.drawing import case as random_case
from tests.compiler import library
from tests.tiers import one_in, thorough
from tests.verifier.mutations import Case, mutants
from tests.verifier.test_cutoff import Whole
from tests.verifier.test_families import case_of
from tilelink import compiler
from tilelink.compiler.other_sizes import Multiples, other_ranks
from tilelink.errors import ScheduleError, TileLinkError
from tilelink.lowering.bound import Bound
from tilelink.lowering.limits import MAX_TILES
from tilelink.planning import cutoff as cutoffs
from tilelink.planning import few_ranks as few
from tilelink.planning.cutoff import cutoff
from tilelink.planning.few_ranks import FewRanks
from tilelink.planning.plan import make_plan
from tilelink.planning.queue_order import with_queue_order
from tilelink.target import CPU
from tilelink.verifier import cutoff as proofs
from tilelink.verifier.cutoff import safe_plan

RANKS = 8
OTHERS = (2, 3, 5, 11)
NAMES = [*map(str, map(library.name, library.cases()))]


@pytest.fixture(autouse=True)
def of_few_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many ranks as can be enumerated are many."""
    monkeypatch.setattr(cutoffs, "MANY_RANKS", RANKS)


def is_alike(bound: Bound) -> bool:
    """True if few ranks may stand for all."""
    part = cutoff(bound)
    return part is not None and part.ranks is not None


def by_few(whole: Whole) -> bool:
    """True if few ranks prove a program."""
    return is_alike(whole.plan.bound) and whole.verdict() is True


@cache
def in_library(name: str, ranks: int) -> Whole:
    case = next(one for one in library.cases() if library.name(one) == name)
    bound = compiler.bound(*case, ranks=ranks, dims=dict(library.sizes(case, ranks)), dtype="f32")
    return Whole(plan=with_queue_order(make_plan(bound)))


def wholes(names: Sequence[str], ranks: int) -> Iterator[Whole]:
    for name in names:
        try:
            yield in_library(name, ranks)
        except TileLinkError:
            continue


@thorough(unless=lambda name: one_in(12, name))
@pytest.mark.parametrize("name", NAMES)
def test_what_few_ranks_prove_of_the_library_is_true(name: str) -> None:
    for whole in wholes([name], RANKS):
        if by_few(whole):
            assert whole.wrong() is None
            assert [one.said() for ranks in OTHERS for one in wholes([name], ranks)] == [[]] * len(OTHERS)


def test_few_ranks_prove_most_of_the_dense_library() -> None:
    dense = [name for name in NAMES if name.startswith(("ag_gemm_", "all_", "reduce_scatter")) and one_in(4, name)]
    verdicts = Counter(map(by_few, wholes(dense, RANKS)))
    assert verdicts[True] >= 12 and verdicts[False] <= verdicts[True] / 2, verdicts


MUTATED = ["all_reduce_two_shot_kept-small", "gemm_ar_batch-h200", "gemm_ar_bias-h200_roles", "fsdp-default"]


def mutated(case: Case, of_each: int) -> Iterator[tuple[str, Whole]]:
    """The mutants of a program that few ranks may prove."""
    for mutant in mutants(case, of_each):
        try:
            if mutant.level != "plan" and is_alike((plan := with_queue_order(mutant.make())).bound):
                yield f"{mutant.level} {mutant.kind} {mutant.what}", Whole(plan=plan)
        except TileLinkError:
            continue


@thorough(unless=lambda name: name in MUTATED)
@pytest.mark.parametrize("name", dict.fromkeys((*MUTATED, *map(library.name, library.few(library.cases())))))
def test_what_few_ranks_prove_of_mutants_is_true(name: str) -> None:
    case = next(one for one in library.cases() if library.name(one) == name)
    for what, whole in mutated(case_of(*case, RANKS), 2):
        assert whole.wrong() is None, what


def drawn(number: int) -> Iterator[tuple[str, Whole]]:
    """A random program on eight ranks, and its mutants, if few ranks may prove it."""
    one = random_case(number)
    try:
        module = compiler.parse(one.text)
        case = Case(program=module.program(), schedule=next(iter(module.schedules), None), numbers=dict(one.dims),
                    ranks=RANKS, target=replace(CPU, sms=one.sms, max_programs=one.programs))  # fmt: skip
        bound = case.bound()
    except TileLinkError:
        return
    if not one.tables and one.nodes == 1 and is_alike(bound):
        yield "as it is", Whole(plan=with_queue_order(make_plan(bound)))
        yield from mutated(case, 1)


@thorough(unless=lambda first: first == 0)
@pytest.mark.parametrize("first", range(0, 600, 30))
def test_what_few_ranks_prove_of_random_programs_is_true(first: int) -> None:
    for number in range(first, first + 30):
        for what, whole in drawn(number):
            assert whole.wrong() is None, f"{number} {what}"


TEXT = """program p(M = 4):
    x : in            [M]
    h : symmetric     [ranks, M]
    c : symmetric     [M]
    y : out           [ranks, M]
    {tensors}
    z : out symmetric [M]

    comm push({pushed}, i: M):
        {told}

    compute take({taken}, i: M):
        {takes}

    compute total(i: M):
        {total}

schedule s for p:
    push {push}
    take {take}
    total on sm(1)
    {more}
"""
SENT = "tile_push_data(h[rank, i] @ {0}, x[i])\n        producer_tile_notify(h[rank, i] @ {0})"
READ = "consumer_tile_wait(h[{0}, i])\n        y[{0}, i] = h[{0}, i]"
NOTIFY = "\n        producer_tile_notify(h[rank, i] @ {0})"
COUNTED = "\n        producer_tile_notify(c[i] @ {0})"
EITHER = ("consumer_tile_wait(h[s, i])\n        value = x[i]\n        if {}:\n            value = h[s, i]\n        "
          "y[s, i] = value")  # fmt: skip
OWN = "tile_push_data(z[i], x[i])"
AFTER = "consumer_tile_wait(c[i])\n        " + OWN


def text(
    *, pushed: str = "p: ranks", told: str = SENT.format("p"), taken: str = "s: ranks", takes: str = READ.format("s"),
    total: str = OWN, push: str = "on sm(2), tile(i=2)", take: str = "on sm(2)", more: str = "",
    more_tensors: str = "",
) -> Whole:  # fmt: skip
    """The plan of a program, whether or not it is safe."""
    own = {"pushed": pushed, "told": told, "taken": taken, "takes": takes, "total": total, "tensors": more_tensors}
    module = tilelink.parse(TEXT.format(push=push, take=take, more=more, **own))
    case = Case(program=module.program(), schedule=module.schedules[0], numbers={"M": 4}, ranks=RANKS)
    return Whole(plan=with_queue_order(make_plan(case.bound())))


def told(when: str, sent: str = SENT.format("p")) -> str:
    """What is sent and notified under a condition."""
    return f"if {when}:\n            " + sent.replace("\n", "\n    ")


def others(first: str = "rank + 1 + q", back: str = "rank - 1 - q", **more: Any) -> Whole:
    """What ranks send all others, each of which is counted from the own one on."""
    parts: dict[str, Any] = {
        "pushed": "q: ranks - 1", "told": SENT.format(f"({first})"), "taken": "q: ranks - 1",
        "takes": READ.format(back), "total": "y[rank, i] = x[i]\n        " + OWN,
    }  # fmt: skip
    return text(**{**parts, **more})


QUEUE = {"push": "on copy_engine, tile(i=2), order({})"}
PUSHED = SENT.format("p").split("\n")[0]
ONCE = f"if a == rank:\n            {PUSHED}\n        "
"""What is sent by one of the iterations for each rank."""


@cache
def corpus() -> dict[str, Whole]:
    """Programs on eight ranks: safe ones, and such as are not in ways that few ranks do not show."""
    queue = {name: {"push": QUEUE["push"].format(order)} for name, order in ORDERS.items()}
    after = {"total": AFTER}
    return {
        "to all": text(),
        "from the own one on": text(pushed="q: ranks", told=SENT.format("(rank + q)"), taken="q: ranks",
                                    takes=READ.format("rank - q")),
        "to others": others(),
        "to others, backwards": others("rank - 1 - q", "rank + 1 + q"),
        **{f"a queue {name}": text(**parts) for name, parts in queue.items()},
        "a queue to others": others(push="on copy_engine, order(q = ranks - 2 step -1)"),
        "counted by all": text(told=SENT.format("p") + COUNTED.format("p"), **after),
        "counted by others": others(told=SENT.format("(rank + 1 + q)") + COUNTED.format("(rank + 1 + q)"),
                                    total="consumer_tile_wait(c[i])\n        y[rank, i] = x[i]\n        " + OWN),
        "counted by the own rank": text(told=SENT.format("p") + COUNTED.format("rank"), **after),
        "counted by all for all": text(pushed="p: ranks, a: ranks", told=ONCE + "producer_tile_notify(h[rank, i] @ p)",
                                       takes=READ.format("s") + COUNTED.format("s"), **after),
        "waits for earlier ones twice": text(takes="if s < rank:\n            consumer_tile_wait(h[s, i])\n        "
                                             + READ.format("s")),
        "told to others": text(told=told("rank != p"), takes=told("s != rank", READ.format("s")),
                               total="y[rank, i] = x[i]\n        " + OWN),
        "counted by others in a branch": text(told=PUSHED + "\n        if rank == p:\n    " + NOTIFY.format("p")[1:]
                                              + "\n        else:\n    " + NOTIFY.format("p")[1:] + "\n    "
                                              + COUNTED.format("p")[1:], **after),
        "an index in two loops": others(
            total="for (q: ranks - 1):\n            y[rank + 1 + q, i] = x[i]\n        for (q: ranks - 1):\n    "
            + COUNTED.format("(rank - 1 - q)")[1:] + "\n        y[rank, i] = x[i]\n        " + OWN,
            takes=READ.format("rank - 1 - q").split("\n")[0],
        ),
        "a queue that waits for a kernel": text(told="consumer_tile_wait(c[i])\n        " + SENT.format("p"),
                                                total="producer_tile_notify(c[i])\n        " + OWN,
                                                push=QUEUE["push"].format("p = rank step +1")),
        "entries for each rank": text(more_tensors="n : in [ranks] < 4", takes=EITHER.format("n[s] > 0")),
        "sizes of ranks": text(taken="s: ranks, k: ranks * 2", takes="consumer_tile_wait(h[s, i])\n        if k == 3:\n"
                               "            y[s, i] = h[s, i]"),
        # no others are safe
        "entries that are ranks": text(more_tensors="n : in [] < 8", takes=EITHER.format("n[] == rank")),
        "written for some entries": text(more_tensors="n : in [ranks] < 4",
                                         takes="consumer_tile_wait(h[s, i])\n        if n[s] > 0:\n            "
                                         "y[s, i] = h[s, i]"),
        "not told by one": text(told=told("rank != 5")),
        "not told by the last": text(told=told("rank < ranks - 1")),
        "not told from one on": text(told=told("p < 7")),
        "to the next but one": text(pushed="q: 1", told=SENT.format("(rank + 2)")),
        "to the next but one of all": text(told=SENT.format("(p + 2)").replace("h[rank", "h[p")),
        "told to larger ones": text(told=told("rank <= p")),
        "the last is not waited for": text(takes="if s < ranks - 1:\n            consumer_tile_wait(h[s, i])\n"
                                           "        y[s, i] = h[s, i]"),
        "earlier ones are waited for": text(takes="if s < rank:\n            consumer_tile_wait(h[s, i])\n"
                                            "        y[s, i] = h[s, i]"),
        "the own one is not waited for": text(takes="if s != rank:\n            consumer_tile_wait(h[s, i])\n"
                                              "        y[s, i] = h[s, i]"),
        "all write one": text(told=SENT.format("p") + "\n        tile_push_data(z[i] @ p, x[i])",
                              total="y[rank, i] = x[i]"),
        "four ranks write": text(pushed="p: ranks, a: ranks",
                                 told=ONCE + "if p < a and a < rank:\n            tile_push_data(c[i], x[i])\n        "
                                 "producer_tile_notify(h[rank, i] @ p)"),
        "notifies that depend on ranks": text(taken="s: ranks, k: 6", takes="consumer_tile_wait(h[s, i])\n        "
                                              "if k == 0:\n            y[s, i] = h[s, i]\n        "
                                              "if s != rank and k < 5:\n    " + COUNTED.format("rank")[1:], **after),
        "more rows than ranks": text(more_tensors="t : local [ranks + 4, M]",
                                     total="for (p: ranks):\n            t[p, i] = x[i]\n    " + COUNTED.format("p")[1:]
                                     + "\n        z[i] = sum(t[:, i], axis=0)"),
        "no one is told": text(told=SENT.format("p").split("\n")[0]),
        "a circle": text(pushed="p: ranks", told="consumer_tile_wait(c[i])\n        " + SENT.format("p"),
                         takes=READ.format("s") + COUNTED.format("s")),
        "a circle of kernels": text(told=SENT.format("p") + COUNTED.format("p"), push="in take epilogue, tile(i=2)"),
        "a queue that waits": text(told="consumer_tile_wait(c[i])\n        " + SENT.format("p"),
                                   takes=READ.format("s") + COUNTED.format("s"), push=QUEUE["push"].format("p")),
    }  # fmt: skip


ORDERS = {"up": "p", "down": "p = ranks - 1 step -1", "on": "p = rank step +1", "after": "p = rank + 1 step +1",
          "back": "p = rank step -1", "before": "p = rank - 1 step -1, i"}  # fmt: skip


SAFE = {
    "to all", "from the own one on", "to others", "to others, backwards", "a queue to others", "counted by all",
    "counted by others", "counted by the own rank", "counted by all for all", "waits for earlier ones twice",
    "entries for each rank", "told to others", "counted by others in a branch", "sizes of ranks",
    "an index in two loops", "a queue that waits for a kernel", *(f"a queue {name}" for name in ORDERS),
}  # fmt: skip


def test_the_corpus_has_both_kinds() -> None:
    alone = {"notifies that depend on ranks", "entries that are ranks"}
    assert {name for name, whole in corpus().items() if not whole.said()} == SAFE | alone
    assert {name: whole.wrong() for name, whole in corpus().items()} == dict.fromkeys(corpus())
    assert {name for name, whole in corpus().items() if by_few(whole)} == SAFE, "it is not silence"


def _as_few(self: FewRanks, found: Any, *args: Any, own: Any = FewRanks.thresholds) -> Any:
    whole = own(self, found, *args)
    return None if whole is None else np.minimum(whole, found.max())


Search = few._Search


def _is_cut(self: Any, place: tuple[str, int], own: Any = Search._is_cut) -> bool:
    return place[0] == "t" or own(self, place)


WRONG: dict[str, tuple[object, str, Any]] = {
    "ranks of one event": (Search, "most", property(lambda _: 1)),
    "conditions on ranks": (Search, "_compares", lambda *_: False),
    "notifies under conditions": (few, "notified", lambda _: []),
    "as many notifies as of few ranks": (FewRanks, "thresholds", _as_few),
    "more places than ranks": (Search, "_is_cut", _is_cut),
    "progress not asked": (proofs, "in_rounds", lambda *_: True),
    "rules not asked": (proofs, "RULES", {}),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_class_is_seen(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wholes = corpus()
    monkeypatch.setattr(*WRONG[what])
    assert any(whole.wrong() is not None for whole in wholes.values())


def test_numbers_of_a_rank_are_counted_without_negative_results() -> None:
    for turn in few._TURNS:
        numbers = [[*range(RANKS)]] if not turn.step else [
            [(rank + turn.first + turn.step * q) % RANKS for q in range(turn.count(RANKS))] for rank in range(RANKS)
        ]  # fmt: skip
        assert all(len({*one}) == turn.count(RANKS) for one in numbers)
        assert all((rank in one) is not turn.others for rank, one in enumerate(numbers))


BY_CHANCE = {
    "a remainder": {"takes": "if s % 300 >= s:\n            " + READ.format("s")},
    "the smaller one": {"takes": "if min(s, 300) >= s:\n            " + READ.format("s")},
    "rounds of all": {"pushed": "q: ranks", "told": SENT.format(f"(rank + {4 * RANKS} + q)")},
}
"""Expressions that are the number of a rank on eight ranks, and not on each larger number of them."""


@pytest.mark.parametrize("what", BY_CHANCE)
def test_what_is_the_number_of_a_rank_by_chance_is_none(what: str) -> None:
    whole = text(**BY_CHANCE[what])
    assert whole.said() == [] and not by_few(whole)


@pytest.mark.parametrize(("first", "held"), [("1", True), ("33 - ranks", False)])
def test_numbers_of_ranks_that_are_named_have_the_same_proof(first: str, held: bool) -> None:
    sent = SENT.format(f"(rank + {first} + q)")
    parts = {"pushed": "q: ranks - 1", "told": sent, "taken": "q: ranks - 1", "takes": READ.format("rank - 1 - q"),
             "total": "y[rank, i] = x[i]\n        " + OWN, "push": "on sm(2)", "take": "on sm(2)"}  # fmt: skip
    module = tilelink.parse(TEXT.format(tensors="", more="", **parts))

    def bound_on(ranks: int) -> Bound:
        return compiler.bound(module.program(), module.schedules[0], ranks=ranks, dims={"M": 4096})

    plan = safe_plan(bound_on(16))
    assert plan.representatives
    assert isinstance(other_ranks(plan, bound_on), Multiples) is held, "it is another rank on 17"


def test_few_ranks_of_many_are_planned() -> None:
    module = tilelink.load("tilelink/programs/ag_gemm.tl")
    program = module.program("ag_gemm")
    for schedule in (None, *module.schedules_of(program)):
        plan = compiler.plan(program, schedule, ranks=512, dims={"Ms": 80, "N": 96, "K": 48})
        assert str(plan.representatives) == "5 of 512 ranks" and plan.small.bound.ranks == 5
    large = {"Ms": 8192, "N": 96, "K": 48}
    assert compiler.plan(program, None, ranks=512, dims=large).tasks > MAX_TILES, "more than a plan holds"
    with pytest.raises(ScheduleError, match="tiles on each of 512 ranks"):
        added = tilelink.load("tilelink/programs/gemm_rs.tl").program("gemm_rs_ring")
        compiler.plan(added, None, ranks=512, dims=large)
    ring = module.program("ag_gemm_ring")
    bound = compiler.bound(ring, None, ranks=16, dims={"Ms": 80, "N": 96, "K": 48})
    assert few.few_ranks(bound) is None, "which rank is the next one is not kept"


def test_few_ranks_are_taken_where_they_are_half_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    local = tilelink.load("tilelink/programs/add_norm.tl").program("add_norm")
    gathered = tilelink.load("tilelink/programs/ag_gemm.tl").program("ag_gemm")
    sizes = {"M": 8, "N": 8, "eps": 1e-5}
    assert is_alike(compiler.bound(local, None, ranks=8, dims=sizes)), "3 stand for all"
    assert not is_alike(compiler.bound(local, None, ranks=5, dims=sizes))
    assert not is_alike(compiler.bound(gathered, None, ranks=8, dims={"Ms": 8, "N": 8, "K": 8})), "5 stand for all"
