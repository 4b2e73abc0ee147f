# pyright: basic
"""What the command line does on GPUs: a process for each rank, started as torchrun starts them.

`python -m tilelink.cli_gpu REQUEST ANSWER` is such a process: it reads a JSON file and rank 0 writes another.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tilelink import compiler
from tilelink.data import read_json
from tilelink.errors import RankError, TileLinkError
from tilelink.schedule.simulate.measured import Measured, measured_text
from tilelink.settings import environment, variable

PATIENCE_S = 120.0
"""Seconds beyond its deadlines after which a run is ended: processes start, and kernels are compiled."""
ENDING_S = 40.0
"""Seconds that the launcher of ranks may take to end them; it gives each rank 30 before it kills it."""
NO_MULTICAST = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1"}
"""No launch uses NVLink multicast."""

PROBE = """
program probe(M, d: i32):
    x : in [M]
    y : out symmetric [M]

    comm send(i: M):
        tile_push_data(y[i] @ (rank + d), x[i])
        producer_tile_notify(y[i] @ (rank + d))

schedule copy_engine for probe:
    send on copy_engine, tile(i=1048576)
    y channel(i=1048576)

schedule sm for probe:
    send on sm(8), tile(i=4096)
    y channel(i=1048576)
"""
MEETING_CYCLES = 20_000_000
"""About 10 ms, in which every host issues a launch."""
PROBE_ELEMENTS = 2**19
"""Of bf16: 1 MiB to each peer."""


def on_gpus(
    request: Mapping[str, Any], ranks: int, deadline_s: float = 0.0, *, work_s: float = 0.0,
    hint: str = "give it a --deadline: then the wait that is stuck is named",
) -> dict[str, Any]:  # fmt: skip
    """Runs a request on `ranks` GPUs of this machine and returns rank 0's answer.

    deadline_s: of one wait; work_s: seconds that the request may take beyond what every run takes.
    Raises RankError if there are fewer GPUs, with the traceback of a rank that failed, or with `hint` if it is longer.
    """
    require_gpus(ranks)
    with tempfile.TemporaryDirectory() as folder:
        question, answer = Path(folder, "request.json"), Path(folder, "answer.json")
        question.write_text(json.dumps(dict(request)), encoding="utf-8")
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        command += ["-m", "tilelink.cli_gpu", str(question), str(answer)]
        path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
        try:
            with environment(**NO_MULTICAST, PYTHONPATH=path):
                done = _ended(command, PATIENCE_S + 3 * deadline_s + work_s)
        except subprocess.TimeoutExpired as error:
            raise RankError(f"the ranks did not end within {error.timeout:g} s", hint=hint) from error
        if done.returncode or not answer.exists():
            raise RankError("a rank failed", details=_first_failure(done.stderr))
        return read_json(answer)


def _ended(command: list[str], seconds: float) -> subprocess.CompletedProcess[str]:
    """Runs a launcher of ranks. Raises subprocess.TimeoutExpired after so many seconds, and ends the ranks then."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as launcher:
        try:
            out, error = launcher.communicate(timeout=seconds)
        except BaseException:
            launcher.terminate()  # torchrun then ends its ranks, which it would not do if it was killed
            try:
                launcher.communicate(timeout=ENDING_S)
            except subprocess.TimeoutExpired:
                launcher.kill()
            raise
    return subprocess.CompletedProcess(command, launcher.returncode, out, error)


def require_gpus(ranks: int, hint: str = "use --device cpu: the same kernels run in Triton's interpreter") -> None:
    """Raises RankError, with a hint for machines without any GPU, unless this machine has a GPU for each rank."""
    import torch

    if (found := torch.cuda.device_count()) < ranks:
        hint = f"use --ranks {found}" if found else hint
        raise RankError(f"{ranks} ranks need {ranks} GPUs, and there are {found}", hint=hint)


def _first_failure(text: str) -> str:
    """What the first rank that failed said, of all that the ranks and their launcher said."""
    begin = text.find(_MARK)
    return text[begin + len(_MARK) :].split(_MARK)[0].strip() if begin >= 0 else text[-2000:]


_MARK = "=== rank failed ===\n"


# A rank ------------------------------------------------------------------------------------------------------


def main(question: str, answer: str) -> int:
    """A rank: does what the request says. Returns its exit status."""
    import torch
    import torch.distributed as dist

    rank = int(variable("LOCAL_RANK") or 0)
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
    request = read_json(question)
    try:
        result = {"run": _run, "probe": _probe, "tune": _tune, "calibrate": _calibrate}[request["what"]](request)
        torch.cuda.synchronize()
        dist.barrier(device_ids=[rank])
        if rank == 0:
            Path(answer).write_text(json.dumps(result), encoding="utf-8")
    except Exception as error:
        said = f"rank {rank}: {error}" if isinstance(error, TileLinkError) else traceback.format_exc()
        print(f"{_MARK}{said}", file=sys.stderr, flush=True)
        return 1
    return 0


