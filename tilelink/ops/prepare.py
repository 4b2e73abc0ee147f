"""Kernels of many calls made ready at once, as a server does before it captures a graph for each of its batch sizes."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tilelink.errors import BindingError, public
from tilelink.ops.calls import made_for
from tilelink.ops.groups import Group, members_of, refuse_capture
from tilelink.tuning.prepare import Point, prepare_shares

COMPILE_S = 300.0
"""Seconds that processes may compile; after that the ranks make what is left."""
MB = 1e6
_log = logging.getLogger("tilelink.ops")


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """The result of `prepare`. kernels: how many it made. symmetric_bytes: of all kernels that the group now has."""

    kernels: int
    symmetric_bytes: int
    seconds: float


@public
def prepare(
    calls: Sequence[Callable[[], Any]], *, group: Group = None, workers: int = 0,
    report: Callable[[str], Any] | None = None,
) -> Prepared:  # fmt: skip
    """Make the kernels that calls of operators need: afterwards none of these calls compiles. Collective.

        sizes = [1, 2, 4, *range(8, 257, 8)]
        ops.prepare([partial(ops.gemm_ar, x[:rows], w) for w in weights for rows in sizes])

    calls: functions without arguments, such as these or a pass through a model, which call operators of the group with
    tensors of the sizes to come. All ranks give the same ones in the same order. Each is called twice: first its
    operators return tensors of any value where a kernel is missing, then the kernels are made and it is run.
    workers: processes that compile beside each other on each host; 0: each rank compiles one kernel after the other.
    They are started as Python's multiprocessing spawns them: the main module is imported again, and needs the usual
    `if __name__ == "__main__":`.
    report: is told in words how far it is. It is logged too (`tilelink.ops`, INFO).

    Raises RankError while a CUDA graph is captured, BindingError for what cannot be called, and what the calls raise.
    """
    begin = time.monotonic()
    made = made_for(members_of(group))
    refuse_capture(
        "kernels are compiled and allocated, which no CUDA graph holds", "prepare before the capture, on all ranks"
    )
    for number, call in enumerate(calls):
        if not callable(call):
            hint = "functools.partial(ops.gemm_ar, x, w), or lambda: model(x)"
            raise BindingError(f"call {number} is a {type(call).__name__}, which cannot be called", hint=hint)

    def say(words: str) -> None:
        _log.info("%s", words)
        if report is not None:
            report(words)

    wanted: dict[Any, Point] = {}
    made.wanted = wanted
    try:
        for call in calls:
            call()
    finally:
        made.wanted = None
    say(f"{len(wanted)} kernels to make for {len(calls)} calls")
    if workers and wanted:
        reasons = prepare_shares([*wanted.values()], made.group, seconds=COMPILE_S, workers=workers)
        say(f"compiled {reasons.count('')} of {len(wanted)} in {time.monotonic() - begin:.0f} s")
        for point, reason in zip(wanted.values(), reasons, strict=True):
            if reason:
                _log.warning("%s is compiled by the ranks: %s", _name(point), reason)
    ready = 0
    for call in calls:
        call()
        there = [point for key, point in wanted.items() if key in made.kernels]
        if len(there) > ready:
            ready = len(there)
            say(f"{ready} of {len(wanted)} kernels, {_bytes(made.kernels) / MB:.1f} MB of symmetric memory")
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return Prepared(kernels=ready, symmetric_bytes=_bytes(made.kernels), seconds=time.monotonic() - begin)


def _bytes(kernels: dict[Any, Any]) -> int:
    """Return the symmetric memory that a rank holds for kernels; those of several nodes do not say."""
    return sum(getattr(one, "symmetric_bytes", 0) for one in kernels.values())


def _name(point: Point) -> str:
    schedule = point.schedule.name if point.schedule is not None else "the built-in schedule"
    return f"{point.program.name} with {schedule}, {', '.join(f'{n}={v}' for n, v in point.dims.items())}"
