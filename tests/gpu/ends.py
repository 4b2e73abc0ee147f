# pyright: basic
"""Processes of their own, by which scenarios see how a process ends: in order, or because its GPU has stopped.

`python -m tests.gpu.ends NAME STEP ...`, started on each rank by a scenario here.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import permutations
from typing import Any

import torch
import torch.distributed as dist

from tests.gpu.cases import prepare
from tests.gpu.lockstep import Checks, together
from tests.gpu.ops_scenarios import wanted
from tests.gpu.ranks import ROOT
from tilelink import compiler, ops
from tilelink.runtime.cuda.handles import open_handles

_EVERY_ORDER = [*permutations(("clear", "forget", "destroy"))]


def _in_turn(orders: Iterable[Sequence[str]]) -> str:
    """Orders one after the other in a process, each after all operators were used by a group of its own."""
    return " ".join(step for order in orders for step in ("join", "use", *order))


ORDERS = (
    _in_turn(one for one in _EVERY_ORDER if one.index("forget") < one.index("destroy")),
    _in_turn(one for one in _EVERY_ORDER if one.index("forget") > one.index("destroy")),
    "join use clear use forget free use destroy join use forget free destroy free",
    "join use",
)
"""What processes do. use: all operators, in graphs too; forget: the graphs; clear, free: ops.clear, without and with
the kernels of graphs; join: a new group. A group whose collectives of NCCL lie in graphs cannot be destroyed before
these graphs are: NCCL waits for them. So all operators here are kernels of the library."""
LATE_S = 60
_FIRST_PORT = 1000  # after that of the ranks of the scenario


def ends() -> None:
    """Operators are used, captured, cleared and made anew, and groups destroyed, in all orders: processes end well."""
    prepare(wanted([call for call, _ in _calls()]))
    together(enumerate(ORDERS), lambda one, checks: _end_well(*one, checks), lambda one: one[1])


def _end_well(number: int, steps: str, checks: Checks) -> None:
    done = _process(number, "order", *steps.split())
    if dist.get_rank() == 0:
        print(done.stdout, end="", flush=True)
    checks.expect(done.returncode == 0, f"status {done.returncode}: {done.stderr[-600:]}")
    checks.expect("handles as they should be" in done.stdout, f"it says {done.stdout[-300:]}")


def overlapping() -> None:
    """Launches of one kernel on two streams that nothing joins, with TILELINK_CHECK=1: the process says so and fails.

    A replay and an eager launch, of which the next call says it, and replays of two graphs, of which the end does.
    (Replays of one graph are ordered by CUDA.)
    """

    def body(number: int, checks: Checks) -> None:
        done = _process(100 + number, "overlap", str(number), variables={"TILELINK_CHECK": "1"})
        said: list[Any] = [None] * dist.get_world_size()  # a rank may fail first because a peer has died
        dist.all_gather_object(said, done.stderr)
        if dist.get_rank() == 0:
            print(done.stdout, *(one[-1500:] for one in said), sep="\n", flush=True)
        checks.expect(done.returncode != 0, "it ends as if all were well")
        told = any("OverlapError" in one and "all_reduce_one_shot_pushed on rank" in one for one in said)
        checks.expect(told, f"it says {done.stderr[-600:]}")

    together(range(2), body, lambda number: ("by its next call", "at its end")[number])


def other_orders() -> None:
    """Ranks that replay two graphs of one kernel in different orders, with TILELINK_CHECK=1: each names both."""

    def body(number: int, checks: Checks) -> None:
        done = _process(200 + number, "swap", variables={"TILELINK_CHECK": "1"})
        checks.expect(done.returncode != 0, "it ends as if all were well")
        checks.expect("as launch 1 of capture 1" in done.stderr, f"it says {done.stderr[-600:]}")
        checks.expect("as launch 1 of capture 2" in done.stderr, f"it says {done.stderr[-600:]}")

    together(range(1), body, str)


def _process(
    number: int, *what: str, variables: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:  # fmt: skip
    """The process of this rank, which is done. Its group has a port of its own."""
    port = str(int(os.environ["MASTER_PORT"]) + _FIRST_PORT + number)
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "MASTER_PORT": port, "PYTHONPATH": path, **(variables or {})}
    environment.pop("TORCHELASTIC_USE_AGENT_STORE", None)  # else nobody opens the port
    line = ["timeout", "-s", "KILL", str(LATE_S), sys.executable, "-m", "tests.gpu.ends", *what]
    return subprocess.run(line, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)


# In a process of its own -------------------------------------------------------------------------------------


def join() -> None:
    """Makes this process a rank of a group, by a port that no group before has had."""
    os.environ["MASTER_PORT"] = str(int(os.environ["MASTER_PORT"]) + 10)
    gpu = int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count()
    torch.cuda.set_device(gpu)
    dist.init_process_group("nccl", device_id=torch.device("cuda", gpu))


def captured(function: Callable[[], Any]) -> tuple[torch.cuda.CUDAGraph, Any]:
    """A graph of calls that have been made before, and what they return."""
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        found = function()
    return graph, found


def _calls() -> list[tuple[Callable[[], Any], float]]:
    """A call of each operator, and what all elements of its result are."""
    ranks = dist.get_world_size()
    x, w = torch.ones(256, 256, device="cuda").bfloat16(), torch.ones(128, 256, device="cuda").bfloat16()
    return [
        (lambda: ops.ag_gemm(x, w, schedule="h200"), 256), (lambda: ops.ag_gemm_gated(x, w, w, schedule="h200"), 2**16),
        (lambda: ops.gemm_rs(x, w, schedule="h200"), 256 * ranks),
        (lambda: ops.gemm_ar(x, w, schedule="h200"), 256 * ranks), (lambda: ops.all_gather(x, schedule="h200"), 1),
        (lambda: ops.reduce_scatter(x, schedule="h200"), ranks), (lambda: ops.all_reduce(x, schedule="h200"), ranks),
    ]  # fmt: skip


def order(*steps: str) -> None:
    """These steps. Says how long each of them took."""
    before, graphs, captured_now = open_handles.total(), list[torch.cuda.CUDAGraph](), False
    for step in steps:
        begin = time.monotonic()
        if step == "join":
            join()
        elif step == "use":
            calls, captured_now = _calls(), True
            for call, _ in calls:
                call()
            for call, expected in calls:
                graph, found = captured(call)
                graph.replay()
                assert bool((found == expected).all()), found
                graphs.append(graph)
        elif step == "forget":
            graphs.clear()
        elif step == "destroy":
            torch.cuda.synchronize()
            dist.barrier(device_ids=[torch.cuda.current_device()])
            dist.destroy_process_group()
        else:
            if dist.is_initialized():
                torch.cuda.synchronize()
                dist.barrier(device_ids=[torch.cuda.current_device()])
            captured_now &= step == "clear"
            kept = ops.clear(captured=step == "free")
            assert (kept > 0) == captured_now, kept
            assert kept or open_handles.total() == before, open_handles
        print(f"{step} {time.monotonic() - begin:.1f} s", flush=True)
    assert open_handles.total() >= before, open_handles
    print("handles as they should be")


def _pushed() -> Any:
    """A kernel whose programs are counted, and of which a replay is the next launch."""
    module = compiler.load("all_reduce")
    program = module.program("all_reduce_one_shot_pushed")
    dims = {"M": 64, "N": 4096}
    return compiler.compile(program, module.schedule("few", program), dims=dims, dtype="bf16", device="cuda")


def overlap(number: str) -> None:
    """number: 0 for an eager launch beside replays, and a next call, which raises the error; 1 for replays alone."""
    join()
    kernel, x = _pushed(), torch.ones(64, 4096, device="cuda", dtype=torch.bfloat16)
    for _ in range(3):
        kernel({"x": x})
    graph, other = (captured(lambda: [kernel({"x": x}) for _ in range(50)])[0] for _ in range(2))
    streams = torch.cuda.Stream(), torch.cuda.Stream()
    torch.cuda.synchronize()
    try:
        for _ in range(40):
            with torch.cuda.stream(streams[0]):
                graph.replay()
            with torch.cuda.stream(streams[1]):
                other.replay() if int(number) else kernel({"x": x})
        torch.cuda.synchronize()
    except RuntimeError as error:
        print(f"torch says: {str(error).splitlines()[0]}", flush=True)
        if int(number):
            raise
        kernel({"x": x})
    finally:
        print(f"report {[*kernel._checks.report.words]}", flush=True)


def swap() -> None:
    join()
    kernel, x = _pushed(), torch.ones(64, 4096, device="cuda", dtype=torch.bfloat16)
    kernel({"x": x})
    graphs = [captured(lambda: kernel({"x": x}))[0] for _ in range(2)]
    for graph in graphs if dist.get_rank() else reversed(graphs):
        graph.replay()
    torch.cuda.synchronize()


if __name__ == "__main__":
    {"order": order, "overlap": overlap, "swap": swap}[sys.argv[1]](*sys.argv[2:])
