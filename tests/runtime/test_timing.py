# pyright: basic
"""Timing of launches: the figure, its text, and the order of a sample, on CPU ranks with the host's clock."""

from __future__ import annotations

import json
import os
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.unit.two_ranks import run_on_two_ranks
from tilelink.errors import BindingError, RankError
from tilelink.runtime.cuda import measured_kernel, timing
from tilelink.runtime.cuda.kernel import GpuKernel
from tilelink.tuning import measure

FOUND = timing.Timing(name="mine", ranks=2, device="H200", samples_us=(12.0, 10.0, 30.5), host_us=7.25)


def test_the_figure_is_the_median_over_samples_of_the_slowest_rank() -> None:
    times = [[1.0, 9.0, 3.0], [4.0, 2.0, 5.0]]
    assert timing.slowest(times) == [4.0, 9.0, 5.0]
    assert timing.median_of_slowest(times) == 5.0


def test_a_time_prints_with_its_spread() -> None:
    assert FOUND.median_us == 12.0
    assert str(FOUND) == (
        "mine on 2 x H200: 12.0 us, the median of 3 samples (10.0 to 30.5) of the slowest rank; host 7.2 us"
    )


def test_a_kernel_is_timed_with_outputs_that_are_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    launched: list[Any] = []

    class Sampler:
        def __init__(self, group: Any, device: Any) -> None:
            launched.append((group, device))

        def timings(self, runs: Any, samples: int, warmups: int) -> Any:
            ((name, run),) = runs.items()
            run()
            run()
            return {name: (name, samples, warmups)}

    class Own(SimpleNamespace):
        def __call__(self, inputs: Any, outputs: Any) -> None:
            launched.append((inputs, outputs))

    monkeypatch.setattr(measured_kernel, "Sampler", Sampler)
    monkeypatch.setattr(torch.cuda, "device", lambda _: nullcontext())
    made = iter(({"y": 1, "z": 2},))
    refilled: list[str] = []
    arguments = SimpleNamespace(given=SimpleNamespace(checked=dict), in_copies=lambda given: {"s": [*given["s"]]})
    own = Own(
        device="gpu", _group="group", artifact=SimpleNamespace(program="mine"), empty_outputs=lambda: next(made),
        _arguments=arguments, state=lambda: "kept", _refill=refilled.append,
    )  # fmt: skip
    state = [5]
    given: Any = {"x": 0, "s": state}
    assert GpuKernel.bench(own, given, {"z": 3}, samples=7, warmups=2) == ("mine", 7, 2)  # type: ignore[arg-type]
    assert launched == [("group", "gpu"), *[({"x": 0, "s": [5]}, {"y": 1, "z": 3})] * 2]
    assert launched[1][0]["s"] is launched[2][0]["s"] is not state, "launches change one copy of what is in place"
    assert refilled == ["kept"], "what is kept is afterwards as before"


# Ranks -------------------------------------------------------------------------------------------------------


def run(arguments: list[str]) -> None:
    """One of two ranks: rank 1 is slower in each launch, and both see its times. What a sample does is noted."""
    from tests.unit.test_benchmarks import Clock

    done: list[str] = []
    torch.cuda.Event = Clock  # type: ignore[assignment,misc]
    torch.cuda.synchronize = lambda *_: None
    torch.cuda._sleep = lambda *_: done.append("sleep")
    now = [0.0]  # time is what is slept: the machine may be busy
    timing.time.perf_counter = lambda: now[0]  # type: ignore[assignment]
    timing.time.sleep = lambda seconds: now.append(now.pop() + seconds)  # type: ignore[assignment]
    timing.FLUSH_BYTES = 1 << 10
    dist.init_process_group("gloo")
    assert dist.group.WORLD
    rank = dist.get_rank()
    sampler = timing.Sampler(dist.group.WORLD, torch.device("cpu"))
    barrier = sampler.barrier
    sampler.barrier = lambda: (done.append("barrier"), barrier())[1]  # type: ignore[method-assign]
    sampler._flush = SimpleNamespace(zero_=lambda: done.append("flush"))  # type: ignore[assignment]

    def run() -> None:
        done.append("launch")
        timing.time.sleep(0.01 * (1 + 2 * rank))

    found = sampler.timings({"mine": run}, samples=3, warmups=1)["mine"]
    launched = len(done)
    both = sampler.timings({"a": lambda: done.append("a"), "b": lambda: done.append("b")}, samples=2, warmups=1)
    assert sampler.timings({}) == {}
    assert [one for one in done[launched:] if one in both] == list("abbaab"), "they take turns, and who is first too"
    del done[launched:]
    sleep = timing.time.sleep
    measure.Sampler = lambda group: timing.Sampler(group, torch.device("cpu"))  # type: ignore[assignment,misc]
    first = iter([0.2])
    ways = {"slow": lambda _: sleep(0.02 * rank), "fast": lambda _: sleep(next(first, 0.002))}
    seconds = measure._timed(ways, {}, dist.group.WORLD)  # type: ignore[arg-type]
    assert seconds == pytest.approx({"slow": 0.02, "fast": 0.002})
    with pytest.raises(BindingError, match="0 samples after 5 warm-ups"):
        sampler.timings({"mine": run}, samples=0)
    with pytest.raises(RankError, match="times are those of GPUs"):
        timing.bench({"mine": run})
    torch.cuda.is_available = lambda: True
    timing.gpu_of, timing.Sampler = lambda _: None, lambda *_: sampler  # type: ignore[assignment,misc]
    torch.cuda.device = lambda _: nullcontext()  # type: ignore[assignment,misc]
    with pytest.raises(BindingError, match="nothing to time"):
        timing.bench({})
    assert len(timing.bench({"mine": run}, samples=2, warmups=0)["mine"].samples_us) == 2
    if rank == 0:
        Path(arguments[0]).write_text(json.dumps([found.samples_us, found.host_us, found.device, done]))
    dist.barrier()
    os._exit(0)


def test_all_ranks_see_the_time_of_the_slowest(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    run_on_two_ranks("tests.runtime.test_timing", [str(out)])
    samples, host, device, done = json.loads(out.read_text())
    assert samples == pytest.approx([30_000.0] * 3) and host == pytest.approx(10_000.0) and device == "cpu"
    assert done[:20] == ["flush", "barrier", "sleep", "barrier", "launch"] * 4
