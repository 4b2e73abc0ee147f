# pyright: basic
"""An executor, in Python, of the Gluon source of a kernel whose warps have roles: what the source does is seen.

The functions of the emitted module, and those of device/roles.py and device/numeric.py that they call, run as they are
written. Stand-ins take the place of Gluon's own operations. What is modelled:

* Roles are threads of which one runs at a time. At each operation that others may see, a random one goes on, and some
  are slower than others. Programs run in a random order, and ranks one after the other.
* Barriers in shared memory have a count of arrivals, of bytes, and a phase. What waits for a parity goes on when that
  phase is over. One arrival too many is a fault.
* Loads of boxes leave NaN in their buffer until they end, at a random time. Then they bring their bytes to a barrier.
* Stores of boxes read their buffer at a random time, and are in memory some time later. What warps have written to a
  buffer without a fence cannot be stored, and a warp cannot notify before its stores are in memory. Roles cannot begin
  if barriers were made without a fence.
* Products of warpgroups read their operands at a random time between their start and the wait that retires them. An
  accumulator in flight is no number.
* A tensor for whose signals the kernel waits is NaN in each program until the program waits for the right number of
  arrivals at the counter of an element. All signals have been given.

What is not: which thread holds which element (layouts, swizzles, registers), the order in which threads of a role see
one another's writes, Triton's optimizer, signals of other kernels that come late or not at all, integers that overflow,
and rounding inside tensor cores. Products are computed in f32.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import product
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any

import torch
import triton.language as tl
from triton.experimental.gluon import language as gl
from triton.runtime.jit import JITCallable

from tilelink import device
from tilelink.artifact import (
    Boxes,
    EpochPointer,
    KernelSpec,
    NumPrograms,
    PeersPointer,
    Rank,
    SignalsPointer,
    SignalTablePointer,
    TensorPointer,
    ThresholdsPointer,
)
from tilelink.backend import store
from tilelink.backend.context import Emitted
from tilelink.device import numeric, roles, tiles
from tilelink.ir.mapping import ChannelGrid
from tilelink.lowering.bound import Bound
from tilelink.lowering.rings import Roles
from tilelink.lowering.role_statements import results_of
from tilelink.planning.plan import Plan

Memory = Sequence[Mapping[str, torch.Tensor]]
"""[rank][name]: tensors, each of [buffers, ...] elements."""
NAN = float("nan")
DTYPES = {
    "float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "float8e4nv": torch.float8_e4m3fn,
    "float8e5": torch.float8_e5m2, "int1": torch.bool, "int8": torch.int8, "uint8": torch.uint8, "int32": torch.int32,
    "int64": torch.int64,
}  # fmt: skip


class Fault(Exception):
    """What a GPU does not define, or what roles must not do."""


class Stuck(Exception):
    """No role can go on."""


class _Ended(BaseException):
    """Raised in the threads of roles that are left when one has failed."""


@dataclass(frozen=True, kw_only=True)
class Event:
    """What a role did: a step of lowering/rings.py, `tile`, `wait` or `notify`.

    what: a barrier, a ring, a tensor, or the left operand of a product. slot: a place of a ring, the number of a stage,
    or the rank of a pad. number: a parity, bytes, reads in flight, a tile, or a counter.
    """

    role: str
    word: str
    what: str = ""
    slot: int = 0
    number: int = 0


# Numbers and memory ------------------------------------------------------------------------------------------


class Value(torch.Tensor):
    """A tile or a number of a role, with the attributes that Gluon's have."""

    @property
    def type(self) -> Any:  # type: ignore[override]
        return SimpleNamespace(layout=None)

    def to(self, dtype: torch.dtype, bitcast: bool = False) -> Value:  # type: ignore[override]
        return self.view(dtype) if bitcast else super().to(dtype)  # type: ignore[return-value]


def nothing(dtype: torch.dtype) -> float | int:
    """Return what stands for an element that is not there: no kernel means this number."""
    return NAN if dtype.is_floating_point else torch.iinfo(dtype).max


def _value(x: Any) -> Value:
    """Return a tensor or a number as a value. A product in flight is none."""
    if isinstance(x, Flying):
        raise Fault("a product in flight is used")
    if not isinstance(x, torch.Tensor):
        x = torch.tensor(x, dtype=torch.float32 if isinstance(x, float) else None)
    return x.as_subclass(Value)


def _plain(*several: Any) -> bool:
    """True for numbers of Python alone."""
    return not any(isinstance(x, torch.Tensor | Flying) for x in several)


def _choice(condition: Any, a: Any, b: Any) -> Any:
    if _plain(condition):
        return a if condition else b
    return torch.where(_value(condition), _value(a), _value(b))


