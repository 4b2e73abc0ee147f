"""Artifacts of compiled programs: tensors, counters, kernels with their parameters, copy programs, launch protocol.

The compiler writes an `Artifact` once, and every runtime reads it. It is plain data: `to_json` and `from_json` convert
it to text and back, and reading that text executes nothing. The generated module is not part of it, only its name,
which is a hash of its content (tilelink/generated.py).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from functools import cached_property
from itertools import pairwise
from math import lcm, prod
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tilelink.data import Variant, checked, parse_json, plain, read_json
from tilelink.errors import DataError

FORMAT = 5
"""Version of the JSON text of an artifact."""

SOURCE = re.compile(r"tilelink_[0-9a-f]{32}")
"""Names of generated modules (tilelink/generated.py)."""

Signal = tuple[str, str]
"""Counters of a program: (tensor, signal kind)."""


class LaunchProtocol(Enum):
    """The way in which a rank announces to its peers that it has entered or finished a launch.

    ARCHITECTURE.md has a timeline of each.
    """

    HELPER_KERNELS = auto()
    """Two kernels of the runtime, one before the program's kernels and one after them. Valid for every program."""
    IN_KERNEL = auto()
    """The first kernel announces the entry, and the last program of the last kernel announces the end.

    For kernels on one stream.
    """
    COUNTED = auto()
    """Each program increments a counter when it ends, and the counter gives the epoch.

    For a single kernel, if no rank waits for the end of a launch.
    """
    COUNTED_ANNOUNCED = auto()
    """As COUNTED, for kernels that run in parallel; the next launch announces the end of this one before it waits."""
    COUNTED_WITH_COPIES = auto()
    """As COUNTED_ANNOUNCED, for one kernel in parallel with a copy engine, whose copies the kernel releases."""
    INDEPENDENT = auto()
    """There is nothing to announce: the program has no signals and no symmetric memory. Launches have no number."""

    @property
    def in_kernels(self) -> bool:
        """True if the runtime launches no helper kernels: the program's kernels perform the handshake, if any."""
        return self is not LaunchProtocol.HELPER_KERNELS

    @property
    def counted(self) -> bool:
        """True if programs are counted when they end, and no rank waits for the end of a launch."""
        return self in (
            LaunchProtocol.COUNTED, LaunchProtocol.COUNTED_ANNOUNCED, LaunchProtocol.COUNTED_WITH_COPIES,
        )  # fmt: skip

    @property
    def releases_copies(self) -> bool:
        """True if the first kernel of a launch releases the copy engine, which waits for that."""
        return self is LaunchProtocol.COUNTED_WITH_COPIES

    @property
    def announces_late(self) -> bool:
        """True if the end of a launch is announced by the next launch, and peers wait for that."""
        return self in (LaunchProtocol.COUNTED_ANNOUNCED, LaunchProtocol.COUNTED_WITH_COPIES)


# Parameters of kernels ---------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _Parameter(Variant):
    spelled: ClassVar[str] = ""

    @property
    def name(self) -> str:
        """Return its name in the source."""
        return self.spelled


class Number(_Parameter):
    """An int32 that differs from rank to rank or from launch to launch, so that one binary serves all."""


class Rank(Number):
    """The number of the rank."""

    spelled = "rank"


class FirstProgram(Number):
    """The number of the first program of the launch, 0 if one launch has all programs of a kernel."""

    spelled = "first_program"


class NumPrograms(Number):
    """The number of programs of the kernel."""

    spelled = "num_programs"


@dataclass(frozen=True, kw_only=True)
class IntegersPointer(_Parameter):
    """A pointer to integers of the runtime, of type `element`."""

    element: ClassVar[str] = "i64"


class SignalsPointer(IntegersPointer):
    """The local signal pad, [pad_size]."""

    element = "i32"
    spelled = "signals"


class SignalTablePointer(IntegersPointer):
    """The addresses of all ranks' signal pads, [ranks]."""

    spelled = "signal_table"


class EpochPointer(IntegersPointer):
    """The number of the launch (device/handshake.py)."""

    spelled = "epoch_pointer"


class DebugBlockPointer(IntegersPointer):
    """The debug block, in which a wait that exceeds its deadline reports itself (device/debug.py), or None."""

    spelled = "debug_block"


