# pyright: basic
"""Cases that all ranks go through together. One that fails is said at the end and does not hide those after it.

A failed check is only written down, so that the rank goes on with the launches that its peers wait for. All other
errors, such as a late wait or an error of CUDA, end the scenario: what the GPUs do after them means nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import torch.distributed as dist

Case = TypeVar("Case")
Value = TypeVar("Value")

SLOW_S = 5.0
"""Seconds after which a case is said to be slow."""


class CaseError(Exception):
    """A case that some rank cannot begin. All ranks raise it together."""


class CasesFailed(Exception):
    """Some checks failed, on some rank. All ranks raise it together, so they can go on together."""

    agreed = True


class Checks:
    """What was expected of one case on this rank, and was not so."""

    def __init__(self) -> None:
        self.failures: list[str] = []

    def expect(self, true: bool, text: str) -> None:
        if not true:
            self.failures.append(text)

    def raises(self, kind: type[Exception], action: Callable[[], object], text: str) -> Any:
        """The error of that kind that the action raises; None, and a failure, if it raises none."""
        try:
            action()
        except kind as error:
            return error
        self.failures.append(f"{text}: no {kind.__name__}")
        return None


def together(cases: Iterable[Case], body: Callable[[Case, Checks], None], name: Callable[[Case], str]) -> None:
    """Calls body(case, checks) for each case on all ranks. Collective. Raises CasesFailed after the last one.

    Every tenth case is said as it begins, so that one that hangs is known from many that are slow, which are said too.
    """
    failed: list[str] = []
    for number, case in enumerate(cases):
        if number % 10 == 0 and dist.get_rank() == 0:
            print(f"case {number}: {name(case)}", flush=True)
        checks, begin = Checks(), time.monotonic()
        try:
            body(case, checks)
            why = _said(name(case), checks.failures)
        except CaseError as error:
            why = f"{name(case)}: {error}"
        if (seconds := time.monotonic() - begin) > SLOW_S and dist.get_rank() == 0:
            print(f"slow: {name(case)}, {seconds:.0f} s", flush=True)
        if why:
            failed.append(why)
            if dist.get_rank() == 0:
                print(f"failed: {why}", flush=True)
    if failed:
        raise CasesFailed(f"{len(failed)} failed:\n" + "\n".join(failed))


def on_all(make: Callable[[], Value]) -> Value:
    """What `make` returns, if it does on every rank. Collective. Raises CaseError on all ranks if it raises on one."""
    value, reason = None, ""
    try:
        value = make()
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0][:400]
    if worst := _said("", [reason] if reason else []):
        raise CaseError(worst)
    return value  # type: ignore[return-value]


def _said(name: str, own: list[str]) -> str:
    """What the first rank with failures says of a case, and how many ranks have any; "" if none has. Collective."""
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, own)
    having = [rank for rank, failures in enumerate(every) if failures]
    if not having:
        return ""
    first = every[having[0]]
    more = f" (and {len(first) - 1} more)" if len(first) > 1 else ""
    ranks = ", ".join(map(str, having))
    return f"{name}{': ' if name else ''}{first[0]}{more}, on {'ranks' if len(having) > 1 else 'rank'} {ranks}"
