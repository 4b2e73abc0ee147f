"""Choice of the implementation of a call without a schedule: a measured one, else the model's, else the rule's.

The rule (`choose`) says whether one kernel multiplies few rows and sums them, by the rates of the machine, whether
there are enough rows for a fused kernel, and whether there is so little data that a kernel of the library communicates
next to torch's product. The model chooses among fused implementations if the rule fuses an all-gather or a reduce-
scatter with a product, or if there are some hundred rows (`worth_asking`). It may also prefer the unfused pair. In all
measurements on four H200s its first choice was the best or within 3 % of the best, although its prediction for the
rule's choice was wrong by up to 12 %. The model is not used for fewer rows. For an all-reduce it chooses among the
rule's fused kernel, its schedule for few rows, the operator's alternative, and the unfused pair: of other kernels it
predicts up to twice the real speed. The rule takes warps with roles where the sizes allow them, unless the model is
sure that they are slower, and of these the schedule with a split tail where the model predicts it to be faster.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache

from tilelink import compiler
from tilelink.errors import TileLinkError
from tilelink.ir.program import Program
from tilelink.lowering.bound import Bound
from tilelink.ops.choice import DEFAULTS, choose, worth_asking
from tilelink.ops.operators import OPERATORS, SCHEDULE, UNFUSED, alternative_of
from tilelink.ops.predict import (
    Candidate,
    Request,
    feasible,
    fused_candidates,
    machine_of,
    predicted_seconds,
    programs_for,
    pushed_seconds,
    unfused_seconds,
)
from tilelink.scheduling.schedule import Schedule
from tilelink.simulator.machine import Machine
from tilelink.target import Target
from tilelink.tuning import Key, Record, algorithms, key_of

SURE = 0.95
"""Largest predicted time of a fused implementation, relative to that of the rule's pair, for which it replaces it."""
BETTER = 0.98
"""The same relative to the rule's fused implementation, for another one. The rule takes warps with roles: of 14 cases
that were measured with both on two H100s, none was faster without."""

WITH_ROLES = f"{SCHEDULE}_roles"
"""The schedule of the library whose warps have roles."""

WITH_ROLES_FEW = f"{WITH_ROLES}_few"
"""The schedule with roles for few rows."""
WITH_ROLES_SPLIT = f"{WITH_ROLES}_split"
"""The schedule with roles whose last tiles are split along the contracted dimension."""
SPLIT_MARGIN = 0.99
"""Largest predicted time of the schedule with split tails, relative to that with roles, for which it is taken. On two
H100s it was predicted at 0.981 to 0.988 in three cases of GEMM+RS, and took 0.982 to 0.990 of the time; at 0.990, 0.991
and 0.999 in three of AG+GEMM, and took 0.999, 1.009 and 0.988. The latter are in no committed JSON."""
FEW_MARGIN = 0.975
"""Largest predicted time of the schedule for few rows, relative to the usual one's, for which it is taken. In 14 cases
that were measured on two and four H100s with an earlier form of it, in which another kernel copied the last sums, its
gain was a fifth to three quarters of what was predicted, and the case without a gain was predicted at 0.979."""
ALTERNATIVE_MARGIN = 0.995
"""The same of an alternative (Operator.alternatives). In nine cases on two H100s it was predicted at 0.933 to 0.993,
and took 0.963 to 1.00 of the time: six of 8192 rows, in benchmarks/results/tp_roles_gemm_ar_pulled_2xH100.json, and
three of 2048 and 4096 rows, measured by benchmarks/tp.py too."""
FEW_OVER_ALTERNATIVE = 0.98
"""Largest predicted time of the schedule for few rows, relative to an alternative's, for which it is taken. With 2048
rows it is predicted at 0.94 to 0.98, and its earlier form took 0.96; with 4096 at 0.98, and that form took 1.03 (three
cases on two H100s)."""

LONG = 60e-6
"""Least predicted seconds of a rule's pair that may be replaced: shorter predictions were up to 17 % too long."""

US = 1e6
_log = logging.getLogger("tilelink.ops")


