"""Programs: tensors, stages, statements and tile values, all frozen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from tilelink.errors import BindingError, Location
from tilelink.ir.scalar import Ranks, Scalar, Whole

DTYPES = ("f16", "bf16", "f32", "f8e4m3", "f8e5m2", "i8", "u8", "i32", "i64", "bool")
ITEM_BYTES = {
    "f16": 2, "bf16": 2, "f32": 4, "f8e4m3": 1, "f8e5m2": 1, "i8": 1, "u8": 1, "i32": 4, "i64": 8, "bool": 1,
}  # fmt: skip
F8 = ("f8e4m3", "f8e5m2")
"""Floating-point types of 8 bits. Their values are stored, cast and multiplied; no arithmetic is done with them."""
INTEGERS: dict[str, range] = {
    "i8": range(-(2**7), 2**7),
    "u8": range(2**8),
    "i32": range(-(2**31), 2**31),
    "i64": range(-(2**63), 2**63),
    "bool": range(2),
}
"""Types of integers and conditions -> the integers that they hold."""
COMPUTED = {"f16": "f32", "bf16": "f32", "f8e4m3": "f32", "f8e5m2": "f32", "i8": "i32", "u8": "i32"}
"""Types of tensors that are narrower than arithmetic -> the type in which kernels have their values."""
SIGNAL_KINDS = ("tile", "peer", "rank")
PROPERTIES = ("distinct", "rising", "offsets", "replicated")
"""Promises that a declaration may make about the entries of an index tensor."""
SUM = "sum"
"""The word of a declaration for a tensor to which values may be added in any order."""
ADDED = ("f32", "f16", "bf16")
"""The element types to which processors add in memory, each element at once."""


@dataclass(frozen=True, kw_only=True)
class Node:
    location: Location | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, kw_only=True)
class Param(Node):
    """A program parameter. kind: "dim" (positive int), "i32", "f32" or "bool".

    example: the value that commands take unless they are given another one; None for none.
    """

    name: str
    kind: str = "dim"
    example: int | float | bool | None = None


@dataclass(frozen=True, kw_only=True)
class GridDim(Node):
    """A dimension of the grid that the ranks form: `tp = 4` of `over (dp, tp = 4)`; the last one varies fastest.

    size: None for as many as the other dimensions leave.
    """

    name: str
    size: Scalar | None = None


@dataclass(frozen=True, kw_only=True)
class Group(Node):
    """Consecutive ranks with a name, `experts = ranks[A :]`: those in `[start, stop)`."""

    name: str
    start: Scalar
    stop: Scalar


@dataclass(frozen=True, kw_only=True)
class Tensor(Node):
    """A declared tensor.

    space: "in", "out", "inout", "kept", "local", "symmetric" or "table". symmetric: other ranks can address it.
    dtype: None stands for the element type chosen when the program is compiled.
    bound: of an index tensor, which holds i32 values in `[0, bound)`. Where the bound is the entry of another index
    tensor, a `Coordinate` in it stands for the coordinate along a dimension.
    sums: values may be added to its elements, in any order.
    properties: of an index tensor: "distinct" (no two entries alike), "rising" (no entry is below the one before),
    "offsets" (rising, from 0 on) and "replicated" (given alike to all ranks that have it). The proof assumes them.
    defined: of an output, for each dimension the end of the elements that are defined, or None for all of them; of an
    input, of those that are given. A `Coordinate` in it stands for the coordinate along a dimension before.
    low, high: of a tensor that is given, the smallest and the largest of the random values that commands draw; None for
    none.
    axes: the names that what is said of an entry has for its coordinates, None for none; () if no axis has one.
    on: the group whose ranks alone have the tensor; None if all have it.
    within: of a result, max |out - ref| / max |ref| up to which commands call it right; None for that of its dtype.
    """

    name: str
    space: str
    symmetric: bool = False
    shape: tuple[Scalar, ...]
    dtype: str | None = None
    bound: Scalar | None = None
    low: Scalar | float | None = None
    high: Scalar | float | None = None
    within: float | None = None
    sums: bool = False
    properties: tuple[str, ...] = ()
    defined: tuple[Scalar | None, ...] = ()
    axes: tuple[str | None, ...] = ()
    on: str | None = None

    @property
    def known_early(self) -> bool:
        """True for a table, whose integers are known when the program is compiled."""
        return self.space == "table"

    @property
    def is_given(self) -> bool:
        """True if each launch is given it: an input, or a tensor that it writes in place."""
        return self.space in ("in", "inout")

    @property
    def in_place(self) -> bool:
        """True if a launch changes what was there before it: a tensor that it is given, or one that launches keep."""
        return self.space in ("inout", "kept")

    @property
    def is_result(self) -> bool:
        """True if each launch returns it: an output, or a tensor that it is given and writes in place."""
        return self.space in ("out", "inout")


@dataclass(frozen=True, kw_only=True)
class IndexDecl(Node):
    """`i: Ms`: an index and the extent, in elements, that its tiles divide.

    number: the index is a plain number for any use, as an index over the ranks is.
    start, stop: of a counted range, `i: Ms[start : stop]`, the elements of the dimension that there are in a launch;
    None for the ends of the dimension. Tiles are cut from the start.
    """

    name: str
    extent: Scalar
    number: bool = False
    start: Scalar | None = None
    stop: Scalar | None = None

    @property
    def counted(self) -> bool:
        """True if a launch decides which elements of the dimension there are."""
        return self.start is not None or self.stop is not None

    @property
    def over_ranks(self) -> bool:
        return isinstance(self.extent, Ranks)


@dataclass(frozen=True, kw_only=True)
class Region(Node):
    """A box of a tensor: one coordinate per dimension. rank: None for this rank, an expression after `@` otherwise."""

    tensor: str
    coords: tuple[Scalar | Whole, ...]
    rank: Scalar | None = None


# Tile values -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Value(Node):
    """A tile of numbers."""


@dataclass(frozen=True, kw_only=True)
class Read(Value):
    """signal: in lowered programs, of a tensor that travels by words (lowering/clauses/low_latency.py): the kind of the
    wait that the words of the region answer. It then lasts until all of them have come."""

    region: Region
    signal: str | None = None


@dataclass(frozen=True, kw_only=True)
class Local(Value):
    """The value last assigned to a name in the same task."""

    name: str


@dataclass(frozen=True, kw_only=True)
class Literal(Value):
    value: float | int | bool


@dataclass(frozen=True, kw_only=True)
class FromScalar(Value):
    """A program parameter or an integer expression as a value without axes."""

    scalar: Scalar


@dataclass(frozen=True, kw_only=True)
class Apply(Value):
    """An elementwise operation; operands broadcast as in NumPy. op: a key of ELEMENTWISE."""

    op: str
    args: tuple[Value, ...]


@dataclass(frozen=True, kw_only=True)
class Cast(Value):
    value: Value
    dtype: str


@dataclass(frozen=True, kw_only=True)
class Dot(Value):
    """Matrix product of [..., m, k] and [..., k, n], accumulated in f32."""

    left: Value
    right: Value


@dataclass(frozen=True, kw_only=True)
class Transpose(Value):
    """A value with its last two axes swapped (`.T`)."""

    value: Value


@dataclass(frozen=True, kw_only=True)
class Reduce(Value):
    """Reduction by `op`, one of REDUCTIONS, over one axis, which is removed.

    "argmax" and "argmin" give the position of the first element that is the largest or the smallest, an i32. "any" and
    "all" give a condition.
    """

    op: str
    value: Value
    axis: int


@dataclass(frozen=True, kw_only=True)
class Scan(Value):
    """A tile of the elements of another one, each of which depends on all along one axis.

    "cumsum" sums the elements up to each of them, itself included. "sort" has them in rising order, NaN last, and
    "argsort" their positions in that order, an i32: of equal ones the first comes first.
    """

    op: str
    value: Value
    axis: int


@dataclass(frozen=True, kw_only=True)
class Expand(Value):
    """`v[:, None]`: `pattern` has True for a kept axis and False for a new one of size one."""

    value: Value
    pattern: tuple[bool, ...]


@dataclass(frozen=True, kw_only=True)
class Full(Value):
    """A constant that takes the shape of the values it is combined with (`zeros(f32)`, `full(value, f32)`)."""

    value: float
    dtype: str


@dataclass(frozen=True, kw_only=True)
class Positions(Value):
    """`pos(i)`: the element positions that tile i covers, an i32 value of shape [i]."""

    index: str


@dataclass(frozen=True, kw_only=True)
class WholePositions(Value):
    """`pos(N)`: the positions 0, 1, ... along a whole dimension, an i32 value of shape [N]."""

    dim: Scalar


@dataclass(frozen=True, kw_only=True)
class SoftmaxInit(Value):
    """An empty online-softmax state (Milakov and Gimelshein, 2018)."""

    dtype: str = "f32"


@dataclass(frozen=True, kw_only=True)
class Attend(Value):
    """An online-softmax state after one more block: keys [n, d] and values [n, e], for queries [m, d].

    mask: a bool tile [m, n], True for the pairs of query and key to include; None includes all.
    """

    state: Value
    q: Value
    k: Value
    v: Value
    scale: Value
    mask: Value | None = None


@dataclass(frozen=True, kw_only=True)
class Finish(Value):
    """The attention output [m, e] of an online-softmax state."""

    state: Value


@dataclass(frozen=True, kw_only=True)
class UserCall(Value):
    """`call module.function(args)`: a user's @triton.jit function on tiles; the result is shaped as the first one."""

    function: str
    args: tuple[Value, ...]


