"""Typed values that the templates of kernels receive, with all expressions as source text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from tilelink.artifact import (
    Boxes,
    CopyProgram,
    DebugBlockPointer,
    Descriptor,
    IntegersPointer,
    KernelSpec,
    Number,
    Parameter,
    SignalsPointer,
    TensorPointer,
)
from tilelink.backend.constants import Constants
from tilelink.backend.nodes import Node
from tilelink.backend.render import Macros
from tilelink.ir.program import ITEM_BYTES
from tilelink.lowering.bound import SWEEP_PERIOD, SWEEP_WINDOW, Bound


@dataclass(frozen=True, kw_only=True)
class BufferContext:
    """A tensor of several buffers: their number, and the elements of each, in source.

    is_signalled: True if its counters are waited for or notified.
    """

    tensor: str
    count: str
    size: str
    is_signalled: bool


@dataclass(frozen=True, kw_only=True)
class SweepContext:
    """A tensor of which a kernel replaces old flags of words, in the first `window` launches of each `period`."""

    tensor: str
    words: int
    period: int = SWEEP_PERIOD
    window: int = SWEEP_WINDOW


@dataclass(frozen=True, kw_only=True)
class LaunchContext:
    """Launch handshake of a kernel (tilelink/artifact.py).

    track: number of its first program, counted over all kernels of a rank. counted: number of programs of a launch if
    they are counted as they exit, else 0. waits: pairs (counter of rank 0, lag); before the kernel begins, every peer
    must have reached launch epoch - lag. entered_base, finished_base: the runtime's counters of rank 0, in source, like
    ranks. block: number of ranks, rounded up to a power of two. stages: number of stages, which is the stage number of
    the runtime in messages.
    """

    track: int
    ranks: str
    block: int
    stages: int
    waits: tuple[tuple[str, int], ...] = ()
    numbered: bool = False
    """True if the kernel reads the number of the launch."""
    counted: int = 0
    buffers: tuple[BufferContext, ...] = ()
    announces_entry: bool = False
    begins_copies: bool = False
    first_begins_copies: bool = False
    """True if the first program lets the copies of the launch begin; False for the last one."""
    announces_finished: bool = False
    first_announces: bool = False
    counts_programs: bool = False
    leaves: bool = False
    quiet: bool = False
    """True if programs wait at their end for the network."""
    entered_base: str = ""
    finished_base: str = ""
    swept: tuple[SweepContext, ...] = ()


@dataclass(frozen=True, kw_only=True)
class LoopContext:
    """A loop over tiles: their number (in source), the first tile of program `pid`, and the body.

    step: from one tile of a program to its next. flatten: True if it is flattened. before, after: statements around the
    loop. number: the name of its variable, from which the body computes the number of the tile if it is another one.
    taken: True if programs take tiles by a counter.
    """

    total: str
    body: tuple[Node, ...]
    first: str = "pid"
    step: str = "num_programs"
    flatten: bool = False
    before: tuple[Node, ...] = ()
    after: tuple[Node, ...] = ()
    number: str = "tile"
    taken: bool = False


@dataclass(frozen=True, kw_only=True)
class FarContext:
    """A function that loads or stores a box of a tensor on a rank known only at run time.

    what: "load" or "store". copies: parameters that hold the descriptors of all ranks' copies.
    """

    name: str
    what: str
    copies: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class TmaCopyContext:
    """Shared state of programs that copy by TMA: `programs_per_cta` of them on an SM, with `buffers` boxes each.

    like: parameter whose descriptor has the type of the boxes. box: rows and columns. far: see FarContext.
    """

    like: str
    box: tuple[str, str]
    programs_per_cta: int
    buffers: str
    far: tuple[FarContext, ...]
    functions: ClassVar[tuple[str, ...]] = ("",)
    library: ClassVar[str] = "tma_copy"


@dataclass(frozen=True, kw_only=True)
class RingContext:
    """A ring in shared memory, with all expressions in source.

    memory: (name, parameter whose descriptor has the type, shape) of its buffers; numbers of integers have no type, "".
    barriers: (name, number of them, arrivals of a phase).
    """

    memory: tuple[tuple[str, str, str], ...]
    barriers: tuple[tuple[str, str, int], ...]


@dataclass(frozen=True, kw_only=True)
class RolesContext:
    """The roles of a kernel's warps. loops: role -> its loops over tiles.

    count: number of consumers. registers: of a thread of a consumer, and of the other roles. far: functions that store
    in a peer's memory.
    """

    loops: Mapping[str, tuple[LoopContext, ...]]
    count: int
    rings: tuple[RingContext, ...]
    registers: tuple[int, int]
    far: tuple[FarContext, ...] = ()
    library: ClassVar[str] = "roles"

    @property
    def functions(self) -> tuple[str, ...]:
        """Return what the names of its functions have after that of the kernel."""
        return tuple(f"_{role}" for role in self.loops)

    @property
    def memory(self) -> tuple[tuple[str, str, str], ...]:
        return tuple(one for ring in self.rings for one in ring.memory)

    @property
    def barriers(self) -> tuple[tuple[str, str, int], ...]:
        return tuple(one for ring in self.rings for one in ring.barriers)

    @property
    def shared(self) -> tuple[str, ...]:
        """Return the names that roles share."""
        return tuple(
            name
            for ring in self.rings
            for name in (*(name for name, *_ in ring.memory), *(f"{name}_barriers" for name, *_ in ring.barriers))
        )


@dataclass(frozen=True, kw_only=True)
class CallArguments:
    """Last arguments of all calls of a kernel to the device library, each after a comma; "" for none.

    scope: for programs that are single warps. trace: for programs that are traced.
    """

    scope: str = ""
    trace: str = ""


@dataclass(frozen=True, kw_only=True)
class KernelContext:
    """A kernel, or the function of a copy queue. template: name of its template in templates/kernels.

    steps: how often its loops follow one another, each time over the tiles of a step.
    """

    name: str
    template: str
    constants: Constants
    launch: LaunchContext
    loops: tuple[LoopContext, ...]
    args: tuple[Parameter, ...] = ()
    call_arguments: CallArguments = CallArguments()
    user_modules: frozenset[str] = frozenset()
    """Modules of the users' functions that it calls."""
    warps: TmaCopyContext | RolesContext | None = None
    """What its warps do, each for itself, if it is written in Gluon."""
    steps: int = 1

    @property
    def gluon(self) -> bool:
        """True if it is written in Gluon."""
        return self.warps is not None

    @property
    def functions(self) -> tuple[str, ...]:
        """Return the names of its functions for programs or roles."""
        if self.warps is None:
            return ()
        return (*(f"_{self.name}{one}" for one in self.warps.functions), *(far.name for far in self.warps.far))

    @property
    def parameters(self) -> tuple[str, ...]:
        return tuple(a.name for a in self.args)

    @property
    def numbers(self) -> tuple[str, ...]:
        """Return the quoted parameters that differ from rank to rank: one binary serves all ranks."""
        return tuple(f'"{a.name}"' for a in self.args if isinstance(a, Number))


