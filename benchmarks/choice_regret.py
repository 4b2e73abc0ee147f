# pyright: basic
"""How much time the choice of an implementation costs: the one that is taken beside all others, on sizes drawn by seed.

    torchrun --nproc-per-node 2 benchmarks/choice_regret.py --seed 7 --cases 12 --out choice_regret.json

Sizes are drawn after the choice is frozen: rows, columns and contracted elements of products with an all-reduce, log
uniformly. Each variant is a chain with weights of its own (decode.py), once in a CUDA graph and once launched eagerly,
with the host ahead of the GPU: the choice, each schedule of the library that may be taken for such sizes, the product
and the collective of torch, and its all-reduces over symmetric memory. The regret is the time of the choice relative to
the fastest of all, less 1. The implementation that is taken is measured twice, as the choice and by its name: how much
the two differ is the noise.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from benchmarks import cases
from benchmarks.decode import FILE, Chain, Symmetric, nccl
from benchmarks.measure import Variant
from benchmarks.tables import percent, ratio, table, us
from tilelink import ops
from tilelink.errors import TileLinkError
from tilelink.ops.choice import DEFAULTS, choose, rounded_rows
from tilelink.ops.operators import OPERATORS, UNFUSED
from tilelink.ops.predict import machine_of

ROWS, COLUMNS, INNER = (1, 512, 1), (2048, 8192, 64), (1024, 14336, 64)
"""Least and most of each size, and what it is a multiple of."""

WAYS = ("graph", "eager")

Sizes = tuple[int, int, int]


def drawn(seed: int, count: int) -> list[Sizes]:
    """Return rows, columns and contracted elements of products."""
    chance = Random(seed)

    def one(least: int, most: int, multiple: int) -> int:
        exact = least * (most / least) ** chance.random()
        return min(most, max(least, round(exact / multiple) * multiple))

    return [(one(*ROWS), one(*COLUMNS), one(*INNER)) for _ in range(count)]


def taken(M: int, N: int, K: int, ranks: int, gpu: str) -> str:
    """Return the implementation that a call without a schedule takes, where nothing was measured."""
    return choose("gemm_ar", rounded_rows(M), N, K, ranks, machine=machine_of(gpu) or DEFAULTS)


def schedules() -> list[str]:
    """Return all that a call may take, as `schedule=` names it."""
    record = OPERATORS["gemm_ar"]
    found = [*(record.few.tiles if record.few else ()), *(record.small.schedules if record.small else ()), UNFUSED]
    return list(dict.fromkeys(found))


def possible(names: list[str], M: int, N: int, K: int, device: torch.device) -> list[str]:
    """Return the schedules for as many rows that compile for such sizes."""
    like: dict[str, Any] = {"device": device, "dtype": torch.bfloat16}
    x, w = torch.zeros(M, K, **like), torch.zeros(N, K, **like)
    found: list[str] = []
    for name in names:
        least, most, *_ = (OPERATORS["gemm_ar"].few.tiles if OPERATORS["gemm_ar"].few else {}).get(name, (1, 1 << 30))
        if not least <= M <= most:
            continue
        try:
            ops.gemm_ar(x, w, schedule=name)
        except TileLinkError as error:  # the same on all ranks: it is of the plan
            print(f"{name} for {M} x {N} x {K}: {error.message}"[:160], file=sys.stderr)
            continue
        found.append(name)
    return found


def variants(chain: Chain, names: list[str], eager: bool) -> Iterator[tuple[str, Callable[[], Variant]]]:
    steps: dict[str, Any] = {"choice": ops.gemm_ar}
    steps |= {name: partial(ops.gemm_ar, schedule=name) for name in names if name != UNFUSED}
    steps |= {UNFUSED: nccl, "torch one-shot": Symmetric("one_shot_all_reduce")}
    steps |= {"torch two-shot": Symmetric("two_shot_all_reduce_")}
    for name, step in steps.items():
        kind = "pair" if name == UNFUSED else "ours"
        yield name, lambda name=name, step=step, kind=kind: chain.variant(name, step, kind, eager=eager)


def figures(rows: list[dict[str, Any]], choice: str) -> dict[str, Any]:
    """Return the regret of a case, and what it is against. Rows whose result was wrong count for nothing."""
    times = {row["name"]: row["us"] / row["steps"] for row in rows if row.get("us")}
    if "choice" not in times:
        return {"choice": choice, "regret": None, "best": None, "noise": None, "step_us": times}
    mine = times["choice"]
    best = min(times, key=lambda name: times[name])
    again = times.get(choice)
    noise = None if again is None else abs(mine / again - 1)
    return {"choice": choice, "regret": mine / times[best] - 1, "best": best, "noise": noise, "step_us": times}


def summary(found: list[dict[str, Any]]) -> dict[str, Any]:
    """Return mean and worst regret, the noise, and the worst time relative to the product and collective of torch."""
    regrets = [one["regret"] for one in found if one["regret"] is not None]
    noises = [one["noise"] for one in found if one["noise"] is not None]
    times = [one["step_us"] for one in found]
    beside = [one["choice"] / one[UNFUSED] for one in times if {"choice", UNFUSED} <= one.keys()]
    return {
        "cases": len(regrets), "mean": statistics.mean(regrets) if regrets else None,
        "worst": max(regrets, default=None), "noise": statistics.mean(noises) if noises else None,
        "over_unfused": max(beside, default=None),
    }  # fmt: skip


def tenths(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"


def lines(case: dict[str, Any]) -> Iterator[str]:
    for way in WAYS:
        one = case[way]
        said = ", ".join(f"{label} {us:.1f}" for label, us in sorted(one["step_us"].items(), key=lambda item: item[1]))
        yield f"{case['name']} {way} ({one['choice']}), regret {one['regret']}: {said}"


def report(found: dict[str, Any], name: str) -> list[str]:
    """Return the section of a report in docs/results.md."""
    machine, rows = found["machine"], list[tuple[str, ...]]()
    for case in found["cases"]:
        for way in (way for way in WAYS if way in case):
            one = case[way]
            times, best = one["step_us"], one["best"]
            rows.append((
                case["name"], way, one["choice"], us(times.get("choice")), str(best), us(times.get(best)),
                us(times.get(UNFUSED)), percent(one["regret"]),
            ))  # fmt: skip
    said = [
        f"{way}: mean {tenths(of['mean'])}, worst {tenths(of['worst'])} of {of['cases']} cases; the choice measured "
        f"twice differs by {tenths(of['noise'])} in the mean, and took at most {ratio(of['over_unfused'])} of the time "
        "of torch's product with NCCL."
        for way, of in found["summary"].items()
    ]
    return [
        f"## {name}", "", *([f"{found['note'][0].upper()}{found['note'][1:]}.", ""] if found.get("note") else []),
        f"The choice of an implementation for products with an all-reduce on {found['ranks']} {machine['gpu']} "
        f"(benchmarks/choice_regret.py), for sizes M x N x K drawn by seed {found['seed']} after it was frozen: "
        f"microseconds of a step of a chain; driver {machine['driver']}, torch {machine['torch']}, triton "
        f"{machine['triton']}. Regret: the time of the choice over that of the fastest of all, less 1. "
        + " ".join(said), "",
        *table(("step", "launched", "choice", "us", "fastest", "us", "cuBLAS + NCCL", "regret"), rows), "",
    ]  # fmt: skip


def main() -> int:
    parser = cases.parser(__doc__, samples=8)
    parser.add_argument("--seed", type=int, required=True, help="of the sizes; a new one for each frozen choice")
    parser.add_argument("--cases", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=200.0, help="after these no further case begins")
    args = parser.parse_args()
    if args.dry:
        return 0  # the operators compile their own kernels
    begin = time.monotonic()
    run = cases.Run("choice_regret", FILE, args, lambda _: [], seed=args.seed)
    session, names = run.session, schedules()
    gpu = torch.cuda.get_device_name()
    found: list[dict[str, Any]] = []
    for M, N, K in drawn(args.seed, args.cases):
        if not session.agree(time.monotonic() - begin < args.seconds):
            break
        name = f"{M} x {N} x {K}"
        session.watchdog.context(name)
        with torch.no_grad(), session.watchdog.step("compiling"):
            fitting = possible(names, M, N, K, session.device)
            chain = Chain(session, None, M, N, K)
        case: dict[str, Any] = {"name": name}
        for way in WAYS:
            with torch.no_grad():
                chain.refresh()
                built = [session.build(label, "ours", one) for label, one in variants(chain, fitting, way == "eager")]
                timed = [one for one in built if isinstance(one, Variant)]
                rows = session.time(timed, chain.refresh, samples=args.samples, warmups=2)
            failed = [one for one in built if not isinstance(one, Variant)]
            case[way] = {"rows": [*rows, *failed], **figures(rows, taken(M, N, K, session.ranks, gpu))}
        found.append(case)
        run.add(case, lines(case))
        ops.clear(captured=True)
    run.found["summary"] = {way: summary([case[way] for case in found]) for way in WAYS}
    run.write()
    if run.rank == 0:
        print(run.found["summary"], flush=True)
    run.end()


if __name__ == "__main__":
    sys.exit(main())
