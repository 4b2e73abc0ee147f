# pyright: basic
"""How one variant is timed beside others, and the arithmetic of the figures.

Rules: variants alternate on the same fresh data; the rest is as `tilelink.runtime.cuda.timing` times a launch.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import random
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from tilelink.runtime.cuda.timing import SLEEP_CYCLES, Sampler, event_pair, median_of_slowest, slowest

ALLOWED = 1e-2
"""|out - ref| / |ref| (Frobenius) of a right result in 16 bit."""


# Arithmetic --------------------------------------------------------------------------------------------------


def shuffled(variants: Sequence[Any], number: int) -> list[Any]:
    """Return variants in the order in which repetition `number` runs them: a random one, the same on all ranks.

    A GPU that has just run long products has a lower clock for some milliseconds, so no variant may always follow the
    same one.
    """
    return random.Random(number).sample(variants, len(variants))


def floor_us(received_bytes: int, rate_gbs: float) -> float:
    """Microseconds in which a GPU can receive so many bytes at a rate of GB/s."""
    return received_bytes / rate_gbs / 1e3


def overlap(gemm_us: float, transfer_us: float, fused_us: float) -> float:
    """Which part of the shorter of the two is hidden: 1 all, 0 nothing, below 0 slower than one after the other."""
    return (gemm_us + transfer_us - fused_us) / min(gemm_us, transfer_us)


def summarize(rows: list[dict[str, Any]], received_bytes: int, rate_gbs: float) -> dict[str, Any]:
    """The bound, the floor, and what each row is against them. Times in microseconds.

    rows: dicts with name, kind ("gemm", "transfer", "pair", "library", "preset", "ours") and us (None: it failed).
    bound: the larger of the vendor's product and the fastest transfer of the same bytes alone. None where a row that it
    takes has failed. The overlap is taken against that fastest transfer, not against the slower library's.
    """
    done = {kind: [r for r in rows if r["kind"] == kind and r["us"] is not None] for kind in KINDS}
    gemm = min((r["us"] for r in done["gemm"]), default=None)
    transfer = min(done["transfer"], key=lambda r: r["us"], default=None)
    pair = next((r["us"] for r in done["pair"] if "graph" not in r["name"]), None)
    bound = max(gemm, transfer["us"]) if gemm and transfer else None
    floor = floor_us(received_bytes, rate_gbs)
    ratios: dict[str, dict[str, float]] = {}
    for row in (r for kind in ("pair", "library", "ours") for r in done[kind]):
        us = row["us"]
        ratios[row["name"]] = {"floor": us / floor} if floor else {}
        if bound and gemm and transfer:
            ratios[row["name"]] |= {"bound": us / bound, "overlap": overlap(gemm, transfer["us"], us)}
        if pair:
            ratios[row["name"]]["speedup"] = pair / us
    quality = {r["name"]: gemm / r["us"] for r in done["preset"]} if gemm else {}
    return {
        "gemm_us": gemm, "transfer_us": transfer and transfer["us"], "transfer_by": transfer and transfer["name"],
        "pair_us": pair, "bound_us": bound, "floor_us": floor, "ratios": ratios, "gemm_quality": quality,
    }  # fmt: skip


KINDS = ("gemm", "transfer", "pair", "library", "preset", "ours")


# Variants ----------------------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class Variant:
    """Something timed: `run` launches it on the current stream and returns its result.

    expected: what the result must be, read after the sample; None checks nothing. prepare: untimed, before the sample.
    outputs: tensors filled with NaN before the sample, so that no result of another variant can pass for this one's.
    settle: turns what `run` returned into the result, untimed (a copy to a peer is there once all ranks are done).
    allowed: the largest error of a right result.
    """

    name: str
    kind: str
    run: Callable[[], Any]
    expected: Callable[[], torch.Tensor] | None = None
    prepare: Callable[[], Any] | None = None
    outputs: tuple[torch.Tensor, ...] = ()
    settle: Callable[[Any], torch.Tensor] | None = None
    allowed: float = ALLOWED
    notes: dict[str, Any] = field(default_factory=dict)


Failed = dict[str, Any]


class Session(Sampler):
    """The ranks of one run, and how they measure together. Every method is called by all ranks in the same order."""

    def __init__(self, group: dist.ProcessGroup, watchdog: Watchdog, device: torch.device | None = None) -> None:
        super().__init__(group, device)
        self.rank, self.watchdog = dist.get_rank(group), watchdog

    def meet(self) -> None:
        """All ranks meet, and the host waits for it."""
        self.barrier()
        torch.cuda.synchronize()

    def build(self, name: str, kind: str, builder: Callable[[], Variant]) -> Variant | Failed:
        """Builds a variant and runs it twice; if that fails on any rank, the row that says so."""
        failure, variant, begin = "", None, time.perf_counter()
        with self.watchdog.step(f"building {name}"):
            try:
                variant = builder()
                variant.notes["build_s"] = round(time.perf_counter() - begin, 3)
                for _ in range(2):
                    self._once(variant)
                torch.cuda.synchronize()
            except Exception as error:  # a row that fails is recorded; the others go on
                failure = f"{type(error).__name__}: {error}"[:2000]
                print(f"rank {self.rank}: {name}: {failure}", file=sys.stderr, flush=True)
            if self.agree(not failure) and variant is not None:
                return variant
        texts: list[Any] = [None] * self.ranks
        dist.all_gather_object(texts, failure, group=self.group)
        first = next(f"rank {rank}: {text}" for rank, text in enumerate(texts) if text)
        return {"name": name, "kind": kind, "us": None, "failure": first}

    def _once(self, variant: Variant) -> Any:
        if variant.prepare:
            variant.prepare()
        return variant.run()

    def time(
        self, variants: Sequence[Variant], refresh: Callable[[], Any], *, samples: int = 20, warmups: int = 5
    ) -> list[dict[str, Any]]:
        """Rows of the variants, timed by turns. refresh: makes new data and what is expected of it."""
        events = {v.name: [event_pair() for _ in range(samples)] for v in variants}
        host: dict[str, list[float]] = {v.name: [] for v in variants}
        errors = {v.name: torch.zeros((), device=self.device) for v in variants}
        with self.watchdog.step("timing"):
            for number in range(warmups + samples):
                refresh()
                for variant in shuffled(variants, number):
                    self.watchdog.note(variant.name)
                    pair = events[variant.name][max(number - warmups, 0)]
                    seconds = self._timed(variant, pair, errors[variant.name])
                    if number >= warmups:
                        host[variant.name].append(seconds * 1e6)
            torch.cuda.synchronize()
        return [self._row(v, events[v.name], host[v.name], errors[v.name]) for v in variants]

    def _timed(self, variant: Variant, events: tuple[Any, Any], error: torch.Tensor) -> float:
        """One launch between two events; returns the seconds that the host took to issue it."""
        if variant.prepare:
            variant.prepare()
        for output in variant.outputs:
            output.fill_(float("nan"))
        result, seconds = self.sample(variant.run, events)
        if variant.expected:
            result = variant.settle(result) if variant.settle else result
            torch.maximum(error, relative_error(result, variant.expected()), out=error)
        return seconds

    def _row(self, variant: Variant, events: list[Any], host: list[float], error: torch.Tensor) -> dict[str, Any]:
        every = self.times_us(events)
        dist.all_reduce(error, op=dist.ReduceOp.MAX, group=self.group)
        worst = float(error)
        right = worst < variant.allowed
        return {
            "name": variant.name, "kind": variant.kind, "us": median_of_slowest(every) if right else None,
            "failure": None if right else f"the result is off by {worst:.2e}",
            "error": worst if variant.expected else None,
            "samples_us": [round(t, 2) for t in slowest(every)], "host_us": round(statistics.median(host), 1),
            **variant.notes,
        }  # fmt: skip


def relative_error(result: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """|result - expected| / |expected| (Frobenius), on the device; a large number where the result is not finite."""
    difference = torch.linalg.vector_norm(result.reshape(expected.shape) - expected, dtype=torch.float32)
    error = difference / torch.linalg.vector_norm(expected, dtype=torch.float32)
    return torch.nan_to_num(error, nan=9e9, posinf=9e9)


# Deadlines ---------------------------------------------------------------------------------------------------


class Watchdog:
    """Ends the process, with a message, when a step outlives its time: a rank that waits for another never hangs.

    on_end(message) runs before the end, in the watchdog's thread. exit: how the process ends (another one in tests).
    """

    def __init__(
        self, seconds: float, rank: int = 0, on_end: Callable[[str], Any] | None = None,
        exit: Callable[[int], Any] = os._exit,
    ) -> None:  # fmt: skip
        self._seconds, self._rank, self._on_end, self._exit = seconds, rank, on_end, exit
        self._name, self._what, self._until = "", "", float("inf")
        self._context = ""
        threading.Thread(target=self._watch, daemon=True).start()

    @contextlib.contextmanager
    def step(self, name: str) -> Iterator[None]:
        """What happens inside must end in time."""
        before = self._name, self._until
        self._name, self._what, self._until = name, "", time.monotonic() + self._seconds
        try:
            yield
        finally:
            self._name, self._until = before

    def note(self, what: str) -> None:
        """Names what the step is at, for the message."""
        self._what = what

    def context(self, context: str) -> None:
        """Names what all following steps are part of."""
        self._context = context

    def _watch(self) -> None:
        while True:
            time.sleep(min(0.25, self._seconds / 4))
            if time.monotonic() > self._until:
                where = " / ".join(part for part in (self._context, self._name, self._what) if part)
                message = f"rank {self._rank}: no end after {self._seconds:.0f} s: {where}"
                print(message, file=sys.stderr, flush=True)
                with contextlib.suppress(Exception):
                    faulthandler.dump_traceback()
                if self._on_end:
                    with contextlib.suppress(Exception):
                        self._on_end(message)
                self._exit(124)
                return


def microseconds(
    runs: dict[str, Callable[[], Any]], samples: int, flush: torch.Tensor,
    before: Mapping[str, Callable[[], Any]] | None = None,
) -> dict[str, list[float]]:  # fmt: skip
    """Return the microseconds of each run on one GPU, in turns. flush: memory that takes the place of others in L2.

    before: what is done before a run and not timed, by its name.
    """
    seen: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(samples + 2):
        for name in shuffled([*runs], number):
            flush.zero_()
            if before and name in before:
                before[name]()
            torch.cuda._sleep(SLEEP_CYCLES)
            begin, end = torch.cuda.Event(True), torch.cuda.Event(True)
            begin.record()
            runs[name]()
            end.record()
            torch.cuda.synchronize()
            if number >= 2:
                seen[name].append(begin.elapsed_time(end) * 1e3)
    return seen
