# pyright: basic
"""Schedules that a search finds for programs without any (tests/patterns/readers), beside the built-in ones.

It is the search of `tilelink.tuning.found`: as many points, of the same strategy.

python benchmarks/readers.py OUT.json                     # searches, without a GPU
python benchmarks/readers.py OUT.json FOLDER              # writes each program and what was found, as FOLDER/NAME.tl
python benchmarks/readers.py OUT.json --alone TIMES.json  # times it on one GPU; with --dry, only compiles

One GPU has the memory of all ranks. Its ranks take turns until every one has what its peers send, and then the kernels
of the last rank are timed, with all signals of peers set, beside torch for the same work of that rank, without anything
that is sent.

`tilelink run FOLDER/NAME.tl -s found --device cuda --bench -n 2 --set ...` measures one on GPUs; FOLDER/run.sh has all.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from torch.nn import functional
from torch.nn.attention.bias import causal_lower_right

import tilelink
from benchmarks import tp
from tilelink import compiler
from tilelink.artifact import Artifact
from tilelink.cli.options import with_choices
from tilelink.compiler.samples import draw
from tilelink.errors import TileLinkError
from tilelink.frontend.variants import open_names
from tilelink.generated import file_of, load_module
from tilelink.ir.program import Program
from tilelink.runtime.dtypes import dtype_of
from tilelink.scheduling.schedule import Schedule
from tilelink.simulator.machine import Machine, load_machine
from tilelink.target import Target
from tilelink.tuning import prepare
from tilelink.tuning.found import built_in_seconds, searched

ROOT = Path(__file__).resolve().parents[1]
READERS = ROOT / "tests" / "patterns" / "readers"
RANKS, MACHINE, US = 2, "8xH200", 1e6
SIZES: dict[str, dict[str, int | float]] = {
    "expert_layer": {"M": 512, "D": 2048, "K": 4, "C": 1024},
    "fsdp": {"L": 4, "M": 2048, "Ns": 1024},
    "gather_moe": {"Ms": 1024, "K": 2048, "N": 1024, "E": 8, "T": 4096},
    "gather_product": {"Ms": 2048, "N": 4096, "K": 4096},
    "moe_reduce_scatter": {"Ms": 512, "N": 2048, "F": 1024, "E": 8, "C": 512, "k": 2},
    "paged_decoding": {"B": 32, "H": 4, "G": 4, "D": 128, "P": 1024, "L": 32, "T": 64, "scale": 0.08},
    "product_all_reduce": {"M": 1024, "N": 4096, "Ks": 4096},
    "product_reduce_scatter": {"Ms": 2048, "N": 4096, "K": 4096},
    "ring_attention": {"H": 8, "Ms": 2048, "D": 128, "scale": 0.08},
    "top_k_gate": {"M": 2048, "E": 64, "k": 8},
    "ulysses": {"H": 4, "Ms": 2048, "D": 128, "scale": 0.08},
    "zigzag_attention": {"H": 8, "C": 1024, "D": 128, "scale": 0.08},
}


def program_of(file: str | Path) -> Program:
    """Return the program of a file, with a function for each parameter that is one."""
    program = compiler.load(str(file)).program()
    choices = {name: "relu" for name, kind in open_names(program).items() if kind == "function"}
    return with_choices(program, choices) if choices else program


def built_in_of(program: Program) -> Schedule:
    """Return the schedule that says nothing, even where the file has a default of its own."""
    return Schedule(name="built_in", program=program.name)


def report_on(name: str) -> dict[str, Any]:
    """Search one program: predicted microseconds of its built-in schedule and of the best, and how long that took."""
    path = sorted((READERS / name).glob("attempt*.tl"))[-1]
    program = program_of(path)
    begin, spent = time.monotonic(), time.process_time()
    machine = load_machine(MACHINE)
    given = {"ranks": RANKS, "dtype": "bf16", "target": machine.processor, "jobs": 1}
    found = searched(program, SIZES[name], machine, **given)
    wall_s, cpu_s = time.monotonic() - begin, time.process_time() - spent
    built_in = built_in_seconds(found)
    best = found.ranking[0] if found.ranking else None
    schedules = {"built-in": built_in_of(program)} | ({"found": best.schedule} if best else {})
    alone_us = {
        one: tilelink.simulate(
            program, schedule, ranks=RANKS, dims=SIZES[name], machine=local(machine), draws=1
        ).seconds
        for one, schedule in schedules.items()
    }
    return {
        "program": name, "file": str(path.relative_to(ROOT)), "dims": SIZES[name], "points": found.size,
        "trials": len(found.tried) + sum(found.refused.values()), "refused": dict(found.refused),
        "wall_s": round(wall_s, 1), "cpu_s": round(cpu_s, 1),
        "built_in_us": round(built_in * US, 1) if built_in else None,
        "best_us": round(best.seconds * US, 1) if best else None,
        "best_at_s": round(best.at, 1) if best else None, "best": str(best.schedule) if best else None,
        "alone_us": {one: round(seconds * US, 1) for one, seconds in alone_us.items()},
    }  # fmt: skip


def write(results: list[dict[str, Any]], folder: Path) -> None:
    """Write the programs with what was found for each, and the commands that measure them."""
    lines = ["#!/bin/sh"]
    for one in results:
        if not one["best"] or one["best_us"] == one["built_in_us"]:
            continue
        text = (ROOT / one["file"]).read_text(encoding="utf-8")
        (folder / f"{one['program']}.tl").write_text(f"{text}\n{one['best']}\n", encoding="utf-8")
        sets = " ".join(f"--set={name}={value}" for name, value in one["dims"].items())
        sets += " --set=activation=relu" if one["program"] == "fsdp" else ""
        for schedule in ("default", "found"):
            command = f"python3 -m tilelink run {folder}/{one['program']}.tl -s {schedule} -n {RANKS} --dtype bf16"
            lines.append(f"timeout -s KILL 90 {command} --device cuda --bench {sets} 2>&1 | tail -3")
    (folder / "run.sh").write_text("\n".join(lines) + "\n", encoding="utf-8")


# On one GPU --------------------------------------------------------------------------------------------------

Tensors = Mapping[str, torch.Tensor]
Sizes = Mapping[str, int | float]
Work = Callable[[], dict[str, torch.Tensor]]
"""Work of a rank by torch: returns results by their names."""
LAST = RANKS - 1
"""The rank that is timed: where ranks have different work, the last one has most."""
ROUNDS = 4
"""Turns of all ranks until each has what its peers send, over several hops too."""
ALLOWED = 2e-2
"""|ours - torch's| / |torch's| (Frobenius): some programs round sums to bf16 where torch does not, or the other way."""


class _Copies:
    """A copy queue (runtime/protocol.py) that copies at once, and neither waits nor notifies."""

    def __init__(self, artifact: Artifact, tensors: Sequence[Tensors], rank: int) -> None:
        self._artifact, self._tensors, self._rank = artifact, tensors, rank

    def copy(self, target: str, rank: int, low: Any, sizes: Any, source: str, source_rank: int, source_low: Any,
             source_sizes: Any, stage: int, t: int, traced: bool = True) -> None:  # fmt: skip
        there, here = self._part(target, rank, low, sizes), self._part(source, source_rank, source_low, source_sizes)
        there.copy_(here.reshape(there.shape))

    def _part(self, name: str, rank: int, low: Any, sizes: Any) -> torch.Tensor:
        shape = self._artifact.tensor(name).shape
        box = tuple(slice(first, first + n) for first, n in zip(low, sizes, strict=True))
        return self._tensors[rank][name].view(-1, *shape)[0][box]

    def entry(self, table: str, offset: int) -> int:
        return int(self._artifact.tables[table][self._rank].reshape(-1)[offset])

    def wait(self, *_: int) -> None: ...

    notify = trace = tile_begin = tile_end = wait


def alone(artifact: Artifact, inputs: Sequence[Tensors]) -> tuple[Any, Tensors]:
    """Return the kernels of the last rank, with what its peers send in its memory, and its tensors without buffers."""
    from benchmarks.roles import ALWAYS_SET, Alone

    def empty(one: Any) -> torch.Tensor:
        buffers = one.buffers if one.symmetric or one.space == "local" else 1
        made = torch.zeros((buffers, *one.shape), dtype=dtype_of(one), device="cuda")
        # Words have come, with zeros, before the ranks that send them have their turn: flags have the launch's number.
        return made.fill_(1 << 32) if one.symmetric and made.dtype == torch.int64 else made

    every: list[dict[str, torch.Tensor]] = [{one.name: empty(one) for one in artifact.tensors} for _ in inputs]
    for own, given in zip(every, inputs, strict=True):
        for name, value in given.items():
            own[name].copy_(value.expand_as(own[name]))
    copies = {one.name: [own[one.name] for own in every] for one in artifact.tensors if one.symmetric}
    pads = [torch.full((artifact.pad_size,), ALWAYS_SET, dtype=torch.int32, device="cuda") for _ in inputs]
    ranks = [
        Alone(artifact, own, pad, None, rank=rank, copies=copies)
        for rank, (own, pad) in enumerate(zip(every, pads, strict=True))
    ]
    module = load_module(file_of(artifact.source))
    for _ in range(ROUNDS):
        for rank, one in enumerate(ranks):
            for copied in artifact.copy_programs:
                getattr(module, copied.name)(_Copies(artifact, every, rank), rank, 1)
            one()
            torch.cuda.synchronize()
    return ranks[LAST], {name: _numbers(value[0]) for name, value in every[LAST].items()}


def _numbers(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor, or what words of data and flag have as data."""
    return tensor.view(torch.float32)[..., ::2] if tensor.dtype == torch.int64 else tensor


