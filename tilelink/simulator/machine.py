"""Machines: the parameters of the ranks of a simulated run, with the unit and the source of each number."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from tilelink import files
from tilelink.data import checked, plain, read_json, save_output
from tilelink.errors import DataError, MachineError, did_you_mean
from tilelink.target import Target, target

SHIPPED = Path(__file__).parents[1] / "machines"
MAX_NUMBER = 10**100
"""Limit for whole numbers: larger ones are meaningless, and the largest cannot be converted to a float."""
KINDS = ("measured", "data sheet", "derived", "assumed")
"""Prefixes of a source: measured on this machine, read from its data sheet, computed from other fields, or guessed."""


_TILE = re.compile("[1-9][0-9]*x[1-9][0-9]*")


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _number(unit: str, default: float | None = None) -> Any:
    return field(metadata={"unit": unit}, default=MISSING if default is None else default)


MIB = 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class Thresholds:
    """Numbers that choose between the implementations of an operator: sizes at which one becomes faster than another,
    and the rates of a vendor's libraries. The simulator does not read them.

    The defaults are those measured on four H200s, and for all-reduces on two and four H100s; a description may leave
    them out.
    """

    fused_gather_rows: int = _number("rows", 1024)
    """Minimum rows, over all ranks, for one kernel that gathers and multiplies."""
    fused_scatter_rows: int = _number("rows", 2048)
    """Minimum rows, over all ranks, for one kernel that multiplies and scatters sums."""
    fused_rank_rows: int = _number("rows", 256)
    """Minimum rows of one rank for either kernel."""
    fused_reduce_elements: int = _number("elements", 3 << 20)
    """Minimum elements of the sums of one rank, its rows times the columns, for one kernel that multiplies and sums on
    all ranks: with fewer, the tiles of one rank are far from a wave."""
    fused_reduce_side: int = _number("elements", 2048)
    """Minimum columns, and minimum contracted elements, of its product."""
    fused_reduce_ranks: int = _number("ranks", 4)
    """Maximum ranks for that: each rank sends its sums to all others while it multiplies its own rows."""
    modelled_rows: int = _number("rows", 512)
    """Minimum rows, over all ranks, from which the model may find a better fused schedule."""
    modelled_rank_rows: int = _number("rows", 128)
    """Minimum rows of one rank for that."""
    small_gather_bytes: int = _number("B", 16 * MIB)
    """Maximum bytes of the gathered tensor for the library's own gather kernel, next to the vendor's product."""
    small_scatter_bytes: int = _number("B", 16 * MIB)
    """The same for a reduce-scatter."""
    small_reduce_bytes: int = _number("B", 8 * MIB)
    """The same for an all-reduce."""
    one_shot_bytes: int = _number("B", MIB)
    """Maximum bytes that each rank receives in a one-shot all-reduce, in which every rank sums everything."""
    words_bytes: int = _number("B", 32 * 1024)
    """The same by words of data and flag."""
    norm_words_bytes: int = _number("B", 128 * 1024)
    """The same before a norm, for which all words of a row are awaited."""
    few_bytes: int = _number("B", 2 * MIB)
    """Maximum bytes that each rank receives of a kernel for few rows, which multiplies and sums."""
    few_expert_rows: int = _number("rows", 256)
    """Maximum rows, over all ranks, of a layer of experts that is one kernel for few tokens."""
    many_expert_rows: int = _number("rows", 1024)
    """Minimum rows, over all ranks, of a layer of experts by the kernels for many."""
    small_tiles: int = _number("tiles", 1024)
    """Maximum tiles of a kernel that only communicates: with few rows or columns most of a tile is empty."""
    few_step: float = _number("s", 2e-9)
    """Time of one contracted element in a kernel for few rows, of which an SM multiplies one tile, without what the
    tile's size adds."""
    few_step_element: float = _number("s", 2e-13)
    """What each element of the tile, its rows times its columns, adds."""
    vendor_step: float = _number("s", 2.1e-9)
    """Time of one contracted element in the vendor's product of few rows, for each 128 of them."""
    vendor_split_columns: int = _number("columns", 2048)
    """Columns below which the vendor's product splits the contracted dimension, the more the fewer there are."""
    vendor_memory_share: float = _number("1", 0.85)
    """Fraction of memory_bandwidth at which the vendor's product loads weights for few rows."""
    vendor_product_share: float = _number("1", 0.93)
    """Fraction of matmul_flops that the vendor's product reaches over its whole run."""
    vendor_collective_share: float = _number("1", 0.8)
    """Fraction of the link's rate that the vendor's collectives reach."""
    vendor_collective_start: float = _number("s", 25e-6)
    """Time that the vendor's collectives take to start."""
    small_share: float = _number("1", 0.7)
    """Fraction of the link's rate that the library's own kernels for little data reach."""
    small_start: float = _number("s", 5e-6)
    """Minimum time that such a kernel adds to a product."""


