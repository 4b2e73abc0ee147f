"""Random index tensors: routings of several kinds, which keep all promises of the declarations.

A tensor with an inclusive bound, `n : in [ranks] <= C`, or with `offsets` holds counts; any other one, such as
`rows : in [T] < M`, holds places.

=========  =================================  ===================================  ====================================
routing    counts                             offsets                              places
=========  =================================  ===================================  ====================================
uniform    each from 0 to the bound           segments of about one size           each of them equally often
zipf:a     the k-th largest is C / k ** a     the k-th largest is the 1 / k ** a   some more often than others, likewise
one        all but one are 0                  all but one segment are empty        all are the same
empty      half are 0; on odd ranks all       half are empty; on odd ranks all     even ones only
full       all are the bound                  the last one is the bound            all equally often, if they divide
zeros      0                                  0                                    0
=========  =================================  ===================================  ====================================

Where the bound of a tensor is looked up, `slot : in [M] < count[owner]`, `owner` names counts that are positive. If it
finds none, the one that it names becomes the largest that there may be, but for `zeros`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite, prod
from typing import NoReturn

import numpy as np
import torch

from tilelink.errors import BindingError
from tilelink.ir.parameters import Numbers
from tilelink.ir.printer import print_scalar
from tilelink.ir.program import Program, Tensor
from tilelink.ir.scalar import Binary, Coordinate, Int, Lookup, Scalar
from tilelink.reference.scalars import Scope, Where, extent, tables_of

HALVINGS = 32
"""Most halvings of a count: after them it is 0."""
KINDS = ("uniform", "zipf", "one", "empty", "full", "zeros")


@dataclass(frozen=True, kw_only=True)
class Routing:
    """A kind of routing. power: of zipf."""

    kind: str = "uniform"
    power: float = 1.2

    @classmethod
    def parse(cls, text: str) -> Routing:
        """Return the routing of a text such as `one` or `zipf:1.2`. Raises BindingError if it is none."""
        kind, colon, power = text.partition(":")
        try:
            number = float(power) if colon else 1.2
        except ValueError:
            number = float("nan")
        if kind not in KINDS or (colon and kind != "zipf") or not (isfinite(number) and number >= 0):
            hint = "one of " + ", ".join("zipf:1.2" if one == "zipf" else one for one in KINDS)
            raise BindingError(f"no routing {text!r}", hint=hint)
        return cls(kind=kind, power=number)


def draw_indices(
    program: Program,
    *,
    rank: int,
    ranks: int,
    dims: Numbers,
    routing: Routing,
    generator: torch.Generator,
    spaces: Collection[str] = ("in",),
    known: Mapping[str, np.ndarray] | None = None,
    replicated: Mapping[str, np.ndarray] | None = None,
) -> dict[str, torch.Tensor]:
    """Return name -> int32 tensor for every index tensor of a rank in some spaces: those given with a launch.

    known: index tensors that are drawn already, and are not drawn again. replicated: those of another rank that are the
    same on all ranks, which this rank has too; none for the first rank.

    Raises BindingError if no entries keep the promises of a tensor with these sizes.
    """
    before, alike = dict(known or {}), dict(replicated or {})
    draw = _Draw(
        program=program, rank=rank, ranks=ranks, dims=dims, routing=routing, generator=generator,
        entries={**before, **alike}, alike=frozenset(alike),
    )  # fmt: skip
    given = [t for t in program.tensors if t.space in spaces and t.bound is not None and t.name not in before]
    own = [tensor for tensor in given if tensor.name not in alike]
    bounded = [tensor for tensor in own if _looks_up(tensor)]
    for tensor in own:
        if tensor not in bounded:
            draw.entries[tensor.name] = draw.tensor(tensor)
    draw.fit_parts()
    draw.choose_again([tensor for tensor in bounded if draw.knows_bound(tensor)])
    draw.fit_parts()
    for tensor in bounded:
        draw.entries[tensor.name] = draw.below(tensor)
    return {t.name: torch.from_numpy(np.asarray(draw.entries[t.name], np.int32)) for t in given}


def replicated_entries(program: Program, entries: Mapping[str, torch.Tensor]) -> dict[str, np.ndarray]:
    """Return the index tensors among those of a rank that all ranks have alike."""
    alike = [t.name for t in program.tensors if "replicated" in t.properties]
    return {name: entries[name].numpy() for name in alike if name in entries}


@dataclass(frozen=True, kw_only=True)
class _Draw:
    """The index tensors of one rank. entries: those that are drawn already. alike: those of all ranks among them."""

    program: Program
    rank: int
    ranks: int
    dims: Numbers
    routing: Routing
    generator: torch.Generator
    entries: dict[str, np.ndarray] = field(default_factory=dict[str, np.ndarray])
    alike: frozenset[str] = frozenset()

    def tensor(self, tensor: Tensor) -> np.ndarray:
        """Return the entries of a tensor whose bound is a size. Raises BindingError if there are none."""
        assert tensor.bound is not None
        shape = self._shape(tensor)
        bound = extent(tensor.bound, self.dims, self.ranks)
        if "offsets" in tensor.properties:
            return self._offsets(tensor, shape, bound)
        if "distinct" in tensor.properties:
            return self._distinct(tensor, shape, bound)
        match tensor.bound:
            case Binary(op="+", right=Int(value=1)):
                entries = self._counts(shape, bound - 1)
            case _:
                entries = self._places(shape, bound)
        if tensor.low is not None and tensor.high is not None:  # `from 1 to M`
            low, high = (
                extent(end, self.dims, self.ranks) if isinstance(end, Scalar) else int(end)
                for end in (tensor.low, tensor.high)
            )
            entries = np.minimum(np.maximum(entries, low), high)
        return np.sort(entries, axis=-1) if "rising" in tensor.properties else entries

    def _shape(self, tensor: Tensor) -> tuple[int, ...]:
        return tuple(extent(size, self.dims, self.ranks) for size in tensor.shape)

    def fit_parts(self) -> None:
        """Make counts smaller where a tensor would be declared to have more of a dimension than there is of it."""
        for tensor in self.program.tensors:
            shape = self._shape(tensor) if tensor.defined else ()
            for dim, end in enumerate(tensor.defined):
                if end is None or not tables_of(end) <= self.entries.keys():
                    continue
                for before in np.ndindex(shape[:dim]):
                    for _ in range(HALVINGS):
                        if self._scope(before).value(end) <= shape[dim]:
                            break
                        self._halve(end, before)
                    else:
                        element = f"{tensor.name}{list(before)}" if before else tensor.name
                        what = f"{print_scalar(end)} of dimension {dim} of {element}"
                        message = f"no entries were found with which there is {what} on rank {self.rank}"
                        hint = f"it is {shape[dim]} at most: take another size, or say min({print_scalar(end)}, "
                        hint += f"{print_scalar(tensor.shape[dim])})"
                        raise BindingError(message, location=tensor.location, hint=hint)

    def _halve(self, end: Scalar, at: tuple[int, ...]) -> None:
        """Halve the entries of which an end is made; those that rise are halved together."""
        for lookup in [part for part in _walk(end) if isinstance(part, Lookup)]:
            properties = self.program.tensor(lookup.table).properties
            if "distinct" in properties or lookup.table in self.alike:
                continue
            where = tuple(int(self._scope(at).value(c)) for c in lookup.coords if isinstance(c, Scalar))
            entries = self.entries[lookup.table] = np.array(self.entries[lookup.table])
            if {"rising", "offsets"} & {*properties}:
                entries //= 2
            else:
                entries[where] //= 2

    # Random numbers ------------------------------------------------------------------------------------------

    def _below_number(self, bound: int) -> int:
        return int(torch.randint(0, bound, (), generator=self.generator))

    def _integers(self, bound: int, shape: Sequence[int]) -> np.ndarray:
        return torch.randint(0, bound, tuple(shape), generator=self.generator).numpy()

    def _weights(self, number: int) -> np.ndarray:
        """Return how often each of some things is to occur, in a random order: the largest weight is 1."""
        match self.routing.kind:
            case "zipf":
                weights = 1.0 / np.arange(1, number + 1) ** self.routing.power
            case "one":
                weights = np.arange(number) == 0
            case "empty":
                weights = np.arange(number) % 2 == 0
                if self.rank % 2:
                    weights[:] = False
            case "zeros":
                weights = np.zeros(number)
            case _:
                weights = np.ones(number)
        return weights.astype(float)[torch.randperm(number, generator=self.generator).numpy()]

    # Kinds of tensors ----------------------------------------------------------------------------------------

    def _counts(self, shape: tuple[int, ...], largest: int) -> np.ndarray:
        if self.routing.kind == "one" and not shape:
            return np.full(shape, largest if self.rank == 0 else 0)  # one rank has all
        weights = self._weights(prod(shape)).reshape(shape)
        if self.routing.kind in ("uniform", "empty"):
            return np.asarray(np.where(weights > 0, self._integers(largest + 1, shape), 0))
        return np.asarray(np.floor(weights * largest + 0.5), np.int64)

    def _offsets(self, tensor: Tensor, shape: tuple[int, ...], bound: int) -> np.ndarray:
        *rows, length = shape
        entries = np.zeros((*rows, length), np.int64)
        distinct = "distinct" in tensor.properties
        if distinct and length > bound:
            self._too_many(tensor, length, bound)
        for row in np.ndindex(*rows):
            if distinct:
                entries[row][1:] = 1 + np.sort(
                    torch.randperm(bound - 1, generator=self.generator).numpy()[: length - 1]
                )
                continue
            weights = self._weights(length - 1)
            total = bound - 1 if self.routing.kind in ("zipf", "one", "full") else self._below_number(bound)
            if weights.sum() and total:
                chosen = torch.multinomial(torch.from_numpy(weights), total, replacement=True, generator=self.generator)
                entries[row][1:] = np.cumsum(np.bincount(chosen.numpy(), minlength=length - 1))
        return entries

    def _distinct(self, tensor: Tensor, shape: tuple[int, ...], bound: int) -> np.ndarray:
        number = prod(shape)
        if number > bound:
            self._too_many(tensor, number, bound)
        entries = torch.randperm(bound, generator=self.generator).numpy()[:number]
        return (np.sort(entries) if "rising" in tensor.properties else entries).reshape(shape)

    def _too_many(self, tensor: Tensor, number: int, bound: int) -> NoReturn:
        hint = "take other sizes: --set, or dims="
        message = f"{tensor.name} has {number} entries, and there are {bound} distinct ones"
        raise BindingError(message, location=tensor.location, hint=hint)

    def _places(self, shape: tuple[int, ...], bound: int) -> np.ndarray:
        number = prod(shape)
        match self.routing.kind:
            case "zipf":
                weights = torch.from_numpy(1.0 / np.arange(1, bound + 1) ** self.routing.power)
                drawn = torch.multinomial(weights, number, replacement=True, generator=self.generator)
                return drawn.numpy().reshape(shape)
            case "one":
                return np.full(shape, (bound - 1) // 2)  # on every rank
            case "empty":
                return 2 * self._integers((bound + 1) // 2, shape)
            case "full":
                balanced = np.arange(number) % bound
                return balanced[torch.randperm(number, generator=self.generator).numpy()].reshape(shape)
            case "zeros":
                return np.zeros(shape, np.int64)
            case _:
                return self._integers(bound, shape)

    # Bounds that are looked up -------------------------------------------------------------------------------

    def knows_bound(self, tensor: Tensor) -> bool:
        """True if the tensors that the bound of a tensor looks up are drawn."""
        assert tensor.bound is not None
        return all(part.table in self.entries for part in _walk(tensor.bound) if isinstance(part, Lookup))

    def choose_again(self, tensors: Sequence[Tensor]) -> None:
        """Draw other entries for the tensors that choose the bounds of others, where those would be 0."""
        shapes = {tensor.name: self._shape(tensor) for tensor in tensors}
        for at in sorted({at for shape in shapes.values() for at in np.ndindex(shape)}):
            here = [t for t in tensors if len(at) == len(shapes[t.name]) and all(np.less(at, shapes[t.name]))]
            for tensor in here:
                if self._bound(tensor, at) <= 0:
                    self._choose(tensor, at, here)
                if self._bound(tensor, at) <= 0 and self.routing.kind != "zeros":
                    self._raise(tensor, at)

    def below(self, tensor: Tensor) -> np.ndarray:
        """Return entries of a tensor whose bound is looked up. Raises BindingError if there are none."""
        entries = np.zeros(self._shape(tensor), np.int64)
        for at in np.ndindex(entries.shape):
            if (bound := self._bound(tensor, at)) <= 0:
                assert tensor.bound is not None
                message = f"no entry of {tensor.name} is below {print_scalar(tensor.bound)} on rank {self.rank}"
                hint = f"it is {bound} there: take another routing than {self.routing.kind}, or larger sizes"
                raise BindingError(message, location=tensor.location, hint=hint)
            match self.routing.kind:
                case "full":
                    entries[at] = bound - 1
                case "one" | "zeros":
                    entries[at] = 0
                case _:
                    entries[at] = self._below_number(bound)
        return entries

    def _bound(self, tensor: Tensor, at: tuple[int, ...]) -> int:
        assert tensor.bound is not None
        return int(self._scope(at).value(tensor.bound))

    def _choose(self, tensor: Tensor, at: tuple[int, ...], others: Sequence[Tensor]) -> None:
        """Draw another entry that chooses a bound, so that this bound and those of others are positive, if one is."""
        assert tensor.bound is not None
        for chooser in self._choosers(tensor.bound):
            own = self.program.tensor(chooser.table)
            if own.properties or own.bound is None or _looks_up(own):
                continue
            where = tuple(int(self._scope(at).value(c)) for c in chooser.coords if isinstance(c, Scalar))
            before = self.entries[own.name][where]
            values = torch.randperm(extent(own.bound, self.dims, self.ranks), generator=self.generator).tolist()
            for value in values:
                self.entries[own.name][where] = value
                if all(self._bound(one, at) > 0 for one in others):
                    return
            self.entries[own.name][where] = before

    def _raise(self, tensor: Tensor, at: tuple[int, ...]) -> None:
        """Make the counts that bound an entry as large as they may be, if they are free to be."""
        assert tensor.bound is not None
        for lookup in [part for part in _walk(tensor.bound) if isinstance(part, Lookup)]:
            own = self.program.tensor(lookup.table)
            free = not own.properties and not _looks_up(own) and own.name not in self.alike
            match own.bound:
                case Binary(op="+", right=Int(value=1)) if free:
                    where = tuple(int(self._scope(at).value(c)) for c in lookup.coords if isinstance(c, Scalar))
                    entries = self.entries[own.name] = np.array(self.entries[own.name])
                    entries[where] = extent(own.bound, self.dims, self.ranks) - 1
                case _:
                    pass

    def _scope(self, at: tuple[int, ...]) -> Scope:
        def fetch(lookup: Lookup, where: Where) -> np.ndarray:
            return self.entries[lookup.table][where]

        dims: Mapping[str, tuple[Scalar, ...]] = {t.name: t.shape for t in self.program.tensors}
        scope = Scope(rank=self.rank, ranks=self.ranks, numbers=self.dims, dims=dims, fetch=fetch)
        return replace(scope, coordinates=at)

    def _choosers(self, bound: Scalar) -> Iterator[Lookup]:
        """Yield the look-ups that choose which entry is the bound, such as `owner` in `count[owner]`."""
        for part in _walk(bound):
            if isinstance(part, Lookup):
                inner = [one for c in part.coords if isinstance(c, Scalar) for one in _walk(c)]
                yield from (one for one in inner if isinstance(one, Lookup) and _of_coordinates(one))


def _looks_up(tensor: Tensor) -> bool:
    """True if the bound of a tensor is looked up."""
    return tensor.bound is not None and any(isinstance(part, Lookup) for part in _walk(tensor.bound))


def _of_coordinates(lookup: Lookup) -> bool:
    return all(isinstance(c, Coordinate | Int) for c in lookup.coords)


def _walk(expr: Scalar) -> Iterator[Scalar]:
    """Yield an expression and its subexpressions, also in the coordinates of look-ups."""
    yield expr
    match expr:
        case Binary(left=left, right=right):
            yield from _walk(left)
            yield from _walk(right)
        case Lookup(coords=coords):
            for coord in coords:
                if isinstance(coord, Scalar):
                    yield from _walk(coord)
        case _:
            pass
