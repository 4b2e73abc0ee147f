"""Dialects: the libraries that generated kernels may be written against.

`triton` is stock Triton with this package's device library, and `traced` is the same for a measured timeline.
`triton_dist` is Triton-distributed's compiler with its `triton_dist.language` (ByteDance-Seed/Triton-distributed). In
it ranks and peers' addresses come from the compiler instead of arguments, signals have 64 bits, and a wait tests for
equality. Equality is enough for the counters of a program, since the next launch notifies them only after this one has
finished. The runtime's own counters may run ahead, so they are waited for with the unsigned comparison of OpenSHMEM.
Tile mathematics comes from this package in all dialects.

Requirements of Triton-distributed (its python/triton_dist/{jit,language} and lib/Conversion, commit 1512a811):
- `triton_dist.jit` links the device library of NVSHMEM; `triton.jit` does not.
- wait and notify are not barriers: each warp polls for itself, and only thread 0 fences and signals.
- a wait only reads, so it is removed if its token is not consumed. Only consume_token may use a token.
- its wait has no fence for the asynchronous proxy, so data that other programs wrote is not loaded through descriptors.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from tilelink.artifact import (
    DebugBlockPointer,
    EpochPointer,
    FirstProgram,
    NumPrograms,
    Parameter,
    Rank,
    SignalsPointer,
    SignalTablePointer,
)
from tilelink.backend.context import CallArguments
from tilelink.backend.render import Macros


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """The spelling of kernels in a dialect, with macros in templates/dialects.

    The forms of kernels that it has are known before a program is bound (tilelink/capabilities.py).

    files: templates of its macros. The first file that defines a macro takes precedence.
    """

    name: str = "triton"
    files: tuple[str, ...] = ("dialects/triton.j2", "boxes.j2", "statements.j2")
    parameters: tuple[Parameter, ...] = (
        SignalsPointer(),
        SignalTablePointer(),
        EpochPointer(),
        DebugBlockPointer(),
        Rank(),
        FirstProgram(),
        NumPrograms(),
    )
    """Parameters of every kernel."""
    passes_addresses: bool = True
    """True if kernels take the addresses of peers' tensors and counters as arguments."""
    waits_together: bool = True
    """True if a wait for evenly spaced counters may be one `wait_all`."""

    is_traced: bool = False
    """True if programs record the start and the end of their operations (device/tracing.py)."""

    def call_arguments(self, *, of_warps: bool = False) -> CallArguments:
        """Return the arguments of all calls to the device library.

        of_warps: True if the kernel's programs are single warps.
        """
        scope, trace = ", scope=dl.WARP" if of_warps else "", ", trace=trace_track" if self.is_traced else ""
        return CallArguments(scope=scope, trace=trace)

    @property
    def macros(self) -> Macros:
        """Return the macros of its templates."""
        return _macros(self.files)

    def after_waits(self, place: str, *, load: bool) -> str:
        """Return an address or coordinate of a load or a store, tied to the token of the tile."""
        return self.macros.after_waits(place, load)


@cache
def _macros(files: tuple[str, ...]) -> Macros:
    return Macros(*files)


@dataclass(frozen=True, kw_only=True)
class Traced(Dialect):
    """Stock Triton with programs that record the start and the end of their operations (device/tracing.py)."""

    name: str = "traced"
    files: tuple[str, ...] = ("dialects/traced.j2", *Dialect.files)
    is_traced: bool = True
    waits_together: bool = False


@dataclass(frozen=True, kw_only=True)
class TritonDistributed(Dialect):
    """Triton-distributed's compiler with its triton_dist.language."""

    name: str = "triton_dist"
    files: tuple[str, ...] = ("dialects/triton_dist.j2", "statements.j2")
    parameters: tuple[Parameter, ...] = (SignalsPointer(), EpochPointer(), FirstProgram(), NumPrograms())
    passes_addresses: bool = False
    waits_together: bool = False


DIALECTS: dict[str, Dialect] = {d.name: d for d in (Dialect(), TritonDistributed(), Traced())}
