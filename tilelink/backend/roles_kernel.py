"""Kernels whose warps have roles: their loops, rings and barriers (templates/kernels/roles.py.j2)."""

from __future__ import annotations

from collections.abc import Iterator

from tilelink.artifact import Boxes, TensorPointer
from tilelink.backend.context import KernelContext, LoopContext, RolesContext
from tilelink.backend.frame import Frame
from tilelink.backend.loops import turns
from tilelink.backend.roles import Consumer, Loader, Shared, Storer, uses_indices
from tilelink.ir.program import Store
from tilelink.lowering.rings import Roles


def roles_kernel(frame: Frame) -> KernelContext:
    """Return the context of a kernel whose warps have roles. All of its stages have the same."""
    boxes: dict[str, Boxes] = {}
    stages = [(stage, stage.roles) for stage in frame.usage.stages if stage.roles is not None]
    widest, roles = max(stages, key=lambda one: one[1].columns)
    loops = {role.__name__.lower(): tuple(_role(frame, role, roles, boxes)) for role in (Loader, Consumer, Storer)}
    shared = Shared(addresses=frame.tile_head(widest, frame.writer()), roles=roles, widest=roles, boxes=boxes)
    (stored,) = (s.region for s in widest.stage.body if isinstance(s, Store))
    results = f"{shared.consumers} * {shared.results}"
    context = RolesContext(
        **loops, count=roles.consumers, consumers=shared.consumers, rows=shared.rows, columns=shared.columns,
        block=shared.block, buffers=shared.buffers, results=shared.results, piece=shared.piece,
        left=shared.left, right=shared.right, result=shared.result(stored),
        barriers=tuple(
            (name, places, arrivals)
            for ring, places in ((roles.operands, shared.buffers), (roles.results, results))
            for name, arrivals in ring.barriers
        ),
        registers=roles.registers,
    )  # fmt: skip
    named = {one.tensor for one in boxes.values()} - frame.usage.lookups
    pointers = (one for one in frame.arguments if not isinstance(one, TensorPointer) or one.tensor not in named)
    return KernelContext(
        name=frame.kernel.name,
        template="kernels/roles.py.j2",
        args=(*boxes.values(), *pointers),
        constants=frame.constants,
        launch=frame.launch(by_pointer=False),
        loops=(),
        call_arguments=frame.dialect.call_arguments(of_warps=True),
        roles=context,
    )


def _role(
    frame: Frame, role: type[Loader] | type[Consumer] | type[Storer], widest: Roles, boxes: dict[str, Boxes]
) -> Iterator[LoopContext]:
    """Yield the loops over tiles of a role. Its places in the rings go on from loop to loop."""
    writer = frame.writer()
    places = role.begin(writer)
    before = places.start
    for loop in frame.kernel.loops:
        stage = frame.bound.stages[loop.stages[0]]
        if not stage.total or stage.roles is None:
            continue
        needed = role is not Consumer or uses_indices(stage)
        addresses = frame.tile_head(stage, writer, awaits=role is Loader, places=needed)
        shared = Shared(addresses=addresses, roles=stage.roles, widest=widest, boxes=boxes)
        role.of(shared, places, frame.thresholds, frame.awaited_by_copy_engine).body(stage.stage.body)
        total = frame.constants.total(stage)
        first, step = turns(frame.kernel, loop, total)
        yield LoopContext(total=total, first=first, step=step, body=tuple(writer.nodes), before=before)
        writer.nodes, before = [], ()
