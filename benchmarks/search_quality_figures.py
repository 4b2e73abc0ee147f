# pyright: basic
"""What a search of few measurements loses against a sweep of many, beside chance: figures, a table, and curves."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.plots import drawing
from benchmarks.tables import table, us

Point = Mapping[str, Any]
CLOSE = 1.03
"""A choice is good that takes at most this many times what the best of the sweep does."""
UNLUCKY = 0.9
"""The share of random searches that find at least what is called their 90th percentile."""


# Chance, exactly ---------------------------------------------------------------------------------------------


def expected_best(values: Sequence[float], count: int) -> float | None:
    """The mean of the least of `count` different values, over all such choices; None of fewer values."""
    if not 0 < count <= len(values):
        return None
    ways = math.comb(len(values), count)
    return sum(v * (math.comb(len(values) - 1 - n, count - 1) / ways) for n, v in enumerate(sorted(values)))


def unlucky_best(values: Sequence[float], count: int, share: float = UNLUCKY) -> float | None:
    """The least value that at least this share of all choices of `count` values reach; None of fewer values."""
    if not 0 < count <= len(values):
        return None
    ways = math.comb(len(values), count)
    for n, value in enumerate(sorted(values)):
        missing_all = math.comb(len(values) - 1 - n, count)  # choices of later values alone
        if ways - missing_all >= share * ways:
            return value
    return None


# Figures -----------------------------------------------------------------------------------------------------


def evaluated(measured: Mapping[str, Any], chosen: Mapping[str, Any]) -> dict[str, Any]:
    """A measured file with its figures. chosen: the file of its points. Raises ValueError for points of another file.

    A regret is a ratio less 1: 0.02 is 2 % slower than the best of the sweep.
    """
    keys = [[(p["id"], p["program"], p["schedule"]) for p in one["points"]] for one in (measured, chosen)]
    if keys[0] != keys[1]:
        raise ValueError("the measured points are others than the chosen ones")
    done = sum("measured_us" in p for p in measured["points"])
    seconds = measured.get("spent_s", 0.0) / done if done else None
    groups = []
    for about in chosen["groups"]:
        own, slow = (
            [p for p in points if (p["op"], p["shape"]) == (about["op"], about["shape"])]
            for points in (measured["points"], chosen["too_slow"])
        )
        groups.append({**about, **_of(own, len(slow)), **_spent(own, about, seconds)})
    return {**measured, "benchmark": "search quality", "predicted_for": chosen["machine"], "figures": {
        "asked": len(measured["points"]), "done": done, "point_s": seconds, "groups": groups,
    }}  # fmt: skip


def _of(points: Sequence[Point], too_slow: int) -> dict[str, Any]:
    """The figures of one sweep; those that cannot be told are None."""
    good = [p for p in points if p.get("measured_us") is not None]
    failed = [p for p in points if "measured_us" in p and p["measured_us"] is None]
    counts = {
        "asked": len(points), "measured": len(good), "failed": len(failed), "too_slow": too_slow,
        "missing": len(points) - len(good) - len(failed),
    }  # fmt: skip
    if not good:
        return {**counts, "best": None, "search": None, "random": None, "declared": []}
    best = min(good, key=lambda p: p["measured_us"])
    return {
        **counts,
        "best": {
            **{name: best[name] for name in ("id", "program", "schedule", "sources", "chosen_us")},
            "us": best["measured_us"], "spread": _spread(best),
        },
        "search": _search(points, best["measured_us"]),
        "random": _random(points, too_slow, best["measured_us"]),
        "declared": [
            {"name": ", ".join(p["declared"]), "us": p.get("measured_us"), "chosen_us": p["chosen_us"]}
            for p in points if "declared" in p
        ],
    }  # fmt: skip


def _spread(point: Point) -> float | None:
    """Between the quartiles of a point's samples, over its median."""
    samples = point.get("samples_us") or []
    if not samples:
        return None
    low, middle, high = np.percentile(samples, [25, 50, 75])
    return float((high - low) / middle)


