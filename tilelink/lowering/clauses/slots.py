"""`slots(l=2)`: the number of steps of a tensor that memory holds at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilelink.errors import ScheduleError, TileSizeError, did_you_mean
from tilelink.ir.program import Program
from tilelink.lowering.clauses.channel import dims_called, names_of
from tilelink.lowering.clauses.clause import Clause, Numbers, ratio
from tilelink.scheduling.words import Part, Sizes, check_sizes, show_sizes


def _read(_: str, children: Sequence[Any]) -> Sizes:
    return tuple(children)


def _show(sizes: Sizes) -> str:
    return f"slots({show_sizes(sizes)})"


def _valid(owner: str, sizes: Sizes) -> None:
    check_sizes(owner, sizes)
    if len(sizes) > 1:
        raise ScheduleError(f"slots of two dimensions of {owner}", hint="a tensor has one dimension of steps")


def _inner(sizes: Sizes) -> Sequence[tuple[str, str]]:
    return [(key, key) for key, _ in sizes]


def _check(program: Program, part: Part) -> None:
    tensor = program.tensor(part.name)
    ((key, number),) = part[SLOTS]
    location = part.at("slots")
    if tensor.space not in ("local", "symmetric") or tensor.bound is not None:
        kind = "an index tensor" if tensor.bound is not None else "a table" if tensor.known_early else tensor.space
        message = f"slots({key}={number}) of {tensor.name}, which is {kind}"
        hint = "local and symmetric tensors have slots: what else there is of a step stays for the whole launch"
        raise ScheduleError(message, location=location, related=tensor.location, hint=hint)
    if not dims_called(program, tensor, key):
        names = names_of(program, tensor)
        message = f"slots({key}={number}): {tensor.name} has no dimension {key!r}"
        hint = did_you_mean(key, names, f"its dimensions, and indices along them, are {', '.join(names)}")
        raise TileSizeError(message, location=part.at(f"slots.{key}"), hint=hint)


def _apart(one: Sizes, other: Sizes, _: Numbers, __: int) -> float:
    """Return how many times one number of slots must be doubled to give the other; 1 if only one of them is there."""
    if one and other:
        return ratio(one[0][1], other[0][1])
    return float(one != other)


SLOTS: Clause[Sizes] = Clause(
    name="slots",
    of="tensor",
    default=(),
    rules={"slots": '"slots" "(" size ")"'},
    syntax="slots(..)",
    called="slots(...)",
    read=_read,
    show=_show,
    valid=_valid,
    inner=_inner,
    check=_check,
    apart=_apart,
    written="`slots(l=2)`",
    manual=(
        "number of steps along a dimension that memory holds at a time; the dimension is named as in `channel`. Step l "
        "is in slot l % 2, and its writer waits until step l - 2 has been read, see [slots](#slots). For local "
        "and symmetric tensors, if each access names one step. No effect if there are no more steps than slots"
    ),
)
