"""A script on ranks that are forked: as torchrun starts it, without the seconds in which each rank imports torch."""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path


def run(arguments: Sequence[str]) -> None:
    """Runs a script in its folder, and ends the process."""
    (script,) = map(Path, arguments)
    os.chdir(script.parent)
    sys.argv[:] = [str(script)]
    runpy.run_path(str(script), run_name="__main__")
    os._exit(0)
