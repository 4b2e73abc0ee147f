"""Fit of a machine's numbers to measured times, from pairs of launches that differ in one parameter."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from types import MappingProxyType
from typing import Any, TypedDict

from tilelink.calibration.programs import BULK_PROGRAMS, BULK_SMS
from tilelink.lowering.clauses.tma_copy import SHARED
from tilelink.simulator.cost import FILLING, STORED
from tilelink.simulator.machine import Machine

Row = Sequence[float]
Found = Mapping[str, tuple[Any, str]]
"""field -> (value, source)."""


class Timings(TypedDict):
    """Measured times of the ranks of a node; JSON values.

    Each row ends with its time in seconds. "products": [rows, columns, waves, inner, s]. "flat": [flat, waves, s] of
    products with and without a flattened loop. "roles": [roles, waves, s] of the same with and without roles.
    "local": [bytes, s] of copies within a GPU. "copies": [count, bytes, s] of copies to the next rank by copy engines,
    all ranks at once. "push" and "pull": [programs, bytes, s] of transfers by programs. "bulk": [bytes of a tile,
    bytes, s] of transfers by programs with TMA. "hops": [hops, s] of a message from rank to rank. "chain": [kernels, s]
    of a launch. failures: name of missing rows -> reason.
    """

    gpu: str
    target: str
    sms: int
    ranks: int
    versions: str
    rows: dict[str, list[list[float]]]
    failures: dict[str, str]


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A rule that derives `fields` of a machine from one kind of rows. `of` takes the rows and the machine so far."""

    rows: str
    fields: tuple[str, ...]
    of: Callable[[Sequence[Row], Machine], Found]


def fit(timings: Timings, base: Machine, *, name: str) -> Machine:
    """Return a machine fitted to measured times.

    A field keeps its value of `base` if it was not measured or its fitted value is not positive and finite; its source
    gives the reason. Rules run in order, so that later ones use the results of earlier ones.
    """
    known = replace(base, name=name, target=timings["target"], sms=timings["sms"])
    sources = dict(base.sources)
    if timings["sms"] != base.sms:
        sources["sms"] = f"measured: the driver of {timings['gpu']} says so"
    for rule in RULES:
        try:
            found = _sound(rule.of(_rows(timings, rule.rows), known))
        except (ValueError, ZeroDivisionError) as error:
            for field in rule.fields:
                sources[field] = f"{base.sources.get(field, 'assumed')}; not measured: {error}"
            continue
        known = replace(known, **{field: value for field, (value, _) in found.items()})
        sources |= {field: source for field, (_, source) in found.items()}
    return replace(known, sources=MappingProxyType(sources))


def _rows(timings: Timings, name: str) -> Sequence[Row]:
    if reason := timings["failures"].get(name):
        raise ValueError(reason)
    if not (rows := timings["rows"].get(name, [])):
        raise ValueError("there are no measured times")
    return rows


def _sound(found: Found) -> Found:
    for field, (value, _) in found.items():
        for number in value.values() if isinstance(value, Mapping) else (value,):
            if not 0 < number < float("inf"):
                raise ValueError(f"{field} came out as {number:.3g}")
    return found


def _slope(first: tuple[float, float], second: tuple[float, float]) -> float:
    """Return the seconds for each unit of size, from (size, seconds) of two launches."""
    (a, s), (b, t) = sorted((first, second))
    return (t - s) / (b - a)