def _pair(of_numbers: Callable[..., Any], of_tiles: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of two numbers or tiles. Those of tiles return NaN where either is NaN."""

    def both(a: Any, b: Any, propagate_nan: Any = None) -> Any:
        return of_numbers(a, b) if _plain(a, b) else of_tiles(_value(a), _value(b))

    return both


def _cast(x: Any, dtype: torch.dtype) -> Any:
    """Return a value in another type. Types of 8 bits saturate."""
    x = _value(x)
    if dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        most = torch.finfo(dtype).max
        x = x.to(torch.float32).clamp(-most, most)
    return x.to(dtype)


def _full(shape: Sequence[int], number: Any, dtype: torch.dtype, layout: Any = None) -> Value:
    return _value(torch.full([int(n) for n in shape], number, dtype=dtype))


def _folded(x: Value, axis: int, function: Callable[[Any, Any], Any]) -> Value:
    """Return a reduction along an axis whose size is a power of two."""
    while x.shape[axis] > 1:
        x = function(*x.chunk(2, axis))
    return x.squeeze(axis)  # type: ignore[return-value]


def _of_one(function: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Any], Any]:
    return lambda x: function(_value(x))


def _language() -> SimpleNamespace:
    """Return the functions of `tl` and `gl` that need no role."""
    return SimpleNamespace(
        **DTYPES,
        abs=_of_one(torch.abs), exp=_of_one(torch.exp), exp2=_of_one(torch.exp2), log=_of_one(torch.log),
        sqrt=_of_one(torch.sqrt), rsqrt=_of_one(torch.rsqrt), erf=_of_one(torch.erf), floor=_of_one(torch.floor),
        maximum=_pair(max, torch.maximum), minimum=_pair(min, torch.minimum), where=_choice,
        fma=lambda a, b, c: a * b + c, cast=_cast, full=_full,
        zeros=lambda shape, dtype, layout=None: _full(shape, 0, dtype),
        arange=lambda start, stop, layout=None: _value(torch.arange(start, stop, dtype=torch.int32)),
        sum=lambda x, axis=0: _value(x).sum(axis, dtype=x.dtype), max=lambda x, axis=0: _value(x).amax(axis),
        min=lambda x, axis=0: _value(x).amin(axis), cumsum=lambda x, axis=0: _value(x).cumsum(axis, dtype=x.dtype),
        reduce=lambda x, axis, function: _folded(_value(x), axis, function),
        split=lambda x: _value(x).unbind(-1), convert_layout=lambda x, layout: _value(x),
        expand_dims=lambda x, axis: _value(x).unsqueeze(axis), static_range=range,
        PropagateNan=SimpleNamespace(ALL=None),
        NVMMADistributedLayout=_layout, SliceLayout=_layout, DotOperandLayout=_layout, BlockedLayout=_layout,
        SwizzledSharedLayout=_layout,
    )  # fmt: skip


def _layout(*_: Any) -> None:
    """Stand for a layout: which thread has which element is not modelled."""


@dataclass(frozen=True)
class Pointer:
    """The address of an element of a tensor, or of those of a tile. stored: where stores go."""

    elements: torch.Tensor
    stored: torch.Tensor
    offset: Any = 0

    def __add__(self, other: Any) -> Pointer:
        return Pointer(self.elements, self.stored, self.offset + other)

    def places(self, mask: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the offsets and which of them count. Raises Fault for one outside of the tensor."""
        shape = torch.broadcast_tensors(_value(self.offset), _value(True if mask is None else mask))
        at, counts = (x.as_subclass(torch.Tensor) for x in shape)
        within = (at >= 0) & (at < self.elements.numel())
        if not bool((within | ~counts).all()):
            raise Fault("an access outside of a tensor")
        return torch.where(counts, at, 0).long(), counts


@dataclass(frozen=True, kw_only=True)
class Descriptor:
    """Boxes of a tensor in memory, whose elements are rows of its last dimension. stored: where stores go."""

    tensor: str
    rows: torch.Tensor
    stored: torch.Tensor
    box: tuple[int, int]
    dtype: torch.dtype
    layout: None = None

    def part(self, rows: torch.Tensor, at: Sequence[Any]) -> torch.Tensor:
        """Return what there is of a box in the tensor."""
        row, column = int(at[0]), int(at[1])
        if row < 0 or column < 0:
            raise Fault(f"a box of {self.tensor} at row {row} and column {column}")
        return rows[row : row + self.box[0], column : column + self.box[1]]


@dataclass(kw_only=True)
class Barrier:
    """A barrier in shared memory. missing, bytes: arrivals and bytes before its phase is over."""

    of: Shared
    slot: int
    count: int = 0
    missing: int = 0
    bytes: int = 0
    phase: int = 0

    def change(self, arrivals: int, more: int) -> None:
        self.missing -= arrivals
        self.bytes += more
        if self.missing < 0:
            raise Fault("a barrier has an arrival too many")
        if self.missing == 0 and self.bytes == 0:
            self.phase, self.missing = 1 - self.phase, self.count


@dataclass(kw_only=True)
class Shared:
    """Barriers or buffers in shared memory. name: that of the parameter by which roles know it."""

    name: str = ""
    places: list[Any] = field(default_factory=list)

    def index(self, place: Any) -> Any:
        if not 0 <= int(place) < len(self.places):
            raise Fault(f"place {int(place)} of {len(self.places)} in {self.name}")
        return self.places[int(place)]


@dataclass(frozen=True, kw_only=True)
class Buffer:
    """A buffer of a ring, or a view of it."""

    ring: Shared
    slot: int
    data: torch.Tensor
    block: Block = field(repr=False)

    def slice(self, start: int, length: int, dim: int = 0) -> Buffer:
        return self.seen(self.data.narrow(dim, start, length))

    def permute(self, order: Sequence[int]) -> Buffer:
        return self.seen(self.data.permute(*order))

    def seen(self, data: torch.Tensor) -> Buffer:
        return Buffer(ring=self.ring, slot=self.slot, data=data, block=self.block)

    def load(self, layout: Any) -> Value:
        self.block.record("take", self.ring.name, self.slot)
        return _value(self.data.clone())

    def store(self, value: Any) -> None:
        value = _value(value)
        if (value.shape, value.dtype) != (self.data.shape, self.data.dtype):
            raise Fault(f"{tuple(value.shape)} {value.dtype} in a buffer of {tuple(self.data.shape)}")
        self.data.copy_(value)
        self.block.running.unfenced.add(self.place)
        self.block.record("fill", self.ring.name, self.slot)

    @property
    def place(self) -> tuple[str, int]:
        return self.ring.name, self.slot


# Roles -------------------------------------------------------------------------------------------------------


@dataclass(eq=False, kw_only=True)
class Product:
    """A product that a role has started. The operands are read once."""

    left: Buffer | Value
    right: Buffer
    result: torch.Tensor | None = None

    def compute(self) -> None:
        if self.result is None:
            left = self.left.data if isinstance(self.left, Buffer) else self.left
            self.result = left.float() @ self.right.data.float()


@dataclass(frozen=True, kw_only=True)
class Flying:
    """An accumulator with products in flight."""

    base: Value
    products: tuple[Product, ...]

    @property
    def type(self) -> Any:
        return SimpleNamespace(layout=None)

    def __getattr__(self, name: str) -> Any:
        raise Fault(f"`{name}` of a product in flight")

    def without(self, flying: list[Product]) -> Flying | Value:
        """Return this accumulator with the products that have ended."""
        ended = [one for one in self.products if one not in flying]
        base = self.base
        for one in ended:
            assert one.result is not None
            base = _value(base + one.result)
        left = tuple(one for one in self.products if one in flying)
        return Flying(base=base, products=left) if left else base


@dataclass(eq=False, kw_only=True)
class BoxStore:
    """A store of a box: it reads its buffer, and is in memory later."""

    buffer: Buffer
    target: torch.Tensor
    held: torch.Tensor | None = None
    written: bool = False

    def read(self) -> None:
        if self.held is None:
            rows, columns = self.target.shape
            self.held = self.buffer.data[:rows, :columns].clone()

    def write(self) -> None:
        self.read()
        if not self.written:
            self.written = True
            self.target.copy_(self.held)  # type: ignore[arg-type]


@dataclass(eq=False, kw_only=True)
class Role:
    """A thread that runs a role. ready: when it can go on; None: at once."""

    name: str
    run: Callable[[], None]
    speed: float
    go: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    ready: Callable[[], bool] | None = None
    at: str = ""
    ended: bool = False
    products: list[Product] = field(default_factory=list)
    stores: list[BoxStore] = field(default_factory=list)
    unfenced: set[tuple[str, int]] = field(default_factory=set)


@dataclass(kw_only=True)
class Block:
    """A program: its roles, what is in flight, and what has happened."""

    random: random.Random
    number: int
    roles: list[Role] = field(default_factory=list)
    flying: list[Callable[[], None]] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    error: BaseException | None = None
    stopping: bool = False
    back: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    current: Role | None = None
    unfenced: bool = False
    """True if barriers have been made since the last fence."""

    @property
    def running(self) -> Role:
        assert self.current is not None
        return self.current

    def record(self, word: str, what: str = "", slot: int = 0, number: int = 0) -> None:
        self.events.append(Event(role=self.running.name, word=word, what=what, slot=slot, number=number))

    def add(self, name: str, run: Callable[[], None]) -> None:
        self.roles.append(Role(name=name, run=run, speed=self.random.choice([0.05, 1, 1, 5])))

    def run(self) -> None:
        """Run all roles to their end. Raises what a role raises, and Stuck."""
        threads = [threading.Thread(target=self._body, args=(role,), daemon=True) for role in self.roles]
        for thread in threads:
            thread.start()
        pace = self.random.choice([0.05, 0.5, 3])
        try:
            while self._step(pace):
                if self.error is not None:
                    raise self.error
        finally:
            self.stopping = True
            for role in self.roles:
                role.go.release()
            for thread in threads:
                thread.join()

    def _body(self, role: Role) -> None:
        role.go.acquire()
        try:
            if not self.stopping:
                role.run()
        except _Ended:
            pass
        except BaseException as error:
            self.error = self.error or error
        role.ended = True
        self.back.release()

    def _step(self, pace: float) -> bool:
        """Let a role go on, or what is in flight end. Return False when all has ended."""
        left = [role for role in self.roles if not role.ended]
        ready = [role for role in left if role.ready is None or role.ready()]
        if not ready and not self.flying:
            if left:
                raise Stuck("; ".join(f"{role.name} {role.at}" for role in left))
            return False
        weights = [role.speed for role in ready] + [pace] * bool(self.flying)
        at = self.random.choices(range(len(weights)), weights)[0]
        if at == len(ready):
            self.flying.pop(self.random.randrange(len(self.flying)))()
            return True
        self.current = ready[at]
        self.current.ready = None
        self.current.go.release()
        self.back.acquire()
        return True

    def pause(self, ready: Callable[[], bool] | None = None, at: str = "") -> None:
        """Let others go on, and this role when it is ready."""
        role = self.running
        role.ready, role.at = ready, at
        self.back.release()
        role.go.acquire()
        if self.stopping:
            raise _Ended


# Gluon's operations ------------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class Operations:
    """Gluon's operations in the program that runs."""

    block: Block = field(default_factory=lambda: Block(random=random.Random(0), number=0))

    def program_id(self, axis: int) -> int:
        return self.block.number

    def allocate_shared_memory(self, dtype: torch.dtype, shape: Sequence[int], layout: Any) -> Shared:
        count, *size = (int(n) for n in shape)
        made = Shared()
        if layout is Barrier:
            made.places = [Barrier(of=made, slot=slot) for slot in range(count)]
        else:
            every = torch.full((count, *size), nothing(dtype), dtype=dtype)
            made.places = [Buffer(ring=made, slot=n, data=one, block=self.block) for n, one in enumerate(every)]
        return made

    def warp_specialize(self, parts: Sequence[tuple[Any, tuple[Any, ...]]], warps: Any, registers: Any) -> None:
        if self.block.unfenced:
            raise Fault("loads may arrive at barriers that were made without a fence")
        for number, (function, args) in enumerate(parts):
            names = function.__code__.co_varnames
            for name, arg in zip(names, args, strict=False):
                if isinstance(arg, Shared):
                    arg.name = name
            kind = function.__name__.rsplit("_", 1)[1]
            self.block.add(kind + (str(number) if kind == "consumer" else ""), partial(function, *args))
        self.block.run()
        for role in self.block.roles:
            for one in role.stores:
                one.write()

    def load(self, pointer: Pointer, mask: Any = None, other: Any = 0.0, **_: Any) -> Value:
        at, counts = pointer.places(mask)
        found = _value(pointer.elements[at])
        if self.block.current is not None:
            self.block.pause()
        return found if mask is None else torch.where(counts, found, _value(other).to(found.dtype))  # type: ignore

    def store(self, pointer: Pointer, value: Any, mask: Any = None) -> None:
        at, counts = pointer.places(mask)
        value = _value(value).expand(at.shape)
        pointer.stored[at[counts]] = value[counts].as_subclass(torch.Tensor)
        self.block.pause()

    def init(self, barrier: Barrier, count: int) -> None:
        barrier.count = barrier.missing = count
        self.block.unfenced = True

    def wait(self, barrier: Barrier, phase: Any) -> None:
        parity, name = int(phase) & 1, barrier.of.name
        self.block.pause(lambda: barrier.phase != parity, f"waits at {name} {barrier.slot} for parity {parity}")
        self.block.record("await", name, barrier.slot, parity)

    def arrive(self, barrier: Barrier) -> None:
        barrier.change(1, 0)
        self.block.record("arrive", barrier.of.name, barrier.slot)
        self.block.pause()

    def expect(self, barrier: Barrier, size: int) -> None:
        barrier.change(1, size)
        self.block.record("expect", barrier.of.name, barrier.slot, size)
        self.block.pause()

    def load_box(self, boxes: Descriptor, at: Sequence[Any], full: Barrier, buffer: Buffer) -> None:
        if tuple(buffer.data.shape) != boxes.box or buffer.data.dtype != boxes.dtype:
            raise Fault(f"a box of {boxes.box} in a buffer of {tuple(buffer.data.shape)}")
        source = boxes.part(boxes.rows, at)
        size = buffer.data.numel() * buffer.data.element_size()
        buffer.data.fill_(NAN)
        self.block.record("load", buffer.ring.name, buffer.slot, size)

        def end() -> None:
            buffer.data.zero_()
            buffer.data[: source.shape[0], : source.shape[1]] = source
            full.change(0, -size)

        self.block.flying.append(end)
        self.block.pause()

    def store_box(self, boxes: Descriptor, at: Sequence[Any], buffer: Buffer) -> None:
        if tuple(buffer.data.shape) != boxes.box:
            raise Fault(f"a box of {boxes.box} from a buffer of {tuple(buffer.data.shape)}")
        if any(buffer.place in role.unfenced for role in self.block.roles):
            raise Fault("a buffer is stored that was written without a fence")
        one = BoxStore(buffer=buffer, target=boxes.part(boxes.stored, at))
        self.block.running.stores.append(one)
        self.block.flying += [one.read, one.write]
        self.block.record("store", boxes.tensor, buffer.slot)
        self.block.pause()

    def stored(self, flying: int) -> None:
        stores = self.block.running.stores
        for one in stores[: max(len(stores) - flying, 0)]:
            one.read()
        self.block.record("retire", number=flying)
        self.block.pause()

    def fence(self) -> None:
        self.block.unfenced = False
        if self.block.current is None:  # before the roles begin
            return
        self.block.running.unfenced.clear()
        self.block.record("fence")

    def multiply(self, left: Any, right: Buffer, acc: Any, use_acc: bool = True, is_async: bool = True) -> Flying:
        one = Product(left=left if isinstance(left, Buffer) else _value(left), right=right)
        self.block.running.products.append(one)
        if self.block.random.random() < 0.4:
            one.compute()
        self.block.record("multiply", left.ring.name if isinstance(left, Buffer) else "registers", right.slot)
        before = acc if isinstance(acc, Flying) else Flying(base=_value(acc), products=())
        if not use_acc:
            before = Flying(base=_value(torch.zeros_like(before.base)), products=())
        return Flying(base=before.base, products=(*before.products, one))

    def retire(self, flying: int, deps: Sequence[Any]) -> Any:
        products = self.block.running.products
        while len(products) > flying:
            products.pop(0).compute()
        self.block.record("retire", number=flying)
        self.block.pause()
        return deps[0].without(products) if isinstance(deps[0], Flying) else deps[0]


@dataclass(kw_only=True)
class Counters:
    """The counters of a tensor in a launch. thresholds: [rank][counter], arrivals of a launch."""

    grid: ChannelGrid
    thresholds: Any
    launch: int

    def has(self, channel: int) -> bool:
        return 0 <= channel - self.grid.base < self.grid.buffers * self.grid.count

    def place(self, channel: int) -> tuple[int, tuple[int | slice, ...]]:
        """Return the number of a counter, and the elements that it is for, which are in the buffer of the launch."""
        buffer, number = divmod(channel - self.grid.base, self.grid.count)
        if buffer != (self.launch - 1) % self.grid.buffers:
            raise Fault(f"launch {self.launch} uses counters of buffer {buffer} of {self.grid.tensor}")
        part: list[slice] = []
        left = number
        for count, size in zip(reversed(self.grid.counts), reversed(self.grid.sizes), strict=True):
            left, at = divmod(left, count)
            part.insert(0, slice(at * size, (at + 1) * size))
        return number, (buffer, *part)


@dataclass(kw_only=True)
class Late(Counters):
    """A tensor of which a program of `rank` sees what it has waited for. arrived: all of it."""

    rank: int
    arrived: torch.Tensor
    seen: torch.Tensor

    def hide(self) -> None:
        self.seen.fill_(nothing(self.seen.dtype))

    def wait(self, channel: int, target: int) -> None:
        """Show what a counter is for. The target is the number of arrivals that this launch brings it to."""
        number, place = self.place(channel)
        generation = (self.launch - 1) // self.grid.buffers + 1
        if target != generation * int(self.thresholds[self.rank][number]):
            raise Fault(f"launch {self.launch} waits for {target} arrivals at counter {number} of {self.grid.tensor}")
        self.seen[place] = self.arrived[place]


@dataclass(kw_only=True)
class Given(Counters):
    """A tensor that a kernel stores and notifies. memory: [rank], as it is stored. counts: (rank, counter) -> notifies.

    final: [rank], what the launch leaves, NaN where it stores nothing. alone: True if no other kernel notifies these
    counters.
    """

    memory: list[torch.Tensor]
    final: list[torch.Tensor]
    alone: bool
    counts: Counter[tuple[int, int]] = field(default_factory=Counter[tuple[int, int]])

    def notify(self, rank: int, channel: int) -> None:
        number, place = self.place(channel)
        self.counts[rank, number] += 1
        complete = self.counts[rank, number] == int(self.thresholds[rank][number])
        missing = self.memory[rank][place].isnan() & ~self.final[rank][place[1:]].isnan()
        if complete and self.alone and bool(missing.any()):
            raise Fault(f"counter {number} of {self.grid.tensor} says what is not in memory")

    def missing(self) -> Iterator[str]:
        """Yield the counters of which the kernel has not given each arrival once."""
        for rank, row in enumerate(self.thresholds if self.alone else []):
            for number, wanted in enumerate(row):
                if self.counts[rank, number] != int(wanted):
                    yield f"{self.counts[rank, number]} arrivals of {wanted} at counter {number} of {self.grid.tensor}"


@dataclass(kw_only=True)
class Signals:
    """The device library's functions for signals, in the program that runs. Those that mark or count do nothing."""

    operations: Operations
    launch: int
    late: list[Late]
    given: list[Given]
    WARP: str = "warp"
    BLOCK: str = "block"

    def launch_number(self, *_: Any, **__: Any) -> Value:
        return _value(self.launch)

    def wait(self, signals: Any, channel: Any, target: Any, **_: Any) -> int:
        return self.wait_all(signals, channel, 1, target)

    def wait_all(self, signals: Any, first: Any, count: int, target: Any, step: int = 1, **_: Any) -> int:
        block = self.operations.block
        for channel in range(int(first), int(first) + int(count) * step, step):
            for one in self.late:
                if one.has(channel):
                    one.wait(channel, int(target))
            block.record("wait", number=channel)
        block.pause()
        return 0

    def notify(self, pad: int, channel: Any, rank: Any, scope: str = BLOCK, **_: Any) -> None:
        block = self.operations.block
        if int(rank) != pad:
            raise Fault("a notify at the pad of another rank")
        if scope != self.WARP:
            raise Fault("a notify of a role is not one of a warp, which waits for its stores")
        for one in block.running.stores:
            one.write()
        for one in self.given:
            if one.has(int(channel)):
                one.notify(pad, int(channel))
        block.record("notify", slot=pad, number=int(channel))
        block.pause()

    def symm_at(self, table: Sequence[Any], rank: Any, like: Any) -> Any:
        return table[int(rank)]

    def consume_token(self, value: Any, token: Any) -> Any:
        return value

    def tile_begin(self, stage: int, tile: Any, **_: Any) -> None:
        self.operations.block.record("tile", slot=int(stage), number=int(tile))

    def publish(self, **_: Any) -> None:
        for one in self.operations.block.running.stores:
            one.write()

    def _nothing(self, *_: Any, **__: Any) -> int:
        return 0

    announce_finished = meet_peers = count_program = finish_launch = begin_copies = _nothing
    tile_end = transfer = transfer_begin = _nothing


def _following(slot: int, phase: int, BUFFERS: int) -> tuple[int, int]:
    """Stand for roles.following, which asks a comparison of Python's numbers for its type."""
    return (0, phase ^ 1) if slot + 1 == BUFFERS else (slot + 1, phase)


# Kernels -----------------------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class Rebinding:
    """Functions of Gluon and Triton as functions of Python, whose globals are stand-ins.

    names: name -> stand-in, in any module. modules: id of a module -> stand-in.
    """

    names: Mapping[str, Any]
    modules: Mapping[int, Any]
    done: dict[int, dict[str, Any]] = field(default_factory=dict[int, dict[str, Any]])

    def globals_of(self, given: dict[str, Any]) -> dict[str, Any]:
        if id(given) not in self.done:
            self.done[id(given)] = found = dict[str, Any]()
            found |= {name: self.names.get(name, self.one(value)) for name, value in given.items()}
        return self.done[id(given)]

    def one(self, value: Any) -> Any:
        if isinstance(value, tl.constexpr):
            return value.value
        if isinstance(value, ModuleType) and id(value) in self.modules:
            return self.modules[id(value)]
        if not isinstance(value, JITCallable) or value.fn.__module__.startswith("triton"):
            return value
        function = value.fn
        made = FunctionType(
            function.__code__, self.globals_of(function.__globals__), function.__name__, function.__defaults__
        )
        made.__kwdefaults__ = function.__kwdefaults__
        return made


@dataclass(kw_only=True)
class Run:
    """What a run has stored, [rank][name], and what has happened: (rank, program, events) for each program.

    In `memory` what the kernel stores is NaN where it has not stored it. Each tensor has all of its buffers.
    """

    memory: list[dict[str, torch.Tensor]]
    given: list[Given] = field(default_factory=list[Given])
    events: list[tuple[int, int, list[Event]]] = field(default_factory=list[tuple[int, int, list[Event]]])


@cache
def _module(source: str) -> ModuleType:
    return store.load(store.save(source))


@dataclass(kw_only=True)
class Kernel:
    """The kernel of a stage whose warps have roles, ready to run. source: of its module, if not what is emitted."""

    plan: Plan
    emitted: Emitted
    stage: str
    source: str = ""
    operations: Operations = field(default_factory=Operations)

    def __post_init__(self) -> None:
        emitted = self.emitted
        self.spec: KernelSpec = next(k for k in emitted.kernels if k.name == self.bound.kernel_of[self.stage].name)
        self.others = [one for one in (*emitted.kernels, *emitted.copy_programs) if one is not self.spec]
        self.module = _module(self.source or emitted.text)

    @property
    def bound(self) -> Bound:
        return self.plan.bound

    @property
    def stages(self) -> tuple[str, ...]:
        return self.bound.kernel_of[self.stage].stage_names

    @property
    def results(self) -> set[str]:
        """The names of the tensors that it stores."""
        return {region.tensor for name in self.stages for region in results_of(self.bound.stages[name])}

    def run(self, final: Memory, launch: int, seed: int) -> Run:
        """Run all programs of all ranks. final: [rank][name], all tensors at the end of the launch."""
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # each thread of Python would start others for itself
        try:
            return self._programs(final, launch, random.Random(seed))
        finally:
            torch.set_num_threads(threads)

    def _programs(self, final: Memory, launch: int, order: random.Random) -> Run:
        run = Run(memory=[{name: self._stored(name, x, launch) for name, x in one.items()} for one in final])
        notified = [signal for signal in sorted(self.spec.notifies) if signal[0] in self.results]
        run.given = [self._given(signal, run.memory, final, launch) for signal in notified]
        for rank in range(self.bound.ranks):
            arrived = {name: self._in_buffers(name, x, launch) for name, x in final[rank].items()}
            late = [self._late(signal, arrived[signal[0]], rank, launch) for signal in self._awaited(arrived)]
            function, args = self._function(launch, late, run.given), self._args(run.memory, arrived, rank, launch)
            for program in order.sample(range(self.spec.programs), self.spec.programs):
                self.operations.block = Block(random=random.Random(order.random()), number=program)
                for one in late:
                    one.hide()
                function(*args)
                run.events.append((rank, program, self.operations.block.events))
        return run

    def _in_buffers(self, name: str, tensor: torch.Tensor, launch: int) -> torch.Tensor:
        """Return a tensor in the buffer of a launch. The others are NaN."""
        buffers = self.bound.tensors[name].buffers
        made = torch.full((buffers, *tensor.shape), nothing(tensor.dtype), dtype=tensor.dtype)
        made[(launch - 1) % buffers] = tensor
        return made

    def _stored(self, name: str, tensor: torch.Tensor, launch: int) -> torch.Tensor:
        """Return the memory of a tensor in which the kernel stores."""
        made = self._in_buffers(name, tensor, launch)
        return made.fill_(NAN) if name in self.results else made

    def _awaited(self, arrived: Mapping[str, torch.Tensor]) -> Iterator[tuple[str, str]]:
        yield from (signal for signal in sorted(self.spec.awaits) if signal[0] in arrived)

    def _late(self, signal: tuple[str, str], arrived: torch.Tensor, rank: int, launch: int) -> Late:
        return Late(**self._counters(signal, launch), rank=rank, arrived=arrived.clone(), seen=arrived)

    def _given(self, signal: tuple[str, str], memory: Memory, final: Memory, launch: int) -> Given:
        alone = not any(signal in one.notifies for one in self.others)
        own, wanted = ([tensors[signal[0]] for tensors in one] for one in (memory, final))
        return Given(**self._counters(signal, launch), memory=own, final=wanted, alone=alone)

    def _counters(self, signal: tuple[str, str], launch: int) -> dict[str, Any]:
        thresholds = self.plan.thresholds[signal].reshape(self.bound.ranks, -1)
        return {"grid": self.bound.channels[signal], "thresholds": thresholds, "launch": launch}

    def _function(self, launch: int, late: list[Late], given: list[Given]) -> Callable[..., None]:
        one = self.operations
        language = _language()
        for name in ("program_id", "allocate_shared_memory", "warp_specialize", "load", "store"):
            setattr(language, name, getattr(one, name))
        language.num_warps = lambda: 4
        barrier = SimpleNamespace(
            MBarrierLayout=lambda: Barrier, init=one.init, wait=one.wait, arrive=one.arrive, expect=one.expect
        )
        names = {
            "mbarrier": barrier, "cast": _cast, "tma": SimpleNamespace(store_wait=one.stored), "_load": one.load_box,
            "_store": one.store_box, "warpgroup_mma": one.multiply, "warpgroup_mma_wait": one.retire,
            "fence_async_shared": one.fence, "following": _following, "_threads_meet": lambda: None,
            "INTERPRETED": False,
        }  # fmt: skip
        signals = Signals(operations=one, launch=launch, late=late, given=given)
        again = Rebinding(names=names, modules={id(tl): language, id(gl): language, id(device): signals})
        library = {id(module): SimpleNamespace(**again.globals_of(vars(module))) for module in (roles, tiles, numeric)}
        kernel = Rebinding(names={}, modules={**again.modules, **library})
        return kernel.one(vars(self.module)[self.spec.name])

    def _args(self, memory: Memory, own: Mapping[str, torch.Tensor], rank: int, launch: int) -> list[Any]:
        """Return the arguments of a rank. own: its tensors as it reads them; it stores in `memory`."""

        def arg(one: Any) -> Any:
            match one:
                case Boxes(tensor=name, owner=owner):
                    read = own[name] if owner in (None, rank) else memory[owner][name]
                    stored = memory[rank if owner is None else owner][name]
                    rows, target = (x.view(-1, x.shape[-1]) for x in (read, stored))
                    return Descriptor(tensor=name, rows=rows, stored=target, box=one.box, dtype=read.dtype)
                case TensorPointer(tensor=name):
                    return Pointer(own[name].view(-1), memory[rank][name].view(-1))
                case PeersPointer(tensor=name):
                    return [Pointer(peer[name].view(-1), peer[name].view(-1)) for peer in memory]
                case Rank():
                    return rank
                case NumPrograms():
                    return self.spec.programs
                case SignalsPointer():
                    return rank
                case SignalTablePointer():
                    return list(range(self.bound.ranks))
                case ThresholdsPointer(tensor=name, kind=kind):
                    row = torch.as_tensor(self.plan.thresholds[name, kind].reshape(self.bound.ranks, -1)[rank])
                    return Pointer(row, row)
                case EpochPointer():
                    number = torch.tensor([launch])
                    return Pointer(number, number)
                case _:
                    return 0

        return [arg(one) for one in self.spec.parameters]


# What should come out ----------------------------------------------------------------------------------------


def in_memory(bound: Bound, tensors: Memory) -> Memory:
    """Return tensors as kernels have them in memory: those in fragment order are not rows and columns there."""
    orders = {one.name: _roles_at(bound, one.name) for one in bound.tensors.values() if one.fragments}
    return [{name: _fragments(x, orders[name]) if name in orders else x for name, x in one.items()} for one in tensors]


def _roles_at(bound: Bound, name: str) -> Roles:
    for stage in bound.stages.values():
        if stage.roles is not None and stage.roles.direct and results_of(stage)[0].tensor == name:
            return stage.roles
    raise AssertionError(name)


def _fragments(x: torch.Tensor, roles: Roles) -> torch.Tensor:
    """Return tiles in fragment order.

    A thread of an accumulator holds two elements of a row and of the row 8 below it, in every 8 columns; four threads
    have a row, and a warp 16 rows (PTX ISA, figure of the accumulator of wgmma.m64nNk16).
    """
    *outer, rows, columns = x.shape
    groups, wide = roles.rows // 64, columns // roles.pieces // 16
    parts = x.reshape(-1, roles.consumers, groups, 4, 2, 8, roles.pieces, wide, 2, 4, 2)
    # 0 tile, 1 consumer, 2 group, 3 warp, 4 half, 5 row, 6 piece, 7 columns by 16, 8 by 8, 9 thread, 10 pair
    order = (0, 1, 6, 2, 7, 4, 3, 5, 9, 8, 10)
    return parts.permute(order).reshape(*outer, rows, columns)


def differences(kernel: Kernel, run: Run, final: Memory, launch: int, tolerance: float = 0.0) -> Iterator[str]:
    """Yield where a kernel has not stored what the lowered program has, and what it has not notified as planned."""
    for rank, name in product(range(len(final)), sorted(kernel.results)):
        wanted, buffers = final[rank][name].float(), run.memory[rank][name].float()
        own = (launch - 1) % len(buffers)
        close = torch.isclose(buffers[own], wanted, rtol=tolerance, atol=tolerance, equal_nan=True)
        if not bool(close.all()):
            yield f"{name} of rank {rank} differs at {int((~close).sum())} of {close.numel()} elements"
        if not bool(torch.cat([buffers[:own], buffers[own + 1 :]]).isnan().all()):
            yield f"another buffer of {name} of rank {rank} is written"
    for one in run.given:
        yield from one.missing()
