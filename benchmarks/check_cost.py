"""What `tilelink check` costs, at sizes of models and of the library: processor time and megabytes, start-up included.

python benchmarks/check_cost.py [--only WORD] [--gigabytes 9] [--seconds 300] [OUT.json]

First without a kept proof, then again with that of the first time.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FILE = str(Path(__file__).with_suffix(".tl"))
PROGRAMS = Path(__file__).parents[1] / "tilelink" / "programs"
SM90 = ("--target", "sm_90", "--dtype", "bf16")


@dataclass(frozen=True, kw_only=True)
class Case:
    """A check of one program. file: a file, or the program's name in the library.

    schedule: one of its schedules; "" for all schedules of all programs of the file, each on its own target.
    """

    program: str
    ranks: int
    sizes: str
    schedule: str = "gpu"
    file: str = FILE

    @property
    def name(self) -> str:
        return f"{self.program}, {self.ranks} ranks, {self.sizes or 'all schedules'}"

    @property
    def command(self) -> list[str]:
        sizes = [word for size in self.sizes.split() for word in ("--set", size)]
        chosen = ["--program", self.program] if self.schedule else []
        schedule = ["--schedule", self.schedule] if self.schedule else []
        target = SM90 if self.schedule else ()
        return ["check", self.file, *chosen, *schedule, "--ranks", str(self.ranks), *target, *sizes]


def _of_library(program: str, sizes: str, *, file: str = "", schedule: str = "default") -> Case:
    return Case(program=program, ranks=8, sizes=sizes, schedule=schedule, file=file or program)


CASES = (
    *(_of_library("ag_gemm", f"Ms={rows} K=8192 N=8192", schedule="h200") for rows in (2048, 16384)),
    *(
        Case(program=program, ranks=ranks, sizes=sizes, schedule=schedule, file=file)
        for program, file, schedule, sizes in (
            ("ag_gemm", "ag_gemm", "h200", "Ms=80 K=48 N=96"),
            ("gemm_rs_scatter", "gemm_rs", "default", "Ms=80 K=48 N=96"),
            ("gemm_ar", "gemm_ar", "default", "Ms=80 K=48 N=96"),
        )
        for ranks in (64, 512)
    ),
    *(_of_library("gemm_rs_scatter", f"Ms={rows} K=1792 N=8192", file="gemm_rs") for rows in (512, 4096)),
    _of_library("gemm_ar_pulled", "Ms=1024 K=4096 N=8192", file="gemm_ar", schedule="h200_roles"),
    *(_of_library("expert_parallel", f"M={rows} C={rows} H=2048 k=8") for rows in (256, 512, 1024)),
    *(_of_library("gated_expert_parallel", f"M={rows} H=2048 k=8") for rows in (64, 128, 256)),
    Case(program="ep_ffn", ranks=2, sizes="M=1024 H=2048 F=768 E=8 C=384 k=8"),
    Case(program="ep_ffn", ranks=2, sizes="M=4096 H=2048 F=768 E=64 C=384 k=8"),
    Case(program="ep_ffn", ranks=8, sizes="M=1024 H=2048 F=768 E=8 C=256 k=8"),
    Case(program="ep_ffn", ranks=8, sizes="M=8192 H=2048 F=768 E=16 C=640 k=8"),
    Case(program="moe_rs", ranks=8, sizes="M=2048 F=1024 H=2048 E=16 B=48 T=128 k=2"),
    Case(program="moe_rs", ranks=8, sizes="M=8192 F=1024 H=2048 E=64 B=192 T=128 k=2"),
    Case(program="ag_moe", ranks=8, sizes="Ms=1024 K=4096 N=2048 E=64 T=16384"),
    Case(program="moe_experts", ranks=2, sizes="M=8192 H=2048 I=768 E=64 k=8 T=131073", file="moe"),
    Case(program="moe_experts", ranks=8, sizes="M=8192 H=2048 I=768 E=16 k=8 T=131073", file="moe"),
    Case(program="moe_experts", ranks=2, sizes="M=8192 H=4096 I=14336 E=4 k=2 T=32769", file="moe"),
    Case(program="moe_dispatch", ranks=2, sizes="M=8192 H=2048 E=64 k=8 B=256 T=131073 first=64", file="moe"),
    Case(program="moe_decode", ranks=2, sizes="M=64 H=2048 I=768 E=64 k=8", file="moe_decode"),
    Case(
        program="decode_attention_whole",
        ranks=8,
        sizes="B=64 P=16384 T=64 H=8 G=8 D=128 S=64",
        file="decode_attention",
    ),
    Case(program="zigzag_attention", ranks=8, sizes="Q=32 G=8 B=8 T=128 D=128"),
    Case(program="zigzag_attention", ranks=8, sizes="Q=32 G=8 B=64 T=128 D=128"),
    Case(program="ring_attention", ranks=8, sizes="Q=32 G=8 C=16 T=128 D=128"),
    Case(program="ring_attention", ranks=8, sizes="Q=32 G=8 C=128 T=128 D=128"),
    Case(program="decode", ranks=8, sizes="B=64 P=8192 T=64 H=8 G=8 D=128 S=64"),
    Case(program="decode", ranks=8, sizes="B=256 P=16384 T=64 H=8 G=8 D=128 S=64"),
    Case(program="pipeline", ranks=8, sizes="B=32 M=2048 K=4096"),
    _of_library("fsdp", "L=80 M=2048 Ds=512 activation=relu"),
    _of_library("fsdp", "L=80 M=1024 Ds=128 activation=relu", schedule="gpu"),
    _of_library("sort_by_expert", "NB=512 B=128 E=64", schedule="gpu"),
    *(
        _of_library(program, sizes, file=file, schedule=schedule)
        for program, file, schedule, sizes in (
            ("gathered_rows", "expert_rows", "gpu", "N=65536 E=128 T=65536 H=2048"),
            ("gated_rows_gradients", "expert_rows", "gpu", "E=16 T=65536 I=768"),
            ("causal_attention_gradients", "attention_gradients", "gpu_roles", "H=8 G=4 N=64 B=128 D=128"),
            ("zigzag_attention", "ag_attention", "gpu_roles", "H=8 G=4 N=64 B=128 D=128"),
            ("decode_attention", "decode_attention", "gpu", "B=256 P=16384 T=64 H=8 G=8 D=128 S=512 L=8"),
        )
    ),
    *(
        Case(program=file.stem, ranks=8, sizes="", schedule="", file=file.stem)
        for file in sorted(PROGRAMS.glob("*.tl"))
    ),
)


def with_bytecode(folder: str) -> dict[str, str]:
    """Return an environment in which modules are compiled once, into a folder, as those of an installed package are."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment = {**kept, "PYTHONPYCACHEPREFIX": folder, "TILELINK_CACHE": f"{folder}/cache", "TILELINK_PROOFS": "1"}
    command = [sys.executable, "-m", "tilelink", "check", "all_gather"]
    subprocess.run(command, check=True, capture_output=True, env=environment)
    return environment


