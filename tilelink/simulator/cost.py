"""Cost model: the time of work on a machine. Another model replaces this module's `Roofline` alone."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import exp, inf, log, log2
from typing import Literal, Protocol

from tilelink.errors import CostError
from tilelink.lowering.bound import KernelKind
from tilelink.lowering.clauses.tma_copy import SHARED
from tilelink.simulator.machine import Machine
from tilelink.simulator.work import Product, TileWork

REGISTERS = 160
"""f32 values of accumulators that a thread holds without spilling."""
SPILLED = 0.3
"""Fraction of the speed that is left if accumulators spill."""
STORED = 128 * 256
"""Elements of the tiles with which a machine's tile_overhead is measured."""
ISSUING = 4
"""Warps that together issue copies as fast as their SM executes them."""
FILLING = 1.5
"""Time that the first and the last box of a tile add to it, in latencies of a box."""
FULL_WARPS = 16
"""Warps of the programs with which a machine's rates per program are measured."""


Engine = Literal["copy", "push", "pull", "bulk"]
"""The mover of a transfer: a copy engine, stores ("push") or loads ("pull") of a peer's memory, or TMA ("bulk")."""


@dataclass(frozen=True, kw_only=True)
class TileTime:
    """Seconds of one execution: `main` for the computation itself, `overhead` for the time before and after it."""

    main: float
    overhead: float = 0.0

    def __post_init__(self) -> None:
        _require(self, "main")
        _require(self, "overhead")

    def __add__(self, other: TileTime) -> TileTime:
        return TileTime(main=self.main + other.main, overhead=self.overhead + other.overhead)


@dataclass(frozen=True, kw_only=True)
class Move:
    """A transfer: its engine, its reach, and the programs and warps that execute such transfers on a rank."""

    engine: Engine
    reach: Literal["local", "node", "network"]
    programs: int = 1
    warps: int = FULL_WARPS
    workers: int = 1
    """Programs that share an SM."""
    busy: int = 1
    """Programs among these that have a transfer."""
    size: float = 0.0
    """Mean bytes of such a transfer."""


@dataclass(frozen=True, kw_only=True)
class MoveTime:
    """The times and rates of a transfer.

    setup: seconds before the first byte (the copy engine's calls are added). latency: seconds after the last byte.
    rate: maximum bytes per second of this one transfer. efficiency: share of the link's bandwidth that such transfers
    reach together.
    """

    setup: float = 0.0
    latency: float = 0.0
    rate: float = inf
    efficiency: float = 1.0

    def __post_init__(self) -> None:
        _require(self, "setup")
        _require(self, "latency")
        if not self.rate > 0:
            raise CostError(f"rate of a MoveTime is {self.rate!r}", hint="bytes per second, more than 0; inf: no limit")
        if not 0 < self.efficiency <= 1:
            raise CostError(f"efficiency of a MoveTime is {self.efficiency!r}", hint="a share, above 0 and at most 1")


class CostModel(Protocol):
    """Times of single pieces of work. The simulator adds waits and the sharing of links."""

    def tile(self, work: TileWork, machine: Machine) -> TileTime:
        """Return the time of one execution of a statement."""
        ...

    def move(self, move: Move, machine: Machine) -> MoveTime:
        """Return the limits of a transfer, apart from the links that it shares with other transfers."""
        ...


