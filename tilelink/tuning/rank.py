"""Ranking of schedules by the simulator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

from tilelink import compiler
from tilelink.compiler.samples import DRAWS, Routing, completed, draw, index_tensors
from tilelink.errors import SearchError, TileLinkError
from tilelink.ir.depth import deep
from tilelink.ir.program import Program
from tilelink.lowering.bound import Bound
from tilelink.planning.plan import Plan
from tilelink.scheduling.schedule import Schedule
from tilelink.search import Found, Space, Strategy, Tried, search, strategy
from tilelink.search.processes import MOST, available
from tilelink.simulator import CostModel, seconds_by_few, seconds_within
from tilelink.simulator.machine import Machine, load_machine
from tilelink.target import Target


@deep()
def algorithms(programs: Sequence[Program], of: Program) -> tuple[Program, ...]:
    """Return `of` and the programs that take the same tensors and give the same results, with `of` first.

    The results are compared on random inputs of a few small sizes.
    """
    others = [p for p in programs if p != of and _signature(p) == _signature(of)]
    return (of, *(p for p in others if _agree(p, of)))


BUDGET_S = 30.0
"""Seconds of a search without a given budget."""
CLEARLY, HOPELESS = 1.3, 3.0
"""A point that takes so many times as long as the best one so far is rated by one launch, or is only simulated up to
that time. Declared schedules are simulated to the end, in all launches."""
SMALL = (4, 6, 10, 8, 12, 14)
"""Sizes of dimensions at which programs are compared."""
VALUES: Mapping[str, float | bool] = {"f32": 0.5, "i32": 1, "bool": True}
EQUAL = 1e-4
"""max |difference| / max |result|, in f32, of results that differ in the order of their sums alone."""


def _agree(one: Program, other: Program) -> bool:
    """True if two programs with one signature give the same results; False if either cannot run at these sizes."""
    from tilelink.reference import trial

    sizes = iter(SMALL * len(one.params))
    dims = {p.name: next(sizes) if p.kind == "dim" else VALUES.get(p.kind, 1) for p in one.params}
    tables = trial.random_tables(one, ranks=2, dims=dims)
    drawn = trial.random_inputs(one, ranks=2, dims=dims, dtype="f32", launches=1)[0]
    inputs = [{**own, **{name: table[rank] for name, table in tables.items()}} for rank, own in enumerate(drawn)]
    try:
        found, expected = (compiler.reference(p, inputs, dims=dims) for p in (one, other))
    except TileLinkError:
        return False
    names = [t.name for t in one.tensors if t.is_result]
    return all(trial.relative_error(*trial.compared(found, expected, name)) <= EQUAL for name in names)


def _signature(program: Program) -> tuple[object, ...]:
    """Return the interface of a program: its parameters, and the tensors that are passed in and out."""
    tensors = [
        (t.name, t.space, t.shape, t.dtype) for t in program.tensors if t.is_given or t.is_result or t.known_early
    ]
    return (program.params, tuple(tensors))


@deep()
def rank(
    programs: Sequence[Program],
    *,
    dims: Mapping[str, int | float | bool],
    ranks: int,
    machine: str | Path | Machine = "8xH200",
    target: str | Target | None = None,
    dtype: str = "bf16",
    tables: compiler.Tables | None = None,
    routing: Routing = "uniform",
    draws: int = DRAWS,
    declared: Sequence[Schedule] = (),
    by: str | Strategy = "annealing",
    cost: CostModel | None = None,
    budget_s: float | None = None,
    trials: int | None = None,
    seed: int = 0,
    progress: Callable[[Tried | None], None] | None = None,
    keep_interrupted: bool = False,
    nodes: int = 1,
    jobs: int | None = None,
) -> Found:
    """Search the schedules of equivalent programs, rated by simulated seconds on a machine.

    tables: the tables that all programs use. routing, draws: the index tensors of the launches over which the time is a
    mean, as for `tilelink.simulate`; all schedules are rated with the same ones. declared: schedules of these programs
    to rank too, near which strategies begin. by: a strategy or its name. machine: a description, its name, or its file.
    target: the target of the kernels
    (None: the machine's). nodes: as for `tilelink.simulate`. cost: the cost model (None: Roofline).
    budget_s: seconds; None means BUDGET_S, or no limit if
    trials is given. jobs: processes at most (None: one for each core that it may use), 16 of them at most; one where
    CUDA was used before. The other arguments are those of `search`.

    Raises the errors of Space.of and search, and SearchError for fewer than one process. Raises MachineError,
    UnknownTargetError or UnknownNameError for an unknown machine, target or strategy.
    """
    if jobs is not None and jobs < 1:
        raise SearchError(f"a search by {jobs} processes", hint="give 1 or more, or None for one for each core")
    described = machine if isinstance(machine, Machine) else load_machine(machine)
    held = target if isinstance(target, Target) else replace(described, target=target or described.target).processor
    numbers = [
        compiler.bound(one, ranks=ranks, dims=dims, dtype=dtype, target=held, nodes=nodes) for one in programs[:1]
    ]
    arrays = compiler.checked_tables(numbers[0], tables or {}) if numbers else {}
    space = Space.of(
        programs, dims=dims, ranks=ranks, nodes=nodes, target=held, dtype=dtype, declared=declared, tables=arrays
    )  # fmt: skip
    described = described.of_nodes(ranks, nodes)
    chosen = strategy(by) if isinstance(by, str) else by

    given = draw(programs[0], ranks=ranks, dims=dims, routing=routing, draws=draws, seed=seed) if programs else []

    least = inf
    known: dict[Program, list[dict[str, Any]]] = {}  # launches do not depend on schedules

    def within(bound: Bound) -> tuple[float, float]:
        limit = inf if bound.schedule in space.declared else HOPELESS * least
        return limit, CLEARLY * least if limit < inf else inf

    def seconds(plan: Plan) -> float | None:
        samples = known[plan.bound.source] = completed(plan, given, routing=routing, seed=seed)
        limit, clear = within(plan.bound)
        return seconds_within(plan, described, limit, clear=clear, cost=cost, tables=arrays, samples=samples)

    def guess(bound: Bound) -> float | None:
        samples = known.get(bound.source, None if index_tensors(bound.source, given=False) else given)
        if samples is None:
            return None
        limit, clear = within(bound)
        return seconds_by_few(
            bound, described, limit, clear=clear, close=least, cost=cost, tables=arrays, samples=samples
        )  # fmt: skip

    def incumbent(best: float) -> None:
        nonlocal least
        least = best

    return search(
        space, seconds, chosen, guess=guess, trials=trials, seed=seed, progress=progress, incumbent=incumbent,
        jobs=min(MOST if jobs is None else jobs, available()),
        keep_interrupted=keep_interrupted, budget_s=BUDGET_S if budget_s is None and trials is None else budget_s,
    )  # fmt: skip
