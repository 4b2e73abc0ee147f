"""Statements: the text of what a small program (cutoff.py) proves. Programs with one statement have one proof.

The rules are asked of the small program, and are functions of it. So a program of other sizes, with the same small one,
has their answer, if all else that the proof of a whole program is made of is alike, or is asked of it anew
(verifier/cutoff.py). A statement has

* the small program as it is printed, without what its plan does not depend on: places of counters in a pad, numbers of
  programs on SMs, of which each tile has one of its own, and those of kernels that pass over tiles, which are asked of
  the whole program;
* no masks of roles, which are asked of the whole program, and no numbers that values of elements are made of, unless a
  stage computes entries, or places: cutoff.py does not look at indices in them either;
* the sizes that are more than extents, as `M` where entries are below M: extents of tensors and indices are those of
  the small program, and printed as numbers;
* the order of its tiles, number by number, as orders are spelled with the numbers of the whole program;
* what is taken from the whole one: which indices are repetitions, over which segments and compared with which entries,
  whose tiles a launch leaves out, and how the tiles of a kernel come in rounds and in turn.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace

import numpy as np

from tilelink.ir.program import FromScalar, IndexDecl, Statement, Tensor, Value
from tilelink.ir.scalar import Env, Param, const, evaluate
from tilelink.ir.visitor import map_values
from tilelink.lowering.bound import Bound, BoundStage, Kernel, with_bodies, with_channels
from tilelink.lowering.listing import listing
from tilelink.lowering.orders import TILE
from tilelink.lowering.places import partial
from tilelink.planning.cutoff import Cutoff
from tilelink.planning.few_ranks import names_places, writes_entries


def statement(part: Cutoff) -> str:
    """Return what is proved of a whole program by its small one, in words that other sizes of it have, too."""
    small = part.small
    named = {name for one in (*small.program.tensors, *small.program.stages) for name in _sizes(one)}
    valued = with_bodies(small, {name: _body(small, stage) for name, stage in small.stages.items()})
    printed = replace(
        with_channels(valued, small.channels),
        numbers={name: value for name, value in small.numbers.items() if name in named},
        stages={name: replace(stage, order={}, masks=()) for name, stage in valued.stages.items()},
        kernels=tuple(map(_kernel, small.kernels)),
    )
    return listing(printed) + "".join(f"\n{line}" for line in (*_of_tiles(part), *_of_whole(part)))


def _sizes(node: object) -> Iterator[str]:
    """Yield the sizes that a part of a program names elsewhere than as extents."""
    match node:
        case Param(name=name):
            yield name
        case tuple():
            yield from (name for one in node for name in _sizes(one))
        case _ if is_dataclass(node):
            extents = "shape" if isinstance(node, Tensor) else "extent" if isinstance(node, IndexDecl) else ""
            left = (getattr(node, one.name) for one in fields(node) if one.name not in ("location", extents))
            yield from (name for one in left for name in _sizes(one))
        case _:
            pass


def _body(small: Bound, stage: BoundStage) -> tuple[Statement, ...]:
    """Return the statements of a stage without the numbers that nothing but values of elements is made of."""
    if names_places(small, stage) or any(writes_entries(small, one) for one in small.stages.values()):
        return stage.stage.body
    plain = FromScalar(scalar=const(0))

    def without(value: Value) -> Value | None:
        return plain if isinstance(value, FromScalar) and not [*partial((value.scalar,))] else None

    return map_values(stage.stage.body, without)


def _kernel(kernel: Kernel) -> Kernel:
    """Return a kernel without the numbers that the plan of a small program does not depend on."""
    loops = tuple(replace(loop, first=0, begin=0, width=None, compact=None) for loop in kernel.loops)
    return replace(kernel, loops=loops, programs=kernel.programs if kernel.on_copy_engine else 1)


def _of_tiles(part: Cutoff) -> Iterator[str]:
    """Yield where the tiles of each stage are, and how many first ones stand for all."""
    small, several = part.small, part.small.ranks if part.rotation is None else 1
    for stage in small.stages.values():
        ranks, numbers = np.arange(several)[:, None], np.arange(stage.total)
        env = Env(rank=ranks, ranks=small.ranks, params={}, indices={TILE.name: numbers})
        found = hashlib.sha256()
        for index, order in stage.order.items():
            column = np.broadcast_to(np.asarray(evaluate(order, env), np.int64), (several, stage.total))
            found.update(f"{index} {column.shape}\n".encode() + column.tobytes())
        yield f"tiles of {stage.name}: {found.hexdigest()}, first {sorted(stage.cutoff.items())}"


def _of_whole(part: Cutoff) -> Iterator[str]:
    """Yield what of the whole program its proof by the small one is made of."""
    for one in part.repetitions:
        over = one.segments
        names = () if over is None else (over.starts, sorted(over.indices), sorted(over.rows), sorted(over.entries))
        members = sorted(map(str, one.sizes))
        yield f"alike: {members}, {one.kept} kept, {one.parts[1]} parts, {names}, {sorted(one.compared)}"
    if part.ranks is not None:
        yield part.ranks.statement
    if part.rotation is not None:
        yield part.rotation.statement
    yield f"left out: {sorted(part.whole.compact_stages)}"
    for kernel in part.whole.kernels:
        for loop in kernel.loops:
            totals = [(part.whole.stages[name].total, part.small.stages[name].total) for name in loop.stages]
            equal = len({whole for whole, _ in totals}) == 1, all(whole == few for whole, few in totals)
            turns = part.ranks is None and all(part.digits(name) == part.digits(loop.stages[0]) for name in loop.stages)
            yield f"{kernel.name}: {[part.rounds(name) for name in loop.stages]} rounds, {equal}, {turns}"
