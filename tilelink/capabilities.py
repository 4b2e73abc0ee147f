"""Capabilities: the forms of kernels that a dialect has on a processor.

They are known before a program is bound. The passes read them, so that a form which a dialect lacks is left out before
the program is verified, and the emitter decides nothing.

- `triton` is stock Triton with this package's device library.
- `traced` is the same with programs that record the start and the end of their operations, one after the other.
- `triton_dist` is Triton-distributed's compiler with its own language for signals (backend/dialects.py).
"""

from __future__ import annotations

from dataclasses import dataclass

from tilelink.errors import EmitError
from tilelink.target import Target

DIALECTS = ("triton", "triton_dist", "traced")


@dataclass(frozen=True, kw_only=True)
class Capabilities:
    """The forms of kernels that a dialect has on a processor. The defaults are those of `triton` on the CPU.

    flattened_loops: a program may start its next tile before it has finished the current one.
    deferred_notifies: a product may contain the notifies of the previous tile.
    tma_copies: programs of one warp may copy by the tensor memory accelerator.
    roles: warps of a program may have roles, with products of warpgroups.
    handshakes: kernels may perform the launch handshake with peers.
    waits_beyond: a wait passes when its counter is beyond the value, not only at that value.
    launch_decided: values of a launch may decide which parts of tensors there are.
    dynamic_tiles: programs may take tiles by a counter.
    engines_count: copy engines add to counters, instead of writing numbers that nobody else may change.
    several_nodes: programs may put and get between nodes.
    low_latency: data may travel by words that have their own flags.
    descriptors: operands of products may be loaded through tensor descriptors.
    notifies_together: one instruction may make the notifies of a loop.
    floats_of_8_bits: there are f8e4m3 and f8e5m2 of the OCP, with conversions and products.
    """

    dialect: str = "triton"
    flattened_loops: bool = True
    deferred_notifies: bool = True
    tma_copies: bool = False
    roles: bool = False
    handshakes: bool = True
    waits_beyond: bool = True
    launch_decided: bool = True
    dynamic_tiles: bool = True
    engines_count: bool = True
    several_nodes: bool = True
    low_latency: bool = True
    descriptors: bool = False
    notifies_together: bool = True
    floats_of_8_bits: bool = True

    @property
    def traced(self) -> bool:
        """True if programs record the start and the end of their operations."""
        return self.dialect == "traced"


def capabilities(target: Target, dialect: str = "triton") -> Capabilities:
    """Return the capabilities of a dialect on a processor.

    Raises EmitError for an unknown dialect, with the valid names, and for a dialect that the processor does not have.
    """
    amd = target.kind == "hip"
    match dialect:
        case "triton":
            return Capabilities(
                low_latency=not amd,  # the barrier that tells all threads whether words are missing is PTX
                flattened_loops=not amd,  # only Triton's compiler for NVIDIA fuses nested loops
                deferred_notifies=not amd,
                tma_copies=target.tma,
                descriptors=target.tma,
                engines_count=target.kind == "cpu",
                roles=has_warpgroups(target),
                floats_of_8_bits=has_floats_of_8_bits(target),
            )
        case "traced":
            if amd:
                hint = "compile for a processor of NVIDIA, or run it on CPU ranks"
                raise EmitError(f"kernels for {target} cannot be traced", hint=hint)
            return Capabilities(
                dialect=dialect,
                flattened_loops=False,  # a tile would begin before the end of the previous one is recorded
                deferred_notifies=False,
                tma_copies=target.tma,
                descriptors=target.tma,
                engines_count=target.kind == "cpu",
                notifies_together=False,  # each notify has its own record
                roles=False,  # spans are those of a program's operations, one after the other
                floats_of_8_bits=has_floats_of_8_bits(target),
            )
        case "triton_dist":
            if amd:
                hint = "emit dialect triton, or choose a target of NVIDIA"
                raise EmitError(f"dialect triton_dist calls NVSHMEM, which {target} has not", hint=hint)
            return Capabilities(
                dialect=dialect,
                flattened_loops=False,
                deferred_notifies=False,  # the barrier of a notify would end the pipeline
                handshakes=False,
                waits_beyond=False,
                launch_decided=False,
                dynamic_tiles=False,
                engines_count=target.kind == "cpu",
                several_nodes=False,
                low_latency=False,
                notifies_together=False,
                floats_of_8_bits=has_floats_of_8_bits(target),
            )
        case _:
            raise EmitError(f"unknown dialect {dialect!r}", hint=f"one of {', '.join(DIALECTS)}")


def has_floats_of_8_bits(target: Target) -> bool:
    """True if a processor has the 8-bit floats of the OCP: CPU ranks, and NVIDIA's from sm_89 on.

    Those of gfx942 have other exponents (E4M3 FNUZ), and other values for the same bits.
    """
    return target.kind == "cpu" or (target.kind == "cuda" and int(target.architecture) >= 89)


def has_warpgroups(target: Target) -> bool:
    """True if a processor has products of warpgroups with operands in shared memory: only sm_90 has."""
    return target.kind == "cuda" and target.tma and target.architecture == 90
