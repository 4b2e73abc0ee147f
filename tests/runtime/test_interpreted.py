"""Runs files of tests where kernels are interpreted: Triton decides that when it is imported."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tilelink import settings

FOLDER = Path(__file__).parent
FILES = [FOLDER / "device_interpreted.py", FOLDER / "processes_interpreted.py"]


@pytest.mark.slow
def test_interpreted() -> None:
    """All files in one process, which takes long to start."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *FILES]
    with settings.environment(TRITON_INTERPRET="1"):
        run = subprocess.run(
            command, cwd=FOLDER.parents[1], env=os.environ.copy(), capture_output=True, text=True, timeout=240
        )
    assert run.returncode == 0, run.stdout + run.stderr
