"""The values that templates of kernels are given: typed, with all expressions ready as text."""

from __future__ import annotations

from dataclasses import dataclass

from tilelink.artifact import (
    Boxes,
    CopyProgram,
    DebugBlockPointer,
    Descriptor,
    IntegersPointer,
    KernelSpec,
    Number,
    Parameter,
    TensorPointer,
)
from tilelink.backend.constants import Constants
from tilelink.backend.nodes import Node
from tilelink.backend.render import Macros
from tilelink.ir.program import ITEM_BYTES
from tilelink.lowering.bound import Bound


@dataclass(frozen=True, kw_only=True)
class BufferContext:
    """A tensor of several buffers: how many, and the elements of each, in source.

    by_pointer: it is read or written through pointers. is_signalled: its counters are waited for or notified.
    """

    tensor: str
    count: str
    size: str
    by_pointer: bool
    is_signalled: bool


@dataclass(frozen=True, kw_only=True)
class LaunchContext:
    """How a kernel begins and ends its part of a launch (tilelink/artifact.py).

    track: the number of its first program, counted over all kernels of a rank. counted: the programs of a launch if
    they are counted as they end, else 0. waits: (counter of rank 0, lag) of what peers must have reached before the
    kernel begins: launch epoch - lag. entered_base, finished_base: the runtime's counters of rank 0, in source like
    ranks. block: the ranks, rounded up to a power of two. stages: how many there are, which is the number of the
    runtime in messages.
    """

    track: int
    ranks: str
    block: int
    stages: int
    waits: tuple[tuple[str, int], ...] = ()
    counted: int = 0
    buffers: tuple[BufferContext, ...] = ()
    announces_entry: bool = False
    begins_copies: bool = False
    first_begins_copies: bool = False
    """The first program lets the copies of the launch begin, not the last one."""
    tells_finished: bool = False
    counts_programs: bool = False
    leaves: bool = False
    entered_base: str = ""
    finished_base: str = ""


@dataclass(frozen=True, kw_only=True)
class LoopContext:
    """A loop over tiles: how many, in source, the first one of program `pid`, its body, and whether it is flat.

    step: from one tile of a program to its next. before, after: statements around the loop.
    """

    total: str
    body: tuple[Node, ...]
    first: str = "pid"
    step: str = "num_programs"
    flat: bool = False
    before: tuple[Node, ...] = ()
    after: tuple[Node, ...] = ()


@dataclass(frozen=True, kw_only=True)
class FarContext:
    """A function that loads or stores a box of a tensor on a rank that is known when it runs.

    what: "load" or "store". copies: the parameters that hold the descriptors of all ranks' copies.
    """

    name: str
    what: str
    copies: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class TmaCopyContext:
    """What programs that copy by TMA share on an SM: `programs_per_cta` of them, with `buffers` boxes each.

    like: the parameter whose descriptor has the boxes' type. box: rows and columns. far: see FarContext.
    """

    like: str
    box: tuple[str, str]
    programs_per_cta: int
    buffers: str
    far: tuple[FarContext, ...]


@dataclass(frozen=True, kw_only=True)
class CallArguments:
    """Arguments that all calls of a kernel to the device library end with, each after a comma; "" for none.

    scope: of programs that are single warps. trace: of programs that are traced.
    """

    scope: str = ""
    trace: str = ""


@dataclass(frozen=True, kw_only=True)
class KernelContext:
    """A kernel, or the function of a copy queue. template: of its kind, in templates/kernels."""

    name: str
    template: str
    constants: Constants
    launch: LaunchContext
    loops: tuple[LoopContext, ...]
    args: tuple[Parameter, ...] = ()
    call_arguments: CallArguments = CallArguments()
    tma_copy: TmaCopyContext | None = None

    @property
    def parameters(self) -> tuple[str, ...]:
        return tuple(a.name for a in self.args)

    @property
    def numbers(self) -> tuple[str, ...]:
        """The parameters that differ from rank to rank, in quotes: one binary serves them all."""
        return tuple(f'"{a.name}"' for a in self.args if isinstance(a, Number))


@dataclass(frozen=True, kw_only=True)
class ModuleContext:
    """header: lines of comment. user_modules: of users' functions. constants: lines of source."""

    header: tuple[str, ...]
    dialect: Macros
    user_modules: tuple[str, ...]
    constants: tuple[str, ...]
    kernels: tuple[KernelContext, ...]

    @property
    def has_boxes(self) -> bool:
        return any(kernel.tma_copy for kernel in self.kernels)


_POINTERS = {"f16": "*fp16", "bf16": "*bf16", "f32": "*fp32", "i32": "*i32", "bool": "*i1"}


def signature(kernel: KernelSpec, bound: Bound) -> dict[str, str]:
    """The type of every run-time parameter as Triton spells it, but of the debug block: None or a pointer."""
    return {a.name: _type(a, bound) for a in kernel.parameters if not isinstance(a, DebugBlockPointer)}


def _type(parameter: Parameter, bound: Bound) -> str:
    match parameter:
        case Number():
            return "i32"
        case IntegersPointer():
            return f"*{parameter.element}"
        case TensorPointer(tensor=name):
            return _POINTERS[bound.tensors[name].dtype]
        case Descriptor(tensor=name, box=box):
            return f"tensordesc<{_POINTERS[bound.tensors[name].dtype][1:]}{list(box)}>"
        case Boxes(tensor=name, box=box):
            # as Gluon's NVMMASharedLayout describes boxes without a swizzle
            dtype = bound.tensors[name].dtype
            return f"tensordesc<{_POINTERS[dtype][1:]}{list(box)},{plain_layout(8 * ITEM_BYTES[dtype])}>"


def plain_layout(bits: int) -> str:
    """The text of the layout of boxes in shared memory whose rows lie one after the other, as Triton knows it."""
    parts = f"swizzle_byte_width=0, element_bitwidth={bits}, rank=2, transposed=False, fp4_padded=False, cga_layout=[]"
    return f"NVMMASharedLayout({parts})"


@dataclass(frozen=True, kw_only=True)
class Emitted:
    """A generated module and how its functions are called. dialect: the name of what it is written against."""

    text: str
    dialect: str
    kernels: tuple[KernelSpec, ...]
    copy_programs: tuple[CopyProgram, ...] = ()
