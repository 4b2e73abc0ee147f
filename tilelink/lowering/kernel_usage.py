"""Usage of kernels: the tensors and signals of their stages, found once before source is generated."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tilelink.artifact import Signal
from tilelink.ir.program import NetworkFence, NetworkQuiet, Notify, Region, Statement, Transfer, Wait
from tilelink.ir.scalar import Lookup, walk
from tilelink.ir.visitor import awaited, notified, stage_regions, stage_scalars, statements
from tilelink.lowering.bound import Bound, BoundStage, Kernel, KernelKind
from tilelink.lowering.issue_order import signals
from tilelink.lowering.launch_protocol import KernelHandshake, handshake_of


@dataclass(frozen=True, kw_only=True)
class KernelUsage:
    """The kind of a kernel, its stages and what they use, and its part in the launch protocol.

    tensors: accessed, index tensors included. lookups: index tensors that expressions read. remote: accessed on other
    ranks. waits: signals that it waits for, in the order of its statements. notifies: signals that it notifies, also
    those that arrive with data. signalled: tensors that it waits for or notifies by statements of their own. waiting:
    its stages that wait. uses_network: it sends to other nodes or waits for what it sent. track: number of its first
    program, over all kernels of a rank.
    """

    kind: KernelKind
    stages: tuple[BoundStage, ...]
    tensors: frozenset[str]
    lookups: frozenset[str]
    remote: frozenset[str]
    waits: tuple[Signal, ...]
    notifies: frozenset[Signal]
    signalled: frozenset[str]
    waiting: frozenset[str]
    uses_network: bool
    track: int
    handshake: KernelHandshake


def usages(bound: Bound) -> tuple[KernelUsage, ...]:
    """Return the usage of every kernel of a lowered program, in the order of its kernels."""
    found: list[KernelUsage] = []
    track, copies_wait = 0, any(signals(bound, kernel, awaited) for kernel in bound.kernels if kernel.on_copy_engine)
    for kernel in bound.kernels:
        found.append(_usage(bound, kernel, track, copies_wait))
        track += kernel.programs
    return tuple(found)


def _usage(bound: Bound, kernel: Kernel, track: int, copies_wait: bool) -> KernelUsage:
    stages = tuple(bound.stages[name] for name in kernel.stage_names)
    bodies = {stage.name: tuple(statements(stage.stage.body)) for stage in stages}
    regions = [region for stage in stages for region in stage_regions(stage.stage)]
    lookups = frozenset[str]().union(*map(_lookups, stages)) if bound.entries else frozenset[str]()
    return KernelUsage(
        kind=bound.stages[kernel.name].kind,
        stages=stages,
        tensors=_tensors(regions) | lookups,
        lookups=lookups,
        remote=_tensors(region for region in regions if region.rank is not None),
        waits=tuple(dict.fromkeys(signal for body in bodies.values() for one in body for signal in awaited(one))),
        notifies=signals(bound, kernel, notified),
        signalled=frozenset(s.region.tensor for body in bodies.values() for s in body if isinstance(s, Wait | Notify)),
        waiting=frozenset(name for name, body in bodies.items() if any(isinstance(s, Wait) for s in body)),
        uses_network=any(_of_network(statement) for body in bodies.values() for statement in body),
        track=track,
        handshake=handshake_of(bound, kernel, copies_wait=copies_wait),
    )


def _lookups(stage: BoundStage) -> frozenset[str]:
    """Return the index tensors that expressions of a stage read."""
    parts = (part for scalar in stage_scalars(stage.stage) for part in walk(scalar))
    return frozenset(part.table for part in parts if isinstance(part, Lookup))


def _tensors(regions: Iterable[Region]) -> frozenset[str]:
    return frozenset(region.tensor for region in regions)


def _of_network(statement: Statement) -> bool:
    match statement:
        case Transfer(mode="put" | "get") | Notify(by_network=True) | NetworkFence() | NetworkQuiet():
            return True
        case _:
            return False
