# pyright: basic
"""Programs made ready for GPU ranks ahead of time: planned, generated, and compiled into Triton's cache by a pool.

No process of the pool touches a GPU: Triton is told which one there will be. Ranks then find the program in a file and
its kernels in the cache.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import multiprocessing
import pickle
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, wait
from functools import cache
from inspect import signature
from pathlib import Path
from typing import Any

import torch

from tilelink import compiler, compiler_gpu
from tilelink.compiler_cpu import layout
from tilelink.ir.program import Program
from tilelink.runtime.cuda.functions import descriptor
from tilelink.runtime.cuda.spec import GpuKernel, GpuProgram
from tilelink.runtime.modules import load_module
from tilelink.schedule.plan import Plan
from tilelink.schedule.values import Schedule
from tilelink.settings import settings
from tilelink.target import Target

Point = Mapping[str, Any]
"""program: a name of the library; schedule: its text, "" for the built-in one; dims, ranks, dtype."""


def parsed(point: Point) -> tuple[Program, Schedule | None]:
    """The program and the schedule of a point."""
    program, text = _program(point["program"]), point["schedule"]
    return program, compiler.parse(f"{program}\n{text}").schedules[-1] if text else None


@cache
def _program(name: str) -> Program:
    return compiler.load(name).program(name)


def plan_of(point: Point, machine: Target | str = "sm_90") -> Plan:
    """The verified plan of a point."""
    program, schedule = parsed(point)
    return compiler.plan(
        program, schedule, ranks=point["ranks"], dims=point["dims"], dtype=point["dtype"], target=machine
    )


def program_of(point: Point, machine: Target) -> GpuProgram:
    """What GPU ranks run of a point: from its file if it was prepared, else made now."""
    file = prepared_file(point, machine)
    if file.is_file():
        with contextlib.suppress(OSError, EOFError, pickle.UnpicklingError):
            found = pickle.loads(file.read_bytes())
            if found.source.is_file():
                return found
    verified = plan_of(point, machine)
    make = compiler_gpu._gpu_program
    untraced = [False] * (len(signature(make).parameters) - 3)
    return make(verified, layout(verified), {}, *untraced)


def prepared_file(point: Point, machine: Target) -> Path:
    """Where a point is kept once it is prepared."""
    own = {name: point[name] for name in ("program", "schedule", "dims", "ranks", "dtype")}
    text = json.dumps([own, str(parsed(point)[0]), repr(machine)], sort_keys=True)
    return settings().cache / "prepared" / f"{hashlib.sha256(text.encode()).hexdigest()[:24]}.pickle"


# In the pool -------------------------------------------------------------------------------------------------


class _Absent:
    """Stands for Triton's driver of a GPU that this process does not touch."""

    def __init__(self, machine: Target) -> None:
        self._machine = machine

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int | None = None) -> int:
        return 0

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget(self._machine.kind, self._machine.architecture, self._machine.warp_size)


def prepare(point: Point, machine: Target) -> dict[str, Any]:
    """Plans, generates and compiles one point; returns the seconds that it took and the shared memory of its kernels.

    Only for processes that use no GPU afterwards: Triton's driver is replaced for good.

    Raises what planning and compiling raise; RuntimeError for a kernel that does not fit.
    """
    from triton.runtime import driver

    torch.set_num_threads(1)
    begin = time.perf_counter()
    program = program_of(point, machine)
    driver.set_active(_Absent(machine))  # type: ignore[arg-type]
    shared = [_compiled(program, one) for one in program.kernels if not one.copy_engine]
    if max(shared, default=0) > machine.shared_memory:
        raise RuntimeError(f"a kernel needs {max(shared)} bytes of shared memory")
    file = prepared_file(point, machine)
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_suffix(f".{multiprocessing.current_process().pid}")
    temporary.write_bytes(pickle.dumps(program))
    temporary.replace(file)
    return {"seconds": time.perf_counter() - begin, "shared": shared}


def _compiled(program: GpuProgram, kernel: GpuKernel) -> int:
    """Compiles a kernel with arguments as a rank has them; returns its bytes of shared memory."""
    numbers = {"watch": None, "rank": 0, "first_program": 0, "num_programs": kernel.programs}
    types = {
        "signals": torch.int32, "signal_table": torch.int64, "epoch": torch.int64, "peers": torch.int64,
        "thresholds": torch.int32,
    }  # fmt: skip
    arguments: list[Any] = []
    for one in kernel.args:
        if one.kind in numbers:
            arguments.append(numbers[one.kind])
        elif one.kind in types:
            arguments.append(torch.empty(16, dtype=types[one.kind]))
        else:
            tensor = program.layout.tensor(one.name)
            flat = torch.empty(1, dtype=tensor.torch_dtype)
            whole = flat.expand(tensor.slots if tensor.symmetric else 1, *tensor.shape)
            arguments.append(descriptor(whole, one.block) if one.kind == "descriptor" else flat)
    function = getattr(load_module(program.source), kernel.name)
    compiled = function.warmup(*arguments, grid=(1,), num_warps=kernel.warps, num_stages=kernel.stages)
    return int(compiled.metadata.shared)


def prepare_all(points: Sequence[Point], machine: Target, *, workers: int, seconds: float) -> list[str]:
    """Prepares points by a pool of processes. Returns for each "" or why it is not ready.

    What is not ready in so many seconds is left. Never raises: a point that is not prepared is made by the ranks.
    """
    reasons = ["not ready in time"] * len(points)
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(max_workers=workers, mp_context=context)
    try:
        futures = {pool.submit(prepare, dict(point), machine): n for n, point in enumerate(points)}
        done, _ = wait(futures, timeout=seconds)
        for future in done:
            error = future.exception()
            reasons[futures[future]] = f"{type(error).__name__}: {error}"[:400] if error else ""
    except Exception as error:
        reasons = [f"{type(error).__name__}: {error}"[:400]] * len(points)
    left = list((getattr(pool, "_processes", None) or {}).values())
    pool.shutdown(wait=False, cancel_futures=True)
    for process in left:
        process.join(0.5 if all(not r for r in reasons) else 0.0)
        if process.is_alive():
            process.kill()
    return reasons
