"""The passes: from a bound program whose clauses have been read to the program that runs, step by step.

Each pass takes a bound program and returns one that computes the same, and refuses what its clause cannot do. From
`kernels` on every program on the way can be planned and verified. The pass of a clause has the clause's name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from tilelink.ir.scalar import const
from tilelink.ir.simplify import simplify
from tilelink.lowering.bound import Bound, BoundStage
from tilelink.lowering.choose_kernels import kernels_of, with_own_names
from tilelink.lowering.choose_transport import choose_transport
from tilelink.lowering.clauses import Phase, clauses
from tilelink.lowering.compact_tiles import compact_tiles
from tilelink.lowering.insert_barriers import place_barriers
from tilelink.lowering.issue_order import order_kernels
from tilelink.lowering.launch_protocol import choose_protocol
from tilelink.lowering.loop_forms import decide_loops
from tilelink.lowering.merge_copies import merge_copies
from tilelink.lowering.operand_boxes import choose_boxes
from tilelink.lowering.sink_waits import sink_waits


@dataclass(frozen=True, kw_only=True)
class Pass:
    """A step, by the name under which `tilelink show --after` has it."""

    name: str
    apply: Callable[[Bound], Bound]


def passes() -> tuple[Pass, ...]:
    """All passes, in the order in which they are applied. Clauses say in which phase theirs is, and why."""
    return (
        Pass(name="merge_copies", apply=merge_copies),  # first: what follows takes the tiles of copies as given
        *_of_clauses(Phase.BEFORE_KERNELS),
        Pass(name="kernels", apply=_choose_kernels),
        *_of_clauses(Phase.TILES),
        Pass(name="loops", apply=_finish_loops),  # from here on nothing changes how many tiles a stage has
        *_of_clauses(Phase.BEFORE_TRANSPORT),
        Pass(name="transport", apply=choose_transport),  # before waits and barriers, which queues do without
        Pass(name="sink_waits", apply=sink_waits),
        *_of_clauses(Phase.BEFORE_BARRIERS),
        Pass(name="barriers", apply=place_barriers),  # from here on no statement comes or goes
        *_of_clauses(Phase.AFTER_BARRIERS),
        Pass(name="boxes", apply=choose_boxes),  # after roles, which load boxes of their own
        Pass(name="loop_forms", apply=decide_loops),  # after barriers, which keep iterations in order
        # compact comes after what ties the tiles of a program to one another, which it cannot have
        Pass(name="compact", apply=compact_tiles),
        Pass(name="issue_order", apply=order_kernels),  # from here on it is fixed which signals a kernel waits for
        Pass(name="protocol", apply=choose_protocol),  # last: it asks which kernels wait for peers
    )


def _of_clauses(phase: Phase) -> Iterator[Pass]:
    """Yield the passes of clauses of a phase."""
    for clause in clauses():
        if clause.apply is not None and clause.phase is phase:
            yield Pass(name=clause.name, apply=clause.apply)


def steps(bound: Bound) -> Iterator[tuple[str, Bound]]:
    """The program before all passes, as "bind", and after each of them. Raises what passes refuse."""
    yield "bind", bound
    for one in passes():
        bound = one.apply(bound)
        yield one.name, bound


def _choose_kernels(bound: Bound) -> Bound:
    """before: stages with resources. after: the kernels that run them, with their streams, programs and waits.

    Stages in the same loop of a kernel share no names of values then.
    """
    return with_own_names(replace(bound, kernels=kernels_of(bound)))


def _finish_loops(bound: Bound) -> Bound:
    """before: orders as they were read. after: orders as short as they can be, and flat loops where tiles follow.

    A stage whose programs have a tile each at most has no next tile to begin with.
    """
    stages: dict[str, BoundStage] = {}
    written = {stage.name for stage in bound.source.stages}
    for name, stage in bound.stages.items():
        able, programs = bound.capabilities.flattened_loops, bound.kernel_of[name].programs
        flatten = stage.flatten and able and stage.total > programs
        if stage.flatten and able and not flatten and name in written:
            bound = bound.leaving_out("flatten", name, "no program has a second tile")
        order = {index: simplify(expr, bound.bounds(name)) for index, expr in stage.order.items()}
        # Without tiles an order has nothing to say, and may divide by how many there are.
        stages[name] = replace(stage, order=order if stage.total else dict.fromkeys(order, const(0)), flatten=flatten)
    return replace(bound, stages=stages)