def inputs_of(program: Program, artifact: Artifact, dims: Sizes) -> list[dict[str, torch.Tensor]]:
    """Return the inputs of each rank: drawn integers, as searches have them, and numbers."""
    drawn = draw(program, ranks=RANKS, dims=dims, draws=1)[0]
    torch.manual_seed(0)
    made: list[dict[str, torch.Tensor]] = []
    for rank in range(RANKS):
        own: dict[str, torch.Tensor] = {}
        for one in artifact.tensors:
            if one.is_given and one.name in drawn:
                own[one.name] = torch.as_tensor(drawn[one.name][rank], dtype=torch.int32).cuda()
            elif one.is_given and program.name == "top_k_gate":  # no two of a row are equal
                own[one.name] = torch.rand(one.shape, device="cuda").argsort(1).to(dtype_of(one))
            elif one.is_given:
                own[one.name] = torch.randn(one.shape, device="cuda").to(dtype_of(one))
        made.append(own)
    return made


def expert_layer(t: Tensors, dims: Sizes) -> Work:
    """Gather the rows to send, compute with those that came, and add those that came back."""
    sent = torch.cat([rows[:n] for rows, n in zip(t["rows"].long(), t["count"].tolist(), strict=True)])
    came = torch.cat([rows[:n] for rows, n in zip(t["got"], t["n"].tolist(), strict=True)])
    at = (t["owner"] * int(dims["C"]) + t["slot"]).long()
    back = t["back"].flatten(0, 1)

    def work() -> dict[str, torch.Tensor]:
        t["x"][sent]
        functional.silu(came)
        return {"y": (back[at] * t["weight"][:, :, None]).sum(1)}

    return work


