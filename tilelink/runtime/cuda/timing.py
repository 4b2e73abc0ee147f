# pyright: basic
"""Timing of launches on the GPUs of a group.

Before each sample the data has left the second-level cache and all ranks meet on the device, twice, with a sleep
between, in which their hosts issue what follows. CUDA events; the figure is the median over samples of the largest time
of any rank.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from tilelink.errors import BindingError, RankError
from tilelink.runtime.cuda.device import gpu_of, group_of, of_all

SLEEP_CYCLES = 1_000_000
"""About half a millisecond before each sample, in which the host issues it."""
FLUSH_BYTES = 256 << 20
SAMPLES, WARMUPS = 20, 5


def median_of_slowest(times: Sequence[Sequence[float]]) -> float:
    """times[rank][sample] -> the median over samples of the largest time of any rank."""
    return statistics.median(slowest(times))


def slowest(times: Sequence[Sequence[float]]) -> list[float]:
    """times[rank][sample] -> the largest time of any rank, for each sample."""
    return [max(sample) for sample in zip(*times, strict=True)]


@dataclass(frozen=True, kw_only=True)
class Timing:
    """The time of a launch. samples_us: that of the slowest rank in each sample. host_us: of the host, to issue one."""

    name: str
    ranks: int
    device: str
    samples_us: tuple[float, ...]
    host_us: float

    @property
    def median_us(self) -> float:
        """Microseconds of a launch: the median over samples of the largest time of any rank."""
        return statistics.median(self.samples_us)

    def __str__(self) -> str:
        low, high = min(self.samples_us), max(self.samples_us)
        return (
            f"{self.name} on {self.ranks} x {self.device}: {self.median_us:.1f} us, the median of "
            f"{len(self.samples_us)} samples ({low:.1f} to {high:.1f}) of the slowest rank; host {self.host_us:.1f} us"
        )


class Sampler:
    """The ranks of a group that time launches together. Every method is called by all ranks, in the same order."""

    def __init__(
        self, group: dist.ProcessGroup, device: torch.device | None = None, sleep_cycles: int = SLEEP_CYCLES
    ) -> None:
        self.group, self.ranks = group, dist.get_world_size(group)
        self.device = device or torch.device("cuda", torch.cuda.current_device())
        self.sleep_cycles = sleep_cycles
        self._flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device=self.device)
        self._tiny = torch.zeros(1, device=self.device)
        self._every = torch.zeros(self.ranks, device=self.device)
        self._handle = self._symmetric_handle()

    def _symmetric_handle(self) -> Any:
        """Return symmetric memory, whose barrier costs a few microseconds, or None where there is none."""
        try:
            from torch.distributed import _symmetric_memory as symmetric

            self._memory = symmetric.empty(64, dtype=torch.int32, device=self.device)
            handle = symmetric.rendezvous(self._memory, self.group)
        except (RuntimeError, ImportError, AttributeError):
            handle = None
        return handle if self.agree(handle is not None) else None

    def barrier(self) -> None:
        """Issue a barrier of all ranks on the current stream."""
        if self._handle is not None:
            self._handle.barrier(channel=0)
        else:
            dist.all_gather_into_tensor(self._every, self._tiny, group=self.group)

    def agree(self, well: bool) -> bool:
        """Return True if all is well on every rank. Waits for the device."""
        return all(of_all(int(well), self.group, self.device))

    def meet_later(self) -> None:
        """All ranks meet on the device, after a sleep in which their hosts issue what follows."""
        self.barrier()
        torch.cuda._sleep(self.sleep_cycles)  # by cycles of clocks that differ
        self.barrier()

    def sample(self, run: Callable[[], Any], events: tuple[Any, Any]) -> tuple[Any, float]:
        """Launch once between two events. Return what `run` returned, and the seconds of the host to issue it."""
        self._flush.zero_()
        self.meet_later()
        events[0].record()
        begin = time.perf_counter()
        result = run()
        seconds = time.perf_counter() - begin
        events[1].record()
        return result, seconds

    def times_us(self, events: Sequence[tuple[Any, Any]]) -> list[list[float]]:
        """Return [rank][sample]: microseconds between events that the device has reached, of all ranks."""
        own = torch.tensor([a.elapsed_time(b) * 1e3 for a, b in events], device=self.device)
        times = torch.empty(self.ranks * len(events), device=self.device)
        dist.all_gather_into_tensor(times, own, group=self.group)
        return times.view(self.ranks, -1).tolist()

    def timings(
        self, runs: Mapping[str, Callable[[], Any]], samples: int = SAMPLES, warmups: int = WARMUPS
    ) -> dict[str, Timing]:
        """Return the time of each of several runs, which take turns. Raises BindingError for no samples."""
        if samples < 1 or warmups < 0:
            hint = f"samples={SAMPLES}, warmups={WARMUPS} are the usual ones"
            raise BindingError(f"{samples} samples after {warmups} warm-ups", hint=hint)
        names = list(runs)
        events = {name: [event_pair() for _ in range(warmups + samples)] for name in names}
        host: dict[str, list[float]] = {name: [] for name in names}
        for number in range(warmups + samples):
            first = number % max(1, len(names))
            for name in (*names[first:], *names[:first]):
                host[name].append(self.sample(runs[name], events[name][number])[1])
            torch.cuda.synchronize()
        return {name: self._timing(name, events[name][warmups:], host[name][warmups:]) for name in names}

    def _timing(self, name: str, events: Sequence[tuple[Any, Any]], host: Sequence[float]) -> Timing:
        return Timing(
            name=name, ranks=self.ranks, device=_device_name(self.device),
            samples_us=tuple(round(one, 2) for one in slowest(self.times_us(events))),
            host_us=round(statistics.median(host) * 1e6, 1),
        )  # fmt: skip


def bench(
    runs: Mapping[str, Callable[[], Any]], *, group: dist.ProcessGroup | None = None, samples: int = SAMPLES,
    warmups: int = WARMUPS,
) -> dict[str, Timing]:  # fmt: skip
    """Return the times of functions that launch on the current stream, by their names. They take turns.

    All ranks of the group (None: all) call it with the same names in the same order, each on its GPU. Raises RankError
    where there is no group or no GPU, BindingError for no functions or samples.
    """
    members = group_of(group)
    if not torch.cuda.is_available():
        hint = "tilelink.simulate predicts the time of a launch; on CPU ranks only results mean something"
        raise RankError("times are those of GPUs, and there is none here", hint=hint)
    if not runs:
        raise BindingError("nothing to time", hint='bench({"mine": lambda: my_op(x, w)})')
    device = gpu_of(members)
    with torch.cuda.device(device):
        return Sampler(members, device).timings(runs, samples, warmups)


def event_pair() -> tuple[Any, Any]:
    """Return two events that measure the time between them."""
    return torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
