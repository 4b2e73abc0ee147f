"""Programs made ready for GPU ranks ahead of time: planned, generated, and compiled into Triton's cache by a pool.

No process of the pool touches a GPU: Triton is told which one there will be. Ranks then find the program in a file and
its kernels in the cache. What is not ready in time they make themselves.
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
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, wait
from dataclasses import dataclass
from functools import cache
from multiprocessing import connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilelink import compiler, files, generated
from tilelink.artifact import Artifact, read_artifact
from tilelink.backend import store
from tilelink.compiler.cuda import gpu_artifact
from tilelink.errors import DataError, OutputError
from tilelink.ir.program import Program
from tilelink.scheduling.schedule import Schedule
from tilelink.settings import settings
from tilelink.target import Target

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

LATE = "not ready in time"
_log = logging.getLogger("tilelink.tuning")
GRACE_S = 5.0
"""Seconds after its deadline in which a pool is ended; after them its processes end themselves."""


@dataclass(frozen=True, kw_only=True)
class Point:
    """A program as GPU ranks will run it: with a schedule (None: the built-in one), sizes, ranks and target.

    deadlines: whether its kernels are compiled as they are without a deadline (False) and with one (True).
    trace: whether its launches are measured; then there is always a deadline.
    """

    program: Program
    schedule: Schedule | None
    dims: Mapping[str, int | float | bool]
    dtype: str
    ranks: int
    target: Target
    deadlines: tuple[bool, ...] = (False, True)
    trace: bool = False

    @property
    def file(self) -> Path:
        """Where it is kept once it is prepared, by this version of the package."""
        texts = [str(self.program), str(self.schedule), self.dtype, repr(self.target), repr(self.deadlines)]
        key = json.dumps([_package(), *texts, self.trace, self.ranks, sorted(self.dims.items())])
        return settings().cache / "prepared" / f"{hashlib.sha256(key.encode()).hexdigest()[:24]}.json"


@cache
def _package() -> str:
    """A hash of the package's files: another version generates other programs."""
    root = Path(compiler.__file__).parents[1]
    found = hashlib.sha256()
    for path in sorted(p for p in root.rglob("*") if p.suffix in (".py", ".j2", ".lark")):
        found.update(f"{path.relative_to(root)}\n".encode() + path.read_bytes())
    return found.hexdigest()


def program_of(point: Point) -> Artifact:
    """What ranks run of a point: from its file if it was prepared, else made now.

    Raises what `compiler.plan` raises, and EmitError.
    """
    if (found := kept(point)) is not None:
        return found
    verified = compiler.plan(
        point.program, point.schedule, ranks=point.ranks, dims=point.dims, dtype=point.dtype, target=point.target
    )
    return gpu_artifact(verified, trace=point.trace)


def kept(point: Point) -> Artifact | None:
    """What the file of a point has; None for no file, or one that cannot be used, which the log tells of (WARNING).

    It says which generated source runs, and nobody verifies that again. So it must be this user's or root's alone.
    """
    try:
        if why := files.distrusted(point.file):
            raise DataError(f"{point.file} is not used: {why}")
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
    """Plans, generates and compiles one point, and keeps it. Only for processes that use no GPU afterwards.

    Raises what planning and compiling raise; RuntimeError for a kernel that does not fit the target; OutputError.
    """
    import torch

    from tilelink.runtime.cuda.prepared import compile_ahead

    torch.set_num_threads(1)
    program = program_of(point)
    shared = max(compile_ahead(program, point.target, point.deadlines), default=0)
    if shared > point.target.shared_memory:
        raise RuntimeError(f"a kernel needs {shared} bytes of shared memory")
    _keep(point, program)


def _expire(seconds: float) -> None:
    """Ends this process of a pool when the one that started it ends, and after so many seconds in any case."""
    parent = multiprocessing.parent_process()

    def end() -> None:
        connection.wait([parent.sentinel] if parent else [], timeout=seconds)
        os._exit(1)

    threading.Thread(target=end, daemon=True).start()


def prepare_all(points: Sequence[Point], *, workers: int, seconds: float) -> list[str]:
    """Prepares points by a pool of processes. Returns for each "" or why it is not ready.

    What is not ready in so many seconds is left, and the pool is ended. Never raises: the ranks make such a point.
    """
    reasons = [LATE] * len(points)
    if not points or seconds <= 0:
        return reasons
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(
        max_workers=workers, mp_context=context, initializer=_expire, initargs=(seconds + GRACE_S,)
    )
    begin = time.monotonic()
    try:
        futures = {pool.submit(prepare, point): n for n, point in enumerate(points)}
        done, _ = wait(futures, timeout=max(0.0, seconds - (time.monotonic() - begin)))
        for future in done:
            error = future.exception()
            reasons[futures[future]] = f"{type(error).__name__}: {error}"[:400] if error else ""
    except Exception as error:
        reasons = [f"{type(error).__name__}: {error}"[:400]] * len(points)
    _end(pool)
    return reasons


def _end(pool: ProcessPoolExecutor) -> None:
    """Ends a pool's processes, whatever they are doing."""
    left: Iterable[Any] = list((getattr(pool, "_processes", None) or {}).values())
    pool.shutdown(wait=False, cancel_futures=True)
    for process in left:
        process.kill()


# By ranks ----------------------------------------------------------------------------------------------------


def prepare_shares(points: Sequence[Point], group: ProcessGroup, *, seconds: float) -> list[str]:
    """Prepares points by all ranks of a group: those of one host share the work, then all meet. Collective.

    Returns for each point "" or why it is not ready on some host; the same on all ranks. Takes not much longer than
    `seconds`, 0 prepares nothing. Never raises for a point: the ranks make it.
    """
    import torch.distributed as dist

    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    own: tuple[str, list[bool]] = (socket.gethostname(), [kept(point) is not None for point in points])
    every: list[Any] = [None] * ranks
    dist.all_gather_object(every, own, group=group)
    todo, sharing = _share(every, rank)
    workers = max(1, min(len(todo), len(os.sched_getaffinity(0)) // sharing))
    found = prepare_all([points[n] for n in todo], workers=workers, seconds=seconds)
    dist.all_gather_object(every, dict(zip(todo, found, strict=True)), group=group)
    reasons = [""] * len(points)
    for one in every:
        for point, reason in one.items():
            reasons[point] = reasons[point] or reason
    return reasons


def _share(every: Sequence[tuple[str, Sequence[bool]]], rank: int) -> tuple[list[int], int]:
    """The numbers of the points that a rank prepares, and how many ranks its host has.

    every: of each rank its host, and for each point whether it is prepared there.
    """
    host, _ = every[rank]
    local = [r for r, (name, _) in enumerate(every) if name == host]
    ready = [any(every[r][1][n] for r in local) for n in range(len(every[rank][1]))]
    missing = [n for n, there in enumerate(ready) if not there]
    return missing[local.index(rank) :: len(local)], len(local)
