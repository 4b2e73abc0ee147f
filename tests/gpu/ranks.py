"""Ranks of tests on GPUs: starting them, and what each of them does."""

import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

ROOT = Path(__file__).parents[2]
LIMIT_S = 240
"""Seconds that a scenario may take if nobody says otherwise."""
START_S = 45
"""Seconds more in which ranks start, and in which those end that found a failure."""


def command(gpus: int, *what: str, limit_s: int = LIMIT_S) -> list[str]:
    """The command line that runs a script or `-m MODULE` on each of so many GPUs, and is killed after its limit."""
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={gpus}", *what]
    return ["timeout", "-s", "KILL", str(limit_s + START_S), *run]


def torchrun(gpus: int, *what: str, limit_s: int = LIMIT_S) -> subprocess.CompletedProcess[str]:
    """Runs a script or `-m MODULE` with its arguments on each of so many GPUs; fails where a rank does."""
    limited = command(gpus, *what, limit_s=limit_s)
    done = subprocess.run(limited, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-6000:]}"
    return done


def join(limit_s: int) -> int:
    """Makes this process a rank that lives no longer than so many seconds; returns its number.

    Where there are more ranks than GPUs, they share them in turn.

    The alarm is not Python's: it ends a rank that waits inside CUDA too, and one whose launcher was killed.
    """
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(limit_s)
    rank, local = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // local))
    gpu = rank % torch.cuda.device_count()
    torch.cuda.set_device(gpu)
    if local > torch.cuda.device_count():  # NCCL takes one rank a GPU, and so does torch if nobody asks for more
        os.environ.setdefault("TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES", "1")
        dist.init_process_group("cpu:gloo,cuda:gloo")
    else:
        dist.init_process_group("nccl", device_id=torch.device("cuda", gpu))
    return rank


def run_scenarios(functions: Mapping[str, Any], names: Sequence[str], limit_s: int) -> None:
    """One rank: calls the functions of these names, all ranks together, and leaves; status 0 if all is well."""
    rank = join(limit_s)
    status, seconds = 0, dict[str, float]()
    for name in names:
        torch.manual_seed(rank)
        begin = time.monotonic()
        try:
            functions[name]()
            torch.cuda.synchronize()
            dist.barrier(device_ids=[torch.cuda.current_device()])
        except Exception as error:
            print(f"rank {rank}, {name}:\n{traceback.format_exc()}", file=sys.stderr, flush=True)
            status = 1
            if not getattr(error, "agreed", False):
                break  # the other ranks do not know
        seconds[name] = time.monotonic() - begin
    if rank == 0:
        print("".join(f"{name:24} {spent:6.1f} s\n" for name, spent in seconds.items()), end="", flush=True)
    sys.stdout.flush()
    os._exit(status)  # a rank that failed must not wait for the others in an orderly shutdown
