"""Values of a consumer in Gluon: pieces of its products, and the vectors and tiles that it computes with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from tilelink.backend import nodes
from tilelink.backend.constants import LEVEL, scaled, times, total
from tilelink.backend.roles_shared import Shared
from tilelink.backend.tiles import Tile
from tilelink.backend.values import Slices, ValueEmitter
from tilelink.errors import EmitError
from tilelink.ir.mapping import Span
from tilelink.ir.program import Dot, Read, Region, Value
from tilelink.ir.typing import Axis
from tilelink.lowering.prefetched import may_be_prefetched
from tilelink.lowering.role_boxes import may_end_with_tensor


@dataclass(frozen=True, kw_only=True)
class Prefetch:
    """A tile of which the next piece is loaded while one is computed.

    pointers: name of the pointers to its first piece. next: name of the next piece.
    """

    pointers: str
    next: str


@dataclass(kw_only=True)
class ConsumerValueEmitter(ValueEmitter):
    """Lowers the values of a consumer, in which its product is the piece that is computed.

    computed: name of a product of slices -> the name of its piece. parts: the same of other products.
    """

    shared: Shared
    computed: dict[str, str] = field(default_factory=dict[str, str])
    piece: str = ""
    """Number of the piece."""
    prefetched: dict[Region, str] = field(default_factory=dict[Region, str])
    """Region -> the name of its piece, of vectors and tiles that are prefetched."""
    vectors: dict[Region, str] = field(default_factory=dict[Region, str])
    """Region -> the name of a tuple of all pieces, of vectors along the columns that are loaded at once."""
    known: dict[Value, Tile] = field(default_factory=dict[Value, Tile])
    """Values that have been computed."""
    parts: list[str] = field(default_factory=list[str])
    """The pieces of the products, in their order."""
    spread: bool = False
    """True for columns of which each thread has few, and not all that it computes with."""
    to_take: list[Region] = field(default_factory=list[Region])
    """Tiles whose pieces are taken from the ring of operands, in this order. `take` does it, and returns a name."""
    take: Callable[[Region, str], str] | None = None

    @property
    def part(self) -> str:
        return self.parts[0]

    def lower(self, value: Value, slices: Slices, raw: bool = False) -> Tile:
        known = self.known.get(value) if self.known else None
        return known or super().lower(value, slices, raw)

    def _read(self, value: Read, slices: Slices, raw: bool) -> Tile:
        """Load a vector of the piece's columns, or a tile of its rows and columns."""
        if value.region in self.to_take:
            self._take_up_to(value.region)
        name = self.prefetched.get(value.region)
        if name is None:
            name = self._loaded(value.region, self.addresses.writer.name(f"{value.region.tensor}_tile"), self.piece)
        text = name if self.addresses.bound.tensors[value.region.tensor].dtype == "f32" else f"{name}.to(gl.float32)"
        return Tile(text=text, dtype="f32", axes=self.addresses.typing.region_type(value.region).axes)

    def take_all(self) -> None:
        """Take the pieces of all tiles that the loader has loaded, before anything else is read."""
        self._take_up_to(self.to_take[-1])

    def _take_up_to(self, region: Region) -> None:
        """Take the pieces of tiles from the ring, as the loader has loaded them, up to that of a region."""
        assert self.take is not None
        for one in self.to_take:
            if one not in self.prefetched:
                self.prefetched[one] = self.take(one, self.part)
            if one == region:
                return

    def _loaded(self, region: Region, name: str, piece: str | None) -> str:
        return self.addresses.writer.let(name, self._load(region, piece))

    def _load(self, region: Region, piece: str | None) -> str:
        if self.addresses.bound.tensors[region.tensor].fragments:
            return f"roles.load_by_thread({self.fragment(region)}, {self.part})"
        pointers, mask = self.pointers(region, piece)
        there = f", mask={mask}, other=0.0" if mask else ""
        return f"gl.load({pointers}{there})"

    def load_vectors(self, reads: Iterable[Read], like: str) -> None:
        """Load the vectors along the rows of a tile, and prefetched ones along its columns for all of its pieces.

        like: a piece. Others are loaded when they are needed.
        """
        addresses, count, self.parts = self.addresses, self.shared.piece_count, [like]
        for region in dict.fromkeys(read.region for read in reads):
            tensor = addresses.bound.tensors[region.tensor]
            axes = addresses.typing.region_type(region).axes
            if str(axes[-1].index) != self._column:
                self.prefetched[region] = self._loaded(region, addresses.writer.name(f"{tensor.name}_tile"), self.piece)
            elif len(axes) == 1 and tensor.name in addresses.stage.prefetched:
                name = addresses.writer.name(f"{tensor.name}_pieces")
                loads = [self._load(region, str(number) if number else None) for number in range(count)]
                self.vectors[region] = addresses.writer.let(name, f"({', '.join(loads)}{',' * (count == 1)})")

    def load_all(self, regions: Iterable[Region], like: str) -> dict[Region, str]:
        """Load what is computed with a product of all columns, and return its names. like: a tile of its shape."""
        self.parts, name = [like], self.addresses.writer.name
        return {region: self._loaded(region, name(f"{region.tensor}_tile"), None) for region in regions}

    def prefetch(self, reads: Iterable[Read], like: str) -> dict[Region, Prefetch]:
        """Start to load the first piece of the tiles that are prefetched. like: the first piece of the product."""
        addresses, writer, found = self.addresses, self.addresses.writer, dict[Region, Prefetch]()
        self.parts = [like]
        tiles = dict.fromkeys(read.region for read in reads if read.region.tensor in addresses.stage.prefetched)
        for region in tiles:
            if len(addresses.typing.region_type(region).axes) < 2:
                continue
            if not may_be_prefetched(addresses.bound, addresses.stage, region):
                hint = "emit what all passes return: the pass `roles` decides what is prefetched"
                raise EmitError("a tile is prefetched that may be cut", location=region.location, hint=hint)
            pointers, _ = self.pointers(region, None)
            name = region.tensor
            one = Prefetch(pointers=writer.name(f"{name}_pointers"), next=writer.name(f"{name}_next"))
            writer.let(one.pointers, pointers)
            writer.let(one.next, f"gl.load({one.pointers})")
            found[region] = one
        return found

    def take_prefetched(self, fetched: Mapping[Region, Prefetch]) -> None:
        """Take the piece of each vector and tile that is on its way, and start to load a tile's next one."""
        writer, shared = self.addresses.writer, self.shared
        for region, name in self.vectors.items():
            self.prefetched[region] = writer.let(writer.name(f"{region.tensor}_tile"), f"{name}[{self.piece}]")
        for region, one in fetched.items():
            self.prefetched[region] = writer.let(writer.name(f"{region.tensor}_tile"), one.next)
            with writer.block(nodes.Branch(condition=f"{self.piece} + 1 < {shared.pieces}")):
                ahead = scaled(f"({self.piece} + 1) * {shared.piece}", self._stride(region))
                writer.let(one.next, f"gl.load({one.pointers} + {ahead})")

    def _stride(self, region: Region) -> str:
        """Return how far apart two columns of a product are in a tile that is added to it."""
        addresses = self.addresses
        spans = addresses.bound.memory_map(addresses.stage.name, region).spans
        strides = addresses.constants.strides(addresses.bound.tensors[region.tensor])
        pairs = zip(spans, strides, strict=True)
        return next(stride for span, stride in pairs if span.kind != "point" and str(span.index) == self._column)

    def fragment(self, region: Region, *, load: bool = True) -> str:
        """Return the pointer to the current piece of a tile in fragment order."""
        shared = self.shared
        number = f"(PART * {shared.pieces} + {self.piece})"
        return total([*self.corner(region, load=load), scaled(number, times((shared.rows, shared.piece)))])

    def corner(self, region: Region, *, load: bool) -> list[str]:
        """Return the terms of the pointer to the part of a tensor that a region is in, by its points."""
        addresses, tensor = self.addresses, self.addresses.bound.tensors[region.tensor]
        wide = ".to(gl.int64)" if tensor.size >= 2**31 else ""
        terms = [addresses.base(region, load=load)]
        spans = addresses.bound.memory_map(addresses.stage.name, region).spans
        for span, stride in zip(spans, addresses.constants.strides(tensor), strict=True):
            if span.kind == "point":
                start = addresses.scalar(span.start, LEVEL["*"])
                terms.append(scaled(f"({start}){wide}" if wide and not start.isdigit() else start, stride))
        return terms

    def pointers(self, region: Region, piece: str | None, *, load: bool = True) -> tuple[str, str]:
        """Return the pointers to a region's elements, for a load or a store, and the mask of those there are, or "".

        piece: the number of the piece, None for the first one.
        """
        addresses, writer = self.addresses, self.addresses.writer
        tensor = addresses.bound.tensors[region.tensor]
        axes = addresses.typing.region_type(region).axes
        spans = addresses.bound.memory_map(addresses.stage.name, region).spans
        wide = ".to(gl.int64)" if tensor.size >= 2**31 else ""
        places: list[str] = []
        limits: list[str] = []
        views = [""] if len(axes) == 1 else ["[None, :]", "[:, None]"]  # from the last axis on
        dims = zip(spans, addresses.constants.shape(tensor), addresses.constants.strides(tensor), strict=True)
        for span, size, stride in dims:
            if span.kind == "point":
                continue
            if str(span.index) == self._column:
                place = f"{self._columns(span, piece, wide)}{views[0]}"
            else:
                place = f"{self._rows(span, wide)}{views[-1]}"
            places.append(scaled(place, stride))
            index = str(span.index)
            if span.counted:
                limits.append(f"({place} < {addresses.end(span)})")
            elif may_end_with_tensor(addresses.stage, span):
                limits.append(f"({place} < {size})")
            elif addresses.stage.extents[index] % span.size:
                limits.append(f"({place} < {addresses.constants.extent(addresses.stage, index)})")
        # Places in the tensor are added last: they are the same for all tensors of the tile, and take registers.
        offsets = writer.shared("offsets", total(places)) if len(places) > 1 else total(places)
        where = total(self.corner(region, load=load))
        return f"{where} + {offsets}" if places else where, " & ".join(limits)

    @property
    def _column(self) -> str:
        """Return the index of the columns of a tile."""
        return str(self.shared.column_index)

    def _columns(self, span: Span, piece: str | None, wide: str) -> str:
        """Return the name of the columns of a piece. wide: suffix for 64 bits, or ""."""
        first = self.addresses.scalar(span.start, LEVEL["+"])
        ahead = [scaled(piece, self.shared.piece)] if piece is not None else []
        numbers = "roles.spread" if self.spread else "roles.columns"
        return self._shared("columns", total([first, *ahead, f"{numbers}({self.part})"]), wide)

    def _rows(self, span: Span, wide: str) -> str:
        """Return the name of the rows of a consumer's part. wide: suffix for 64 bits, or ""."""
        first = self.addresses.start(span, LEVEL["+"])
        return self._shared("rows", total([first, scaled("PART", self.shared.rows), f"roles.rows({self.part})"]), wide)

    def _shared(self, stem: str, text: str, wide: str) -> str:
        return self.addresses.writer.shared(stem, f"({text}){wide}" if wide else text)

    def _dot(self, value: Dot, slices: Slices) -> Tile:
        part = next(part for dot, part in zip(self.shared.dots, self.parts, strict=True) if dot == value)
        return Tile(text=part, dtype="f32", axes=self.addresses.typing.type_of(value).axes)

    def _named_value(self, name: str, dtype: str, axes: tuple[Axis, ...], raw: bool) -> Tile:
        if name in self.computed:
            return Tile(text=self.computed[name], dtype="f32", axes=axes)
        return super()._named_value(name, dtype, axes, raw)
