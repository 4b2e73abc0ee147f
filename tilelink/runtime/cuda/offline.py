"""State of a rank that is known without its GPU: its copy engine's operations, and options of helper kernels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tilelink.artifact import Artifact
from tilelink.generated import file_of, load_module
from tilelink.runtime.cuda import tables
from tilelink.runtime.cuda.order import between_kernels
from tilelink.runtime.cuda.record_copies import Operation, StreamWait, StreamWrite, before_kernels, record
from tilelink.runtime.order import kernels_in_order


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """The copy engine of a rank.

    early: operations of the main stream before the kernels, for each buffer in the cycle. late: the other operations,
    for each buffer, in the parts before the first kernel and after each of them (`order.kernels_in_order`). gated:
    counters that it waits for. exits, counters, flags: rows of the tables of `helper_kernels.close_launch`.
    """

    early: tuple[list[Operation], ...]
    late: tuple[list[list[Operation]], ...]
    gated: frozenset[int]
    exits: list[tuple[int, int, int, int]]
    counters: list[tuple[int, int, int]]
    flags: list[tuple[int, int, int, int, int]]


EMPTY = Recorded(early=(), late=(), gated=frozenset(), exits=[], counters=[], flags=[])
"""A rank without a copy engine."""


def recorded(artifact: Artifact, rank: int) -> Recorded:
    """Run the queue functions of a rank once for each buffer."""
    module = load_module(file_of(artifact.source))
    queued = sorted(artifact.copy_programs, key=lambda one: one.position)
    cycle: list[list[Operation]] = []
    for epoch in range(1, artifact.cycle + 1):
        operations: list[Operation] = []
        for one in queued:
            operations += record(getattr(module, one.name), artifact, rank, epoch, operations)
        cycle.append(operations)
    parts = tuple(before_kernels(one, rank, own_first=artifact.own_copies_first) for one in cycle)
    order = kernels_in_order(artifact.kernels)
    own = {o.number for o in parts[0][0] if isinstance(o, StreamWrite) and o.rank == rank}
    gated = {o.channel for operations in cycle for o in operations if isinstance(o, StreamWait)}
    return Recorded(
        early=tuple(early for early, _ in parts),
        late=tuple(between_kernels(late, order, artifact, queued) for _, late in parts),
        gated=frozenset(gated),
        exits=tables.exits(artifact, rank, gated),
        counters=tables.counters(artifact, rank, gated),
        flags=tables.flag_rows([o for o in cycle[0] if isinstance(o, StreamWrite)], own, artifact),
    )


@dataclass(frozen=True, kw_only=True)
class HelperOptions:
    """The constants of a program's helper kernels: of `open_launch`, of `close_launch` and of every `skip_launches`.

    awaiting: of `await_outputs`, or None if it is not needed. captured: of `close_launch` in a CUDA graph, or None if
    it is the same kernel.
    """

    opening: Mapping[str, Any]
    awaiting: Mapping[str, Any] | None
    closing: Mapping[str, Any]
    captured: Mapping[str, Any] | None
    skips: tuple[Mapping[str, Any], ...]


def helper_options(artifact: Artifact, found: Recorded, begun: bool) -> HelperOptions:
    """Return the compile options of a rank's helper kernels. begun: True if a kernel releases the copy engine."""
    cycle = artifact.cycle
    common: dict[str, Any] = {
        "RANKS": artifact.ranks, "BLOCK": 1 << (artifact.ranks - 1).bit_length(), "ENTERED": artifact.entered_base,
        "STAGE": len(artifact.stages),
    }  # fmt: skip
    entry_first = any(one.needs_entry for one in artifact.copy_programs)
    options = {
        **common, "FINISHED": artifact.finished_base, "COUNTERS": len(found.counters), "FLAGS": len(found.flags),
        "LAG": artifact.lag, "ENTRY": artifact.needs_entry, "PROGRAMS": artifact.counted,
    }  # fmt: skip
    closing = {**options, "EXITS": len(found.exits)}
    # Where replays skip launches, their kernels notify no peers and release no copies: helper kernels do so first.
    skipped = not artifact.replays_in_turn and (cycle > 1 or artifact.protocol.announces_late)
    slots = range(cycle if skipped else 0)
    # Captured launches skip others. If only the signals of every launch keep ranks together, they must wait instead.
    skipping = {"CYCLE": cycle, "LAG": artifact.lag if artifact.reuse_wait or cycle == 1 else 1}
    # If a kernel releases the copies of a launch, peers may be notified of its end only in the next one. A wait for
    # that here would deadlock.
    ending = {**skipping, "LAG": 0} if begun and artifact.reuse_wait else skipping
    awaits = bool(found.exits) and artifact.copies_outputs
    return HelperOptions(
        opening={**common, "WAIT": entry_first},
        awaiting={"EXITS": len(found.exits), "STAGE": common["STAGE"]} if awaits else None,
        closing={**closing, "CYCLE": 0},
        captured={**closing, **ending} if slots else None,
        skips=tuple({**options, **skipping, "SLOT": slot} for slot in slots),
    )
