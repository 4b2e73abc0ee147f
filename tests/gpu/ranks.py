"""Ranks of tests on GPUs: starting them, and what each of them does."""

import os
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


def torchrun(gpus: int, *what: str) -> subprocess.CompletedProcess[str]:
    """Runs a script or `-m MODULE` with its arguments on each of so many GPUs; fails where a rank does."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={gpus}", *what]
    limited = ["timeout", "-s", "KILL", str(LIMIT_S), *command]
    done = subprocess.run(limited, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-6000:]}"
    return done


def run_scenarios(functions: Mapping[str, Any], names: Sequence[str]) -> None:
    """One rank: calls the functions of these names, all ranks together, and leaves; status 0 if all is well."""
    rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
    status = 0
    try:
        for name in names:
            torch.manual_seed(rank)
            begin = time.monotonic()
            functions[name]()
            torch.cuda.synchronize()
            dist.barrier(device_ids=[rank])
            if rank == 0:
                print(f"{name}: {time.monotonic() - begin:.1f} s", flush=True)
    except Exception:
        print(f"rank {rank}:\n{traceback.format_exc()}", file=sys.stderr, flush=True)
        status = 1
    sys.stdout.flush()
    os._exit(status)  # a rank that failed must not wait for the others in an orderly shutdown
