# pyright: basic
"""Schedules that a search finds for programs without any (tests/patterns/readers), beside the built-in ones.

It is the search of `tilelink.tuning.found`: as many points, of the same strategy.

python benchmarks/readers.py OUT.json                     # searches, without a GPU
python benchmarks/readers.py OUT.json FOLDER              # writes each program and what was found, as FOLDER/NAME.tl

`tilelink run FOLDER/NAME.tl -s found --device cuda --bench -n 2 --set ...` measures one on GPUs; FOLDER/run.sh has all.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tilelink import compiler
from tilelink.cli.options import with_choices
from tilelink.errors import TileLinkError
from tilelink.simulator.machine import load_machine
from tilelink.tuning.found import built_in_seconds, searched

ROOT = Path(__file__).resolve().parents[1]
READERS = ROOT / "tests" / "patterns" / "readers"
RANKS, MACHINE, US = 2, "8xH200", 1e6
SIZES: dict[str, dict[str, int | float]] = {
    "expert_layer": {"M": 512, "D": 2048, "K": 4, "C": 1024},
    "fsdp": {"L": 4, "M": 2048, "Ns": 1024},
    "gather_moe": {"Ms": 1024, "K": 2048, "N": 1024, "E": 8, "T": 4096},
    "gather_product": {"Ms": 2048, "N": 4096, "K": 4096},
    "moe_reduce_scatter": {"Ms": 512, "N": 2048, "F": 1024, "E": 8, "C": 512, "k": 2},
    "paged_decoding": {"B": 32, "H": 4, "G": 4, "D": 128, "P": 1024, "L": 32, "T": 64, "scale": 0.08},
    "product_all_reduce": {"M": 1024, "N": 4096, "Ks": 4096},
    "product_reduce_scatter": {"Ms": 2048, "N": 4096, "K": 4096},
    "ring_attention": {"H": 8, "Ms": 2048, "D": 128, "scale": 0.08},
    "top_k_gate": {"M": 4096, "E": 64, "k": 8},
    "ulysses": {"H": 4, "Ms": 2048, "D": 128, "scale": 0.08},
    "zigzag_attention": {"H": 8, "C": 1024, "D": 128, "scale": 0.08},
}


def report_on(name: str) -> dict[str, Any]:
    """Search one program: predicted microseconds of its built-in schedule and of the best, and how long that took."""
    path = sorted((READERS / name).glob("attempt*.tl"))[-1]
    program = compiler.load(str(path)).program()
    choices = {one.name: "relu" for one in program.params if one.kind == "function"}
    program = with_choices(program, choices) if choices else program
    begin, spent = time.monotonic(), time.process_time()
    machine = load_machine(MACHINE)
    given = {"ranks": RANKS, "dtype": "bf16", "target": machine.processor}
    found = searched(program, SIZES[name], machine, **given)
    built_in = built_in_seconds(found)
    best = found.ranking[0] if found.ranking else None
    return {
        "program": name, "file": str(path.relative_to(ROOT)), "dims": SIZES[name], "points": found.size,
        "trials": len(found.tried) + sum(found.refused.values()), "refused": dict(found.refused),
        "wall_s": round(time.monotonic() - begin, 1), "cpu_s": round(time.process_time() - spent, 1),
        "built_in_us": round(built_in * US, 1) if built_in else None,
        "best_us": round(best.seconds * US, 1) if best else None,
        "best_at_s": round(best.at, 1) if best else None, "best": str(best.schedule) if best else None,
    }  # fmt: skip


def write(results: list[dict[str, Any]], folder: Path) -> None:
    """Write the programs with what was found for each, and the commands that measure them."""
    lines = ["#!/bin/sh"]
    for one in results:
        if not one["best"] or one["best_us"] == one["built_in_us"]:
            continue
        text = (ROOT / one["file"]).read_text(encoding="utf-8")
        (folder / f"{one['program']}.tl").write_text(f"{text}\n{one['best']}\n", encoding="utf-8")
        sets = " ".join(f"--set={name}={value}" for name, value in one["dims"].items())
        sets += " --set=activation=relu" if one["program"] == "fsdp" else ""
        for schedule in ("default", "found"):
            command = f"python3 -m tilelink run {folder}/{one['program']}.tl -s {schedule} -n {RANKS} --dtype bf16"
            lines.append(f"timeout -s KILL 90 {command} --device cuda --bench {sets} 2>&1 | tail -3")
    (folder / "run.sh").write_text("\n".join(lines) + "\n", encoding="utf-8")


def main() -> None:
    path = Path(sys.argv[1])
    if len(sys.argv) > 2:
        folder = Path(sys.argv[2])
        folder.mkdir(parents=True, exist_ok=True)
        return write(json.loads(path.read_text(encoding="utf-8"))["results"], folder)
    results: list[dict[str, Any]] = []
    for name in SIZES:
        try:
            results.append(report_on(name))
        except TileLinkError as error:
            results.append({"program": name, "best": None, "error": str(error).splitlines()[0]})
        one = results[-1]
        print(*(f"{key} {one.get(key)}" for key in ("program", "built_in_us", "best_us", "best_at_s", "cpu_s", "trials",
                                                     "refused", "error")), flush=True)  # fmt: skip
        path.write_text(json.dumps({"benchmark": "readers", "ranks": RANKS, "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