def _search(points: Sequence[Point], best_us: float) -> dict[str, Any]:
    """The search's choice. curve: the best after so many measurements in the model's order, also past its own.

    apart_regret: that of as many schedules of which the model predicts different times. either_regret: that of as many,
    those of the search and the declared ones together, that are best by the model.
    """
    own = sorted((p for p in points if "search" in p["sources"]), key=lambda p: p["chosen_us"])
    more = sorted((p for p in points if "next" in p["sources"] and p not in own), key=lambda p: p["chosen_us"])
    curve: list[float | None] = []
    for point in (*own, *more):
        if "measured_us" not in point:
            break
        known = [t for t in (curve[-1] if curve else None, point["measured_us"]) if t is not None]
        curve.append(min(known) if known else None)
    declared = [p for p in points if "declared" in p["sources"] and p not in own]
    both = sorted((*own, *declared), key=lambda p: p["chosen_us"])
    done, apart, either = (
        [p["measured_us"] for p in some[: len(own)] if p.get("measured_us") is not None]
        for some in (own, [*own[:1], *more], both)
    )
    first = own[0].get("measured_us") if own else None
    return {
        "count": len(own), "measured": len(done), "us": min(done) if done else None,
        "regret": min(done) / best_us - 1 if done else None, "first_us": first,
        "first_regret": first / best_us - 1 if first is not None else None,
        "apart_regret": min(apart) / best_us - 1 if apart else None,
        "either_regret": min(either) / best_us - 1 if either else None, "curve": curve,
    }  # fmt: skip


def _random(points: Sequence[Point], too_slow: int, best_us: float) -> dict[str, Any]:
    """Random search with as many measurements as the search has.

    A draw that failed or was left out as too slow is as slow as the slowest that was measured; in truth it is worse.
    Where a run was cut short, as large a part of those left out counts as was measured of the others.
    """
    asked = [p for p in points if "random" in p["sources"]]
    drawn = [p for p in asked if "measured_us" in p]
    too_slow = round(too_slow * len(drawn) / len(asked)) if asked else 0
    values = [p["measured_us"] for p in drawn if p["measured_us"] is not None]
    worst = max(p["measured_us"] for p in points if p.get("measured_us") is not None)
    worthless = len(drawn) - len(values) + too_slow
    values += [worst] * worthless
    count = sum("search" in p["sources"] for p in points)
    curve = [expected_best(values, n) for n in range(1, len(values) + 1)]
    return {
        "draws": len(values), "worthless": worthless, "count": count, "curve": curve,
        "bad_curve": [unlucky_best(values, n) for n in range(1, len(values) + 1)],
        "regret": _less_one(expected_best(values, count), best_us),
        "unlucky_regret": _less_one(unlucky_best(values, count), best_us),
        "until_close": next((n for n, v in enumerate(curve, 1) if v is not None and v <= CLOSE * best_us), None),
    }  # fmt: skip


def _less_one(value: float | None, best_us: float) -> float | None:
    return None if value is None else value / best_us - 1


def _spent(points: Sequence[Point], about: Mapping[str, Any], seconds: float | None) -> dict[str, Any]:
    """What measuring took, and how many random points could be measured while the search thinks and measures."""
    own = [p for p in points if "search" in p["sources"]]
    built = {name: [p["build_s"] for p in some if "build_s" in p] for name, some in (("own", own), ("all", points))}
    return {
        "build_s": {name: round(sum(values), 2) for name, values in built.items()},
        "same_time": len(own) + int(about["search_s"] / seconds) if seconds else None,
    }


# Shown -------------------------------------------------------------------------------------------------------


def table_of(report: Mapping[str, Any], name: str = "") -> Iterator[str]:
    """Lines of Markdown. name: of the report, whose plots are linked to; "": no links."""
    found = report["figures"]
    counts = {group["search"]["count"] for group in found["groups"] if group["search"]}
    few = "/".join(map(str, sorted(counts))) or "few"
    yield (
        f"The search measures the model's best {few} schedules; a sweep measures those, random points for half of it,"
        " the declared schedules, the model's next best, and neighbours of the best. A regret is what a choice takes"
        " longer than the best of the sweep. Predictions of the search's best are often equal: told apart are as many"
        " with different ones. With declared ones are as many of the search's and the declared schedules, by the"
        " model. Random search: the expected regret over all choices of as many random points, the regret that one in"
        " ten exceeds, and how many points it needs until it expects less"
        f" than {CLOSE - 1:.0%}. Random points that failed or were predicted far too slow to be measured (in brackets)"
        " count as the slowest that was measured. The best of a sweep is also the luckiest: spread is between the"
        " quartiles of its samples. Predictions are those of"
        f" {report['predicted_for']}."
    )
    yield ""
    yield from table(HEAD, [_line(group) for group in found["groups"]])
    yield ""
    yield from _time(report)
    for group in found["groups"]:
        yield from _schedules(group, name)


HEAD = ("operator", "shape", "measured", "failed", "missing", "best us", "spread", "search us", "regret",
        "model's first", "told apart", "with declared", "random points", "random regret",
        "one in ten", "until close")  # fmt: skip


