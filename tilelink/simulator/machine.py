"""Machines: what the ranks of a simulated run are made of, in units, and where each number comes from."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeGuard

from tilelink import files
from tilelink.data import read_json, save_output
from tilelink.errors import DataError, MachineError
from tilelink.target import Target, target

SHIPPED = Path(__file__).parents[1] / "machines"
MOST = 10**100
"""Whole numbers beyond it mean nothing, and the largest have no float."""
KINDS = ("measured", "data sheet", "derived", "assumed")
"""How a source begins: read off this machine, off its data sheet, computed from others of its fields, or guessed."""


_TILE = re.compile("[1-9][0-9]*x[1-9][0-9]*")


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _number(unit: str, default: float | None = None) -> Any:
    return field(metadata={"unit": unit}, default=MISSING if default is None else default)


MIB = 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class Thresholds:
    """Sizes at which one implementation of an operator overtakes another. The simulator does not read them.

    The defaults are those measured on four H200s; a description may leave them out.
    """

    fused_gather_rows: int = _number("rows", 1024)
    """From so many rows on (of all ranks together) one kernel gathers and multiplies."""
    fused_scatter_rows: int = _number("rows", 2048)
    """The same for a kernel that multiplies and scatters sums."""
    fused_rank_rows: int = _number("rows", 256)
    """And how many rows of one rank there must be for either."""
    modelled_rows: int = _number("rows", 512)
    """From so many rows on (of all ranks together) the model may know a fused schedule that is better."""
    modelled_rank_rows: int = _number("rows", 128)
    """And how many rows of one rank there must be for that."""
    small_gather_bytes: int = _number("B", 16 * MIB)
    """Up to so many, of what all ranks hold then, the library's own kernel gathers, next to the vendor's product."""
    small_scatter_bytes: int = _number("B", 16 * MIB)
    """The same for sums that are scattered."""
    small_reduce_bytes: int = _number("B", 8 * MIB)
    """The same for sums that every rank gets."""
    one_shot_bytes: int = _number("B", MIB * 3 // 4)
    """Every rank sums everything where each receives at most so many."""
    small_tiles: int = _number("tiles", 1024)
    """Most tiles of such a kernel: of few rows or columns most of a tile is empty."""


@dataclass(frozen=True, kw_only=True)
class Machine(Thresholds):
    """One kind of rank and what joins the ranks. Rates are of one rank and of one direction.

    `sources`: field -> "measured: ...", "data sheet: ...", "derived: ..." or "assumed: ...".
    """

    name: str
    target: str
    """The target that kernels are compiled for, as `tilelink.target` names it."""
    node_ranks: int = _number("ranks")
    """Ranks of one node, which fill nodes one after the other; further ones are reached through the network."""
    sms: int = _number("SMs")

    matmul_flops: float = _number("flop/s")
    """Products of 16-bit floats inside the main loop of a large tile, all SMs together."""
    vector_flops: float = _number("flop/s")
    """Elementwise f32 operations, all SMs together."""
    special_rate: float = _number("op/s")
    """Exponentials and their kin, all SMs together."""
    cache_bandwidth: float = _number("B/s")
    """Operands from the L2 cache into all SMs."""
    memory_bandwidth: float = _number("B/s")
    sm_bandwidth: float = _number("B/s")
    """Most that one SM moves from or to memory."""
    load_latency: float = _number("s")
    """Of one load in the main loop, besides what its bytes take at sm_bandwidth; hidden by its pipeline."""
    tile_overhead: float = _number("s")
    """Storing a tile of 128 x 256 elements, turning to the next one, and filling its pipeline."""
    flat_gain: float = _number("s")
    """What of that a flat loop hides, where the next tile's operands come while the last one ends."""

    link_bandwidth: float = _number("B/s")
    """Out of one rank, and into one rank, inside a node."""
    sm_push_efficiency: float = _number("1")
    """Share of the link that stores by many programs reach."""
    sm_pull_efficiency: float = _number("1")
    sm_push_rate: float = _number("B/s")
    """Stores of one program to a peer."""
    sm_pull_rate: float = _number("B/s")
    """Loads of one program from a peer."""
    sm_bulk_rate: float = _number("B/s")
    """Most that the programs of one SM copy by TMA, together."""
    bulk_latency: float = _number("s")
    """From when a box is ordered that is copied by TMA until its place in shared memory is free again."""
    link_latency: float = _number("s")
    """One way, of a load that waits for its data."""
    signal_latency: float = _number("s")
    """From a notify on one rank to the end of the wait on another."""
    local_signal_latency: float = _number("s")
    fence: float = _number("s")
    """What a notify costs the program that gives it: its stores must have arrived."""
    wait: float = _number("s")
    """What a wait for a counter that is full already costs its program."""
    copies_slow_compute: float = _number("1")
    """How much longer a tile's computation takes on a rank whose SMs copy at the same time."""

    copy_start: float = _number("s")
    """First copy of the copy engine, and one behind a wait."""
    copy_call: float = _number("s")
    """Each further copy."""
    copy_signal: float = _number("s")
    """A flag written or awaited by the copy engine's stream."""
    copy_wait: float = _number("s")
    """Until its stream goes on, from when the counter is full that it waits for."""

    kernel_start: float = _number("s")
    """Of a launch, besides its kernels: before the first tile and after the last."""
    kernel_gap: float = _number("s")
    """Between two kernels of a stream."""

    network_bandwidth: float = _number("B/s")
    """Out of one rank, and into one rank, between nodes."""
    network_latency: float = _number("s")
    """What a transfer or a signal takes longer between nodes."""

    tile_flops: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}), metadata={"unit": "flop/s"})
    """"128x256" -> measured main loop of such tiles (16-bit floats, all SMs together), where the estimate is not good
    enough; sizes between those measured are corrected as their neighbours are."""
    sources: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}), compare=False, repr=False)

    @property
    def processor(self) -> Target:
        """What plans for it are made for: its target, if that is a GPU with as many SMs as it has.

        Raises UnknownTargetError.
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
    ("copies_slow_compute", lambda machine: machine.copies_slow_compute >= 1, "how many times longer, at least 1"),
)
_WHOLE = ("ranks", "SMs", "rows", "B", "tiles")
_DEFAULTS = frozenset(f.name for f in fields(Thresholds))
_FIELDS = sorted(fields(Machine), key=lambda one: one.name in _DEFAULTS)  # inherited ones come last
UNITS: Mapping[str, str] = {f.name: f.metadata["unit"] for f in _FIELDS if "unit" in f.metadata}
NUMBERS = tuple(name for name in UNITS if name != "tile_flops")


def load_machine(name: str | Path) -> Machine:
    """A machine by the name of a description that comes with the package ("8xH200"), or from a JSON file.

    Raises MachineError for neither, and for a description that is not one.
    """
    return _loaded(name, ())


def _loaded(name: str | Path, within: tuple[Path, ...]) -> Machine:
    """within: the files whose base it is, one after the other."""
    path = Path(name)
    if not files.is_file(path):
        path = SHIPPED / f"{name}.json"
    if not files.is_file(path):
        what = f"{name} is {kind}, not a file" if (kind := files.kind(name)) else f"no machine {str(name)!r}"
        raise MachineError(what, hint=f"a JSON file, or one of {', '.join(shipped_machines())}")
    try:
        raw = read_json(path)
    except DataError as error:
        raise MachineError(error.message, hint="write it with save_machine") from None
    if path.resolve() in within:
        raise MachineError(f"{path} is its own base", hint="base names a machine that is described without this one")
    return _machine_of(raw, str(path), (*within, path.resolve()))


def shipped_machines() -> tuple[str, ...]:
    """The descriptions that come with the package."""
    return tuple(sorted(p.stem for p in SHIPPED.glob("*.json")))


def save_machine(machine: Machine, path: str | Path) -> None:
    """Writes a description that `load_machine` reads back as an equal machine. Raises OutputError."""
    save_output(path, json.dumps(description(machine), indent=1) + "\n")


def description(machine: Machine) -> dict[str, Any]:
    """A machine as JSON values: every field with its unit and its source."""
    result: dict[str, Any] = {"name": machine.name, "target": machine.target}
    for name, unit in UNITS.items():
        value = getattr(machine, name)
        value = dict(value) if name == "tile_flops" else value
        result[name] = {"value": value, "unit": unit, "source": machine.sources.get(name, "assumed")}
    return result


def machine_of(raw: Any, where: str = "<json>") -> Machine:
    """A machine from what `description` gives. Raises MachineError that names the field and `where`.

    "base": what is not given is as in this machine, by its name or file; its name and target too.
    """
    return _machine_of(raw, where, ())


def _machine_of(raw: Any, where: str, within: tuple[Path, ...]) -> Machine:
    if isinstance(raw, dict) and isinstance(raw.get("base"), str):
        base = description(_loaded(raw["base"], within))
        raw = {**base, **{key: value for key, value in raw.items() if key != "base"}}
    if not isinstance(raw, dict) or not {"name", "target"} <= raw.keys():
        raise MachineError(f"{where} describes no machine", hint='{"name": ..., "target": ..., "sms": {"value": ...}}')
    if unknown := sorted(raw.keys() - {"name", "target", *UNITS}):
        raise MachineError(f"{where}: a machine has no {unknown[0]!r}", hint=f"it has {', '.join(UNITS)}")
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
        if isinstance(entry["value"], int) and abs(entry["value"]) > MOST:
            raise MachineError(f"{where}: {name} is too large a number", hint=f"a positive number of {UNITS[name]}")
        if entry.get("unit", UNITS[name]) != UNITS[name]:
            raise MachineError(f"{where}: {name} is in {entry['unit']}", hint=f"give it in {UNITS[name]}")
        if name == "tile_flops" and not isinstance(entry["value"], dict):
            raise MachineError(f"{where}: tile_flops is {entry['value']!r}", hint='{"128x256": 7.6e14}, in flop/s')
        values[name] = entry["value"]
        sources[name] = _source(entry.get("source", "assumed"), f"{where}: {name}")
    return Machine(name=raw["name"], target=raw["target"], sources=sources, **values)


def _source(text: Any, where: str) -> str:
    if not isinstance(text, str) or not text.startswith(KINDS):
        raise MachineError(f"{where} comes from {text!r}", hint=f"a source begins with {', '.join(KINDS)}")
    return text
