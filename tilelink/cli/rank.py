# pyright: basic
"""A rank of a request of the command line on GPUs: `python -m tilelink.cli.rank REQUEST ANSWER`, run by torchrun.

It reads a JSON file, and rank 0 writes another.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilelink import compiler, stragglers
from tilelink.cli.gpus import FAILED
from tilelink.cli.options import with_choices
from tilelink.cli.probe import PROBE
from tilelink.data import read_json
from tilelink.errors import TileLinkError
from tilelink.settings import variable
from tilelink.simulator.measured import Measured, measured_events, measured_text
from tilelink.stragglers import of_spans

if TYPE_CHECKING:
    from tilelink.reference.run import Outputs

MEETING_CYCLES = 4_000_000
"""About 2 ms, during which every host issues a traced launch."""
PROBE_ELEMENTS = 2**19
"""Elements of bf16: 1 MiB to each peer."""


def main(question: str, answer: str) -> int:
    """Execute the request on one rank, and return the exit status."""
    import torch
    import torch.distributed as dist

    rank = int(variable("LOCAL_RANK") or 0)
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
    request = read_json(question)
    try:
        ways = {"run": _run, "probe": _probe, "tune": _tune, "calibrate": _calibrate, "hunt": _hunt}
        result = ways[request["what"]](request)
        torch.cuda.synchronize()
        dist.barrier(device_ids=[rank])
        if rank == 0:
            Path(answer).write_text(json.dumps(result), encoding="utf-8")
    except Exception as error:
        message = f"rank {rank}: {error}" if isinstance(error, TileLinkError) else traceback.format_exc()
        print(f"{FAILED}{message}", file=sys.stderr, flush=True)
        return 1
    return 0


def _run(request: Mapping[str, Any]) -> dict[str, Any]:
    """Launch on random inputs, back to back, and return the largest error of each output over ranks and launches."""
    import torch
    import torch.distributed as dist

    from tilelink.reference import trial
    from tilelink.runtime.cuda.device import current_target
    from tilelink.runtime.cuda.timing import Sampler

    module = compiler.load(request["file"])
    program = with_choices(module.program(request["program"]), request["choices"])
    schedule = None
    if "found" in request:
        schedule = compiler.parse(request["found"]).schedules[0]
    elif request["schedule"]:
        schedule = module.schedule(request["schedule"], program)
    ranks, rank, dims, dtype = dist.get_world_size(), dist.get_rank(), request["dims"], request["dtype"]
    tables = trial.random_tables(program, ranks=ranks, dims=dims, seed=request["seed"])
    kernel = compiler.compile(
        program, schedule, dims=dims, dtype=dtype, device="cuda", tables=tables, deadline_s=request["deadline"],
        trace=request["trace"],
    )  # fmt: skip
    inputs = trial.random_inputs(
        program, ranks=ranks, dims=dims, dtype=dtype, launches=request["launches"], seed=request["seed"],
        routing=request["routing"],
    )  # fmt: skip
    given = [{name: value.cuda() for name, value in launch[rank].items()} for launch in inputs]
    made = [kernel.empty_outputs() for _ in given]  # no memory is allocated between launches
    outputs: list[Mapping[str, Any]] = []
    assert dist.group.WORLD is not None
    sampler = Sampler(dist.group.WORLD, sleep_cycles=MEETING_CYCLES) if request["trace"] else None
    torch.cuda.synchronize()
    dist.barrier(device_ids=[rank])
    begin = time.perf_counter()
    for one, out in zip(given, made, strict=True):
        if sampler is not None:  # hosts wait for each traced launch, and so do not run in step
            sampler.meet_later()
        outputs.append(kernel(one, out=out))
    torch.cuda.synchronize()
    seconds = time.perf_counter() - begin
    worst: dict[str, float] = {}
    of_launches: list[float] = []
    odd: dict[str, str] = {}
    kept: list[Mapping[str, Any]] | None = None
    every: list[Sequence[Outputs]] = []
    left = kernel.state()
    for number, (launch, output) in enumerate(zip(inputs, outputs, strict=True), 1):
        complete = [{**own, **{name: table[r] for name, table in tables.items()}} for r, own in enumerate(launch)]
        expected = compiler.reference(program, complete, dims=dims, dtype=dtype, kept=kept)
        kept = [one.kept for one in expected]
        every.append(expected)
        pairs = [(t.name, output, expected) for t in program.tensors if t.is_result]
        if number == len(inputs):
            pairs += [(t.name, left, kept) for t in program.tensors if t.space == "kept"]
        of_launches.append(0.0)
        for name, results, wanted in pairs:
            like = next(one[name] for one in wanted if name in one)
            value = results.get(name, torch.empty_like(like, device="cuda"))  # all ranks take part in what follows
            sides = trial.compared([{name: own} for own in _every(value)], wanted, name)
            error = trial.relative_error(*sides)
            worst[name], of_launches[-1] = max(worst.get(name, 0.0), error), max(of_launches[-1], error)
            if name not in odd and (found := trial.no_number(*sides)):
                odd[name] = found
    apart = trial.rounding_error(program, dtype, every)
    answer: dict[str, Any] = {"errors": worst, "seconds": seconds, "odd": odd, "rounding_error": apart}
    answer["launches"] = of_launches
    if request["bench"]:
        answer["time"] = asdict(kernel.bench(given[0], made[0]))
    if request["trace"]:
        timeline = kernel.timeline()
        if rank == 0:
            options = {"ranks": ranks, "dims": dims, "dtype": dtype, "target": current_target(), "tables": tables}
            plan = compiler.plan(program, schedule, **options)
            measured = Measured(plan=plan, raw=timeline.spans, clock=timeline.clock)
            answer |= {"trace": measured_text(measured), "last": list(measured_events(measured.last))}
            if request["traces"] is not None:
                folder = Path(request["traces"])
                stragglers.save(folder, plan, of_spans(folder, plan, timeline.spans), tables=tables, programs=True)
    return answer


def _tune(request: Mapping[str, Any]) -> dict[str, Any]:
    """Time candidates and, if the file is that of an operator, its unfused implementation."""
    import torch.distributed as dist

    from tilelink import ops
    from tilelink.reference import trial
    from tilelink.tuning import here
    from tilelink.tuning.measure import measure, points_of
    from tilelink.tuning.prepare import prepare_shares

    module = compiler.load(request["file"])
    rank, dims, dtype = dist.get_rank(), request["dims"], request["dtype"]
    programs = [with_choices(module.program(one["program"]), request["choices"]) for one in request["candidates"]]
    candidates = [
        (program, compiler.parse(f"{program}\n{one['schedule']}").schedules[0])
        for program, one in zip(programs, request["candidates"], strict=True)
    ]
    program = candidates[0][0]
    drawn = trial.random_inputs(program, ranks=dist.get_world_size(), dims=dims, dtype=dtype, launches=1, seed=1)
    inputs = {name: value.cuda() for name, value in drawn[0][rank].items()}
    outputs = [t.name for t in program.tensors if t.is_result]
    operator = getattr(ops, Path(module.file).stem, None)
    others = {}
    if operator is not None and len(outputs) == 1 and not request["choices"]:
        flat = [value.flatten(0, -2) for value in inputs.values()]
        others = {"unfused": lambda _: {outputs[0]: operator(*flat, schedule="unfused")}}
    assert dist.group.WORLD is not None
    options = {"dims": dims, "dtype": dtype, "group": dist.group.WORLD}
    begin = time.perf_counter()
    reasons = prepare_shares(points_of(candidates, **options), dist.group.WORLD, seconds=request["compile_budget"])
    prepared = time.perf_counter()
    found = measure(candidates, inputs, **options, others=others)
    gpu, versions = here()
    return {
        "measured": [asdict(one) for one in found if one.label not in others],
        "unfused": next((one.seconds for one in found if one.label in others), None),
        "unprepared": reasons,
        "seconds": {"preparation": prepared - begin, "measuring": time.perf_counter() - prepared},
        "gpu": gpu,
        "versions": versions,
    }


def _calibrate(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the times to which a machine is fitted."""
    import torch.distributed as dist

    from tilelink.calibration.measure import measure

    assert dist.group.WORLD is not None
    return dict(measure(dist.group.WORLD, request["budget"]))


