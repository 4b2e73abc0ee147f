"""What the tests of processes share: a log in shared memory, and what the machine has running."""

import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from tilelink.device import monitor
from tilelink.runtime.cpu.arena import Arena


class Log:
    """Timed entries of each process, in shared memory: `note` in the process's process, `entries` in the parent."""

    def __init__(self, processes: int, length: int = 64) -> None:
        arena = Arena(processes * length * 24 + processes * 128)
        self._entries = arena.allocate((processes, length, 3), torch.int64)
        self._next = [0] * processes

    def note(self, process: int, what: int, epoch: int) -> None:
        self._entries[process, self._next[process]] = torch.tensor([time.monotonic_ns(), what, epoch])
        self._next[process] += 1

    def entries(self) -> list["Entry"]:
        rows = [(process, row) for process, rows in enumerate(self._entries.tolist()) for row in rows if row[0]]
        return [Entry(process=process, moment=row[0], what=row[1], epoch=row[2]) for process, row in rows]


@dataclass(frozen=True, kw_only=True)
class Entry:
    process: int
    moment: int
    what: int
    epoch: int


def moments(entries: list[Entry], **which: int) -> list[int]:
    """When the entries with these fields were made; at least one has to be there."""
    found = [one.moment for one in entries if all(getattr(one, name) == value for name, value in which.items())]
    assert found, which
    return found


def wait_for(counter: torch.Tensor, expected: int, *, stage: int, tile: int, channel: int) -> None:
    """Waits as a kernel does."""
    monitor.record("wait", stage, tile, channel, expected)
    while (seen := int(counter[channel])) < expected:
        monitor.poll(channel=channel, seen=seen, expected=expected, stage=stage, tile=tile)


def children(parent: int | None = None) -> list[int]:
    """The processes whose parent is `parent` (default: this one), zombies included."""
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [pid for pid in pids if (found := _status(pid)) and int(found[1]) == (parent or os.getpid())]


def alive(pid: int) -> bool:
    """Whether the process exists and is not a zombie."""
    found = _status(pid)
    return found is not None and found[0] != "Z"


def _status(pid: int) -> list[str] | None:
    """State, parent and so on; None if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def ends_of(imports: str, *ways: str) -> list[tuple[str, str]]:
    """Return (stdout, stderr) of a process for each way to go on after imports, as it ends by itself.

    They are forks of one process: imports take longer than all else.
    """
    forked = f"""{imports}
import os, sys
for number, way in enumerate({ways!r}):
    if not os.fork():
        for descriptor in (1, 2):
            os.dup2(os.open(f"{{sys.argv[1]}}/{{number}}_{{descriptor}}", os.O_CREAT | os.O_WRONLY), descriptor)
        exec(way)
        break
    assert os.wait()[1] == 0
else:
    os._exit(0)
"""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-c", forked, folder], check=True, capture_output=True)
        texts = [[(Path(folder) / f"{number}_{one}").read_text() for one in (1, 2)] for number in range(len(ways))]
    return [(out, err) for out, err in texts]
