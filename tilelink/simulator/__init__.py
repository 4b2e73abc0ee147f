"""Prediction of a launch: discrete-event simulation of a plan on a machine.

result = simulate(plan, load_machine("8xH200"))
result.seconds, result.bound.seconds, result.breakdowns[0].parts()
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from math import inf
from typing import Any

from numpy.typing import NDArray

from tilelink.errors import BindingError, CostError, MachineError
from tilelink.ir.depth import deep
from tilelink.lowering.bound import Bound
from tilelink.lowering.walk import executions
from tilelink.planning.plan import Plan
from tilelink.simulator.cost import CostModel, Roofline
from tilelink.simulator.engine import least_seconds, simulate_script
from tilelink.simulator.machine import Machine
from tilelink.simulator.result import Simulated, mean_of, rank_ends, summarize
from tilelink.simulator.sampled import Sample, launch_tensors, sampled
from tilelink.simulator.script import Script, make_script
from tilelink.simulator.thinned import COSTLY, COSTLY_TILES, FEW_TILES, NEAR, TILES, VERY_MANY, few_taken, thinned

__all__ = ["CostModel", "Roofline", "Simulated", "seconds_by_few", "seconds_within", "simulate"]


@deep()
def simulate(
    plan: Plan,
    machine: Machine,
    *,
    cost: CostModel | None = None,
    tables: Mapping[str, NDArray[Any]] | None = None,
    offsets: Sequence[float] | None = None,
    samples: Sequence[Sample] = (),
) -> Simulated:
    """Simulate one launch of a verified plan, with all inputs in place, and return the result.

    A plan for `machine.processor` uses all SMs of the machine. cost: the cost model (None: Roofline). tables: those
    that the plan was made with. offsets: for each rank the seconds between the first rank's launch and its own (None:
    all launch together). samples: index tensor -> its entries, [ranks, *shape], for each of several launches, of which
    the result is the mean. A program with index tensors needs one; for others they change nothing. The same arguments
    always give the same result.

    Raises ProgressError if the plan deadlocks, MachineError if the offsets do not fit the ranks, BindingError without
    the entries of an index tensor, and CostError if the cost model returns something other than a time.
    """
    offsets = [0.0] * plan.bound.ranks if offsets is None else [float(o) for o in offsets]
    if len(offsets) != plan.bound.ranks:
        raise MachineError(f"{len(offsets)} launch offsets for {plan.bound.ranks} ranks", hint="give one for each rank")
    if wrong := [offset for offset in offsets if not 0 <= offset < inf]:
        raise MachineError(f"a rank launches after {wrong[0]} s", hint="offsets are seconds, 0 or more")
    results = [summarize(simulate_script(script, offsets)) for script in _scripts(plan, machine, cost, tables, samples)]
    return mean_of(results) if launch_tensors(plan.bound) else results[0]


@deep()
def seconds_within(
    plan: Plan,
    machine: Machine,
    limit: float,
    *,
    clear: float = inf,
    cost: CostModel | None = None,
    tables: Mapping[str, NDArray[Any]] | None = None,
    samples: Sequence[Sample] = (),
) -> float | None:
    """Return the predicted seconds of a plan, or None if one of its launches takes more than `limit` seconds.

    A launch that takes longer is simulated up to the limit at most, and not at all if its programs compute for longer
    than that. clear: after a launch that takes more seconds no further one is simulated; the result is that of
    those that were. The other arguments and the errors are those of `simulate`.
    """
    found: list[Simulated] = []
    for script in _scripts(plan, machine, cost, tables, samples):
        timeline = simulate_script(script, [0.0] * plan.bound.ranks, limit) if least_seconds(script) <= limit else None
        if timeline is None:
            return None
        found.append(summarize(timeline))
        if found[-1].seconds > clear:
            break
    return mean_of(found).seconds


@deep()
def seconds_by_few(
    bound: Bound,
    machine: Machine,
    limit: float,
    *,
    clear: float = inf,
    close: float = inf,
    cost: CostModel | None = None,
    tables: Mapping[str, NDArray[Any]] | None = None,
    samples: Sequence[Sample] = (),
) -> float | None:
    """Return the predicted seconds of a bound program, by some of the tiles of its launches (thinned.py).

    clear: of a launch with very many tiles that seems to take more seconds by fewer of them, no more are simulated; of
    one that is far from that at the first look, there is no second.
    close: if launches seem to take less than so many seconds, all tiles stay of kernels whose programs take a few each
    by a counter. The other arguments are those of `seconds_within`. Return infinity if a launch takes more than `limit`
    seconds, and None if there are so few tiles that all of them are soon simulated. Raises ProgressError if tiles wait
    for ever. No rule is asked of the program, so a time is no promise that it is safe.
    """
    by_few, most = partial(_by_few, bound, machine, limit, clear, cost, tables or {}, samples), TILES
    if clear < inf and executions(bound) > VERY_MANY:
        for tiles, enough in zip(FEW_TILES, (limit, clear), strict=True):
            rough, operations = by_few(tiles, all_taken=False)
            if rough is None or rough > enough:
                return rough
            most = TILES if operations <= COSTLY else COSTLY_TILES
            if rough < NEAR * clear:
                break
    found, _ = by_few(most, all_taken=False)
    if found is not None and found < close and few_taken(bound):
        found, _ = by_few(most, all_taken=True)
    return found


def _by_few(
    bound: Bound, machine: Machine, limit: float, clear: float, cost: CostModel | None,
    tables: Mapping[str, NDArray[Any]], samples: Sequence[Sample], tiles: int, *, all_taken: bool,
) -> tuple[float | None, int]:  # fmt: skip
    """Return the predicted seconds, as `seconds_by_few` does, and the operations of a launch that were simulated."""
    found, operations = list[float](), 0
    for sample in samples if launch_tensors(bound) else [{}]:
        plan = thinned(bound, tables, sample, tiles, all_taken=all_taken)
        if plan is None:
            return None, 0
        script = make_script(plan, machine, cost or Roofline(), {**tables, **sample})
        timeline = simulate_script(script, [0.0] * bound.ranks, limit) if least_seconds(script) <= limit else None
        operations = len(script.kind)
        if timeline is None:
            return inf, operations
        found.append(float(rank_ends(timeline).max()))
        if found[-1] > clear:
            break
    return (sum(found) / len(found) if found else None), operations


def _scripts(
    plan: Plan, machine: Machine, cost: CostModel | None, tables: Mapping[str, NDArray[Any]] | None,
    samples: Sequence[Sample],
) -> Iterator[Script]:  # fmt: skip
    """Yield the operations of each launch to simulate: one, or one for each sample of index tensors."""
    if isinstance(cost, type):
        raise CostError(f"the cost model is the class {cost.__name__}", hint=f"give an object: {cost.__name__}()")
    model, given = cost or Roofline(), tables or {}
    if not (needed := launch_tensors(plan.bound)):
        yield make_script(plan, machine, model, tables)
        return
    if missing := [name for name in needed if not samples or any(name not in one for one in samples)]:
        hint = "samples=[{name: integers, shape [ranks, ...]}]; tilelink.simulate draws them"
        raise BindingError(f"a launch decides the entries of {missing[0]}, and there are none", hint=hint)
    for sample in samples:
        yield make_script(sampled(plan, sample, given), machine, model, {**given, **sample})