def _hunt(request: Mapping[str, Any]) -> dict[str, Any]:
    """Hunt in launches that are measured, all ranks in lock-step."""
    import torch.distributed as dist

    from tilelink.cli.hunt import base_of, strategy_named, tables_of
    from tilelink.hunt import as_json, hunt, markdown, text
    from tilelink.hunt.measured import Measured, prepare_ahead, shared_clock
    from tilelink.hunt.targets import Target, subjects_of
    from tilelink.runtime.cuda.timing import Sampler

    assert dist.group.WORLD is not None
    sampler, options = Sampler(dist.group.WORLD), request["options"]
    target = Target.of_json(request["target"])
    subjects = [Measured(of=one, sampler=sampler) for one in subjects_of(target, base_of, tables_of)]
    by = strategy_named(request["strategy"])
    begin = time.perf_counter()
    ahead = prepare_ahead(subjects, by, options["points"] or 0, options["seed"], request["compile_budget"])
    prepared = time.perf_counter()
    found = hunt(subjects, by, **options, clock=shared_clock)
    took = {"kernels": ahead, "preparing": prepared - begin, "hunting": time.perf_counter() - prepared}
    said = f"{text(found)}\n{ahead} kernels compiled ahead in {took['preparing']:.0f} s"
    told = markdown(found, "What a hunt found")
    return {"report": {**as_json(found), "seconds": took}, "text": said, "markdown": told}


