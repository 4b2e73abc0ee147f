"""Notifies of a tile that its program issues in the middle of its next product (lowering/clauses/defer_notify.py)."""

from __future__ import annotations

from dataclasses import dataclass, field

from tilelink.backend.addresses import Slice
from tilelink.backend.nodes import Branch, Let, Node
from tilelink.backend.nodes import Notify as NotifyNode
from tilelink.backend.writer import Writer
from tilelink.ir.products import outermost_products
from tilelink.ir.program import Dot, Notify
from tilelink.ir.visitor import closing_notifies
from tilelink.lowering.bound import BoundStage

NONE = "tl.cast(-1, tl.int32)"


@dataclass(kw_only=True)
class Deferred:
    """The deferred notifies of one stage: the state that a program keeps of a tile, and the place where it issues them.

    A program keeps the tile's number, -1 for none, and the channel of each notify. remote: the deferred notifies, by
    the identity of their statements; True if a copy engine waits for the counter.
    """

    stage: BoundStage
    writer: Writer
    product: Dot
    """The product of a tile in which the notifies of the previous tile are issued."""
    remote: dict[int, bool]
    tile: str = field(init=False)
    channels: dict[int, str] = field(init=False)

    def __post_init__(self) -> None:
        self.tile = self.writer.name("held_tile")
        self.channels = {key: self.writer.name("held") for key in self.remote}

    def in_product(self, step: Slice) -> None:
        """Issue the notifies in the loop of their product. step: the slice of its contracted axis in an iteration."""
        condition = f"({step.start} == {self.stage.notified_step} * {step.size}) & ({self.tile} >= 0)"
        with self.writer.block(Branch(condition=condition)):
            self.writer.add(*self._notifies())

    def keep(self, statement: Notify, channel: str) -> None:
        """Keep a notify at the end of a tile."""
        self.writer.let(self.channels[id(statement)], f"dl.opaque({channel})")
        self.writer.let(self.tile, "dl.opaque(tile)")

    @property
    def before(self) -> tuple[Node, ...]:
        """Return the statements before the loop over tiles."""
        return tuple(Let(name=name, value=NONE) for name in (self.tile, *self.channels.values()))

    @property
    def after(self) -> tuple[Node, ...]:
        """Return the statements after the loop. They issue the notifies of the last tile, which has no next one."""
        last = Branch(condition=f"{self.tile} >= 0")
        last.body.extend(self._notifies())
        return (last,)

    def _notifies(self) -> list[Node]:
        number = self.stage.number
        return [
            NotifyNode(
                pad=None, channel=name, rank="rank", stage=number, remote=self.remote[key], waited=False, tile=self.tile
            )
            for key, name in self.channels.items()
        ]


def deferred(stage: BoundStage, writer: Writer, awaited_by_copy_engine: frozenset[tuple[str, str]]) -> Deferred | None:
    """Return the deferred notifies of a stage, or None if its lowered program issues them at the end of a tile.

    awaited_by_copy_engine: signals that copy engines wait for.
    """
    body = stage.stage.body
    if stage.notified_in is None:
        return None
    product = outermost_products(body[stage.notified_in])[stage.notified_product]
    remote = {id(s): (s.region.tensor, s.kind) in awaited_by_copy_engine for s in closing_notifies(body)}
    return Deferred(stage=stage, writer=writer, product=product, remote=remote)
