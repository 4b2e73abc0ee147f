"""`tilelink tune FILE`: search a schedule, by the model alone or by measuring the best few, and store the result."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from tilelink import compiler
from tilelink.cli import gpus
from tilelink.cli.notices import progress, say, say_grid
from tilelink.cli.options import (
    DTYPE,
    LARGE_DIMS,
    AsJson,
    CostName,
    DrawsCount,
    Element,
    File,
    MachineName,
    Nodes,
    ProgramName,
    Ranks,
    RoutingName,
    Sets,
    choices_of,
    cost_model,
    designed_errors,
    dims_of,
    imported,
    of_a_node,
    random_tables,
    ranks_of,
    ranks_text,
    values_text,
    with_choices,
    write,
)
from tilelink.compiler.modules import Module
from tilelink.compiler.samples import DRAWS
from tilelink.errors import BindingError, SearchError, TileLinkError
from tilelink.frontend.variants import open_names
from tilelink.ir.program import Program
from tilelink.search import STRATEGIES, Found, Tried
from tilelink.simulator.machine import load_machine
from tilelink.tuning import Database, Record, algorithms, distinct, key_of, rank

US = 1e6
BUDGET_S = 60.0
"""Seconds of a search without a given budget."""
BUDGET = f"seconds of searching  [default: {BUDGET_S:g}; with --trials no limit]"
SLOWER = 3.0
"""Declared schedules predicted to be slower than the best candidate by more than this factor are not measured."""
NOT_MEASURED = "not measured: predicted slower"
CANDIDATE_S = 15.0
"""Seconds allowed for a candidate that was not compiled ahead, or that is stuck until its deadline."""


def tune(
    file: File,
    program: ProgramName = None,
    ranks: Ranks = 8,
    nodes: Nodes = 1,
    sets: Sets = None,
    shape: Annotated[
        str | None, typer.Option("--shape", metavar="M,N,K", help="all dimensions at once, in the program's order")
    ] = None,
    dtype: Element = DTYPE,
    machine: MachineName = "8xH200",
    target: Annotated[
        str | None, typer.Option("--target", help="target of the kernels  [default: the machine's]")
    ] = None,
    strategy: Annotated[
        str, typer.Option("--strategy", help=f"one of {', '.join(STRATEGIES)}, or yours as module:function")
    ] = "evolution",
    cost: CostName = None,
    budget: Annotated[float | None, typer.Option("--budget", min=0.0, help=BUDGET)] = None,
    trials: Annotated[int | None, typer.Option("--trials", min=1, help="points to try at most")] = None,
    top: Annotated[
        int, typer.Option("--top", min=1, help="best schedules to show and to measure, besides the declared ones")
    ] = 8,
    measured: Annotated[
        bool, typer.Option("--measure", help="time the candidates on GPUs and remember the best")
    ] = False,
    compile_budget: Annotated[
        float, typer.Option("--compile-budget", min=0.0, max=300.0, help="seconds of compiling ahead with all cores")
    ] = 30.0,
    routing: RoutingName = "uniform",
    draws: DrawsCount = DRAWS,
    seed: Annotated[int, typer.Option("--seed", help="seed of the search")] = 0,
    jobs: Annotated[
        int | None, typer.Option("--jobs", min=1, help="processes that search  [default: one for each core]")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Search the schedules of a program and of equivalent programs, and show the best."""
    with designed_errors(as_json):
        module = compiler.load(file)
        written = module.program(program)
        choices = choices_of(written, sets)
        chosen = with_choices(written, choices)
        programs = _equivalent(module, written, chosen, choices)
        dims = dims_of(chosen, [*_shape(chosen, shape), *(sets or [])], LARGE_DIMS, node_ranks=of_a_node(ranks, nodes))
        if not as_json:
            say(f"{chosen.name} on {ranks_text(ranks_of(ranks, nodes))}, {values_text(dims)}")
            say_grid(chosen, dims, ranks, nodes)
        if measured:
            _require_measuring(ranks, nodes)
        options = {
            "dims": dims, "ranks": ranks, "nodes": nodes, "machine": load_machine(machine), "target": target,
            "dtype": dtype.value,
            "by": imported(strategy) if ":" in strategy else strategy, "cost": cost_model(cost),
            "budget_s": BUDGET_S if budget is None and trials is None else budget, "trials": trials, "seed": seed,
            "tables": random_tables(chosen, dims, ranks, seed), "routing": routing, "draws": draws,
            "jobs": jobs,
            "declared": [s for p in programs for s in module.schedules_of(p)],
        }  # fmt: skip
        found = _searched(programs, options, quiet=as_json)
        if not (lines := [_line(found, one, best=not at) for at, one in enumerate(_shown(found, top))]):
            raise _nothing(found)
        best: dict[str, Any] | None = None
        seconds = {"search": found.elapsed}
        if measured and found.ended != "interrupt":
            request = {
                "file": file, "dims": dims, "choices": choices, "dtype": dtype.value, "compile_budget": compile_budget
            }  # fmt: skip
            best, took = _measure(request, programs, lines, ranks, quiet=as_json)
            seconds |= took
    asked = {
        "program": chosen.name, **ranks_of(ranks, nodes), "dims": dims, "choices": choices, "dtype": dtype.value,
        "machine": machine, "strategy": strategy, "seed": seed,
    }  # fmt: skip
    _show(found, asked, lines, best, seconds, as_json)
    if found.ended == "interrupt":
        raise typer.Exit(130)


