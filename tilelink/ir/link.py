"""`link`: insert the notifies and waits that the data dependences of a program need.

If one stage writes a region and another reads it, the writer signals right after the write (producer_tile_notify) and
the reader waits right before the read (consumer_tile_wait). A stage that reads data written by another tile of the same
stage, on any rank, uses the peer_* pair. Entries of index tensors are read where they serve as coordinates, ranks,
conditions or ends of ranges; a stage waits for the ends of its own ranges first. A region that a tile reads again is
awaited once, unless the first read is in a branch or a loop. Signals of a branch that a launch decides stand before and
after it, because they are made in every launch. Existing notifies and waits are kept. A tensor that is written in place
gets them if the stages that write it stand before those that read it. Otherwise the program says which reads come
before which writes. A read from another rank gets no wait, and the notify of such a tensor's writer is for its own
rank: the program says which peers the writer notifies.

`implied` is the part of this that front ends do: a program may leave out the signals of a tensor altogether. What it
returns is checked, planned and proved as if the program had written it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace

from tilelink.errors import Location, public
from tilelink.ir.depth import deep
from tilelink.ir.program import (
    Barrier,
    For,
    If,
    Notify,
    Program,
    Region,
    Stage,
    Statement,
    Store,
    Transfer,
    Wait,
    require_program,
)
from tilelink.ir.scalar import RANK, Lookup, Scalar, Whole, at_launch, indices_in, walk
from tilelink.ir.visitor import (
    all_indices,
    on_ranks,
    range_ends,
    reads,
    scalars_of,
    statements,
    value_of,
    with_body_on_ranks,
)


@public
@deep()
def link(program: Program) -> Program:
    """Return the program with its missing signals inserted; linking a linked program changes nothing."""
    require_program(program)
    return _linked(program, signal_kinds(program))


@deep()
def implied(program: Program) -> Program:
    """Return the program with the signals of each tensor that it leaves to be derived.

    That is a tensor which no signal names, and for which no other signals lead from the stages that write it to those
    that read it, as those of a tile do for its scales. Left as they are written: tensors that are changed in place,
    where the order of a write and a read is the meaning of the program; those that peers read, where a notify has to
    be at the ranks that read; and those of one stage on one rank, of which a tile may read what it has written itself.
    """
    everything = [s for stage in program.stages for s in statements(stage.body)]
    named = {s.region.tensor for s in everything if isinstance(s, Notify | Wait)}
    read_away, sent = (
        {r.tensor for stage in program.stages for r in _regions(stage, find) if r.rank not in (None, RANK)}
        for find in (_read, _written)
    )
    kinds = {
        name: kind
        for name, kind in signal_kinds(program).items()
        if name not in named | read_away and (kind == "tile" or name in sent)
        if not program.tensor(name).in_place and not _ordered(program, name)
    }
    return _linked(program, kinds) if kinds else program


def _linked(program: Program, kinds: dict[str, str]) -> Program:
    """Return the program with the missing signals of some tensors. kinds: tensor -> kind of its signals."""
    stages: list[Stage] = []
    for stage in program.stages:
        present = _signalled(stage)
        moved = frozenset(decl.name for decl in all_indices(stage) if decl.start is not None)
        wanted = _Wanted(kinds=kinds, moved=moved)
        ends = _waits_for(_ends(stage), stage.location, wanted, present)
        known = present | {(Wait, one.region) for one in ends}
        body = (*ends, *_link_body(on_ranks(stage)[1], wanted, known))
        stages.append(with_body_on_ranks(stage, body))
    return replace(program, stages=tuple(stages))


def strip(program: Program) -> Program:
    """Return the program without notifies and waits: the input of `link`."""
    return replace(program, stages=tuple(replace(s, body=_without_signals(s.body)) for s in program.stages))


def signal_kinds(program: Program) -> dict[str, str]:
    """Return tensor -> "tile" or "peer" for each tensor that carries data from one task to another."""
    kinds: dict[str, str] = {}
    for tensor in program.tensors:
        if tensor.space == "in" or tensor.known_early:
            continue
        writers = _stages_with(program, tensor.name, _written)
        readers = _stages_with(program, tensor.name, _read)
        if not writers:
            continue
        if tensor.in_place and not _all_before(program, writers, readers):
            continue
        readers |= {s.name for s in program.stages if any(r.tensor == tensor.name for r in _ends(s))}
        written = [r for s in program.stages for r in _regions(s, _written) if r.tensor == tensor.name]
        remote = any(r.rank is not None for r in written)
        read = [r for s in program.stages for r in _regions(s, _read) if r.tensor == tensor.name]
        passed_on = not {r.coords for r in read} <= {r.coords for r in written}
        if readers and len(writers | readers) > 1:
            kinds[tensor.name] = "tile"
        elif readers and (remote or passed_on):
            kinds[tensor.name] = "peer"
        elif remote:
            kinds[tensor.name] = "tile"
    return kinds


def _all_before(program: Program, writers: set[str], readers: set[str]) -> bool:
    """True if all stages that write a tensor stand before all that read it, so that these read what is written."""
    places = {stage.name: number for number, stage in enumerate(program.stages)}
    return max((places[name] for name in writers), default=-1) < min((places[name] for name in readers), default=-1)


Finder = Callable[[Statement], list[Region]]


def _ordered(program: Program, tensor: str) -> bool:
    """True if signals of other tensors lead from each write of a tensor to each read of it by another stage, or back.

    These may be too few: that is for the rules to say, of the program as it is written.
    """
    uses = [(_uses(stage, tensor, _written), _uses(stage, tensor, _read), stage) for stage in program.stages]
    pairs = [
        _leads(program, writer, writes, reader, reads) or _leads(program, reader, reads, writer, writes)
        for writes, _, writer in uses
        for _, reads, reader in uses
        if writes and reads and writer != reader
    ]
    return bool(pairs) and all(pairs)


def _uses(stage: Stage, tensor: str, find: Finder) -> list[int]:
    """Return the places of a stage's statements, in their order, that write a tensor, or that read it."""
    body = [Barrier(), *statements(stage.body)]  # the ends of the stage's own ranges are read at the first place
    found = [n for n, one in enumerate(body) if any(region.tensor == tensor for region in find(one))]
    return [0] * (find is _read and any(r.tensor == tensor for r in _ends(stage))) + found


