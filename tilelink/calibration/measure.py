# pyright: basic
"""Timing of a node on its GPU ranks: all ranks run the same launches in lock-step."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import metadata
from typing import Any

import torch
import torch.distributed as dist

from tilelink import compiler
from tilelink.calibration import programs
from tilelink.calibration.fit import Timings
from tilelink.capabilities import has_warpgroups
from tilelink.errors import RankError, TileLinkError
from tilelink.runtime.cuda.device import current_target
from tilelink.runtime.cuda.driver import Address, Call, Handle, driver, driver_error

SAMPLES, WARMUPS = 9, 3
SLEEP_CYCLES = 1_000_000
"""About half a millisecond before each sample, during which the host issues the launch."""
FLUSHED_BYTES = 256 * 2**20
MIB = 2**20
LOCAL_BYTES = (128 * MIB, 512 * MIB)
COPIED_BYTES = (64 * MIB, 256 * MIB)
SMALL_BYTES = 4096
SMALL_COPIES = (1, 33)

Rows = Iterator[list[float]]


def measure(group: dist.ProcessGroup, budget_s: float = 50.0) -> Timings:
    """Return all rows, with the median over samples of the largest time of any rank. Collective, one GPU per rank.

    Rows that fail on a rank are dropped on all ranks, with the reason, as are rows not begun within the budget.
    """
    clock, begin = _Clock(group), time.monotonic()
    rows: dict[str, list[list[float]]] = {}
    failures: dict[str, str] = {}
    for name, measured in MEASURED.items():
        found, reason = list[list[float]](), ""
        if not clock.agree(time.monotonic() - begin < budget_s):
            failures[name] = f"{budget_s:g} s were over"
            continue
        try:
            if clock.ranks == 1 and name in BETWEEN_RANKS:
                raise RankError("there is one rank", hint="calibrate with two ranks or more")
            found = list(measured(clock))
            torch.cuda.synchronize()
        except Exception as error:  # whatever it is, the other numbers can still be measured
            message = error.message if isinstance(error, TileLinkError) else str(error)
            reason = ": ".join([type(error).__name__, *message.splitlines()[:1]])
            print(f"calibrate: {name}: {reason}", file=sys.stderr, flush=True)
        if reason := clock.worst(reason):
            failures[name] = reason
        else:
            rows[name] = found
    target = current_target()
    versions = f"torch {torch.__version__}, triton {metadata.version('triton')}"
    return Timings(
        gpu=torch.cuda.get_device_name(), target=target.name, sms=target.sms, ranks=clock.ranks, versions=versions,
        rows=rows, failures=failures,
    )  # fmt: skip


class _Clock:
    """Times launches between two events, after a barrier of the ranks and a flush of the caches."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group, self.rank, self.ranks = group, dist.get_rank(group), dist.get_world_size(group)
        self.device = torch.device("cuda", torch.cuda.current_device())
        self._flushed = torch.empty(FLUSHED_BYTES, dtype=torch.uint8, device=self.device)

    def seconds(self, run: Callable[..., Any], *arguments: Any) -> float:
        """Return the seconds of run(*arguments): median over samples of the largest time of any rank. Collective."""
        meeting = torch.zeros(1, device=self.device)
        taken: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        for _ in range(WARMUPS + SAMPLES):
            self._flushed.zero_()
            self._every(meeting)
            torch.cuda._sleep(SLEEP_CYCLES)
            events = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            events[0].record()
            run(*arguments)
            events[1].record()
            taken.append(events)
            torch.cuda.synchronize()
        own = torch.tensor([a.elapsed_time(b) * 1e-3 for a, b in taken[WARMUPS:]], device=self.device)
        return statistics.median(self._every(own).amax(dim=0).tolist())

    def agree(self, well: bool) -> bool:
        return bool(self._every(torch.tensor([float(well)], device=self.device)).amin() > 0)

    def worst(self, reason: str) -> str:
        """Return the reason of the first rank that has one, else "". Collective."""
        every: list[Any] = [None] * self.ranks
        dist.all_gather_object(every, reason, group=self.group)
        return next((text for text in every if text), "")

    def _every(self, value: torch.Tensor) -> torch.Tensor:
        """Return the numbers of all ranks, [ranks, numbers]. Collective: no rank continues before all have arrived."""
        found = torch.empty(self.ranks * value.numel(), dtype=value.dtype, device=self.device)
        dist.all_gather_into_tensor(found, value, group=self.group)
        return found.view(self.ranks, -1)

    def compiled(self, text: str, dims: Mapping[str, int]) -> Any:
        module = compiler.parse(text, "<calibrate>")
        options: dict[str, Any] = {"dims": dims, "dtype": "bf16", "device": "cuda", "group": self.group}
        return compiler.compile(module.programs[0], module.schedules[0], **options)

    def random(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, device=self.device, dtype=torch.bfloat16)


# Measurements ------------------------------------------------------------------------------------------------


def _products(clock: _Clock) -> Rows:
    for tile in programs.PRODUCT_TILES:
        for waves, inner in programs.WAVES_AND_INNER:
            yield [*tile[:2], waves, inner, _product(clock, tile, waves, inner)]


def _flat(clock: _Clock) -> Rows:
    for flat in (False, True):
        for waves in programs.FLAT_WAVES:
            yield [flat, waves, _product(clock, programs.FLAT_TILE, waves, programs.FLAT_INNER, ", flatten" * flat)]


