"""Random schedules of a program, as text: clauses of every kind, one by one and together."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence

from tilelink.ir.printer import print_scalar
from tilelink.ir.products import products
from tilelink.ir.program import For, Program, Stage, Tensor, Transfer
from tilelink.ir.scalar import Param, Ranks, Whole
from tilelink.ir.visitor import stage_regions, statements
from tilelink.lowering.clauses.defer_notify import deferred_reason
from tilelink.lowering.flat_loops import flat_reason

TILES = (1, 2, 4, 8, 8, 16, 16, 32, 32, 64, 64, 128)
FEW = (4, 8, 8, 16)
"""Small tiles, so that a stage has more of them than programs."""


def drawn(rng: random.Random, program: Program, count: int, tiles: Mapping[str, str]) -> tuple[str, list[str]]:
    """A schedule with about so many clauses, and which they are; empty for none. tiles: stage -> its first clause."""
    entries: dict[str, dict[str, str]] = {stage: {"tile": clause} for stage, clause in tiles.items()}
    off = False
    for _ in range(count):
        if rng.random() < 0.06:
            off = True
            continue
        tensors = [t for t in program.tensors if t.space != "table"]
        if rng.random() < 0.2 and tensors:
            tensor = rng.choice(tensors)
            key, text = _of_tensor(rng, tensor)
            entries.setdefault(tensor.name, {})[key] = text
        else:
            stage = rng.choice(program.stages)
            key, text = _of_stage(rng, program, stage)
            entries.setdefault(stage.name, {})[key] = text
            if key.startswith("tma_copy") and rng.random() < 0.8:
                entries[stage.name]["on"] = "on sm(1)"
    if rng.random() < 0.4:
        _of_products(rng, program, entries)
    if rng.random() < 0.2:
        _of_messages(rng, program, entries)
    lines = [f"    {name} {', '.join(parts.values())}" for name, parts in entries.items()]
    lines += ["    reuse_wait off"] if off else []
    if not lines:
        return "", []
    kinds = sorted(
        {match[0] for p in entries.values() for t in p.values() if (match := re.match(r"(on )?\w+", t))}
        | ({"reuse_wait off"} if off else set())
    )
    return f"\nschedule drawn for {program.name}:\n" + "\n".join(lines) + "\n", kinds


def _of_products(rng: random.Random, program: Program, entries: dict[str, dict[str, str]]) -> None:
    """Adds a clause that few stages can have to one that probably can, with small tiles."""
    fits: list[tuple[Stage, str]] = []
    for at, stage in enumerate(program.stages):
        fits += [(stage, "flatten")] if flat_reason(stage.body) is None else []
        fits += [(stage, "defer_notify")] * 6 if deferred_reason(stage.body) is None else []
        fits += [(stage, "split_k_tail")] if products(statements(stage.body)) else []
        fits += [(stage, "backfill")] if at else []
    if not fits:
        return
    stage, key = rng.choice(fits)
    if rng.random() < 0.8:
        entries.pop(stage.name, None)
    own = entries.setdefault(stage.name, {})
    own[key] = CLAUSES[key](rng, program, stage)
    own["tile"] = tiles_of(rng, program, stage, FEW)
    if key == "backfill":
        own["on"] = f"in {program.stages[program.stages.index(stage) - 1].name} epilogue"


def _of_messages(rng: random.Random, program: Program, entries: dict[str, dict[str, str]]) -> None:
    """Words of data and flag for a tensor that is written by pushes alone, for which few clauses leave room."""
    moved = [s for stage in program.stages for s in statements(stage.body) if isinstance(s, Transfer)]
    pulled = {s.target.tensor for s in moved if s.mode != "push"}
    pushed = sorted({s.target.tensor for s in moved} - pulled)
    fits = [name for name in pushed if program.tensor(name).space == "symmetric"]
    if not fits or any(t.space == "table" for t in program.tensors):
        return
    tensor = rng.choice(fits)
    own: dict[str, str] = {"low_latency": "low_latency"}
    if rng.random() < 0.5:
        own["buffers"] = f"buffers {rng.choice((1, 2, 2, 3))}"
    entries[tensor] = own
    for stage in program.stages:
        named = {region.tensor for region in stage_regions(stage)}
        if tensor in named and rng.random() < 0.7:
            tiles = entries.get(stage.name, {}).get("tile")
            entries[stage.name] = {"tile": tiles or tiles_of(rng, program, stage, FEW)}


def _of_tensor(rng: random.Random, tensor: Tensor) -> tuple[str, str]:
    if tensor.space == "local" and rng.random() < 0.4:
        return "kernel_order", "kernel_order"
    dims = [n.name.lower() for n in tensor.shape if isinstance(n, Param)]
    if dims and (not tensor.symmetric or rng.random() < 0.5):
        return "channel", f"channel({rng.choice(dims)}={rng.choice(TILES)})"
    steps = dims + ["ranks" for n in tensor.shape if isinstance(n, Ranks)]
    if steps and tensor.space in ("local", "symmetric") and rng.random() < 0.3:
        return "slots", f"slots({rng.choice(steps)}={rng.choice((1, 2, 2, 3))})"
    if tensor.space == "symmetric" and rng.random() < 0.3:
        return "low_latency", "low_latency"
    return "buffers", f"buffers {rng.choice((1, 2, 2, 3))}"


def _of_stage(rng: random.Random, program: Program, stage: Stage) -> tuple[str, str]:
    key = rng.choice(sorted(CLAUSES) + ["tile"] * 7 + ["on sm(n)", "copy engine", "pull", "pull", "order"])
    group = "on" if key in ("on sm", "on sm(n)", "copy engine", "fused") else "to" if key in ("push", "pull") else key
    return group, CLAUSES[key](rng, program, stage)


def tiles_of(rng: random.Random, program: Program, stage: Stage, sizes: Sequence[int] = TILES) -> str:
    loops = [d for s in statements(stage.body) if isinstance(s, For) for d in s.indices]
    names = [d.name for d in (*stage.indices, *loops) if isinstance(d.extent, Param)]
    for region in stage_regions(stage):
        dims = zip(region.coords, program.tensor(region.tensor).shape, strict=False)
        names += [n.name.lower() for c, n in dims if isinstance(c, Whole) and isinstance(n, Param)]
    names = names or [d.name for d in stage.indices] or ["i"]
    chosen = [n for n in dict.fromkeys(names) if rng.random() < 0.7] or names[:1]
    return f"tile({', '.join(f'{n}={rng.choice(sizes)}' for n in chosen)})"


def _order(rng: random.Random, program: Program, stage: Stage) -> str:
    if not stage.indices:
        return "order(i)"
    indices = rng.sample(stage.indices, len(stage.indices))
    terms: list[str] = []
    for decl in indices:
        sequence = rng.choice(("{n}", "{n}", "{n} = rank step +1", "{n} = rank + 1 step -1", "{n} = rank xor",
                               "{n} = rank hier(2)", "{n} = 0 step -1", "group({n}, 2)"))  # fmt: skip
        if print_scalar(decl.extent) != "ranks" and "step" in sequence and rng.random() < 0.7:
            sequence = "{n}"
        terms.append(sequence.format(n=decl.name))
    return f"order({', '.join(terms)})"


def _fused(rng: random.Random, program: Program, stage: Stage) -> str:
    return fused_with(rng, program, stage, rng.choice(("prologue", "epilogue")))


def fused_with(rng: random.Random, program: Program, stage: Stage, place: str) -> str:
    """The clause that runs a stage in the kernel of another one, as its prologue or its epilogue."""
    others = [s.name for s in program.stages if s.name != stage.name] or [stage.name]
    return f"in {rng.choice(others)} {place}"


CLAUSES: dict[str, Callable[[random.Random, Program, Stage], str]] = {
    "on sm": lambda rng, program, stage: "on sm",
    "on sm(n)": lambda rng, program, stage: f"on sm({rng.choice((1, 1, 2, 3))})",
    "copy engine": lambda rng, program, stage: "on copy_engine",
    "fused": _fused,
    "tile": tiles_of,
    "order": _order,
    "push": lambda rng, program, stage: "push",
    "pull": lambda rng, program, stage: "pull",
    "num_warps": lambda rng, program, stage: f"num_warps {rng.choice((1, 2, 4, 8))}",
    "num_stages": lambda rng, program, stage: f"num_stages {rng.choice((1, 2, 3))}",
    "flatten": lambda rng, program, stage: "flatten",
    "split_k_tail": lambda rng, program, stage: f"split_k_tail {rng.choice((2, 3, 4))}",
    "halve_tail": lambda rng, program, stage: "halve_tail",
    "backfill": lambda rng, program, stage: f"backfill {rng.choice((1, 2))}",
    "defer_notify": lambda rng, program, stage: "defer_notify",
    "dynamic": lambda rng, program, stage: "dynamic",
    "roles": lambda rng, program, stage: f"roles(consumers={rng.choice((2, 3))}, buffers={rng.choice((2, 4))})",
    "tma_copy": lambda rng, program, stage: f"tma_copy {rng.choice((1, 2, 4))}",
}
