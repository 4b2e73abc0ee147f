"""Checks of the promises that index tensors give: bounds, and what their declarations say about their entries."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import NoReturn

import numpy as np
import torch

from tilelink.errors import BindingError
from tilelink.ir.printer import print_scalar
from tilelink.ir.program import Tensor
from tilelink.reference.scalars import Scope, at_launch, tables_of

At = tuple[int, ...]


def check_promises(tensors: Sequence[Tensor], memory: Mapping[str, torch.Tensor], scope: Scope) -> None:
    """Check the index tensors that a rank is given. scope: of that rank, with the entries of its index tensors.

    Raises BindingError for the first entry that breaks a promise: with its tensor, index, value, rank and the promise.
    Ends of what tensors are declared to have, by entries that the rank is given, are no larger than their dimensions.
    """
    for tensor in tensors:
        if tensor.bound is None or tensor.space not in ("in", "table"):
            continue
        entries = memory[tensor.name].numpy().astype(np.int64)
        _check_bound(tensor, entries, scope)
        if "distinct" in tensor.properties:
            _check_distinct(tensor, entries, scope)
        if {"rising", "offsets"} & {*tensor.properties}:
            _check_rising(tensor, entries, scope)
    given = {tensor.name for tensor in tensors if tensor.bound is not None and tensor.space in ("in", "table")}
    for tensor in tensors:
        check_ends(tensor, given, scope)


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


def _check_bound(tensor: Tensor, entries: np.ndarray, scope: Scope) -> None:
    assert tensor.bound is not None
    if not at_launch(tensor.bound):
        bound = int(scope.value(tensor.bound))
        for at in np.argwhere((entries < 0) | (entries >= bound))[:1]:
            _refuse(tensor, entries, tuple(at.tolist()), scope, f"its entries lie in [0, {bound})")
        return
    for at in np.ndindex(entries.shape):
        bound = int(replace(scope, coordinates=at).value(tensor.bound))
        if not 0 <= entries[at] < bound:
            promise = f"its entries lie below {_there(tensor, at)}, which is {bound} there"
            _refuse(tensor, entries, at, scope, promise)


def _there(tensor: Tensor, at: At) -> str:
    return print_scalar(tensor.bound) if tensor.bound is not None else str(at)


def _check_distinct(tensor: Tensor, entries: np.ndarray, scope: Scope) -> None:
    seen: dict[int, At] = {}
    for at in np.ndindex(entries.shape):
        first = seen.setdefault(int(entries[at]), at)
        if first != at:
            promise = f"its entries are distinct, and {_element(tensor, first)} is {entries[at]} too"
            _refuse(tensor, entries, at, scope, promise)


def _check_rising(tensor: Tensor, entries: np.ndarray, scope: Scope) -> None:
    word = "offsets" if "offsets" in tensor.properties else "rising"
    for at in np.ndindex(entries.shape):
        before = (*at[:-1], at[-1] - 1)
        if at[-1] == 0 and word == "offsets" and entries[at]:
            _refuse(tensor, entries, at, scope, "its entries are offsets, the first of which is 0")
        if at[-1] and entries[at] < entries[before]:
            promise = f"its entries are {word}, and {_element(tensor, before)} before it is {entries[before]}"
            _refuse(tensor, entries, at, scope, promise)


def _refuse(tensor: Tensor, entries: np.ndarray, at: At, scope: Scope, promise: str) -> NoReturn:
    message = f"{_element(tensor, at)} of rank {scope.rank} is {entries[at]}"
    raise BindingError(message, location=tensor.location, hint=promise)


def _element(tensor: Tensor, at: At) -> str:
    return f"{tensor.name}{list(at)}" if at else tensor.name
