"""Requests of the command line that need GPUs: `tilelink.cli.rank` in a process for each, started by torchrun."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tilelink.data import read_json
from tilelink.errors import RankError
from tilelink.settings import environment

PATIENCE_S = 120.0
"""Seconds beyond its deadlines after which a run is ended: processes start, and kernels are compiled."""
FAILED = "=== rank failed ===\n"
"""Stands before what a rank that fails writes to its standard error."""
ENDING_S = 40.0
"""Seconds that the launcher of ranks may take to end them; it gives each rank 30 before it kills it."""
NO_MULTICAST = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1"}
"""No launch uses NVLink multicast."""


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
        command += ["-m", "tilelink.cli.rank", str(question), str(answer)]
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
    """The message of the first rank that failed, out of the standard error of the ranks and their launcher."""
    begin = text.find(FAILED)
    return text[begin + len(FAILED) :].split(FAILED)[0].strip() if begin >= 0 else text[-2000:]
