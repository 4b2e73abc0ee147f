# pyright: basic
"""Programs of which a launch decides parts, against the vendor's: grouped products, any number of rows, dispatch.

    torchrun --nproc-per-node 2 benchmarks/launch_integers.py --out launch_integers.json

* Grouped products: rows in the order of the experts, and rows that lie anywhere, against `torch._grouped_mm`.
* Any number of rows: a kernel for all numbers up to a bound against one that is compiled for the number.
* Gathered rows and a product of them, on 2 GPUs and more: any number of rows that all ranks have alike, against kernels
  that are compiled for the number, and against NCCL and cuBLAS.
* Dispatch, on 2 GPUs and more: rows to other ranks, one for each token and expert, against NCCL's all_to_all_single.
* What a CUDA graph of such a launch, and the check of promises, cost.

The routing is another one in each sample: uniform, or by Zipf's law with the exponent 1.2.
"""

from __future__ import annotations

import argparse
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
from benchmarks import cases, tp
from benchmarks.measure import Session, Variant
from benchmarks.tables import ratio, table, us
from tilelink import compiler
from tilelink.settings import override

FILE = Path(__file__).with_suffix(".tl")
EXPERTS = {"T": 8192, "N": 1792, "K": 4096, "E": 16}
BATCH = 4096
"""Rows of each rank that a kernel for any batch is compiled for."""
BATCHES = (4096, 1024, 256)
BATCH_SHAPES = ("mlp-1", "mlp-2", "mlp-5")
TOKENS, TOP, HIDDEN = 4096, 8, 7168
FEW = {64: "few", 128: "few", 256: "few", 512: "some", 1024: "some", 2048: "wide"}
"""Numbers of rows -> the schedule for both kernels."""
MOST = 8192
"""Rows that a kernel for any number of rows is compiled for."""
ZIPF = 1.2
HOST = ("compiled for it", "any number", "operator, compiled for it", "operator, any number")
"""Variants whose time on the host is reported."""
Made = tuple[str, str, Callable[[], Variant]]


def sizes(program: str, N: int = EXPERTS["N"], K: int = EXPERTS["K"], M: int = MOST) -> dict[str, int]:
    """Return the sizes that a program of the file is compiled for."""
    match program:
        case "in_order":
            return EXPERTS
        case "gathered":
            return {**EXPERTS, "M": EXPERTS["T"]}
        case "dispatch":
            return {"M": TOKENS, "H": HIDDEN, "C": TOKENS * TOP}
        case _:
            return {"M": M, "N": N, "K": K}


def schedules(program: str) -> list[str]:
    return [one.name for one in compiler.load(str(FILE)).schedules if one.program == program]


def wide_shapes() -> list[tuple[str, int, int]]:
    """Return the name, columns and inner dimension of each product as one of eight ranks computes it."""
    return [(one.shape, one.N, one.K) for one in tp.problems("ag_gemm", "all", 8)]


FOR_BATCH = (("ag_gemm", "h200_roles"), ("ag_gemm_in_place", "h200_roles"), ("ag_gemm_in_place", "h200_copy_sms"))
"""Program and schedule of the kernels that are compiled for a batch."""


def batch_shapes(ranks: int) -> list[tuple[str, int, int]]:
    """Return the name, columns and inner dimension of the products of gathered rows."""
    every = tp.problems("ag_gemm", "all", ranks)
    return [(one.shape, one.N, one.K) for one in every if one.shape in BATCH_SHAPES]


def batch_sizes(N: int, K: int, rows: int) -> dict[str, int]:
    return {"Ms": rows, "N": N, "K": K}


