"""The values that templates of kernels are given: typed, with all expressions ready as text."""

from __future__ import annotations

from dataclasses import dataclass

from tilelink.backend.constants import Constants
from tilelink.backend.nodes import Node
from tilelink.backend.render import Macros
from tilelink.ir.program import ITEM_BYTES
from tilelink.lowering.bound import Bound, Kernel


@dataclass(frozen=True, kw_only=True)
class Arg:
    """A parameter of a generated kernel.

    kind: "tensor" (pointer to the own copy, all slots), "peers" (int64 table of the base addresses of a symmetric
    tensor on all ranks), "signals" (own int32 pad), "signal_table" (int64 addresses of all pads), "thresholds" (int32
    table of this rank; name is TENSOR_KIND), "epoch" (pointer to the int64 number of the launch), "watch" (debug
    block or None), "edge" (block of a kernel that begins or ends a launch, see device/handshake.py, or None),
    "rank", "first_program", "num_programs", "descriptor" (of the own copy of a tensor, all slots, as rows of its last
    dimension; `block`: rows and columns of its boxes), "boxes" and "peer_boxes" (the same for Gluon, of the own copy
    and of that of `owner`).
    """

    kind: str
    name: str
    block: tuple[int, ...] = ()
    owner: int | None = None

    @property
    def parameter(self) -> str:
        """Its name in the source."""
        if self.block:
            at = "" if self.owner is None else f"_at_{self.owner}"
            return f"{self.name}_boxes_{'x'.join(map(str, self.block))}{at}"
        suffix = {"peers": "_peers", "thresholds": "_thresholds"}.get(self.kind, "")
        return self.name + suffix


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
    """How a kernel begins and ends its part of a launch (tilelink/protocol.py).

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
class BulkContext:
    """What programs that copy by bulk share on an SM: `programs_per_cta` of them, with `buffers` boxes each.

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
    args: tuple[Arg, ...] = ()
    call_arguments: CallArguments = CallArguments()
    bulk: BulkContext | None = None

    @property
    def parameters(self) -> tuple[str, ...]:
        return tuple(a.parameter for a in self.args)

    @property
    def numbers(self) -> tuple[str, ...]:
        """The parameters that differ from rank to rank, in quotes: one binary serves them all."""
        return tuple(f'"{a.parameter}"' for a in self.args if a.kind in ("rank", "first_program", "num_programs"))


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
        return any(kernel.bulk for kernel in self.kernels)


FEWEST_WARPS = 4
"""Gluon gives a kernel that is divided into warps of several kinds at least so many of the first one."""


@dataclass(frozen=True, kw_only=True)
class EmittedKernel:
    """programs_per_cta: programs of one warp each that share a CTA, in a kernel written in Gluon; else 0."""

    name: str
    kernel: Kernel
    args: tuple[Arg, ...]
    programs_per_cta: int = 0

    @property
    def warps(self) -> int:
        """Of a block of threads, as Triton is told; what programs of one warp have comes beside them."""
        return FEWEST_WARPS if self.programs_per_cta else self.kernel.warps


_POINTERS = {"f16": "*fp16", "bf16": "*bf16", "f32": "*fp32", "i32": "*i32", "bool": "*i1"}
_TYPES = {
    "peers": "*i64", "signals": "*i32", "signal_table": "*i64", "thresholds": "*i32", "epoch": "*i64", "edge": "*i64",
    "rank": "i32", "first_program": "i32", "num_programs": "i32",
}  # fmt: skip


def signature(emitted: EmittedKernel, bound: Bound) -> dict[str, str]:
    """The type of every run-time parameter as Triton spells it; "watch", None or a pointer, is not among them."""
    return {a.parameter: _type(a, bound) for a in emitted.args if a.kind != "watch"}


def _type(arg: Arg, bound: Bound) -> str:
    if arg.kind in _TYPES:
        return _TYPES[arg.kind]
    tensor = bound.tensors[arg.name]
    pointer = _POINTERS[tensor.dtype]
    if not arg.block:
        return pointer
    # as Gluon's NVMMASharedLayout describes boxes without a swizzle
    layout = "" if arg.kind == "descriptor" else f",{plain_layout(8 * ITEM_BYTES[tensor.dtype])}"
    return f"tensordesc<{pointer[1:]}{list(arg.block)}{layout}>"


def plain_layout(bits: int) -> str:
    """The text of the layout of boxes in shared memory whose rows lie one after the other, as Triton knows it."""
    parts = f"swizzle_byte_width=0, element_bitwidth={bits}, rank=2, transposed=False, fp4_padded=False, cga_layout=[]"
    return f"NVMMASharedLayout({parts})"


@dataclass(frozen=True, kw_only=True)
class Emitted:
    """A generated module and how its kernels are called."""

    text: str
    kernels: tuple[EmittedKernel, ...]
