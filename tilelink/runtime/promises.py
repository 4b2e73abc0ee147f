"""Checks of what index tensors promise, on the device that holds them, with one wait of the host for all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from tilelink.artifact import Constant, Entry, Operation, OwnCoordinate, OwnRank, Promise
from tilelink.errors import BindingError, Location

Tensors = Mapping[str, torch.Tensor]


def _divisor(number: torch.Tensor) -> torch.Tensor:
    """Return 1 for 0, which a divisor is only if an entry in it breaks its own promise: that is what is reported."""
    return number + (number == 0)


OPERATIONS: Mapping[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "+": torch.add,
    "-": torch.sub,
    "*": torch.mul,
    "//": lambda a, b: torch.div(a, _divisor(b), rounding_mode="floor"),
    "%": lambda a, b: torch.remainder(a, _divisor(b)),
    "^": torch.bitwise_xor,
    "min": torch.minimum,
    "max": torch.maximum,
}


@dataclass(frozen=True, kw_only=True)
class Broken:
    """An entry that breaks a promise. why: the promise, and what it is compared with."""

    tensor: str
    index: tuple[int, ...]
    value: int
    rank: int
    why: str
    declared: str
    part: int | None = None
    """The dimension whose declared end is the value, None if it is an entry."""

    def error(self, location: Location | None = None) -> BindingError:
        """Return the error for it."""
        element = f"{self.tensor}{list(self.index)}" if self.index else self.tensor
        hint = f"{self.why}: it is declared as {self.declared}"
        if self.part is not None:
            message = f"the end of dimension {self.part} of {element} of rank {self.rank} is {self.value}"
            return BindingError(message, location=location, hint=hint)
        return BindingError(f"{element} of rank {self.rank} is {self.value}", location=location, hint=hint)


@dataclass(frozen=True, kw_only=True)
class _Check:
    """A check of a tensor: whether an entry fails, the place of the first one, and what it is compared with.

    why: a text with `{other}` in the place of the latter.
    """

    promise: Promise
    entries: torch.Tensor
    fails: torch.Tensor
    at: torch.Tensor
    other: torch.Tensor
    why: str

    def result(self) -> torch.Tensor:
        """Return (fails, place, entry, other) on the device."""
        row = (self.fails, self.at, self.entries.flatten()[self.at], self.other)
        return torch.stack([one.reshape(()).long() for one in row])


def broken_promise(promises: Sequence[Promise], tensors: Tensors, rank: int) -> Broken | None:
    """Return the first entry of a rank's index tensors that breaks a promise, None if there is none.

    promises: in the order of their declarations, because a bound may be an entry of a tensor before.
    """
    checks = [check for promise in promises if _is_here(promise, tensors) for check in _checks(promise, tensors, rank)]
    if not checks:
        return None
    rows: list[list[int]] = torch.stack([check.result() for check in checks]).tolist()
    for check, (fails, at, value, other) in zip(checks, rows, strict=True):
        if fails:
            index: list[int] = []
            for size in reversed(check.entries.shape):
                index.insert(0, at % size)
                at //= size
            return Broken(
                tensor=check.promise.tensor,
                index=tuple(index),
                value=value,
                rank=rank,
                why=check.why.format(other=other),
                declared=check.promise.declared,
                part=None if check.promise.part is None else len(check.promise.part) - 1,
            )
    return None


def broken_replication(promises: Sequence[Promise], tensors: Sequence[Tensors]) -> Broken | None:
    """Return the first entry that is promised to be alike on all ranks and is not, None if there is none.

    tensors: by rank; a rank may lack some. An entry is compared with that of the first rank that has it.
    """
    for promise in promises:
        if "replicated" not in promise.properties:
            continue
        having = [rank for rank, own in enumerate(tensors) if promise.tensor in own]
        for rank in having[1:]:
            first, own = (tensors[one][promise.tensor].cpu() for one in (having[0], rank))
            for at in (first != own).nonzero()[:1].tolist():
                index = tuple(at)
                why = f"it is replicated, and that of rank {having[0]} is {int(first[index])}"
                return Broken(
                    tensor=promise.tensor, index=index, value=int(own[index]), rank=rank, why=why,
                    declared=promise.declared,
                )  # fmt: skip
    return None


def of_all_ranks(promises: Sequence[Promise], tensors: Tensors, group: dist.ProcessGroup) -> list[Tensors]:
    """Return the tensors of each rank of a group that are promised to be alike on all of them. Collective."""
    named = [promise.tensor for promise in promises if "replicated" in promise.properties]
    every: list[Any] = [None] * dist.get_world_size(group)
    if named:
        dist.all_gather_object(every, {name: tensors[name].cpu() for name in named if name in tensors}, group=group)
    return [own or {} for own in every]


def check_promises(promises: Sequence[Promise], tensors: Tensors, rank: int, group: dist.ProcessGroup) -> None:
    """Raise BindingError for the first entry of a rank's index tensors that breaks a promise.

    Collective where an index tensor is replicated. Then all ranks raise the error of the first rank that has one.
    """
    broken = broken_promise(promises, tensors, rank)
    if any("replicated" in promise.properties for promise in promises):
        every: list[Broken | None] = [None] * dist.get_world_size(group)
        dist.all_gather_object(every, broken, group=group)
        broken = next((one for one in every if one is not None), None)
        broken = broken or broken_replication(promises, of_all_ranks(promises, tensors, group))
    if broken is not None:
        raise broken.error()


def _is_here(promise: Promise, tensors: Tensors) -> bool:
    """True if the rank has what a promise is about: it lacks index tensors that a group of other ranks has alone."""
    named = {step.tensor for step in promise.bound if isinstance(step, Entry)}
    return named <= tensors.keys() and (promise.part is not None or promise.tensor in tensors)


def _checks(promise: Promise, tensors: Tensors, rank: int) -> list[_Check]:
    if promise.part is not None:
        return _end(promise, promise.part, tensors, rank)
    entries = tensors[promise.tensor].long()
    if not entries.numel():
        return []
    bound = _bound(promise, entries.shape, entries.device, tensors, rank).expand(entries.shape)
    wrong = (entries < 0) | (entries >= bound)
    checks = [_check(promise, entries, wrong, bound, "it is in [0, {other})")]
    if entries.ndim and {"rising", "offsets"} & {*promise.properties}:
        before = torch.cat([entries[..., :1], entries[..., :-1]], dim=-1)
        word = "offsets" if "offsets" in promise.properties else "rising"
        checks.append(
            _check(promise, entries, entries < before, before, f"entries are {word}, and {{other}} is before it")
        )
    if entries.ndim and "offsets" in promise.properties:
        wrong = torch.zeros_like(entries, dtype=torch.bool)
        wrong[..., 0] = entries[..., 0] != 0
        checks.append(_check(promise, entries, wrong, entries, "the first of the offsets is 0"))
    if "distinct" in promise.properties and entries.numel() > 1:
        sorted_entries, places = entries.flatten().sort(stable=True)
        same = sorted_entries[1:] == sorted_entries[:-1]
        first = same.byte().argmax()
        why = "entries are distinct, and it is number {other} too, counted through the tensor"
        checks.append(
            _Check(
                promise=promise, entries=entries, fails=same.any(), at=places[1:][first], other=places[first], why=why
            )
        )
    return checks


def _end(promise: Promise, part: tuple[int, ...], tensors: Tensors, rank: int) -> list[_Check]:
    """Return the check that a dimension has all that a tensor is declared to have of it."""
    *before, size = part
    device = next(iter(tensors.values())).device
    ends = _bound(promise, before, device, tensors, rank).expand(before)
    most = torch.full((), size, device=device).expand(before)
    return [_check(promise, ends, ends > size, most, "it is {other} at most")] if ends.numel() else []


def _check(promise: Promise, entries: torch.Tensor, wrong: torch.Tensor, other: torch.Tensor, why: str) -> _Check:
    at = wrong.flatten().byte().argmax()
    return _Check(promise=promise, entries=entries, fails=wrong.any(), at=at, other=other.flatten()[at], why=why)


def _bound(promise: Promise, shape: Sequence[int], device: torch.device, tensors: Tensors, rank: int) -> torch.Tensor:
    """Return the bounds of all entries of a tensor of a shape; they broadcast to it."""
    stack: list[torch.Tensor] = []
    for step in promise.bound:
        match step:
            case Constant(value=value):
                stack.append(torch.full((), value, device=device))
            case OwnRank():
                stack.append(torch.full((), rank, device=device))
            case OwnCoordinate(dim=dim):
                along = [-1 if d == dim else 1 for d in range(len(shape))]
                stack.append(torch.arange(shape[dim], device=device).reshape(along))
            case Operation(op=op):
                right, left = stack.pop(), stack.pop()
                stack.append(OPERATIONS[op](left, right))
            case Entry():
                stack.append(_entries(step, tensors, stack))
    return stack.pop()


def _entries(step: Entry, tensors: Tensors, stack: list[torch.Tensor]) -> torch.Tensor:
    """Return entries of a tensor, at the numbers on top of the stack; those are kept within its extents."""
    tensor = tensors[step.tensor].long()
    where: list[torch.Tensor] = []
    for size, modulo in zip(reversed(tensor.shape), reversed(step.modulo), strict=True):
        number = stack.pop()
        where.insert(0, torch.remainder(number, size) if modulo else number.clamp(0, size - 1))
    return tensor[tuple(torch.broadcast_tensors(*where))] if where else tensor
