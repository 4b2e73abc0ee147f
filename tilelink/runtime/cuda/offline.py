"""What is known of a rank without its GPU: the operations of its copy engine, and what helper kernels get."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tilelink.generated import load_module
from tilelink.runtime.cuda import tables
from tilelink.runtime.cuda.order import between_kernels, kernels_in_order
from tilelink.runtime.cuda.record_copies import Operation, StreamWait, StreamWrite, own_first, record
from tilelink.runtime.cuda.spec import GpuProgram


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


def recorded(program: GpuProgram, rank: int) -> Recorded:
    """Runs the queue functions of a rank once for each buffer. Raises BindingError for what a copy engine cannot do."""
    module, layout = load_module(program.source), program.layout
    queued = sorted((k for k in program.kernels if k.copy_engine), key=lambda k: k.position)
    cycle: list[list[Operation]] = []
    for epoch in range(1, program.cycle + 1):
        operations: list[Operation] = []
        for one in queued:
            flags = sum(isinstance(o, StreamWrite) for o in operations)
            operations += record(getattr(module, one.name), layout, rank, epoch, dict(program.tables), flags)
        cycle.append(operations)
    parts = tuple(own_first(operations, rank) for operations in cycle)
    order = kernels_in_order(program.kernels)
    own = {o.number for o in parts[0][0] if isinstance(o, StreamWrite) and o.rank == rank}
    gated = {o.channel for operations in cycle for o in operations if isinstance(o, StreamWait)}
    return Recorded(
        early=tuple(early for early, _ in parts),
        late=tuple(between_kernels(late, order, layout, queued) for _, late in parts),
        gated=frozenset(gated),
        exits=tables.exits(program, rank, gated),
        counters=tables.counters(program, rank, gated),
        flags=tables.flag_rows([o for o in cycle[0] if isinstance(o, StreamWrite)], own, layout),
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


def helper_options(program: GpuProgram, found: Recorded, begun: bool) -> HelperOptions:
    """What the helper kernels of a rank are compiled with. begun: a kernel lets the copy engine begin."""
    layout, cycle = program.layout, program.cycle
    common: dict[str, Any] = {
        "RANKS": layout.ranks, "BLOCK": 1 << (layout.ranks - 1).bit_length(), "ENTERED": layout.entered_base,
        "STAGE": len(layout.stages),
    }  # fmt: skip
    entry_first = any(k.copy_engine and k.needs_entry for k in program.kernels)
    options = {
        **common, "FINISHED": layout.finished_base, "COUNTERS": len(found.counters), "FLAGS": len(found.flags),
        "LAG": program.lag, "ENTRY": program.needs_entry, "PROGRAMS": program.counted,
    }  # fmt: skip
    closing = {**options, "EXITS": len(found.exits)}
    # Kernels of a captured launch tell peers of nothing, and let nobody begin: that must be done before them.
    turns = range(cycle if cycle > 1 or program.protocol.announces_late else 0)
    # Captured launches skip others. Where only the signals of every launch keep ranks together, they must wait instead.
    skipping = {"CYCLE": cycle, "LAG": program.lag if program.reuse_wait or cycle == 1 else 1}
    # Of a launch that others begin, peers may be told in the next one: whoever waited for that here would never end.
    ending = {**skipping, "LAG": 0} if begun and program.reuse_wait else skipping
    return HelperOptions(
        opening={**common, "WAIT": entry_first},
        awaiting={"EXITS": len(found.exits), "STAGE": common["STAGE"]} if found.exits and program.keeps else None,
        closing={**closing, "CYCLE": 0},
        captured={**closing, **ending} if turns else None,
        turns=tuple({**options, **skipping, "TURN": turn} for turn in turns),
    )