def _line(group: Mapping[str, Any]) -> tuple[str, ...]:
    counts = (f"{group['measured']} of {group['asked']}", str(group["failed"]), str(group["missing"]))
    if not group["best"]:
        return (group["op"], group["shape"], *counts, *["-"] * (len(HEAD) - 5))
    best, own, chance = group["best"], group["search"], group["random"]
    part = "" if own["measured"] == own["count"] else f" ({own['measured']} of {own['count']})"
    until = str(chance["until_close"] or f"> {chance['draws']}")
    return (
        group["op"], group["shape"], *counts, us(best["us"]), _percent(best["spread"]), us(own["us"]) + part,
        _percent(own["regret"]), _percent(own["first_regret"]), _percent(own["apart_regret"]),
        _percent(own["either_regret"]),
        f"{chance['draws']} ({chance['worthless']})",
        _percent(chance["regret"]), _percent(chance["unlucky_regret"]), until,
    )  # fmt: skip


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


def _time(report: Mapping[str, Any]) -> Iterator[str]:
    """What searching with the model takes beside what measuring takes."""
    found = report["figures"]
    each = found["point_s"]
    yield (
        f"Measuring took {report.get('spent_s', 0):.0f} s for {found['done']} of {found['asked']} points, with"
        f" compiling them ahead on all cores{f', {each:.2f} s for each' if each else ''}. Searching takes one core"
        " and no GPU; in the time of the search and its measurements this many random points could be measured:"
    )
    yield ""
    head = ("operator", "shape", "space", "trials", "refused", "search s", "building its choices s",
            "random points in its time")  # fmt: skip
    yield from table(head, [
        (g["op"], g["shape"], str(g["space"]), str(g["trials"]), str(g["refused"]), f"{g['search_s']:.0f}",
         f"{g['build_s']['own']:.1f}", str(g["same_time"] or "-"))
        for g in found["groups"]
    ])  # fmt: skip
    yield ""
    if report.get("ended_early"):
        yield f"The run ended early: {report['ended_early']}"
        yield ""


def _schedules(group: Mapping[str, Any], name: str) -> Iterator[str]:
    """The best of a sweep as it may be put into a file, beside what the file declares."""
    yield f"### {group['op']} {group['shape']}"
    yield ""
    if not group["best"]:
        yield "Nothing was measured."
        yield ""
        return
    if name:
        yield f"![{group['op']} {group['shape']}](plots/{plot_name(group, name)})"
        yield ""
    best = group["best"]
    yield f"The best, {us(best['us'])} us, predicted {us(best['chosen_us'])}, is from {', '.join(best['sources'])}:"
    yield ""
    yield from ("```", *best["schedule"].rstrip().splitlines(), "```")
    yield ""
    for declared in sorted(group["declared"], key=lambda d: (d["us"] is None, d["us"])):
        measured = "not measured" if declared["us"] is None else (
            f"{us(declared['us'])} us, {_percent(declared['us'] / best['us'] - 1)} slower"
        )  # fmt: skip
        yield f"* declared {declared['name']}: {measured}; predicted {us(declared['chosen_us'])}"
    yield ""


def plot_name(group: Mapping[str, Any], name: str) -> str:
    """The file of a group's curves."""
    return f"{name}_{group['op']}_{group['shape'].replace('@', '_')}.svg"


def plot(group: Mapping[str, Any], path: Path) -> None:
    """The best after so many measurements, over the best of the sweep: in the model's order, and by chance."""
    with drawing(path, width=6.2, height=3.2) as axes:
        best, guided, chance = group["best"]["us"], group["search"], group["random"]
        drawn = [(n, t / best) for n, t in enumerate(guided["curve"], 1) if t is not None]
        if drawn:
            counts, ratios = zip(*drawn, strict=True)
            axes.step(counts, ratios, where="post", color="#2a6f97", linewidth=1.4, label="the model's order")
        ticks = range(1, chance["draws"] + 1)
        if ticks:
            mean, bad = ([t / best for t in chance[key]] for key in ("curve", "bad_curve"))
            axes.plot(ticks, mean, color="#e0a458", linewidth=1.4, label="random, expected")
            axes.fill_between(ticks, mean, bad, color="#e0a458", alpha=0.2, linewidth=0, label="one in ten is worse")
        axes.axvline(guided["count"], color="#9aa5b1", linewidth=0.8)
        axes.axhline(1.0, color="black", linewidth=0.8, label=f"best of {group['measured']}")
        axes.axhline(CLOSE, color="black", linewidth=0.8, linestyle=":")
        times = [d["us"] for d in group["declared"] if d["us"] is not None]
        if times:
            axes.axhline(min(times) / best, color="#6a994e", linewidth=0.8, linestyle="--", label="declared")
        axes.set(xscale="log", xlabel="measurements", ylabel="time / best of the sweep")
        axes.set_title(f"{group['op']}, {group['shape']}")
        axes.legend(frameon=False, fontsize=8)