def _ends(rows: Sequence[Row]) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return the (size, seconds) of the smallest and the largest size. Raises ValueError if there are not two sizes."""
    pairs = sorted((row[0], row[-1]) for row in rows)
    if len(pairs) < 2 or pairs[0][0] == pairs[-1][0]:
        raise ValueError("there are too few times")
    return pairs[0], pairs[-1]


# Rules -------------------------------------------------------------------------------------------------------


def _products(rows: Sequence[Row], known: Machine) -> Found:
    """Fit T = start + waves x (overhead + inner x c): c from two inner extents, overhead from two numbers of waves."""
    rates: dict[str, float] = {}
    overheads: dict[str, float] = {}
    for height, width in dict.fromkeys((int(row[0]), int(row[1])) for row in rows):
        own = {(waves, inner): s for h, w, waves, inner, s in rows if (h, w) == (height, width)}
        waves, more = min(w for w, _ in own), max(w for w, _ in own)
        inner, longer = min(i for _, i in own), max(i for _, i in own)
        needed = {(waves, inner), (waves, longer), (more, inner)}
        if len(needed) < 3 or not needed <= own.keys():
            raise ValueError(f"there are too few times of {height}x{width} tiles")
        step = _slope((inner, own[waves, inner]), (longer, own[waves, longer])) / waves
        tile = _slope((waves, own[waves, inner]), (more, own[more, inner]))
        rates[f"{height}x{width}"] = 2.0 * height * width * known.sms / step
        overheads[f"{height}x{width}"] = tile - inner * step
    fastest = max(rates, key=lambda tile: rates[tile])
    how = "the generated persistent product at two inner extents"
    stored = min(1.0, prod(map(int, fastest.split("x"))) / STORED)
    overhead = known.flat_gain + (overheads[fastest] - known.flat_gain) / stored
    return {
        "matmul_flops": (rates[fastest], f"measured: {how}, {fastest} tiles"),
        "tile_flops": (MappingProxyType(rates), f"measured: {how}"),
        "tile_overhead": (overhead, f"measured: {how} and numbers of {fastest} tiles on an SM"),
    }


def _flat(rows: Sequence[Row], known: Machine) -> Found:
    """Return the time of a tile of a plain loop minus that of a flattened loop, each from two numbers of waves."""
    plain, flat = (_slope(*_ends([row[1:] for row in rows if bool(row[0]) is flat])) for flat in (False, True))
    return {
        "flat_gain": (plain - flat, "measured: generated persistent products, flat and not, by two numbers of tiles")
    }


def _roles(rows: Sequence[Row], known: Machine) -> Found:
    """Take from the overhead of a tile what a tile takes less where warps have roles."""
    plain, roles = (_slope(*_ends([row[1:] for row in rows if bool(row[0]) is one])) for one in (False, True))
    source = "measured: generated persistent products, with and without roles, by two numbers of tiles"
    return {"roles_overhead": (known.tile_overhead - (plain - roles), source)}


def _local(rows: Sequence[Row], known: Machine) -> Found:
    per_byte = _slope(*_ends(rows))
    return {"memory_bandwidth": (2 / per_byte, "measured: a large copy within a GPU, read and written")}


def _link(rows: Sequence[Row], known: Machine) -> Found:
    least = min(row[1] for row in rows)
    large = [(size, s) for _, size, s in rows if size > least]
    rate = 1 / _slope(*_ends(large))
    return {"link_bandwidth": (rate, "measured: large copies by the copy engine, each rank to its neighbour")}


def _calls(rows: Sequence[Row], known: Machine) -> Found:
    least = min(row[1] for row in rows)
    (count, first), (more, last) = _ends([(count, s) for count, size, s in rows if size == least])
    call = (last - first) / (more - count)
    return {
        "copy_start": (first - (count - 1) * call, "measured: a small copy to the next rank, from event to event"),
        "copy_call": (call, f"measured: each of {more:g} small copies to the next rank after the first"),
        "copy_signal": (call, "derived: a flag is a copy of four bytes"),
    }


def _moved(rows: Sequence[Row], known: Machine, way: str, extra: float) -> Found:
    """Return rate and efficiency of transfers by programs. extra: additional seconds of the launch for each byte."""
    few, many = min(row[0] for row in rows), max(row[0] for row in rows)
    if few == many:
        raise ValueError("there are too few times")
    rate = {n: 1 / (_slope(*_ends([row[1:] for row in rows if row[0] == n])) - extra) for n in (few, many)}
    text = "measured: {:.0f} GB/s with {:g} generated programs, all ranks at once"
    return {
        f"sm_{way}_rate": (rate[few] / few, text.format(rate[few] / 1e9, few)),
        f"sm_{way}_efficiency": (min(1.0, rate[many] / known.link_bandwidth), text.format(rate[many] / 1e9, many)),
    }


def _push(rows: Sequence[Row], known: Machine) -> Found:
    """Fit stores to a peer. The launch also copies each received byte to the caller's tensor, 2 bytes of traffic."""
    return _moved(rows, known, "push", 2 / known.memory_bandwidth)


