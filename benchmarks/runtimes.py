# pyright: basic
"""Comparison of the runtimes `cuda` and `nvshmem` on the GPUs of one machine that are joined by NVLink.

    torchrun --nproc-per-node 2 benchmarks/runtimes.py --out benchmarks/results/runtimes_2xH100.json
    python benchmarks/runtimes.py --report

The same program with the same schedule runs by the runtime `cuda`, by `nvshmem` with all ranks in one node, and by
`nvshmem` with a node for each rank, where what crosses nodes is put. They take turns on the same fresh data, and every
result is compared with the vendor's. NVSHMEM reaches the other GPU by NVLink in all of it: nothing here says how fast a
network is.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
import torch.distributed as dist

from benchmarks import tp
from benchmarks.baselines import Builder, Case, Problem
from benchmarks.measure import Session, Variant, Watchdog
from tilelink import compiler
from tilelink.compiler.cuda import gpu_artifact
from tilelink.ir.program import Program
from tilelink.runtime.cuda.device import current_target
from tilelink.runtime.cuda.kernel import GpuKernel
from tilelink.scheduling.schedule import Schedule

SHAPES = "mlp-1,mlp-2,mlp-5"
CHOICES = {"ag_gemm": "ag_gemm_in_place:h200_copy_sms", "gemm_rs": "gemm_rs_local_last:h200_copy_sms"}
"""Operator -> the program and schedule that runtimes have in common: SMs move what is sent."""
CUDA, ONE, EACH = "cuda", "nvshmem, one node", "nvshmem, a node for each rank"
RESULTS = Path(__file__).parent / "results"
PAGE = Path(__file__).parents[1] / "docs" / "multi_node.md"
BEGIN, END = "<!-- written by benchmarks/runtimes.py -->", "<!-- end of what it wrote -->"


def choice_of(op: str) -> tuple[Program, Schedule]:
    """Return the program and the schedule of an operator."""
    name, _, schedule = CHOICES[op].partition(":")
    module = compiler.load(op)
    program = module.program(name)
    return program, module.schedule(schedule, program)


def plan_of(problem: Problem, nodes: int, target: Any) -> Any:
    program, schedule = choice_of(problem.op)
    wanted = {p.name for p in program.params}
    dims = {name: size for name, size in problem.dims.items() if name in wanted}
    return compiler.plan(
        program, schedule, ranks=problem.ranks, nodes=nodes, dims=dims, dtype=problem.dtype, target=target
    )  # fmt: skip


def kernel_of(runtime: str, problem: Problem, group: dist.ProcessGroup) -> Any:
    """Return the kernel of a problem by a runtime. Collective."""
    from tilelink.runtime.nvshmem.kernel import NvshmemKernel

    artifact = gpu_artifact(plan_of(problem, problem.ranks if runtime == EACH else 1, current_target(group)))
    return GpuKernel(artifact, group) if runtime == CUDA else NvshmemKernel(artifact, group)


def rows(case: Case) -> Iterator[Builder]:
    for runtime in (CUDA, ONE, EACH):
        yield runtime, "ours", lambda runtime=runtime: _variant(case, runtime)


def _variant(case: Case, runtime: str) -> Variant:
    problem, program = case.problem, choice_of(case.problem.op)[0]
    kernel = kernel_of(runtime, problem, case.session.group)
    given = {"x": case.x, "w": case.w, "y": case.output}
    shaped = {
        name: t.view(problem.ranks, t.shape[0] // problem.ranks, t.shape[1])
        if len(program.tensor(name).shape) == 3 else t
        for name, t in given.items()
    }  # fmt: skip
    out = {"y": shaped.pop("y")}
    run: Callable[[], Any] = lambda: kernel(shaped, out=out)["y"]  # noqa: E731
    return Variant(
        name=runtime, kind="ours", run=run, outputs=tuple(out.values()), expected=lambda: case.result,
        notes={"schedule": CHOICES[problem.op]},
    )  # fmt: skip


def measure(problem: Problem, session: Session, args: argparse.Namespace) -> dict[str, Any]:
    """Return the rows of one problem: microseconds of each runtime, and against `cuda`."""
    session.watchdog.context(f"{problem.op} {problem.shape}")
    case = Case(problem, session)
    with session.watchdog.step("reference"):
        case.refresh()
        session.meet()
    built = [session.build(*one) for one in rows(case)]
    variants = [one for one in built if isinstance(one, Variant)]
    timed = session.time(variants, case.refresh, samples=args.samples, warmups=args.warmups)
    session.meet()
    timed += [one for one in built if not isinstance(one, Variant)]
    return {"op": problem.op, "shape": problem.shape, "rows": timed}


# Report ------------------------------------------------------------------------------------------------------


def report(found: dict[str, Any]) -> str:
    """Return the table of a run, in Markdown."""
    machine = found["machine"]
    head = (
        f"{machine['gpus']} x {machine['gpu']}, NVLink; microseconds, the median of {found['samples']} samples; "
        "SMs move what is sent.\n\n"
        f"| operator | shape | {CUDA} | {ONE} | against cuda | {EACH} | against cuda |\n"
        "|---|---|---:|---:|---:|---:|---:|\n"
    )
    return head + "".join(_line(one) for one in found["shapes"])


def _line(one: dict[str, Any]) -> str:
    us = {row["name"]: row["us"] for row in one["rows"]}
    cells = [one["op"], one["shape"], _us(us.get(CUDA))]
    for runtime in (ONE, EACH):
        cells += [_us(us.get(runtime)), _share(us.get(runtime), us.get(CUDA))]
    return f"| {' | '.join(cells)} |\n"


def _us(us: float | None) -> str:
    return "-" if us is None else f"{us:.0f}" if us >= 100 else f"{us:.1f}"


def _share(us: float | None, base: float | None) -> str:
    return "-" if us is None or base is None else f"{100 * (us / base - 1):+.1f} %"


def page(text: str, found: dict[str, Any]) -> str:
    """Return a page with the table between its marks."""
    head, rest = text.split(BEGIN)
    return f"{head}{BEGIN}\n\n{report(found)}{END}{rest.partition(END)[2]}"


# A run -------------------------------------------------------------------------------------------------------


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--op", default=",".join(CHOICES))
    parser.add_argument("--shapes", default=SHAPES)
    parser.add_argument("--samples", type=int, default=20)
    parser.add_argument("--warmups", type=int, default=5)
    parser.add_argument("--limit", type=float, default=100.0, help="seconds that one step may take before all is ended")
    parser.add_argument("--commit", help="what to write for the commit where there is no git")
    parser.add_argument("--report", type=Path, nargs="?", const=RESULTS / "runtimes_2xH100.json", help="write the page")
    parser.add_argument("--out", type=Path)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = arguments(argv)
    if args.report:
        PAGE.write_text(page(PAGE.read_text(), json.loads(args.report.read_text())))
        return 0
    os.environ.update(tp.ENVIRONMENT)
    if not torch.cuda.is_available() or "LOCAL_RANK" not in os.environ:
        print("this needs GPUs and torchrun: torchrun --nproc-per-node N benchmarks/runtimes.py ...", file=sys.stderr)
        return 2
    local = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    dist.init_process_group("nccl", device_id=torch.device("cuda", local))
    found: dict[str, Any] = {
        "benchmark": "runtimes", "ranks": dist.get_world_size(), "samples": args.samples, "warmups": args.warmups,
        "machine": tp.machine(), "commit": args.commit or tp.commit(), "shapes": [], "ended_early": None,
    }  # fmt: skip

    def write(ended_early: str | None = None) -> None:
        found["ended_early"] = ended_early
        if dist.get_rank() == 0 and args.out:
            args.out.write_text(json.dumps(found, indent=1) + "\n")

    session = Session(dist.group.WORLD, Watchdog(args.limit, dist.get_rank(), on_end=write))  # type: ignore[arg-type]
    for op in args.op.split(","):
        for problem in tp.problems(op, args.shapes, session.ranks):
            found["shapes"].append(measure(problem, session, args))
            gc.collect()
            write()
            if session.rank == 0:
                print(_line(found["shapes"][-1]), end="", flush=True)
    session.meet()
    sys.stdout.flush()
    os._exit(0)  # NVSHMEM's own end waits for all ranks


if __name__ == "__main__":
    sys.exit(main())
