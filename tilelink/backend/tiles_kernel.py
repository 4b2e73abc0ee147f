"""Kernels whose programs compute tiles, one after the other (templates/kernels/tiles.py.j2)."""

from __future__ import annotations

from dataclasses import replace

from tilelink.backend.compact import walked_loop
from tilelink.backend.context import KernelContext, LoopContext
from tilelink.backend.deferred_notifies import Deferred, deferred
from tilelink.backend.descriptors import Descriptors
from tilelink.backend.frame import Frame
from tilelink.backend.loops import tile_range, tiles_text
from tilelink.backend.nodes import Comment, TileEnd
from tilelink.backend.statements import StatementEmitter
from tilelink.backend.values import ValueEmitter
from tilelink.backend.words import comment
from tilelink.backend.writer import Writer
from tilelink.lowering.bound import BoundStage, Loop


def tiles_kernel(frame: Frame) -> KernelContext:
    """Return the context of a kernel of tiles."""
    descriptors, modules = Descriptors(), set[str]()
    loops = tuple(
        _loop(frame, loop, descriptors, modules)
        for loop in frame.kernel.loops
        if frame.bound.stages[loop.stages[0]].total
    )
    return KernelContext(
        name=frame.kernel.name,
        template="kernels/tiles.py.j2",
        args=(*descriptors.args.values(), *frame.arguments),
        constants=frame.constants,
        launch=frame.launch(),
        loops=loops,
        call_arguments=frame.dialect.call_arguments(),
        user_modules=frozenset(modules),
        steps=frame.kernel.steps,
    )


def _loop(frame: Frame, loop: Loop, descriptors: Descriptors, modules: set[str]) -> LoopContext:
    kernel, writer = frame.kernel, frame.writer()
    stage = frame.bound.stages[loop.stages[0]]
    total, held = frame.constants.total(stage), deferred(stage, writer, frame.awaited_by_copy_engine)
    walked = walked_loop(frame, loop, writer)
    for name in loop.stages:
        _tile(frame, frame.bound.stages[name], writer, descriptors, modules, held)
    first, step = tile_range(kernel, loop, walked.total if walked else total)
    if loop.each:
        begin, few = f"lockstep * {loop.each}", stage.total < kernel.steps * loop.each
        first, end = f"{begin} + {first}", f"{begin} + {loop.each}"
        total = f"tl.minimum({end}, {total})" if few else end
    before, after = (held.before, held.after) if held else ((), ())
    if len(kernel.loops) > 1:
        before = (Comment(text=comment(tiles_text(kernel, loop))), *before)
    body = tuple(writer.nodes)
    made = LoopContext(
        total=total, first=first, step=step, body=body, flatten=stage.flatten, before=before, after=after,
        taken=kernel.dynamic,
    )  # fmt: skip
    if walked is None:
        return made
    return replace(made, total=walked.total, before=(*before, *walked.before), number=walked.number)


def _tile(
    frame: Frame,
    stage: BoundStage,
    writer: Writer,
    descriptors: Descriptors,
    modules: set[str],
    held: Deferred | None,
) -> None:
    """Emit a tile of a stage. modules: those of the functions that it calls are added."""
    values = ValueEmitter(addresses=frame.tile_head(stage, writer), descriptors=descriptors, deferred=held)
    StatementEmitter(
        values=values, thresholds=frame.thresholds, awaited_by_copy_engine=frame.awaited_by_copy_engine
    ).body(stage.stage.body)
    writer.add(TileEnd(stage=stage.number))
    modules |= values.modules
