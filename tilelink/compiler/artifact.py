"""Conversion of a verified plan and its generated module to the artifact that runtimes read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from tilelink import generated
from tilelink.artifact import Artifact, SignalGrid, TensorSpec
from tilelink.compiler.promises import promises_of
from tilelink.ir.program import Statement, Transfer
from tilelink.ir.visitor import statements
from tilelink.lowering.bound import Bound
from tilelink.planning.plan import Plan
from tilelink.planning.traces import most_spans

if TYPE_CHECKING:
    from tilelink.backend.context import Emitted


def artifact_of(plan: Plan, emitted: Emitted, tables: Mapping[str, Any]) -> Artifact:
    """Return the artifact of a verified plan. tables: their values, with which the plan was made."""
    bound = plan.bound
    engines = [kernel for kernel in bound.kernels if kernel.on_copy_engine]
    return Artifact(
        program=bound.source.name,
        target=bound.target.name,
        source=generated.stem(emitted.text),
        dialect=emitted.dialect,
        ranks=bound.ranks,
        nodes=bound.nodes,
        tensors=_tensors(bound),
        grids=_grids(plan),
        pad_size=bound.pad_size,
        entered_base=bound.entered_base,
        finished_base=bound.finished_base,
        stages=tuple(bound.stages),
        pulls=frozenset(s.number for s in bound.stages.values() if any(map(_pulls, statements(s.stage.body)))),
        kernels=emitted.kernels,
        copy_programs=emitted.copy_programs,
        tables={name: np.asarray(values).astype(np.int64) for name, values in tables.items()},
        protocol=bound.protocol,
        lag=_lag(bound),
        reuse_wait=bound.schedule.reuse_wait,
        spans=most_spans(plan) if bound.capabilities.traced else 0,
        free_waits=all(kernel.waits_aside for kernel in engines),
        own_copies_first=all(kernel.own_copies_first for kernel in engines),
        promises=promises_of(bound),
    )


def _tensors(bound: Bound) -> tuple[TensorSpec, ...]:
    return tuple(
        TensorSpec(
            name=t.name,
            number=t.number,
            space=t.decl.space,
            symmetric=t.decl.symmetric,
            shape=t.memory,
            dtype=t.stored,
            buffers=t.buffers,
            members=t.members,
        )
        for t in bound.tensors.values()
    )


def _grids(plan: Plan) -> tuple[SignalGrid, ...]:
    return tuple(
        SignalGrid(
            tensor=g.tensor,
            kind=g.kind,
            base=g.base,
            counts=g.counts,
            buffers=g.buffers,
            thresholds=plan.thresholds[key].reshape(plan.bound.ranks, -1),
        )
        for key, g in plan.bound.channels.items()
    )


def _lag(bound: Bound) -> int:
    """Return how many launches ahead of its peers a rank may prepare a launch.

    The limit is due to its copy engine and its staged inputs, which write to peers.
    """
    lags = [one.reuse_lag for one in bound.kernels if one.on_copy_engine and one.reuse_lag]
    lags += [t.buffers for t in bound.tensors.values() if t.decl.symmetric and t.decl.space == "in"]
    return min(lags, default=0)


def _pulls(statement: Statement) -> bool:
    """True if a statement fetches a region to the local rank."""
    return (
        isinstance(statement, Transfer)
        and statement.mode not in ("push", "put", "send")
        and statement.target.rank is None
    )