def wanted(args: argparse.Namespace, ranks: int) -> list[cases.Kernel]:
    """Return the program, schedule and sizes of each kernel that is measured."""
    found: list[cases.Kernel] = []
    if "grouped" in args.parts:
        found += [(p, s, sizes(p)) for p in ("in_order", "gathered") for s in schedules(p)]
    if "rows" in args.parts:
        for p in ("any_rows", "these_rows"):
            found += [(p, s, sizes(p, N, K)) for _, N, K in wide_shapes() for s in ("wide", "roles")]
        _, N, K = wide_shapes()[1]
        found += [("any_rows", schedule, sizes("any_rows", N, K)) for schedule in ("few", "some")]
        found += [("these_rows", schedule, sizes("these_rows", N, K, M)) for M, schedule in FEW.items()]
        found += [("these_rows", "roles", sizes("these_rows", N, K, M)) for M, one in FEW.items() if one == "wide"]
    if "dispatch" in args.parts and ranks > 1:
        found += [("dispatch", s, sizes("dispatch")) for s in schedules("dispatch")]
    if "batch" in args.parts and ranks > 1:
        for _, N, K in batch_shapes(ranks):
            found += [("ag_gemm_batch", s, batch_sizes(N, K, BATCH)) for s in ("h200", "h200_roles")]
            found += [(p, s, batch_sizes(N, K, rows)) for rows in BATCHES for p, s in FOR_BATCH]
    return found


KERNELS: dict[tuple[Any, ...], Any] = {}


def compiled(program: str, schedule: str, dims: dict[str, int], check: bool = False) -> Any:
    """Return a kernel, of which each is compiled once. check: whether its launches check promises."""
    key = program, schedule, check, *dims.items()
    if key not in KERNELS:
        KERNELS[key] = _compiled(program, schedule, dims)
    return KERNELS[key]


def _compiled(program: str, schedule: str, dims: dict[str, int]) -> Any:
    module = cases.module_of(FILE, program)
    source = module.program(program)
    return compiler.compile(source, module.schedule(schedule, source), dims=dims, dtype="bf16", device="cuda")


class Data:
    """Tensors of one part, and the routing of a sample."""

    def __init__(self, session: Session) -> None:
        self.session, self.device = session, session.device
        self.chance = torch.Generator(device=self.device).manual_seed(1000 + session.rank)

    def empty(self, *shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device=self.device)

    def choice(self, rows: int, places: int, routing: str) -> torch.Tensor:
        """Return a place for each of some rows, drawn uniformly or by Zipf's law."""
        odds = torch.ones(places, device=self.device)
        if routing == "zipf":
            odds = torch.arange(1, places + 1, device=self.device).float() ** -ZIPF
            odds = odds[torch.randperm(places, generator=self.chance, device=self.device)]
        return torch.multinomial(odds, rows, replacement=True, generator=self.chance)


class Grouped(Data):
    """Rows for experts: `ordered` are those of `x` that `rows` lists, expert by expert."""

    def __init__(self, session: Session, routing: str) -> None:
        super().__init__(session)
        self.routing = routing
        T, N, K, E = (EXPERTS[name] for name in "TNKE")
        self.x, self.ordered, self.w = self.empty(T, K), self.empty(T, K), self.empty(E, N, K)
        self.rows = self.empty(T, dtype=torch.int32)
        self.starts = torch.zeros(E + 1, dtype=torch.int32, device=self.device)
        self.y, self.want = self.empty(T, N), self.empty(T, N)

    def refresh(self) -> None:
        self.x.normal_(generator=self.chance)
        self.w.normal_(0, 0.02, generator=self.chance)
        chosen = self.choice(EXPERTS["T"], EXPERTS["E"], self.routing)
        self.rows.copy_(torch.argsort(chosen, stable=True))
        self.starts[1:].copy_(torch.bincount(chosen, minlength=EXPERTS["E"]).cumsum(0))
        torch.index_select(self.x, 0, self.rows, out=self.ordered)
        self.want.copy_(self.vendor(self.ordered))

    def vendor(self, rows: torch.Tensor) -> torch.Tensor:
        return torch.ops.aten._grouped_mm(rows, self.w.transpose(-2, -1), offs=self.starts[1:])

    def made(self) -> Iterator[Made]:
        yield (
            "torch._grouped_mm",
            "gemm",
            lambda: Variant(name="torch._grouped_mm", kind="gemm", run=lambda: self.vendor(self.ordered)),
        )
        yield "with checks", "ours", lambda: self.ours("in_order", "wide4", check=True)
        yield "in a graph", "ours", lambda: self.ours("in_order", "wide4", graph=True)
        yield "gather + torch._grouped_mm", "gemm", lambda: Variant(
            name="gather + torch._grouped_mm", kind="library",
            run=lambda: self.vendor(torch.index_select(self.x, 0, self.rows)),
        )  # fmt: skip
        for program in ("in_order", "gathered"):
            for schedule in schedules(program):
                yield f"{program}:{schedule}", "ours", lambda p=program, s=schedule: self.ours(p, s)

    def ours(self, program: str, schedule: str, *, check: bool = False, graph: bool = False) -> Variant:
        with override(check=check):
            kernel = compiled(program, schedule, sizes(program), check)
        given = {"x": self.ordered if program == "in_order" else self.x, "w": self.w, "starts": self.starts}
        given |= {"rows": self.rows} if program == "gathered" else {}
        run: Callable[[], Any] = lambda: kernel(given, out={"y": self.y})["y"]  # noqa: E731
        how = f"{', with checks' * check}{', in a graph' * graph}"
        return Variant(
            name=f"{program}:{schedule}{how}", kind="ours", run=captured(run, self.y) if graph else run,
            expected=lambda: self.want, outputs=(self.y,),
        )  # fmt: skip