class HandshakePointer(IntegersPointer):
    """State of the handshake of a kernel that begins or ends a launch (device/handshake.py), or None."""

    spelled = "handshake_block"


class TileCounterPointer(IntegersPointer):
    """The counter by which the programs of a kernel take their tiles: int32, 0 between launches (device/dynamic.py)."""

    element = "i32"
    spelled = "tile_counter"


@dataclass(frozen=True, kw_only=True)
class PeersPointer(IntegersPointer):
    """The addresses of all ranks' copies of a symmetric tensor, [ranks]."""

    tensor: str

    @property
    def name(self) -> str:
        return f"{self.tensor}_peers"


@dataclass(frozen=True, kw_only=True)
class ThresholdsPointer(IntegersPointer):
    """The notifies of each counter of a grid in one launch: the row of this rank."""

    element: ClassVar[str] = "i32"
    tensor: str
    kind: str

    @property
    def name(self) -> str:
        return f"{self.tensor}_{self.kind}_thresholds"


@dataclass(frozen=True, kw_only=True)
class TensorPointer(_Parameter):
    """The local copy of a tensor, all buffers."""

    tensor: str

    @property
    def name(self) -> str:
        return self.tensor


@dataclass(frozen=True, kw_only=True)
class Described(_Parameter):
    """A descriptor of boxes of a tensor, all buffers, as rows of its last dimension. box: rows and columns of a box."""

    tensor: str
    box: tuple[int, int]

    @property
    def name(self) -> str:
        return f"{self.tensor}_boxes_{self.box[0]}x{self.box[1]}"


class Descriptor(Described):
    """Triton's descriptor of the local copy."""


@dataclass(frozen=True, kw_only=True)
class Boxes(Described):
    """Gluon's descriptor of the copy of the rank `owner`, or of the local copy if `owner` is None."""

    owner: int | None = None
    swizzle: int = 0
    """Bytes of a row within which TMA permutes 16-byte pieces, as products of warpgroups read them; 0 for none."""

    @property
    def name(self) -> str:
        swizzled = f"{super().name}_swizzled" if self.swizzle else super().name
        return swizzled if self.owner is None else f"{swizzled}_at_{self.owner}"


Parameter = (
    Rank | FirstProgram | NumPrograms | SignalsPointer | SignalTablePointer | EpochPointer | DebugBlockPointer
    | HandshakePointer | TileCounterPointer | PeersPointer | ThresholdsPointer | TensorPointer | Descriptor | Boxes
)  # fmt: skip
"""A parameter of a generated kernel. A runtime chooses its argument by its class."""


# Launched functions ------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _Launched:
    name: str
    stream: str
    position: int
    track: int
    needs_entry: bool
    awaits: frozenset[Signal] = frozenset()
    notifies: frozenset[Signal] = frozenset()


@dataclass(frozen=True, kw_only=True)
class KernelSpec(_Launched):
    """A generated kernel. Kernels of one stream run one after the other, by `position`; streams run in parallel.

    track: number of its first program, counted over all kernels of the rank. needs_entry: True if it waits until every
    peer has entered the launch. awaits, notifies: the program's signals that its stages wait for and notify. num_warps,
    num_stages: Triton's options for a block. programs_per_cta: number of programs of one warp each that share a block,
    in a kernel written in Gluon; else 1. issue_index: its place in the order in which a runtime issues kernels one by
    one. uses_network: True if it puts, gets or signals between nodes.
    """

    programs: int
    num_warps: int
    num_stages: int
    programs_per_cta: int = 1
    issue_index: int = 0
    parameters: tuple[Parameter, ...] = ()
    uses_network: bool = False

    @property
    def grid(self) -> int:
        """Return the number of CTAs of a launch."""
        return self.programs // self.programs_per_cta


@dataclass(frozen=True, kw_only=True)
class CopyProgram(_Launched):
    """A generated function of (queue, rank, epoch) that issues the operations of a copy engine.

    The queue is a CopyQueue (runtime/protocol.py). Fields are those of a kernel; it counts as one program.
    """

    programs: ClassVar[int] = 1


