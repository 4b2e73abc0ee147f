"""Runs files of tests where kernels are interpreted: Triton decides that when it is imported."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tilelink import settings

FOLDER = Path(__file__).parent


@pytest.mark.slow
@pytest.mark.parametrize("name", ["device_interpreted", "processes_interpreted"])
def test_interpreted(name: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", FOLDER / f"{name}.py"]
    with settings.environment(TRITON_INTERPRET="1"):
        run = subprocess.run(
            command, cwd=FOLDER.parents[1], env=os.environ.copy(), capture_output=True, text=True, timeout=240
        )
    assert run.returncode == 0, run.stdout + run.stderr
