"""What becomes of a case: refused, or accepted, run on CPU ranks, and compared with the reference."""

from __future__ import annotations

import re
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.campaign.case import Case
from tilelink import compiler
from tilelink.errors import (
    AccountingError,
    BindingError,
    DeadlineError,
    ProgressError,
    PromiseError,
    SeveralErrors,
    TileLinkError,
)
from tilelink.ir.program import Program
from tilelink.reference.run import Outputs
from tilelink.reference.run import run as reference
from tilelink.reference.trial import random_inputs, rounding_error
from tilelink.scheduling.schedule import Schedule
from tilelink.target import CPU

DELAY_S = 0.001
DEADLINE_S, LONG_DEADLINE_S = 15.0, 150.0
"""A wait that outlives the first one may be for many tiles on a machine that is not free: it is tried again."""
ALLOWED = {
    torch.float32: 2e-4, torch.float16: 2e-2, torch.bfloat16: 6e-2, torch.float8_e4m3fn: 0.125, torch.float8_e5m2: 0.25,
}  # fmt: skip
"""Of the largest number of a tensor, or of one."""
Inputs = Sequence[Sequence[Mapping[str, torch.Tensor]]]
OUTCOMES = ("refused", "right", "not followed", "wrong")
BITS = {
    torch.float32: torch.int32, torch.float16: torch.int16, torch.bfloat16: torch.int16,
    torch.float8_e4m3fn: torch.uint8, torch.float8_e5m2: torch.uint8,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """outcome: one of OUTCOMES. "not followed": it ran, and the reference can say nothing of it.

    step: where it was decided. error: the class of what was raised. reason: one line.
    """

    case: Case
    outcome: str
    step: str
    error: str = ""
    reason: str = ""

    @property
    def signature(self) -> str:
        """What verdicts of one cause mostly have in common: the reason without names, numbers and places."""
        words = re.sub(r"'[^']*'|\b[a-z]+\d+\b|-?\b\d[\d.e+-]*\b|\[[^\]]*\]", "_", self.reason)
        return f"{self.step}: {self.error} {words[:90]}"

    def __str__(self) -> str:
        return f"{self.outcome} at {self.step}: {self.error} {self.reason}".replace("  ", " ")


def judge(case: Case) -> Verdict:
    """Never raises: what no design foresees is wrong too."""
    step = "read"
    try:
        module = compiler.parse(case.text)
        program = module.program()
        schedule = module.schedules[0] if module.schedules else None
        step = "plan"
        kernel = compiled(case, program, schedule)
    except TileLinkError as error:
        one = error.errors[0] if isinstance(error, SeveralErrors) else error
        return Verdict(case=case, outcome="refused", step=step, error=type(one).__name__, reason=one.message)
    except Exception as error:
        return _wrong(case, step, error)
    return _run(case, program, kernel)


def compiled(case: Case, program: Program, schedule: Schedule | None) -> compiler.Kernel:
    target = replace(CPU, sms=case.sms, max_programs=case.programs, grows=False)
    tables = {name: np.asarray(rows, np.int32) for name, rows in case.tables.items()}
    where: dict[str, Any] = {"ranks": case.ranks, "nodes": case.nodes, "target": target}
    return compiler.compile(program, schedule, **where, dims=case.dims, dtype=case.dtype, tables=tables)


def launches_of(kernel: compiler.Kernel) -> int:
    """So many launches that every buffer is used again."""
    return 1 + max((tensor.buffers for tensor in kernel.plan.bound.tensors.values()), default=1)


def _run(case: Case, program: Program, kernel: compiler.Kernel) -> Verdict:
    try:
        inputs = random_inputs(
            program,
            ranks=case.ranks,
            dims=case.dims,
            dtype=case.dtype,
            launches=launches_of(kernel),
            seed=case.seed % 2**31,
            routing=case.routing,
        )
    except BindingError as error:  # no entries of this routing keep all promises
        return Verdict(case=case, outcome="refused", step="inputs", error="BindingError", reason=error.message)
    step = "run"
    try:
        outputs = _launched(kernel, inputs, case.seed % 2**31)
        step = "reference"
        left: list[dict[str, torch.Tensor]] | None = None
        every = list[list[Outputs]]()
        for number, (given, found) in enumerate(zip(inputs, outputs, strict=True), 1):
            meant = reference(program, _with_tables(case, given), case.dims, dtype=case.dtype, kept=left)
            left = [one.kept for one in meant]
            every.append(meant)
            apart = rounding_error(program, case.dtype, every)
            within = {t.name: t.within for t in program.tensors if t.within is not None}
            reason = compared(found, meant, within, apart)
            if number == len(outputs):
                reason = reason or compared(kernel.state(), left, within, apart)
            if reason:
                return Verdict(case=case, outcome="wrong", step="compare", reason=f"launch {number - 1}: {reason}")
    except (AccountingError, ProgressError) as error:  # it has one tile for an index
        return Verdict(case=case, outcome="not followed", step=step, error=type(error).__name__, reason=error.message)
    except PromiseError as error:  # of what stages compute no step before knows it
        return Verdict(case=case, outcome="refused", step=step, error="PromiseError", reason=error.message)
    except Exception as error:  # a refusal is for the steps before
        return _wrong(case, step, error)
    return Verdict(case=case, outcome="right", step="compare")


def _launched(kernel: compiler.Kernel, inputs: Inputs, seed: int) -> Inputs:
    try:
        return kernel.run(inputs, seed=seed, max_delay_s=DELAY_S, deadline_s=DEADLINE_S).outputs
    except DeadlineError:
        return kernel.run(inputs, seed=seed, max_delay_s=DELAY_S, deadline_s=LONG_DEADLINE_S).outputs


def _with_tables(case: Case, given: Sequence[Mapping[str, torch.Tensor]]) -> list[dict[str, torch.Tensor]]:
    tables = {name: torch.tensor(rows, dtype=torch.int32) for name, rows in case.tables.items()}
    return [{**own, **{name: rows[rank] for name, rows in tables.items()}} for rank, own in enumerate(given)]


def compared(
    found: Sequence[Mapping[str, torch.Tensor]],
    meant: Sequence[Mapping[str, torch.Tensor]],
    within: Mapping[str, float] | None = None,
    apart: float = 0.0,
) -> str:
    """How outputs differ from what they should be; empty if they do not.

    within: the errors that a program states. apart: what sums may differ by whose terms came in another order.
    """
    for rank, (own, other) in enumerate(zip(found, meant, strict=True)):
        for name, value in own.items():
            wrong = _differ(name, value, other[name], (within or {}).get(name, 0.0), apart)
            if isinstance(other, Outputs) and name in other.defined:
                wrong = wrong & other.defined[name]
            if bool(wrong.any()):
                place = tuple(torch.nonzero(wrong)[0].tolist())
                share = f"{int(wrong.sum())} of {wrong.numel()}"
                values = f"{value[place].item()!r}, not {other[name][place].item()!r}"
                return f"{share} elements of {name} of rank {rank} differ, {name}{list(place)} is {values}"
    return ""


def _differ(name: str, value: torch.Tensor, meant: torch.Tensor, within: float, apart: float) -> torch.Tensor:
    """Bit by bit for integers and for what a program only copies (its names begin with an e)."""
    if value.dtype != meant.dtype or value.shape != meant.shape:
        return torch.ones((), dtype=torch.bool)
    if not value.dtype.is_floating_point:
        return value != meant
    nan = value.isnan() != meant.isnan()
    if re.fullmatch(r"e\d+", name):
        bits = BITS[value.dtype]
        return nan | (~value.isnan() & (value.view(bits) != meant.view(bits)))
    a, b = value.double(), meant.double()
    finite = a.isfinite() & b.isfinite()
    largest = float(b[b.isfinite()].abs().max()) if bool(b.isfinite().any()) else 0.0
    far = (a - b).abs() > max(within, ALLOWED[value.dtype] + apart) * max(1.0, largest)
    return nan | torch.where(finite, far, (a != b) & ~a.isnan())


def _wrong(case: Case, step: str, error: Exception) -> Verdict:
    message = error.message if isinstance(error, TileLinkError) else str(error)
    if not isinstance(error, TileLinkError):
        frame = traceback.extract_tb(error.__traceback__)[-1]
        message += f" ({Path(frame.filename).name}, {frame.name})"
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    details: Any = getattr(error, "details", "")
    last = details.strip().splitlines()[-1:] if isinstance(details, str) else []
    reason = " ".join([*lines[:2], *last])[:400]
    return Verdict(case=case, outcome="wrong", step=step, error=type(error).__name__, reason=reason)