def _equivalent(module: Module, written: Program, chosen: Program, choices: Mapping[str, Any]) -> tuple[Program, ...]:
    """Return a program with these choices, and those of its file that compute the same."""
    able = [one for one in module.programs if one != written and choices.keys() <= open_names(one).keys()]
    return algorithms([with_choices(one, choices) for one in able], chosen)


def _require_measuring(ranks: int, nodes: int) -> None:
    """Raise RankError without GPUs, BindingError for several nodes, and OutputError if no result could be stored."""
    if nodes > 1:
        hint = "leave --measure out: the model alone compares them, and a kernel's bench() times one on all nodes"
        raise BindingError(f"candidates on {nodes} nodes are not measured from one machine", hint=hint)
    gpus.require_gpus(ranks, hint="without --measure the model alone compares them")
    Database().require_own()


def _searched(programs: Sequence[Program], options: dict[str, Any], quiet: bool) -> Found:
    """Return the result of a search that an interrupt may end, and say how far it is."""
    seen: list[Tried | None] = []

    def said(one: Tried | None) -> None:
        seen.append(one)
        rated = [one.seconds for one in seen if one is not None]
        best = f", the best takes {min(rated) * US:.1f} us" if rated else ""
        doing(f"{len(seen)} schedules looked at, {len(rated)} rated{best}")

    with progress(quiet, hint="--budget and --trials say when it ends") as doing:
        return rank(programs, **options, progress=said, keep_interrupted=True)


def _nothing(found: Found) -> TileLinkError:
    """Return the reason why a search has found nothing: the first error of its most frequent kind."""
    for kind, _ in found.refused.most_common():
        if kind in found.space.reasons:
            return found.space.reasons[kind]
    counted = ", ".join(f"{count} {kind}" for kind, count in found.refused.items()) or "nothing was tried"
    return SearchError(f"nothing was found: {counted}", hint="give it more time or trials, or smaller sizes")


def _shape(program: Program, text: str | None) -> list[str]:
    """Return the sizes of --shape in the form of --set. Raises BindingError unless there is a size per dimension."""
    names = [p.name for p in program.params if p.kind == "dim"]
    sizes = [part.strip() for part in text.split(",")] if text is not None else []
    if text is not None and (len(sizes) != len(names) or not all(size.isdecimal() for size in sizes)):
        raise BindingError(
            f"--shape {text} is not a shape of {program.name}", hint=f"write {','.join(names)} as numbers"
        )
    return [f"{name}={size}" for name, size in zip(names, sizes, strict=False)]


def _shown(found: Found, top: int) -> list[Tried]:
    """Return the best distinct schedules of a search, and all declared schedules, best first."""
    best = distinct(found, top)
    others = [one for one in found.ranking if one.declared and one not in best]
    return sorted([*best, *others], key=lambda one: one.seconds)


def _line(found: Found, one: Tried, *, best: bool) -> dict[str, Any]:
    """Return a candidate as JSON values, its schedule for the processor of the search.

    origin: "found" by the search, or "declared" in the file. best: what is found has no clauses that change nothing.
    """
    plain = best and not one.declared
    schedule = found.space.without_idle(one.candidate.program, one.schedule) if plain else one.schedule
    name, origin = found.space.programs[one.candidate.program].name, "declared" if one.declared else "found"
    text = str(replace(schedule, target=found.space.target.name))
    return {"program": name, "predicted_us": one.seconds * US, "schedule": text, "origin": origin}