def _leads(program: Program, first: Stage, before: list[int], second: Stage, after: list[int]) -> bool:
    """True if a signal given after some places of a stage, or one that follows from it, is awaited before others."""
    given = _counters([*statements(first.body)][before[-1] :], Notify)
    awaited = _counters([*statements(second.body)][: after[0] - 1 if after[0] else None], Wait)
    last: set[Counter] = set()
    while given != last:
        last = set(given)
        for stage in program.stages:
            if given & _counters(statements(stage.body), Wait):
                given |= _counters(statements(stage.body), Notify)
    return bool(given & awaited)


Counter = tuple[str, str]
"""A tensor, and a kind of its signals."""


def _counters(found: Iterable[Statement], kind: type[Notify] | type[Wait]) -> set[Counter]:
    return {(s.region.tensor, s.kind) for s in found if isinstance(s, kind)}


def _regions(stage: Stage, find: Finder) -> list[Region]:
    return [region for statement in statements(stage.body) for region in find(statement)]


def _stages_with(program: Program, tensor: str, find: Finder) -> set[str]:
    return {s.name for s in program.stages if any(r.tensor == tensor for r in _regions(s, find))}


def _written(statement: Statement) -> list[Region]:
    match statement:
        case Store(region=region):
            return [region]
        case Transfer(target=target):
            return [target]
        case _:
            return []


def _read(statement: Statement) -> list[Region]:
    value = value_of(statement)
    return [*_entries(_own_scalars(statement)), *(reads(value) if value is not None else [])]


def _own_scalars(statement: Statement) -> Iterable[Scalar]:
    """Return the integer expressions of a statement, without those of statements inside it, and of signals."""
    match statement:
        case If(condition=condition):
            return (condition,)
        case For(indices=indices):
            return range_ends(indices)
        case Wait() | Notify():
            return ()
        case _:
            return scalars_of(statement)


def _entries(exprs: Iterable[Scalar]) -> list[Region]:
    """Return the entries of index tensors that expressions read, those in coordinates of others before them."""
    looked_up = [e for expr in exprs for e in reversed(walk(expr)) if isinstance(e, Lookup) and e.launch]
    return [Region(tensor=e.table, coords=e.coords, location=e.location) for e in dict.fromkeys(looked_up)]


def _ends(stage: Stage) -> list[Region]:
    return _entries(range_ends(stage.indices))


def _signalled(stage: Stage) -> set[tuple[type[Statement], Region]]:
    """The signals that a stage already has."""
    return {(type(s), s.region) for s in statements(stage.body) if isinstance(s, Notify | Wait)}


