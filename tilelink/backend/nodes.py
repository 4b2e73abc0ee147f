"""Body of a kernel as templates see it: nodes for statements, with all expressions as source text.

Each class has a macro of its name in snake case, in templates/statements.j2 or in the file of a dialect.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cache


@dataclass(frozen=True, kw_only=True)
class Node:
    """A statement of generated source."""

    @property
    def macro(self) -> str:
        """Return the name of the macro that renders the node."""
        return _macro(type(self).__name__)


@cache
def _macro(node: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", node).lower()


@dataclass(frozen=True, kw_only=True)
class Block(Node):
    """A statement with a nested body."""

    body: list[Node] = field(default_factory=list[Node], init=False)


@dataclass(frozen=True, kw_only=True)
class Comment(Node):
    """A comment line. text: includes the `#`."""

    text: str


# Values and memory -------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Let(Node):
    """`name = value`."""

    name: str
    value: str


@dataclass(frozen=True, kw_only=True)
class Call(Node):
    """A call of a function, which all dialects that have it write alike. name: of its result, "" for none."""

    function: str
    arguments: tuple[str, ...]
    name: str = ""


@dataclass(frozen=True, kw_only=True)
class Send(Node):
    """A store of a tile as words of data and flag. mask: as of a store.

    pointers: of each element's part of a word. packed: elements of a word. half: of elements of 64 bits, the words
    between those of the two halves of one; else 0.
    """

    pointers: str
    value: str
    mask: str | None
    packed: int
    half: int


@dataclass(frozen=True, kw_only=True)
class Receive(Node):
    """A wait for the words of a tile, and their data. mask: as of a load. dtype: of the elements, as Triton names it.

    channel: the first one that the words have in the plan, for a report of a wait that takes too long.
    """

    name: str
    pointers: str
    mask: str | None
    dtype: str
    packed: int
    half: int
    channel: str
    stage: int


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
    """Initialization of the token of a tile that has not waited yet."""


@dataclass(frozen=True, kw_only=True)
class Wait(Node):
    """A wait until a local counter has reached a target. consumed: True if a store or a notify may follow it."""

    channel: str
    target: str
    stage: int
    consumed: bool


@dataclass(frozen=True, kw_only=True)
class WaitAll(Node):
    """A wait for `count` local counters, every `step`-th from the first one."""

    channel: str
    count: int | str
    step: int
    target: str
    stage: int


@dataclass(frozen=True, kw_only=True)
class WaitEach(Node):
    """A wait for the local counters of a vector, where a mask holds."""

    channels: str
    mask: str
    target: str
    stage: int


@dataclass(frozen=True, kw_only=True)
class Notify(Node):
    """An increment of a counter in a rank's signal pad.

    pad: name of the peer's pad, None for the local one. remote: True if the counter is read outside this processor.
    waited: True if the tile has a token. tile: name of the variable with the tile number.
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
    """Increments of counters in the signal pads of several ranks. rank, channel and mask may be vectors."""

    rank: str
    channel: str
    mask: str
    stage: int


@dataclass(frozen=True, kw_only=True)
class SignalBarrier(Node):
    """A barrier of the program's threads before a wait or a notify that does not contain one."""


@dataclass(frozen=True, kw_only=True)
class Barrier(Node):
    """A barrier of a program's threads, between a store and a later load or the reverse."""


@dataclass(frozen=True, kw_only=True)
class Peer(Node):
    """The address of a rank's copy of a tensor.

    offset: name of the offset of its buffer, None for a single buffer.
    """

    name: str
    tensor: str
    rank: str
    offset: str | None


@dataclass(frozen=True, kw_only=True)
class Pad(Node):
    """The address of a rank's counters."""

    name: str
    rank: str


# The network -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Put(Node):
    """A message to a rank of another node: `count` elements from `source` to element `offset` of the rank's tensor.

    channel: the counter of that rank which follows the data, None for no signal.
    """

    tensor: str
    rank: str
    offset: str
    source: str
    count: str
    channel: str | None
    stage: int


@dataclass(frozen=True, kw_only=True)
class Get(Node):
    """A message from a rank of another node: `count` elements from element `offset` of the rank's tensor to `target`.

    It is complete afterwards.
    """

    tensor: str
    rank: str
    offset: str
    target: str
    count: str


@dataclass(frozen=True, kw_only=True)
class NetworkNotify(Node):
    """An increment of a counter of a rank on another node."""

    channel: str
    rank: str
    stage: int


@dataclass(frozen=True, kw_only=True)
class NetworkFence(Node):
    """A fence of the network: later messages of the program to a rank arrive after earlier ones."""


@dataclass(frozen=True, kw_only=True)
class NetworkQuiet(Node):
    """A wait until all that the program has sent has arrived. It contains a barrier of the program's threads."""


# Traces ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class TileBegin(Node):
    """Trace: start of a tile."""

    stage: int


@dataclass(frozen=True, kw_only=True)
class TileEnd(Node):
    """Trace: end of a tile."""

    stage: int


@dataclass(frozen=True, kw_only=True)
class TransferBegin(Node):
    """Trace: start of a transfer."""


@dataclass(frozen=True, kw_only=True)
class Transfer(Node):
    """Trace: end of a transfer, of the tensor of that number at an offset in elements."""

    stage: int
    tensor: int
    rank: str
    offset: str


# Copies of boxes by the tensor memory accelerator ------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class BoxAccess:
    """The source or target of copied boxes. name: of a descriptor, or with a peer of a function for all ranks.

    position: row and column of a box. copies: descriptors of all ranks' copies, the arguments of such a function.
    """

    name: str
    position: str
    peer: str | None = None
    copies: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class CopyBoxes(Node):
    """Copies of all boxes of a tile, each loaded `ahead` steps before it is stored.

    step, number, box: names of local variables. count: number of boxes. buffers: boxes in shared memory of one program.
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
class QueueTileEnd(Node):
    """Trace: end of a tile of a copy queue."""

    stage: int