def _pull(rows: Sequence[Row], known: Machine) -> Found:
    return _moved(rows, known, "pull", 0.0)


def _hops(rows: Sequence[Row], known: Machine) -> Found:
    """Fit a hop: a store, a notify and the end of its wait, of which only the sum is measured."""
    hop = _slope(*_ends(rows))
    part = hop / (known.fence + known.signal_latency)
    source = f"derived: a store to the next rank, its notify and the wait take {hop * 1e6:.2f} us, measured together"
    return {
        "signal_latency": (known.signal_latency * part, source),
        "fence": (known.fence * part, source),
        "local_signal_latency": (known.local_signal_latency * part, f"{source}; in proportion"),
    }


def _bulk(rows: Sequence[Row], known: Machine) -> Found:
    """Fit the rate of an SM to large tiles, and the latency of a box, as in `simulator.cost`, to small tiles."""
    small, large = min(row[0] for row in rows), max(row[0] for row in rows)
    if small == large:
        raise ValueError("there are too few times")
    brief, long = (_bulk_tile([row for row in rows if row[0] == size], known) for size in (small, large))
    text = f"{BULK_PROGRAMS} generated programs on each of {BULK_SMS} SMs take"
    latency = brief / (FILLING + small * BULK_PROGRAMS / SHARED)
    return {
        "sm_bulk_rate": (large * BULK_PROGRAMS / long, f"measured: {text} {_us(long)} for tiles of {_kib(large)}"),
        "bulk_latency": (latency, f"derived: {text} {_us(brief)} for tiles of {_kib(small)}"),
    }


def _bulk_tile(rows: Sequence[Row], known: Machine) -> float:
    """Return the seconds in which a program copies a tile, without the fence before its notify and the final copy."""
    (size, *_), *_ = rows
    per_byte = _slope(*_ends([row[1:] for row in rows])) - 2 / known.memory_bandwidth
    return size * BULK_SMS * BULK_PROGRAMS * per_byte - known.fence


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:.1f} us"


def _kib(size: float) -> str:
    return f"{size / 1024:g} KiB"


def _chain(rows: Sequence[Row], known: Machine) -> Found:
    gap = _slope(*_ends(rows))
    (kernels, first), _ = _ends(rows)
    return {
        "kernel_start": (first - (kernels - 1) * gap, "measured: a launch of one tiny kernel, from event to event"),
        "kernel_gap": (gap, "measured: each further tiny kernel of a launch"),
    }


RULES = (
    Rule(rows="flat", fields=("flat_gain",), of=_flat),
    Rule(rows="products", fields=("matmul_flops", "tile_flops", "tile_overhead"), of=_products),
    Rule(rows="roles", fields=("roles_overhead",), of=_roles),
    Rule(rows="local", fields=("memory_bandwidth",), of=_local),
    Rule(rows="copies", fields=("link_bandwidth",), of=_link),
    Rule(rows="copies", fields=("copy_start", "copy_call", "copy_signal"), of=_calls),
    Rule(rows="push", fields=("sm_push_rate", "sm_push_efficiency"), of=_push),
    Rule(rows="pull", fields=("sm_pull_rate", "sm_pull_efficiency"), of=_pull),
    Rule(rows="hops", fields=("signal_latency", "fence", "local_signal_latency"), of=_hops),
    Rule(rows="bulk", fields=("sm_bulk_rate", "bulk_latency"), of=_bulk),
    Rule(rows="chain", fields=("kernel_start", "kernel_gap"), of=_chain),
)