def decide(
    request: Request,
    *,
    gpu: str,
    versions: str,
    records: Mapping[Key, Record],
    processor: Target | None = None,
    speaks: bool = True,
) -> Schedule | str:
    """Return UNFUSED, the name of a schedule of the operator's program, or a schedule.

    The result is the same on all ranks with the same records, GPU and versions. processor: target that recorded
    schedules must fit, and whose SMs kernels have (None: those of the GPU's description). speaks: log (`tilelink.ops`,
    INFO) a choice made without a measurement.
    """
    found = measured(request, gpu, versions, records, processor) if records else None
    if found is not None:
        return found
    machine = machine_of(gpu)
    if machine is not None and processor is not None:
        machine = replace(machine, sms=min(machine.sms, processor.sms))
    way, why = predicted(request, machine)
    if speaks and _log.isEnabledFor(logging.INFO):
        _log.info("%s: never measured here; takes %s (%s); %s", request, _name(way), why, _advice(request))
    return way


# Measured ----------------------------------------------------------------------------------------------------


def measured(
    request: Request, gpu: str, versions: str, records: Mapping[Key, Record], processor: Target | None
) -> Schedule | str | None:
    """Return the fastest recorded implementation for the operator's programs at such sizes, or None."""
    found: list[Record] = []
    for programs in _algorithms(request.op, request.variant):
        if (dims := request.dims(programs[0])) is not None:
            key = key_of(
                programs, dims=dims, dtype=request.dtype, ranks=request.ranks, gpu=gpu, versions=versions
            )  # fmt: skip
            found += [records[key]] if key in records else []
    for record in sorted(found, key=lambda one: one.seconds):
        try:
            return UNFUSED if record.schedule == UNFUSED else _schedule(record, request, processor)
        except (TileLinkError, IndexError, StopIteration) as error:
            _log.warning("%s: a record of %s is passed over: %s", request, record.program, error)
    return None


def _schedule(record: Record, request: Request, processor: Target | None) -> Schedule:
    """Return the schedule of a record. Raises what parsing and planning raise: it may be of other rows or versions."""
    program = next(p for p in programs_for(request.op, request.variant) if p.name == record.program)
    schedule = compiler.parse(record.schedule).schedules[0]
    if processor is not None:
        dims = request.dims(program) or {}
        compiler.plan(program, schedule, ranks=request.ranks, dims=dims, dtype=request.dtype, target=processor)
    return schedule


@cache
def _algorithms(op: str, variant: str) -> tuple[tuple[Program, ...], ...]:
    """Return the groups of programs that records may have: those of the operator with equal results, and each alone."""
    every = programs_for(op, variant)
    groups = {frozenset(group): group for group in (algorithms(every, program) for program in every)}
    return (*groups.values(), *((program,) for program in every if frozenset((program,)) not in groups))


# Predicted ---------------------------------------------------------------------------------------------------


def predicted(request: Request, machine: Machine | None) -> tuple[Schedule | str, str]:
    """Return the rule's implementation, or one that the model predicts to be better, and the reason."""
    rates = DEFAULTS if machine is None else machine
    sizes = request.M, request.N, request.K, request.ranks
    rule = choose(request.op, *sizes, request.variant, machine=rates)
    if ":" in rule and (machine is None or request.ranks > machine.node_ranks):
        return UNFUSED, "own kernels only communicate on machines that are described, within a node"
    modelled = OPERATORS[request.op].modelled if request.op in OPERATORS else False
    asked = modelled and (rule == SCHEDULE or worth_asking(request.op, *sizes, rates))
    if machine is not None and rule == SCHEDULE and not modelled and OPERATORS[request.op].fused_rows is not None:
        return _fused_or_not(request, machine)
    if machine is None or not asked:
        return rule, "the rule for such sizes"
    candidates = fused_candidates(request, machine)
    if ":" in rule:
        return _if_sure(candidates, rule, pushed_seconds(request, machine), machine)
    fitting = feasible(request, machine.processor)
    if not fitting:
        return UNFUSED, f"no schedule fits {machine.target}"
    unfused = unfused_seconds(request, machine)
    own = programs_for(request.op, request.variant)[0]
    if rule == UNFUSED or not any(one.source == own and one.schedule.name == rule for one in fitting):
        return _if_sure(candidates, UNFUSED, unfused, machine)
    usual = _usual({way.schedule.name: way for way in candidates if way.program == own}, rule)
    if usual is None:
        return rule, "the rule; there is too much to simulate"
    why = f"predicted {candidates[0].seconds * US:.0f} us, unfused {unfused * US:.0f} us on {machine.name}"
    if min(unfused, candidates[0].seconds) >= BETTER * usual.seconds:
        return (rule if usual.schedule.name == rule else usual.schedule), why
    return (UNFUSED if unfused <= candidates[0].seconds else candidates[0].schedule), why