CLOCK = "clock"
"""What a deviation of SMs is about: the speed of all that they do."""
OF_LINKS = ("link_bandwidth", "signal_latency")
"""Numbers in which a single link can differ."""
_RATES = ("B/s", "flop/s", "op/s", "s", "1/s")


@dataclass(frozen=True, kw_only=True)
class Deviation:
    """A part of a machine that is not like the others of its kind: `field` is `factor` times the machine's there.

    field: a number of the machine in units per second or in seconds, or `CLOCK`: the speed of SMs.
    rank: the rank that differs. peer: its link to that rank alone (`OF_LINKS`). sms: (first, last) of the SMs that
    differ (`CLOCK` alone), None for all.
    """

    field: str
    factor: float
    rank: int
    peer: int | None = None
    sms: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        hint = f"{CLOCK}, or one of {', '.join(name for name, unit in UNITS.items() if unit in _RATES)}"
        if self.field != CLOCK and UNITS.get(self.field) not in _RATES:
            raise MachineError(f"a rank cannot differ in {self.field!r}", hint=hint)
        if not _is_number(self.factor) or not 0 < self.factor < float("inf"):
            raise MachineError(f"{self.field} of rank {self.rank} is {self.factor!r} times another", hint="above 0")
        if self.peer is not None and self.field not in OF_LINKS:
            raise MachineError(f"a link cannot differ in {self.field!r}", hint=f"one of {', '.join(OF_LINKS)}")
        if self.sms is not None and (self.field != CLOCK or self.peer is not None):
            raise MachineError(f"SMs cannot differ in {self.field!r}", hint=f"they differ in {CLOCK}")


