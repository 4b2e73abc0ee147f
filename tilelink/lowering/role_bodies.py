"""The bodies of roles: what each role of a stage executes of a tile, in its order.

The emitter lowers these bodies, the listing says beside a signal which of them it is in, and rules and passes ask them
for what a role loads, reads, waits for and stores. The steps at rings between their statements are those of the lowered
program (lowering/rings.py).

    wait(xs[s, i, :])                    loader:    wait(xs[s, i, :]); acc = dot(..); wait(r[i, j]); LoadTiles(r[i, j])
    acc = dot(xs[s, i, :], w[j, :].T)    consumers: acc = dot(..); y[i, j] = acc + r[i, j]
    wait(r[i, j])                        storer:    y[i, j] = ..; notify(y[i, j])
    y[i, j] = acc + r[i, j]
    notify(y[i, j])

Of a statement that multiplies, or a loop that stands for a product, the loader executes the waits and loads the
operands, and consumers multiply. Without LoadTiles the last wait is the consumers', which then read r from memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tilelink.ir.products import products_of
from tilelink.ir.program import For, Notify, Read, Region, Statement, Store, Transfer, Wait
from tilelink.ir.visitor import value_of
from tilelink.lowering.bound import Bound, BoundStage
from tilelink.lowering.iterations import loop_of
from tilelink.lowering.rings import CONSUMER, LOADER, OPERANDS, OTHERS, STORER, Role
from tilelink.lowering.role_statements import addends, late_waits, tile_addends
from tilelink.lowering.straight_epilogue import is_zero


@dataclass(frozen=True, kw_only=True)
class LoadTiles:
    """Loads of the tiles that consumers compute with next to a product, piece by piece, into the ring of operands."""

    regions: tuple[Region, ...]


Executed = Statement | LoadTiles
RoleBody = tuple[Executed, ...]


def role_bodies(bound: Bound, stage: BoundStage) -> Mapping[str, RoleBody]:
    """Return role -> its body, of a stage whose warps have roles."""
    body = stage.stage.body
    waits, notifies = (tuple(s for s in body if isinstance(s, kind)) for kind in (Wait, Notify))
    if stage.has_loop:
        consumer = tuple(s for s in body if not isinstance(s, Wait | Notify))
        loops = tuple(s for s in consumer if isinstance(s, For))
        return {LOADER: (*waits, *loops), CONSUMER: consumer, STORER: (*loop_of(stage).results, *notifies)}
    loads, late = tuple[LoadTiles, ...](), late_waits(stage)
    if (ring := stage.rings.get(OPERANDS)) is not None and ring.writer.further:
        loads, late = (LoadTiles(regions=tuple(tile_addends(bound, stage))),), ()
    computed = [s for s in body if not isinstance(s, Wait | Notify) and not is_zero(s)]
    multiplied = [s for s in computed if isinstance(s, For) or products_of(value_of(s))]
    stores = [s for s in computed if isinstance(s, Store | Transfer)]
    loading = (s for s in body if any(s is one for one in (*waits, *multiplied)) and not any(s is one for one in late))
    computed = computed[: len(computed) - len(stores) + 1]  # all stores are of the same result
    first = int(bool(multiplied))
    return {
        LOADER: (*loading, *loads),
        CONSUMER: (*computed[:first], *late, *computed[first:]),
        STORER: (*stores, *notifies),
    }


def steps_of(stage: BoundStage, role: str) -> Mapping[str, Role]:
    """Return ring -> what a role of a stage does at it, for the rings that it has steps at."""
    found = {name: ring.writer if ring.writer.name == role else ring.reader for name, ring in stage.rings.items()}
    return {name: one for name, one in found.items() if one.name in (role, OTHERS)}


def role_of(bound: Bound, stage: BoundStage, signal: Wait | Notify) -> str:
    """Return the role that executes a wait or a notify."""
    bodies = role_bodies(bound, stage)
    own = (role for role in (CONSUMER, STORER) if any(signal is one for one in bodies[role]))
    return next(own, LOADER)  # also the waits of loops


def consumer_waits(bound: Bound, stage: BoundStage) -> tuple[Wait, ...]:
    """Return the waits that consumers execute."""
    return tuple(s for s in role_bodies(bound, stage)[CONSUMER] if isinstance(s, Wait))


def loaded_tiles(bound: Bound, stage: BoundStage) -> list[Region]:
    """Return the tiles that the loader loads after the operands, in the order of the pieces of each."""
    return [one for s in role_bodies(bound, stage)[LOADER] if isinstance(s, LoadTiles) for one in s.regions]


def read_by_consumers(bound: Bound, stage: BoundStage) -> list[Read]:
    """Return the regions that consumers read from memory next to the product."""
    loaded = loaded_tiles(bound, stage)
    return [one for one in addends(stage) if one.region not in loaded]