@dataclass(frozen=True, kw_only=True)
class ModuleContext:
    """A generated module. header: lines of comment. user_modules: of user functions. constants: lines of source."""

    header: tuple[str, ...]
    dialect: Macros
    user_modules: tuple[str, ...]
    constants: tuple[str, ...]
    kernels: tuple[KernelContext, ...]

    @property
    def libraries(self) -> tuple[str, ...]:
        """Return the parts of the device library for kernels in Gluon that it uses."""
        return tuple(sorted({k.warps.library for k in self.kernels if k.warps is not None}))


_POINTERS = {
    "f16": "*fp16", "bf16": "*bf16", "f32": "*fp32", "f8e4m3": "*fp8e4nv", "f8e5m2": "*fp8e5",
    "i8": "*i8", "u8": "*u8", "i32": "*i32", "i64": "*i64", "bool": "*i1",
}  # fmt: skip


def signature(kernel: KernelSpec, bound: Bound) -> dict[str, str]:
    """Return the type of every run-time parameter in Triton's notation, except the debug block: None or a pointer."""
    return {a.name: _type(a, bound) for a in kernel.parameters if not isinstance(a, DebugBlockPointer)}


def _type(parameter: Parameter, bound: Bound) -> str:
    match parameter:
        case Number():
            return "i32"
        case SignalsPointer() if bound.nodes > 1:
            return "*i64"  # NVSHMEM adds to words of 64 bits, of which the low half counts
        case IntegersPointer():
            return f"*{parameter.element}"
        case TensorPointer(tensor=name):
            return _POINTERS[bound.tensors[name].stored]
        case Descriptor(tensor=name, box=box):
            return f"tensordesc<{_POINTERS[bound.tensors[name].dtype][1:]}{list(box)}>"
        case Boxes(tensor=name, box=box, swizzle=swizzle):
            dtype = bound.tensors[name].dtype
            return f"tensordesc<{_POINTERS[dtype][1:]}{list(box)},{shared_layout(8 * ITEM_BYTES[dtype], swizzle)}>"


def shared_layout(bits: int, swizzle: int = 0) -> str:
    """Return the text, in Triton's notation, of the layout of boxes in shared memory, as Gluon describes it.

    bits: of an element. swizzle: bytes of a row within which pieces are permuted, 0 for contiguous rows.
    """
    parts = f"swizzle_byte_width={swizzle}, element_bitwidth={bits}, rank=2, transposed=False, fp4_padded=False"
    parts += ", cga_layout=[]"
    return f"NVMMASharedLayout({parts})"


@dataclass(frozen=True, kw_only=True)
class Emitted:
    """A generated module and the specifications of its functions. dialect: name of its dialect."""

    text: str
    dialect: str
    kernels: tuple[KernelSpec, ...]
    copy_programs: tuple[CopyProgram, ...] = ()
