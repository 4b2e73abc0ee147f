"""Samples of the integers that launches decide: index tensors drawn by a routing, or recorded ones.

A simulation needs their values: a copy of rows to experts takes as long as the rows that there are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilelink.errors import BindingError, ShapeError
from tilelink.ir.parameters import Numbers
from tilelink.ir.program import Program, Tensor
from tilelink.ir.scalar import Env, Int, Lookup, Scalar, evaluate, rewrite
from tilelink.lowering.guards import Guards
from tilelink.planning.plan import Plan
from tilelink.simulator.sampled import launch_tensors

Ints = NDArray[np.int64]
Routing = str | Path | Mapping[str, Any]
"""A kind of routing such as `zipf:1.2`, a file of recorded index tensors, or these tensors."""
DRAWS = 3
RECORDED = (".npz", ".pt")
FILES = "one tensor of integers per index tensor, [ranks, *shape], or [launches, ranks, *shape] for several launches"


def index_tensors(program: Program, *, given: bool) -> list[Tensor]:
    """Return the index tensors that are given with a launch, or those that a launch tells or computes."""
    tensors = (t for t in program.tensors if t.bound is not None and t.space != "table")
    return [tensor for tensor in tensors if (tensor.space == "in") == given]


def draw(
    program: Program, *, ranks: int, dims: Numbers, routing: Routing = "uniform", draws: int = DRAWS, seed: int = 0
) -> list[dict[str, Ints]]:
    """Return for each of some launches the index tensors that are given with it, name -> [ranks, *shape].

    Recorded launches are taken in turn, up to `draws` of them.

    Raises BindingError for a routing or a file that is none, for entries that break a promise of their declaration, and
    if there are no entries that keep them. Raises ShapeError for a recorded tensor of another shape.
    """
    if draws < 1:
        raise BindingError(f"a mean over {draws} draws", hint="give 1 or more")
    if not (given := index_tensors(program, given=True)):
        return [{}]
    if isinstance(routing, Mapping):
        return _recorded(program, given, routing, ranks, dims, draws, "the tensors given as routing")
    if isinstance(routing, Path) or Path(routing).suffix in RECORDED:
        return _recorded(program, given, _read(Path(routing)), ranks, dims, draws, str(routing))
    return [_drawn(program, ranks, dims, routing, seed + number, ("in",), {}) for number in range(draws)]


def completed(
    plan: Plan, launches: Sequence[Mapping[str, Ints]], *, routing: Routing, seed: int = 0
) -> list[dict[str, Ints]]:
    """Return launches with the index tensors that a plan's program tells and computes besides.

    Those that are told are what they copy. Those that are computed are drawn like given ones, and so are lists of
    places of which no entry is read alone (lowering/stored_entries.py).
    """
    bound = plan.bound
    kind = routing if isinstance(routing, str) and Path(routing).suffix not in RECORDED else "uniform"
    others = [t.space for t in index_tensors(bound.source, given=False)]
    complete: list[dict[str, Ints]] = []
    for number, given in enumerate(launches):
        sample = dict(given)
        if others:
            sample |= _drawn(bound.source, bound.ranks, bound.numbers, kind, seed + number, others, given)
        for name in launch_tensors(bound):
            low, high = bound.entries[name]
            sample[name] = np.clip(sample[name], low, high)
        _tell(plan.guards, sample)
        complete.append(sample)
    return complete


def _tell(guards: Guards, sample: Mapping[str, Ints]) -> None:
    """Give the entries that a program writes as expressions of others their values.

    What a stage computes and stores under a name is not known here: it is what was drawn for the first entry that has
    it, and the others that have it agree.
    """
    nothing = Env(rank=0, ranks=1, params={}, indices={})
    computed: dict[tuple[str, tuple[int, ...]], int] = {}

    for (table, rank, coords), origin in guards.copies.items():
        if origin is None or table not in sample:
            continue
        drawn = int(sample[table][rank, *coords])

        def known(part: Scalar, drawn: int = drawn) -> Scalar | None:
            if not isinstance(part, Lookup):
                return None
            at = tuple(int(evaluate(rewrite(c, known), nothing)) for c in part.coords if isinstance(c, Scalar))
            if part.table in sample:
                return Int(value=int(sample[part.table][at]))
            return Int(value=computed.setdefault((part.table, at), drawn))

        entry = Lookup(table=table, coords=tuple(Int(value=n) for n in (rank, *coords)), launch=True)
        sample[table][rank, *coords] = evaluate(rewrite(guards.resolve(entry), known), nothing)


def _drawn(
    program: Program, ranks: int, dims: Numbers, routing: str, seed: int, spaces: Sequence[str],
    known: Mapping[str, Ints],
) -> dict[str, Ints]:  # fmt: skip
    import torch

    from tilelink.reference.routing import Routing as Kind
    from tilelink.reference.routing import draw_indices, replicated_entries

    generator, kind = torch.Generator().manual_seed(seed), Kind.parse(routing)
    alike: dict[str, Ints] = {}
    by_rank: list[dict[str, torch.Tensor]] = []
    for rank in range(ranks):
        own = draw_indices(
            program, rank=rank, ranks=ranks, dims=dims, routing=kind, generator=generator, spaces=spaces,
            known={name: np.asarray(entries[rank]) for name, entries in known.items()}, replicated=alike,
        )  # fmt: skip
        alike |= replicated_entries(program, own)
        by_rank.append(own)
    return {name: np.stack([own[name].numpy() for own in by_rank]).astype(np.int64) for name in by_rank[0]}


# Recorded index tensors --------------------------------------------------------------------------------------


def _read(path: Path) -> dict[str, Any]:
    """Return the tensors of a file. Raises BindingError if it cannot be read."""
    try:
        if path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as arrays:
                return dict(arrays)
        import torch

        tensors = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # formats raise errors of many kinds
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise BindingError(f"{path} cannot be read: {reason}", hint=f".npz or .pt: {FILES}") from error
    if not isinstance(tensors, dict):
        raise BindingError(f"{path} holds a {type(tensors).__name__}", hint=f"a dict of tensors: {FILES}")
    return tensors


def _recorded(
    program: Program, given: Sequence[Tensor], tensors: Mapping[str, Any], ranks: int, dims: Numbers, draws: int,
    where: str,
) -> list[dict[str, Ints]]:  # fmt: skip
    arrays: dict[str, Ints] = {}
    for tensor in given:
        if tensor.name not in tensors:
            hint = f"it has {', '.join(map(str, tensors)) or 'nothing'}; {FILES}"
            raise BindingError(f"{where} has no {tensor.name}", location=tensor.location, hint=hint)
        env = Env(rank=0, ranks=ranks, params=dict(dims), indices={})
        shape = (ranks, *(int(evaluate(size, env)) for size in tensor.shape))
        array = np.asarray(tensors[tensor.name])
        if array.dtype.kind not in "iu":
            raise BindingError(f"{tensor.name} of {where} is {array.dtype}", location=tensor.location, hint=FILES)
        array = array[None] if array.shape == shape else array
        if array.shape[1:] != shape or not len(array):
            message = f"{tensor.name} of {where} is {list(array.shape)}"
            hint = f"its shape is {list(shape)}, with the ranks first, or has a dimension of launches before these"
            raise ShapeError(message, location=tensor.location, hint=hint)
        arrays[tensor.name] = array.astype(np.int64)
    launches = min(draws, *(len(array) for array in arrays.values()))
    found = [{name: array[number] for name, array in arrays.items()} for number in range(launches)]
    for launch in found:
        _check(program, given, launch, ranks, dims)
    return found


def _check(program: Program, given: Sequence[Tensor], launch: Mapping[str, Ints], ranks: int, dims: Numbers) -> None:
    """Raise BindingError for the first entry that breaks a promise of its declaration."""
    import torch

    from tilelink.reference.promises import check_index_tensors, check_replicated
    from tilelink.reference.scalars import Scope, Where

    for rank in range(ranks):
        own = {name: np.asarray(entries[rank]) for name, entries in launch.items()}

        def fetch(lookup: Lookup, where: Where, own: Mapping[str, Ints] = own) -> Ints:
            return own[lookup.table][where]

        shapes = {t.name: t.shape for t in program.tensors}
        scope = Scope(rank=rank, ranks=ranks, numbers=dims, dims=shapes, fetch=fetch)
        check_index_tensors(
            given, {name: torch.from_numpy(np.asarray(entries)) for name, entries in own.items()}, scope
        )
    by_rank = [{name: torch.from_numpy(np.asarray(of[rank])) for name, of in launch.items()} for rank in range(ranks)]
    check_replicated(given, by_rank)
