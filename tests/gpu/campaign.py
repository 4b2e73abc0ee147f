"""All tests on GPUs by one command, without pytest.

    python -m tests.gpu.campaign --ranks 4 [--only NAME ...] [--programs NAME ...] --out FILE.json

starts each scenario by torchrun, prints a line about each, and goes on with the next one whatever happens. The first
compiles what the others launch; all share TILELINK_CACHE and Triton's cache.

    python -m tests.gpu.campaign --remote [--ways p2p tcp] [--ucx FOLDER] [--nodes N] [--only NAME ...] --out FILE.json

runs programs of several nodes with NVSHMEM in between, by pointers, and by UCX over TCP (remote.py). Each GPU is a
node, or N nodes have the GPUs in equal parts; ranks of a node need pointers, so that --nodes is for the way p2p.
NVSHMEM also starts with more ranks than GPUs: `--ranks 4` on two of them.
All scenarios of a way run in the same ranks, which takes a quarter of the time.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.gpu import remote
from tests.gpu.ranks import LIMIT_S, ROOT, command

LIMITS_S = {
    "prepared": 400, "programs": 480, "tails": 120, "skew": 120, "streams": 120, "repeats": 200, "graphs": 300,
    "deadlines": 240, "different_programs": 60, "timelines": 240, "contract": 300, "memory": 90, "same_inputs": 60,
    "views": 60, "overlaps": 60, "devices": 60, "priorities": 60, "threads": 60, "groups": 90, "absent": 120,
    "ops_numerics": 200, "ops_any_size": 150, "ops_gradients": 120, "ops_graphs": 60, "ops_compiled": 120,
    "ops_host_cost": 90, "ops_memory": 60, "ops_operands": 60, "ops_places": 60, "ops_groups": 60,
    "ops_own": 180, "ops_batches": 120, "launch_integers": 180, "exact": 120, "interleavings": 300, "overlapping": 200,
    "other_orders": 120, "ends": 300, "ops_beside": 60, "ops_decoding": 180,
    "ops_styles": 300, "ops_reduce_overhead": 120, "ops_experts": 240, "ops_attention": 240,
}  # fmt: skip
"""Seconds that a scenario may take, several times what it needs. A rank ends itself after them."""

TAIL = 4000
SAID = 300
KILLED = (-9, 137)
NOISE = re.compile(r"ChildFailedError|torch\.distributed|Traceback|torchrun|^\s*(File|raise|error_file|traceback) ")
TELLING = re.compile(r"\bfailed: |\w(Error|Exception|Interrupt)\b|CasesFailed|off by|not ready: |Killed|SIGALRM")


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a scenario went. error: the first line that says what was wrong, "" if nothing was. tail: of what it said."""

    name: str
    rc: int
    seconds: float
    limit_s: int
    error: str
    tail: str


def run_all(names: Sequence[str], run: Callable[[str], Outcome], out: Path | None) -> list[Outcome]:
    """Runs scenarios one after the other. Prints and writes each as soon as it is over."""
    outcomes: list[Outcome] = []
    print(f"{'scenario':20} {'rc':>4} {'s':>7}", flush=True)
    for name in names:
        outcomes.append(run(name))
        print(row(outcomes[-1]), flush=True)
        if out:
            out.write_text(json.dumps(summary(outcomes, len(names)), indent=1) + "\n")
    good = sum(one.rc == 0 for one in outcomes)
    print(f"{good} of {len(outcomes)} scenarios are good, {sum(one.seconds for one in outcomes):.0f} s", flush=True)
    return outcomes


def row(one: Outcome) -> str:
    return f"{one.name:20} {one.rc:4} {one.seconds:7.1f}  {one.error}".rstrip()


def summary(outcomes: Sequence[Outcome], planned: int) -> dict[str, object]:
    return {
        "planned": planned,
        "good": sum(one.rc == 0 for one in outcomes),
        "seconds": round(sum(one.seconds for one in outcomes), 1),
        "scenarios": [asdict(one) for one in outcomes],
    }