def measure(case: Case, limit: int, seconds: int, environment: Mapping[str, str]) -> dict[str, object]:
    """Check one program twice, each in a process of its own, with `limit` bytes of address space and so much time."""
    first, again = (_measured(case, limit, seconds, environment) for _ in range(2))
    return {**first, "again": again["seconds"]}


def _measured(case: Case, limit: int, seconds: int, environment: Mapping[str, str]) -> dict[str, object]:

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))

    command = [sys.executable, "-m", "tilelink", *case.command]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=limited,
        env=environment,
    )
    assert process.stdout is not None
    text = process.stdout.read()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    said = [line for line in text.splitlines() if line.strip()]
    safe = process.returncode == 0
    return {
        "case": case.name,
        "safe": safe,
        "seconds": round(used.ru_utime + used.ru_stime, 1),
        "megabytes": round(used.ru_maxrss / 1024),
        "said": "" if safe else (said or [f"status {process.returncode}"])[-1],
    }


def table(report: dict[str, Any], name: str) -> list[str]:
    """The section of a report about what checks cost."""
    limits = (
        f"{report['limits']['seconds']} s of processor time and {report['limits']['gigabytes']} GB of address space"
    )
    again = any("again" in one for one in report["results"])
    text = (
        "`tilelink check` in a process of its own, from its start to its end: processor time and the most memory. "
        f"{'Again: with the proof that the first one has kept. ' if again else ''}A "
        f"check had {limits}; what is no proof ended there. Made by `benchmarks/check_cost.py` on "
        f"{report['machine']['cores']} cores whose load was {report['machine']['load']}, its own included."
    )
    columns = {"s": "seconds", **({"again, s": "again"} if again else {})}
    rows = [
        f"| {one['case']} | {' | '.join(format(one[key], '.1f') for key in columns.values())} | {one['megabytes']} | "
        f"{'yes' if one['safe'] else 'no'} |"
        for one in report["results"]
    ]
    head = [f"| check | {' | '.join(columns)} | MB | proved |", f"| --- | {'---: | ' * len(columns)}---: | --- |"]
    return [f"## {name}", "", text, "", *head, *rows, ""]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="of the cases whose name has this word")
    parser.add_argument("--gigabytes", type=int, default=9, help="of address space for a check")
    parser.add_argument("--seconds", type=int, default=300, help="of processor time for a check")
    parser.add_argument("out", nargs="?", help="written after each case")
    given = parser.parse_args()
    results: list[dict[str, object]] = []
    print(f"{'s':>7} {'again':>7} {'MB':>7}")
    folder = tempfile.TemporaryDirectory()
    environment = with_bytecode(folder.name)
    for case in (one for one in CASES if given.only in one.name):
        result = measure(case, given.gigabytes * 2**30, given.seconds, environment)
        print(
            f"{result['seconds']:>7} {result['again']:>7} {result['megabytes']:>7}  {case.name}  {result['said']}",
            flush=True,
        )
        results.append(result)
        if given.out:
            busy = {"cores": os.cpu_count(), "load": round(os.getloadavg()[0], 1)}
            machine = {"python": platform.python_version(), "machine": platform.machine(), **busy}
            limits = {"gigabytes": given.gigabytes, "seconds": given.seconds}
            report = {"benchmark": "check cost", "machine": machine, "limits": limits, "results": results}
            Path(given.out).write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
