"""Predicted times of an operator's implementations on a machine: its fused schedules, and the unfused pair."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, lru_cache

from tilelink.capabilities import has_warpgroups
from tilelink.compiler import library_module
from tilelink.compiler.proofs import proved
from tilelink.errors import TileLinkError
from tilelink.ir.program import Program
from tilelink.lowering.bind import bind
from tilelink.lowering.bound import Bound
from tilelink.lowering.clauses.roles import ROLES
from tilelink.lowering.shared_memory import does_not_fit
from tilelink.ops.choice import ITEM, rounded_rows
from tilelink.ops.operators import OPERATORS, SCHEDULE, alternative_of, program_of, variant_operator
from tilelink.ops.unfused import ACTIVATIONS
from tilelink.planning.plan import make_plan
from tilelink.planning.queue_order import with_queue_order
from tilelink.scheduling.schedule import Schedule
from tilelink.simulator import simulate
from tilelink.simulator.machine import Machine, load_machine, shipped_machines
from tilelink.target import Target

TILES = 200_000
"""Largest number of tiles, over all ranks, that are simulated for one decision: a few seconds."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """An operator with its epilogue and its sizes.

    M: rows over all ranks, of an all-reduce those of kernels that do not divide them among ranks (`rounded_rows`) or
    just those of a call; N, K: the product's columns and contracted dimension on one rank. For collectives N = K.
    """

    op: str
    variant: str
    M: int
    N: int
    K: int
    ranks: int
    dtype: str

    def dims(self, program: Program) -> dict[str, int] | None:
        """Return the parameters of a program, in its order, or None if it cannot have these sizes."""
        sizes, rows = {"M": self.M, "N": self.N, "K": self.K}, self.M
        if self.op in OPERATORS and OPERATORS[self.op].rows == "kept" and rounded_rows(rows) == rows:
            rows = rounded_rows(rows, self.ranks)
        if rows % self.ranks == 0:
            sizes["Ms"] = rows // self.ranks
        names = [p.name for p in program.params]
        return {name: sizes[name] for name in names} if sizes.keys() >= set(names) else None

    def __str__(self) -> str:
        name = f"{self.op} with {self.variant}" if self.variant else self.op
        return f"{name}, {self.M} x {self.N} x {self.K}, {self.dtype}, {self.ranks} ranks"


def machine_of(gpu: str) -> Machine | None:
    """Return the shipped description of a GPU by its name, such as "NVIDIA H200", or None if none fits.

    Cards connected by PCIe or in pairs are a different machine from those on a board, even with the same processor.
    """
    if re.search("PCI|NVL|MIG", gpu, re.IGNORECASE):
        return None
    names = (name for name in shipped_machines() if re.search(rf"\b{name.partition('x')[2] or name}\b", gpu))
    return next((load_machine(name) for name in names), None)


# Unfused -----------------------------------------------------------------------------------------------------


def unfused_seconds(request: Request, machine: Machine) -> float:
    """Return the seconds of the vendor's product and collective, one after the other, without any overlap.

    The product runs at the rate of the vendor's, or at the rate of memory for its operands; the collective sends as
    much as a ring. An activation reads and writes the result once, a gate three times. The time of
    the host is not counted.
    """
    result = request.M * request.N * ITEM
    weights = len(variant_operator(request.op, request.variant).weights)
    passes = 1 + weights if weights > 1 else 2 * request.variant.endswith(tuple(ACTIVATIONS))
    seconds = _product(request, machine) * weights + passes * result / machine.memory_bandwidth
    return seconds + machine.kernel_gap + _collective(request, machine)


def pushed_seconds(request: Request, machine: Machine) -> float:
    """Return the seconds of the vendor's product and of a pushing kernel (Operator.small), without any overlap."""
    pushed = _received(request) / (machine.small_share * machine.link_bandwidth)
    return _product(request, machine) + machine.small_start + pushed


def _product(request: Request, machine: Machine) -> float:
    M, N, K = request.M, request.N, request.K
    compute = 2 * M * N * K / (machine.vendor_product_share * machine.matmul_flops)
    memory = (M * K + N * K + M * N) * ITEM / machine.memory_bandwidth
    return machine.kernel_gap + machine.tile_overhead + max(compute, memory)


