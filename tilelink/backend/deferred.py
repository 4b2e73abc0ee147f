"""Notifies of a tile that its program gives in the middle of its next product (schedule/clauses/defer_notify.py)."""

from __future__ import annotations

from dataclasses import dataclass, field

from tilelink.backend.dialects import Dialect
from tilelink.backend.writer import Writer
from tilelink.ir.program import Notify
from tilelink.ir.visitor import closing_notifies
from tilelink.schedule.bound import BoundStage
from tilelink.schedule.clauses.defer_notify import NOTIFY_STEP

NONE = "tl.cast(-1, tl.int32)"


@dataclass(kw_only=True)
class Deferred:
    """The closing notifies of one stage: what a program keeps of a tile, and where it gives them.

    A program keeps the tile's number, -1 for none, and the channel of each notify. remote: the notifies by the identity
    of their statements, with whether a copy engine waits for the counter.
    """

    stage: BoundStage
    writer: Writer
    dialect: Dialect
    remote: dict[int, bool]
    tile: str = field(init=False)
    channels: dict[int, str] = field(init=False)
    statement: int = field(init=False, default=0)
    """The number of the tile's statement that is rendered; those of the tile before are given in `stage.given_in`."""
    given: bool = field(init=False, default=False)
    """Whether they have been rendered in a product."""

    def __post_init__(self) -> None:
        self.tile = self.writer.name("held_tile")
        self.channels = {key: self.writer.name("held") for key in self.remote}

    def in_product(self, step: str, block: int, extent: int) -> None:
        """Gives them in a loop over a contracted axis, of which `step` is the first element of a step.

        Not in one that stands in another loop, which would give them again and again.
        """
        elsewhere = self.statement != self.stage.given_in or self.writer.depth > 1
        if self.given or elsewhere or extent <= NOTIFY_STEP * block:
            return
        self.given = True
        with self.writer.block(f"if ({step} == {NOTIFY_STEP * block}) & ({self.tile} >= 0):"):
            for line in self._notifies():
                self.writer.line(line)

    def keep(self, statement: Notify, channel: str) -> None:
        """Keeps a notify of the tile that ends here."""
        self.writer.line(f"{self.channels[id(statement)]} = dl.hold({channel})")
        self.writer.line(f"{self.tile} = dl.hold(tile)")

    @property
    def before(self) -> tuple[str, ...]:
        """Lines before the loop over tiles."""
        return tuple(f"{name} = {NONE}" for name in (self.tile, *self.channels.values()))

    @property
    def after(self) -> tuple[str, ...]:
        """Lines behind the loop: the last tile has no next one."""
        return (f"if {self.tile} >= 0:", *(f"    {line}" for line in self._notifies()))

    def _notifies(self) -> tuple[str, ...]:
        number = self.stage.number
        return tuple(
            self.dialect.notify(None, name, "rank", number, remote=self.remote[key], waited=False, tile=self.tile)
            for key, name in self.channels.items()
        )


def deferred(stage: BoundStage, writer: Writer, dialect: Dialect, hosted: frozenset[tuple[str, str]]) -> Deferred:
    """What is deferred of a stage whose schedule asks for it. hosted: signals that copy engines wait for."""
    notifies = closing_notifies(stage.stage.body)
    remote = {id(s): (s.region.tensor, s.kind) in hosted for s in notifies}
    return Deferred(stage=stage, writer=writer, dialect=dialect, remote=remote)
