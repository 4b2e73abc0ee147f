"""Makes a wrong case smaller: takes away lines and clauses while what is wrong with it stays."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace

from tests.campaign.case import Case
from tests.campaign.mistakes import block
from tilelink.scheduling.words import words

Wrong = Callable[[Case], bool]


def smaller(case: Case, wrong: Wrong, tries: int = 150) -> Case:
    """The least case that was met; `wrong` says whether one still is what it was."""
    left, again = tries, True
    while again:
        again = False
        for text in list(_shorter(case.text)):
            left -= 1
            if left < 0:
                return case
            candidate = case.but(text)
            if wrong(_without_unused(candidate)):
                case, again = _without_unused(candidate), True
                break
    return case


def _shorter(text: str) -> Iterator[str]:
    """Texts without one statement or stage, without one clause, and with one statement out of its condition."""
    lines = text.splitlines()
    for at in range(1, len(lines)):
        if lines[at].strip() and not re.match(r"    (\w+) +: |program ", lines[at]):
            yield _join(lines[:at], lines[block(lines, at) :])
    clauses = [first for word in words() for first in word.first_words]
    for at, line in enumerate(lines):
        parts = line.split(", ")
        if re.match(rf"    \w+ ({'|'.join(clauses)})\b", line):
            for k in range(len(parts)) if len(parts) > 1 else ():
                name = "" if k else " ".join(line.split()[:1])
                rest = ", ".join(parts[:k] + parts[k + 1 :])
                yield _join(lines[:at], [f"    {name} {rest}" if name else rest], lines[at + 1 :])
        if re.match(r"        +(if|for) ", line):
            end = block(lines, at)
            yield _join(lines[:at], [inner[4:] for inner in lines[at + 1 : end]], lines[end:])


def _join(*parts: list[str]) -> str:
    return "\n".join(line for part in parts for line in part) + "\n"


def _without_unused(case: Case) -> Case:
    """Without blank lines, and without declarations, parameters and tables that nothing names."""
    lines = [line for line in case.text.splitlines() if line.strip()]
    for line in list(lines):
        declared = re.match(r"    (\w+) +: ", line)
        if declared and _times(declared[1], case.text) == 1:
            lines.remove(line)
    text = "\n".join(lines) + "\n"
    for name in (n for n in case.dims if _times(n, text) == 1):
        text = re.sub(rf"(?<=\()({name})(: \w+)?(, )?|, {name}(: \w+)?(?=[,)])", "", text, count=1)
    dims = {name: value for name, value in case.dims.items() if _times(name, text)}
    tables = {name: rows for name, rows in case.tables.items() if re.search(rf"\b{name} +: table", text)}
    return replace(case, text=text, dims=dims, tables=tables)


def _times(name: str, text: str) -> int:
    return len(re.findall(rf"\b{name}\b", text))
