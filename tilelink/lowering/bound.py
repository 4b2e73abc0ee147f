"""Bound programs: a program and its schedule with all numbers, read by the plan, the simulator and the emitter."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from functools import cached_property, wraps
from math import prod
from typing import TypeVar, cast

from tilelink.artifact import LaunchProtocol
from tilelink.capabilities import Capabilities
from tilelink.ir.intervals import Bounds, Range, ranges_of_entries, shared_bounds
from tilelink.ir.mapping import ChannelGrid, CountedRange, TileMap, map_region
from tilelink.ir.program import (
    F8,
    ITEM_BYTES,
    Attend,
    Barrier,
    Dot,
    For,
    Program,
    Region,
    Stage,
    Statement,
    Tensor,
    UserCall,
    Wait,
)
from tilelink.ir.scalar import Env, Param, Ranks, Scalar, binary, const, evaluate
from tilelink.ir.simplify import simplify
from tilelink.ir.sizes import power_of_two
from tilelink.ir.typing import StageTyping, Typing, infer
from tilelink.ir.visitor import leading_waits, on_ranks, statements, value_of, values
from tilelink.lowering.carried import Carried, Mask, carried
from tilelink.lowering.columns import Ints
from tilelink.lowering.compact import Compact
from tilelink.lowering.orders import TILE
from tilelink.lowering.properties import BESIDE, spelled
from tilelink.lowering.rings import Ring, Roles
from tilelink.scheduling.schedule import Order, Resource, Schedule
from tilelink.target import Target

_T = TypeVar("_T")

MIN_DOT, MIN_DOT_OF_BYTES = 16, 32
"""Tensor cores multiply tiles of at least this many rows and columns, of 16 bits or more and of 8 bits."""


WORD_DATA = 4
"""Bytes of data of a word. As many more hold its flag."""
PART_OF_WORD = {1: "i64", 2: "i32", 4: "f16"}
"""Elements of a word -> a type of 8 bytes for each of them, of 4 or of 2."""


def packings(dtype: str) -> tuple[int, ...]:
    """Return how many elements of a type a word may have, the most first."""
    most = max(1, WORD_DATA // ITEM_BYTES[dtype])
    return tuple(n for n in (4, 2, 1) if n <= most)


SWEEP_PERIOD = 1 << 29
"""Launches after which words that a launch may leave unsent are swept: a flag that is older than half of them is
replaced. So none gets as old as 2**31 launches, and 2**32 launches after its own it is not there."""
SWEEP_WINDOW = 1 << 12
"""Launches in a row that sweep: launches in CUDA graphs may skip numbers, but not so many."""


@dataclass(frozen=True, kw_only=True)
class BoundTensor:
    """A tensor with its numbers: `buffers` times `memory` elements, one after the other in memory.

    steps: (dimension, n) if the dimension is one of steps of which memory holds n at a time: step k is in part k % n.
    credits: the tensor whose readers say by signals on this one that a step has been read (lowering/slots.py), or None.
    """

    decl: Tensor
    number: int
    shape: tuple[int, ...]
    dtype: str
    buffers: int
    steps: tuple[int, int] | None = None
    credits: str | None = None
    members: tuple[int, int] | None = None
    """The first rank of those that have it and one past the last; None if all have it."""
    packed: int = 0
    """Elements of a word, if what is pushed to it travels by words of data and flag (clauses/low_latency.py); else 0.

    A word has 64 bits, 32 of them data. An element of 64 bits is in two words.
    """
    swept_by: str | None = None
    """The stage whose kernel replaces flags that are too old (device/words.py), if a launch may leave words unsent."""
    fragments: bool = False
    """True if its tiles lie in memory as the registers of consumers hold them (lowering/fragments.py)."""

    @property
    def name(self) -> str:
        return self.decl.name

    @property
    def memory(self) -> tuple[int, ...]:
        """The shape of one buffer in memory, in elements of `stored`."""
        if self.packed:
            *rows, columns = self.shape
            return (*rows, columns * 2 if self.halves else -(-columns // self.packed) * self.packed)
        if self.steps is None:
            return self.shape
        dim, number = self.steps
        return (*self.shape[:dim], number, *self.shape[dim + 1 :])

    @property
    def halves(self) -> bool:
        """True if an element is in two words. Those of a row's lower halves come before those of the upper ones."""
        return self.packed > 0 and ITEM_BYTES[self.dtype] == WORD_DATA * 2

    @property
    def words(self) -> int:
        """Words of all of its buffers."""
        return self.buffers * self.size // self.packed if self.packed else 0

    @property
    def stored(self) -> str:
        """The type of its elements in memory. Of a tensor that travels by words, a type of an element's part of a word.

        Addresses are those of such elements. What is in them are words.
        """
        return PART_OF_WORD[self.packed] if self.packed else self.dtype

    @property
    def size(self) -> int:
        """Elements of one buffer in memory."""
        return prod(self.memory)

    @property
    def item(self) -> int:
        """Bytes of an element in memory; of words, with its part of a flag."""
        if not self.packed:
            return ITEM_BYTES[self.dtype]
        return 2 * WORD_DATA // self.packed * (2 if self.halves else 1)

    def on(self, rank: int) -> bool:
        """True if a rank has it."""
        return self.members is None or self.members[0] <= rank < self.members[1]

    @property
    def constant(self) -> bool:
        """True if no launch writes it on its own rank."""
        return self.decl.space in ("in", "table")