def fsdp(t: Tensors, dims: Sizes) -> Work:
    layers = t["shard"].shape[0]
    shape = (layers, RANKS * int(dims["Ns"]), t["x"].shape[1])
    whole = t["weights"].shape[0] == layers  # else there is memory for some layers alone
    weights = t["weights"].view(shape) if whole else torch.randn(shape).to(t["x"])

    def work() -> dict[str, torch.Tensor]:
        h = t["x"]
        for weight in weights:
            h = functional.relu_(h @ weight.t())
        return {"y": h} if whole else {}

    return work


def gather_moe(t: Tensors, _: Sizes) -> Work:
    rows, ends, n = t["rows"].long(), t["starts"][1:].contiguous(), int(t["starts"][-1])
    return lambda: {"y": torch._grouped_mm(t["xs"][rows], t["w"].transpose(1, 2), offs=ends)[:n]}  # pyright: ignore[reportPrivateImportUsage]


def gather_product(t: Tensors, _: Sizes) -> Work:
    return lambda: {"y": t["xs"] @ t["w"].t()}


def moe_reduce_scatter(t: Tensors, dims: Sizes) -> Work:
    """Multiply all rows of each expert, weigh and add the copies of each row, and add what ranks have sent."""
    at = (t["owner"] * int(dims["C"]) + t["slot"]).long()

    def work() -> dict[str, torch.Tensor]:
        c = torch.bmm(t["h"], t["w"].transpose(1, 2)).flatten(0, 1)
        (c[at] * t["weight"][..., None]).sum(2)
        return {"y": t["parts"].sum(0).to(c.dtype)}

    return work