def _every(value: Any) -> list[Any]:
    """Return an output of all ranks, on the CPU. Collective."""
    import torch.distributed as dist

    every = value.new_empty((dist.get_world_size(), *value.shape))
    dist.all_gather_into_tensor(every, value.contiguous())
    return list(every.cpu())


def _probe(request: Mapping[str, Any]) -> dict[str, Any]:
    """Send a signal and 1 MiB from every rank to every other, by copy engine and by programs."""
    import torch
    import torch.distributed as dist

    module = compiler.parse(PROBE, "<probe>")
    ranks, rank = dist.get_world_size(), dist.get_rank()
    pairs: list[dict[str, Any]] = []
    for schedule in module.schedules:
        for distance in range(1, ranks):
            dims = {"M": PROBE_ELEMENTS, "d": distance}
            kernel = compiler.compile(
                module.program(), schedule, dims=dims, dtype="bf16", device="cuda", deadline_s=request["deadline"]
            )
            x = torch.full((PROBE_ELEMENTS,), float(rank), dtype=torch.bfloat16, device="cuda")
            for _ in range(3):
                begin = time.perf_counter()
                y = kernel({"x": x})["y"]
                micros = (time.perf_counter() - begin) * 1e6
            right = bool(torch.eq(y, (rank - distance) % ranks).all())
            found = torch.tensor([micros, float(right)], device="cuda")
            every = torch.zeros(ranks, 2, device="cuda")
            dist.all_gather_into_tensor(every, found)
            for receiver, (took, good) in enumerate(every.tolist()):
                sender = (receiver - distance) % ranks
                pairs.append({"from": sender, "to": receiver, "by": schedule.name, "us": took, "right": bool(good)})
    return {"pairs": pairs}


if __name__ == "__main__":
    status = main(sys.argv[1], sys.argv[2])
    sys.stderr.flush()
    os._exit(status)  # an orderly shutdown of a failed rank would wait for the other ranks
