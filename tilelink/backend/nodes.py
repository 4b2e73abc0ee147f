"""The body of a kernel as templates see it: nodes for statements, with all expressions ready as text.

Each class has a macro of its name in snake case, in templates/statements.j2 or in the file of a dialect.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Node:
    """A statement of generated source."""

    @property
    def macro(self) -> str:
        """The name of the macro that renders it."""
        return re.sub(r"(?<!^)(?=[A-Z])", "_", type(self).__name__).lower()


@dataclass(frozen=True, kw_only=True)
class Block(Node):
    """A statement with others under it."""

    body: list[Node] = field(default_factory=list[Node], init=False)


@dataclass(frozen=True, kw_only=True)
class Comment(Node):
    """text: with its `#`."""

    text: str


# Values and memory -------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Let(Node):
    """`name = value`."""

    name: str
    value: str


@dataclass(frozen=True, kw_only=True)
class Zeros(Node):
    """An accumulator of a product, in f32. shape: with its brackets."""

    name: str
    shape: str


@dataclass(frozen=True, kw_only=True)
class Load(Node):
    """A load of a tile. mask: of the elements that exist, None for all; others are 0."""

    name: str
    pointers: str
    mask: str | None


@dataclass(frozen=True, kw_only=True)
class Box:
    """A box of a tensor: the parameter that holds the descriptor, and the row and column where the box begins."""

    descriptor: str
    row: str
    column: str


@dataclass(frozen=True, kw_only=True)
class LoadBox(Node):
    """A load through a tensor descriptor."""

    name: str
    box: Box


@dataclass(frozen=True, kw_only=True)
class Store(Node):
    """A store of a tile. mask: of the elements that are stored, None for all."""

    pointers: str
    value: str
    mask: str | None


@dataclass(frozen=True, kw_only=True)
class Multiply(Node):
    """acc += left right."""

    acc: str
    left: str
    right: str


@dataclass(frozen=True, kw_only=True)
class SoftmaxBegin(Node):
    """An empty state of an online softmax, whose values have `columns` columns."""

    name: str
    rows: str
    columns: str


@dataclass(frozen=True, kw_only=True)
class SoftmaxCopy(Node):
    """One state under another name."""

    name: str
    state: str


@dataclass(frozen=True, kw_only=True)
class SoftmaxStep(Node):
    """A state with more scores [rows, keys] and their values [keys, columns]."""

    name: str
    state: str
    scores: str
    values: str


# Control flow ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Loop(Block):
    """`for index in over:`."""

    index: str
    over: str


@dataclass(frozen=True, kw_only=True)
class Branch(Block):
    """`if condition:`."""

    condition: str


@dataclass(frozen=True, kw_only=True)
class Otherwise(Block):
    """`else:`, after a branch."""


# Signals and peers -------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Token(Node):
    """The token of a tile that has waited for nothing yet."""


@dataclass(frozen=True, kw_only=True)
class Wait(Node):
    """A wait until a counter of the own pad has reached a target. consumed: a store or a notify may follow it."""

    channel: str
    target: str
    stage: int
    consumed: bool


@dataclass(frozen=True, kw_only=True)
class WaitAll(Node):
    """A wait for `count` counters of the own pad, every `step`-th from the first one on."""

    channel: str
    count: int | str
    step: int
    target: str
    stage: int


@dataclass(frozen=True, kw_only=True)
class Notify(Node):
    """One more for a counter of a rank's pad.

    pad: the name of the peer's pad, None for the own one. remote: others than this processor look at the counter.
    waited: the tile has a token. tile: the name of the number of the tile.
    """

    pad: str | None
    channel: str
    rank: str
    stage: int
    remote: bool
    waited: bool
    tile: str = "tile"


@dataclass(frozen=True, kw_only=True)
class NotifyEach(Node):
    """One more for counters in the pads of several ranks: rank, channel and mask are vectors, or may be."""

    rank: str
    channel: str
    mask: str
    stage: int


@dataclass(frozen=True, kw_only=True)
class SignalBarrier(Node):
    """A barrier of the program's threads before a wait or a notify that is none by itself."""


@dataclass(frozen=True, kw_only=True)
class Barrier(Node):
    """A barrier of a program's threads, between what it stored and what it loads or the other way round."""


@dataclass(frozen=True, kw_only=True)
class Peer(Node):
    """The address of a rank's copy of a tensor. offset: the name of where the buffer
    begins, None for a single one."""

    name: str
    tensor: str
    rank: str
    offset: str | None


@dataclass(frozen=True, kw_only=True)
class Pad(Node):
    """The address of a rank's counters."""

    name: str
    rank: str


# Traces ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class TileBegin(Node):
    """The begin of a tile."""

    stage: int


@dataclass(frozen=True, kw_only=True)
class TileEnd(Node):
    """The end of a tile."""

    stage: int


@dataclass(frozen=True, kw_only=True)
class TransferBegin(Node):
    """The begin of a transfer."""


@dataclass(frozen=True, kw_only=True)
class Transfer(Node):
    """The end of a transfer, of the tensor of that number at an offset in elements."""

    stage: int
    tensor: int
    rank: str
    offset: str


# Copies of boxes by the tensor memory accelerator ------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class BoxAccess:
    """Where boxes are loaded from or stored to. name: of a descriptor, or with a peer of a function for all ranks.

    place: row and column of a box. copies: the descriptors of all ranks' copies, for such a function.
    """

    name: str
    place: str
    peer: str | None = None
    copies: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class CopyBoxes(Node):
    """All boxes of a tile, each loaded `ahead` steps before it is stored.

    step, number, box: names of its own. count: boxes. buffers: those in shared memory of one program.
    """

    step: str
    number: str
    box: str
    count: str
    ahead: str
    buffers: str
    source: BoxAccess
    target: BoxAccess


# Copy queues -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class QueueBox:
    """A box of a rank's copy of a tensor: its first coordinates and its sizes."""

    tensor: str
    rank: str
    low: tuple[str, ...]
    sizes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class QueueCopy(Node):
    """A copy of the copy engine. is_transfer: False for what stays on the rank, which no trace shows."""

    target: QueueBox
    source: QueueBox
    stage: int
    is_transfer: bool


@dataclass(frozen=True, kw_only=True)
class QueueNotify(Node):
    """A notify by the copy engine."""

    rank: str
    channel: str
    stage: int


@dataclass(frozen=True, kw_only=True)
class QueueWait(Node):
    """A wait of the copy engine."""

    channel: str
    target: str
    stage: int


@dataclass(frozen=True, kw_only=True)
class QueueTileBegin(Node):
    """The begin of a tile of a queue."""

    stage: int


@dataclass(frozen=True, kw_only=True)
class QueueTileEnd(Node):
    """The end of a tile of a queue."""

    stage: int
