"""Sinking of waits into the loop of the following matrix product, slice by slice.

A schedule may give every slice of a contracted dimension its own channel. If a product directly follows the wait
for all slices, it can multiply the first slice before the last one has arrived. Its loop over the contracted dimension
becomes explicit, and waits for each slice before its use.

before: wait(x[s, i, :])
        y[s, i, j] = f(dot(x[s, i, :], w[j, :].T))
after:  part = zeros(f32)
        for (k: K):                                     # a slice with its own channel
            wait(x[s, i, k])
            part = part + dot(x[s, i, k], w[j, k].T)
        y[s, i, j] = f(part)
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from tilelink.ir.products import contracted_dimension, products_of
from tilelink.ir.program import (
    Apply,
    Assign,
    Cast,
    Dot,
    Expand,
    For,
    Full,
    If,
    IndexDecl,
    Local,
    Read,
    Region,
    Statement,
    Store,
    Transpose,
    Value,
    Wait,
)
from tilelink.ir.scalar import Index, Whole
from tilelink.ir.visitor import map_value, map_values, reads
from tilelink.lowering.bound import Bound, BoundStage, Transport, with_bodies
from tilelink.lowering.transform import new_name


def sink_waits(bound: Bound) -> Bound:
    """Return the bound program with every possible wait sunk, in stages that run on SMs."""
    for stage in bound.stages.values():
        if stage.transport is not Transport.COPY_ENGINE:
            bound = _Sinking(bound=bound, stage=stage).apply()
    return bound


@dataclass(frozen=True, kw_only=True)
class SlicedProduct:
    """A product whose loop over the contracted dimension is explicit.

    waits: waits before each slice. name: accumulator of the slices. dot: the product of one slice.
    """

    index: str
    waits: tuple[Wait, ...]
    name: str
    dot: Dot

    @property
    def whole(self) -> Dot:
        """Return the product of all slices."""
        unsliced = map_value(
            self.dot, lambda v: replace(v, region=self.of_all(v.region)) if isinstance(v, Read) else None
        )
        assert isinstance(unsliced, Dot)
        return unsliced

    def of_all(self, region: Region) -> Region:
        """Return the region of all slices, given that of one."""
        index = Index(name=self.index)
        return replace(region, coords=tuple(Whole() if c == index else c for c in region.coords))


def sliced_product(stage: BoundStage, statement: Statement) -> SlicedProduct | None:
    """Return the sliced product that a loop of a stage stands for, or None for any other loop.

    The waits of such a loop alone, as a tile makes them that a launch leaves out, are an ordinary loop.
    """
    if not isinstance(statement, For) or statement.indices[0].name not in stage.slices:
        return None
    *waits, last = statement.body
    if isinstance(last, Wait):
        return None
    assert isinstance(last, Assign) and isinstance(last.value, Apply)
    dot = last.value.args[1]
    assert isinstance(dot, Dot)
    slice_waits = tuple(wait for wait in waits if isinstance(wait, Wait))
    decl = statement.indices[0]
    return SlicedProduct(index=decl.name, waits=slice_waits, name=last.name, dot=dot)


@dataclass(kw_only=True)
class _Sinking:
    """Sinks the waits of one stage."""

    bound: Bound
    stage: BoundStage
    indices: dict[str, int] = field(default_factory=dict[str, int])
    """Index of each new loop -> elements of a slice."""
    extents: dict[str, int] = field(default_factory=dict[str, int])
    names: set[str] = field(default_factory=set[str])
    """Names of new loop indices and accumulators."""

    def apply(self) -> Bound:
        body = self._body(self.stage.stage.body)
        if not self.indices:
            return self.bound
        bound = with_bodies(self.bound, {self.stage.name: body})
        old = bound.stages[self.stage.name]
        tiles, extents = {**old.tiles, **self.indices}, {**old.extents, **self.extents}
        new = replace(old, tiles=tiles, extents=extents, slices=old.slices | self.indices.keys())
        return replace(bound, stages={**bound.stages, old.name: new})

    def _body(self, body: tuple[Statement, ...]) -> tuple[Statement, ...]:
        done: list[Statement] = []
        for statement in body:
            match statement:
                case If(then=then, orelse=orelse):
                    done.append(replace(statement, then=self._body(then), orelse=self._body(orelse)))
                case For(body=inner):
                    done.append(replace(statement, body=self._body(inner)))
                case Assign(value=value) | Store(value=value):
                    done += self._sunk(done, statement, value)
                case _:
                    done.append(statement)
        return tuple(done)

    def _sunk(self, before: list[Statement], statement: Assign | Store, value: Value) -> list[Statement]:
        """Sink the waits directly before a statement into its product, and remove them from `before`."""
        first = next((n for n in range(len(before), 0, -1) if not isinstance(before[n - 1], Wait)), 0)
        waits = [wait for wait in before[first:] if isinstance(wait, Wait)]
        dots = products_of(value)
        sizes = {n: self._slice_size(wait, value, dots[0]) for n, wait in enumerate(waits)} if len(dots) == 1 else {}
        size = min((size for size in sizes.values() if size), default=None)
        if size is None:
            return [statement]
        sinking = [waits[n] for n in sizes if sizes[n] == size]
        loop = self._loop(sinking, dots[0], size)
        if loop is None:
            return [statement]
        before[first:] = [waits[n] for n in sizes if sizes[n] != size]
        accumulated = Local(name=loop[0].name, location=dots[0].location)
        return [*loop, *map_values((statement,), lambda v: accumulated if v is dots[0] else None)]

    def _slice_size(self, wait: Wait, value: Value, dot: Dot) -> int | None:
        """Return the elements of a slice of K, or None if the product cannot wait for each slice.

        The product's loop advances by the block of the stage, so a slice must have whole steps. No other data that is
        written during the launch may be guarded by the same wait.
        """
        bound, stage = self.bound, self.stage.name
        guarded = [r for r in reads(value) if r.rank is not None or not bound.tensors[r.tensor].constant]
        dim = contracted_dimension(dot, wait.region)
        if guarded != [wait.region] or dim is None:
            return None
        grid, tile_map = bound.channels[wait.region.tensor, wait.kind], bound.tile_map(stage, wait.region)
        many = [d for d, channels in enumerate(tile_map.channel_range(grid)) if channels.count != 1]
        span, size, block = tile_map.spans[dim], grid.sizes[dim], bound.contraction_block(stage)
        return size if many == [dim] and span.kind == "whole" and size % block == 0 and span.extent > block else None

    def _loop(self, waits: list[Wait], dot: Dot, size: int) -> tuple[Assign, For] | None:
        """Return the loop over the slices of a product, or None if an operand cannot be sliced."""
        location, region = dot.location, waits[0].region
        dim = contracted_dimension(dot, region)
        assert dim is not None
        index, name = (new_name(self.bound, self.stage, one, self.names) for one in ("chunk", "part"))
        left, right = self._cut(dot.left, -1, index), self._cut(dot.right, -2, index)
        if left is None or right is None:
            return None
        tensor = self.bound.tensors[region.tensor]
        self.indices[index], self.extents[index] = size, tensor.shape[dim]
        slice_waits = (replace(wait, region=_at(wait.region, dim, index)) for wait in waits)
        added = (Local(name=name, location=location), Dot(left=left, right=right, location=location))
        more = Assign(name=name, value=Apply(op="add", args=added, location=location), location=location)
        dtype = self.bound.typing.stage(self.stage.name).type_of(dot).dtype
        decl = IndexDecl(name=index, extent=tensor.decl.shape[dim], location=location)
        zeros = Assign(name=name, value=Full(value=0.0, dtype=dtype, location=location), location=location)
        return zeros, For(indices=(decl,), body=(*slice_waits, more), location=location)

    def _cut(self, value: Value, axis: int, index: str) -> Value | None:
        """Return an operand with an index in place of `:` along an axis (-1 is the last).

        Return None if the axis is not a whole dimension of a region.
        """
        typing = self.bound.typing.stage(self.stage.name)
        axes = typing.type_of(value).axes
        if len(axes) < -axis or axes[axis].kind == "one":
            return value  # the same for all slices
        match value:
            case Read(region=region):
                with_axis = [d for d, c in enumerate(region.coords) if typing.has_axis(c)]
                whole = isinstance(region.coords[with_axis[axis]], Whole)
                return replace(value, region=_at(region, with_axis[axis], index)) if whole else None
            case Transpose(value=inner):
                cut = self._cut(inner, {-1: -2, -2: -1}.get(axis, axis), index)
            case Cast(value=inner):
                cut = self._cut(inner, axis, index)
            case Expand(value=inner, pattern=pattern):
                cut = self._cut(inner, axis + pattern[axis:].count(False), index)
            case Apply(args=args):
                parts = [self._cut(arg, axis, index) for arg in args]
                return replace(value, args=tuple(one for one in parts if one)) if all(parts) else None
            case _:
                return None
        return cut and replace(value, value=cut)


def _at(region: Region, dim: int, index: str) -> Region:
    """Return a region with an index along a dimension."""
    return replace(region, coords=(*region.coords[:dim], Index(name=index), *region.coords[dim + 1 :]))
