"""Ahead-of-time preparation of programs for GPU ranks: a pool plans, generates, and compiles into Triton's cache.

No process of the pool uses a GPU: Triton compiles for a given target. Ranks then load the program from a file and its
kernels from the cache. Ranks make programs that are not ready in time themselves.
"""

from __future__ import annotations

import hashlib
import json
import logging
import multiprocessing
import os
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilelink import compiler, files, generated
from tilelink.artifact import Artifact, read_artifact
from tilelink.backend import store
from tilelink.compiler.cuda import gpu_artifact
from tilelink.compiler.proofs import package
from tilelink.errors import DataError, OutputError
from tilelink.ir.program import Program
from tilelink.scheduling.schedule import Schedule
from tilelink.search.processes import kill
from tilelink.settings import settings
from tilelink.target import Target

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

LATE = "not ready in time"
DIED = "a process that prepared it, or one in parallel with it, died"
_log = logging.getLogger("tilelink.tuning")
GRACE_S = 5.0
"""Seconds after its deadline within which a pool is ended; later its processes end themselves."""


@dataclass(frozen=True, kw_only=True)
class Point:
    """A program as GPU ranks will run it: with a schedule (None: the built-in one), sizes, ranks and target.

    deadlines: the variants of its kernels to compile, without a deadline (False) and with one (True). trace: True if
    its launches are measured, which always sets a deadline. nodes: how many nodes the ranks fill.
    """

    program: Program
    schedule: Schedule | None
    dims: Mapping[str, int | float | bool]
    dtype: str
    ranks: int
    target: Target
    deadlines: tuple[bool, ...] = (False, True)
    trace: bool = False
    nodes: int = 1

    @property
    def file(self) -> Path:
        """The file of the prepared program, for this version of the package."""
        texts = [str(self.program), str(self.schedule), self.dtype, repr(self.target), repr(self.deadlines)]
        key = json.dumps([package(), *texts, self.trace, self.ranks, self.nodes, sorted(self.dims.items())])
        return settings().cache / "prepared" / f"{hashlib.sha256(key.encode()).hexdigest()[:24]}.json"


def program_of(point: Point) -> Artifact:
    """Return the artifact that ranks run for a point: from its file if it was prepared, else made now.

    Raises the errors of `compiler.plan`, and EmitError.
    """
    if (found := kept(point)) is not None:
        return found
    verified = compiler.plan(
        point.program,
        point.schedule,
        ranks=point.ranks,
        nodes=point.nodes,
        dims=point.dims,
        dtype=point.dtype,
        target=point.target,
        dialect="traced" if point.trace else "triton",
    )
    return gpu_artifact(verified)


def kept(point: Point) -> Artifact | None:
    """Return the artifact in the file of a point, or None if there is no file or it cannot be used.

    The log (WARNING) reports a file that cannot be used. The file decides which generated source runs, without another
    verification. So only this user or root may own it and write to it.
    """
    try:
        if why := files.distrusted(point.file):
            raise DataError(f"{point.file} is not used: {why}", hint=files.OWN)
        if not point.file.exists():
            return None
        artifact = read_artifact(point.file)
    except (DataError, OSError) as error:
        _log.warning("%s", error)
        return None
    return artifact if store.intact(generated.file_of(artifact.source)) else None


def _keep(point: Point, artifact: Artifact) -> None:
    try:
        files.make_folder(point.file.parent)
        files.replace(point.file, artifact.to_json().encode(), mode=0o600)
    except OSError as error:
        hint = f"remove it: it is {what}" if (what := files.kind(point.file)) else "make room there"
        raise OutputError(f"{point.file} cannot be written: {files.reason(error)}", hint=hint) from error


# In the pool -------------------------------------------------------------------------------------------------


def prepare(point: Point) -> None:
    """Plan, generate and compile one point, and store it. Only for processes that use no GPU afterwards.

    Raises the errors of planning and compiling, RuntimeError if a kernel does not fit the target, and OutputError.
    """
    import torch

    if point.nodes > 1:
        from tilelink.runtime.nvshmem.prepared import compile_ahead
    else:
        from tilelink.runtime.cuda.prepared import compile_ahead

    torch.set_num_threads(1)
    program = program_of(point)
    shared = max(compile_ahead(program, point.target, point.deadlines), default=0)
    if shared > point.target.shared_memory:
        raise RuntimeError(f"a kernel needs {shared} bytes of shared memory")
    _keep(point, program)


