"""The order in which the host issues a rank's kernels, and in which they get places on SMs.

A kernel that is issued first may take all SMs, so that is no kernel that waits for another one. Among the others those
of side streams come first, because they have fewer programs. Kernels of one stream stay in order. If kernels wait for
one another, no order is better: the rule of progress has shown that all of them fit.

before: kernel gemm: stream main, position 0, ...      # waits for what gather notifies
        kernel gather: stream gather, position 0, ...
after:  kernel gemm: stream main, position 0, ..., issue_index 1
        kernel gather: stream gather, position 0, ...
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

from tilelink.artifact import Signal
from tilelink.ir.program import Statement
from tilelink.ir.visitor import awaited, notified, statements
from tilelink.lowering.bound import Bound, Kernel


def order_kernels(bound: Bound) -> Bound:
    """Return the bound program whose kernels on SMs are numbered in that order. Copy engines have queues."""
    awaits = {kernel.name: signals(bound, kernel, awaited) for kernel in bound.on_sms}
    notifies = {kernel.name: signals(bound, kernel, notified) for kernel in bound.on_sms}
    indices = {kernel.name: index for index, kernel in enumerate(issued(bound.on_sms, awaits, notifies))}
    return replace(bound, kernels=tuple(replace(k, issue_index=indices.get(k.name, 0)) for k in bound.kernels))


def issued(
    kernels: Iterable[Kernel], awaits: Mapping[str, frozenset[Signal]], notifies: Mapping[str, frozenset[Signal]]
) -> Iterator[Kernel]:
    """Yield kernels in the order in which they are issued. awaits, notifies: signals of each kernel."""
    left = sorted(kernels, key=lambda k: (k.stream == "main", k.position))
    while left:
        heads = [k for k in left if not any(o.stream == k.stream and o.position < k.position for o in left)]
        free = [k for k in heads if not any(o is not k and notifies[o.name] & awaits[k.name] for o in left)]
        chosen = (free or heads)[0]
        left.remove(chosen)
        yield chosen


def signals(bound: Bound, kernel: Kernel, of: Callable[[Statement], Iterable[Signal]]) -> frozenset[Signal]:
    """Return the signals of a kernel's stages. of: `awaited` or `notified`, which gives those of a statement."""
    return frozenset(
        signal
        for stage in kernel.stage_names
        for statement in statements(bound.stages[stage].stage.body)
        for signal in of(statement)
    )