def outcome(name: str, limit_s: int, rc: int, seconds: float, said: str) -> Outcome:
    error = "" if rc == 0 else first_error(said)
    if rc in KILLED or "SIGALRM" in said or "Signal 14" in said:
        error = f"it outlived its {limit_s} s; {error}"
    return Outcome(
        name=name, rc=rc, seconds=round(seconds, 1), limit_s=limit_s, error=error, tail=said[-TAIL:] if rc else ""
    )


def first_error(said: str) -> str:
    """The first line that says what went wrong, else the last line."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    telling = [line for line in lines if TELLING.search(line) and not NOISE.search(line)]
    return (telling or lines[-1:] or ["it said nothing"])[0][:SAID]


def limit_of(scenario: str) -> int:
    """Seconds that a scenario may take, of one node or of several."""
    return (LIMITS_S | remote.LIMITS_S).get(scenario, LIMIT_S)


def launched(
    name: str, ranks: int, logs: Path, variables: Mapping[str, str] | None = None, scenarios: Sequence[str] = ()
) -> Outcome:
    """Runs a scenario, or several by a name for all of them, on so many GPUs. What they say is in logs/NAME.log."""
    names = scenarios or (name,)
    limit_s = sum(map(limit_of, names))
    log, begin = logs / f"{name}.log", time.monotonic()
    line = command(ranks, "-m", "tests.gpu.worker", *names, limit_s=limit_s)
    environment = {"PYTHONUNBUFFERED": "1", **os.environ, "PYTHONPATH": _path(), **(variables or {})}
    with log.open("w") as file:
        done = subprocess.run(line, cwd=ROOT, env=environment, stdout=file, stderr=subprocess.STDOUT, check=False)
    seconds = time.monotonic() - begin
    return outcome(name, limit_s, done.returncode, seconds, log.read_text(errors="replace"))


def _path() -> str:
    return os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])


def chosen(only: Sequence[str], among: Mapping[str, int] = LIMITS_S) -> list[str]:
    """The scenarios of these names, in their order; all for none. Raises ValueError for a name that there is not."""
    if unknown := sorted(set(only) - among.keys()):
        raise ValueError(f"no scenario {unknown[0]!r}; there are {', '.join(among)}")
    return [name for name in among if not only or name in only]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help=", ".join(LIMITS_S))
    parser.add_argument("--programs", nargs="+", metavar="NAME", help="of the library; all of them if left out")
    parser.add_argument("--logs", type=Path, help="a folder for what the scenarios say; a temporary one if left out")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--remote", action="store_true", help="programs of several nodes")
    parser.add_argument("--nodes", type=int, help="of --remote; a node for each GPU if left out")
    parser.add_argument("--ways", nargs="+", choices=remote.WAYS, default=list(remote.WAYS))
    parser.add_argument("--ucx", help="the folder of the wheel libucx-cu13, for tcp")
    given = parser.parse_args(arguments)
    try:
        names = chosen(given.only, remote.LIMITS_S if given.remote else LIMITS_S)
        by_way: dict[str, dict[str, str]] = {}
        if given.remote:
            by_way = {way: remote.environment(way, given.ucx, remote.scratch()) for way in given.ways}
    except (ValueError, FileNotFoundError) as error:
        parser.error(str(error))
    if given.nodes is not None:
        if not given.remote or given.nodes < 1 or given.ranks % given.nodes:
            parser.error(f"--nodes divides --ranks, {given.ranks}, and is for --remote")
        if "tcp" in given.ways and given.nodes != given.ranks:
            parser.error("ranks of a node need pointers, which the way tcp does not have: --ways p2p")
        os.environ["TILELINK_TEST_NODES"] = str(given.nodes)
    if given.programs:
        os.environ["TILELINK_TEST_PROGRAMS"] = " ".join(given.programs)
    logs = given.logs or Path(tempfile.mkdtemp(prefix="tilelink-gpu-"))
    logs.mkdir(parents=True, exist_ok=True)

    def run(name: str) -> Outcome:
        of_a_way = (by_way[name], names) if given.remote else (None, ())
        return launched(name, given.ranks, logs, *of_a_way)

    outcomes = run_all(list(by_way) or names, run, given.out)
    return int(any(one.rc for one in outcomes))


if __name__ == "__main__":
    sys.exit(main())
