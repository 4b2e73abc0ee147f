"""The network: how the stages of a program on several nodes reach ranks of other nodes.

Inside a node a rank reaches its peers by pointers. Between nodes it puts and gets (docs/verification.md has the rules
of the network): a put arrives late and in any order, and only a signal that is put with it follows its data. This pass
makes that visible, for each statement that may name a rank of another node:

before: tile_push_data(y[rank, i, :] @ p, x[i, :])
        producer_tile_notify(y[rank, i, :] @ p)
after:  if p // 2 != rank // 2:
            tile_put_data(y[rank, i, :] @ p, x[i, :], producer_tile_notify)
        else:
            tile_push_data(y[rank, i, :] @ p, x[i, :])
            producer_tile_notify(y[rank, i, :] @ p)

* A push and the notify after it are one put with a signal, if they have one region, which is contiguous in memory and
  has one counter. Otherwise there is a `network_fence()` before the notify, which then follows all earlier puts of its
  tile to that rank.
* A computed value, a region of another type, or one of a tensor that callers pass, is stored to memory of its own
  first, from which it is put: each tile and iteration has its own part, so that no part is written before its put has
  been completed. The network reads and writes memory that the runtime has allocated, no caller's.
* Of a tile that a launch has in part the part is put, and one that it has not sends its signal alone.
* A pull is a get. It is complete before the next statement. What callers pass gets it from such memory.
* A kernel that puts or signals ends with a wait until all that its programs sent has arrived (`quiet`). A rank
  announces the end of a launch after that, so that its peers, and its own next launch, may use all memory of this one
  again.

Values that read another node's memory directly stay as they are: the rule `network` refuses them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from tilelink.errors import ScheduleError
from tilelink.ir.program import (
    Assign,
    For,
    If,
    IndexDecl,
    Local,
    NetworkFence,
    Notify,
    Read,
    Region,
    Statement,
    Store,
    Tensor,
    Transfer,
    Value,
)
from tilelink.ir.scalar import RANK, Block, Compare, Index, Lookup, Scalar, Whole, binary, const, is_gather, walk
from tilelink.ir.visitor import stage_scalars, statements
from tilelink.lowering.bound import Bound, BoundStage, BoundTensor, Transport, with_bodies
from tilelink.lowering.enumerate import Enumerator
from tilelink.lowering.events import READ, WRITE, number_channels, number_tasks
from tilelink.lowering.messages import is_held, is_plain, one_message
from tilelink.lowering.transform import new_name


def choose_network(bound: Bound) -> Bound:
    """Return the bound program whose edges between nodes are carried by the network.

    Raises ScheduleError for a stage that reaches other nodes and cannot put.
    """
    if bound.nodes == 1:
        return bound
    carried = bound
    for name in bound.stages:
        carried = _carried(carried, name)
    quiet = {one.name: any(sends(carried.stages[name]) for name in one.stage_names) for one in carried.kernels}
    return replace(carried, kernels=tuple(replace(one, quiet=quiet[one.name]) for one in carried.kernels))


def reaches_other_nodes(bound: Bound, stage: BoundStage) -> bool:
    """True if a stage moves data or signals between nodes, or may, by a table that is not known yet."""
    return bound.nodes > 1 and any(edge.remote for edge in _edges(bound, stage))


def sends(stage: BoundStage) -> bool:
    """True if a stage, after this pass, puts or signals by the network."""
    every = statements(stage.stage.body)
    return any(s.mode == "put" if isinstance(s, Transfer) else isinstance(s, Notify) and s.by_network for s in every)


def _carried(bound: Bound, name: str) -> Bound:
    """Return the bound program in which the network carries the edges of one stage."""
    stage = bound.stages[name]
    edges = _edges(bound, stage)
    if not any(edge.remote for edge in edges):
        return bound
    if bound.kernel_of[name].on_copy_engine:
        part = bound.schedule.stage(name)
        hint = "put the stage on SMs of its own, `on sm(1)`, or let it copy within the node alone"
        message = f"{name} is on the copy engine and moves data or signals to other nodes"
        raise ScheduleError(message, location=part.at("resource") or stage.stage.location, hint=hint)
    carrying = _Carrying(bound=bound, stage=stage, edges=edges)
    body = carrying.body(stage.stage.body, ())
    # A tile's puts begin when its program issues them: its loop has no pipeline across tiles.
    plain = replace(stage, flatten=False, tma_copy=None, transport=Transport.STORES)
    return with_bodies(replace(carrying.bound, stages={**bound.stages, name: plain}), {name: body})


@dataclass(frozen=True, kw_only=True)
class _Edge:
    """The executions of a statement that name a peer. remote, local: True if some are on another node, or on this one.

    one_counter: True if each execution of a notify has one counter.
    """

    remote: bool = False
    local: bool = True
    one_counter: bool = False


def _edges(bound: Bound, stage: BoundStage) -> list[_Edge]:
    """Return the edges of a stage's statements, in the order in which `statements` yields them."""
    every = list(statements(stage.stage.body))
    if any(isinstance(part, Lookup) and not part.launch for expr in stage_scalars(stage.stage) for part in walk(expr)):
        return [_Edge(remote=_names_peer(s)) for s in every]  # tables are not known yet: peers may be anywhere
    first_task, _ = number_tasks(bound)
    walker = Enumerator(bound, first_task, number_channels(bound)[0], {})
    walker.stage(stage)
    a, s = walker.accesses(), walker.signals()
    ranks = np.repeat(np.arange(bound.ranks), stage.total)
    found: list[_Edge] = []
    for number, statement in enumerate(every):
        notifies = np.flatnonzero(s.statement == number)
        if isinstance(statement, Notify):
            task, peer = s.task[notifies], s.peer[notifies]
        else:
            rows = np.flatnonzero((a.statement == number) & (a.kind == _moved(statement)))
            task, peer = a.task[rows], a.peer[rows]
        away = bound.node_of(ranks[task - first_task[stage.name]]) != bound.node_of(peer)
        executions = np.stack([s.task[notifies], s.position[notifies]], axis=1)
        once = len(np.unique(executions, axis=0)) == len(notifies)
        found.append(_Edge(remote=bool(away.any()), local=not away.all(), one_counter=once))
    return found


