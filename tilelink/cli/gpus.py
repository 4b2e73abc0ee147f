"""Requests of the command line that need GPUs: torchrun starts `tilelink.cli.rank` in a process for each GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilelink.data import read_json
from tilelink.errors import RankError
from tilelink.settings import environment

if TYPE_CHECKING:
    from tilelink.simulator.machine import Machine

PATIENCE_S = 120.0
"""Seconds beyond its deadlines after which a run is ended; they cover process starts and the compilation of kernels."""
FAILED = "=== rank failed ===\n"
"""Marks the start of the error message of a failed rank on its standard error."""
ENDING_S = 40.0
"""Seconds that the launcher may take to end its ranks; it kills a rank after 30."""
NO_MULTICAST = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1"}
"""Environment that disables NVLink multicast, which no launch uses."""


def on_gpus(
    request: Mapping[str, Any], ranks: int, deadline_s: float = 0.0, *, work_s: float = 0.0,
    hint: str = "give it a --deadline: then the wait that is stuck is named",
) -> dict[str, Any]:  # fmt: skip
    """Run a request on `ranks` GPUs of this machine, and return rank 0's answer.

    deadline_s: deadline of one wait. work_s: seconds that the request may take in addition to the limit of every run.
    Raises RankError if there are fewer GPUs, if a rank fails (with its message), or if time runs out (with `hint`).
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
            hint = "the text is of the rank that failed first; CPU ranks run the same kernels, with --device cpu"
            raise RankError("a rank failed", details=_first_failure(done.stderr), hint=hint)
        return read_json(answer)


def _ended(command: list[str], seconds: float) -> subprocess.CompletedProcess[str]:
    """Run a launcher of ranks. After `seconds` end the ranks and raise subprocess.TimeoutExpired."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as launcher:
        try:
            out, error = launcher.communicate(timeout=seconds)
        except BaseException:
            launcher.terminate()  # on SIGTERM torchrun ends its ranks; killed, it would leave them running
            try:
                launcher.communicate(timeout=ENDING_S)
            except subprocess.TimeoutExpired:
                launcher.kill()
            raise
    return subprocess.CompletedProcess(command, launcher.returncode, out, error)


def require_gpus(ranks: int, hint: str = "use --device cpu: the same kernels run in Triton's interpreter") -> None:
    """Raise RankError, with a hint for machines without any GPU, unless this machine has a GPU for each rank."""
    import torch

    if (found := torch.cuda.device_count()) < ranks:
        hint = f"use --ranks {found}" if found else hint
        raise RankError(f"{ranks} ranks need {ranks} GPUs, and there are {found}", hint=hint)


def machine_here(ranks: int) -> Machine | None:
    """Return the shipped description of this machine's GPUs, or None. Raises RankError as `require_gpus` does."""
    require_gpus(ranks)
    import torch

    from tilelink.ops.predict import machine_of

    return machine_of(torch.cuda.get_device_name())


def _first_failure(text: str) -> str:
    """Return the message of the first failed rank, from the standard error of the ranks and their launcher."""
    begin = text.find(FAILED)
    return text[begin + len(FAILED) :].split(FAILED)[0].strip() if begin >= 0 else text[-2000:]
