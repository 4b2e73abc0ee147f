"""The cases of `sanitized.py` under compute-sanitizer, and what its reports mean. Needs no pytest.

    python -m tests.gpu.sanitizer --ranks 2 [--tools memcheck racecheck] --out FOLDER

runs them once without a tool, which compiles everything and says whether the cases are right at all, then under each
tool, a sanitizer around each rank, and prints a line about each run. FOLDER keeps the reports.

What the tools see:

* memcheck: accesses outside of an allocation, and misaligned ones. The caching allocator is off
  (PYTORCH_NO_CUDA_MEMORY_CACHING), so every tensor is an allocation. Symmetric tensors and counters of a program are
  one allocation, its heap: an access that leaves one of them and stays in the heap is not seen.
* racecheck: hazards in *shared memory* between threads of one program, of its `error` level: what one thread writes
  and another reads or writes without a barrier. It sees nothing of global memory, hence nothing of waits and notifies
  between programs and ranks: those are the verifier's and the PTX tests' business.

What is not looked at, or not held against the kernels:

* Launches in CUDA graphs, and the small kernel that takes turns there: with a deadline nothing is captured.
* Kernels of NCCL are excluded: some read whole words where a tensor ends inside one (pytorch#132640).
* Errors of calls to CUDA's interface are not reported: torch and NCCL try what a machine can do by calls that may fail.
* An access "out of bounds" inside a peer's heap, which this process has mapped: a tool need not know memory imported
  from another process. A run with such reports is no proof, and is called doubtful.
* Hazards of which both accesses are at the lines of `gl.warp_specialize` and of the head of its kernel: those are
  Triton's own, which tells warps by a byte in shared memory, between barriers, what they have to do. They are counted
  as doubts. What the warps do has lines of its own.
* A wait that is late under a tool, in a case that is good without one: a tool may run kernels of different streams one
  after the other, and then a program that another stream waits for does not run. Such a case is not judged.
* A tool that refuses the machine ("Device not supported").
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.gpu.ranks import ROOT
from tilelink.settings import settings

TOOLS = ("memcheck", "racecheck")
FOUND = 9
"""The status of a sanitizer that found something."""
LIMIT_S = 420
GRACE_S = 60
"""Seconds that ranks have to end after the first one did."""

ADDRESS = re.compile(r"(?:Access(?: at| to)?|Address) (0x[0-9a-f]+)")
PLACE = re.compile(r"access at \w+\+0x[0-9a-f]+ in (\S+\.py):(\d+)")
HANDING = re.compile(r"\s*gl\.warp_specialize\(|def \w+\(")
SUMMARY = re.compile(r"ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: \d+ hazards? displayed \((\d+) error")
REPORT = re.compile(r"Invalid |Misaligned |Race reported|hazard|Barrier error|Program hit|Error:|Exception")
SHOWN = 12


def found_sanitizer() -> str | None:
    """Where compute-sanitizer is, if it is installed."""
    places = [shutil.which("compute-sanitizer"), "/usr/local/cuda/bin/compute-sanitizer"]
    return next((place for place in places if place and os.access(place, os.X_OK)), None)


def options(tool: str, folder: Path) -> list[str]:
    """The sanitizer's options around one rank; it finds the rank's number in the environment."""
    common = [
        "--tool", tool, "--error-exitcode", str(FOUND), "--check-exit-code", "no", "--print-limit", "200",
        "--target-processes", "application-only", "--launch-timeout", "300", "--max-connections", "64",
        "--kernel-name-exclude", "kernel_substring=nccl", "--num-callers-host", "4",
        "--log-file", f"{folder}/{tool}.%q{{LOCAL_RANK}}.log",
    ]  # fmt: skip
    own = {
        "memcheck": ["--report-api-errors", "no", "--destroy-on-device-error", "kernel"],
        "racecheck": ["--racecheck-detect-level", "error"],
    }
    return [*common, *own[tool]]


# Running -----------------------------------------------------------------------------------------------------


def run(tool: str | None, ranks: int, folder: Path, limit_s: int = LIMIT_S) -> list[int]:
    """Runs the cases on so many GPUs under a tool, or without one. Returns the ranks' statuses; never hangs."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("said.*.json"):
        old.unlink()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    before = [str(found_sanitizer()), *options(tool, folder)] if tool else []
    line = ["timeout", "-s", "KILL", str(limit_s + GRACE_S), *before, sys.executable, "-m", "tests.gpu.sanitized"]
    line += [str(folder), str(limit_s)]
    started: list[subprocess.Popen[bytes]] = []
    for rank in range(ranks):
        own = _environment(rank, ranks, port)
        with (folder / f"{tool or 'plain'}.{rank}.said").open("wb") as said:
            one = subprocess.Popen(
                line, cwd=ROOT, env=own, stdout=said, stderr=subprocess.STDOUT, start_new_session=True
            )  # fmt: skip
        started.append(one)
    return ended(started, limit_s)