class Rows(Data):
    """A product of `count` rows."""

    def __init__(self, session: Session, N: int, K: int, count: int) -> None:
        super().__init__(session)
        self.count = count
        self.x, self.w, self.y = self.empty(MOST, K), self.empty(N, K), self.empty(MOST, N)
        self.few, self.m = self.empty(count, N), torch.tensor(count, dtype=torch.int32, device=self.device)
        self.want = self.empty(count, N)

    def refresh(self) -> None:
        self.x.normal_(generator=self.chance)
        self.w.normal_(0, 0.02, generator=self.chance)
        torch.mm(self.x[: self.count], self.w.t(), out=self.want)

    def made(self, schedule: str) -> Iterator[Made]:
        N, K = self.w.shape

        def named(name: str, own: str) -> str:
            return name if own == schedule else f"{name}, {own}"

        yield (
            "cuBLAS",
            "gemm",
            lambda: Variant(
                name="cuBLAS", kind="gemm", run=lambda: torch.mm(self.x[: self.count], self.w.t(), out=self.few)
            ),
        )

        def these(schedule: str = schedule) -> Variant:
            kernel = compiled("these_rows", schedule, sizes("these_rows", N, K, self.count))
            given = {"x": self.x[: self.count], "w": self.w}
            return Variant(
                name=named("compiled for it", schedule), kind="library",
                run=lambda: kernel(given, out={"y": self.few})["y"], expected=lambda: self.want, outputs=(self.few,),
            )  # fmt: skip

        def any_number(schedule: str = schedule, graph: bool = False) -> Variant:
            kernel = compiled("any_rows", schedule, sizes("any_rows", N, K))
            given = {"x": self.x, "w": self.w, "m": self.m}
            run: Callable[[], Any] = lambda: kernel(given, out={"y": self.y})["y"]  # noqa: E731
            if graph:
                run = captured(run, self.y)
            return Variant(
                name="any number, in a graph" if graph else named("any number", schedule), kind="ours", run=run,
                expected=lambda: self.want, outputs=(self.y,), settle=lambda found: found[: self.count],
            )  # fmt: skip

        def operator(program: str, fixed: dict[str, Any]) -> Variant:
            module = compiler.load(str(FILE))
            source = module.program(program)
            own = tilelink.op(source, module.schedule(schedule, source), **fixed)
            own(self.x[: self.count], self.w)
            name = "operator, any number" if fixed else "operator, compiled for it"
            return Variant(
                name=name, kind="ours", run=lambda: own(self.x[: self.count], self.w), expected=lambda: self.want
            )

        yield "compiled for it", "library", these
        yield "any number", "ours", any_number
        if schedule == "wide":
            yield "compiled for it, roles", "library", lambda: these("roles")
            yield "any number, roles", "ours", lambda: any_number("roles")
        yield "any number, in a graph", "ours", lambda: any_number(graph=True)
        yield "operator, compiled for it", "ours", lambda: operator("these_rows", {})
        yield "operator, any number", "ours", lambda: operator("any_rows", {"M": MOST})


def captured(run: Callable[[], Any], result: torch.Tensor) -> Callable[[], Any]:
    """Return a function that replays a launch from a CUDA graph."""
    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    kept = [run]

    def replay() -> Any:
        assert kept
        graph.replay()
        return result

    return replay


