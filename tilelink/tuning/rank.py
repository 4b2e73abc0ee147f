"""The model's ranking of schedules."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tilelink.ir.program import Program
from tilelink.schedule.machine import Machine
from tilelink.schedule.search import Found, Space, Strategy, Tried, search, strategy
from tilelink.schedule.simulate import CostModel, simulate
from tilelink.target import Target


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
    machine: Machine,
    target: Target,
    dtype: str = "bf16",
    by: str | Strategy = "annealing",
    cost: CostModel | None = None,
    budget_s: float | None = 30.0,
    trials: int | None = None,
    seed: int = 0,
    progress: Callable[[Tried | None], None] | None = None,
) -> Found:
    """Searches the schedules of programs that compute the same, judged by simulated seconds on a machine.

    by: a strategy or its name. cost: what work takes (None: the machine's own figures). Raises what Space.of raises.
    """
    space = Space.of(programs, dims=dims, ranks=ranks, target=target, dtype=dtype)
    chosen = strategy(by) if isinstance(by, str) else by

    def seconds(plan: object) -> float:
        return simulate(plan, machine, cost=cost).seconds  # type: ignore[arg-type]

    return search(space, seconds, chosen, budget_s=budget_s, trials=trials, seed=seed, progress=progress)
