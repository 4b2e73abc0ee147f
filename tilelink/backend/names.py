"""Names in generated source: user names and frame names, which must be distinct."""

from __future__ import annotations

import keyword
import re
from dataclasses import dataclass, replace

from tilelink.errors import EmitError
from tilelink.ir.identity import ByIdentity
from tilelink.ir.program import Assign, SoftmaxInit
from tilelink.ir.visitor import statements
from tilelink.lowering.bound import Bound, BoundStage

FRAME = frozenset(
    {
        "tile",
        "pid",
        "float",
        "launch",
        "epoch",
        "epoch_pointer",
        "rank",
        "token",
        "debug_block",
        "signals",
        "signal_table",
        "handshake_block",
    }
    | {"first_program", "num_programs", "peer", "peers", "queue", "range", "triton", "tl", "dl", "tiles"}
    | {"next_tile", "tile_counter", "lockstep"}
    | {"triton_dist", "libshmem_device", "tilelink", "slice", "min", "max", "trace_track"}
    | {"gl", "gluon", "tma_copy", "tma_smem", "tma_barriers", "tma_box", "tma_moved"}
    | {"roles", "left_ring", "right_ring", "result_ring", "kept_ring", "streamed_ring", "kept_phase", "PART"}
    | {f"{name}_barriers" for name in ("full", "empty", "ready", "vacant", "staged", "drained")}
    | {"WARP"}
)
"""Names that every kernel uses for itself."""
DERIVED = ("local", "offset", "buffer", "generation", "peers")
"""Suffixes of names derived from a tensor's name. A softmax state's variables end in m, l and acc."""
_BOXES = re.compile(r"_boxes_[0-9]+x")
"""Part of every descriptor name."""


@dataclass(frozen=True, kw_only=True)
class _ProgramNames:
    """The names that all stages of a program share.

    derived: names made of those of tensors. modules: of users' functions. every: these, tensors, stages and FRAME.
    refused: tensors with a name that means something else in the source of any stage.
    """

    derived: frozenset[str]
    modules: frozenset[str]
    every: frozenset[str]
    refused: tuple[str, ...]

    def reserves(self, name: str) -> bool:
        """True if a name means something else in the source of any stage."""
        reserved = keyword.iskeyword(name) or name in FRAME or name in self.modules
        return reserved or _BOXES.search(name) is not None


_KNOWN = ByIdentity[_ProgramNames]()


def _program_names(bound: Bound) -> _ProgramNames:
    if (names := _KNOWN.get(bound)) is not None:
        return names
    kinds = {kind for _, kind in bound.channels}
    derived = {f"{name}_{end}" for name in bound.tensors for end in DERIVED}
    derived |= {f"{name}_{kind}_thresholds" for name in bound.tensors for kind in kinds}
    derived |= {f"THRESHOLDS_{name}_{kind}" for name, kind in bound.channels}
    modules = frozenset(name.partition(".")[0] for name in bound.functions)
    every = frozenset(bound.tensors) | frozenset(bound.stages) | derived | modules | FRAME
    names = _ProgramNames(derived=frozenset(derived), modules=modules, every=every, refused=())
    refused = tuple(name for name in bound.tensors if names.reserves(name) or name in derived)
    names = replace(names, refused=refused)
    _KNOWN.put(names, bound)
    return names


def user_names(bound: Bound, stage: BoundStage) -> frozenset[str]:
    """Return the names that a stage's body may use: tensors, indices and values.

    Generated temporaries must not use them. Raises EmitError if two objects share a name.
    """
    shared = _program_names(bound)
    assigned = {s.name: s for s in statements(stage.stage.body) if isinstance(s, Assign)}
    states = {f"{name}_{end}" for name in assigned for end in ("m", "l", "acc")} if _has_state(stage) else set[str]()
    local_names = {**dict.fromkeys(stage.tiles), **assigned}
    tensors = [*shared.refused, *sorted(states & bound.tensors.keys())]
    for name in (*local_names, *tensors, stage.name):
        owner = bound.tensors[name].decl if name in tensors else assigned.get(name) or stage.stage
        derived = name != stage.name and (name in shared.derived or name in states)
        if derived or shared.reserves(name) or (name in local_names and name in bound.tensors):
            message = f"the name {name!r} in stage {stage.name} means something else in the generated source"
            raise EmitError(message, location=owner.location, hint=f"choose another name, such as {name}_")
    return shared.every.union(local_names, states)


def _has_state(stage: BoundStage) -> bool:
    return any(isinstance(s, Assign) and isinstance(s.value, SoftmaxInit) for s in statements(stage.stage.body))
