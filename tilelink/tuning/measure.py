# pyright: basic
"""Measurement of candidates on GPU ranks in lock-step: all ranks try the same list, and drop and choose the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from tilelink.artifact import Artifact
from tilelink.errors import TileLinkError
from tilelink.ir.program import Program
from tilelink.runtime.cuda.device import current_target
from tilelink.runtime.cuda.kernel import GpuKernel
from tilelink.runtime.cuda.timing import Sampler
from tilelink.scheduling.schedule import Schedule
from tilelink.settings import settings
from tilelink.tuning.prepare import Point, program_of

SAMPLES, WARMUPS = 12, 3
AGREES = 1e-2
"""Maximum of |out - other| / |other| for which two results count as equal."""

Run = Callable[[Mapping[str, torch.Tensor]], Mapping[str, torch.Tensor]]


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A candidate's time in seconds, the median over samples of the maximum over ranks, or None with a reason."""

    label: str
    seconds: float | None
    reason: str = ""


def measure(
    candidates: Sequence[tuple[Program, Schedule]],
    inputs: Mapping[str, torch.Tensor],
    *,
    dims: Mapping[str, int | float | bool],
    dtype: str,
    group: dist.ProcessGroup,
    others: Mapping[str, Run] | None = None,
    deadline_s: float = 5.0,
) -> list[Measured]:
    """Run candidates and `others` (label -> function of the inputs), and time those with equal results. Collective.

    Tensors that the candidates read and write in place stay as they are: each launch changes a copy. A candidate is
    dropped on all ranks if, on any rank, it does not compile, exceeds its deadline, or differs from the
    result of the majority.
    """
    runs: dict[str, Run] = dict(others or {})
    reasons: dict[str, str] = {}
    results: dict[str, Mapping[str, torch.Tensor]] = {label: run(inputs) for label, run in runs.items()}
    points = points_of(candidates, dims=dims, dtype=dtype, group=group)
    for number, point in enumerate(points):
        label = f"{point.program.name}:{number}"
        reasons[label], program = _made(point, group)
        if program is None:
            continue
        kernel, result, reason = _tried(program, _fresh(program, inputs), group, deadline_s)
        reasons[label] = _worst(reason, group)
        del kernel  # only after `_worst` has synchronised the ranks: peers access its memory until they end
        if not reasons[label] and result is not None:
            results[label] = result
            run = GpuKernel(program, group, settings().deadline)
            own = {name: value for name, value in _fresh(program, inputs).items() if value is not inputs[name]}
            runs[label] = lambda given, run=run, own=own: run({**given, **own})
    agreed = _agreed(results, group)
    for label in set(runs) - agreed:
        reasons[label] = "its result differs from the others"
    seconds = _timed({label: run for label, run in runs.items() if label in agreed}, inputs, group)
    labels = [*(others or {}), *(f"{program.name}:{n}" for n, (program, _) in enumerate(candidates))]
    return [Measured(label=name, seconds=seconds.get(name), reason=reasons.get(name, "")) for name in labels]


def points_of(
    candidates: Sequence[tuple[Program, Schedule]],
    *,
    dims: Mapping[str, int | float | bool],
    dtype: str,
    group: dist.ProcessGroup,
) -> list[Point]:
    """Return candidates as points for the ranks of a group, as `prepare_shares` takes them."""
    target, ranks = current_target(), dist.get_world_size(group)
    return [
        Point(program=program, schedule=schedule, dims=dims, dtype=dtype, ranks=ranks, target=target)
        for program, schedule in candidates
    ]


def _made(point: Point, group: dist.ProcessGroup) -> tuple[str, Artifact | None]:
    """Return ("", artifact), or (reason, None) if any rank has no artifact."""
    program, reason = None, ""
    try:
        program = program_of(point)
    except Exception as error:
        reason = _text(error)
    worst = _worst(reason, group)
    return worst, None if worst else program


def _fresh(program: Artifact, inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return inputs with copies of those that a program reads and writes in place."""
    in_place = {t.name for t in program.tensors if t.in_place}
    return {name: value.clone() if name in in_place else value for name, value in inputs.items()}


def _tried(
    program: Artifact, inputs: Mapping[str, torch.Tensor], group: dist.ProcessGroup, deadline_s: float
) -> tuple[GpuKernel | None, Mapping[str, torch.Tensor] | None, str]:
    """Return (kernel with a deadline, its outputs, ""), or the kernel if any, None and the reason of the failure."""
    kernel = None
    try:
        kernel = GpuKernel(program, group, deadline_s)
        return kernel, kernel(inputs), ""
    except Exception as error:  # also errors of Triton and CUDA
        return kernel, None, _text(error)


def _text(error: Exception) -> str:
    message = error.message if isinstance(error, TileLinkError) else next(iter(str(error).splitlines()), "")
    return f"{type(error).__name__}: {message}"


def _worst(reason: str, group: dist.ProcessGroup) -> str:
    """Return the reason of the first rank that has one, else "". Collective."""
    every: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(every, reason, group=group)
    return next((text for text in every if text), "")


def _agreed(results: Mapping[str, Mapping[str, torch.Tensor]], group: dist.ProcessGroup) -> set[str]:
    """Return the largest set of results that are equal to one of them on all ranks."""
    names = list(results)
    same = torch.tensor([[float(_close(results[a], results[b])) for b in names] for a in names], device="cuda")
    if not names:
        return set()
    same = _every(same, group).amin(dim=0)
    chosen = same[int(same.sum(dim=1).argmax())]
    return {name for name, agrees in zip(names, chosen.tolist(), strict=True) if agrees}


def _close(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> bool:
    for name, value in one.items():
        norm = other[name].float().norm()
        if not bool((value.reshape(other[name].shape).float() - other[name].float()).norm() <= AGREES * norm):
            return False
    return True


def _timed(runs: Mapping[str, Run], inputs: Mapping[str, torch.Tensor], group: dist.ProcessGroup) -> dict[str, float]:
    """Return the seconds of each run; the runs take turns in every round of samples."""
    found = Sampler(group).timings({label: partial(run, inputs) for label, run in runs.items()}, SAMPLES, WARMUPS)
    return {label: one.median_us * 1e-6 for label, one in found.items()}


def _every(value: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    """Return the tensors of all ranks, [ranks, *shape]. Collective: no rank continues before all have arrived."""
    found = torch.empty((dist.get_world_size(group), *value.shape), dtype=value.dtype, device=value.device)
    dist.all_gather_into_tensor(found, value.contiguous(), group=group)
    return found