class Dispatch(Data):
    """Rows of tokens for experts of other ranks; those for a rank's own experts stay where they are."""

    def __init__(self, session: Session, routing: str) -> None:
        super().__init__(session)
        self.routing = routing
        ranks = session.ranks
        self.x = self.empty(TOKENS, HIDDEN)
        self.count = torch.zeros(ranks, dtype=torch.int32, device=self.device)
        self.rows = torch.zeros(ranks, TOKENS * TOP, dtype=torch.int32, device=self.device)
        self.got = torch.zeros(ranks, dtype=torch.int32, device=self.device)
        self.sent, self.received = self.empty(TOKENS * TOP, HIDDEN), self.empty(TOKENS * TOP, HIDDEN)
        self.splits: tuple[list[int], list[int]] = [], []
        self.bytes: list[int] = []

    def refresh(self) -> None:
        self.x.normal_(generator=self.chance)
        experts = self.choice(TOKENS * TOP, 256, self.routing)
        owner = experts // (256 // self.session.ranks)
        tokens = torch.arange(TOKENS * TOP, device=self.device) // TOP
        for p in range(self.session.ranks):
            own = tokens[owner == p] if p != self.session.rank else tokens[:0]
            self.rows[p, : len(own)] = own.int()
            self.count[p] = len(own)
        every = torch.empty(self.session.ranks, self.session.ranks, dtype=torch.int32, device=self.device)
        dist.all_gather_into_tensor(every.view(-1), self.count, group=self.session.group)
        counts = every.tolist()
        rank = self.session.rank
        self.splits = counts[rank], [row[rank] for row in counts]
        self.gather()
        self.bytes.append(max(sum(row[p] for row in counts) for p in range(self.session.ranks)) * HIDDEN * 2)

    def gather(self) -> torch.Tensor:
        at = 0
        for p, n in enumerate(self.splits[0]):
            torch.index_select(self.x, 0, self.rows[p, :n], out=self.sent[at : at + n])
            at += n
        return self.sent

    def nccl(self) -> torch.Tensor:
        out, into = self.splits
        sent, received = self.sent[: sum(out)], self.received[: sum(into)]
        dist.all_to_all_single(received, sent, into, out, group=self.session.group)
        return received

    def gather_and_nccl(self) -> torch.Tensor:
        self.gather()
        return self.nccl()

    def made(self) -> Iterator[Made]:
        yield "NCCL", "transfer", lambda: Variant(name="NCCL", kind="transfer", run=self.nccl)
        yield (
            "gather + NCCL",
            "transfer",
            lambda: Variant(name="gather + NCCL", kind="transfer", run=self.gather_and_nccl),
        )
        for schedule in schedules("dispatch"):
            yield f"dispatch:{schedule}", "ours", lambda s=schedule: self.ours(s)

    def ours(self, schedule: str) -> Variant:
        kernel = compiled("dispatch", schedule, sizes("dispatch"))
        given = {"x": self.x, "count": self.count, "rows": self.rows}

        def settle(_: Any) -> torch.Tensor:
            buffer = kernel.buffer("got")  # the only one
            return torch.cat([buffer[s, :n] for s, n in enumerate(self.splits[1])])

        return Variant(
            name=f"dispatch:{schedule}", kind="ours", run=lambda: kernel(given, out={"y": self.got})["y"],
            expected=lambda: self.nccl().clone(), settle=settle,
        )  # fmt: skip


