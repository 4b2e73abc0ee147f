"""Runs lanes_interpreted.py where kernels are interpreted: Triton decides that when it is imported."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tilelink import settings

FILE = Path(__file__).with_name("lanes_interpreted.py")


@pytest.mark.slow
def test_interpreted() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", str(FILE)]
    with settings.environment(TRITON_INTERPRET="1"):
        run = subprocess.run(
            command, cwd=FILE.parents[2], env=os.environ.copy(), capture_output=True, text=True, timeout=120
        )
    assert run.returncode == 0, run.stdout + run.stderr
