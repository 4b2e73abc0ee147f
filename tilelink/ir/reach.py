"""Which tensors a region may be in on another rank, and whether it is on another one at all."""

from __future__ import annotations

from tilelink.errors import RemoteAccessError
from tilelink.ir.program import Program, Region
from tilelink.ir.scalar import RANK, Env, Index, Lookup, Scalar, evaluate, walk

DECLARED = {"in": "in symmetric", "out": "out symmetric", "local": "symmetric"}


def away(region: Region) -> bool:
    """Whether a region names a rank that is not surely the own one."""
    return region.rank is not None and region.rank != RANK


def elsewhere(rank: Scalar, ranks: int) -> bool:
    """Whether an expression is certainly another rank than the own."""
    if any(isinstance(e, Index | Lookup) for e in walk(rank)):
        return False
    try:
        return all(evaluate(rank, Env(rank=r, ranks=ranks, params={}, indices={})) % ranks != r for r in range(ranks))
    except ZeroDivisionError:  # on a rank that never comes to it
        return False


def reach_error(program: Program, region: Region) -> RemoteAccessError | None:
    """The mistake of a region on another rank, of a tensor that no other rank reaches."""
    tensor = program.tensor(region.tensor)
    if not away(region) or tensor.symmetric:
        return None
    hint = f"declare it as {tensor.name} : {DECLARED[tensor.space]} [...]" if tensor.space in DECLARED else ""
    hint = hint or "read the table on the own rank, and send what it says"
    message = f"peers cannot reach {tensor.name}, which is {tensor.space} and not symmetric"
    return RemoteAccessError(message, location=region.location, related=tensor.location, hint=hint)


def on_all_ranks(expr: Scalar, ranks: int) -> int | None:
    """The value that an expression has on every rank, None unless it is the same wherever and whenever it is asked."""
    if any(isinstance(e, Index | Lookup) for e in walk(expr)):
        return None
    try:
        found = {int(evaluate(expr, Env(rank=rank, ranks=ranks, params={}, indices={}))) for rank in range(ranks)}
    except ZeroDivisionError:  # on a rank that never comes to it
        return None
    return found.pop() if len(found) == 1 else None
