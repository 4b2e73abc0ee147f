"""The libraries that generated kernels may be written against.

`triton` is stock Triton with this package's device library, `traced` the same for a measured timeline. `triton_dist`
is Triton-distributed's compiler and its `triton_dist.language` (ByteDance-Seed/Triton-distributed): ranks and peers'
addresses come from the compiler instead of arguments, signals have 64 bits, and its wait is for equality. Equality is
enough for the counters of a program, since the next launch notifies them only after this one has finished; the
runtime's own counters may run ahead, so those are waited for with the comparison of OpenSHMEM, which is unsigned.
Tile mathematics is this package's in both.

What Triton-distributed asks of its users (its python/triton_dist/{jit,language} and lib/Conversion, commit 1512a811):
* `triton_dist.jit` links the device library of NVSHMEM; `triton.jit` does not.
* wait and notify are no barriers: each warp polls for itself, and thread 0 alone fences and signals.
* a wait only reads, so one whose token nothing consumes is removed; a token may go nowhere but to consume_token.
* its wait has no fence for the asynchronous proxy, so what other programs wrote is not loaded through descriptors.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from tilelink.artifact import (
    DebugBlockPointer,
    EpochPointer,
    FirstProgram,
    LaunchProtocol,
    NumPrograms,
    Parameter,
    Rank,
    SignalsPointer,
    SignalTablePointer,
)
from tilelink.backend.context import CallArguments
from tilelink.backend.render import Macros
from tilelink.errors import EmitError
from tilelink.lowering.bound import Bound


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """A dialect of generated kernels: its limits here, its spelling in templates/dialects.

    files: the templates of its macros, the first that has a macro counts.
    """

    name: str = "triton"
    files: tuple[str, ...] = ("dialects/triton.j2", "boxes.j2", "queue.j2", "statements.j2")
    parameters: tuple[Parameter, ...] = (
        SignalsPointer(),
        SignalTablePointer(),
        EpochPointer(),
        DebugBlockPointer(),
        Rank(),
        FirstProgram(),
        NumPrograms(),
    )
    """Those that every kernel has."""
    passes_addresses: bool = True
    """Kernels are passed the addresses of peers' tensors and counters."""
    descriptors: bool = True
    """Loads may go through tensor descriptors."""
    flattens: bool = True
    """Loops over tiles may be flat (lowering/clauses/flatten.py)."""
    defers: bool = True
    """Notifies may stand in the middle of a product (lowering/clauses/defer_notify.py)."""
    notifies_together: bool = True
    """A loop of notifies may be one of `notify_each`."""
    waits_together: bool = True
    """A wait for evenly spaced counters may be one `wait_all`."""
    handshakes: bool = True
    """Kernels may begin and end a launch together with those of peers (tilelink/artifact.py)."""
    has_tma_copies: bool = True
    """Programs of one warp may copy by the tensor memory accelerator (lowering/clauses/tma_copy.py)."""

    is_traced: bool = False
    """Programs write down when they began and ended what they did (device/tracing.py)."""

    def call_arguments(self, *, of_warps: bool = False) -> CallArguments:
        """Arguments of all calls to the device library; of_warps: in a kernel whose programs are single warps."""
        scope, trace = ", scope=dl.WARP" if of_warps else "", ", trace=trace_track" if self.is_traced else ""
        return CallArguments(scope=scope, trace=trace)

    @property
    def macros(self) -> Macros:
        """The macros of its templates."""
        return _macros(self.files)

    def after_waits(self, place: str, *, load: bool) -> str:
        """An address or coordinate to load from or to store to, tied to the token of the tile."""
        return self.macros.after_waits(place, load)

    def check(self, bound: Bound) -> None:
        """Raises EmitError for a bound program that the dialect cannot express."""

    def protocol(self, bound: Bound) -> LaunchProtocol:
        """The launch protocol of a program's kernels in this dialect."""
        return bound.protocol if self.handshakes else LaunchProtocol.HELPER_KERNELS


@cache
def _macros(files: tuple[str, ...]) -> Macros:
    return Macros(*files)


@dataclass(frozen=True, kw_only=True)
class Traced(Dialect):
    """Stock Triton whose programs write down when they began and ended what they did (device/tracing.py)."""

    name: str = "traced"
    files: tuple[str, ...] = ("dialects/traced.j2", *Dialect.files)
    is_traced: bool = True
    flattens: bool = False  # a tile would begin before the one in front of it is written down
    defers: bool = False
    notifies_together: bool = False  # each is a record of its own
    waits_together: bool = False

    def check(self, bound: Bound) -> None:
        if bound.target.kind == "hip":
            hint = "compile for a processor of NVIDIA, or run it on CPU ranks"
            raise EmitError(f"kernels for {bound.target} cannot be traced", hint=hint)


@dataclass(frozen=True, kw_only=True)
class TritonDistributed(Dialect):
    """The compiler of Triton-distributed and its triton_dist.language."""

    name: str = "triton_dist"
    files: tuple[str, ...] = ("dialects/triton_dist.j2", "queue.j2", "statements.j2")
    parameters: tuple[Parameter, ...] = (SignalsPointer(), EpochPointer(), FirstProgram(), NumPrograms())
    passes_addresses: bool = False
    descriptors: bool = False
    flattens: bool = False
    defers: bool = False  # its barrier would end the pipeline
    notifies_together: bool = False
    waits_together: bool = False
    handshakes: bool = False
    has_tma_copies: bool = False

    def check(self, bound: Bound) -> None:
        if not bound.schedule.reuse_wait:
            hint = "leave `reuse_wait off` out of the schedule, or emit dialect triton"
            raise EmitError("waits for equality need the reuse wait: counters could run ahead", hint=hint)
        if bound.target.kind == "hip":
            hint = "emit dialect triton, or choose a target of NVIDIA"
            raise EmitError(f"dialect triton_dist calls NVSHMEM, which {bound.target} has not", hint=hint)


DIALECTS: dict[str, Dialect] = {d.name: d for d in (Dialect(), TritonDistributed(), Traced())}


def dialect_named(name: str) -> Dialect:
    """The dialect of that name. Raises EmitError with the names that there are."""
    if name not in DIALECTS:
        raise EmitError(f"unknown dialect {name!r}", hint=f"one of {', '.join(DIALECTS)}")
    return DIALECTS[name]
