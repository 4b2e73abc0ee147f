"""Checks of the promises that index tensors give: bounds, and what their declarations say about their entries."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NoReturn

import numpy as np
import torch

from tilelink.errors import BindingError, Location, PromiseError, TileLinkError
from tilelink.ir.printer import print_scalar
from tilelink.ir.program import Tensor
from tilelink.ir.scalar import Lookup, Scalar
from tilelink.reference.scalars import Scope, Where, at_launch, tables_of

At = tuple[int, ...]


def check_index_tensors(tensors: Sequence[Tensor], memory: Mapping[str, torch.Tensor], scope: Scope) -> None:
    """Check the index tensors that a rank is given. scope: of that rank, with the entries of its index tensors.

    Raises BindingError for the first entry that breaks a promise: with its tensor, index, value, rank and the promise.
    Ends of what tensors are declared to have, by entries that the rank is given, are no larger than their dimensions.
    """
    given = [tensor for tensor in tensors if tensor.bound is not None and tensor.space in ("in", "table")]
    for tensor in given:
        values = memory[tensor.name].numpy().astype(np.int64)
        own = _Entries(tensor=tensor, values=values, there=np.ones(values.shape, bool), scope=scope, error=BindingError)
        own.check_bound()
        own.check_properties()
    for tensor in tensors:
        check_ends(tensor, {one.name for one in given}, scope)


def check_replicated(tensors: Sequence[Tensor], memory: Sequence[Mapping[str, torch.Tensor]]) -> None:
    """Raise BindingError for the first entry of a replicated index tensor that is not alike on all ranks that have it.

    memory: tensors by rank and name.
    """
    for tensor in tensors:
        if "replicated" not in tensor.properties:
            continue
        having = [rank for rank, own in enumerate(memory) if tensor.name in own]
        for rank in having[1:]:
            first, own = (np.asarray(memory[one][tensor.name]) for one in (having[0], rank))
            for at in np.argwhere(first != own)[:1]:
                where = tuple(at.tolist())
                message = f"{_element(tensor, where)} of rank {rank} is {own[where]}"
                hint = f"it is replicated, and that of rank {having[0]} is {first[where]}"
                raise BindingError(message, location=tensor.location, hint=hint)


def check_computed(
    tensors: Sequence[Tensor], entries: Mapping[str, np.ndarray], written: Mapping[str, np.ndarray], scope: Scope
) -> None:
    """Check what the proof assumes of the index tensors that stages have written, at the end of a launch.

    entries: of all index tensors, as they were stored. written: masks of those that there are.
    Raises PromiseError for the first entry that breaks a promise, or that is not below the entry that bounds it. An
    entry with a bound that was not written is not checked: nothing can be read up to that bound. Bounds of numbers are
    checked when an entry is stored.
    """

    def fetch(lookup: Lookup, where: Where) -> np.ndarray:
        if not written[lookup.table][where].all():
            raise _NotThereError
        return entries[lookup.table][where]

    scope = replace(scope, fetch=fetch)
    for tensor in tensors:
        if tensor.bound is None or tensor.space in ("in", "table"):
            continue
        values, there = entries[tensor.name], written[tensor.name]
        own = _Entries(tensor=tensor, values=values, there=there, scope=scope, error=PromiseError)
        if at_launch(tensor.bound):
            own.check_bound()
        own.check_properties()


def check_stored(
    tensor: Tensor, values: np.ndarray, stored: np.ndarray, end: int, rank: int, store: Location | None
) -> None:
    """Raise PromiseError for the first entry that a stage stores which is not in [0, end).

    values: all entries of the tensor of a rank. stored: mask of those that the stage stores. end: the bound, or the
    largest that it may be. store: where the program stores them.
    """
    for at in np.argwhere(stored & ((values < 0) | (values >= end)))[:1]:
        message = f"{_element(tensor, tuple(at.tolist()))} of rank {rank} is {values[tuple(at)]}"
        hint = f"it is stored here, and {_declared(tensor, end)}: mask it with where, or limit it with minimum"
        raise PromiseError(message, location=store, related=tensor.location, hint=hint)


class _NotThereError(Exception):
    """An entry that has not been written."""


def check_ends(tensor: Tensor, given: Collection[str], scope: Scope) -> None:
    """Raise BindingError if a tensor is declared to have more of a dimension than there is of it.

    given: index tensors whose entries are known before a launch.
    """
    sizes = [int(scope.value(size)) for size in tensor.shape]
    for dim, end in enumerate(tensor.defined):
        if end is None or not tables_of(end) <= set(given):
            continue
        for before in np.ndindex(*sizes[:dim]):
            stop = int(replace(scope, coordinates=before).value(end))
            if stop > sizes[dim]:
                element = f"{tensor.name}{list(before)}" if before else tensor.name
                message = f"the end of dimension {dim} of {element} of rank {scope.rank} is {stop}"
                hint = f"it is {sizes[dim]} at most: {print_scalar(end)} of {print_scalar(tensor.shape[dim])}"
                raise BindingError(message, location=tensor.location, hint=hint)


@dataclass(frozen=True, kw_only=True)
class _Entries:
    """Entries of an index tensor of a rank. there: mask of those that there are. error: of a broken promise."""

    tensor: Tensor
    values: np.ndarray
    there: np.ndarray
    scope: Scope
    error: type[TileLinkError]

    def check_bound(self) -> None:
        bound = self.tensor.bound
        assert bound is not None
        if not at_launch(bound):
            size = int(self.scope.value(bound))
            for at in np.argwhere(self.there & ((self.values < 0) | (self.values >= size)))[:1]:
                self.refuse(tuple(at.tolist()), f"its entries lie in [0, {size})")
            return
        for at in self._places():
            size = self._bound_at(bound, at)
            if size is not None and not 0 <= self.values[at] < size:
                self.refuse(at, f"its entries lie below {print_scalar(bound)}, which is {size} there")

    def check_properties(self) -> None:
        if "distinct" in self.tensor.properties:
            self._check_distinct()
        if {"rising", "offsets"} & {*self.tensor.properties}:
            self._check_rising()

    def _places(self) -> Iterator[At]:
        return (tuple(at) for at in np.argwhere(self.there).tolist())

    def _bound_at(self, bound: Scalar, at: At) -> int | None:
        try:
            return int(replace(self.scope, coordinates=at).value(bound))
        except _NotThereError:
            return None

    def _check_distinct(self) -> None:
        seen: dict[int, At] = {}
        for at in self._places():
            first = seen.setdefault(int(self.values[at]), at)
            if first != at:
                self.refuse(at, f"its entries are distinct, and {self._element(first)} is {self.values[at]} too")

    def _check_rising(self) -> None:
        """Compare each entry that there is with the last one before it that there is."""
        word = "offsets" if "offsets" in self.tensor.properties else "rising"
        last: dict[At, At] = {}
        for at in self._places():
            before, here = last.get(at[:-1]), self.values[at]
            last[at[:-1]] = at
            if at[-1] == 0 and word == "offsets" and here:
                self.refuse(at, "its entries are offsets, the first of which is 0")
            if before is not None and here < (least := self.values[before]):
                self.refuse(at, f"its entries are {word}, and {self._element(before)} before it is {least}")

    def refuse(self, at: At, promise: str) -> NoReturn:
        message = f"{self._element(at)} of rank {self.scope.rank} is {self.values[at]}"
        raise self.error(message, location=self.tensor.location, hint=promise)

    def _element(self, at: At) -> str:
        return _element(self.tensor, at)


def _element(tensor: Tensor, at: At) -> str:
    return f"{tensor.name}{list(at)}" if at else tensor.name


def _declared(tensor: Tensor, end: int) -> str:
    """Return what the bound of a tensor says, in words. end: the bound, or the largest that it may be."""
    assert tensor.bound is not None
    promise = f"entries of {tensor.name} lie in [0, {end})"
    return f"{promise} at most, below {print_scalar(tensor.bound)}" if at_launch(tensor.bound) else promise
