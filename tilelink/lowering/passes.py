"""The passes: from a bound program whose clauses have been read to the program that runs, step by step.

Each pass takes a bound program and returns one that computes the same, and refuses what its clause cannot do. From
`kernels` on every program on the way can be planned and verified. A clause of one's own brings a pass of its name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from tilelink.ir.scalar import const
from tilelink.ir.simplify import simplify
from tilelink.lowering.bound import Bound, BoundStage
from tilelink.lowering.choose_kernels import kernels_of
from tilelink.lowering.choose_transport import choose_transport
from tilelink.lowering.clauses import CLAUSES, clauses
from tilelink.lowering.clauses.backfill import BACKFILL
from tilelink.lowering.clauses.defer_notify import DEFER_NOTIFY
from tilelink.lowering.clauses.dynamic import DYNAMIC
from tilelink.lowering.clauses.flatten import FLATTEN
from tilelink.lowering.clauses.halve_tail import HALVE_TAIL
from tilelink.lowering.clauses.low_latency import LOW_LATENCY
from tilelink.lowering.clauses.program_per_tile import PROGRAM_PER_TILE
from tilelink.lowering.clauses.roles import ROLES
from tilelink.lowering.clauses.split_k_tail import SPLIT_K_TAIL
from tilelink.lowering.clauses.stream_k import STREAM_K
from tilelink.lowering.clauses.tma_copy import TMA_COPY
from tilelink.lowering.compact_tiles import compact_tiles
from tilelink.lowering.insert_barriers import place_barriers
from tilelink.lowering.issue_order import order_kernels
from tilelink.lowering.launch_protocol import choose_protocol
from tilelink.lowering.sink_waits import sink_waits


@dataclass(frozen=True, kw_only=True)
class Pass:
    """A step, by the name under which `tilelink show --after` has it."""

    name: str
    apply: Callable[[Bound], Bound]


def passes() -> tuple[Pass, ...]:
    """All passes, in the order in which they are applied."""
    own = tuple(one for one in clauses() if one not in CLAUSES)
    return (
        Pass(name="tma_copy", apply=TMA_COPY.apply),  # before kernels: how many programs share an SM is a kernel's
        Pass(name="kernels", apply=_choose_kernels),
        # flatten judges the stages that were written, not what splitting makes of them
        Pass(name="flatten", apply=FLATTEN.apply),
        # split_k_tail comes before backfill: it changes how many tiles the last wave has
        Pass(name="split_k_tail", apply=SPLIT_K_TAIL.apply),
        Pass(name="stream_k", apply=STREAM_K.apply),  # before backfill, as it changes the last wave, too
        Pass(name="halve_tail", apply=HALVE_TAIL.apply),  # likewise
        Pass(name="backfill", apply=BACKFILL.apply),
        Pass(name="program_per_tile", apply=PROGRAM_PER_TILE.apply),  # after what adds stages to kernels
        *(Pass(name=one.name, apply=one.apply) for one in own),
        Pass(name="loops", apply=_finish_loops),  # from here on nothing changes how many tiles a stage has
        # low_latency comes before transport, which asks for plain pushes, and before waits sink into products
        Pass(name="low_latency", apply=LOW_LATENCY.apply),
        Pass(name="transport", apply=choose_transport),  # before waits and barriers, which queues do without
        Pass(name="sink_waits", apply=sink_waits),
        Pass(name="roles", apply=ROLES.apply),  # after waits have sunk: the loader executes them between its loads
        Pass(name="barriers", apply=place_barriers),  # from here on no statement comes or goes
        Pass(name="defer_notify", apply=DEFER_NOTIFY.apply),
        # dynamic and compact come after what ties the tiles of a program to one another, which either cannot have
        Pass(name="dynamic", apply=DYNAMIC.apply),
        Pass(name="compact", apply=compact_tiles),
        Pass(name="issue_order", apply=order_kernels),  # from here on it is fixed which signals a kernel waits for
        Pass(name="protocol", apply=choose_protocol),  # last: it asks which kernels wait for peers
    )


def steps(bound: Bound) -> Iterator[tuple[str, Bound]]:
    """The program before all passes, as "bind", and after each of them. Raises what passes refuse."""
    yield "bind", bound
    for one in passes():
        bound = one.apply(bound)
        yield one.name, bound


def _choose_kernels(bound: Bound) -> Bound:
    """before: stages with resources. after: the kernels that run them, with their streams, programs and waits."""
    return replace(bound, kernels=kernels_of(bound))


def _finish_loops(bound: Bound) -> Bound:
    """before: orders as they were read. after: orders as short as they can be, and flat loops where tiles follow.

    A stage whose programs have a tile each at most has no next tile to begin with.
    """
    stages: dict[str, BoundStage] = {}
    for name, stage in bound.stages.items():
        flat = stage.flat and bound.capabilities.flat_loops and stage.total > bound.kernel_of[name].programs
        order = {index: simplify(expr, bound.bounds(name)) for index, expr in stage.order.items()}
        # Without tiles an order has nothing to say, and may divide by how many there are.
        stages[name] = replace(stage, order=order if stage.total else dict.fromkeys(order, const(0)), flat=flat)
    return replace(bound, stages=stages)
