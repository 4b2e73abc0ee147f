"""Ranks of torch.distributed for a test, two or more, forked by one process that has imported everything before."""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import IO, NoReturn

ROOT = Path(__file__).parents[2]
MODULES = (
    "tests.unit.ops_scenarios", "tests.unit.op_scenarios", "tests.unit.experts_scenarios", "tests.parallel.scenarios",
)  # fmt: skip
FURTHER = ("torch._inductor.lowering", "torch.distributed.tensor.experimental")
"""What torch imports where it first traces operators, which takes as long as many a scenario."""
RANKS = 2
SECONDS = 240


def run_on_two_ranks(module: str, arguments: Sequence[str]) -> None:
    run_on_ranks(module, arguments, RANKS)


def run_on_ranks(module: str, arguments: Sequence[str], ranks: int) -> None:
    """New ranks call `run(arguments)` of a module, which ends the process; fails where a rank does."""
    starter = _starter()
    assert starter.stdin is not None and starter.stdout is not None
    starter.stdin.write(json.dumps([module, list(arguments), ranks]) + "\n")
    starter.stdin.flush()
    statuses, said = json.loads(starter.stdout.readline())
    assert statuses == [0] * ranks, said[-6000:]


@cache
def _starter() -> subprocess.Popen[str]:
    """The process that forks ranks; it ends with its input, and so with this process."""
    command = [sys.executable, "-W", "error::DeprecationWarning:tilelink", "-m", __name__]
    started = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    atexit.register(started.communicate)
    return started


def _serve() -> None:
    """Answers each line of the input with the exit statuses of ranks and what they said."""
    _import()
    for line in sys.stdin:
        module, arguments, count = json.loads(line)
        with tempfile.TemporaryFile("w+", errors="replace") as said:
            port = str(free_port())
            ranks = [_fork((rank, count), port, module, arguments, said) for rank in range(count)]
            statuses = [os.waitstatus_to_exitcode(os.waitpid(rank, 0)[1]) for rank in ranks]
            said.seek(0)
            print(json.dumps([statuses, said.read()]), flush=True)


def _import() -> None:
    """Import and read once, for all ranks, the scenarios, all that traces a function, and the library."""
    import torch

    from tilelink import compiler

    for module in (*MODULES, *FURTHER):
        importlib.import_module(module)
    torch.compile(lambda x: x + 1, backend="aot_eager")(torch.ones(1))
    torch.compiler.reset()
    compiler.library()
    gc.freeze()  # ranks look for no garbage in what is there, and copy no pages of it
    gc.set_threshold(10_000)


def _fork(rank: tuple[int, int], port: str, module: str, arguments: list[str], said: IO[str]) -> int:
    child = os.fork()
    if child == 0:
        _be_rank(rank, port, module, arguments, said)
    return child


def _be_rank(place: tuple[int, int], port: str, module: str, arguments: list[str], said: IO[str]) -> NoReturn:
    rank, ranks = place
    try:
        signal.alarm(SECONDS)
        os.dup2(os.open(os.devnull, os.O_RDWR), 1)  # the answers are the starter's
        os.dup2(said.fileno(), 2)
        os.environ.update(WORLD_SIZE=str(ranks), RANK=str(rank), LOCAL_RANK=str(rank))
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
        importlib.import_module(module).run(arguments)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(1)  # what ends well has left by itself


def free_port() -> int:
    """A port below those that the system gives to connections: one of these might take it before rank 0 listens."""
    while True:
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", random.randrange(10_000, 32_000)))
            return probe.getsockname()[1]


if __name__ == "__main__":
    _serve()