@dataclass(frozen=True, kw_only=True)
class Roofline:
    """A tile takes as long as the slowest of its tensor cores, its operands and its memory traffic (Williams 2009)."""

    def tile(self, work: TileWork, machine: Machine) -> TileTime:
        """Return the sum of products and elementwise work, none overlapped; a product's memory traffic is hidden."""
        if work.overlapped:
            return TileTime(main=self._iteration(work, machine), overhead=0.0)
        main = sum(self._product(p, work, machine) for p in work.products)
        share = min(machine.memory_bandwidth / work.programs, machine.sm_bandwidth)
        main = max(main, work.traffic / share)
        main += work.elementwise * machine.sms / machine.vector_flops
        main += work.special * machine.sms / machine.special_rate
        return TileTime(main=main, overhead=_between(work, machine))

    def _iteration(self, work: TileWork, machine: Machine) -> float:
        """Return the seconds of an iteration of a loop in which some warps multiply while others compute: the longest
        part.

        Operands are loaded ahead, and no tile is stored between two iterations.
        """
        products = sum(product.count * _ideal(product, work.item, machine) for product in work.products)
        vector = work.elementwise * machine.sms / machine.vector_flops
        special = work.special * machine.sms / machine.special_rate
        share = min(machine.memory_bandwidth / work.programs, machine.sm_bandwidth)
        return max(products, vector, special, work.traffic / share)

    def _product(self, product: Product, work: TileWork, machine: Machine) -> float:
        """Return the seconds of the main loop: tensor cores, operands from the cache, or exposed load latency."""
        main = _ideal(product, work.item, machine) * _correction(product, machine)
        if product.rows * product.columns > REGISTERS * 32 * work.num_warps:
            main /= SPILLED
        steps = -(-product.inner // work.block)
        load = machine.load_latency + (product.rows + product.columns) * work.block * work.item / machine.sm_bandwidth
        return product.count * max(main, steps * load / max(1, work.num_stages - 1))

    def move(self, move: Move, machine: Machine) -> MoveTime:
        """Return the limits of a transfer: local copies read and write memory; the network adds its own latency."""
        if move.engine == "bulk":
            return self._bulk(move, machine)
        if move.reach == "local":
            share = machine.memory_bandwidth / 2 / move.programs
            return MoveTime(
                rate=share if move.engine == "copy" else min(share, _rate(machine.sm_push_rate, move, machine))
            )
        far = machine.network_latency if move.reach == "network" else 0.0
        if move.engine == "copy":
            return MoveTime(latency=far)
        if move.engine == "push":  # the fence before a notify waits for the arrival of stores
            return MoveTime(
                latency=far, rate=_rate(machine.sm_push_rate, move, machine), efficiency=machine.sm_push_efficiency
            )
        latency = 2 * (machine.link_latency + far)
        return MoveTime(
            latency=latency, rate=_rate(machine.sm_pull_rate, move, machine), efficiency=machine.sm_pull_efficiency
        )

    def _bulk(self, move: Move, machine: Machine) -> MoveTime:
        """Return the limits of a TMA transfer: a program's share of its SM's copies in flight.

        A program fills and drains this share once for every tile. That time is part of the rate, since other programs
        use the link meanwhile: the programs of an SM do not run in step.
        """
        far = machine.network_latency if move.reach == "network" else 0.0
        own = move.size / (FILLING * machine.bulk_latency + move.size * move.workers * machine.bulk_latency / SHARED)
        memory = machine.memory_bandwidth / 2 / move.programs if move.reach == "local" else inf
        rate = min(own, machine.sm_bulk_rate / move.busy, memory)
        return MoveTime(latency=far, rate=rate, efficiency=1.0 if move.reach == "local" else machine.sm_push_efficiency)


def _require(time: TileTime | MoveTime, name: str) -> None:
    """Raise CostError if a field is not a number of seconds: the simulation would never end or compare wrong times."""
    value = getattr(time, name)
    if not 0 <= value < inf:
        hint = "a cost model returns a finite number of seconds, 0 or more"
        raise CostError(f"{name} of a {type(time).__name__} is {value!r}", hint=hint)


def _between(work: TileWork, machine: Machine) -> float:
    """Return the seconds between the products of two tiles: to store the first, in proportion to its elements, and to
    begin the second, which a flattened loop has begun already; roles do both while others multiply."""
    elements = sum(p.rows * p.columns for p in work.products)
    if work.kind is KernelKind.ROLES:
        return machine.roles_overhead * min(1.0, elements / STORED)
    store = max(0.0, machine.tile_overhead - machine.flat_gain) * min(1.0, elements / STORED)
    return store + (machine.flat_gain if work.products and not work.flatten else 0.0)


def _rate(full: float, move: Move, machine: Machine) -> float:
    """Return bytes per second of one program; `full`: with FULL_WARPS. Fewer warps issue the same block more slowly."""
    issue = ISSUING / machine.sm_bandwidth
    return 1 / max(1 / full + issue / move.warps - issue / FULL_WARPS, 1 / machine.sm_bandwidth)


def _ideal(product: Product, item: int, machine: Machine) -> float:
    """Return the seconds of one product with enough warps and stages: tensor cores, or operands from the cache."""
    cores = product.flops / product.count * machine.sms / machine.matmul_flops * (item / 2)
    cores *= max(1.0, 64 / product.rows, 16 / product.columns)
    operands = (product.rows + product.columns) * product.inner * item
    return max(cores, operands * machine.sms / machine.cache_bandwidth)


def _correction(product: Product, machine: Machine) -> float:
    """Return the ratio of the time of products with such tiles to the estimate: measured, or interpolated.

    Between measured tile sizes the factors' logarithms are weighted by the inverse squared distance (Shepard, 1968), in
    doublings of rows and columns.
    """
    factors: list[tuple[float, float]] = []
    for tile, rate in machine.tile_flops.items():
        rows, columns = map(int, tile.split("x"))
        measured = replace(product, rows=rows, columns=columns, count=1)
        factor = log(measured.flops * machine.sms / rate / _ideal(measured, 2, machine))
        distance = log2(rows / product.rows) ** 2 + log2(columns / product.columns) ** 2
        if distance == 0:
            return exp(factor)
        factors.append((1 / distance, factor))
    return exp(sum(w * f for w, f in factors) / sum(w for w, _ in factors)) if factors else 1.0
