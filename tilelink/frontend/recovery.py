"""Recovery from syntax errors: the parts that cannot be parsed are removed, so that one run reports every mistake."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise

from tilelink.errors import Location, Mistakes, ParseError, did_you_mean
from tilelink.files import lines_of
from tilelink.frontend.syntax import ProgramSyntax, Source, VariantSyntax

CLOSING = {")": "(", "]": "["}
HEAD = re.compile(r"\s*(program|comm|compute|schedule|def)\b")
STAGES = ("comm", "compute")
BLOCKS = ("program", "schedule")
SPACES = ("in", "out", "inout", "kept", "local", "symmetric", "table")
BLOCK = re.compile(r"(\w+)\s+\w+\s*(?:\(|for\b)")
STAGE = re.compile(r"\s*(?!def\b)(\w+)\s+\w+\s*\(")
TENSOR = re.compile(r"\s*\w+\s*:\s*([A-Za-z_]\w*)(?:\s+([A-Za-z_]\w*))?\s*\[")
MAX_ERRORS = 20
"""Maximum number of syntax errors reported per program."""

Syntax = ProgramSyntax | VariantSyntax
Parse = Callable[[str, Source], list[Syntax]]


@dataclass(kw_only=True)
class _ProgramText:
    """One program of a file; all other lines are blank, so that line numbers stay valid.

    broken: names whose declarations were removed.
    """

    lines: list[str]
    source: Source
    broken: list[str] = field(default_factory=list[str])

    def drop(self, line: int) -> bool:
        """Blank the stage or declaration that contains a line; return True if there was one."""
        heads = [n for n in range(line, -1, -1) if self._begins(n)]
        if not heads or (heads[0] == line and re.match(r"\s*(program|schedule)\b", self.lines[line])):
            return False
        head, stop = heads[0], line + 1
        if re.match(r"\s*(program|schedule)\b", self.lines[head]):
            head = line
        if not HEAD.match(self.lines[head]):
            self.broken += re.findall(r"^\s*(\w+)", self.lines[head])
        margin = _indent(self.lines[head])
        while stop < len(self.lines) and self._continues(stop, margin):
            stop += 1
        found = any(line.strip() for line in self.lines[head:stop])
        self.lines[head:stop] = [""] * (stop - head)
        return found

    def _begins(self, number: int) -> bool:
        """True if a stage, a declaration or a program begins on a line."""
        line = self.lines[number]
        if HEAD.match(line):
            return True
        return bool(_code(line)) and not line.lstrip().startswith(tuple(CLOSING)) and _indent(line) <= self.margin

    def _continues(self, number: int, margin: int) -> bool:
        """True if a line belongs to a part that begins at `margin`: it is blank, deeper, or a closing bracket."""
        line = self.lines[number]
        return not _code(line) or _indent(line) > margin or line.lstrip().startswith(tuple(CLOSING))

    @property
    def margin(self) -> int:
        """The indentation of the program's stages and declarations."""
        return next((own for line in self.lines if _code(line) and (own := _indent(line))), 0)

    @property
    def empty(self) -> bool:
        """True if only the header of the program is left."""
        kept = [line for line in self.lines if line.strip() and not line.strip().startswith("#")]
        return len(kept) < 2


def parse_all(text: str, source: Source, parse: Parse, mistakes: Mistakes) -> list[Syntax]:
    """Return the programs of a text without the stages and declarations that do not parse, and add their errors."""
    found: list[Syntax] = []
    for part in _parts(lines_of(text), source):
        found += _parse_part(part, parse, mistakes)
    return found


def _parse_part(part: _ProgramText, parse: Parse, mistakes: Mistakes) -> list[Syntax]:
    for _ in range(MAX_ERRORS):
        try:
            _brackets(part)
            _words(part)
            _dedents(part)
            found = parse("\n".join(part.lines) + "\n", part.source)
            broken = tuple(part.broken)
            return [replace(one, broken=broken) if isinstance(one, ProgramSyntax) else one for one in found]
        except ParseError as error:
            mistakes.add(error)
            line = (error.location.line if error.location else 1) - 1
            if not part.drop(min(line, len(part.lines) - 1)) or part.empty:
                return []
    return []