ELEMENTWISE: dict[str, int] = {
    "add": 2, "sub": 2, "mul": 2, "div": 2, "neg": 1, "maximum": 2, "minimum": 2,
    "eq": 2, "ne": 2, "lt": 2, "le": 2, "gt": 2, "ge": 2, "and": 2, "or": 2, "not": 1, "where": 3,
    "floordiv": 2, "mod": 2, "bitand": 2, "bitor": 2, "bitxor": 2, "shl": 2, "shr": 2,
    "exp": 1, "exp2": 1, "log": 1, "sqrt": 1, "rsqrt": 1, "abs": 1, "silu": 1, "gelu": 1, "relu": 1, "sigmoid": 1,
    "tanh": 1,
}  # fmt: skip
"""Elementwise operation -> number of operands."""
BITWISE = ("bitand", "bitor", "bitxor")
INTEGER_OPS = ("floordiv", "mod", *BITWISE, "shl", "shr")
"""Elementwise operations of integers and conditions alone, which are written as operators."""
REDUCTIONS = ("sum", "max", "min", "argmax", "argmin", "any", "all")
SCANS = ("cumsum", "sort", "argsort")


# Statements --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Statement(Node):
    """A statement of a stage's body."""


@dataclass(frozen=True, kw_only=True)
class Assign(Statement):
    name: str
    value: Value