def paged_decoding(t: Tensors, dims: Sizes) -> Work:
    pages, n = t["pages"].long(), t["count"][LAST]
    hidden = torch.arange(int(dims["L"] * dims["T"]), device=n.device) >= n[:, None, None, None]

    def work() -> dict[str, torch.Tensor]:
        k, v = (t[name][pages].transpose(1, 2).flatten(2, 3) for name in ("k", "v"))  # [B, H, L * T, D]
        scores = ((t["q"] @ k.transpose(2, 3)).float() * dims["scale"]).masked_fill_(hidden, -1e30)
        _ = scores.softmax(3).to(v.dtype) @ v
        scores.logsumexp(3)
        weight = t["lse"].softmax(0)
        return {"o": (weight[..., None] * t["parts"]).sum(0).to(v.dtype)}

    return work


def product_all_reduce(t: Tensors, _: Sizes) -> Work:
    def work() -> dict[str, torch.Tensor]:
        _ = t["x"] @ t["w"].t()
        return {"y": t["parts"].sum(0)}

    return work


def ring_attention(t: Tensors, dims: Sizes) -> Work:
    keys, values = (
        torch.cat([t[name][(LAST - of) % RANKS] for of in range(RANKS)], 1)[None].contiguous() for name in ("ks", "vs")
    )
    seen = causal_lower_right(t["q"].shape[1], keys.shape[2])
    return lambda: {"o": _attention(t["q"][None], keys, values, dims, seen)[0]}


def top_k_gate(t: Tensors, dims: Sizes) -> Work:
    def work() -> dict[str, torch.Tensor]:
        value, expert = t["s"].topk(int(dims["k"]), 1)
        member = torch.zeros_like(t["s"], dtype=torch.int32).scatter_(1, expert, 1)
        places = member.cumsum(0, dtype=torch.int32)
        place = places.gather(1, expert) - 1
        return {"value": value, "expert": expert.int(), "place": place, "count": places[-1]}

    return work


def ulysses(t: Tensors, dims: Sizes) -> Work:
    q, k, v = (t[name].transpose(0, 1).flatten(1, 2)[None].contiguous() for name in ("qs", "ks", "vs"))
    return lambda: {"": _attention(q, k, v, dims)}  # the results go to other ranks


def zigzag_attention(t: Tensors, dims: Sizes) -> Work:
    chunks, rows = (LAST, 2 * RANKS - 1 - LAST), int(dims["C"])
    keys, values = (t[name].transpose(0, 1).flatten(1, 2)[None] for name in ("ks", "vs"))
    seen = [(n + 1) * rows for n in chunks]
    k, v = ([all_[:, :, :end].contiguous() for end in seen] for all_ in (keys, values))

    def work() -> dict[str, torch.Tensor]:
        made = [
            _attention(t["q"][u][None], k[u], v[u], dims, causal_lower_right(rows, seen[u]))[0]
            for u in range(len(chunks))
        ]
        return {"o": torch.stack(made)}

    return work


def _attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, dims: Sizes, seen: Any = None) -> torch.Tensor:
    return functional.scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=float(dims["scale"]))


WORK: dict[str, Callable[[Tensors, Sizes], Work]] = {
    "expert_layer": expert_layer, "fsdp": fsdp, "gather_moe": gather_moe, "gather_product": gather_product,
    "moe_reduce_scatter": moe_reduce_scatter, "paged_decoding": paged_decoding,
    "product_all_reduce": product_all_reduce, "product_reduce_scatter": product_all_reduce,
    "ring_attention": ring_attention, "top_k_gate": top_k_gate, "ulysses": ulysses,
    "zigzag_attention": zigzag_attention,
}  # fmt: skip
"""Program -> from the last rank's tensors, with what came from peers, the same work by torch."""


