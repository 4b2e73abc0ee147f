"""Mutants of programs whose integers come with a launch: the cases of `python -m tests.campaign --launches`.

A mutant leaves out a line, exchanges two, changes an index, an end of a range, a bound or a promise, or puts a
statement in iterations or a branch of which a launch decides. It is refused, or
it is right for every routing.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable

from tests.campaign.case import Case
from tests.campaign.mistakes import OF_ENTRIES, SIGNAL
from tests.compiler.library import by_name
from tests.launch_programs import Example, examples
from tilelink.ir.typing import infer
from tilelink.reference.routing import KINDS

Lines = list[str]
_EXAMPLES: dict[str, Example] = {}


def launch_case(number: int) -> Case:
    """The case of a number: always the same one."""
    if not _EXAMPLES:
        _EXAMPLES.update(examples())
    rng = random.Random(number)
    example = _EXAMPLES[by_name(_EXAMPLES, number)]
    lines = str(example.program).splitlines()
    changes = [rng.choice(CHANGES) for _ in range(rng.choice((0, 1, 1, 1, 2)))]
    for change in changes:
        lines = change(rng, lines) if body(lines) else lines
    kind = rng.choice(KINDS)
    return Case(
        text="\n".join([*lines, "", *_schedule(rng, example)]) + "\n",
        dims=example.sizes,
        ranks=rng.choice((1, 2, 3, 3, 4)),
        seed=number,
        sms=rng.choice((2, 4, 8)),
        programs=rng.choice((1, 2)),
        routing=kind,
        features=(f"of {example.program.name}", f"routing {kind}", *(change.__name__.strip("_") for change in changes)),
    )


def _schedule(rng: random.Random, example: Example) -> Lines:
    """A schedule with random tiles, orders, channels and buffers; sometimes one that binding refuses."""
    said: Lines = []
    typing = infer(example.program)
    for stage in example.program.stages:
        cut = [d.name for d in stage.indices if d.name not in typing.scalar_indices(stage.name)]
        tiles = [f"{name}={rng.choice((4, 8, 16))}" for name in cut if rng.random() < 0.6]
        parts = [f"tile({', '.join(tiles)})"] if tiles else []
        if rng.random() < 0.3 and len(stage.indices) > 1:
            names = [d.name for d in stage.indices]
            rng.shuffle(names)
            parts.append(f"order({', '.join(names)})")
        if rng.random() < 0.2:
            parts.append(f"on sm({rng.choice((1, 2, 3))})")
        said += [f"    {stage.name} {', '.join(parts)}"] if parts else []
    for tensor in example.program.tensors:
        parts = ["low_latency"] if tensor.space == "symmetric" and rng.random() < 0.3 else []
        if tensor.symmetric and rng.random() < 0.3:
            parts.append(f"buffers {rng.choice((1, 2, 3))}")
        said += [f"    {tensor.name} {', '.join(parts)}"] if parts else []
    if any("low_latency" in line for line in said) and rng.random() < 0.4:
        said.append("    reuse_wait off")
    return [f"schedule drawn for {example.program.name}:", *said] if said else []


def body(lines: Lines) -> list[int]:
    """The numbers of the lines in stages."""
    return [n for n, line in enumerate(lines) if re.match(r" {8}", line)]


def _leave_out(rng: random.Random, lines: Lines) -> Lines:
    at = rng.choice(body(lines))
    return lines[:at] + lines[at + 1 :]


def _exchange(rng: random.Random, lines: Lines) -> Lines:
    at = rng.choice(body(lines)[:-1] or body(lines))
    if at + 1 == len(lines):
        return lines
    return [*lines[:at], lines[at + 1], lines[at], *lines[at + 2 :]]


def _again(rng: random.Random, lines: Lines) -> Lines:
    at = rng.choice(body(lines))
    return [*lines[: at + 1], *lines[at:]]


def _other_index(rng: random.Random, lines: Lines) -> Lines:
    """Put another integer for one between brackets, in a stage."""
    names = ["rank", "0", "1", *sorted(set(re.findall(r"\b([a-z])\s*:", "\n".join(lines))))]
    places = [(n, m) for n in body(lines) for m in re.finditer(r"(?<=[\[, ])(?:rank|[a-z]|\d)(?=[\],])", lines[n])]
    if not places:
        return lines
    at, found = rng.choice(places)
    changed = lines[at][: found.start()] + rng.choice(names) + lines[at][found.end() :]
    return [*lines[:at], changed, *lines[at + 1 :]]


def _other_entry(rng: random.Random, lines: Lines) -> Lines:
    """Put another entry for one: of another index tensor, or at another place."""
    text = "\n".join(lines)
    entries = sorted(set(re.findall(r"\b[a-z]\w*\[[^\[\]:]*\]", text)))
    places = [m for m in re.finditer(r"\b[a-z]\w*\[[^\[\]:]*\]", text)]
    if not places:
        return lines
    found = rng.choice(places)
    return (text[: found.start()] + rng.choice(entries) + text[found.end() :]).splitlines()


def _other_range(rng: random.Random, lines: Lines) -> Lines:
    """Take a range away, exchange its ends, or put another end."""
    text = "\n".join(lines)
    end = r"([^\[\]]*(?:\[[^\]]*\])?[^\[\]]*)"
    places = [*re.finditer(rf"\b([A-Z]\w*)\[{end}:{end}\]", text)]
    if not places:
        return lines
    found = rng.choice(places)
    size, start, stop = found.groups()
    new = rng.choice((size, f"{size}[{stop.strip()}:]", f"{size}[:{stop.strip()} - 1]", f"{size}[:{stop.strip()} + 1]",
                      f"{size}[{start}:{size} // 2]"))  # fmt: skip
    return (text[: found.start()] + new + text[found.end() :]).splitlines()


def _other_promise(rng: random.Random, lines: Lines) -> Lines:
    """Take a promise away, or make a bound inclusive, exclusive or another one."""
    others = ((" distinct", ""), (" offsets", ""), (" offsets", " rising"), (" <= ", " < "), (" < ", " <= "),
              (" replicated", ""))  # fmt: skip
    old, new = rng.choice((*others, ("count[owner]", "C"), (" by 1", "")))
    at = [n for n, line in enumerate(lines) if old in line]
    if not at:
        return lines
    which = rng.choice(at)
    return [*lines[:which], lines[which].replace(old, new, 1), *lines[which + 1 :]]


def _with_entries(rng: random.Random, lines: Lines) -> Lines:
    """Put a statement in iterations or a branch of a launch, a signal most often, divide an end, or repeat a loop."""
    signals = [at for at in body(lines) if SIGNAL.search(lines[at])]
    at = rng.choice(signals if signals and rng.random() < 0.7 else body(lines))
    return rng.choice((OF_ENTRIES[0], *OF_ENTRIES))(rng, list(lines), at) or lines


CHANGES: tuple[Callable[[random.Random, Lines], Lines], ...] = (
    _leave_out, _exchange, _again, _other_index, _other_index, _other_entry, _other_range, _other_promise,
    _with_entries, _with_entries, _with_entries,
)  # fmt: skip