def _moved(statement: Statement) -> int:
    """Return the kind of the accesses with which a statement reaches a peer; -1 if it does not, or by other values."""
    match statement:
        case Transfer(target=target, source=source):
            return WRITE if target.rank is not None or not isinstance(source, Read) else READ
        case Store(value=Read(), adds=False):
            return READ
        case _:
            return -1


def _names_peer(statement: Statement) -> bool:
    match statement:
        case Transfer(target=target, source=source):
            return target.rank is not None or (isinstance(source, Read) and source.region.rank is not None)
        case Store(value=Read(region=region), adds=False) | Notify(region=region):
            return region.rank is not None
        case _:
            return False


@dataclass(kw_only=True)
class _Carrying:
    """Rewrites the body of a stage. bound: with the memory from which computed values are put."""

    bound: Bound
    stage: BoundStage
    edges: list[_Edge]
    number: int = 0
    pending: bool = False
    """True if a tile may have put something that no fence has followed."""
    names: set[str] = field(default_factory=set[str])

    def body(self, body: tuple[Statement, ...], around: tuple[IndexDecl, ...]) -> tuple[Statement, ...]:
        done: list[Statement] = []
        at = 0
        while at < len(body):
            follower = body[at + 1] if at + 1 < len(body) else None
            new, taken = self._statement(body[at], follower, around)
            done += new
            at += taken
        return tuple(done)

    def _edge(self, ahead: int = 0) -> _Edge:
        return self.edges[self.number + ahead]

    def _statement(
        self, statement: Statement, follower: Statement | None, around: tuple[IndexDecl, ...]
    ) -> tuple[list[Statement], int]:
        """Return what a statement becomes, and how many statements of its block that replaces."""
        edge = self._edge()
        match statement:
            case If(then=then, orelse=orelse):
                self.number += 1
                before = self.pending
                then = self.body(then, around)
                after, self.pending = self.pending, before
                orelse = self.body(orelse, around)
                self.pending |= after
                return [replace(statement, then=then, orelse=orelse)], 1
            case For(indices=indices, body=body):
                return self._loop(statement, (*around, *indices), body), 1
            case Transfer() if edge.remote:
                return self._move(statement, follower, around)
            case Store(region=region, value=Read(region=source) as value, adds=False) if (
                edge.remote and source.rank is not None
            ):
                get = Transfer(mode="get", target=region, source=value, location=statement.location)
                far = self._get(get, around)
                self.number += 1
                return self._chosen(source.rank, edge, far, (statement,)), 1
            case Notify(region=region) if edge.remote and region.rank is not None:
                self.number += 1
                fence, self.pending = self.pending, False
                signal = replace(statement, by_network=True)
                new = (*_fences(fence, statement), signal)
                if fence and edge.local:  # only one branch has the fence
                    self.pending = True
                return self._chosen(region.rank, edge, new, (statement,)), 1
            case _:
                self.number += 1
                return [statement], 1

    def _loop(self, loop: For, around: tuple[IndexDecl, ...], body: tuple[Statement, ...]) -> list[Statement]:
        self.number += 1
        inside = [self._edge(n) for n, _ in enumerate(statements(body))]
        every = list(statements(body))
        puts = any(e.remote and _pushes(s) for s, e in zip(every, inside, strict=True))
        signals = any(e.remote and isinstance(s, Notify) for s, e in zip(every, inside, strict=True))
        before: list[Statement] = []
        if self.pending and signals and not puts:  # one fence before all iterations
            before, self.pending = [NetworkFence(location=loop.location)], False
        self.pending |= puts  # of an earlier iteration
        return [*before, replace(loop, body=self.body(body, around))]

    def _chosen(
        self, rank: Scalar, edge: _Edge, far: tuple[Statement, ...], near: tuple[Statement, ...]
    ) -> list[Statement]:
        """Return the statements for peers of other nodes, and for those of the own one if there are any."""
        if not edge.local:
            return list(far)
        size = const(self.bound.ranks_per_node)
        condition = Compare(op="!=", left=binary("//", rank, size), right=binary("//", RANK, size))
        return [If(condition=condition, then=far, orelse=near, location=near[0].location)]

    # Moves ---------------------------------------------------------------------------------------------------

    def _move(
        self, move: Transfer, follower: Statement | None, around: tuple[IndexDecl, ...]
    ) -> tuple[list[Statement], int]:
        edge = self._edge()
        source = move.source.region if isinstance(move.source, Read) else None
        if move.target.rank is None:  # a pull
            far = self._get(replace(move, mode="get"), around)
            self.number += 1
            if source is None or source.rank is None:
                return [move], 1
            return self._chosen(source.rank, edge, far, (move,)), 1
        if source is not None and source.rank is not None:  # between two other ranks
            self.number += 1
            return [move], 1
        first, far, near = self._put(move, edge, around)
        put = far[-1]
        assert isinstance(put, Transfer)
        notifies = isinstance(follower, Notify) and follower.region == move.target and self._edge(1).remote
        if not notifies:
            self.number += 1
            self.pending = True
            return [*first, *self._chosen(move.target.rank, edge, far, near)], 1
        assert isinstance(follower, Notify)
        alone = self._edge(1).one_counter and one_message(self.bound, self.stage, put)
        self.number += 2
        signal = replace(follower, by_network=True)
        if alone:
            far = (*far[:-1], replace(put, signal=follower.kind))
        else:
            far = (*far, NetworkFence(location=follower.location), signal)
        self.pending = True
        return [*first, *self._chosen(move.target.rank, edge, far, (*near, follower))], 2

    def _put(
        self, move: Transfer, edge: _Edge, around: tuple[IndexDecl, ...]
    ) -> tuple[list[Statement], tuple[Statement, ...], tuple[Statement, ...]]:
        """Return (what comes first, the put with what it needs, the push) of a push."""
        if is_plain(self.bound, self.stage, move) and is_held(self.bound, _own(move)):
            return [], (replace(move, mode="put"),), (move,)
        region = self._memory(move, around, "sent")
        if region is None:
            return [], (replace(move, mode="put"),), (move,)  # the rule `network` refuses it
        put = replace(move, mode="put", source=Read(region=region))
        if not edge.local:
            return [], (Store(region=region, value=move.source, location=move.location), put), (move,)
        first: list[Statement] = []
        value: Value = move.source
        if not isinstance(value, Local | Read):
            name = new_name(self.bound, self.stage, "value", self.names)
            first = [Assign(name=name, value=value, location=move.location)]
            value = Local(name=name, location=move.location)
        kept = Store(region=region, value=value, location=move.location)
        return first, (kept, put), (replace(move, source=value),)

    def _get(self, get: Transfer, around: tuple[IndexDecl, ...]) -> tuple[Statement, ...]:
        """Return a get, by memory of its own if a caller passes its target."""
        if not is_plain(self.bound, self.stage, get) or is_held(self.bound, get.target):
            return (get,)  # what is not plain, the rule `network` refuses
        region = self._memory(get, around, "got")
        if region is None:
            return (get,)
        kept = Store(region=get.target, value=Read(region=region), location=get.location)
        return replace(get, target=region), kept

    def _memory(self, move: Transfer, around: tuple[IndexDecl, ...], what: str) -> Region | None:
        """Return a region of new memory for a value, another one for each tile and iteration; None if there is none.

        It has a dimension for each index that is a number, and those of the target's axes.
        """
        decls = {d.name: d for d in (*self.stage.stage.indices, *around)}
        numbers = [d for d in decls.values() if d.name in self.stage.scalar_indices]
        target = self.bound.tensors[move.target.tensor]
        spans = self.bound.tile_map(self.stage.name, move.target).spans
        coords: list[Scalar | Whole] = [Index(name=d.name) for d in numbers]
        shape: list[Scalar] = [d.extent for d in numbers]
        sizes = [self.stage.extents[d.name] for d in numbers]
        used = {d.name for d in numbers}
        for span, dim, coord in zip(spans, target.decl.shape, move.target.coords, strict=True):
            if span.kind == "point":
                continue
            if isinstance(coord, Block):
                coords.append(Whole())
                shape.append(coord.size)
                sizes.append(span.size)
            elif span.kind == "whole":
                coords.append(coord)
                shape.append(dim)
                sizes.append(span.size)
            elif span.kind == "tile" and span.index is not None and span.index not in used:
                used.add(span.index)
                coords.append(Index(name=span.index))
                shape.append(decls[span.index].extent)
                sizes.append(self.stage.extents[span.index])
            else:
                return None
        if used != decls.keys() or is_gather(coords[-1] if coords else None):
            return None
        name = new_name(self.bound, self.stage, f"{self.stage.name}_{what}", self.names)
        # Of entries of an index tensor the memory is one too, so that what they are equal to is known.
        bound = None if target.decl.bound is None else const(self.bound.entries[target.name][1] + 1)
        decl = Tensor(
            name=name, space="local", shape=tuple(shape), dtype=target.decl.dtype, bound=bound, location=move.location
        )
        number = len(self.bound.tensors)
        memory = BoundTensor(decl=decl, number=number, shape=tuple(sizes), dtype=target.dtype, buffers=1)
        program = replace(self.bound.program, tensors=(*self.bound.program.tensors, decl))
        self.bound = replace(self.bound, program=program, tensors={**self.bound.tensors, name: memory})
        return Region(tensor=name, coords=tuple(coords), location=move.target.location)


def _own(put: Transfer) -> Region:
    assert isinstance(put.source, Read)
    return put.source.region


def _pushes(statement: Statement) -> bool:
    return isinstance(statement, Transfer) and statement.target.rank is not None


def _fences(needed: bool, statement: Statement) -> Iterator[Statement]:
    if needed:
        yield NetworkFence(location=statement.location)
