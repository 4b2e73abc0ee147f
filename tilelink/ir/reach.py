"""Remote regions: whether a region is on another rank, and whether other ranks can address its tensor."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from math import prod
from types import MappingProxyType

from tilelink.errors import RemoteAccessError
from tilelink.ir.program import Program, Region
from tilelink.ir.scalar import RANK, Env, Index, Lookup, Scalar, evaluate, indices_in, walk

NOTHING: Mapping[str, int] = MappingProxyType({})
MOST_VALUES = 4096
"""Most combinations of indices for which an expression is evaluated."""
DECLARED = {"in": "in symmetric", "out": "out symmetric", "local": "symmetric", "kept": "kept symmetric"}


def away(region: Region) -> bool:
    """True if a region may be on another rank."""
    return region.rank is not None and region.rank != RANK


def elsewhere(rank: Scalar, ranks: int, counts: Mapping[str, int] = NOTHING) -> bool:
    """True if an expression certainly names another rank than the one that evaluates it.

    counts: numbers of values of indices that the expression may have.
    """
    names = sorted(indices_in(rank))
    if any(isinstance(e, Lookup) for e in walk(rank)) or not counts.keys() >= set(names):
        return False
    if prod(counts[name] for name in names) > MOST_VALUES:
        return False
    try:
        return all(
            evaluate(rank, Env(rank=r, ranks=ranks, params={}, indices=dict(zip(names, numbers, strict=True)))) % ranks
            != r
            for numbers in product(*(range(counts[name]) for name in names))
            for r in range(ranks)
        )
    except ZeroDivisionError:  # on a rank that never evaluates it
        return False


def reach_error(program: Program, region: Region) -> RemoteAccessError | None:
    """Return the error of a region on another rank whose tensor is not symmetric, or None if the region is valid."""
    tensor = program.tensor(region.tensor)
    if not away(region) or tensor.symmetric:
        return None
    hint = "read the table on the own rank, and send what it says"
    if tensor.space in DECLARED:
        hint = f"declare it as {tensor.name} : {DECLARED[tensor.space]} [...]"
    if tensor.space == "inout":
        hint = "its own rank sends what peers read, and writes what they send to a symmetric tensor"
    message = f"peers cannot reach {tensor.name}, which is {tensor.space} and not symmetric"
    return RemoteAccessError(message, location=region.location, related=tensor.location, hint=hint)


def on_all_ranks(expr: Scalar, ranks: int) -> int | None:
    """Return the value of an expression if it is the same on all ranks and depends on no index or table, else None."""
    if any(isinstance(e, Index | Lookup) for e in walk(expr)):
        return None
    try:
        values = {int(evaluate(expr, Env(rank=rank, ranks=ranks, params={}, indices={}))) for rank in range(ranks)}
    except ZeroDivisionError:  # on a rank that never evaluates it
        return None
    return values.pop() if len(values) == 1 else None
