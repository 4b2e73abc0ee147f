# pyright: basic
"""Checks on one GPU, one after the other, each with a line of its own and a deadline."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any

from benchmarks.measure import Watchdog


def run_checks(checks: Iterable[tuple[str, Callable[[], Any]]]) -> int:
    """Run the checks that the command line names, or all of them. Return 1 if any has failed, else 0."""
    dog, failed = Watchdog(60.0), 0
    for name, check in (one for one in checks if one[0] in (sys.argv[1:] or one[0])):
        try:
            with dog.step(name):
                check()
            print(f"{name}: well", flush=True)
        except Exception as error:
            failed += 1
            print(f"{name}: FAILED: {type(error).__name__}: {str(error)[:600]}", flush=True)
    return int(failed > 0)