@dataclass(frozen=True, kw_only=True)
class TensorSpec:
    """A tensor of every rank: `buffers` of `shape` elements, one after the other. `number` names it in traces.

    symmetric: True if peers access it. space: "in", "out", "inout", "kept", "local", "symmetric" or "table", as in
    programs. A kept tensor is the kernel's own: zeros before its first launch, then what each launch has left.
    members: the first rank that has it and one past the last; None if all have it. Others neither take nor return it,
    and have no memory for it unless it is symmetric: symmetric memory is the same on all ranks.
    """

    name: str
    number: int
    space: str
    symmetric: bool
    shape: tuple[int, ...]
    dtype: str
    buffers: int
    members: tuple[int, int] | None = None

    def on(self, rank: int) -> bool:
        """True if a rank has it."""
        return self.members is None or self.members[0] <= rank < self.members[1]

    @property
    def is_given(self) -> bool:
        """True if each launch is given it: an input, or a tensor that it writes in place."""
        return self.space in ("in", "inout")

    @property
    def is_result(self) -> bool:
        """True if each launch returns it: an output, or a tensor that it is given and writes in place."""
        return self.space in ("out", "inout")

    @property
    def in_place(self) -> bool:
        """True if a launch changes what was there before it: a tensor that it is given, or one that launches keep."""
        return self.space in ("inout", "kept")

    @property
    def is_passed(self) -> bool:
        """True if it is an argument or a result of launches, and no peer accesses it."""
        return self.space in ("in", "out", "inout") and not self.symmetric

    @property
    def size(self) -> int:
        """Return the elements of a buffer."""
        return prod(self.shape)

    def buffer(self, epoch: int) -> int:
        """Return the buffer that launch `epoch` uses."""
        return (epoch - 1) % self.buffers


@dataclass(frozen=True, kw_only=True)
class SignalGrid:
    """The counters of one (tensor, signal kind): pad[base + buffer * count + linear].

    thresholds: number of notifies of each counter in one launch, int [ranks, count].
    """

    tensor: str
    kind: str
    base: int
    counts: tuple[int, ...]
    buffers: int
    thresholds: NDArray[np.int64]

    @property
    def count(self) -> int:
        return prod(self.counts)

    @property
    def signal(self) -> Signal:
        return self.tensor, self.kind

    def has(self, channel: int) -> bool:
        """True if a counter of the pad belongs to this grid."""
        return self.base <= channel < self.base + self.buffers * self.count


# Promises ----------------------------------------------------------------------------------------------------

OPERATIONS = frozenset({"+", "-", "*", "//", "%", "^", "min", "max"})
PROMISES = frozenset({"distinct", "rising", "offsets", "replicated"})


@dataclass(frozen=True, kw_only=True)
class Constant(Variant):
    """A number in a bound."""

    value: int


@dataclass(frozen=True, kw_only=True)
class OwnCoordinate(Variant):
    """The coordinate, along a dimension, of the entry that a bound is for."""

    dim: int


@dataclass(frozen=True, kw_only=True)
class OwnRank(Variant):
    """The number of the rank that is given the entries."""


@dataclass(frozen=True, kw_only=True)
class Entry(Variant):
    """The entry of an index tensor at as many numbers as it has dimensions.

    modulo: for each of them, True if the number is taken modulo the extent.
    """

    tensor: str
    modulo: tuple[bool, ...]


@dataclass(frozen=True, kw_only=True)
class Operation(Variant):
    """An operation of two numbers: one of `+ - * // % ^ min max`."""

    op: str