def points_of(one: Mapping[str, Any], machine: Target) -> dict[str, prepare.Point]:
    """Return what is compiled of a program: with the built-in schedule, and with the one that was found."""
    program = program_of(ROOT / one["file"])
    schedules = {"built-in": built_in_of(program)}
    if one.get("best"):
        schedules["found"] = compiler.parse(one["best"]).schedules[0]
    return {
        name: prepare.Point(
            program=program, schedule=schedule, dims=one["dims"], dtype="bf16", ranks=RANKS, target=machine,
            deadlines=(False,),
        )
        for name, schedule in schedules.items()
    }  # fmt: skip


def local(machine: Machine) -> Machine:
    """Return a machine whose peers are memory of the same GPU."""
    return replace(
        machine, link_bandwidth=machine.memory_bandwidth, sm_push_rate=machine.sm_bandwidth, sm_push_efficiency=1.0,
        sm_pull_rate=machine.sm_bandwidth, sm_pull_efficiency=1.0, signal_latency=machine.local_signal_latency,
    )  # fmt: skip


def times_of(
    one: Mapping[str, Any], points: Mapping[str, prepare.Point], samples: int, flush: torch.Tensor
) -> dict[str, Any]:
    """Return the row of a program: microseconds of torch, and with each schedule."""
    from benchmarks.measure import microseconds, relative_error

    row: dict[str, Any] = {"program": one["program"], "dims": one["dims"], "us": {}, "failure": {}}
    runs: dict[str, Callable[[], Any]] = {}
    before: dict[str, Callable[[], Any]] = {}
    inputs = None
    for name, point in points.items():
        try:
            artifact = prepare.program_of(point)
            inputs = inputs or inputs_of(point.program, artifact, one["dims"])
            kernels, tensors = alone(artifact, inputs)
            work = WORK[one["program"]](tensors, one["dims"])
            for result, want in work().items():
                if result not in tensors:
                    continue
                got = tensors[result][: len(want)].view(want.shape)
                error = float(relative_error(got.float(), want.float()))
                row.setdefault("error", {})[f"{name} {result}"] = error
                if not error < ALLOWED:
                    row["failure"][name] = f"{result} is off by {error:.2e}"
            runs["torch"] = work
            runs[name], before[name] = kernels.launch, kernels.clear
            # Nothing is cleared: a kernel that waits for another one finds what the last launch has counted.
            apart = {spec.name: partial(made, torch.cuda.current_stream().cuda_stream, {}) for spec, (_, made) in
                     zip(kernels.kernels, kernels.functions, strict=True)}  # fmt: skip
            took = microseconds(apart, max(3, samples // 3), flush)
            row.setdefault("kernels", {})[name] = [
                {"name": spec.name, "us": round(statistics.median(took[spec.name]), 1), "programs": spec.programs,
                 "warps": spec.num_warps, "stream": spec.stream, "registers": made.compiled.n_regs,
                 "spills": made.compiled.n_spills}
                for spec, (_, made) in zip(kernels.kernels, kernels.functions, strict=True)
            ]  # fmt: skip
        except Exception as failure:
            row["failure"][name] = f"{type(failure).__name__}: {failure}"[:400]
    if runs:
        seen = microseconds(runs, samples, flush, before)
        row["us"] = {name: round(statistics.median(times), 1) for name, times in seen.items()}
        row["samples"] = {name: [round(us, 1) for us in times] for name, times in seen.items()}
    return row


def measure(found: list[dict[str, Any]], args: argparse.Namespace) -> None:
    """Time programs on one GPU, or only compile them."""
    machine, begin = load_machine(MACHINE).processor, time.monotonic()
    every = {one["program"]: points_of(one, machine) for one in found}
    keys = [(name, schedule) for name, points in every.items() for schedule in points]
    keys = [(name, schedule) for name, schedule in keys if prepare.kept(every[name][schedule]) is None]
    reasons = prepare.prepare_all(
        [every[name][schedule] for name, schedule in keys], workers=args.workers, seconds=args.prepare
    )
    print(f"{reasons.count('')} of {len(keys)} compiled in {time.monotonic() - begin:.0f} s", flush=True)
    for (name, schedule), reason in zip(keys, reasons, strict=True):
        if reason:
            print(f"{name} {schedule}: {reason}", flush=True)
            every[name].pop(schedule)
    if args.dry:
        return
    from benchmarks.measure import Watchdog
    from tilelink.runtime.cuda.timing import FLUSH_BYTES

    flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")
    rows: list[dict[str, Any]] = []
    dog = Watchdog(args.limit)
    for one in found:
        with dog.step(one["program"]):
            rows.append(row := times_of(one, every[one["program"]], args.samples, flush))
        row |= {"best": one["best"], "alone_us": one["alone_us"], "rank": LAST}
        base = row["us"].get("torch")
        ratios = {name: f"{us} us, {base / us:.2f} x torch" for name, us in row["us"].items()}
        worst = max(row.get("error", {}).values(), default=None)
        print(one["program"], ratios, "predicted", one["alone_us"], "error", worst, row["failure"] or "", flush=True)
        report = {
            "benchmark": "readers alone", "machine": tp.machine(), "commit": args.commit or tp.commit(),
            "ranks": RANKS, "samples": args.samples, "rows": rows,
        }  # fmt: skip
        args.alone.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def table(report: dict[str, Any], name: str) -> list[str]:
    """Return the section of these times in docs/results.md."""
    machine, made = report["machine"], list[str]()
    for row in report["rows"]:
        us, predicted = row["us"], row["alone_us"]
        if "found" not in us:
            made.append(f"| {row['program']} | {us.get('torch', '-')} | {us.get('built-in', '-')} | - | - | - |")
            continue
        cells = us["torch"], us["built-in"], us["found"], predicted["found"], f"{us['torch'] / us['found']:.2f}"
        made.append(f"| {row['program']} | {' | '.join(map(str, cells))} |")
    return [
        f"## {name}", "",
        "Programs that readers wrote (`tests/patterns/readers`), with the built-in schedule and with the one that a "
        f"search finds, of the last of {report['ranks']} ranks, alone on one {machine['gpu']} that has the memory of "
        "all: us of all kernels, what they send to the other rank included, with its signals set; what the model "
        "predicts; and times as fast as torch, which sends nothing. Medians of "
        f"{report['samples']} turns; driver {machine['driver']}, torch {machine['torch']}, triton {machine['triton']}.",
        "",
        "| program | torch, sends nothing | built-in | found | found, predicted | times as fast as torch |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
        *made, "",
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("found", type=Path, help="what was found")
    parser.add_argument("folder", type=Path, nargs="?", help="where programs are written with what was found")
    parser.add_argument("--alone", type=Path, help="times on one GPU")
    parser.add_argument("--only", default="", help="names of programs, with commas; default: all")
    parser.add_argument("--samples", type=int, default=9)
    parser.add_argument("--workers", type=int, default=min(14, os.cpu_count() or 1), help="processes that compile")
    parser.add_argument("--prepare", type=float, default=60.0, help="seconds for them")
    parser.add_argument("--limit", type=float, default=20.0, help="seconds that one program may take")
    parser.add_argument("--commit", help="what to write for the commit where there is no git")
    parser.add_argument("--dry", action="store_true", help="with --alone: only compile, without a GPU")
    args = parser.parse_args()
    names = args.only.split(",") if args.only else list(SIZES)
    if args.folder or args.alone:
        every = json.loads(args.found.read_text(encoding="utf-8"))["results"]
        results = [one for one in every if one["program"] in names]
        if args.alone:
            return measure(results, args)
        args.folder.mkdir(parents=True, exist_ok=True)
        return write(results, args.folder)
    results = []
    for name in names:
        try:
            results.append(report_on(name))
        except TileLinkError as error:
            results.append({"program": name, "best": None, "error": str(error).splitlines()[0]})
        one = results[-1]
        print(*(f"{key} {one.get(key)}" for key in ("program", "built_in_us", "best_us", "best_at_s", "cpu_s", "trials",
                                                     "refused", "error")), flush=True)  # fmt: skip
        args.found.write_text(json.dumps({"benchmark": "readers", "ranks": RANKS, "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