def _run(request: Mapping[str, Any]) -> dict[str, Any]:
    """Launches on random inputs, back to back: the largest error of every output, over ranks and launches."""
    import torch
    import torch.distributed as dist

    from tilelink.reference import trial
    from tilelink.runtime.cuda.device import current_target

    module = compiler.load(request["file"])
    program = module.program(request["program"])
    schedule = module.schedule(request["schedule"], program) if request["schedule"] else None
    ranks, rank, dims, dtype = dist.get_world_size(), dist.get_rank(), request["dims"], request["dtype"]
    tables = trial.random_tables(program, ranks=ranks, dims=dims, seed=request["seed"])
    kernel = compiler.compile(
        program, schedule, dims=dims, dtype=dtype, device="cuda", tables=tables, deadline_s=request["deadline"],
        trace=request["trace"],
    )  # fmt: skip
    inputs = trial.random_inputs(
        program, ranks=ranks, dims=dims, dtype=dtype, launches=request["launches"], seed=request["seed"]
    )
    given = [{name: value.cuda() for name, value in launch[rank].items()} for launch in inputs]
    outputs = [kernel.empty_outputs() for _ in given]  # memory is not asked for between launches
    torch.cuda.synchronize()
    dist.barrier(device_ids=[rank])
    begin = time.perf_counter()
    for one, out in zip(given, outputs, strict=True):
        if request["trace"]:
            _meet()
        kernel(one, out=out)
    torch.cuda.synchronize()
    seconds = time.perf_counter() - begin
    worst: dict[str, float] = {}
    odd: dict[str, str] = {}
    for launch, output in zip(inputs, outputs, strict=True):
        complete = [{**own, **{name: table[r] for name, table in tables.items()}} for r, own in enumerate(launch)]
        expected = compiler.reference(program, complete, dims=dims, dtype=dtype)
        for name, value in output.items():
            sides = _every(value), [own[name] for own in expected]
            worst[name] = max(worst.get(name, 0.0), trial.relative_error(*sides))
            if name not in odd and (found := trial.no_number(*sides)):
                odd[name] = found
    answer = {"errors": worst, "seconds": seconds, "odd": odd}
    if request["trace"]:
        timeline = kernel.timeline()
        if rank == 0:
            options = {"ranks": ranks, "dims": dims, "dtype": dtype, "target": current_target(), "tables": tables}
            plan = compiler.plan(program, schedule, **options)
            answer["trace"] = measured_text(Measured(plan=plan, raw=timeline.spans, clock=timeline.clock))
    return answer


def _meet() -> None:
    """Lets the GPUs begin what is issued next at the same time: each was waited for, so hosts do not go in step."""
    import torch
    import torch.distributed as dist

    every = torch.zeros(dist.get_world_size(), device="cuda")
    dist.all_gather_into_tensor(every, torch.zeros(1, device="cuda"))
    torch.cuda._sleep(MEETING_CYCLES)


def _tune(request: Mapping[str, Any]) -> dict[str, Any]:
    """Times candidates and, where the file stands for an operator, its unfused way."""
    import torch.distributed as dist

    from tilelink import ops
    from tilelink.reference import trial
    from tilelink.tuning import here
    from tilelink.tuning.measure import measure, points_of
    from tilelink.tuning.prepare import prepare_shares

    module = compiler.load(request["file"])
    rank, dims, dtype = dist.get_rank(), request["dims"], request["dtype"]
    candidates = [
        (
            module.program(one["program"]),
            compiler.parse(f"{module.program(one['program'])}\n{one['schedule']}").schedules[0],
        )
        for one in request["candidates"]
    ]
    program = candidates[0][0]
    drawn = trial.random_inputs(program, ranks=dist.get_world_size(), dims=dims, dtype=dtype, launches=1, seed=1)
    inputs = {name: value.cuda() for name, value in drawn[0][rank].items()}
    outputs = [t.name for t in program.tensors if t.space == "out"]
    operator = getattr(ops, Path(module.file).stem, None)
    others = {}
    if operator is not None and len(outputs) == 1:
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
    """The times that a machine is made of."""
    import torch.distributed as dist

    from tilelink.calibration.measure import measure

    assert dist.group.WORLD is not None
    return dict(measure(dist.group.WORLD, request["budget"]))


def _every(value: Any) -> list[Any]:
    """An output of all ranks."""
    import torch.distributed as dist

    every = value.new_empty((dist.get_world_size(), *value.shape))
    dist.all_gather_into_tensor(every, value.contiguous())
    return list(every.cpu())


def _probe(request: Mapping[str, Any]) -> dict[str, Any]:
    """A signal and 1 MiB from every rank to every other, by copy engine and by programs."""
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
    os._exit(status)  # a rank that failed must not wait for the others in an orderly shutdown