def _fused_or_not(request: Request, machine: Machine) -> tuple[Schedule | str, str]:
    """Return the rule's fused implementation or UNFUSED, whichever is predicted to be faster, and why.

    For an operator of which the model predicts the rule's implementation well, and others badly. On two and four H100s
    this was right in 23 of 23 cases that were measured, of 1024 to 8192 rows.
    """
    own = programs_for(request.op, request.variant)[0]
    other = alternative_of(request.op, request.variant)
    names = {(own.name, name) for name in (SCHEDULE, WITH_ROLES, WITH_ROLES_FEW)}
    names |= {(other.program, WITH_ROLES)} if other is not None and request.ranks in other.ranks else set()
    every = feasible(request, machine.processor, frozenset(names))
    fitting = {one.schedule.name: one for one in every if one.source == own}
    fused = fitting.get(WITH_ROLES, fitting.get(SCHEDULE))
    if fused is None:
        return UNFUSED, f"no schedule fits {machine.target}"
    usual, few = _timed(fused, machine), _timed(fitting.get(WITH_ROLES_FEW), machine)
    if usual is None:
        return _way(fused.schedule), "the rule; there is too much to simulate"
    alternative = next((one for one in every if one.source != own), None)
    taken = _fastest(usual, few, _timed(alternative, machine))
    unfused = unfused_seconds(request, machine)
    why = f"predicted {taken.seconds * US:.0f} us, unfused {unfused * US:.0f} us on {machine.name}"
    return (_way(taken.schedule) if taken.seconds <= unfused else UNFUSED), why


def _way(schedule: Schedule) -> Schedule | str:
    return SCHEDULE if schedule.name == SCHEDULE else schedule


def _timed(bound: Bound | None, machine: Machine) -> Candidate | None:
    """Return a schedule with its predicted seconds, or None if there is none or its time cannot be predicted."""
    if bound is None or (seconds := predicted_seconds(bound, machine)) is None:
        return None
    return Candidate(program=bound.source, schedule=bound.schedule, seconds=seconds)


def _fastest(usual: Candidate, few: Candidate | None, other: Candidate | None) -> Candidate:
    """Return the candidate to take: the usual one, that for few rows, or the alternative, by its margin."""
    if other is not None and other.seconds >= ALTERNATIVE_MARGIN * usual.seconds:
        other = None
    if few is None or few.seconds >= FEW_MARGIN * usual.seconds:
        return other or usual
    return few if other is None or few.seconds < FEW_OVER_ALTERNATIVE * other.seconds else other


def _usual(ways: Mapping[str, Candidate], rule: str) -> Candidate | None:
    """Return the candidate of the rule's schedule, or that with roles unless the model is sure that it is slower.

    Of those with roles, the one with split tails is taken by its margin.
    """
    plain, roles = ways.get(rule), ways.get(WITH_ROLES) if rule == SCHEDULE else None
    if plain is None or roles is None:
        return plain
    split = ways.get(WITH_ROLES_SPLIT)
    if split is not None and split.seconds < SPLIT_MARGIN * roles.seconds:
        roles = split
    return roles if BETTER * roles.seconds < plain.seconds else plain


def _if_sure(
    candidates: Sequence[Candidate], pair: str, seconds: float, machine: Machine
) -> tuple[Schedule | str, str]:
    """Return the best fused implementation if it is predicted to be clearly faster than a pair, else the pair; and why.

    pair: the rule's choice, if it is not fused or does not fit the processor. seconds: its predicted time.
    """
    if not candidates:
        return pair, "the rule; there is no fused way that can be simulated"
    why = f"predicted {candidates[0].seconds * US:.0f} us, {pair} {seconds * US:.0f} us on {machine.name}"
    sure = seconds >= LONG and candidates[0].seconds < SURE * seconds
    return (candidates[0].schedule if sure else pair), why


def _name(way: Schedule | str) -> str:
    return way if isinstance(way, str) else f"{way.program}:{way.name}"


def _advice(request: Request) -> str:
    """Return the command that measures."""
    program = programs_for(request.op, request.variant)[0]
    sizes = ",".join(str(size) for size in (request.dims(program) or {}).values())
    shape = f" --shape {sizes}" if sizes else ""
    name = program.name if request.variant else f"{request.op} --program {program.name}"
    return f"`tilelink tune {name} -n {request.ranks}{shape} --measure` measures"
