# pyright: basic
"""Programs of several nodes on the GPUs of one machine: each GPU is a node, and NVSHMEM is in between.

There are two ways. By `p2p` NVSHMEM reaches the other GPU by a pointer, as in a node: puts are then stores.
By `tcp` it may not, so that every byte and every signal goes through UCX over TCP, as on a network: the heap is in the
host's memory, and a stand-in for GDRCopy gives the transport its mapping. Times mean nothing there.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

import torch
import torch.distributed as dist

from tests.gpu.cases import Case, dims_of, trial
from tests.gpu.lockstep import Checks, on_all, together
from tilelink import compiler
from tilelink.errors import DeadlineError
from tilelink.runtime.cuda.device import current_target

WAYS = ("p2p", "tcp")
LIMITS_S = {"remote_programs": 500, "remote_launches": 400, "remote_deadline": 200}
"""Seconds that a scenario may take: the first compilation of a kernel with NVSHMEM's bitcode takes a minute."""
STAND_IN = Path(__file__).with_name("gdr_stand_in.c")
LIBRARY = (
    ("two_level_all_gather", "copy_sms"), ("two_level_reduce_scatter", "copy_sms"),
    ("two_level_all_reduce", "copy_sms"), ("two_level_all_to_all", "messages"), ("two_level_ag_gemm", "copy_sms"), ("two_level_gemm_rs", "copy_sms"),
    ("all_gather", "pull"), ("all_gather_ring", "ring"), ("reduce_scatter_pushed", "small"),
    ("all_reduce_two_shot_pushed", "large"), ("ag_gemm", None), ("gemm_rs_local_last", None),
)  # fmt: skip
SIZES = (128, 192, 160, 96)
LAUNCHES = 200


def environment(way: str, ucx: str | None, folder: Path) -> dict[str, str]:
    """The variables with which NVSHMEM goes that way. ucx: folder of libucx, for tcp. folder: for the stand-in.

    Raises FileNotFoundError if what the way needs is not there.
    """
    common = {"NVSHMEM_DISABLE_NVLS": "1"}
    if way == "p2p":
        return common
    if ucx is None or not (Path(ucx) / "lib" / "libucp.so.0").exists():
        raise FileNotFoundError("--ucx names the folder of the wheel libucx-cu13, in which lib/libucp.so.0 is")
    if (compiler_of_c := shutil.which("gcc") or shutil.which("cc")) is None:
        raise FileNotFoundError("the stand-in for GDRCopy needs a C compiler")
    for name in ("libgdrapi.so", "libgdrapi.so.2"):
        subprocess.run([compiler_of_c, "-O1", "-shared", "-fPIC", "-o", str(folder / name), str(STAND_IN)], check=True)
    paths = [f"{ucx}/lib", f"{ucx}/lib/ucx", str(Path(ucx).parent / "libucx_cu13.libs"), str(folder)]
    return {
        **common, "NVSHMEM_DISABLE_P2P": "1", "NVSHMEM_REMOTE_TRANSPORT": "ucx", "NVSHMEM_HEAP_KIND": "SYSMEM",
        "UCX_TLS": "tcp,self,cuda_copy", "UCX_WARN_UNUSED_ENV_VARS": "n", "UCX_MODULE_DIR": f"{ucx}/lib/ucx",
        "LD_LIBRARY_PATH": os.pathsep.join([*paths, *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]),
    }  # fmt: skip


def library() -> list[Case]:
    found: list[Case] = []
    for name, schedule in LIBRARY:
        module = compiler.library_module(name)
        program = module.program(name)
        found.append((program, module.schedule(schedule, program) if schedule else None))
    return found


def sizes_of(case: Case) -> dict[str, object]:
    return {**dims_of(case[0], SIZES), **{p.name: 1 for p in case[0].params if p.kind == "i32"}}  # a rank is a node


def kernel_of(case: Case, dims: Mapping[str, object], deadline_s: float | None = None):
    nodes = dist.get_world_size()
    options = {"dims": dims, "dtype": "bf16", "nodes": nodes, "target": current_target(), "deadline_s": deadline_s}
    return on_all(lambda: compiler.compile(*case, device="cuda", **options))


def called(case: Case) -> str:
    return f"{case[0].name}-{case[1].name if case[1] else 'default'}"


def remote_programs() -> None:
    """Several launches of every program, back to back, with other inputs in turn."""

    def body(case: Case, checks: Checks) -> None:
        dims = sizes_of(case)
        kernel, known = kernel_of(case, dims), trial(case, dims, 2)
        given = [known.given(0), known.given(1)]
        outputs = [kernel(given[launch % 2]) for launch in range(6)]
        torch.cuda.synchronize()
        for launch, one in enumerate(outputs):
            known.verify(launch % 2, one, checks, f"launch {launch}")

    together(library(), body, called)


def remote_launches() -> None:
    """Many launches with random delays of the ranks, so that one is behind the other by as much as buffers allow."""
    chance = random.Random(dist.get_rank())

    def body(case: Case, checks: Checks) -> None:
        dims = sizes_of(case)
        kernel, known = kernel_of(case, dims), trial(case, dims, 2)
        given = [known.given(0), known.given(1)]
        for launch in range(LAUNCHES):
            if chance.random() < 0.2:
                torch.cuda._sleep(chance.randrange(2_000_000))
            outputs = kernel(given[launch % 2])
            if launch % 10 == 9:
                known.verify(launch % 2, outputs, checks, f"launch {launch}")

    together(library()[:6], body, called)


def remote_deadline() -> None:
    """A rank that makes no launch: the others' waits end with an error that names the wait."""
    case = library()[0]
    kernel, known = kernel_of(case, sizes_of(case), deadline_s=2.0), trial(case, sizes_of(case), 1)

    def body(_: str, checks: Checks) -> None:
        if dist.get_rank() == 0:
            checks.raises(DeadlineError, lambda: kernel(known.given(0)), "a launch without its peer")

    together(["absent"], body, str)


def scratch() -> Path:
    return Path(tempfile.mkdtemp(prefix="tilelink-remote-"))