def _roles(clock: _Clock) -> Rows:
    """Yield products with and without roles. Raises RankError where kernels have none: the clause would do nothing."""
    if not has_warpgroups(current_target()):
        raise RankError("the GPU has no warpgroup products", hint="calibrate on sm_90")
    for roles in (False, True):
        for waves in programs.FLAT_WAVES:
            more = programs.ROLES * roles
            yield [roles, waves, _product(clock, programs.ROLES_TILE, waves, programs.FLAT_INNER, more)]


def _product(clock: _Clock, tile: tuple[int, int, int, int], waves: int, inner: int, more: str = "") -> float:
    """Return the seconds of a product with `waves` tiles for every SM."""
    rows, columns, warps, stages = tile
    text = programs.PRODUCT.format(rows=rows, columns=columns, warps=warps, stages=stages, more=more)
    m, n = programs.product_sizes(current_target().sms, rows, columns, waves)
    kernel = clock.compiled(text, {"M": m, "N": n, "K": inner})
    given = {"x": clock.random(m, inner), "w": clock.random(n, inner)}
    return clock.seconds(kernel, given, {"y": clock.random(m, n)})


def _local(clock: _Clock) -> Rows:
    for size in LOCAL_BYTES:
        source, target = (torch.zeros(size, dtype=torch.uint8, device=clock.device) for _ in range(2))
        yield [size, clock.seconds(target.copy_, source)]


def _copies(clock: _Clock) -> Rows:
    """Yield copies to the next rank, by the driver calls that a launch makes."""
    from torch.distributed import _symmetric_memory as symmetric

    memory = symmetric.empty(max(COPIED_BYTES), dtype=torch.uint8, device=clock.device)
    handle: Any = symmetric.rendezvous(memory, clock.group)
    peer = int(handle.buffer_ptrs[(clock.rank + 1) % clock.ranks])
    source = torch.zeros(max(COPIED_BYTES), dtype=torch.uint8, device=clock.device)
    stream = Handle(torch.cuda.current_stream().cuda_stream)
    calls = driver()
    for count, size in (*((1, size) for size in COPIED_BYTES), *((count, SMALL_BYTES) for count in SMALL_COPIES)):
        places = [(peer + n * size, source.data_ptr() + n * size) for n in range(count)]
        issued = [calls.copy(stream, Address(to), Address(of), size) for to, of in places]
        yield [count, size, clock.seconds(_issue, issued)]


def _issue(calls: Sequence[Call]) -> None:
    for function, arguments in calls:
        if status := function(*arguments):
            raise driver_error("refused a copy", status)


def _push(clock: _Clock) -> Rows:
    for count in programs.MOVERS:
        for row in _sent(clock, programs.PUSH.format(programs=count)):
            yield [count, *row]


def _bulk(clock: _Clock) -> Rows:
    """Yield TMA copies to the next rank. Raises RankError without TMA, since programs would load and store instead."""
    if not current_target().tma:
        raise RankError("the GPU has no tensor memory accelerator", hint="calibrate on sm_90")
    for rows in programs.BULK_ROWS:
        text = programs.BULK.format(
            sms=programs.BULK_SMS, programs=programs.BULK_PROGRAMS, rows=rows, columns=programs.BULK_COLUMNS
        )
        for row in _sent(clock, text):
            yield [2 * rows * programs.BULK_COLUMNS, *row]


def _sent(clock: _Clock, text: str) -> Rows:
    """Yield [bytes, seconds] of sending two amounts to the next rank."""
    for rows in programs.MOVED_ROWS:
        dims = {"M": rows, "K": programs.MOVED_COLUMNS}
        given, out = ({name: clock.random(*dims.values())} for name in ("x", "y"))
        yield [2 * rows * programs.MOVED_COLUMNS, clock.seconds(clock.compiled(text, dims), given, out)]


def _pull(clock: _Clock) -> Rows:
    for count in programs.MOVERS:
        for rows in programs.MOVED_ROWS:
            dims = {"M": rows, "K": programs.MOVED_COLUMNS}
            kernel = clock.compiled(programs.PULL.format(programs=count), dims)
            out = {"y": clock.random(*dims.values())}
            kernel.buffer("x").normal_()
            given = {"x": kernel.buffer("x")}
            yield [count, 2 * rows * programs.MOVED_COLUMNS, clock.seconds(kernel, given, out)]


def _hops(clock: _Clock) -> Rows:
    for hops in programs.HOPS:
        kernel = clock.compiled(programs.HOP, {"S": hops, "M": programs.HOP_ELEMENTS})
        given, out = ({name: clock.random(programs.HOP_ELEMENTS)} for name in ("x", "y"))
        yield [hops, clock.seconds(kernel, given, out)]


def _chain(clock: _Clock) -> Rows:
    for kernels in programs.CHAINS:
        kernel = clock.compiled(programs.chain(kernels), {"M": programs.HOP_ELEMENTS})
        given, out = ({name: clock.random(programs.HOP_ELEMENTS)} for name in ("x", "y"))
        yield [kernels, clock.seconds(kernel, given, out)]


MEASURED: Mapping[str, Callable[[_Clock], Rows]] = {
    "local": _local,
    "copies": _copies,
    "chain": _chain,
    "hops": _hops,
    "push": _push,
    "pull": _pull,
    "products": _products,
    "flat": _flat,
    "roles": _roles,
    "bulk": _bulk,
}
"""Quick measurements come first, and those for the fewest schedules last, since a spent budget drops the last ones."""
BETWEEN_RANKS = frozenset({"copies", "hops", "push", "pull", "bulk"})
