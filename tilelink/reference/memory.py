"""The memory of all ranks: their tensors, the signals that have arrived there, and which elements have been written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np
import torch

from tilelink.dtypes import DTYPES
from tilelink.errors import BindingError, CoverageError, Location
from tilelink.ir.parameters import Numbers
from tilelink.ir.printer import print_region, print_scalar
from tilelink.ir.program import Program, Region, Tensor
from tilelink.ir.scalar import Lookup, Scalar
from tilelink.reference.promises import check_computed, check_index_tensors, check_replicated, check_stored
from tilelink.reference.races import Races
from tilelink.reference.scalars import Scope, Where, extent

WRITES = "write"
Counters = dict[tuple[int, str, str], np.ndarray]
"""(rank, tensor, signal kind) -> number of notifies of each element, int64 of the tensor's shape. Writes are counted in
the same way, with the kind `WRITES`."""


@dataclass(frozen=True, kw_only=True)
class Need:
    """The condition that a blocked task waits for: notifies of a kind, or the first write, of elements of a tensor.

    rank: the rank of the tensor. where: index of the elements. what: description for error messages.
    """

    rank: int
    tensor: str
    kind: str
    where: tuple[Any, ...]
    what: str
    location: Location | None


def has(program: Program, tensor: Tensor, rank: int, numbers: Numbers, ranks: int) -> bool:
    """True if a rank has a tensor: it is in the group whose ranks have it, if there is one."""
    if tensor.on is None:
        return True
    group = program.group(tensor.on)
    return extent(group.start, numbers, ranks) <= rank < extent(group.stop, numbers, ranks)


class Unwritten(Exception):
    """A read of elements that have not been written yet."""

    def __init__(self, need: Need) -> None:
        super().__init__(need.what)
        self.need = need


@dataclass(kw_only=True)
class Memory:
    """The tensors of all ranks, and the signals that have arrived there.

    tensors: [rank][name]. arrived: the notifies and writes so far. expected: all the notifies that come, and the writes
    that may come.
    """

    program: Program
    numbers: Numbers
    ranks: int
    dtype: str
    tensors: list[dict[str, torch.Tensor]] = field(default_factory=list[dict[str, torch.Tensor]])
    arrived: Counters = field(default_factory=dict[tuple[int, str, str], np.ndarray])
    expected: Counters = field(default_factory=dict[tuple[int, str, str], np.ndarray])

    @cached_property
    def races(self) -> Races:
        """The order of the accesses to tensors that are written in place."""
        return Races({t.name: self.shape(t.name) for t in self.program.tensors}, self._in_place)

    @property
    def _in_place(self) -> bool:
        return any(t.in_place for t in self.program.tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._shapes[name]

    @cached_property
    def _shapes(self) -> dict[str, tuple[int, ...]]:
        return {t.name: tuple(map(self.number, t.shape)) for t in self.program.tensors}

    def dtype_of(self, name: str) -> str:
        tensor = self.program.tensor(name)
        return "i32" if tensor.space == "table" else tensor.dtype or self.dtype

    def number(self, expr: Scalar) -> int:
        return extent(expr, self.numbers, self.ranks)

    def fill(
        self, inputs: Sequence[Mapping[str, torch.Tensor]], kept: Sequence[Mapping[str, torch.Tensor]] | None = None
    ) -> None:
        """Allocate every rank's tensors: copies of the inputs, as far as they are given, and of what is kept.

        What is not kept yet is 0. The rest is NaN, or -1.
        """
        self.tensors = [
            {
                t.name: self._cells(t, (left if t.space == "kept" else given).get(t.name), rank)
                for t in self.program.tensors
                if self.has(rank, t)
            }
            for rank, (given, left) in enumerate(zip(inputs, kept or [{} for _ in inputs], strict=True))
        ]
        check_replicated(self.program.tensors, self.tensors)
        for rank in range(self.ranks):
            present = [t for t in self.program.tensors if self.has(rank, t)]
            check_index_tensors(present, self.tensors[rank], self.scope(rank))
            for name, mask in self._masks(rank, "in").items():
                cells = self.tensors[rank][name]
                cells[~mask] = torch.nan if cells.dtype.is_floating_point else -1

    def has(self, rank: int, tensor: Tensor) -> bool:
        """True if a rank has a tensor."""
        return has(self.program, tensor, rank, self.numbers, self.ranks)

    def require_there(self, rank: int, verb: str, named: Region | Lookup, who: object) -> None:
        """Raise CoverageError if a rank does not have the tensor of a region or a look-up. verb: what is done to it."""
        tensor = self.program.tensor(named.table if isinstance(named, Lookup) else named.tensor)
        if not self.has(rank, tensor):
            what = print_scalar(named) if isinstance(named, Lookup) else print_region(named)
            message = f"{who} {verb} {what} on rank {rank}, and {tensor.on} alone has {tensor.name}"
            hint = f"a stage of the group, or a rank of it: @ {tensor.on}[i]"
            raise CoverageError(message, location=named.location, related=tensor.location, hint=hint)

    def _cells(self, tensor: Tensor, given: torch.Tensor | None, rank: int) -> torch.Tensor:
        """Return a tensor of a rank as a launch finds it. Raises BindingError if what is given does not fit."""
        shape = self.shape(tensor.name)
        kind = DTYPES[self.dtype_of(tensor.name)]
        if given is None and (tensor.is_given or tensor.known_early):
            hint = f"give it as inputs[{rank}][{tensor.name!r}], of shape {list(shape)}"
            raise BindingError(f"rank {rank} has no {tensor.name}", location=tensor.location, hint=hint)
        if given is None and tensor.space == "kept":
            return torch.zeros(shape, dtype=kind)
        if given is None:
            return torch.full(shape, torch.nan if kind.is_floating_point else -1, dtype=torch.float32).to(kind)
        if tuple(given.shape) != shape:
            message = f"{tensor.name} of rank {rank} has shape {list(given.shape)}, not {list(shape)}"
            raise BindingError(message, location=tensor.location, hint="shapes are those of one rank")
        return given.detach().cpu().to(kind, copy=True)

    def scope(self, rank: int, who: object = "", **more: Any) -> Scope:
        """Return the values of a rank: its number, the parameters, and its index tensors. more: of a task."""
        return Scope(
            rank=rank,
            ranks=self.ranks,
            numbers=self.numbers,
            dims=self._index_tensors,
            fetch=lambda lookup, where: self.fetch(rank, lookup, where, who),
            who=who,
            **more,
        )

    @cached_property
    def _index_tensors(self) -> dict[str, tuple[Scalar, ...]]:
        return {t.name: t.shape for t in self.program.tensors if t.bound is not None}

    def fetch(self, rank: int, lookup: Lookup, where: Where, who: object) -> np.ndarray:
        """Return entries of an index tensor of a rank, those that a stage writes clamped to the bound.

        Raises Unwritten or CoverageError as a read does.
        """
        tensor = self.program.tensor(lookup.table)
        self.require_there(rank, "looks up", lookup, who)
        entries = self.tensors[rank][tensor.name].numpy()[where]
        if tensor.space in ("in", "table") or tensor.bound is None:
            return entries  # within their bounds: that is checked before the launch
        self.require_written(rank, tensor.name, where, f"looks up {print_scalar(lookup)}", lookup.location, who)
        return np.clip(entries, 0, self.largest[tensor.name])

    @cached_property
    def largest(self) -> dict[str, int]:
        """index tensor -> the largest of its entries where they serve as integers, below the largest of its bounds."""
        return {name: max(0, end - 1) for name, end in self.ends.items()}

    @cached_property
    def ends(self) -> dict[str, int]:
        """index tensor -> its bound, the largest value of one that is an entry."""
        found: dict[str, int] = {}

        def fetch(lookup: Lookup, _: Where) -> np.ndarray:
            return np.array(max(0, found[lookup.table] - 1))

        for tensor in self.program.tensors:
            if tensor.bound is not None:
                scope = replace(self.scope(0), fetch=fetch)
                found[tensor.name] = int(replace(scope, coordinates=(0,) * len(tensor.shape)).value(tensor.bound))
        return found

    def check_stored(self, rank: int, name: str, where: tuple[Any, ...], store: Location | None) -> None:
        """Raise PromiseError if one of the entries of an index tensor that a stage has stored is beyond the bound."""
        if name in self._index_tensors:
            values = self.tensors[rank][name].numpy().astype(np.int64)
            stored = np.zeros(values.shape, bool)
            stored[where] = True
            check_stored(self.program.tensor(name), values, stored, self.ends[name], rank, store)

    def check_computed(self) -> None:
        """Raise PromiseError if an index tensor that stages have written breaks a promise of its declaration."""
        for rank, tensors in enumerate(self.tensors):
            index = [t for t in self.program.tensors if t.name in self._index_tensors and self.has(rank, t)]
            entries = {t.name: tensors[t.name].numpy().astype(np.int64) for t in index}
            given = {t.name for t in index if t.is_given or t.known_early}
            written = {
                name: values >= 0 if name in given else self.counters(self.arrived, rank, name, WRITES) > 0
                for name, values in entries.items()
            }
            check_computed(index, entries, written, self.scope(rank))

    def require_written(
        self, rank: int, name: str, where: tuple[Any, ...], what: str, location: Location | None, who: object
    ) -> None:
        """Raise Unwritten for elements that have not been written yet, CoverageError if no task ever writes some."""
        if not (self.counters(self.expected, rank, name, WRITES)[where] > 0).all():
            message, hint = f"{who} {what}, parts of which no stage writes", "write it, or read less of it"
            raise CoverageError(message, location=location, hint=hint)
        what += ", before it is written"
        need = Need(rank=rank, tensor=name, kind=WRITES, where=where, what=what, location=location)
        if not self.satisfied(need):
            raise Unwritten(need)

    def counters(self, table: Counters, rank: int, name: str, kind: str) -> np.ndarray:
        key = (rank, name, kind)
        if key not in table:
            table[key] = np.zeros(self.shape(name), np.int64)
        return table[key]

    def defined(self, rank: int) -> dict[str, torch.Tensor]:
        """Return the masks of the defined elements, of the outputs that are declared to be defined in part."""
        return self._masks(rank, "out")

    def _masks(self, rank: int, space: str) -> dict[str, torch.Tensor]:
        """Return the masks of the elements that are defined (`out`) or given (`in`), of tensors declared so in part."""
        masks: dict[str, torch.Tensor] = {}
        for tensor in self.program.tensors:
            if not tensor.defined or tensor.space != space or not self.has(rank, tensor):
                continue
            shape = self.shape(tensor.name)
            mask = masks[tensor.name] = torch.ones(shape, dtype=torch.bool)
            scope = self.scope(rank, f"{tensor.name} of rank {rank}")
            for dim, end in enumerate(tensor.defined):
                for before in np.ndindex(shape[:dim]) if end is not None else ():
                    try:
                        stop = int(replace(scope, coordinates=before).value(end)) if end is not None else 0
                    except Unwritten as unwritten:
                        message = f"{scope.who} is defined up to an entry that no stage writes in this launch"
                        hint = f"{unwritten.need.tensor} is written in every launch"
                        raise CoverageError(message, location=tensor.location, hint=hint) from None
                    mask[(*before, slice(max(0, stop), None))] = False
        return masks

    def check_outputs(self, masks: Sequence[Mapping[str, torch.Tensor]]) -> None:
        """Raise CoverageError for a defined element of an output that is not written exactly once, or another twice."""
        for tensor, rank in product((t for t in self.program.tensors if t.space == "out"), range(self.ranks)):
            if not self.has(rank, tensor):
                continue
            times = self.counters(self.arrived, rank, tensor.name, WRITES)
            mask = masks[rank][tensor.name].numpy() if tensor.name in masks[rank] else True
            for wrong in np.argwhere((times > 1) | ((times == 0) & mask))[:1]:
                count = int(times[tuple(wrong)])
                state = f"written {count} times" if count else "never written"
                message = f"{tensor.name}{wrong.tolist()} of rank {rank} is {state}"
                hint = "every element of an output is written exactly once"
                raise CoverageError(message, location=tensor.location, hint=hint)

    def satisfied(self, need: Need) -> bool:
        """True if a blocked task may continue: all expected notifies have arrived, or all elements are written."""
        arrived = self.counters(self.arrived, need.rank, need.tensor, need.kind)[need.where]
        if need.kind == WRITES:
            return bool((arrived > 0).all())
        return bool((arrived >= self.counters(self.expected, need.rank, need.tensor, need.kind)[need.where]).all())
