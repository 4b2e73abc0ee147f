"""Kernels whose warps have roles: their loops, rings and barriers (templates/kernels/roles.py.j2)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tilelink.artifact import Boxes, PeersPointer, TensorPointer
from tilelink.backend.compact import walked_loop
from tilelink.backend.context import FarContext, KernelContext, LoopContext
from tilelink.backend.frame import Frame
from tilelink.backend.loop_roles import LoopConsumer, LoopLoader
from tilelink.backend.loops import tile_range
from tilelink.backend.roles import Consumer, Loader, uses_indices
from tilelink.backend.roles_shared import shared_of
from tilelink.backend.storer import Storer
from tilelink.ir.program import Wait
from tilelink.ir.visitor import statements
from tilelink.lowering.iterations import loop_of
from tilelink.lowering.rings import CONSUMER, LOADER, STORER, Roles, widest_of
from tilelink.lowering.role_bodies import LoadTiles, read_by_consumers, role_bodies, steps_of
from tilelink.lowering.role_statements import results_of
from tilelink.lowering.summed import summed_of


def roles_kernel(frame: Frame) -> KernelContext:
    """Return the context of a kernel whose warps have roles. All of its stages have the same."""
    boxes: dict[str, Boxes] = {}
    far: dict[str, FarContext] = {}
    every = frame.bound.roles_in(frame.kernel)
    roles = widest_of(every.values())
    widest = frame.bound.stages[next(name for name, one in every.items() if one == roles)]
    loader, consumer = (LoopLoader, LoopConsumer) if roles.kept else (Loader, Consumer)
    loops = {
        name: tuple(_role(frame, name, role, roles, boxes, far))
        for name, role in ((LOADER, loader), (CONSUMER, consumer), (STORER, Storer))
    }
    shared = shared_of(frame.tile_head(widest, frame.writer()), roles, roles, boxes, far)
    stored = results_of(widest)[0]
    context = shared.context(stored, loops)
    named = {one.tensor for one in boxes.values()} - frame.usage.lookups - _by_pointer(frame)
    pointers = (
        one for one in frame.arguments if not isinstance(one, TensorPointer | PeersPointer) or one.tensor not in named
    )
    return KernelContext(
        name=frame.kernel.name,
        template="kernels/roles.py.j2",
        args=(*boxes.values(), *pointers),
        constants=frame.constants,
        launch=frame.launch(),
        loops=(),
        call_arguments=frame.dialect.call_arguments(of_warps=True),
        warps=context,
    )


def _role(
    frame: Frame,
    name: str,
    role: type[Loader | Consumer | Storer],
    widest: Roles,
    boxes: dict[str, Boxes],
    far: dict[str, FarContext],
) -> Iterator[LoopContext]:
    """Yield the loops over tiles of a role. Its places in the rings go on from loop to loop."""
    writer = frame.writer()
    every = frame.bound.roles_in(frame.kernel)
    places = role.begin(writer, numbers=any(one.numbers for one in every.values()))
    before = places.start
    for loop in frame.kernel.loops:
        stage = frame.bound.stages[loop.stages[0]]
        if not stage.total or stage.name not in every:
            continue
        body = role_bodies(frame.bound, stage)[name]
        inner = statements(tuple(s for s in body if not isinstance(s, LoadTiles))) if name == LOADER else body
        awaits = any(isinstance(s, Wait) for s in inner)
        needed = name != CONSUMER or uses_indices(frame.bound, stage)
        walked = walked_loop(frame, loop, writer, "roles.segments({})")
        addresses = frame.tile_head(stage, writer, awaits=awaits, places=needed)
        shared = shared_of(addresses, every[stage.name], widest, boxes, far)
        role.of(shared, places, steps_of(stage, name), frame.thresholds, frame.awaited_by_copy_engine).body(body)
        total = walked.total if walked else frame.constants.total(stage)
        first, step = tile_range(frame.kernel, loop, total)
        made = LoopContext(total=total, first=first, step=step, body=tuple(writer.nodes), before=before)
        yield replace(made, before=(*before, *walked.before), number=walked.number) if walked else made
        writer.nodes, before = [], ()


def _by_pointer(frame: Frame) -> frozenset[str]:
    """Return the tensors that consumers access by their pointers."""
    roles = frame.bound.roles_in(frame.kernel)
    every = [frame.bound.stages[name] for name in roles]
    stages = [stage for stage in every if not stage.has_loop]
    read = frozenset(one.region.tensor for stage in stages for one in read_by_consumers(frame.bound, stage))
    read |= {region.tensor for stage in stages if (summed := summed_of(stage)) for region in summed.reads}
    loops = [loop_of(stage) for stage in every if stage.has_loop]
    read |= {store.region.tensor for tile in loops for store in tile.stored}
    read |= {region.tensor for tile in loops for region in tile.loaded}
    cut = (stage for stage in stages if roles[stage.name].cut or stage.is_direct)
    return read | {region.tensor for stage in cut for region in results_of(stage)}