@dataclass(frozen=True, kw_only=True)
class Machine(Thresholds):
    """A kind of rank and the links between ranks. Rates are for one rank and one direction.

    `sources`: field -> "measured: ...", "data sheet: ...", "derived: ..." or "assumed: ...".
    """

    name: str
    target: str
    """The target for which kernels are compiled, by its name in `tilelink.target`."""
    node_ranks: int = _number("ranks")
    """Ranks per node. Consecutive ranks fill a node; ranks of other nodes are reached through the network."""
    sms: int = _number("SMs")

    matmul_flops: float = _number("flop/s")
    """Products of 16-bit floats inside the main loop of a large tile, all SMs together."""
    vector_flops: float = _number("flop/s")
    """Elementwise f32 operations, all SMs together."""
    special_rate: float = _number("op/s")
    """Special functions such as exp, all SMs together."""
    cache_bandwidth: float = _number("B/s")
    """Bandwidth of operands from the L2 cache into all SMs together."""
    memory_bandwidth: float = _number("B/s")
    sm_bandwidth: float = _number("B/s")
    """Maximum rate of one SM from or to memory."""
    load_latency: float = _number("s")
    """Latency of one load in the main loop, without the time of its bytes at sm_bandwidth; hidden by the pipeline."""
    tile_overhead: float = _number("s")
    """Time to store a tile of 128 x 256 elements, to start the next one, and to fill its pipeline."""
    flat_gain: float = _number("s")
    """Part of tile_overhead that a flattened loop hides, by loading the next tile's operands during the epilogue."""
    roles_overhead: float = _number("s")
    """Time between two tiles of 128 x 256 elements in place of tile_overhead, if warps have roles: one loads the next
    tile, and one stores the last one and notifies."""

    link_bandwidth: float = _number("B/s")
    """Bandwidth out of one rank, and into one rank, inside a node."""
    sm_push_efficiency: float = _number("1")
    """Fraction of link_bandwidth that stores by many programs reach."""
    sm_pull_efficiency: float = _number("1")
    sm_push_rate: float = _number("B/s")
    """Rate of stores of one program to a peer."""
    sm_pull_rate: float = _number("B/s")
    """Rate of loads of one program from a peer."""
    sm_bulk_rate: float = _number("B/s")
    """Maximum rate of TMA copies by all programs of one SM together."""
    bulk_latency: float = _number("s")
    """Time from the issue of a box's TMA copy until its place in shared memory is free again."""
    link_latency: float = _number("s")
    """One-way latency of a load that waits for its data."""
    signal_latency: float = _number("s")
    """Time from a notify on one rank to the end of the wait on another."""
    local_signal_latency: float = _number("s")
    fence: float = _number("s")
    """Time that a notify costs its program, whose stores must have arrived."""
    wait: float = _number("s")
    """Time that a wait for a full counter costs its program, between products."""
    bare_wait: float = _number("s", 5e-7)
    """The same of a tile that multiplies nothing, where nothing else goes on meanwhile: a load, and its answer."""
    tile_counter: float = _number("s", 7e-7)
    """Time from an addition to a counter in the rank's memory, by which programs take tiles, until its answer."""
    copies_slow_compute: float = _number("1")
    """Slowdown factor of a tile's computation on a rank whose SMs copy at the same time."""

    copy_start: float = _number("s")
    """Time of the copy engine's first copy, and of one directly after a wait."""
    copy_call: float = _number("s")
    """Time of each further copy."""
    copy_signal: float = _number("s")
    """Time of a flag written or awaited by the copy engine's stream."""
    copy_wait: float = _number("s")
    """Time from the filling of an awaited counter until the copy engine's stream resumes."""

    kernel_start: float = _number("s")
    """Time of a launch outside of its kernels: before the first tile and after the last one."""
    kernel_gap: float = _number("s")
    """Time between two kernels of a stream."""

    network_bandwidth: float = _number("B/s")
    """Bandwidth out of one adapter, and into one adapter, between nodes."""
    network_latency: float = _number("s")
    """Additional latency of a transfer or a signal between nodes."""
    network_messages: float = _number("1/s", 1e12)
    """Messages that one adapter sends or receives in a second. The default is no limit. A region whose rows are apart
    in memory is a message for each of them."""
    adapter_ranks: int = _number("ranks", 1)
    """Consecutive ranks of a node that share an adapter."""

    tile_flops: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}), metadata={"unit": "flop/s"})
    """"128x256" -> measured rate of the main loop of such tiles (16-bit floats, all SMs together), for sizes at which
    the estimate is too inaccurate. The corrections of other sizes are interpolated."""
    sources: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}), compare=False, repr=False)
    deviations: tuple[Deviation, ...] = ()
    """Ranks, links and SMs that are not like the others."""

    def by_rank(self, ranks: int) -> tuple[list[Machine], NDArray[np.int64]]:
        """Return the machines without deviations that some rank is, and for each rank the number of its machine."""
        own = [
            tuple(d for d in self.deviations if d.rank == rank and d.peer is None and d.field != CLOCK)
            for rank in range(ranks)
        ]
        kinds = {changes: number for number, changes in enumerate(dict.fromkeys(own))}
        return [self._changed(changes) for changes in kinds], np.array([kinds[changes] for changes in own], np.int64)

    def _changed(self, changes: tuple[Deviation, ...]) -> Machine:
        machine = replace(self, deviations=())
        for one in changes:
            values: dict[str, Any] = {one.field: getattr(machine, one.field) * one.factor}
            if one.field == "matmul_flops":  # measured rates of tiles override it
                values["tile_flops"] = {tile: rate * one.factor for tile, rate in machine.tile_flops.items()}
            machine = replace(machine, **values)
        return machine

    def links(self, field: str, ranks: int) -> NDArray[np.float64]:
        """Return [ranks, ranks]: by what factor a number of the link from one rank to another is not the machine's."""
        factors = np.ones((ranks, ranks))
        for one in self.deviations:
            if one.peer is not None and one.field == field and max(one.rank, one.peer) < ranks:
                factors[one.rank, one.peer] *= one.factor
        return factors

    def clock(self, rank: int, sm: int) -> float:
        """Return the speed of an SM of a rank, in that of the machine's."""
        speed = 1.0
        for one in self.deviations:
            if one.field == CLOCK and one.rank == rank and (one.sms is None or one.sms[0] <= sm <= one.sms[1]):
                speed *= one.factor
        return speed

    def of_nodes(self, ranks: int, nodes: int) -> Machine:
        """Return the machine whose nodes have equally many of so many ranks; this one for one node."""
        return self if nodes == 1 else replace(self, node_ranks=ranks // nodes)

    def adapters(self, ranks: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the adapters of ranks: each is named by the first rank that has it."""
        first = ranks // self.node_ranks * self.node_ranks
        return first + (ranks - first) // self.adapter_ranks * self.adapter_ranks

    @property
    def processor(self) -> Target:
        """The target of plans for this machine: that of its name, with the machine's number of SMs if it is a GPU.

        Raises UnknownTargetError if there is no target of that name.
        """
        kind = target(self.target)
        return kind if kind.kind == "cpu" else replace(kind, sms=int(self.sms))

    def __post_init__(self) -> None:
        for name in NUMBERS:
            value = getattr(self, name)
            least = 0 if UNITS[name] == "s" else 1e-12
            if not _is_number(value) or not least <= value < float("inf"):
                raise MachineError(f"{self.name}: {name} is {value!r}", hint=f"a positive number of {UNITS[name]}")
            if UNITS[name] in _WHOLE and value != int(value):
                raise MachineError(f"{self.name}: {name} is {value!r}", hint=f"a whole number of {UNITS[name]}")
        for name, fits, what in _LIMITS:
            if not fits(self):
                raise MachineError(f"{self.name}: {name} is {getattr(self, name)!r}", hint=what)
        for tile, rate in self.tile_flops.items():
            if not _TILE.fullmatch(tile) or not _is_number(rate) or not 0 < rate < float("inf"):
                raise MachineError(
                    f"{self.name}: tile_flops has {tile!r}: {rate!r}", hint='{"128x256": 7.6e14}, in flop/s'
                )


_LIMITS: tuple[tuple[str, Callable[[Machine], bool], str], ...] = (
    ("sm_push_efficiency", lambda machine: machine.sm_push_efficiency <= 1, "a share of link_bandwidth, at most 1"),
    ("sm_pull_efficiency", lambda machine: machine.sm_pull_efficiency <= 1, "a share of link_bandwidth, at most 1"),
    ("vendor_product_share", lambda machine: machine.vendor_product_share <= 1, "a share of matmul_flops, at most 1"),
    ("vendor_memory_share", lambda machine: machine.vendor_memory_share <= 1, "a share of memory_bandwidth, at most 1"),
    ("vendor_collective_share", lambda machine: machine.vendor_collective_share <= 1, "a share of a rate, at most 1"),
    ("small_share", lambda machine: machine.small_share <= 1, "a share of link_bandwidth, at most 1"),
    ("copies_slow_compute", lambda machine: machine.copies_slow_compute >= 1, "how many times longer, at least 1"),
)
_WHOLE = ("ranks", "SMs", "rows", "B", "tiles")
_INHERITED = frozenset(f.name for f in fields(Thresholds))
_DEFAULTS = frozenset(f.name for f in fields(Machine) if f.default is not MISSING)
_FIELDS = sorted(fields(Machine), key=lambda field: field.name in _INHERITED)  # inherited fields come last
UNITS: Mapping[str, str] = {f.name: f.metadata["unit"] for f in _FIELDS if "unit" in f.metadata}
NUMBERS = tuple(name for name in UNITS if name != "tile_flops")


def load_machine(name: str | Path) -> Machine:
    """Return a machine by the name of a description in the package ("8xH200"), or from a JSON file.

    Raises MachineError if there is no such description or file, or if its content does not describe a machine.
    """
    return _loaded(name, ())


def _loaded(name: str | Path, within: tuple[Path, ...]) -> Machine:
    """Load a machine. within: the files of the descriptions that name it as their base, in order."""
    path = Path(name)
    if not files.is_file(path):
        path = SHIPPED / f"{name}.json"
    if not files.is_file(path):
        what = f"{name} is {kind}, not a file" if (kind := files.kind(name)) else f"no machine {str(name)!r}"
        there = f"a JSON file, or one of {', '.join(shipped_machines())}"
        raise MachineError(what, hint=did_you_mean(str(name), shipped_machines(), there))
    try:
        raw = read_json(path)
    except DataError as error:
        raise MachineError(error.message, hint="write it with save_machine") from None
    if path.resolve() in within:
        raise MachineError(f"{path} is its own base", hint="base names a machine that is described without this one")
    return _machine_of(raw, str(path), (*within, path.resolve()))


def shipped_machines() -> tuple[str, ...]:
    """Return the names of the descriptions in the package."""
    return tuple(sorted(p.stem for p in SHIPPED.glob("*.json")))


def machine_with(target: str) -> Machine | None:
    """Return the description in the package of a machine with processors of a target: the fastest one, or None."""
    every = [load_machine(name) for name in shipped_machines()]
    able = (one for one in every if one.target == target)
    return max(able, key=lambda one: (one.sms, one.memory_bandwidth), default=None)


def save_machine(machine: Machine, path: str | Path) -> None:
    """Write a description that `load_machine` reads back as an equal machine. Raises OutputError if it cannot write."""
    save_output(path, json.dumps(description(machine), indent=1) + "\n")


def description(machine: Machine) -> dict[str, Any]:
    """Return a machine as JSON values: every field with its unit and its source."""
    result: dict[str, Any] = {"name": machine.name, "target": machine.target}
    for name, unit in UNITS.items():
        value = getattr(machine, name)
        value = dict(value) if name == "tile_flops" else value
        result[name] = {"value": value, "unit": unit, "source": machine.sources.get(name, "assumed")}
    return result | ({"deviations": plain(machine.deviations)} if machine.deviations else {})


def machine_of(raw: Any, where: str = "<json>") -> Machine:
    """Return a machine from JSON values as `description` returns them. Raises MachineError that names the field and
    `where`.

    "base" names another machine, by name or file, from which missing entries are taken, its name and target included.
    """
    return _machine_of(raw, where, ())


def _machine_of(raw: Any, where: str, within: tuple[Path, ...]) -> Machine:
    if isinstance(raw, dict) and isinstance(raw.get("base"), str):
        base = description(_loaded(raw["base"], within))
        raw = {**base, **{key: value for key, value in raw.items() if key != "base"}}
    if not isinstance(raw, dict) or not {"name", "target"} <= raw.keys():
        raise MachineError(
            f"{where} does not describe a machine", hint='{"name": ..., "target": ..., "sms": {"value": ...}}'
        )
    names = ["name", "target", *UNITS, "deviations"]
    if unknown := sorted(raw.keys() - {*names}):
        hint = did_you_mean(unknown[0], names, f"it has {', '.join(UNITS)}")
        raise MachineError(f"{where}: a machine has no {unknown[0]!r}", hint=hint)
    if missing := [name for name in NUMBERS if name not in raw and name not in _DEFAULTS]:
        raise MachineError(f"{where}: {missing[0]} is missing", hint=f'"{missing[0]}": {{"value": ...}}')
    if wrong := [name for name in ("name", "target") if not isinstance(raw[name], str)]:
        raise MachineError(f"{where}: {wrong[0]} is {raw[wrong[0]]!r}", hint="a text, such as 8xH200 and sm_90")
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for name in UNITS.keys() & raw.keys():
        entry = raw[name]
        if not isinstance(entry, dict) or "value" not in entry:
            raise MachineError(f"{where}: {name} has no value", hint='{"value": 1.0, "unit": ..., "source": ...}')
        if isinstance(entry["value"], int) and abs(entry["value"]) > MAX_NUMBER:
            raise MachineError(f"{where}: {name} is too large a number", hint=f"a positive number of {UNITS[name]}")
        if entry.get("unit", UNITS[name]) != UNITS[name]:
            raise MachineError(f"{where}: {name} is in {entry['unit']}", hint=f"give it in {UNITS[name]}")
        if name == "tile_flops" and not isinstance(entry["value"], dict):
            raise MachineError(f"{where}: tile_flops is {entry['value']!r}", hint='{"128x256": 7.6e14}, in flop/s')
        values[name] = entry["value"]
        sources[name] = _source(entry.get("source", "assumed"), f"{where}: {name}")
    return Machine(
        name=raw["name"], target=raw["target"], sources=sources, deviations=_deviations(raw, where), **values
    )


def _deviations(raw: Mapping[str, Any], where: str) -> tuple[Deviation, ...]:
    given = raw.get("deviations", [])
    if not isinstance(given, list):
        raise MachineError(f"{where}: deviations are {given!r}", hint='[{"field": ..., "factor": ..., "rank": ...}]')
    missing = {"peer": None, "sms": None}
    try:
        whole = [missing | one if isinstance(one, dict) else one for one in given]
        return tuple(checked(Deviation, one, f"{where}: a deviation") for one in whole)
    except DataError as error:
        hint = '{"field": "link_bandwidth", "factor": 0.61, "rank": 0, "peer": 3}'
        raise MachineError(f"{where}: {error}", hint=hint) from None


def _source(text: Any, where: str) -> str:
    if not isinstance(text, str) or not text.startswith(KINDS):
        raise MachineError(f"{where} comes from {text!r}", hint=f"a source begins with {', '.join(KINDS)}")
    return text
