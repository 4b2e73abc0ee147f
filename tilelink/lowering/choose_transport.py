"""Transport: by what each stage moves data, within its rank or to its peers.

before: stages with kernels and, where a schedule asks for TMA copies, boxes
after:  every stage says COPY_ENGINE, TMA or STORES

The plan is the same for all of them. They differ in what issues a copy, in what completes it, and in the kernel that is
generated: a queue of operations, programs of one warp that copy boxes, or programs that load and store. Another one is
another member of `Transport`, a case here, a kind of kernel in templates/kernels and a rate in the machine files.

Between nodes programs put and get: choose_network.py rewrites the statements that reach other nodes.
"""

from __future__ import annotations

from dataclasses import replace

from tilelink.lowering.bound import Bound, BoundStage, Transport
from tilelink.lowering.choose_network import choose_network


def choose_transport(bound: Bound) -> Bound:
    """Return the bound program whose stages have their transport."""
    stages = {name: replace(stage, transport=transport_of(bound, stage)) for name, stage in bound.stages.items()}
    return choose_network(replace(bound, stages=stages))


def transport_of(bound: Bound, stage: BoundStage) -> Transport:
    """Return the transport that fits the kernel and the boxes of a stage."""
    if bound.kernel_of[stage.name].on_copy_engine:
        return Transport.COPY_ENGINE
    return Transport.TMA if stage.tma_copy is not None else Transport.STORES