class Batch(Data):
    """Rows of all ranks, `count` of each, times a weight."""

    def __init__(self, session: Session, N: int, K: int, count: int) -> None:
        super().__init__(session)
        self.count, ranks = count, session.ranks
        self.x, self.w, self.y = self.empty(BATCH, K), self.empty(N, K), self.empty(ranks, BATCH, N)
        self.m = torch.tensor(count, dtype=torch.int32, device=self.device)
        self.gathered, self.few = self.empty(ranks * count, K), self.empty(ranks, count, N)
        self.want = self.empty(ranks, count, N)

    def refresh(self) -> None:
        self.x.normal_(generator=self.chance)
        self.w.normal_(0, 0.02, generator=self.chance)
        self.want.copy_(self.unfused())

    def unfused(self) -> torch.Tensor:
        dist.all_gather_into_tensor(self.gathered, self.x[: self.count], group=self.session.group)
        torch.mm(self.gathered, self.w.t(), out=self.few.view(-1, self.w.shape[0]))
        return self.few

    def made(self) -> Iterator[Made]:
        yield "NCCL and cuBLAS", "gemm", lambda: Variant(name="NCCL and cuBLAS", kind="gemm", run=self.unfused)
        for program, schedule in FOR_BATCH:
            name = f"compiled for it, {program}:{schedule}"
            yield name, "library", lambda p=program, s=schedule, n=name: self.compiled_for_it(p, s, n)
        yield "any number", "ours", lambda: self.any_number("h200", "any number")
        yield "any number, roles", "ours", lambda: self.any_number("h200_roles", "any number, roles")
        name = "any number, roles, in a graph"
        yield name, "ours", lambda: self.any_number("h200_roles", name, graph=True)

    def compiled_for_it(self, program: str, schedule: str, name: str) -> Variant:
        kernel = compiled(program, schedule, batch_sizes(self.w.shape[0], self.w.shape[1], self.count))
        given = {"x": self.x[: self.count], "w": self.w}
        return Variant(
            name=name, kind="library", run=lambda: kernel(given, out={"y": self.few})["y"],
            expected=lambda: self.want, outputs=(self.few,),
        )  # fmt: skip

    def any_number(self, schedule: str, name: str, *, graph: bool = False) -> Variant:
        kernel = compiled("ag_gemm_batch", schedule, batch_sizes(self.w.shape[0], self.w.shape[1], BATCH))
        given = {"x": self.x, "w": self.w, "m": self.m}
        run: Callable[[], Any] = lambda: kernel(given, out={"y": self.y})["y"]  # noqa: E731
        return Variant(
            name=name, kind="ours", run=captured(run, self.y) if graph else run, expected=lambda: self.want,
            outputs=(self.y,), settle=lambda found: found[:, : self.count],
        )  # fmt: skip


def timed(session: Session, what: str, data: Any, made: Iterator[Made], args: argparse.Namespace) -> dict[str, Any]:
    """Return the rows of one case."""
    begin = time.perf_counter()
    session.watchdog.context(what)
    with session.watchdog.step("data"):
        data.refresh()
        session.meet()
    built = [session.build(name, kind, builder) for name, kind, builder in made]
    variants = [one for one in built if isinstance(one, Variant)]
    rows = session.time(variants, data.refresh, samples=args.samples, warmups=args.warmups)
    rows += [one for one in built if not isinstance(one, Variant)]
    return {"case": what, "rows": rows, "seconds": round(time.perf_counter() - begin, 1)}


