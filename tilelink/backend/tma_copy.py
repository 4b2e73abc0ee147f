"""Stages that copy by TMA: programs of one warp, in Gluon (lowering/clauses/tma_copy.py)."""

from __future__ import annotations

from dataclasses import dataclass, field

from tilelink import artifact
from tilelink.backend.addresses import Addresses
from tilelink.backend.constants import BLOCKS, LEVEL, scaled, times, total
from tilelink.backend.context import FarContext, KernelContext, LoopContext, TmaCopyContext
from tilelink.backend.frame import Frame
from tilelink.backend.nodes import BoxAccess, CopyBoxes, TileEnd
from tilelink.backend.statements import StatementEmitter
from tilelink.backend.values import ValueEmitter
from tilelink.ir.program import Read, Region, Value
from tilelink.lowering.bound import Boxes


def corner(addresses: Addresses, region: Region, *, load: bool, column: bool = True) -> tuple[str, str]:
    """Emit the row and column of a tile's first element, in its tensor as rows of its last dimension.

    Return their names. column: False if the column is not needed; its name is then empty.
    """
    writer = addresses.writer
    tensor = addresses.bound.tensors[region.tensor]
    spans = addresses.bound.memory_map(addresses.stage.name, region).spans
    shape = addresses.constants.shape(tensor)
    terms = [scaled(f"{tensor.name}_buffer", times(shape[:-1]))] if tensor.buffers > 1 else []
    for dim, span in enumerate(spans[:-1]):
        terms.append(scaled(addresses.start(span, LEVEL["*"]), times(shape[dim + 1 : -1])))
    row = writer.let(writer.name("row"), addresses.after_waits(region, total(terms), load=load))
    return row, writer.let(writer.name("column"), addresses.scalar(spans[-1].start)) if column else ""


@dataclass(kw_only=True)
class TmaCopyEmitter(StatementEmitter):
    """Lowers the statements of a stage that copies by TMA. Waits and notifies are those of other stages."""

    kernel: str
    boxes: Boxes
    args: dict[str, artifact.Boxes] = field(default_factory=dict[str, artifact.Boxes])
    """Descriptors that the kernel takes, by parameter."""
    far: list[FarContext] = field(default_factory=list[FarContext])

    @property
    def own(self) -> str:
        """Return the name of the function that each of its programs runs."""
        return f"_{self.kernel}"

    def _write(self, region: Region, value: Value) -> None:
        assert isinstance(value, Read)
        boxes, writer, number_of = self.boxes, self.writer, self.values.addresses.constants.number
        addresses = self.values.addresses
        corners = corner(addresses, value.region, load=True), corner(addresses, region, load=False)
        step = writer.name("step")
        box, number = writer.name("box"), writer.name("number")
        writer.add(
            CopyBoxes(
                step=step, number=number, box=box, count=number_of(BLOCKS, boxes.count, "BOXES"),
                ahead=number_of(BLOCKS, boxes.ahead, "AHEAD"), buffers=self._buffers,
                source=self._access("load", value.region, self._place(corners[0], step)),
                target=self._access("store", region, self._place(corners[1], number)),
            )
        )  # fmt: skip

    def _place(self, corner: tuple[str, str], number: str) -> str:
        """Return the row and column of a box of the tile."""
        (row, column), (down, wide) = corner, self._box
        if self.boxes.across == 1:
            return f"{row} + {scaled(number, down)}, {column}"
        across = self.values.addresses.constants.number(BLOCKS, self.boxes.across, "BOXES_ACROSS")
        return f"{row} + {number} // {across} * {down}, {column} + {number} % {across} * {wide}"

    @property
    def _box(self) -> tuple[str, str]:
        """Return the rows and columns of a box."""
        number = self.values.addresses.constants.number
        rows, columns = self.boxes.box
        return number(BLOCKS, rows, "BOX_ROWS"), number(BLOCKS, columns, "BOX_COLUMNS")

    @property
    def _buffers(self) -> str:
        return self.values.addresses.constants.number(BLOCKS, self.boxes.buffers, "BUFFERS")

    def _access(self, what: str, region: Region, place: str) -> BoxAccess:
        """Return the access to a region.

        A local region is accessed directly, another one through a function of the rank, which is known only at run
        time.
        """
        bound, stage = self.values.addresses.bound, self.values.addresses.stage.name
        if region.rank is None:
            name = self._descriptor(artifact.Boxes(tensor=region.tensor, box=self.boxes.box))
            return BoxAccess(name=name, position=place)
        args = [artifact.Boxes(tensor=region.tensor, box=self.boxes.box, owner=rank) for rank in range(bound.ranks)]
        copies = tuple(map(self._descriptor, args))
        far = FarContext(name=f"{self.own}_{what}_{region.tensor}", what=what, copies=copies)
        if far not in self.far:
            self.far.append(far)
        peer = self.values.addresses.scalar(bound.tile_map(stage, region).rank)
        return BoxAccess(name=far.name, position=place, peer=peer, copies=copies)

    def _descriptor(self, arg: artifact.Boxes) -> str:
        self.args.setdefault(arg.name, arg)
        return arg.name

    def context(self) -> TmaCopyContext:
        """Return the context of the kernel's template."""
        like = next(iter(self.args))
        boxes = self.boxes
        return TmaCopyContext(
            like=like,
            box=self._box,
            programs_per_cta=boxes.programs,
            buffers=self._buffers,
            far=tuple(self.far),
        )


def tma_copy_kernel(frame: Frame) -> KernelContext:
    """Return the context of a kernel of one stage whose programs are warps that copy boxes."""
    (stage,), writer = frame.usage.stages, frame.writer()
    assert stage.tma_copy is not None
    emitter = TmaCopyEmitter(
        values=ValueEmitter(addresses=frame.tile_head(stage, writer)),
        thresholds=frame.thresholds,
        awaited_by_copy_engine=frame.awaited_by_copy_engine,
        kernel=frame.kernel.name,
        boxes=stage.tma_copy,
    )
    emitter.body(stage.stage.body)
    writer.add(TileEnd(stage=stage.number))
    # a tensor that is accessed only through boxes needs no pointer
    unused = {one.tensor for one in emitter.args.values()} - frame.usage.lookups
    pointers = (
        one
        for one in frame.arguments
        if not isinstance(one, artifact.TensorPointer | artifact.PeersPointer) or one.tensor not in unused
    )
    return KernelContext(
        name=frame.kernel.name,
        template="kernels/tma_copy.py.j2",
        args=(*emitter.args.values(), *pointers),
        constants=frame.constants,
        launch=frame.launch(),
        loops=(LoopContext(total=frame.constants.total(stage), body=tuple(writer.nodes)),),
        call_arguments=frame.dialect.call_arguments(of_warps=True),
        warps=emitter.context(),
    )
