"""Small mistakes in the text of a program, and changes of places that keep its meaning or do not: who knows."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator

from tilelink.ir.program import DTYPES

REGION = re.compile(r"(?P<name>\w+)\[(?P<coords>[^\[\]]*(?:\[[^\[\]]*\][^\[\]]*)*)\](?P<rank> @ (?:\w+|\([^()]*\)))?")
SIGNAL = re.compile(
    r"\b(producer_tile_notify|consumer_tile_wait|peer_tile_notify|peer_tile_wait|rank_notify|rank_wait)"
)
PART = re.compile(r"\b([A-Z]\w*)\[: ?([^\[\]]+(?:\[[^\]]*\])?[^\[\]]*)\]")
"""A dimension up to an end."""
DECLARED = re.compile(rf"(    \w+ : (?:in|out|local|symmetric)[^<]*\])(?: (?:{'|'.join(DTYPES)}))?")
BODY = " " * 8
Change = Callable[[random.Random, list[str], int], list[str] | None]
Choices = Callable[[str], Iterator[str]]


def spoiled(rng: random.Random, text: str, count: int) -> tuple[str, list[str]]:
    """A program's text with so many changes, and what they are."""
    lines, kinds = text.splitlines(), list[str]()
    for _ in range(20 * count):
        if len(kinds) == count:
            break
        change = rng.choice(CHANGES)
        places = [k for k, line in enumerate(lines) if line.startswith(BODY) and not line.strip().startswith("#")]
        new = change(rng, list(lines), rng.choice(places)) if places else None
        if new is not None and new != lines:
            lines = new
            kinds.append(change.__name__.strip("_").replace("_", " "))
    return "\n".join(lines) + "\n", kinds


def block(lines: list[str], at: int) -> int:
    """One past the last line of the statement that begins at a line."""
    indent = _indent(lines[at])
    end = at + 1
    while end < len(lines) and lines[end].strip() and _indent(lines[end]) > indent:
        end += 1
    return end


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _coordinates(text: str) -> list[str]:
    depth, parts = 0, [""]
    for letter in text:
        depth += (letter in "[(") - (letter in ")]")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return [p.strip() for p in parts]


def _with_region(rng: random.Random, line: str, change: Callable[[re.Match[str]], str | None]) -> str | None:
    """The line with one of its regions changed."""
    found = [m for m in REGION.finditer(line) if m["name"] not in ("full", "pos")]
    if not found:
        return None
    match = rng.choice(found)
    new = change(match)
    return None if new is None else line[: match.start()] + new + line[match.end() :]


def _coordinate(
    rng: random.Random, lines: list[str], at: int, choices: Callable[[str], Iterator[str]]
) -> list[str] | None:
    def change(match: re.Match[str]) -> str | None:
        coords = _coordinates(match["coords"])
        if coords == ["0"]:
            return None
        place = rng.randrange(len(coords))
        options = list(choices(coords[place]))
        if not options:
            return None
        coords[place] = rng.choice(options)
        return f"{match['name']}[{', '.join(coords)}]{match['rank'] or ''}"

    new = _with_region(rng, lines[at], change)
    return None if new is None else [*lines[:at], new, *lines[at + 1 :]]


def _another_place(rng: random.Random, lines: list[str], at: int) -> list[str] | None:
    def choices(coord: str) -> Iterator[str]:
        if coord != ":":
            yield from (f"{coord} + 1", f"{coord} - 1", f"1 + {coord}", f"{coord} + 2")
            yield from (f"{coord} * 1", f"{coord} // 2", f"{coord} + 0")

    return _coordinate(rng, lines, at, choices)


def _wider(rng: random.Random, lines: list[str], at: int) -> list[str] | None:
    return _coordinate(rng, lines, at, lambda coord: iter(() if coord == ":" else (":",)))


def _narrower(rng: random.Random, lines: list[str], at: int) -> list[str] | None:
    return _coordinate(rng, lines, at, lambda coord: iter(("0", "rank") if coord == ":" else ("0",)))


