"""Execution of a program for all ranks: every task runs until a wait blocks it, and goes on once that is satisfied."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NoReturn

import torch

from tilelink.errors import BindingError, CoverageError, ProgressError, TileLinkError
from tilelink.ir.depth import deep
from tilelink.ir.groups import check_groups
from tilelink.ir.parameters import Numbers, check_numbers
from tilelink.ir.program import For, If, Program, Statement, Store, Transfer
from tilelink.ir.typing import Typing, infer
from tilelink.reference.dtypes import named_dtype
from tilelink.reference.memory import WRITES, Memory, Need
from tilelink.reference.races import Seen
from tilelink.reference.scalars import extent
from tilelink.reference.walker import Task, Walker

LISTED = 8
"""Maximum number of blocked tasks that an error lists."""


class Outputs(dict[str, torch.Tensor]):
    """The outputs of a rank by their names.

    defined: the mask of the elements that are defined, for each output of which a launch decides how much is defined.
    Other elements are NaN, or -1 for integers, and are not compared with anything.
    kept: what the launch has left in the tensors that are kept between launches, by their names.
    added: how often an element was written at most, for each tensor that is added to in any order.
    """

    def __init__(
        self,
        tensors: Mapping[str, torch.Tensor],
        defined: Mapping[str, torch.Tensor],
        kept: Mapping[str, torch.Tensor] | None = None,
        added: Mapping[str, int] | None = None,
    ) -> None:
        super().__init__(tensors)
        self.defined = dict(defined)
        self.kept = dict(kept or {})
        self.added = dict(added or {})


@deep()
def run(
    program: Program,
    inputs: Sequence[Mapping[str, torch.Tensor]],
    dims: Numbers,
    *,
    ranks: int | None = None,
    dtype: str | torch.dtype = "f32",
    kept: Sequence[Mapping[str, torch.Tensor]] | None = None,
) -> list[Outputs]:
    """Run a program and return [rank][name]: the outputs of every rank.

    inputs: [rank][name], tensors and tables of the declared shapes, those of a group on its ranks alone.
    dims: the program's parameters.
    ranks: optional; must equal the number of inputs. dtype: of the tensors that declare none.
    kept: [rank][name], what the launch before has left (`outputs[rank].kept`); None, or a tensor that is left out,
    stands for zeros, as before the first launch.
    Arithmetic is in float64; stores round to the tensor's dtype. A read blocks until all its elements have been
    written once, whether or not the program orders it after the write. A read of a tensor that is written in place
    does not: it has what was there before, or what a write before it has left.

    Raises BindingError if an input or a parameter is missing or does not fit, or if an index tensor breaks a promise of
    its declaration. Raises CoverageError for a region or a lookup outside its tensor, for a read of elements that no
    task writes, and for a defined output element that is not written exactly once; PromiseError, one of these, for an
    entry that a stage stores in an index tensor beyond its bound, or against a promise. Raises OrderingError for an
    access to a tensor that is written in place, if no signal orders it and that of another task. Raises AccountingError
    for a wait without matching notifies, and for a signal that only a launch decides about, and ProgressError if all
    remaining tasks are blocked.
    """
    if ranks is not None and ranks != len(inputs):
        raise BindingError(f"inputs of {len(inputs)} ranks for {ranks} ranks", hint="one mapping for each rank")
    numbers = check_numbers(program.params, dims)
    check_groups(program, len(inputs), lambda expr: extent(expr, numbers, len(inputs)))
    typing = infer(program)
    memory = Memory(program=program, numbers=numbers, ranks=len(inputs), dtype=named_dtype(dtype))
    if kept is not None and len(kept) != len(inputs):
        raise BindingError(
            f"kept tensors of {len(kept)} ranks for {len(inputs)} ranks", hint="one mapping for each rank"
        )
    memory.fill(inputs, kept)
    _count(memory, typing)
    try:
        _go(memory, typing)
    except TileLinkError:
        memory.check_computed()  # of an entry that breaks a promise all else may be a consequence
        raise
    memory.check_computed()
    masks = [memory.defined(rank) for rank in range(memory.ranks)]
    memory.check_outputs(masks)
    outs = [t.name for t in program.tensors if t.is_result]
    stay = [t.name for t in program.tensors if t.space == "kept"]
    return [
        Outputs(
            {name: tensors[name] for name in outs if name in tensors},
            defined,
            {name: tensors[name] for name in stay if name in tensors},
            {
                t.name: int(memory.counters(memory.arrived, rank, t.name, WRITES).max(initial=0))
                for t in program.tensors
                if t.sums and t.name in tensors
            },
        )
        for rank, (tensors, defined) in enumerate(zip(memory.tensors, masks, strict=True))
    ]


def _walkers(memory: Memory, typing: Typing) -> Iterator[Walker]:
    """Yield a walker for each task of each rank."""
    for rank in range(memory.ranks):
        for stage in memory.program.stages:
            walker = Walker(memory=memory, stage=stage, typing=typing.stage(stage.name), rank=rank)
            yield from (replace(one, seen=Seen()) for one in walker.over(stage.indices))


def _count(memory: Memory, typing: Typing) -> None:
    """Count the notifies of each element in advance, and mark all elements that a task may write.

    A launch decides about no notify, and so about no wait. It may decide about writes, which are counted as they
    happen; those in parts and at places that it decides may be any within the dimension.
    """
    for walker in _walkers(memory, typing):
        walker.count(walker.stage.body)


def _go(memory: Memory, typing: Typing) -> None:
    """Run all tasks to their end, resuming blocked tasks in turn. Raises ProgressError if none can continue."""
    pending = [(walker, walker.task()) for walker in _walkers(memory, typing)]
    blocked = _advance(memory, pending)
    while blocked:
        ready = [(w, task) for w, task, need in blocked if memory.satisfied(need)]
        if not ready:
            _deadlock([(w, need) for w, _, need in blocked])
        waiting = [entry for entry in blocked if not memory.satisfied(entry[2])]
        blocked = waiting + _advance(memory, ready)


def _advance(memory: Memory, tasks: list[tuple[Walker, Task]]) -> list[tuple[Walker, Task, Need]]:
    """Run each task until it ends or blocks; return the blocked ones."""
    blocked: list[tuple[Walker, Task, Need]] = []
    for walker, task in tasks:
        need = next((need for need in task if not memory.satisfied(need)), None)
        if need is not None:
            blocked.append((walker, task, need))
    return blocked


def _deadlock(blocked: list[tuple[Walker, Need]]) -> NoReturn:
    left = {name for walker, _ in blocked for name in _written(walker.stage.body)}
    for walker, need in blocked:
        if need.kind == WRITES and need.tensor not in left:
            what = need.what.replace(", before it is written", ", parts of which no stage writes in this launch")
            hint = f"read as much of {need.tensor} as is written: by a range with the same end, or bounded entries"
            raise CoverageError(f"{walker} {what}", location=need.location, hint=hint)
    lines = [f"{w} {need.what}" for w, need in blocked]
    rest = [f"and {len(lines) - LISTED} more"] if len(lines) > LISTED else []
    message = "no task can go on:\n    " + "\n    ".join(lines[:LISTED] + rest)
    hint = "each waits for a notify or for data that another blocked task provides only later"
    raise ProgressError(message, location=blocked[0][1].location, hint=hint)


def _written(body: tuple[Statement, ...]) -> set[str]:
    """Return the tensors that a body writes."""
    names: set[str] = set()
    for statement in body:
        match statement:
            case Store(region=region) | Transfer(target=region):
                names.add(region.tensor)
            case If(then=then, orelse=orelse):
                names |= _written((*then, *orelse))
            case For(body=inner):
                names |= _written(inner)
            case _:
                pass
    return names