class Transport(Enum):
    """The unit that moves a stage's data (lowering/choose_transport.py)."""

    STORES = auto()
    """Its programs load and store, also in peers' memory."""
    TMA = auto()
    """Its programs issue copies of boxes to the tensor memory accelerator."""
    COPY_ENGINE = auto()
    """The copy engine of the rank, in the order of its queue."""


class KernelKind(Enum):
    """Kinds of kernels. Each has a template of its own (templates/kernels), and executes its stages in its own way."""

    TILES = auto()
    """Programs that compute tiles, one after the other."""
    TMA_COPY = auto()
    """Programs of one warp that copy boxes by the tensor memory accelerator."""
    ROLES = auto()
    """Programs whose warps load, multiply and store."""
    COPY_QUEUE = auto()
    """The queue of a rank's copy engine."""


@dataclass(frozen=True, kw_only=True)
class Boxes:
    """Copies of tiles of rows x columns elements in boxes, by `programs` of one warp on each SM.

    box: rows and columns. buffers: boxes of a program at a time. Boxes may reach beyond the last column of both
    tensors: there they copy nothing.
    """

    programs: int
    rows: int
    columns: int
    box: tuple[int, int]
    buffers: int

    @property
    def across(self) -> int:
        """Boxes side by side."""
        return -(-self.columns // self.box[1])

    @property
    def count(self) -> int:
        """Boxes of a tile."""
        return self.rows // self.box[0] * self.across

    @property
    def ahead(self) -> int:
        """Boxes that are loaded before the first of them is stored."""
        return self.buffers // 2


@dataclass(frozen=True, kw_only=True)
class BoundStage:
    """A stage with its tile sizes and its order. Its fields are properties of its line in a text (properties.py).

    `tiles`, `extents` and `counts` cover loop indices too; `order` gives each domain index from the tile number `t`.
    """

    number: int
    stage: Stage = field(metadata=BESIDE)
    resource: Resource
    tiles: Mapping[str, int] = field(metadata=spelled("tile"))
    extents: Mapping[str, int] = field(metadata=spelled("extent"))
    scalar_indices: frozenset[str] = field(default=frozenset(), metadata=spelled("numbers"))
    order: Mapping[str, Scalar] = field(metadata=BESIDE)
    nest: Order | None = field(default=None, metadata=BESIDE)
    """The loops over its indices that `order` comes from, as a schedule writes them; None: the indices as declared.

    Names, comments and compact numbers are derived from it. Where a tile is, `order` alone says.
    """
    block: int
    """Elements of a whole axis handled at once inside a contraction or reduction."""
    num_warps: int
    num_stages: int
    flatten: bool = False
    defer_notify: bool = False
    """True if its tiles are to be notified while their programs multiply the next ones."""
    notified_in: int | None = None
    """The statement in whose product a program notifies its tile before (lowering/clauses/defer_notify.py), or None."""
    notified_product: int = 0
    """The number of that product among the outermost products of the statement (ir/products.py)."""
    notified_step: int = 0
    """The step of that product's loop at whose beginning the notifies are issued."""
    transport: Transport = Transport.STORES
    """The unit that moves its data."""
    tma_copy: Boxes | None = None
    """The boxes in which it copies by TMA, if it does (see lowering/clauses/tma_copy.py)."""
    roles: Roles | None = None
    """The roles of its warps, if they have any (see lowering/clauses/roles.py)."""
    masks: tuple[Mask, ...] = field(default=(), metadata=BESIDE)
    """When consumers make the choices by positions of a loop that carries a state (see lowering/masks.py)."""
    row_sums: frozenset[str] = frozenset()
    """Names that consumers keep as several sums of each row until such a loop has ended."""
    boxes: frozenset[str] = frozenset()
    """Tensors whose operands of products are loaded as boxes, through descriptors (see lowering/operand_boxes.py)."""
    prefetched: frozenset[str] = frozenset()
    """Tensors of which consumers load tiles or vectors before they need them (see lowering/prefetched.py)."""
    ends_with_tensor: frozenset[str] = frozenset()
    """Indices within a tile of another stage. Their tiles end with the tensor, not with the extent of the index."""
    slices: frozenset[str] = frozenset()
    """Indices of loops over the slices of one product (see lowering/sink_waits.py)."""
    sums: frozenset[str] = frozenset()
    """First indices of loops that add up products, of a stage whose warps have roles (see lowering/summed.py)."""
    loops: tuple[str, ...] = ()
    """The forms of the loops inside of its tiles, in their order, () if all are plain (see lowering/loop_forms.py)."""
    tied: str | None = None
    """The clause that ties the tiles of a program to one another, if nothing else of the stage shows it."""
    tasks: int | None = field(default=None, metadata=spelled("tiles"))
    """Number of tiles of its order, or None for the product of the tiles of its indices."""
    cutoff: Mapping[str, int] = field(default_factory=dict[str, int], metadata=BESIDE)
    """Of indices whose first tiles stand for all of them, how many there are (planning/cutoff.py)."""

    @property
    def name(self) -> str:
        return self.stage.name

    @cached_property
    def parts(self) -> Mapping[str, CountedRange]:
        """The parts of their dimensions that counted indices run over, of loops too: tiles beyond have no elements."""
        loops = (d for s in statements(self.stage.body) if isinstance(s, For) for d in s.indices)
        counted = (d for d in (*self.stage.indices, *loops) if d.counted)
        return {d.name: CountedRange(start=d.start, stop=d.stop) for d in counted}

    @property
    def kind(self) -> KernelKind:
        """The kind of the kernel that executes it."""
        if self.transport is not Transport.STORES:
            return KernelKind.COPY_QUEUE if self.transport is Transport.COPY_ENGINE else KernelKind.TMA_COPY
        return KernelKind.TILES if self.roles is None else KernelKind.ROLES

    @property
    def rings(self) -> Mapping[str, Ring]:
        """The rings between the roles of its warps, by their names; none if they have no roles."""
        return {} if self.roles is None else {ring.name: ring for ring in self.roles.rings}

    @property
    def is_direct(self) -> bool:
        """True if consumers store all of its results themselves (see lowering/rings.py)."""
        return self.roles is not None and self.roles.direct

    @property
    def skips_repeated_waits(self) -> bool:
        """True if its loader leaves out waits for the last iteration's channel (see lowering/channel_waits.py)."""
        return self.roles is not None and self.roles.skips_repeated_waits

    @cached_property
    def multiplies(self) -> bool:
        """True if it computes matrix products."""
        computed = (value for s in statements(self.stage.body) if (value := value_of(s)) is not None)
        return any(isinstance(part, Dot | Attend) for value in computed for part in values(value))

    @cached_property
    def has_loop(self) -> bool:
        """True if a tile has a loop that is not a part of its product."""
        return any(isinstance(s, For) and s.indices[0].name not in self.products for s in self.stage.body)

    @property
    def products(self) -> frozenset[str]:
        """First indices of loops that stand for one product."""
        return self.slices | self.sums

    @cached_property
    def carried(self) -> Carried | str:
        """The parts of a tile whose loop carries a state and multiplies twice, or why it has none."""
        return carried(self.stage.body)

    @cached_property
    def known(self) -> dict[object, object]:
        """Function -> what it has returned of the stage (see once_a_stage)."""
        return {}

    def count(self, index: str) -> int:
        """Return the number of tiles of an index."""
        return self.cutoff.get(index) or -(-self.extents[index] // self.tiles[index])

    @cached_property
    def total(self) -> int:
        """Return the number of tiles of the stage."""
        if self.tasks is not None:
            return self.tasks
        return prod(self.count(d.name) for d in self.stage.indices)


def once_a_stage(of: Callable[[BoundStage], _T]) -> Callable[[BoundStage], _T]:
    """Return a function of stages that looks at each stage once: passes, rules and the emitter ask again."""

    @wraps(of)
    def known(stage: BoundStage) -> _T:
        if known not in stage.known:
            stage.known[known] = of(stage)
        return cast(_T, stage.known[known])

    return known


@dataclass(frozen=True, kw_only=True)
class Loop:
    """A loop of a kernel over the tiles of its first stage; further stages do the same tile after it.

    first: tiles of the loops before it. Program (first + t) % programs runs tile t, so that the programs which have one
    tile less of the loops before are the first to have one of this loop.
    begin, width: where only `width` programs have tiles of it, from program `begin` on, tile t is that of program
    begin + t % width.
    each: tiles of a step, where the loops of a kernel take turns: tile t is number t % each of step t // each.
    compact: numbers for the tiles that a launch has, if they alone are assigned to programs: the one with number n to
    program n % programs. Without it, or where nothing says what a launch has, tiles have the numbers of their order.
    """

    stages: tuple[str, ...]
    first: int = 0
    begin: int = 0
    width: int | None = None
    compact: Compact | None = None
    each: int | None = None

    def taking(self, programs: int) -> int:
        """Return the number of a kernel's programs that execute tiles of it in turn."""
        return self.width or programs

    def program(self, tile: Ints, programs: int) -> Ints:
        """Return the program of a kernel that executes each of some tiles."""
        if self.each:
            tile = tile % self.each
        return self.begin + tile % self.width if self.width else (self.first + tile) % programs


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """Stages that run in the same programs: `loops` one after the other, `programs` executors of a stream.

    Its fields are properties of its line in a text (properties.py).
    """

    name: str = field(metadata=BESIDE)
    stream: str
    position: int
    programs: int
    loops: tuple[Loop, ...] = field(metadata=BESIDE)
    num_warps: int
    num_stages: int
    reuse_lag: int = 0
    """Waits that every peer has finished launch e - reuse_lag; 0 waits for nothing."""
    needs_entry: bool = False
    """Waits that every peer has entered launch e (it reads their inputs)."""
    programs_per_cta: int = 1
    """Programs that share an SM."""
    steps: int = 1
    """Steps, in each of which its loops have `each` tiles, one loop after the other (lowering/clauses/lockstep.py)."""
    issue_index: int = 0
    """Its place in the order in which the host issues the kernels on SMs (lowering/issue_order.py)."""
    program_per_tile: bool = False
    """True if it has a program for each tile, and the GPU starts one when another has ended: not all are resident."""
    dynamic: bool = False
    """True if each of its programs takes the next tile by a counter when it has finished one."""
    quiet: bool = False
    """True if its programs wait at their end until all that they sent to other nodes has arrived."""
    own_copies_first: bool = False
    """True if copies within the rank, before the first wait of the copy engine, come before all others and before the
    kernels on SMs (planning/queue_order.py)."""
    waits_aside: bool = False
    """True if the waits of the copy engine are issued in parallel with its copies, so that none of those after them
    waits for issue."""

    @property
    def on_copy_engine(self) -> bool:
        return self.stream == "copy"

    @property
    def blocks(self) -> int:
        """Places on SMs that its programs take."""
        return self.programs // self.programs_per_cta

    @property
    def on_side_stream(self) -> bool:
        """True if it runs on SMs on a stream of its own."""
        return self.stream not in ("main", "copy")

    @property
    def stage_names(self) -> tuple[str, ...]:
        """Its stages, in the order in which a program runs them."""
        return tuple(name for loop in self.loops for name in loop.stages)


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    """A clause of a schedule that has no effect: of which stage or tensor, and why, as the end of a sentence.

    lacking: True if the kernels of the dialect on the processor have no such form, so that little of it is checked.
    """

    clause: str
    part: str
    reason: str
    lacking: bool = False


@dataclass(frozen=True, kw_only=True)
class Bound:
    """A scheduled program with all numbers in place; `program` is concrete (see transform.concretize)."""

    source: Program
    program: Program
    schedule: Schedule
    numbers: Mapping[str, int | float | bool]
    ranks: int
    dtype: str
    target: Target
    capabilities: Capabilities
    """The forms of kernels that its dialect has on its processor."""
    tensors: Mapping[str, BoundTensor]
    stages: Mapping[str, BoundStage]
    kernels: tuple[Kernel, ...]
    channels: Mapping[tuple[str, str], ChannelGrid]
    """(tensor, signal kind) -> its counters."""
    entered_base: int
    finished_base: int
    pad_size: int
    """int32 counters in one rank's signal pad."""
    protocol: LaunchProtocol = LaunchProtocol.HELPER_KERNELS
    """The handshake of ranks at the start and the end of a launch."""
    many_threads: bool = False
    """True if its programs are many threads, which meet where barriers and waits are, and not yet one each."""
    nodes: int = 1
    """Nodes that its ranks fill one after the other, `ranks_per_node` each."""
    left_out: tuple[LeftOut, ...] = field(default=(), compare=False)
    """Clauses of the schedule without effect. They are said to the user, and are no part of the program."""

    def leaving_out(self, clause: str, part: str, reason: str) -> Bound:
        """Return the program with the record that a clause of a stage or a tensor has no effect."""
        return replace(self, left_out=(*self.left_out, LeftOut(clause=clause, part=part, reason=reason)))

    @property
    def ranks_per_node(self) -> int:
        return self.ranks // self.nodes

    def node_of(self, rank: Ints) -> Ints:
        """Return the nodes of ranks."""
        return rank // self.ranks_per_node

    @cached_property
    def typing(self) -> Typing:
        """Return the types of the program."""
        return infer(self.program, lowered=True)

    @cached_property
    def memory(self) -> Mapping[str, int]:
        """The bytes that a rank holds besides what its caller gives and takes: in symmetric memory, which is allocated
        on all ranks alike, with the counters of signals; and in local memory. A launch decides nothing of them."""
        found = {"symmetric": self.pad_size * 4, "local": 0}
        for tensor in self.tensors.values():
            if tensor.decl.symmetric or tensor.decl.space in ("local", "kept"):
                kind = "symmetric" if tensor.decl.symmetric else "local"
                found[kind] += tensor.buffers * prod(tensor.memory) * tensor.item
        return found

    @cached_property
    def on_sms(self) -> Sequence[Kernel]:
        """Its kernels that are not on the copy engine."""
        return tuple(one for one in self.kernels if not one.on_copy_engine)

    @cached_property
    def together(self) -> int:
        """Return the programs of a rank that are resident together, at most; programs of one CTA count as one."""
        largest: dict[str, int] = {}
        for kernel in self.on_sms:
            largest[kernel.stream] = max(kernel.blocks, largest.get(kernel.stream, 0))
        return sum(largest.values())

    @cached_property
    def coresident_throughout(self) -> int:
        """Return the programs of a rank that are resident together until the last of them ends, at most.

        Of a kernel with a program for each tile these are none: its tiles begin in order, one where another one ends.
        """
        others = tuple(one for one in self.kernels if not one.program_per_tile)
        return replace(self, kernels=others).together

    @property
    def resident_programs(self) -> int:
        """Return how many programs have room on a rank."""
        own = self.target.resident_programs
        return max(own, self.together) if self.target.grows else own

    @cached_property
    def in_line(self) -> bool:
        """True if all kernels run one after the other, on the caller's stream."""
        return all(one.stream == "main" for one in self.kernels)

    @property
    def total(self) -> int:
        """The tiles of all ranks."""
        return self.ranks * sum(stage.total for stage in self.stages.values())

    @cached_property
    def kernel_of(self) -> Mapping[str, Kernel]:
        """stage -> the kernel that runs it."""
        return {name: kernel for kernel in self.kernels for name in kernel.stage_names}

    def is_placed(self, stage: str, wait: Wait) -> bool:
        """True if a launch decides for which channels a wait of a stage is."""
        grid = self.channels[wait.region.tensor, wait.kind]
        return self.tile_map(stage, wait.region).placed(grid)

    def first_waits(self, stage: str) -> int:
        """Return how many waits and barriers a tile begins with that it makes before it reads the ends of its ranges.

        It makes them whether it is there or not: those that the plan has there, and those after them at fixed channels.
        """
        body, number = on_ranks(self.stages[stage].stage)[1], leading_waits(self.stages[stage].stage)
        for s in body[number:]:
            if not isinstance(s, Barrier) and not (isinstance(s, Wait) and not self.is_placed(stage, s)):
                break
            number += 1
        return number

    @cached_property
    def compact_stages(self) -> frozenset[str]:
        """Return the stages whose kernels pass over tiles that a launch leaves out (lowering/compact.py)."""
        return frozenset(name for one in self.kernels for loop in one.loops if loop.compact for name in loop.stages)

    @cached_property
    def functions(self) -> frozenset[str]:
        """Return the users' functions that stages call, with their modules."""
        found = [value_of(s) for stage in self.program.stages for s in statements(stage.body)]
        return frozenset(v.function for one in found if one for v in values(one) if isinstance(v, UserCall))

    def tile_map(self, stage: str, region: Region) -> TileMap:
        """f_S, f_R and f_C of an access made by a stage."""
        key = stage, region
        if key not in self._tile_maps:
            self._tile_maps[key] = self._tile_map(stage, region)
        return self._tile_maps[key]

    def memory_map(self, stage: str, region: Region) -> TileMap:
        """The mapping of an access to places in memory: that of `tile_map`, with a step as the part that holds it."""
        tile_map, steps = self.tile_map(stage, region), self.tensors[region.tensor].steps
        if steps is None:
            return tile_map
        dim, number = steps
        span = tile_map.spans[dim]
        part = simplify(binary("%", span.start, const(number)), tile_map.bounds)
        spans = (*tile_map.spans[:dim], replace(span, start=part, extent=number), *tile_map.spans[dim + 1 :])
        return replace(tile_map, spans=spans)

    @cached_property
    def _tile_maps(self) -> dict[tuple[str, Region], TileMap]:
        """Cache of `tile_map`: passes, plan and emitter ask for the same accesses."""
        return {}

    def _tile_map(self, stage: str, region: Region) -> TileMap:
        bound = self.stages[stage]
        shape = self.tensors[region.tensor].shape
        return map_region(
            region,
            shape,
            bound.tiles,
            bound.extents,
            bound.scalar_indices,
            bounds=self.bounds(stage),
            ends_with_tensor=bound.ends_with_tensor,
            counted=bound.parts,
            number=self._extent,
        )

    def _extent(self, size: Scalar) -> int:
        return int(evaluate(size, Env(rank=0, ranks=self.ranks, params=self.numbers, indices={})))

    def smallest_block(self, stage: str) -> int:
        """Return the least block of a stage along an axis, in elements.

        Tensor cores multiply 16 rows and columns, and add up 16 products, or 32 of elements of 8 bits.
        """
        if self.target.kind == "cpu" or not self.stages[stage].multiplies:
            return 1
        if stage not in self._smallest_blocks:
            bytes_too = _multiplies_bytes(self.typing.stage(stage))
            self._smallest_blocks[stage] = MIN_DOT_OF_BYTES if bytes_too else MIN_DOT
        return self._smallest_blocks[stage]

    @cached_property
    def _smallest_blocks(self) -> dict[str, int]:
        """Cache of `smallest_block`: the emitter asks for each axis of each value."""
        return {}

    def roles_in(self, kernel: Kernel) -> dict[str, Roles]:
        """Return the roles of warps of each stage of a kernel that has any."""
        found = {name: self.stages[name].roles for name in kernel.stage_names}
        return {name: roles for name, roles in found.items() if roles is not None}

    def contraction_block(self, stage: str) -> int:
        """Elements of a contracted axis in one step of its loop."""
        return max(power_of_two(self.stages[stage].block), self.smallest_block(stage))

    def bounds(self, stage: str) -> Bounds:
        """Return the ranges of ranks, table entries, and tile numbers of a stage, in all and along its indices."""
        return self._bounds[stage]

    @cached_property
    def _bounds(self) -> Mapping[str, Bounds]:
        tables = self.entries
        bounds: dict[str, Bounds] = {}
        for name, stage in self.stages.items():
            counts = {TILE.name: stage.total} | {index: stage.count(index) for index in stage.extents}
            indices = {index: (0, max(0, count - 1)) for index, count in counts.items()}
            bounds[name] = shared_bounds(self.ranks, tuple(indices.items()), tuple(tables.items()))
        return bounds

    def number(self, expr: Scalar) -> Scalar | None:
        """Return a parameter or the number of ranks as a number, None for another expression (to rewrite with)."""
        if isinstance(expr, Param | Ranks):
            return const(int(evaluate(expr, Env(rank=0, ranks=self.ranks, params=self.numbers, indices={}))))
        return None

    @cached_property
    def entries(self) -> Mapping[str, Range]:
        """index tensor -> the smallest and the largest of its entries, to which kernels clamp them."""
        return ranges_of_entries((tensor.decl for tensor in self.tensors.values()), self.ranks, self.numbers)

    def tensor_numbered(self, number: int) -> BoundTensor:
        return self._tensors[number]

    @cached_property
    def _tensors(self) -> Mapping[int, BoundTensor]:
        return {t.number: t for t in self.tensors.values()}


def _multiplies_bytes(typing: StageTyping) -> bool:
    """True if an operand of a stage's products has elements of 8 bits."""
    computed = (value for s in statements(typing.stage.body) if (value := value_of(s)) is not None)
    products = (part for value in computed for part in values(value) if isinstance(part, Dot))
    return any(typing.type_of(one).dtype in (*F8, "i8") for dot in products for one in (dot.left, dot.right))


def with_bodies(bound: Bound, bodies: Mapping[str, tuple[Statement, ...]]) -> Bound:
    """The bound program whose stages have other statements. A stage that has the same ones stays the same object."""
    stages = {name: bound.stages[name].stage for name in bodies}
    new = {name: replace(stages[name], body=body) for name, body in bodies.items() if body != stages[name].body}
    stages = {name: replace(s, stage=new[name]) if name in new else s for name, s in bound.stages.items()}
    program = replace(bound.program, stages=tuple(new.get(one.name, one) for one in bound.program.stages))
    return replace(bound, program=program, stages=stages)


def with_channels(bound: Bound, grids: Mapping[tuple[str, str], ChannelGrid]) -> Bound:
    """Return the bound program with these channels: one after the other in its pad, and after them the handshake's.

    Each rank has a counter of its entry into a launch, and one of its end. grids: without places in the pad.
    """
    channels: dict[tuple[str, str], ChannelGrid] = {}
    used = 0
    for key, grid in grids.items():
        channels[key] = replace(grid, base=used)
        used += grid.count * grid.buffers
    ranks = bound.ranks
    return replace(bound, channels=channels, entered_base=used, finished_base=used + ranks, pad_size=used + 2 * ranks)


def same_domain(left: BoundStage, right: BoundStage) -> bool:
    """True if two stages have as many indices with the same extents and the same use as numbers."""
    a, b = left.stage.indices, right.stage.indices
    return len(a) == len(b) and all(
        left.extents[x.name] == right.extents[y.name]
        and (x.name in left.scalar_indices) == (y.name in right.scalar_indices)
        for x, y in zip(a, b, strict=True)
    )