def _another_rank(rng: random.Random, lines: list[str], at: int) -> list[str] | None:
    def change(match: re.Match[str]) -> str | None:
        rank = match["rank"]
        if rank is None:
            return None
        new = rng.choice((f" @ ({rank[3:]} + 1)", f" @ ({rank[3:]} - 1)", "", " @ rank", " @ 0"))
        return f"{match['name']}[{match['coords']}]{new}"

    new = _with_region(rng, lines[at], change)
    return None if new is None else [*lines[:at], new, *lines[at + 1 :]]


def _another_coordinate_of_rank(rng: random.Random, lines: list[str], at: int) -> list[str] | None:
    words = ("rank", "s", "p", "(rank + 1)", "(rank - 1)")
    return _coordinate(rng, lines, at, lambda coord: iter(w for w in words if "rank" in coord or coord in ("s", "p")))


def _another_entry(rng: random.Random, lines: list[str], at: int) -> list[str] | None:
    """Another entry of a table: those are looked up inside of coordinates, ranks and conditions."""
    found = list(re.finditer(r"\b(t\d+|rows|src|table)\[(\w+)\]", lines[at]))
    if not found:
        return None
    match = rng.choice(found)
    new = f"{match[1]}[{rng.choice((match[2] + ' + 1', match[2] + ' - 1', '0'))}]"
    return [*lines[:at], lines[at][: match.start()] + new + lines[at][match.end() :], *lines[at + 1 :]]


def _another_type(rng: random.Random, lines: list[str], at: int) -> list[str] | None:
    """Another type of a tensor's elements: with it, values are cast, refused, or rounded in another way."""
    found = [(k, match[1]) for k, line in enumerate(lines) if (match := DECLARED.fullmatch(line))]
    if not found:
        return None
    at, declared = rng.choice(found)
    return [*lines[:at], f"{declared} {rng.choice(DTYPES)}", *lines[at + 1 :]]


def _dropped(rng: random.Random, lines: list[str], at: int) -> list[str] | None:
    end = block(lines, at)
    return [*lines[:at], *lines[end:]]


def _dropped_signal(rng: random.Random, lines: list[str], at: int) -> list[str] | None:
    return [*lines[:at], *lines[at + 1 :]] if SIGNAL.search(lines[at]) else None


def _repeated(rng: random.Random, lines: list[str], at: int) -> list[str] | None:
    end = block(lines, at)
    return [*lines[:end], *lines[at:end], *lines[end:]]


def _later(rng: random.Random, lines: list[str], at: int) -> list[str] | None:
    """The statement after the next one of its block."""
    end = block(lines, at)
    if end >= len(lines) or not lines[end].strip() or _indent(lines[end]) != _indent(lines[at]):
        return None
    after = block(lines, end)
    return [*lines[:at], *lines[end:after], *lines[at:end], *lines[after:]]


def _another_signal(rng: random.Random, lines: list[str], at: int) -> list[str] | None:
    if not SIGNAL.search(lines[at]):
        return None
    kinds = ("producer_tile", "peer_tile", "rank") if "notify" in lines[at] else ("consumer_tile", "peer_tile", "rank")
    end = "_notify" if "notify" in lines[at] else "_wait"
    return [*lines[:at], SIGNAL.sub(rng.choice(kinds) + end, lines[at]), *lines[at + 1 :]]


def _another_condition(rng: random.Random, lines: list[str], at: int) -> list[str] | None:
    if not lines[at].strip().startswith("if "):
        return None
    old, new = rng.choice((("!=", "=="), ("==", "!="), ("<", "<="), (">", ">="), (":", " and rank > 0:"),
                           ("if ", "if not "), (":", " or rank == 0:")))  # fmt: skip
    return [*lines[:at], lines[at].replace(old, new, 1), *lines[at + 1 :]]