@dataclass(frozen=True, kw_only=True)
class Store(Statement):
    """`y[i, j] = value` on this rank.

    adds: `y[i, j] += value` of a tensor that is declared `sum`: an addition that no other access comes between.
    """

    region: Region
    value: Value
    adds: bool = False


@dataclass(frozen=True, kw_only=True)
class Transfer(Statement):
    """tile_push_data, tile_pull_data or rank_copy_data. mode: "push", "pull" or "copy".

    The source of a push may be any value; the source of a pull or a copy is a read of a region.

    Lowered programs on several nodes also have mode "put", a push that the network carries, and "get", a pull of the
    kind (lowering/choose_network.py). Their sources are reads of regions.

    They also have mode "send", a push by words of data and flag (lowering/clauses/low_latency.py).

    signal: the kind of the notify of its target that a put or a send carries with its data, None for a put alone.
    """

    mode: str
    target: Region
    source: Value
    signal: str | None = None


@dataclass(frozen=True, kw_only=True)
class Notify(Statement):
    """by_network: True for one that the network carries, in lowered programs on several nodes."""

    kind: str
    region: Region
    by_network: bool = False


@dataclass(frozen=True, kw_only=True)
class Wait(Statement):
    kind: str
    region: Region


@dataclass(frozen=True, kw_only=True)
class Barrier(Statement):
    """A barrier of all threads of a CTA: stores before it are visible to the loads of every thread after it.

    A pass inserts the barriers that a program needs (see lowering/insert_barriers.py).
    """


@dataclass(frozen=True, kw_only=True)
class NetworkFence(Statement):
    """The program's earlier puts and signals to a rank arrive there before its later ones to that rank."""


@dataclass(frozen=True, kw_only=True)
class NetworkQuiet(Statement):
    """Wait until all puts and signals of the program have arrived: their sources may be written again."""


@dataclass(frozen=True, kw_only=True)
class If(Statement):
    condition: Scalar
    then: tuple[Statement, ...]
    orelse: tuple[Statement, ...] = ()


@dataclass(frozen=True, kw_only=True)
class For(Statement):
    """A sequential loop over tiles inside a task; the last index varies fastest."""

    indices: tuple[IndexDecl, ...]
    body: tuple[Statement, ...]


@dataclass(frozen=True, kw_only=True)
class Stage(Node):
    """A tile program over an index domain. kind: "comm" or "compute"."""

    kind: str
    name: str
    indices: tuple[IndexDecl, ...]
    body: tuple[Statement, ...]


@dataclass(frozen=True, kw_only=True)
class Program(Node):
    name: str
    params: tuple[Param, ...]
    tensors: tuple[Tensor, ...]
    stages: tuple[Stage, ...]
    grid: tuple[GridDim, ...] = ()
    """The grid that the ranks form. Expressions have its coordinates as arithmetic of `rank`."""
    groups: tuple[Group, ...] = ()
    template: object = field(default=None, compare=False, repr=False)
    """The source that it was parsed from, to make variants of it (frontend/variants.py)."""
    schedules: tuple[object, ...] = field(default=(), compare=False, repr=False)
    """The schedules that its text has for it, to choose one by its name."""

    def tensor(self, name: str) -> Tensor:
        return self._tensors[name]

    def stage(self, name: str) -> Stage:
        return self._stages[name]

    def group(self, name: str) -> Group:
        return next(group for group in self.groups if group.name == name)

    @cached_property
    def _tensors(self) -> Mapping[str, Tensor]:
        return {t.name: t for t in reversed(self.tensors)}

    @cached_property
    def _stages(self) -> Mapping[str, Stage]:
        return {s.name: s for s in reversed(self.stages)}


def require_program(program: object) -> None:
    """Raise BindingError if the argument is not a Program.

    Callers need not be typed, and `load` returns a module of programs, which is easily passed by mistake.
    """
    if isinstance(program, Program):
        return
    names = [one.name for one in getattr(program, "programs", ()) if isinstance(one, Program)]
    where = (
        f"module.program({names[0]!r})" if names else "tilelink.load(FILE).program(), or tilelink.parse(TEXT).program()"
    )
    raise BindingError(f"a {type(program).__name__} is not a program", hint=f"take one: {where}")
