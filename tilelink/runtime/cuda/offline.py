"""What is known of a rank without its GPU: the operations of its copy engine, and what helper kernels get."""

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
    """The copy engine of a rank. early: for each buffer in the cycle what the main stream does before the kernels.

    late: likewise the rest, in the parts before the first kernel and behind each of them (`order.kernels_in_order`).
    gated: the counters that it waits for. exits, counters, flags: rows of the tables of `helper_kernels.close_launch`.
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
    """Runs the queue functions of a rank once for each buffer. Raises BindingError for what a copy engine cannot do."""
    module = load_module(file_of(artifact.source))
    queued = sorted(artifact.copy_programs, key=lambda one: one.position)
    cycle: list[list[Operation]] = []
    for epoch in range(1, artifact.cycle + 1):
        operations: list[Operation] = []
        for one in queued:
            flags = sum(isinstance(o, StreamWrite) for o in operations)
            operations += record(getattr(module, one.name), artifact, rank, epoch, flags)
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
    """The constants of a program's helper kernels: of `open_launch`, of `close_launch` and of every `turn_launch`.

    awaiting: of `await_outputs`, where it is needed.
    captured: of `close_launch` in a CUDA graph, where that is another kernel.
    """

    opening: Mapping[str, Any]
    awaiting: Mapping[str, Any] | None
    closing: Mapping[str, Any]
    captured: Mapping[str, Any] | None
    turns: tuple[Mapping[str, Any], ...]


def helper_options(artifact: Artifact, found: Recorded, begun: bool) -> HelperOptions:
    """What the helper kernels of a rank are compiled with. begun: a kernel lets the copy engine begin."""
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
    # Kernels of a captured launch tell peers of nothing, and let nobody begin: that must be done before them.
    turns = range(cycle if cycle > 1 or artifact.protocol.announces_late else 0)
    # Captured launches skip others. Where only the signals of every launch keep ranks together, they must wait instead.
    skipping = {"CYCLE": cycle, "LAG": artifact.lag if artifact.reuse_wait or cycle == 1 else 1}
    # Of a launch that others begin, peers may be told in the next one: whoever waited for that here would never end.
    ending = {**skipping, "LAG": 0} if begun and artifact.reuse_wait else skipping
    awaits = bool(found.exits) and artifact.copies_outputs
    return HelperOptions(
        opening={**common, "WAIT": entry_first},
        awaiting={"EXITS": len(found.exits), "STAGE": common["STAGE"]} if awaits else None,
        closing={**closing, "CYCLE": 0},
        captured={**closing, **ending} if turns else None,
        turns=tuple({**options, **skipping, "TURN": turn} for turn in turns),
    )