def _parts(lines: list[str], source: Source) -> list[_ProgramText]:
    starts = [n for n, line in enumerate(lines) if re.match(r"program\b", line)]
    bounds = [0, *starts[1:], len(lines)]
    parts: list[_ProgramText] = []
    for start, stop in pairwise(bounds):
        own = [""] * start + lines[start:stop]
        parts.append(_ProgramText(lines=own, source=source))
    return parts


def _brackets(part: _ProgramText) -> None:
    """Raise ParseError for an unmatched bracket, which the parser would report only at the end of the file."""
    opened: list[tuple[str, int, int]] = []
    for number, line in enumerate(part.lines):
        if opened and HEAD.match(line):
            break
        for column, char in enumerate(line.partition("#")[0]):
            if char in "([":
                opened.append((char, number, column))
            elif char in CLOSING and (not opened or opened.pop()[0] != CLOSING[char]):
                hint = f"put the {CLOSING[char]!r} before it, or take it out"
                raise ParseError(f"{char!r} closes nothing", location=_at(part, number, column), hint=hint)
    if opened:
        char, number, column = opened[-1]
        hint = "close it on this line, or in the lines that continue it"
        raise ParseError(f"{char!r} is never closed", location=_at(part, number, column), hint=hint)


def _words(part: _ProgramText) -> None:
    """Raise ParseError for a misspelt stage, program or space keyword; the parser would report the token after it."""
    margin, depth = part.margin, 0
    for number, line in enumerate(part.lines):
        code = line.partition("#")[0]
        if code.strip() and not depth and _indent(line) in (0, margin):
            if not _indent(line):
                _known(part, number, BLOCK.match(code), 1, BLOCKS, "a file has programs and schedules")
            else:
                _known(part, number, STAGE.match(code), 1, STAGES, "a stage is comm or compute")
                spaces = "a tensor is in, out, inout, kept, local, symmetric or table"
                _known(part, number, TENSOR.match(code), 1, SPACES, spaces)
                _known(part, number, TENSOR.match(code), 2, SPACES, spaces)
        depth += sum(code.count(c) for c in "([") - sum(code.count(c) for c in ")]")


def _known(
    part: _ProgramText, number: int, found: re.Match[str] | None, group: int, words: tuple[str, ...], hint: str
) -> None:
    word = found[group] if found else None
    if found and word and word not in words:
        place = replace(_at(part, number, found.start(group)), length=len(word))
        raise ParseError(
            f"unknown {word!r}", location=place, hint=did_you_mean(word, words, hint if words is SPACES else "") or hint
        )


def _dedents(part: _ProgramText) -> None:
    """Raise ParseError for a line whose indentation matches no enclosing block."""
    margins, depth = [0], 0
    for number, line in enumerate(part.lines):
        code = line.partition("#")[0]
        if code.strip() and not depth:
            own = _indent(line)
            outer = [m for m in margins if m <= own]
            if len(outer) < len(margins) and own != outer[-1]:
                place = _at(part, number, len(line) - len(line.lstrip()))
                raise ParseError("indentation that matches no block", location=place, hint="indent each block alike")
            margins = outer if own == outer[-1] else [*outer, own]
        depth += sum(code.count(c) for c in "([") - sum(code.count(c) for c in ")]")


def _at(part: _ProgramText, line: int, column: int) -> Location:
    return Location(file=part.source.file, line=line + 1, column=column + 1, text=part.source.lines[line])


def _code(line: str) -> str:
    return line.partition("#")[0].strip()


def _indent(line: str) -> int:
    return len(line.expandtabs(8)) - len(line.expandtabs(8).lstrip())