def _received(request: Request) -> float:
    """Return the bytes that a rank receives: rows of x in an all-gather, else of the result, twice in an all-reduce."""
    operator = variant_operator(request.op, request.variant)
    columns = request.K if operator.gathers else request.N
    whole = request.M * columns * (2 * ITEM if operator.f32_sums else ITEM)
    return whole * (request.ranks - 1) / request.ranks * (2 if operator.rows == "kept" else 1)


def _collective(request: Request, machine: Machine) -> float:
    moved = _received(request)
    rate = machine.link_bandwidth if request.ranks <= machine.node_ranks else machine.network_bandwidth
    return machine.vendor_collective_start + moved / (machine.vendor_collective_share * rate)


# Fused -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A program and schedule with the seconds that a launch is predicted to take."""

    program: Program
    schedule: Schedule
    seconds: float


def fused_candidates(request: Request, machine: Machine) -> list[Candidate]:
    """Return the GPU schedules of the operator's programs that fit the machine at these sizes, fastest first.

    Schedules of the default program and those with fewer tiles are simulated first, up to TILES tiles in all; the
    others are left out. Only the first schedule of the result is verified at these sizes, because that takes longer.
    """
    found: list[tuple[Candidate, Bound]] = []
    spent = 0
    own = programs_for(request.op, request.variant)[0]
    for bound in sorted(feasible(request, machine.processor), key=lambda one: (one.source != own, one.total)):
        spent += bound.total
        if spent > TILES:
            break
        if (seconds := predicted_seconds(bound, machine)) is not None:
            found.append((Candidate(program=bound.source, schedule=bound.schedule, seconds=seconds), bound))
    found.sort(key=lambda one: one[0].seconds)
    while found and not _is_safe(found[0][1]):
        del found[0]
    return [candidate for candidate, _ in found]


def predicted_seconds(bound: Bound, machine: Machine) -> float | None:
    """Return the seconds that a launch is predicted to take; None if it never ends, or has more tiles than TILES."""
    if bound.total > TILES:
        return None
    with suppress(TileLinkError):  # a schedule that deadlocks
        return simulate(with_queue_order(make_plan(bound)), machine).seconds
    return None


def _is_safe(bound: Bound) -> bool:
    with suppress(TileLinkError):
        proved(bound)
        return True
    return False


@lru_cache(maxsize=8)
def feasible(request: Request, processor: Target, names: frozenset[tuple[str, str]] | None = None) -> tuple[Bound, ...]:
    """Return the bound GPU schedules of the operator's programs that fit a processor at these sizes.

    Those with roles are for processors that have them: on others they would lack what the others have instead.
    names: of programs and their schedules, to bind no others.
    """
    found: list[Bound] = []
    for program, schedule in gpu_schedules(request.op, request.variant):
        if names is not None and (program.name, schedule.name) not in names:
            continue
        with_roles = any(part[ROLES] is not None for part in schedule.stages)
        if with_roles and not has_warpgroups(processor):
            continue
        if (dims := request.dims(program)) is not None:
            with suppress(TileLinkError):
                bound = bind(program, schedule, dims, request.ranks, processor, request.dtype)
                if does_not_fit(bound) is None:
                    found.append(bound)
    return tuple(found)


# The library -------------------------------------------------------------------------------------------------


@cache
def programs_for(op: str, variant: str) -> tuple[Program, ...]:
    """Return the library's programs for an operator: the default one, its alternative, and others.

    The file with the operator's name has its algorithms. For a variant with an epilogue there are no others.
    """
    other = alternative_of(op, variant)
    names = [program_of(op, variant), *([other.program] if other else [])]
    named = tuple(library_module(name).program(name) for name in names)
    return named if variant else (*named, *(p for p in library_module(op).programs if p not in named))


@cache
def gpu_schedules(op: str, variant: str) -> tuple[tuple[Program, Schedule], ...]:
    """Return the schedules for GPUs that the library declares for an operator."""
    found = programs_for(op, variant)
    schedules = {p.name: library_module(p.name).schedules_of(p) for p in found}
    return tuple((p, s) for p in found for s in schedules[p.name] if s.name.startswith(SCHEDULE))