def measured(session: Session, args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    if "grouped" in args.parts:
        for routing in ("uniform", "zipf"):
            data: Any = Grouped(session, routing)
            yield timed(session, f"grouped, {routing}", data, data.made(), args) | {"part": "grouped"}
    if "dispatch" in args.parts and session.ranks > 1:
        for routing in ("uniform", "zipf"):
            data = Dispatch(session, routing)
            found = timed(session, f"dispatch, {routing}", data, data.made(), args)
            yield found | {"part": "dispatch", "bytes": sorted(data.bytes)[len(data.bytes) // 2]}
            del data
    if "batch" in args.parts and session.ranks > 1:
        for shape, N, K in batch_shapes(session.ranks):
            for count in BATCHES:
                data = Batch(session, N, K, count)
                what = f"{shape}: {session.ranks} x {count} x {N} x {K}"
                yield timed(session, what, data, data.made(), args) | {"part": "batch"}
                del data
    if "rows" in args.parts:
        for shape, N, K in wide_shapes():
            data = Rows(session, N, K, MOST)
            yield timed(session, f"{shape}: {MOST} x {N} x {K}", data, data.made("wide"), args) | {"part": "rows"}
        shape, N, K = wide_shapes()[1]
        for count, schedule in FEW.items():
            data = Rows(session, N, K, count)
            yield timed(session, f"{shape}: {count} x {N} x {K}", data, data.made(schedule), args) | {"part": "rows"}


def lines(case: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of a case, as they are printed."""
    yield f"{case['case']} ({case['seconds']} s)"
    first = next((row["us"] for row in case["rows"] if row["us"]), None)
    for row in case["rows"]:
        took = f"{row['us']:9.1f} us {first / row['us']:6.3f}" if row["us"] and first else f"failed: {row['failure']}"
        yield f"    {took}  {row['name']}  host {row.get('host_us')}"


def report(found: dict[str, Any], name: str) -> list[str]:
    """Return the section of a report in docs/results.md."""
    machine = found["machine"]
    parts = [
        f"## {name}", "",
        f"Programs of which a launch decides parts, on {found['ranks']} {machine['gpu']}: microseconds, medians of "
        f"{found['samples']} samples with another routing each; driver {machine['driver']}, torch {machine['torch']}, "
        f"triton {machine['triton']}.", "",
    ]  # fmt: skip
    grouped = [case for case in found["cases"] if case["part"] == "grouped"]
    if grouped:
        names = list(dict.fromkeys(row["name"] for case in grouped for row in case["rows"]))
        lines = [(one, *(_against(case, one, "torch._grouped_mm") for case in grouped)) for one in names]
        sizes_ = f"{EXPERTS['E']} experts, {EXPERTS['T']} x {EXPERTS['N']} x {EXPERTS['K']}"
        parts += [f"Grouped products ({sizes_}), and the speed of `torch._grouped_mm` = 1:", ""]
        parts += [*table(("", *(case["case"].split(", ")[1] for case in grouped)), lines), ""]
    dispatch = [case for case in found["cases"] if case["part"] == "dispatch"]
    if dispatch:
        names = list(dict.fromkeys(row["name"] for case in dispatch for row in case["rows"]))
        lines = [(one, *(_rate(case, one) for case in dispatch)) for one in names]
        parts += [f"Dispatch of {TOKENS} tokens x top {TOP} x {HIDDEN}, remote rows alone: GB/s of received bytes", ""]
        parts += [*table(("", *(case["case"].split(", ")[1] for case in dispatch)), lines), ""]
    batch = [case for case in found["cases"] if case["part"] == "batch"]
    if batch:
        names = [row["name"] for row in batch[0]["rows"]]
        lines = [(c["case"], *(_against(c, one, "NCCL and cuBLAS") for one in names)) for c in batch]
        parts += [f"Gathered rows and a product of them, any number up to {BATCH} a rank, and kernels compiled for "
                  "it; the speed of NCCL and cuBLAS = 1:", ""]  # fmt: skip
        parts += [*table(("ranks x rows x columns x inner", *names), lines), ""]
    rows = [case for case in found["cases"] if case["part"] == "rows"]
    if rows:
        names = [row["name"] for row in rows[0]["rows"]]
        lines = [(c["case"], *(_against(c, one, "compiled for it") for one in names), _host(c)) for c in rows]
        parts += [f"A kernel for any number of rows up to {MOST}; the speed of one that is compiled for it = 1:", ""]
        parts += [*table(("rows x columns x inner", *names, f"host us: {', '.join(HOST)}"), lines), ""]
    return parts


def _row(case: dict[str, Any], name: str) -> dict[str, Any] | None:
    return next((row for row in case["rows"] if row["name"] == name and row["us"]), None)


def _against(case: dict[str, Any], name: str, base: str) -> str:
    row, first = _row(case, name), _row(case, base)
    return f"{us(row['us'])} ({ratio(first['us'] / row['us'])})" if row and first else "-"


def _rate(case: dict[str, Any], name: str) -> str:
    row = _row(case, name)
    return f"{us(row['us'])} ({case['bytes'] / row['us'] / 1e3:.0f} GB/s)" if row else "-"


def _host(case: dict[str, Any]) -> str:
    found = [_row(case, name) for name in HOST]
    return ", ".join(f"{row['host_us']:.0f}" if row else "-" for row in found)


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = cases.parser(__doc__, samples=20)
    parser.add_argument("--parts", default="grouped,dispatch,rows")
    parser.add_argument("--seconds", type=float, default=200.0, help="begin no case after so many seconds")
    args = parser.parse_args(argv)
    args.parts = args.parts.split(",")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    args, begin = arguments(argv), time.monotonic()
    if args.dry:
        cases.prepared(FILE, wanted(args, args.dry), args.dry, args.workers)
        return 0
    run = cases.Run("launch integers", FILE, args, lambda ranks: wanted(args, ranks))
    for case in measured(run.session, args):
        run.add(case, lines(case))
        if not run.session.agree(time.monotonic() - begin < args.seconds):
            run.write("no time for more cases")
            break
    run.end()


if __name__ == "__main__":
    sys.exit(main())