@dataclass(frozen=True, kw_only=True)
class _Wanted:
    """The signals that a stage is to have. kinds: tensor -> kind of its signals.

    moved: the indices whose tiles begin where a launch decides, so that their notifies are of whole dimensions.
    """

    kinds: dict[str, str]
    moved: frozenset[str]


def _link_body(
    body: tuple[Statement, ...], wanted: _Wanted, present: set[tuple[type[Statement], Region]]
) -> tuple[Statement, ...]:
    linked: list[Statement] = []
    for statement in body:
        present = present | {(Wait, one.region) for one in linked if isinstance(one, Wait)}
        match statement:
            case If(condition=condition, then=then, orelse=orelse) if at_launch(condition):
                linked += _waits(statement, wanted, present)
                linked += _taken_out((*then, *orelse), _waits, wanted, present)
                linked.append(statement)
                linked += _taken_out((*then, *orelse), _notifies, wanted, present)
            case If(then=then, orelse=orelse):
                linked += _waits(statement, wanted, present)
                then = _link_body(then, wanted, present)
                linked.append(replace(statement, then=then, orelse=_link_body(orelse, wanted, present)))
            case For(body=inner):
                linked += _waits(statement, wanted, present)
                linked.append(replace(statement, body=_link_body(inner, wanted, present)))
            case _:
                linked += _waits(statement, wanted, present)
                linked.append(statement)
                linked += _notifies(statement, wanted, present)
    return tuple(linked)


def _taken_out(
    body: tuple[Statement, ...],
    found: Callable[[Statement, _Wanted, set[tuple[type[Statement], Region]]], Iterable[Wait | Notify]],
    wanted: _Wanted,
    present: set[tuple[type[Statement], Region]],
) -> list[Statement]:
    """Return the signals of the statements in a branch that a launch decides, for outside of it: each once.

    Signals are made in every launch. Those in a loop of the branch are for all that its iterations name.
    """
    inside = [*statements(body)]
    loops = {decl.name for one in inside if isinstance(one, For) for decl in one.indices}
    every = (signal for one in inside for signal in found(one, wanted, present))
    wide = [replace(one, region=_of_all_iterations(one.region, loops)) for one in every]
    return [*dict.fromkeys(one for one in wide if (type(one), one.region) not in present)]


def _of_all_iterations(region: Region, loops: Collection[str]) -> Region:
    """Return a region with whole dimensions where coordinates depend on loops."""
    coords = (Whole() if indices_in(c) & {*loops} else c for c in region.coords)
    return replace(region, coords=tuple(coords))


def _waits(statement: Statement, wanted: _Wanted, present: set[tuple[type[Statement], Region]]) -> list[Wait]:
    return _waits_for(_read(statement), statement.location, wanted, present)


def _waits_for(
    regions: Iterable[Region],
    location: Location | None,
    wanted: _Wanted,
    present: set[tuple[type[Statement], Region]],
) -> list[Wait]:
    local = dict.fromkeys(r for r in regions if r.rank in (None, RANK) and r.tensor in wanted.kinds)
    return [Wait(kind=wanted.kinds[r.tensor], region=r, location=location) for r in local if (Wait, r) not in present]


def _notifies(statement: Statement, wanted: _Wanted, present: set[tuple[type[Statement], Region]]) -> list[Notify]:
    written = (_of_all_iterations(_of_all_places(region), wanted.moved) for region in _written(statement))
    return [
        Notify(kind=wanted.kinds[r.tensor], region=r, location=statement.location)
        for r in written
        if r.tensor in wanted.kinds and (Notify, r) not in present
    ]


def _of_all_places(region: Region) -> Region:
    """Return a region with whole dimensions where a launch decides the place: no launch decides where a notify is."""
    coords = (Whole() if isinstance(c, Scalar) and at_launch(c) else c for c in region.coords)
    return replace(region, coords=tuple(coords))


def _without_signals(body: tuple[Statement, ...]) -> tuple[Statement, ...]:
    kept: list[Statement] = []
    for statement in body:
        match statement:
            case Notify() | Wait():
                continue
            case If(then=then, orelse=orelse):
                kept.append(replace(statement, then=_without_signals(then), orelse=_without_signals(orelse)))
            case For(body=inner):
                kept.append(replace(statement, body=_without_signals(inner)))
            case _:
                kept.append(statement)
    return tuple(kept)