@dataclass(frozen=True, kw_only=True)
class Promise:
    """Promises about the entries of an index tensor that is given with each launch. The proof assumes it.

    bound: entries lie in [0, bound). It is in postfix order: each element takes its operands from a stack.
    properties: as of the tensor in a program. declared: the declaration, for messages.

    part: None, or the extents of a tensor's first dimensions. Then the promise is that the last of them has all that
    the tensor is declared to have along it: `bound`, for each element of the others, is at most its extent.
    """

    tensor: str
    bound: tuple[Constant | OwnCoordinate | OwnRank | Entry | Operation, ...]
    properties: tuple[str, ...]
    declared: str
    part: tuple[int, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class Artifact:
    """A compiled program of a group of ranks.

    program, target: their names. source: name of the generated module. dialect: dialect of its kernels.
    pad_size: int32 counters in a rank's signal pad. The last ones are the runtime's: one per rank for entries, and
        one per rank for ends of launches.
    nodes: how many nodes the ranks fill one after the other. Kernels reach ranks of other nodes through the network.
    stages: their names, by number. pulls: numbers of the stages that fetch, so that traces name the source of a copy
        that stays on its rank.
    tables: values of the program's tables, int [ranks, *shape].
    lag: a rank may prepare launch e, or let its copy engine begin, once all peers have finished launch e - lag,
        because its copy engine and its staged inputs then write to them. 0: without waiting.
    reuse_wait: True if kernels wait for peers' earlier launches, not only for the program's own signals.
    spans: largest number of spans that a program records in a launch, if kernels are traced; else 0.
    free_waits: True if the waits of copy engines may be a branch of a graph, in parallel with their copies.
    own_copies_first: True if copies of a copy engine within its rank, before its first wait, may overtake the rest
        of its queue (planning/queue_order.py). Otherwise all operations before them precede the kernels as well.
    promises: of the index tensors that are given with each launch, in the order of their declarations.
    """

    program: str
    target: str
    source: str
    dialect: str
    ranks: int
    nodes: int
    tensors: tuple[TensorSpec, ...]
    grids: tuple[SignalGrid, ...]
    pad_size: int
    entered_base: int
    finished_base: int
    stages: tuple[str, ...]
    pulls: frozenset[int]
    kernels: tuple[KernelSpec, ...]
    copy_programs: tuple[CopyProgram, ...]
    tables: Mapping[str, NDArray[np.int64]]
    protocol: LaunchProtocol
    lag: int
    reuse_wait: bool
    spans: int
    free_waits: bool
    own_copies_first: bool
    promises: tuple[Promise, ...] = ()

    # Look-ups --------------------------------------------------------------------------------------------

    def tensor(self, name: str) -> TensorSpec:
        return next(t for t in self.tensors if t.name == name)

    def grid(self, channel: int) -> SignalGrid:
        """Return the grid of a counter. Raises KeyError for one of the runtime's own."""
        for grid in self.grids:
            if grid.has(channel):
                return grid
        raise KeyError(channel)

    def grid_of(self, signal: Signal) -> SignalGrid:
        return next(g for g in self.grids if g.signal == signal)

    @cached_property
    def launched(self) -> tuple[KernelSpec | CopyProgram, ...]:
        """Return kernels and copy programs, in the order in which their programs are counted."""
        return tuple(sorted((*self.kernels, *self.copy_programs), key=lambda one: one.track))

    def describe(self, stage: int, channel: int) -> tuple[str, str]:
        """Return the names of a stage and of a counter, for messages."""
        name = self.stages[stage] if 0 <= stage < len(self.stages) else "the runtime"
        return name, self._channel(channel)

    def _channel(self, channel: int) -> str:
        if channel >= self.finished_base:
            return f"the end of rank {channel - self.finished_base}"
        if channel >= self.entered_base:
            return f"the entry of rank {channel - self.entered_base}"
        try:
            grid = self.grid(channel)
        except KeyError:
            return f"channel {channel}"
        buffer, linear = divmod(channel - grid.base, grid.count)
        place = ", ".join(str(int(c)) for c in np.unravel_index(linear, grid.counts))
        return f"{grid.tensor} {grid.kind} channel [{place}] of buffer {buffer}"

    # Derived values --------------------------------------------------------------------------------------

    @cached_property
    def cycle(self) -> int:
        """Return the number of launches after which every tensor is at the same buffer again."""
        return lcm(*(t.buffers for t in self.tensors), *(g.buffers for g in self.grids), 1)

    @cached_property
    def counted(self) -> int:
        """Return the number of programs of a launch if they are counted to number launches, else 0."""
        return sum(kernel.programs for kernel in self.kernels) if self.protocol.counted else 0

    @cached_property
    def copies_outputs(self) -> bool:
        """True if outputs are copied out of buffers that peers may write to."""
        return any(t.symmetric and t.space == "out" for t in self.tensors)

    @cached_property
    def replays_in_turn(self) -> bool:
        """True if a replay of a captured launch is simply the next launch, with the buffers of that launch.

        Kernels choose buffers by the number of the launch, which they read on the device. Copies that the host issues
        have constant addresses: those of inputs that peers read and of outputs that peers write, and a copy engine's.
        With a single buffer the former are the same in every launch. It is the same on all ranks, which must agree.
        """
        by_host = any(t.symmetric and (t.is_given or t.space == "out") for t in self.tensors)
        return not self.copy_programs and (self.cycle == 1 or not by_host)

    @cached_property
    def shares_memory(self) -> bool:
        """True if launches share memory that no caller gives, so that one must end before the next begins.

        Those of a program with a handshake share at least their number.
        """
        takes_tiles = any(isinstance(one, TileCounterPointer) for kernel in self.kernels for one in kernel.parameters)
        own = any(t.space in ("kept", "local") for t in self.tensors)
        return own or takes_tiles or self.protocol is not LaunchProtocol.INDEPENDENT

    @cached_property
    def needs_entry(self) -> bool:
        """True if peers read this rank's inputs, and so must be notified that these are ready."""
        return any(one.needs_entry for one in self.launched)

    @cached_property
    def fingerprint(self) -> int:
        """Return 60 bits that are equal on ranks that compile the same module, counters, tables and all else."""
        return int.from_bytes(hashlib.blake2b(self.to_json().encode(), digest_size=8).digest(), "big") >> 4

    # As text ---------------------------------------------------------------------------------------------

    def to_json(self) -> str:
        """Return a text from which `from_json` makes an equal artifact."""
        return json.dumps({"format": FORMAT, "artifact": plain(self)})


def from_json(raw: bytes, where: str) -> Artifact:
    """Return the artifact of a text. `where` names it in errors. Raises DataError for any other text.

    Everything in it is checked: the type of each field, and that all names in it are defined in it.
    """
    return _artifact(parse_json(raw, where), where)


def read_artifact(path: Path) -> Artifact:
    """Return the artifact in a file, as `from_json` reads it. Raises DataError."""
    return _artifact(read_json(path), str(path))


def _artifact(found: Any, where: str) -> Artifact:
    if not isinstance(found, dict) or set(found) != {"format", "artifact"}:
        raise DataError(f"{where} is no artifact", hint="it is written by Artifact.to_json")
    if found["format"] != FORMAT:
        raise DataError(f"{where} has format {found['format']!r}, not {FORMAT}", hint="compile the program again")
    artifact = checked(Artifact, found["artifact"], where)
    _check(artifact, where)
    return artifact


def _check(artifact: Artifact, where: str) -> None:
    """Raise DataError for an artifact whose parts do not fit each other."""
    tensors = {t.name: t for t in artifact.tensors}
    signals = {g.signal for g in artifact.grids}

    def require(true: bool, what: str) -> None:
        if not true:
            raise DataError(f"{where}: {what}", hint="compile the program again")

    # It names a file of the cache: no other text may be executed, wherever it is.
    require(SOURCE.fullmatch(artifact.source) is not None, f"{artifact.source!r} is no name of a generated module")
    require(artifact.ranks > 0, f"it is for {artifact.ranks} ranks")
    require(len(tensors) == len(artifact.tensors), "two tensors have one name")
    require(len({t.number for t in artifact.tensors}) == len(tensors), "two tensors have one number")
    require(len(signals) == len(artifact.grids), "two grids of counters are of one signal")
    for grid in artifact.grids:
        shape = grid.thresholds.shape
        require(grid.tensor in tensors, f"counters of {grid.tensor!r}, which is no tensor of it")
        require(shape == (artifact.ranks, grid.count), f"thresholds of {grid.tensor} {grid.kind} are {list(shape)}")
        inside = grid.base >= 0 and grid.base + grid.buffers * grid.count <= artifact.entered_base
        require(grid.buffers > 0, f"counters of {grid.tensor} {grid.kind} have {grid.buffers} buffers")
        require(inside, f"counters of {grid.tensor} {grid.kind} lie outside of the pad")
    ends = [(grid.base, grid.base + grid.buffers * grid.count) for grid in artifact.grids]
    apart = all(end <= begin for (_, end), (begin, _) in pairwise(sorted(ends)))
    require(apart, "two signals share counters")
    runtimes = artifact.entered_base + artifact.ranks == artifact.finished_base
    require(artifact.nodes > 0 and artifact.ranks % artifact.nodes == 0, "its nodes have not equally many ranks")
    require(runtimes and artifact.finished_base + artifact.ranks == artifact.pad_size, "the pad has another size")
    for tensor in artifact.tensors:
        require(min(tensor.shape, default=0) >= 0, f"tensor {tensor.name!r} has the shape {list(tensor.shape)}")
        require(tensor.buffers > 0, f"tensor {tensor.name!r} has {tensor.buffers} buffers")
        one = tensor.buffers == 1 or not tensor.in_place
        require(one, f"tensor {tensor.name!r}, which launches change in place, has {tensor.buffers} buffers")
        first, stop = tensor.members or (0, artifact.ranks)
        require(0 <= first < stop <= artifact.ranks, f"tensor {tensor.name!r} is on ranks {first} to {stop - 1}")
        if tensor.space == "table":
            table = artifact.tables.get(tensor.name)
            fits = table is not None and table.shape == (artifact.ranks, *tensor.shape)
            require(fits, f"table {tensor.name!r} has no values of its shape")
    for one in artifact.launched:
        for signal in sorted(one.awaits | one.notifies):
            require(signal in signals, f"{one.name} names the signal {signal}, which there is not")
    for kernel in artifact.kernels:
        whole = kernel.programs_per_cta > 0 and kernel.programs % kernel.programs_per_cta == 0
        require(kernel.programs > 0 and whole, f"the grid of {kernel.name}")
        for parameter in kernel.parameters:
            _check_parameter(artifact, parameter, f"{where}: {kernel.name}")
    given = {t.name: t for t in artifact.tensors if t.space == "in" and t.dtype == "i32"}
    for promise in artifact.promises:
        name = promise.tensor
        if promise.part is None:
            require(name in given, f"a promise of {name!r}, which is no index tensor that a launch is given")
        else:
            shape = next((t.shape for t in artifact.tensors if t.name == name and t.space in ("in", "out")), ())
            fits = len(promise.part) > 0 and tuple(shape[: len(promise.part)]) == promise.part
            require(fits, f"a promise of {name!r}, which has no dimension of this extent")
        require(_is_bound(promise, given), f"the bound of {name!r} is no number")
        require(set(promise.properties) <= PROMISES, f"{name!r} promises {', '.join(promise.properties)}")


def _is_bound(promise: Promise, given: Mapping[str, TensorSpec]) -> bool:
    """True if the bound of a promise takes as many numbers from the stack as there are, and leaves one."""
    depth = 0
    for step in promise.bound:
        match step:
            case Constant() | OwnRank():
                depth += 1
            case OwnCoordinate(dim=dim):
                dims = len(given[promise.tensor].shape) if promise.part is None else len(promise.part) - 1
                if not 0 <= dim < dims:
                    return False
                depth += 1
            case Entry(tensor=tensor, modulo=modulo):
                if tensor not in given or len(given[tensor].shape) != len(modulo) or depth < len(modulo):
                    return False
                depth += 1 - len(modulo)
            case Operation(op=op):
                if op not in OPERATIONS or depth < 2:
                    return False
                depth -= 1
    return depth == 1


def _check_parameter(artifact: Artifact, parameter: Any, where: str) -> None:
    names, signals = {t.name for t in artifact.tensors}, {g.signal for g in artifact.grids}
    hint = "compile the program again"
    match parameter:
        case ThresholdsPointer(tensor=tensor, kind=kind) if (tensor, kind) not in signals:
            raise DataError(f"{where} takes thresholds of {tensor} {kind}, which has no counters", hint=hint)
        case TensorPointer() | PeersPointer() | Descriptor() | Boxes() if parameter.tensor not in names:
            raise DataError(f"{where} takes {parameter.tensor!r}, which is no tensor of it", hint=hint)
        case PeersPointer(tensor=tensor) if not artifact.tensor(tensor).symmetric:
            message = f"{where} takes the copies of {tensor!r} that peers have, and it is not symmetric"
            raise DataError(message, hint=hint)
        case Boxes(owner=int(owner)) if not 0 <= owner < artifact.ranks:
            raise DataError(f"{where} takes boxes of rank {owner}, of {artifact.ranks}", hint=hint)
        case _:
            pass