def _environment(rank: int, ranks: int, port: int) -> dict[str, str]:
    """Of one rank, without what makes segments grow: then memcheck reports bulk copies falsely (pytorch#196209)."""
    kept = {k: v for k, v in os.environ.items() if k not in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")}
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return kept | {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "PYTHONPATH": path, "PYTHONUNBUFFERED": "1",
        "PYTORCH_NO_CUDA_MEMORY_CACHING": "1", "TORCH_NCCL_ENABLE_MONITORING": "0",
    }  # fmt: skip


def ended(started: Sequence[subprocess.Popen[bytes]], limit_s: float) -> list[int]:
    """The statuses of processes. Those that are late, or long after the first one, are killed with their children."""
    last = time.monotonic() + limit_s + GRACE_S
    while any(one.poll() is None for one in started) and time.monotonic() < last:
        if any(one.poll() is not None for one in started):
            last = min(last, time.monotonic() + GRACE_S)
        time.sleep(0.2)
    for one in started:
        if one.poll() is None:
            os.killpg(one.pid, signal.SIGKILL)
    return [one.wait() for one in started]


# Judging -----------------------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class Verdict:
    """problems: what is wrong. doubts: why a run without problems proves less than it should."""

    problems: list[str] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        if self.problems:
            return "wrong: " + "\n".join(self.problems)
        return "doubtful: " + "\n".join(self.doubts) if self.doubts else "good"


def judge(tool: str | None, ranks: int, folder: Path, statuses: Sequence[int]) -> Verdict:
    """What a run showed, by the files that it left."""
    verdict = Verdict()
    for rank in range(ranks):
        log = folder / f"{tool}.{rank}.log"
        text = log.read_text(errors="replace") if tool and log.is_file() else ""
        if "Device not supported" in text:
            return Verdict(doubts=["the sanitizer does not support this device"])
        path = folder / f"said.{rank}.json"
        said: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
        _judge_cases(verdict, rank, said, bool(tool), statuses[rank])
        if tool:
            _judge_report(verdict, rank, text, [(int(a), int(b)) for a, b in said.get("peers", [])])
    return verdict


def _judge_cases(verdict: Verdict, rank: int, said: Mapping[str, Any], under_tool: bool, status: int) -> None:
    became: dict[str, str] = said.get("became", {})
    for label, text in became.items():
        if text.startswith("late: ") and under_tool:
            verdict.doubts.append(f"rank {rank}: {label} is not judged: {text}")
        elif text != "good":
            verdict.problems.append(f"rank {rank}: {label}: {text}")
    if said.get("ended") and not became:
        verdict.problems.append(f"rank {rank} ran no case")
    if not said.get("ended"):
        last = list(became)[-1] if became else "nothing"
        verdict.problems.append(f"rank {rank} ended with status {status} after {last}")
    elif status not in (0, FOUND):
        verdict.problems.append(f"rank {rank} ended with status {status}")


def _judge_report(verdict: Verdict, rank: int, text: str, peers: Sequence[tuple[int, int]]) -> None:
    summary = SUMMARY.search(text)
    if summary is None:
        verdict.problems.append(f"rank {rank}: the sanitizer wrote no summary; it ends with {text[-SHOWN * 40 :]!r}")
        return
    reports = blocks(text)
    imported = [one for one in reports if _inside(one, peers)]
    handing = [one for one in reports if _hands_work(one)]
    count = int(summary.group(1) or summary.group(2)) - len(imported) - len(handing)
    if count > 0:
        others = [one for one in reports if one not in imported + handing]
        verdict.problems.append(f"rank {rank}: {count} reports; the first:\n{others[0] if others else text[-2000:]}")
    if handing:
        verdict.doubts.append(f"rank {rank}: {len(handing)} reports about how Triton tells warps what to do")
    if imported:
        verdict.doubts.append(f"rank {rank}: {len(imported)} reports about memory imported from a peer")


def blocks(text: str) -> list[str]:
    """The reports of a log: lines between empty ones."""
    found: list[list[str]] = [[]]
    for line in text.splitlines():
        bare = line.removeprefix("=========").strip()
        if bare:
            found[-1].append(bare)
        elif found[-1]:
            found.append([])
    joined = ["\n".join(lines[:SHOWN]) for lines in found if lines]
    return [one for one in joined if REPORT.search(one)]


def _hands_work(report: str) -> bool:
    """Whether all accesses of a report are at lines of generated kernels by which Triton hands work to warps."""
    places = PLACE.findall(report)
    return bool(places) and all(HANDING.match(_line(name, int(number))) for name, number in places)


def _line(module: str, number: int) -> str:
    """A line of a generated module that has `gl.warp_specialize`, else ""."""
    path = settings().cache / "sources" / Path(module).name
    text = path.read_text() if path.is_file() else ""
    lines = text.splitlines() if "gl.warp_specialize(" in text else []
    return lines[number - 1] if 0 < number <= len(lines) else ""


def _inside(report: str, peers: Sequence[tuple[int, int]]) -> bool:
    address = ADDRESS.search(report)
    return address is not None and any(low <= int(address.group(1), 16) < high for low, high in peers)


# By hand -----------------------------------------------------------------------------------------------------


def check(tool: str | None, ranks: int, folder: Path, limit_s: int = LIMIT_S) -> Verdict:
    """Runs the cases and judges the run."""
    return judge(tool, ranks, folder, run(tool, ranks, folder, limit_s))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--tools", nargs="+", choices=TOOLS, default=TOOLS)
    parser.add_argument("--seconds", type=int, default=LIMIT_S, help="of each run")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args(arguments)
    if found_sanitizer() is None:
        parser.error("there is no compute-sanitizer")
    bad = False
    for tool in (None, *given.tools):
        begin = time.monotonic()
        verdict = check(tool, given.ranks, given.out, given.seconds)
        print(f"{tool or 'no tool'}, {time.monotonic() - begin:.0f} s: {verdict}", flush=True)
        bad = bad or bool(verdict.problems)
        if bad and tool is None:
            break  # what a tool says of wrong cases means little
    return int(bad)


if __name__ == "__main__":
    sys.exit(main())