def worth_measuring(lines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return all candidates except declared ones predicted to be slower than the best by more than SLOWER."""
    limit = SLOWER * min(line["predicted_us"] for line in lines)
    return [line for line in lines if line["origin"] != "declared" or line["predicted_us"] <= limit]


def _measure(
    request: dict[str, Any], programs: Sequence[Program], lines: list[dict[str, Any]], ranks: int, quiet: bool
) -> tuple[dict[str, Any], dict[str, float]]:
    """Add measured times to the lines, and store the best.

    Return the best with the time of the unfused implementation, and the seconds of preparation and measuring.
    """
    begin, chosen = time.perf_counter(), worth_measuring(lines)
    work_s = request["compile_budget"] + CANDIDATE_S * len(chosen)
    asked = {**request, "what": "tune", "candidates": chosen}
    if not quiet:
        left = len(lines) - len(chosen)
        slow = f"; {left} predicted to be {SLOWER:g} times slower are left out" if left else ""
        say(f"measuring {len(chosen)} candidates on {ranks} GPUs{slow}")
    answer = gpus.on_gpus(asked, ranks, work_s=work_s, hint="measure fewer, with --top")
    for line in lines:
        line |= {"measured_us": None, "dropped": NOT_MEASURED}
    for line, one, late in zip(chosen, answer["measured"], answer["unprepared"], strict=True):
        line["measured_us"] = one["seconds"] * US if one["seconds"] is not None else None
        line |= {"dropped": one["reason"], "unprepared": late}
    unfused = answer["unfused"]
    ways = [(line["measured_us"], line["program"], line["schedule"]) for line in lines if line["measured_us"]]
    ways += [(unfused * US, "", "unfused")] if unfused is not None else []
    micros, name, schedule = min(ways, default=(0.0, "", "unfused"))
    dims, dtype = request["dims"], request["dtype"]
    key = key_of(programs, dims=dims, dtype=dtype, ranks=ranks, gpu=answer["gpu"], versions=answer["versions"])
    evidence = (*lines, {"program": "", "schedule": "unfused", "measured_us": unfused and unfused * US})
    Database().store(Record(key=key, program=name, schedule=schedule, seconds=micros / US, evidence=evidence))
    best = {"program": name, "schedule": schedule, "measured_us": micros, "unfused_us": unfused and unfused * US}
    preparation = answer["seconds"]["preparation"]
    return best, {"preparation": preparation, "measuring": time.perf_counter() - begin - preparation}


def _show(
    found: Found, asked: dict[str, Any], lines: list[dict[str, Any]], best: dict[str, Any] | None,
    seconds: Mapping[str, float], as_json: bool,
) -> None:  # fmt: skip
    """Print the result. asked: the arguments of the search, with which it can be repeated."""
    if as_json:
        tried = {**asked, "points": found.size, "tried": len(found.tried), "refused": dict(found.refused)}
        tried["reasons"] = {reason: error.message for reason, error in found.space.reasons.items()}
        tried["ended"] = found.ended
        curve = [{"trial": one.trial, "at_s": round(one.at, 3), "us": one.seconds * US} for one in found.progress()]
        took = {name: round(value, 3) for name, value in seconds.items()}
        answer = {**tried, "seconds": took, "progress": curve, "candidates": lines, "best": best}
        write(json.dumps(answer, indent=2))
        return
    refused = ", ".join(f"{count} {reason}" for reason, count in sorted(found.refused.items())) or "none"
    looked_at = f"{len(found.tried) + found.refused.total()} looked at in {found.elapsed:.1f} s"
    write(f"{found.size} points; {looked_at}: {len(found.tried)} rated; refused: {refused}")
    for reason, error in sorted(found.space.reasons.items()):
        location = f"{error.location.file}:{error.location.line}: " if error.location is not None else ""
        write(f"  {reason}, the first: {location}{error.message}")
    if found.ended == "interrupt":
        write("interrupted: the best so far")
    elif not any(not one.declared for one in found.tried):
        write(f"only declared schedules were tried, then the {found.ended} were spent")
    if best:
        write(f"compiled ahead for {seconds['preparation']:.1f} s, measured for {seconds['measuring']:.1f} s")
    table = Table("", "program", "predicted us", *(["measured us"] if best else []), "schedule", box=None)
    for number, line in enumerate(lines, 1):
        shown = [f"{line['measured_us']:.1f}" if line["measured_us"] else line["dropped"]] if best else []
        text = "; ".join(part.strip() for part in line["schedule"].splitlines()[1:])
        table.add_row(str(number), line["program"], f"{line['predicted_us']:.1f}", *shown, text)
    Console().print(table)
    if best:
        unfused = f"{best['unfused_us']:.1f} us" if best["unfused_us"] else "not known"
        write(f"\nbest: {best['program'] or 'unfused'}, {best['measured_us']:.1f} us; unfused: {unfused}")
    if lines:
        write("\n" + (best["schedule"] if best else lines[0]["schedule"]))
