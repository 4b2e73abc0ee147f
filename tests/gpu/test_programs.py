"""Every program and schedule of the library on GPUs, in all the ways in which launches may meet."""

import subprocess
import sys
from pathlib import Path

import pytest

SCENARIOS = ("programs", "skew", "streams", "graphs", "deadlines", "different_programs", "timelines")
LIMIT_S = 240


def run(scenario: str, gpus: int) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={gpus}"]
    command += ["-m", "tests.gpu.worker", scenario]
    done = subprocess.run(
        ["timeout", "-s", "KILL", str(LIMIT_S), *command],
        cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-6000:]}"


@pytest.mark.gpus2
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_on_two_gpus(scenario: str) -> None:
    run(scenario, 2)


@pytest.mark.gpus4
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_on_four_gpus(scenario: str) -> None:
    run(scenario, 4)


@pytest.mark.gpus8
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_on_eight_gpus(scenario: str) -> None:
    run(scenario, 8)
