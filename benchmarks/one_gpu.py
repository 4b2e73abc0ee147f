# pyright: basic
"""What benchmarks of kernels on one GPU share: options, kernels compiled beforehand, the turns of cases, the report."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import torch

from benchmarks import tp
from benchmarks.measure import Watchdog
from tilelink.runtime.cuda.device import current_target
from tilelink.runtime.cuda.timing import FLUSH_BYTES
from tilelink.target import Target
from tilelink.target import target as named_target
from tilelink.tuning import prepare


def parser(
    description: str | None, *, samples: int, seconds: float, prepare: float, numbered: bool = True
) -> argparse.ArgumentParser:
    """Return a parser of the options that all have. numbered: cases are chosen by their numbers."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    if numbered:
        made.add_argument("--cases", default="", help="numbers of cases, with commas; default: all")
    made.add_argument("--samples", type=int, default=samples)
    made.add_argument("--limit", type=float, default=30.0, help="seconds that one step may take")
    made.add_argument("--seconds", type=float, default=seconds, help="begin no case after so many seconds")
    made.add_argument("--workers", type=int, default=min(14, os.cpu_count() or 1), help="processes that compile")
    made.add_argument("--prepare", type=float, default=prepare, help="seconds for them")
    made.add_argument("--dry", action="store_true", help="only compile, for sm_90, without a GPU")
    made.add_argument("--commit", help="what to write for the commit where there is no git")
    made.add_argument("--out", type=Path)
    return made


def machine(dry: bool) -> Target:
    """Return this GPU as a target. The processes that compile do not use it."""
    return named_target("sm_90") if dry else replace(named_target("sm_90"), sms=current_target().sms)


class Run:
    """A run through cases: what it compiles, the memory that flushes the cache, the watchdog and the report."""

    def __init__(self, name: str, args: argparse.Namespace, wanted: Sequence[tuple[Any, str, prepare.Point]]) -> None:
        """Compile what is wanted of each case, by its name, and begin a report unless the run is dry."""
        self._begin, self._args = time.monotonic(), args
        reasons = prepare.prepare_all([p for *_, p in wanted], workers=args.workers, seconds=args.prepare)
        print(f"{reasons.count('')} of {len(wanted)} kernels compiled in {self._seconds:.0f} s", flush=True)
        for (case, form, _), reason in zip(wanted, reasons, strict=True):
            if reason and reason != prepare.LATE:
                print(f"    {case}: {form}: {reason}", flush=True)
        if args.dry:
            return
        self.flush, self.rows = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda"), list[dict[str, Any]]()
        self.report: dict[str, Any] = {
            "benchmark": name, "machine": tp.machine(), "commit": args.commit or tp.commit(),
            "samples": args.samples, "rows": self.rows, "ended_early": None,
        }  # fmt: skip
        self.dog = Watchdog(args.limit, on_end=self.write)

    @property
    def _seconds(self) -> float:
        return time.monotonic() - self._begin

    def write(self, early: str | None = None) -> None:
        """Write the report so far."""
        self.report["ended_early"] = early
        if self._args.out:
            self._args.out.write_text(json.dumps(self.report, indent=1) + "\n")

    def each(
        self, cases: Iterable[Any], measure: Callable[[Any], dict[str, Any]],
        lines: Callable[[dict[str, Any]], Iterable[str]],
    ) -> None:  # fmt: skip
        """Measure the cases for which there is time, and print the lines of each."""
        for case in cases:
            if self._seconds > self._args.seconds:
                print(f"no time for {case}", flush=True)
                continue
            self.rows.append(row := measure(case))
            print("\n".join(lines(row)), flush=True)
            self.write()

    def end(self) -> NoReturn:
        """End the process without the shutdown of CUDA."""
        sys.stdout.flush()
        os._exit(0)
