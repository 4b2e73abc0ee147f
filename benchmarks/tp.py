# pyright: basic
"""Tensor-parallel products beside what they replace, on the GPUs of one node.

    torchrun --nproc-per-node 8 benchmarks/tp.py --op ag_gemm --shapes all --out ag_gemm.json

Shapes: names of SHAPES or sizes (4096x1536: H x I), `name@512` for another number of tokens, `all` (the seven),
`small` (few tokens, two models).
Schedules: names (`h200`), or `program:name`, of the operator's file in the library or of --file;
`none`: baselines alone.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
import torch.distributed as dist

import tilelink
from benchmarks.baselines import Builder, Case, Problem, baselines, captured
from benchmarks.measure import Session, Variant, Watchdog, summarize
from tilelink import ops

ENVIRONMENT = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1"}
"""NVLink multicast stays off: it can put the GPUs of a shared node out of service."""

SHAPES: dict[str, tuple[int, int]] = {
    "mlp-1": (4096, 11008),
    "mlp-2": (4096, 14336),
    "mlp-3": (3584, 14336),
    "mlp-4": (4608, 36864),
    "mlp-5": (8192, 28672),
    "mlp-6": (8192, 29568),
    "mlp-7": (16384, 53248),
}
"""Name -> (H, I) of the MLPs of LLaMA-7B and 3.1-8B, Gemma-2-9B and 27B, LLaMA-3.1-70B, Qwen-2-72B, LLaMA-3.1-405B."""
TOKENS = 8192
FEW_TOKENS = (64, 128, 256, 512, 1024, 2048, 4096)
OPERATORS = ("ag_gemm", "gemm_rs", "gemm_ar")
COMMUNICATION = {"ag_gemm": "all_gather", "gemm_rs": "reduce_scatter", "gemm_ar": "all_reduce"}
CHOSEN = "h200"
"""Schedules whose names begin so are measured unless others are asked for."""


# Problems and schedules --------------------------------------------------------------------------------------


def problems(op: str, shapes: str, ranks: int, dtype: str = "bf16") -> list[Problem]:
    """The problems that a comma-separated list of shapes names. Raises ValueError for a name that there is not."""
    found: list[Problem] = []
    for word in shapes.split(","):
        for name in _expanded(word.strip()):
            model, _, tokens = name.partition("@")
            inner = SHAPES.get(model) or _sizes(model)
            if not inner or (tokens and not tokens.isdigit()):
                known = f"{', '.join(SHAPES)}, HxI, name@tokens, all, small"
                raise ValueError(f"no shape {name!r}: the shapes are {known}")
            hidden, intermediate = inner
            sizes = {"S": int(tokens or TOKENS), "H": hidden, "I": intermediate}
            found.append(Problem(op=op, shape=name, ranks=ranks, dtype=dtype, **sizes))
    return found


def _sizes(name: str) -> tuple[int, int] | None:
    """(H, I) of "4096x1536", None for another name."""
    found = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", name)
    return (int(found[1]), int(found[2])) if found else None


def _expanded(word: str) -> list[str]:
    if word == "all":
        return list(SHAPES)
    if word == "small":
        return [f"{model}@{tokens}" for model in ("mlp-2", "mlp-5") for tokens in FEW_TOKENS]
    return [word]


Choice = tuple[tilelink.Program, "tilelink.Schedule | None"]


def choices(file: str, names: str | None, extra: Sequence[str] = ()) -> list[Choice]:
    """Programs and schedules of a library file and of files of one's own, by the names of schedules.

    names: comma-separated `schedule` or `program:schedule` (`program:default` takes the built-in one); None: those
    whose names begin with CHOSEN, and all of the extra files. Raises ValueError for a name that there is not.
    """
    if names == "none":
        return []
    known = {(p.name, s.name): (p, s) for p, s in _known(tilelink.load(file))}
    own = {(p.name, s.name): (p, s) for path in extra for p, s in _known(tilelink.load(path))}
    own = {key: choice for key, choice in own.items() if key[0].startswith(file)}
    every, found = known | own, list[Choice]()
    if names is None:
        return [choice for key, choice in every.items() if key[1].startswith(CHOSEN) or key in own]
    for word in names.split(","):
        program, _, name = word.strip().rpartition(":")
        if program and name == "default":
            found.append((tilelink.load(program).program(), None))
            continue
        fitting = [choice for key, choice in every.items() if key[1] == name and program in ("", key[0])]
        if not fitting:
            there = ", ".join(f"{p}:{s}" for p, s in every)
            raise ValueError(f"no schedule {word.strip()!r}: there are {there}")
        found += fitting
    return found


def _known(module: tilelink.Module) -> Iterator[tuple[tilelink.Program, tilelink.Schedule]]:
    own = {program.name: program for program in module.programs}
    for schedule in module.schedules:
        program = own.get(schedule.program)
        yield program or tilelink.load(schedule.program).program(schedule.program), schedule


# Ours --------------------------------------------------------------------------------------------------------


class Ours:
    """Kernels of one case, compiled once and timed in several ways."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self._kernels: dict[str, tuple[Any, dict[str, torch.Tensor], dict[str, torch.Tensor]]] = {}

    def rows(self, choice: Choice, *, graph: bool) -> Iterator[Builder]:
        """The operator by one schedule; the same with all signals set; the same in a graph."""
        name = _name(choice)
        yield name, "ours", lambda: self._whole(choice, name, "ours")
        yield f"{name}, preset", "preset", lambda: self._preset(choice, f"{name}, preset")
        if graph:
            yield f"{name}, graph", "ours", lambda: self._whole(choice, f"{name}, graph", "ours", graph=True)

    def transfer(self, choice: Choice) -> Iterator[Builder]:
        """A program that only communicates."""
        name = _name(choice)
        yield name, "transfer", lambda: self._whole(choice, name, "transfer")

    def _compiled(self, choice: Choice, moves_only: bool) -> Any:
        program, schedule = choice
        key = _name(choice)
        if key not in self._kernels:
            case, problem = self._case, self._case.problem
            wanted = {p.name for p in program.params}
            dims = {name: size for name, size in problem.dims.items() if name in wanted}
            if moves_only and problem.op == "ag_gemm":
                dims["K"] = problem.H
            kernel = tilelink.compile(
                program, schedule, ranks=problem.ranks, dims=dims, dtype=problem.dtype, device="cuda",
                group=case.session.group,
            )  # fmt: skip
            given = {"x": case.sent} if moves_only else {"x": case.x, "w": case.w}
            output = case.scratch("received", *case.received.shape) if moves_only else case.output
            self._kernels[key] = (kernel, self._shaped(program, given), self._shaped(program, {"y": output}))
        return self._kernels[key]

    def _shaped(self, program: tilelink.Program, given: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The tensors as the program declares them: some have the ranks as their first dimension."""
        ranks = self._case.problem.ranks
        return {
            name: t.view(ranks, t.shape[0] // ranks, t.shape[1]) if len(program.tensor(name).shape) == 3 else t
            for name, t in given.items()
        }

    def _whole(self, choice: Choice, name: str, kind: str, graph: bool = False) -> Variant:
        case = self._case
        kernel, inputs, out = self._compiled(choice, kind == "transfer")
        run: Callable[[], Any] = lambda: kernel(inputs, out=out)["y"]  # noqa: E731
        return Variant(
            name=name, kind=kind, run=captured(run) if graph else run, outputs=tuple(out.values()),
            expected=lambda: case.received if kind == "transfer" else case.result,
            notes={"program": choice[0].name, "schedule": str(choice[1]) if choice[1] else "built-in"},
        )  # fmt: skip

    def _preset(self, choice: Choice, name: str) -> Variant:
        kernel, inputs, _ = self._compiled(choice, False)
        return Variant(name=name, kind="preset", run=lambda: kernel.preset(inputs))


def _operator(case: Case, way: str | None) -> Variant:
    """The operator as users call it, which chooses its way itself or is told."""
    problem, function = case.problem, getattr(ops, case.problem.op)
    chosen = way or ops.choose(problem.op, problem.M, problem.N, problem.K, problem.ranks)
    return Variant(
        name=f"operator, {way}" if way else "operator", kind="ours",
        run=lambda: function(case.x, case.w, group=case.session.group, schedule=way),
        expected=lambda: case.result, notes={"way": chosen},
    )  # fmt: skip


def _name(choice: Choice) -> str:
    return f"{choice[0].name}:{choice[1].name if choice[1] else 'default'}"


# A run -------------------------------------------------------------------------------------------------------


def measure(problem: Problem, session: Session, args: argparse.Namespace) -> dict[str, Any]:
    """All rows of one problem."""
    begin = time.perf_counter()
    session.watchdog.context(f"{problem.op} {problem.shape}")
    case = Case(problem, session)
    with session.watchdog.step("reference"):
        case.refresh()
        session.meet()
    found = timed(problem, session, _builders(case, args), case.refresh, args, begin)
    ops.clear()
    return found


def timed(
    problem: Problem, session: Session, builders: Iterator[Builder], refresh: Callable[[], Any],
    args: argparse.Namespace, begin: float,
) -> dict[str, Any]:  # fmt: skip
    """Builds and times the rows of one problem, on which work began at `begin`; what results say of it."""
    rows: list[dict[str, Any]] = []
    variants: list[Variant] = []
    for name, kind, builder in builders:
        built = session.build(name, kind, builder)
        if isinstance(built, Variant):
            variants.append(built)
        else:
            rows.append(built)
    built_s = time.perf_counter() - begin
    rows = session.time(variants, refresh, samples=args.samples, warmups=args.warmups) + rows
    session.meet()  # nobody frees what a peer may still reach
    return {
        "shape": problem.shape, "op": problem.op, "ranks": problem.ranks, "dtype": problem.dtype,
        "S": problem.S, "H": problem.H, "I": problem.I, "I_per_rank": f"I/{problem.ranks}",
        "M": problem.M, "N": problem.N, "K": problem.K, "received_bytes": problem.received_bytes,
        "rate_gbs": args.rate, "rows": rows, "summary": summarize(rows, problem.received_bytes, args.rate),
        "build_s": round(built_s, 2), "wall_s": round(time.perf_counter() - begin, 2),
    }  # fmt: skip


def _builders(case: Case, args: argparse.Namespace) -> Iterator[Builder]:
    ours, op = Ours(case), case.problem.op
    if args.baselines == "all":
        yield from baselines(case)
    else:
        yield from (b for b in baselines(case) if b[0] in ("cuBLAS", "NCCL", "cuBLAS+NCCL"))
    for choice in choices(COMMUNICATION[op], args.comm_schedules, args.file):
        yield from ours.transfer(choice)
    for choice in choices(op, args.schedules, args.file):
        yield from ours.rows(choice, graph=args.graph)
    ways = [None] * args.operator + [way for way in args.ways.split(",") if way]
    for way in ways:
        yield f"operator, {way}" if way else "operator", "ours", lambda way=way: _operator(case, way)


def machine() -> dict[str, Any]:
    """Where figures come from: the GPU, driver and versions."""
    driver = _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader").splitlines()[:1]
    import triton
    from torch.cuda import nccl

    return {
        "gpu": torch.cuda.get_device_name(), "gpus": torch.cuda.device_count(), "driver": "".join(driver),
        "cuda": torch.version.cuda, "nccl": ".".join(map(str, nccl.version())), "torch": torch.__version__,
        "triton": triton.__version__, "python": platform.python_version(), "environment": ENVIRONMENT,
    }  # fmt: skip


def commit() -> str:
    """The commit of the tree that is measured, "+" where it was changed since; "unknown" without git."""
    found = _output("git", "rev-parse", "HEAD") or "unknown"
    return found + ("+" if _output("git", "status", "--porcelain", "--untracked-files=no") else "")


def command() -> str:
    """The arguments, without the place of the results."""
    given = sys.argv[1:]
    at = given.index("--out") if "--out" in given else len(given)
    return " ".join([*given[:at], *given[at + 2 :]])


def _output(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, cwd=Path(__file__).parent)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--op", required=True, help=f"one or more of {','.join(OPERATORS)}")
    parser.add_argument("--shapes", default="all")
    parser.add_argument("--schedules", help=f"default: those whose names begin with {CHOSEN}, and those of --file")
    parser.add_argument("--comm-schedules", help="the same for the communication alone")
    parser.add_argument("--file", action="append", default=[], help="a .tl file with more programs and schedules")
    parser.add_argument("--baselines", choices=("all", "few"), default="all")
    parser.add_argument("--operator", action="store_true", help="time tilelink.ops by its own choice too")
    parser.add_argument("--ways", default="", help="time tilelink.ops with these schedules too, as program:name")
    parser.add_argument("--graph", action="store_true", help="time our operators in CUDA graphs too")
    parser.add_argument("--dtype", choices=("bf16", "f16"), default="bf16")
    parser.add_argument("--samples", type=int, default=20)
    parser.add_argument("--warmups", type=int, default=5)
    parser.add_argument("--rate", type=float, default=385.0, help="best large peer-to-peer rate, GB/s, for the floor")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds that one step may take before all is ended")
    parser.add_argument("--commit", help="what to write for the commit where there is no git")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args(argv)
    if unknown := set(args.op.split(",")) - set(OPERATORS):
        parser.error(f"no operator {', '.join(sorted(unknown))}")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    args = arguments(argv)
    os.environ.update(ENVIRONMENT)
    if not torch.cuda.is_available() or "LOCAL_RANK" not in os.environ:
        print("this needs GPUs and torchrun: torchrun --nproc-per-node N benchmarks/tp.py ...", file=sys.stderr)
        return 2
    local = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    dist.init_process_group("nccl", device_id=torch.device("cuda", local))
    rank, ranks = dist.get_rank(), dist.get_world_size()
    report = {
        "benchmark": "tp", "op": args.op, "ranks": ranks, "dtype": args.dtype, "samples": args.samples,
        "warmups": args.warmups, "machine": machine(), "commit": args.commit or commit(),
        "command": command(), "shapes": [], "ended_early": None,
    }  # fmt: skip

    def write(ended_early: str | None = None) -> None:
        report["ended_early"] = ended_early
        if rank == 0 and args.out:
            args.out.parent.mkdir(parents=True, exist_ok=True)
            args.out.write_text(json.dumps(report, indent=1) + "\n")

    watchdog = Watchdog(args.limit, rank, on_end=write)
    failure = _measure_all(args, report, write, watchdog)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1 if failure else 0)  # an orderly shutdown could wait for ranks that failed


def _measure_all(args: argparse.Namespace, report: dict[str, Any], write: Any, watchdog: Watchdog) -> str:
    from benchmarks.tables import shape_lines

    try:
        session = Session(dist.group.WORLD, watchdog)  # type: ignore[arg-type]
        wanted = [p for op in args.op.split(",") for p in problems(op, args.shapes, session.ranks, args.dtype)]
        for problem in wanted:
            result = measure(problem, session, args)
            gc.collect()
            report["shapes"].append(result)
            write()
            if session.rank == 0:
                print("\n".join(shape_lines(result)), flush=True)
    except Exception as error:
        write(f"{type(error).__name__}: {error}"[:2000])
        print(f"rank {dist.get_rank()}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        return str(error) or type(error).__name__
    with watchdog.step("the end"):
        session.meet()
    return ""


if __name__ == "__main__":
    sys.exit(main())
