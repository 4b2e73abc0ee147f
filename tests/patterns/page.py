"""docs/patterns.md as values."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "patterns.md"

ENTRY = re.compile(
    r"(?P<description>[^\n]+)\n"
    r"\[[\w.]+\]\(\.\./(?P<file>[\w/.]+)\): (?P<names>`\w+`(?:, `\w+`)*); proved with `(?P<options>[^`]+)`\.\n\n"
    r"```tilelink\n(?P<picture>(?:#[^\n]*\n)+)(?P<block>.*?)```\n\n"
    r"\*\*The mistake\.\*\* [^\n]+ `(?P<refusal>[^\n]+)`\n\n"
    r"```diff\n(?P<change>.*?)```\n",
    re.S,
)
"""What stands below a heading."""


@dataclass(frozen=True, kw_only=True)
class Pattern:
    """An entry of the page.

    file: below the repository, with the program and the schedules that `block` shows. options: of `check`, for GPUs.
    change: lines taken away and put in by the mistake, of which hunks are apart by empty lines. refusal: its first
    line, or its beginning before ` ...`.
    """

    title: str
    description: str
    file: str
    program: str
    schedules: tuple[str, ...]
    options: tuple[str, ...]
    block: str
    change: str
    refusal: str

    @property
    def source(self) -> str:
        """The program and the schedules as the file has them."""
        text = (ROOT / self.file).read_text()
        heads = [rf"program {self.program}\(", *(rf"schedule {name} for {self.program}\b" for name in self.schedules)]
        return "\n\n".join(_part(text, head) for head in heads) + "\n"

    @property
    def mistaken(self) -> str:
        """The block with the mistake. Raises ValueError if it does not have the lines that change, once."""
        text = self.block
        for hunk in self.change.strip("\n").split("\n\n"):
            lines = hunk.split("\n")
            old = "".join(f"{line[1:]}\n" for line in lines if line.startswith("-"))
            new = "".join(f"{line[1:]}\n" for line in lines if line.startswith("+"))
            if text.count(old) != 1 or "".join(f"{line[1:]}\n" for line in lines) != old + new:
                raise ValueError(f"{self.title}: not once in the block: {old}")
            text = text.replace(old, new)
        return text


def _part(text: str, head: str) -> str:
    (found,) = re.findall(rf"^{head}[^\n]*\n(?:[ \t]+[^\n]*\n|\n)*", text, re.M)
    return found.rstrip("\n")


def patterns(text: str) -> list[Pattern]:
    """Return the entries of the page. Raises ValueError for one of another form."""
    found: list[Pattern] = []
    for part in re.split(r"^## ", text, flags=re.M)[1:]:
        title, _, rest = part.partition("\n\n")
        entry = ENTRY.fullmatch(f"{rest.rstrip()}\n")
        if entry is None:
            raise ValueError(f"{title}: not the form of an entry")
        program, *schedules = re.findall(r"`(\w+)`", entry["names"])
        found.append(
            Pattern(
                title=title,
                description=entry["description"],
                file=entry["file"],
                program=program,
                schedules=tuple(schedules),
                options=tuple(entry["options"].split()),
                block=entry["block"],
                change=entry["change"],
                refusal=entry["refusal"],
            )
        )
    return found