def _expire(seconds: float) -> None:
    """End this process of a pool when its parent process ends, and after `seconds` in any case."""
    parent = multiprocessing.parent_process()

    def end() -> None:
        connection.wait([parent.sentinel] if parent else [], timeout=seconds)
        os._exit(1)

    threading.Thread(target=end, daemon=True).start()


def prepare_all(points: Sequence[Point], *, workers: int, seconds: float) -> list[str]:
    """Prepare points with a pool of processes. Return for each point "" or the reason why it is not ready.

    The pool is ended after `seconds`. Never raises: the ranks make the points that are not ready. A process that dies,
    as those do that the system kills for their memory, ends its pool. The points that are left then get another pool,
    with a quarter of the processes; a pool of one process that dies leaves out the point that it began with.
    """
    reasons = [LATE] * len(points)
    left, end = list(range(len(points))), time.monotonic() + seconds
    while left and (now := time.monotonic()) < end:
        pool = _pool(workers, end - now)
        intact = _prepare(pool, points, left, reasons, end)
        kill(pool)
        if intact:  # all are done, or late
            break
        left = [n for n in left if reasons[n] == DIED]
        if workers == 1:
            left = left[1:]
        workers = max(1, workers // 4)
    return reasons


def _pool(workers: int, seconds: float) -> ProcessPoolExecutor:
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(
        max_workers=workers, mp_context=context, initializer=_expire, initargs=(seconds + GRACE_S,)
    )


def _prepare(
    pool: ProcessPoolExecutor, points: Sequence[Point], numbers: Sequence[int], reasons: list[str], end: float
) -> bool:
    """Write the reasons of points with these numbers. Return False if a process of the pool died."""
    intact = True
    for n in numbers:
        reasons[n] = LATE
    try:
        futures = {pool.submit(prepare, points[n]): n for n in numbers}
        done, _ = wait(futures, timeout=max(0.0, end - time.monotonic()))
        for future in done:
            error = future.exception()
            died = isinstance(error, BrokenProcessPool)
            intact &= not died
            reason = DIED if died else f"{type(error).__name__}: {error}"[:400] if error else ""
            reasons[futures[future]] = reason
    except BrokenProcessPool:  # while points were given to it
        intact = False
        for n in numbers:
            reasons[n] = DIED
    except Exception as error:
        for n in numbers:
            reasons[n] = f"{type(error).__name__}: {error}"[:400]
    return intact


# By ranks ----------------------------------------------------------------------------------------------------


def prepare_shares(
    points: Sequence[Point], group: ProcessGroup, *, seconds: float, workers: int | None = None
) -> list[str]:  # fmt: skip
    """Prepare points on all ranks of a group: the ranks of a host share the work, then all ranks meet. Collective.

    workers: processes of a host; None for as many as it has cores.

    Returns for each point "" or the reason why it is not ready on some host, the same on all ranks. Takes about
    `seconds`; 0 prepares nothing. Never raises for a point: the ranks make it.
    """
    import torch.distributed as dist

    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    own: tuple[str, list[bool]] = (socket.gethostname(), [kept(point) is not None for point in points])
    every: list[Any] = [None] * ranks
    dist.all_gather_object(every, own, group=group)
    todo, sharing = _share(every, rank)
    own_workers = max(1, min(len(todo), (workers or len(os.sched_getaffinity(0))) // sharing))
    found = prepare_all([points[n] for n in todo], workers=own_workers, seconds=seconds)
    dist.all_gather_object(every, dict(zip(todo, found, strict=True)), group=group)
    reasons = [""] * len(points)
    for share in every:
        for point, reason in share.items():
            reasons[point] = reasons[point] or reason
    return reasons


def _share(every: Sequence[tuple[str, Sequence[bool]]], rank: int) -> tuple[list[int], int]:
    """Return the numbers of the points that a rank prepares, and the number of ranks on its host.

    every: for each rank its host, and for each point True if it is prepared there.
    """
    host, _ = every[rank]
    local = [r for r, (name, _) in enumerate(every) if name == host]
    ready = [any(every[r][1][n] for r in local) for n in range(len(every[rank][1]))]
    missing = [n for n, prepared in enumerate(ready) if not prepared]
    return missing[local.index(rank) :: len(local)], len(local)