def _under(rng: random.Random, lines: list[str], at: int) -> list[str] | None:
    """The statement under a condition or a loop of one or two iterations."""
    indent, end = " " * _indent(lines[at]), block(lines, at)
    if lines[at].strip().startswith("else"):
        return None
    head = rng.choice(("if rank < ranks:", "if rank != ranks - 1:", "for (z9: 1):", "if not ranks == 0 - ranks - 1:",
                       "for (z9: ranks):", "if rank == 0 or rank > 0:"))  # fmt: skip
    inner = ["    " + line for line in lines[at:end]]
    both = [f"{indent}else:", *inner] if head.startswith("if") and rng.random() < 0.5 else []
    return [*lines[:at], indent + head, *inner, *both, *lines[end:]]


def entries(lines: list[str]) -> list[tuple[str, str]]:
    """(entry, size) of the index tensors that a launch brings: an entry of each, and the dimension that bounds it."""
    found = (re.match(r"    (\w+)\s*: in\s+\[([^\]]*)\] <=? ([A-Z]\w*)\b", line) for line in lines)
    return [(f"{m[1]}[{', '.join('0' for _ in m[2].split(','))}]" if m[2] else m[1], m[3]) for m in found if m]


def within(lines: list[str], at: int, head: str) -> list[str]:
    """The lines with the statement at one of them below a head."""
    indent, end = " " * _indent(lines[at]), block(lines, at)
    return [*lines[:at], indent + head, *("    " + line for line in lines[at:end]), *lines[end:]]


def _in_iterations(rng: random.Random, lines: list[str], at: int) -> list[str] | None:
    """The statement in iterations of which a launch decides how many there are."""
    known = entries(lines)
    if not known or lines[at].strip().startswith("else"):
        return None
    entry, size = rng.choice(known)
    part = rng.choice((f"[: {entry}]", f"[: {entry}]", f"[: {entry} // 2]", f"[{entry} :]"))
    return within(lines, at, f"for (z9: {size}{part}{rng.choice((' by 1', ''))}):")


def _in_branch(rng: random.Random, lines: list[str], at: int) -> list[str] | None:
    """The statement in a branch that a launch decides: then it is guarded, and another access of its place is not."""
    known = entries(lines)
    if not known or lines[at].strip().startswith("else"):
        return None
    return within(lines, at, f"if {rng.choice(known)[0]} > {rng.randrange(3)}:")


def _divided_end(rng: random.Random, lines: list[str], at: int) -> list[str] | None:
    """An end of a range divided by an entry, which may be 0 or surely is not."""
    known, places = entries(lines), [k for k, line in enumerate(lines) if PART.search(line)]
    if not known or not places:
        return None
    at, entry = rng.choice(places), rng.choice(known)[0]
    end = rng.choice(("// {0}", "% {0}", "// max({0}, 1)", "% ({0} + 1)", "// ({0} - 1)")).format(entry)
    new = PART.sub(lambda m: f"{m[1]}[: ({m[2]}) {end}]", lines[at], count=1)
    return [*lines[:at], new, *lines[at + 1 :]]


def _another_range(rng: random.Random, lines: list[str], at: int) -> list[str] | None:
    """A loop again after itself, whose index has the same name and another range."""
    loops = [k for k, line in enumerate(lines) if re.search(r"\bfor \(\w+: [A-Z]\w*", line)]
    known = entries(lines)
    if not loops or not known:
        return None
    at = rng.choice(loops)
    end, part = block(lines, at), rng.choice(("", *(f"[: {entry}]" for entry, _ in known)))
    again = re.sub(r"(for \(\w+: [A-Z]\w*)(\[[^()]*?\])?(?=[,) ])", lambda m: m[1] + part, lines[at], count=1)
    return [*lines[:end], again, *lines[at + 1 : end], *lines[end:]]


OF_ENTRIES: tuple[Change, ...] = (_in_iterations, _in_branch, _divided_end, _another_range)
"""Mistakes in programs that have integers of a launch."""
CHANGES: tuple[Change, ...] = (
    _another_place, _another_place, _wider, _narrower, _another_rank, _another_coordinate_of_rank, _another_entry,
    _another_type, _dropped, _dropped_signal, _repeated, _later, _another_signal, _another_condition, _under, _under,
    *OF_ENTRIES,
)  # fmt: skip
