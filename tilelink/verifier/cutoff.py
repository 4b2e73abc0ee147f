"""Proofs of a whole program by a small one, in which a few blocks of a dimension stand for all (planning/cutoff.py).

All rules of `BY_CUTOFF` but three are asked of the plan of the small program, in which each tile on SMs is a program
of its own, so that no order of tiles in a program is a reason. What they prove of it is true of the whole program by
the theorem that is stated there. Where they refuse the small program, or something below does not hold, the whole
program is planned and asked. So it is where `RULES` has another rule: it may look at more than two events, or at
counts.

What the rules of `OF_EVENTS` refuse of blocks on all ranks is refused of the whole program, which is not planned: they
ask whether there is an event for another one, and not for orders, for which the programs of the whole one may be a
reason. Let an event of the whole program be the one that is missed in the small one. A falling map takes its blocks to
those of the small program, and keeps the order of those that the two events have: there are `kept` or fewer. Then the
small program has its image, which is what the rule has missed.

What other rules refuse of them is refused of a whole program of many events (`MAX_EVENTS`), too: the order of tiles in
its programs may be a reason, but is not looked at.

* *Order of reads.* What families show of two statements, they show of the whole program, which they are asked of.
* *Threads.* Two accesses of one program to an element, in different tiles, are in order by signals, so the later one
  has a wait before it, at which threads meet; or the program would wait before it has notified, and `progress` refuses.
  A wait for a place is no such meeting. So no kernel with one for a tensor writes that tensor.
* *Progress.* `in_turn` or `in_rounds` below, of both programs.
* *Queues.* Which program has a tile decides what comes after a copy. So waits beside a queue are asked of kernels whose
  waits are before all of their notifies.
* *Roles, and what `tiles` asks of kernels,* are read off the whole program.

Of a program that is itself if it is turned by one rank (planning/rotation.py), the plan of a rank is asked. It has
all that rules look at of the memory and the counters of this rank; of orders it may lack some, and each rule refuses
what it knows no order of. *Progress* is that of rounds, or of places in turn, which all ranks have alike.

Numbers are those of the whole program: its integers were checked when it was bound, and thresholds are made for it.

What is asked of the small program alone, `SmallProof`, is true of all programs with the same statement
(planning/statement.py): another size needs it once. What is asked of the whole one is asked of each.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilelink.errors import TileLinkError, VerificationError
from tilelink.ir.program import Wait
from tilelink.lowering.bound import Bound
from tilelink.lowering.columns import Ints
from tilelink.lowering.events import NOTIFY, WAIT, WRITE
from tilelink.lowering.walk import executions
from tilelink.planning.copy_queues import waits_are_free
from tilelink.planning.cutoff import Cutoff, cutoff
from tilelink.planning.plan import LaterPlan, Plan, Representatives, make_plan
from tilelink.planning.queue_order import in_queue_order, with_order, with_queue_order
from tilelink.planning.statement import statement
from tilelink.verifier import BY_CUTOFF, RULES, verify
from tilelink.verifier.families import Families
from tilelink.verifier.ordering import Orders
from tilelink.verifier.roles import roles
from tilelink.verifier.tiles import of_events, of_program
from tilelink.verifier.turns import ends, waits_at_places, waits_in_turn

OF_WHOLE = {"tiles", "progress"}
OF_EVENTS = ("coverage", "words", "accounting")
"""Rules whose refusals of a small program are some of the whole one."""
MAX_EVENTS = 1 << 19
"""Accesses and signals of a whole program that is planned where the small one is refused, at most: as many take
seconds, and more may take minutes and gigabytes."""
MANY = 1 << 14
"""Executions of statements from which on it pays to look for a small program."""


@dataclass(frozen=True, kw_only=True)
class SmallProof:
    """A proof of a small program: that of the whole one follows from it.

    own_first, waits_aside: the order of its copy engines. families: what they showed of the statements of the whole
    program. counts: how often each statement that notifies does so, [ranks, *counters].
    """

    own_first: bool
    waits_aside: bool
    families: str
    counts: tuple[np.ndarray[Any, np.dtype[np.int64]], ...]


Proving = Callable[[Cutoff, Mapping[str, NDArray[Any]] | None], "tuple[SmallProof, Plan | None] | None"]
"""How a small program is proved, as by `small_proof`; with its plan, if that was made for it."""


def safe_plan(
    bound: Bound,
    tables: Mapping[str, NDArray[Any]] | None = None,
    on_rule: Callable[[str], None] | None = None,
    prove: Proving | None = None,
) -> Plan:
    """Return the verified plan of a bound program: of many tiles, with columns that are made when they are asked for.

    on_rule: called with the name of each rule before it is checked of the whole program. prove: of small programs, by
    asking or by what is kept; None: by asking. Raises VerificationError.
    """
    part = cutoff(bound) if executions(bound) >= MANY else None
    if part is not None and part.executions <= executions(bound) // 2:
        found = by_small(part, tables, prove or small_proof)
        if found is not None:
            return found
    plan = with_queue_order(make_plan(bound, tables))
    verify(plan, on_rule)
    return plan


def by_small(
    part: Cutoff, tables: Mapping[str, NDArray[Any]] | None = None, prove: Proving | None = None
) -> Plan | None:
    """Return the plan of a whole program that the small one proves safe; None if it does not. prove: as above.

    Raises VerificationError as `small_proof` does.
    """
    if any(BY_CUTOFF.get(name) is not rule for name, rule in RULES.items()):
        return None
    known = (prove or small_proof)(part, tables)
    if known is not None and known[1] is None and known[0].families != _shown(part, _in_order(part, known[0])):
        known = small_proof(part, tables)
    if known is None:
        return None
    found, small = known
    thresholds = part.thresholds(found.counts)
    if thresholds is None or not _holds_of_whole(part, found):
        return None
    order = {"own_first": found.own_first, "waits_aside": found.waits_aside}
    return proved_before(
        part.whole, tables, thresholds=thresholds, representatives=part.representatives, small=small, **order
    )


def small_proof(
    part: Cutoff, tables: Mapping[str, NDArray[Any]] | None = None
) -> tuple[SmallProof, Plan | None] | None:
    """Return what is proved of the small program of a whole one; None if it is not safe, or not known to be.

    Raises VerificationError if what refuses it refuses the whole program.
    """
    try:
        plan = part.plan(tables)
    except TileLinkError:
        return None  # whatever it is, the whole program has it too, and what is said is said of that
    if plan is None:
        return None
    counts = part.counts(plan)
    alike = part.thresholds(counts) is not None and all(one.holds(plan) for one in part.repetitions)
    if not alike:
        return None
    bases = _has_bases(part, plan)
    for name, refused in _refusals(part, plan, RULES.keys() - OF_WHOLE if bases else OF_EVENTS):
        if (said := _of_whole(part, plan, name)) is not None:
            refused.hint = f"{refused.hint} ({said})"
            raise refused
        return None
    if not bases:
        return None
    engines = [kernel for kernel in plan.bound.kernels if kernel.on_copy_engine]
    found = SmallProof(
        own_first=any(kernel.own_copies_first for kernel in engines),
        waits_aside=any(kernel.waits_aside for kernel in engines),
        families=_shown(part, replace(part.whole, kernels=plan.bound.kernels)),
        counts=counts,
    )
    return found, plan


def _of_whole(part: Cutoff, plan: Plan, name: str) -> str | None:
    """Return what is said beside a refusal of a small program by a rule that is one of the whole program, or None."""
    if part.ranks is not None or part.rotation is not None:
        return None  # of the other ranks nothing is there
    said = f"{part.representatives} stand for all"
    if name in OF_EVENTS:
        return said
    events = (len(plan.accesses.task) + len(plan.signals.task)) * executions(part.whole) // part.executions
    asked = f"; what its programs have in order is asked of {MAX_EVENTS:,} events, and there are about {events:,}"
    return said + asked if events > MAX_EVENTS else None


def _refusals(part: Cutoff, plan: Plan, names: Collection[str]) -> Iterator[tuple[str, VerificationError]]:
    """Yield the refusals of a small program by some rules, with their names; of `tiles` what it asks of events.

    plan: its own, with the order of its copy engines.
    """
    order = Orders(plan, replace(part.whole, kernels=plan.bound.kernels))
    copies = None if part.rotation is None else part.rotation.copies(plan)
    yield from (("tiles", one) for one in of_events(plan, copies))
    for name, rule in RULES.items():
        if name in names:
            yield from ((name, one) for one in rule(plan, order))


def said(part: Cutoff) -> tuple[str, str]:
    """Return what a small program proves, for which other sizes it does so too."""
    return statement(part), _shown(part, part.whole)


def _shown(part: Cutoff, whole: Bound) -> str:
    """Return what families show of the statements of a program, pair by pair; nothing of one that a rank stands for."""
    if part.rotation is not None:
        return ""
    return "; ".join(f"{pair}: {reason}" for pair, reason in Families(None, whole=whole).answers.items())


def _in_order(part: Cutoff, found: SmallProof) -> Bound:
    return with_order(part.whole, own_first=found.own_first, waits_aside=found.waits_aside)


def _holds_of_whole(part: Cutoff, found: SmallProof) -> bool:
    """True if what is asked of a whole program itself, of each size, is so."""
    whole = _in_order(part, found)
    fits = whole.coresident_throughout <= whole.resident_programs
    return fits and next(chain(of_program(whole), roles(whole)), None) is None


def proved_before(
    bound: Bound,
    tables: Mapping[str, NDArray[Any]] | None,
    *,
    thresholds: Mapping[tuple[str, str], Ints],
    representatives: Representatives,
    own_first: bool,
    waits_aside: bool,
    small: Plan | None = None,
) -> Plan:
    """Return the plan of a bound program of which all of this was proved: its columns are made when they are asked for.

    small: the plan of the representatives, if it is there.
    """

    def few() -> Plan:
        if small is not None:
            return small
        part = cutoff(bound)
        plan = None if part is None else part.plan(tables)
        assert plan is not None
        return plan

    order = {"own_first": own_first, "waits_aside": waits_aside}
    whole = with_order(bound, **order)

    def every() -> Plan:
        return in_queue_order(make_plan(bound, tables), **order)

    return LaterPlan.of(whole, thresholds, few if representatives else None, representatives, every)


def _has_bases(part: Cutoff, plan: Plan) -> bool:
    """True if all that rules take for granted of a small program is so. plan: as in `_refusals`."""
    aside = any(kernel.waits_aside for kernel in plan.bound.kernels)
    all_ranks = part.ranks is not None or part.rotation is not None
    return not (
        _meets_at_places(plan)
        or (part.ranks is not None and not part.ranks.keeps_queues(plan))
        or (aside and not waits_are_free(_by_kernels(plan, all_ranks=all_ranks)))
        or not _ends(part, plan)
    )


def _ends(part: Cutoff, plan: Plan) -> bool:
    """True if no wait of the whole program lasts for ever, if all programs that wait fit on a rank."""
    if part.rotation is not None and part.rotation.ordered is not None:  # its tiles have other places than in the plan
        return not part.repetitions and waits_at_places(plan, part.rotation.places(plan))
    return (part.ranks is None and in_turn(part, plan)) or in_rounds(part, plan)


def _meets_at_places(plan: Plan) -> bool:
    """True if a kernel writes a tensor and has a wait for a place in it."""
    a, bound = plan.accesses, plan.bound
    kernels = plan.task_kernels[a.task]
    placed = [(name, one.region.tensor) for name, one in plan.statements
              if isinstance(one, Wait) and bound.is_placed(name, one)]  # fmt: skip
    for number, kernel in enumerate(bound.kernels):
        own = {bound.tensors[tensor].number for name, tensor in placed if name in kernel.stage_names}
        if (plan.touching(own) & (kernels == number) & (a.kind == WRITE)).any():
            return True
    return False


def _by_kernels(plan: Plan, *, all_ranks: bool) -> Plan:
    """Return the plan in which all of a kernel on SMs is one program on a rank, and waits before it notifies.

    all_ranks: so is all of each kernel, on all ranks: what waits for what in a chain over many of these is kept.
    """
    engine = np.array([kernel.on_copy_engine and not all_ranks for kernel in plan.bound.kernels], bool)
    own, s = ~engine[plan.task_kernels], plan.signals
    ranks = 1 if all_ranks else plan.bound.ranks
    worker, sequence = plan.worker.copy(), np.where(own, 0, plan.sequence)
    worker[own] = len(plan.workers) + (plan.task_kernels * ranks + np.minimum(plan.task_ranks, ranks - 1))[own]
    workers = (*plan.workers, *((kernel, rank, 0) for kernel in range(len(engine)) for rank in range(ranks)))
    moved = own[s.task]
    signals = replace(
        s, position=np.where(moved, s.kind == NOTIFY, s.position).astype(np.int64), later=np.where(moved, 0, s.later)
    )
    return replace(plan, worker=worker, sequence=sequence, workers=workers, signals=signals)


def in_turn(part: Cutoff, plan: Plan) -> bool:
    """True if no wait of the whole program lasts for ever, as tiles are in turn (turns.py), if all programs that wait
    fit on a rank. plan: of the small program.

    That is asked of each wait and each notify of one kernel, of which the small program has images with the same order
    if its stages have the same digits; and of kernels.
    """
    loops = [loop for kernel in part.whole.kernels for loop in kernel.loops]
    alike = all(part.digits(name) == part.digits(loop.stages[0]) for loop in loops for name in loop.stages)
    return alike and waits_in_turn(plan)


def in_rounds(part: Cutoff, plan: Plan) -> bool:
    """True if no wait of the whole program lasts for ever, if all that wait fit on a rank. plan: of the small program.

    The tiles of a kernel come in rounds, equally many in both programs. Take an execution in which each kernel has one
    program on a rank, and a round first makes all of its waits and then all of its notifies; those that are deferred to
    a later tile come after all of the kernel. Nothing of it depends on how many blocks a round has: a round waits for
    another one in the whole program if and only if it does so in the small one. If it has an end, so has each launch of
    the whole program in which all programs that wait fit on a rank: take the first round with an event that a launch
    does not come to. All rounds that it waits for are done, and those before it; programs take tiles in rising order
    (planning/any_program.py).
    """
    numbered = _rounds(part, plan)
    if numbered is None:
        return False
    of_task, before, last = numbered
    s, ranks = plan.signals, plan.bound.ranks
    notifies = np.flatnonzero(s.kind == NOTIFY)
    node = of_task[s.task[notifies]]
    node = np.where(
        s.later[notifies] > 0, last[plan.task_kernels[s.task[notifies]], plan.task_ranks[s.task[notifies]]], node
    )
    rounds = int(last.max(initial=-1)) + 1
    counter = rounds + plan.counters[notifies]
    boxes = rounds + ranks * plan.channels
    awaited = np.flatnonzero(s.kind == WAIT)
    boxed = s.box[awaited] > 0
    box = boxes + (s.box[awaited] - 1) * ranks + s.peer[awaited]
    opened = np.where(boxed, box, rounds + plan.counters[awaited])
    first = np.unique(box[boxed], return_index=True)[1]
    rows, channels = plan.each_channel(awaited[boxed][first])
    inside = boxes + (s.box[rows] - 1) * ranks + s.peer[rows]
    total = boxes + len(plan.boxes) * ranks
    edges = [
        before,
        (node, counter),
        (opened, of_task[s.task[awaited]]),
        (rounds + s.peer[rows] * plan.channels + channels, inside),
    ]
    return ends(total, *(np.concatenate(column) for column in zip(*edges, strict=True)))


def _rounds(part: Cutoff, plan: Plan) -> tuple[Ints, tuple[Ints, Ints], Ints] | None:
    """Return the round of each task, the pairs of rounds of which the first is before the second one, and the last one
    of each kernel, [kernels, ranks], which has no tasks. None if stages of a kernel have rounds that differ."""
    small, whole, ranks = plan.bound, part.whole, plan.bound.ranks
    of_task, used = np.zeros(plan.tasks, np.int64), 0
    first, last = (np.zeros((len(small.kernels), ranks), np.int64) for _ in range(2))
    for number, kernel in enumerate(small.kernels):
        begin = 0
        places: list[tuple[str, Ints]] = []
        for loop in kernel.loops:
            counts = {small.stages[name].total for name in loop.stages}
            rounds = {part.rounds(name) for name in loop.stages}
            if len(counts) > 1 or len(rounds) > 1 or len({whole.stages[name].total for name in loop.stages}) > 1:
                return None
            (total,), (times,) = counts, rounds
            alike = not any(part.mixes(name) for name in loop.stages) and all(
                whole.stages[name].total == small.stages[name].total for name in loop.stages
            )
            t = np.arange(total)
            for place, name in enumerate(loop.stages):
                own = t * len(loop.stages) + place if alike else t // (total // times)
                places.append((name, begin + own))
            begin += total * len(loop.stages) if alike else times
        for rank in range(ranks):
            for name, place in places:
                at = plan.first_task[name] + rank * len(place)
                of_task[at : at + len(place)] = used + place
            first[number, rank], last[number, rank] = used, used + begin
            if (part.ranks is None and part.rotation is None) or rank == ranks - 1:  # else all have one round
                used += begin + 1
    numbers = np.arange(used)
    follows = np.ones(used, bool)
    follows[first.ravel()] = False
    pairs = [(numbers[follows] - 1, numbers[follows])]
    for number, kernel in enumerate(small.kernels):
        for other, earlier in enumerate(small.kernels):
            if earlier.stream == kernel.stream and earlier.position < kernel.position:
                pairs.append((last[other], first[number]))
    one, other = (np.concatenate(column) for column in zip(*pairs, strict=True))
    return of_task, (one, other), last
