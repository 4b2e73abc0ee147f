"""The model's ranking of schedules."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tilelink.ir.program import Program
from tilelink.schedule.machine import Machine, load_machine
from tilelink.schedule.plan import Plan
from tilelink.schedule.search import Found, Space, Strategy, Tried, search, strategy
from tilelink.schedule.simulate import CostModel, simulate
from tilelink.target import Target
from tilelink.target import target as named_target


def algorithms(programs: Sequence[Program], of: Program) -> tuple[Program, ...]:
    """The programs that take and give the same tensors as one of them does, that one first."""
    others = [p for p in programs if p != of and _signature(p) == _signature(of)]
    return (of, *others)


def _signature(program: Program) -> tuple[object, ...]:
    """What callers see of a program: its parameters, and the tensors that are passed in and out."""
    tensors = [(t.name, t.space, t.shape, t.dtype) for t in program.tensors if t.space in ("in", "out", "table")]
    return (program.params, tuple(tensors))


def rank(
    programs: Sequence[Program],
    *,
    dims: Mapping[str, int | float | bool],
    ranks: int,
    machine: str | Path | Machine = "8xH200",
    target: str | Target | None = None,
    dtype: str = "bf16",
    by: str | Strategy = "annealing",
    cost: CostModel | None = None,
    budget_s: float | None = 30.0,
    trials: int | None = None,
    seed: int = 0,
    progress: Callable[[Tried | None], None] | None = None,
) -> Found:
    """Searches the schedules of programs that compute the same, judged by simulated seconds on a machine.

    by: a strategy or its name. machine: a description, its name, or its file. target: what kernels are for (None: the
    machine's own). cost: what work takes (None: the roofline model). The rest is `search`'s.
    Raises what Space.of raises, and MachineError, UnknownTargetError or UnknownNameError for names that there are not.
    """
    described = machine if isinstance(machine, Machine) else load_machine(machine)
    held = target if isinstance(target, Target) else named_target(target or described.target)
    space = Space.of(programs, dims=dims, ranks=ranks, target=held, dtype=dtype)
    chosen = strategy(by) if isinstance(by, str) else by

    def seconds(plan: Plan) -> float:
        return simulate(plan, described, cost=cost).seconds

    return search(space, seconds, chosen, budget_s=budget_s, trials=trials, seed=seed, progress=progress)
