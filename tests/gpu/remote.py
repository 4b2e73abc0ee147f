# pyright: basic
"""Programs of several nodes on the GPUs of one machine, with NVSHMEM in between.

Each GPU is a node, or TILELINK_TEST_NODES nodes have the GPUs in equal parts; then ranks of a node reach each other by
pointers.

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
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests.gpu.cases import Case, dims_of, point, prepare, trial
from tests.gpu.lockstep import Checks, on_all, together
from tests.gpu.ops_scenarios import near
from tests.gpu.scenarios import judge_spans
from tilelink import compiler, ops
from tilelink.errors import DeadlineError
from tilelink.runtime.cuda.device import current_target
from tilelink.settings import override

WAYS = ("p2p", "tcp")
LIMITS_S = {
    "remote_programs": 500, "remote_launches": 400, "remote_graphs": 300, "remote_timelines": 200, "remote_ops": 300,
    "remote_deadline": 200,
}  # fmt: skip
"""Seconds that a scenario may take: the first compilation of a kernel with NVSHMEM's bitcode takes a minute."""
STAND_IN = Path(__file__).with_name("gdr_stand_in.c")
LIBRARY = (
    ("two_level_all_gather", "copy_sms"), ("two_level_reduce_scatter", "copy_sms"),
    ("two_level_all_reduce", "copy_sms"), ("two_level_all_to_all", "messages"),
    ("two_level_ag_gemm", "copy_sms"), ("two_level_gemm_rs", "copy_sms"),
    ("all_gather", "pull"), ("all_gather_ring", "ring"), ("reduce_scatter_pushed", "small"),
    ("all_reduce_two_shot_pushed", "large"), ("ag_gemm", None), ("gemm_rs_local_last", None),
    ("expert_parallel", "fine"), ("two_level_expert_parallel", None), ("gated_expert_parallel", None),
)  # fmt: skip
TRACED = ("two_level_all_gather", "two_level_gemm_rs", "all_gather_ring")
SIZES = (128, 192, 160, 96)
LAUNCHES, GRAPH_BURSTS = 200, 12


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


def nodes() -> int:
    """How many nodes the ranks are taken for: TILELINK_TEST_NODES, else one for each rank."""
    return int(os.environ.get("TILELINK_TEST_NODES") or dist.get_world_size())


def sizes_of(case: Case) -> dict[str, Any]:
    """Sizes of a case: its own where it has some. `g` is the ranks of a node."""
    own = {p.name: p.example for p in case[0].params if p.example is not None}
    of_a_node = dist.get_world_size() // nodes()
    return {**dims_of(case[0], SIZES), **{p.name: of_a_node for p in case[0].params if p.kind == "i32"}, **own}


def kernel_of(case: Case, dims: Mapping[str, object], deadline_s: float | None = None, *, trace: bool = False) -> Any:
    options: dict[str, Any] = {"dims": dims, "dtype": "bf16", "nodes": nodes(), "target": current_target()}
    options |= {"deadline_s": deadline_s, "trace": trace}
    return on_all(lambda: compiler.compile(*case, device="cuda", **options))


def prepare_all(cases: Sequence[Case], *, deadline: bool = False, trace: bool = False) -> None:
    """Compiles by all cores of the host what the cases launch: linking takes seconds for each kernel."""
    options: dict[str, Any] = {"nodes": nodes(), "deadlines": (deadline or trace,), "trace": trace}
    prepare([point(case, sizes_of(case), **options) for case in cases])


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

    prepare_all(library())
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

    together(library(), body, called)


def remote_graphs() -> None:
    """A captured launch, replayed with changing inputs in bursts of any length, between eager launches."""
    chance = random.Random(1)  # the same on all ranks

    def body(case: Case, checks: Checks) -> None:
        dims = sizes_of(case)
        kernel, known = kernel_of(case, dims), trial(case, dims, 3)
        ready = [known.given(launch) for launch in range(3)]
        static = {name: value.clone() for name, value in ready[0].items()}
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            outputs = kernel(static)
        for burst in range(GRAPH_BURSTS):
            for _ in range(chance.randint(1, 5)):
                for name, value in static.items():
                    value.copy_(ready[burst % 3][name])
                graph.replay()
            kept = {name: value.clone() for name, value in outputs.items()}
            known.verify(burst % 3, kept, checks, f"burst {burst}")
            for _ in range(chance.randint(0, 2)):
                known.verify((burst + 1) % 3, kernel(ready[(burst + 1) % 3]), checks, f"eager after burst {burst}")

    together(library(), body, called)


def remote_timelines() -> None:
    """Launches that are measured give the same results, and no wait ends before its notify on another node."""

    def body(case: Case, checks: Checks) -> None:
        dims, ranks = sizes_of(case), dist.get_world_size()
        kernel, known = kernel_of(case, dims, 20.0, trace=True), trial(case, dims, 2)
        for launch in range(2):
            known.verify(launch, kernel(known.given(launch)), checks, "measured")
        found = kernel.timeline()
        checks.expect(found.dropped == 0, f"{found.dropped} spans were dropped")
        if dist.get_rank() == 0:
            print(f"{called(case)}: {found.clock}", flush=True)
        plan = compiler.plan(*case, ranks=ranks, nodes=nodes(), dims=dims, dtype="bf16", target=current_target())
        judge_spans(plan, found, checks)

    traced = [one for one in library() if one[0].name in TRACED]
    prepare_all(traced, trace=True)
    together(traced, body, called)


def remote_ops() -> None:
    """Operators of a group that spans nodes, by programs in one level and in two, eagerly and in a graph."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    x = torch.randn(128, 192, device="cuda").bfloat16()
    w = torch.randn(160, 192, device="cuda").bfloat16()
    long = torch.randn(128 * ranks, 192, device="cuda").bfloat16()
    calls = {
        "two_level_all_gather:copy_sms": lambda way: ops.all_gather(x, schedule=way),
        "two_level_reduce_scatter:copy_sms": lambda way: ops.reduce_scatter(long, schedule=way),
        "two_level_all_reduce:copy_sms": lambda way: ops.all_reduce(long, schedule=way),
        "two_level_ag_gemm:copy_sms": lambda way: ops.ag_gemm(x, w, schedule=way),
        "two_level_gemm_rs:copy_sms": lambda way: ops.gemm_rs(long, w, schedule=way),
        "": lambda way: ops.ag_gemm(x, w),
    }

    def body(name: str, checks: Checks) -> None:
        call = calls[name]
        expected = call("unfused")
        for launch in range(3):
            near(call(name), expected, checks, f"launch {launch}")
        graph = torch.cuda.CUDAGraph()
        if name:
            with torch.cuda.graph(graph):
                found = call(name)
            for replay in range(3):
                graph.replay()
                near(found, expected, checks, f"replay {replay}")

    with override(node_ranks=ranks // nodes()):
        ops.clear()
        together(list(calls), body, str)
    ops.clear()


def remote_deadline() -> None:
    """A rank that makes no launch: the others' waits end with an error that names the wait."""
    case = library()[0]
    prepare_all([case], deadline=True)
    kernel, known = kernel_of(case, sizes_of(case), deadline_s=2.0), trial(case, sizes_of(case), 1)

    def body(_: str, checks: Checks) -> None:
        if dist.get_rank() == 0:
            checks.raises(DeadlineError, lambda: kernel(known.given(0)), "a launch without its peer")

    together(["absent"], body, str)


def scratch() -> Path:
    return Path(tempfile.mkdtemp(prefix="tilelink-remote-"))
