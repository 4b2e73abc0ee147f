"""Names in generated source: user names and frame names, which must be distinct."""

from __future__ import annotations

import keyword
import re

from tilelink.errors import EmitError
from tilelink.ir.program import Assign, SoftmaxInit
from tilelink.ir.visitor import statements
from tilelink.lowering.bound import Bound, BoundStage

FRAME = frozenset(
    {"tile", "pid", "float", "launch", "epoch", "epoch_at", "rank", "token", "watch", "signals", "signal_table", "edge"}
    | {"first_program", "num_programs", "peer", "peers", "queue", "range", "triton", "tl", "dl", "tiles"}
    | {"triton_dist", "libshmem_device", "tilelink", "slice", "min", "max", "trace_track"}
    | {"gl", "gluon", "tma_copy", "tma_smem", "tma_barriers", "tma_box", "tma_moved"}
    | {"roles", "left_ring", "right_ring", "result_ring", "PART"}
    | {f"{name}_barriers" for name in ("full", "empty", "staged", "drained")}
    | {"WARP"}
)
"""Names that every kernel uses for itself."""
DERIVED = ("local", "offset", "buffer", "generation", "peers")
"""Suffixes of names derived from a tensor's name. A softmax state's variables end in m, l and acc."""
_BOXES = re.compile(r"_boxes_[0-9]+x")
"""Part of every descriptor name."""


def user_names(bound: Bound, stage: BoundStage) -> frozenset[str]:
    """Return the names that a stage's body may use: tensors, indices and values.

    Generated temporaries must not use them. Raise EmitError if two objects share a name.
    """
    assigned = {s.name: s for s in statements(stage.stage.body) if isinstance(s, Assign)}
    tensors = frozenset(bound.tensors)
    kinds = {kind for _, kind in bound.channels}
    derived = {f"{name}_{end}" for name in tensors for end in DERIVED}
    derived |= {f"{name}_{kind}_thresholds" for name in tensors for kind in kinds}
    derived |= {f"{name}_{end}" for name in assigned for end in ("m", "l", "acc")} if _has_state(stage) else set()
    local_names = {**dict.fromkeys(stage.tiles), **assigned}
    derived |= {f"THRESHOLDS_{name}_{kind}" for name, kind in bound.channels}
    modules = frozenset(name.partition(".")[0] for name in bound.functions)
    for name in (*local_names, *tensors, stage.name):
        owner = assigned.get(name) or stage.stage
        reserved = keyword.iskeyword(name) or name in FRAME or name in modules
        reserved = reserved or (name in derived and name != stage.name) or _BOXES.search(name) is not None
        if reserved or (name in local_names and name in tensors):
            message = f"the name {name!r} in stage {stage.name} means something else in the generated source"
            raise EmitError(message, location=owner.location, hint="choose another name")
    return frozenset(local_names) | tensors | frozenset(bound.stages) | derived | modules | FRAME


def _has_state(stage: BoundStage) -> bool:
    return any(isinstance(s, Assign) and isinstance(s.value, SoftmaxInit) for s in statements(stage.stage.body))
