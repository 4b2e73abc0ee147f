"""The storer of a kernel whose warps have roles: it stores the results of tiles, and notifies (backend/roles.py)."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import ClassVar

from tilelink.backend import nodes
from tilelink.backend.roles import RingPosition, RoleEmitter
from tilelink.backend.tma_copy import corner
from tilelink.ir.program import Notify, Region, Store, Transfer
from tilelink.lowering.rings import AWAIT, RESULTS, Step, parts_of, target_of
from tilelink.lowering.role_bodies import Executed
from tilelink.lowering.role_statements import results_of


@dataclass(frozen=True, kw_only=True)
class _Target:
    """Target of a tile's results: row and column of its first element.

    boxes: a descriptor, or the function that stores at a rank. peer: that rank, or "". copies: the descriptors of all
    ranks' copies, for that function.
    """

    boxes: str
    row: str
    column: str
    peer: str = ""
    copies: tuple[str, ...] = ()


@dataclass(kw_only=True)
class Storer(RoleEmitter):
    """The warp that stores results and notifies. targets: the positions of the tile's results, so far."""

    results: ClassVar[tuple[str, ...]] = ("result_buffer", "result_phase", "previous")
    targets: list[_Target] = field(default_factory=list[_Target])
    is_whole: str | None = None
    """Name of whether all rows of the tile are there, None if a launch decides none."""

    @property
    def position(self) -> RingPosition:
        return self.positions.results

    def statement(self, statement: Executed) -> None:
        if isinstance(statement, Notify):
            self._ordered(statement)
        elif isinstance(statement, Store | Transfer):
            region = statement.region if isinstance(statement, Store) else statement.target
            self.comment(statement)
            if self.values.addresses.stage.is_direct:  # consumers have stored the one result: barriers remain
                self._store_parts()
                return
            self.targets.append(self._target(region))
            self.is_whole = self.whole()
            if len(self.targets) == len(results_of(self.values.addresses.stage)):  # a loop may have other results
                self._store_parts()

    def _target(self, region: Region) -> _Target:
        addresses = self.values.addresses
        row, column = corner(addresses, region, load=False)
        if region.rank is None:
            return _Target(boxes=self.shared.result(region), row=row, column=column)
        far = self.shared.results_at(addresses.bound.kernel_of[addresses.stage.name].name, region)
        peer = self.writer.let(
            self.writer.name("peer"), addresses.scalar(addresses.bound.tile_map(addresses.stage.name, region).rank)
        )
        return _Target(boxes=far.name, row=row, column=column, peer=peer, copies=far.copies)

    def _store_parts(self) -> None:
        """Store the pieces of each consumer's part, one part after the other.

        A consumer does not wait for the others' pieces then. The rings of all consumers are at the same position when a
        tile begins.
        """
        shared, writer, position = self.shared, self.writer, self.position
        steps = parts_of(self.at[RESULTS])
        begin = ", ".join(writer.name(f"tile_{name}") for name in ("buffer", "phase"))
        writer.let(begin, f"{position.buffer}, {position.phase}")
        part = writer.name("part")
        with writer.block(nodes.Loop(index=part, over=f"gl.static_range({shared.consumers})")):
            writer.let(f"{position.buffer}, {position.phase}", begin)
            self._store_piece(steps.first, part, "")
            if shared.piece_count > 1:
                piece = writer.name("piece")
                with writer.block(nodes.Loop(index=piece, over=f"gl.static_range(1, {shared.pieces})")):
                    self._store_piece(steps.each, part, f" + {piece} * {shared.piece}")
            self._store_steps(steps.last, part, "")
        self.targets = []

    def _store_piece(self, steps: tuple[Step, ...], part: str, right: str) -> None:
        self._store_steps(steps, part, right)
        if self.at[RESULTS].released_late:
            self.writer.let(self.position.previous, self.position.buffer)
        self.follow(self.position, self.position, self.shared.results)

    def _store_steps(self, steps: tuple[Step, ...], part: str, right: str) -> None:
        """Lower steps at the ring of a part. right: what is added to the columns of the first piece."""
        ring, late = f"{part} * {self.shared.results} + ", not any(step.word == AWAIT for step in steps)
        position = RingPosition(
            buffer=ring + (self.position.previous if late else self.position.buffer),
            phase=self.position.phase,
            previous=ring + self.position.previous,
        )

        def store(step: Step) -> None:
            if self.values.addresses.stage.is_direct:
                return  # the consumers have stored it
            with ExitStack() as branch:
                if self.is_whole is not None:
                    branch.enter_context(self.writer.block(nodes.Branch(condition=self.is_whole)))
                self._store_box(step, position, part, right)

        def retire(step: Step) -> None:
            self.writer.call("roles.stored", FLYING=step.number)

        self.steps(steps, position, store=store, retire=retire)

    def _store_box(self, step: Step, position: RingPosition, part: str, right: str) -> None:
        """Start the store of a piece at one of the tile's positions."""
        names = [target_of(number, len(self.targets)) for number in range(len(self.targets))]
        one = self.targets[names.index(step.what)]
        where = f"{one.row} + {part} * {self.shared.rows}", f"{one.column}{right}"
        piece = f"result_ring.index({position.buffer})"
        if one.peer:
            self.writer.call(one.boxes, one.peer, *where, piece, *one.copies)
        else:
            self.writer.call("roles.store_part", one.boxes, *where, piece)
