"""A case of the campaign: a program and a schedule as text, and the numbers that they are run with."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import Any

HEAD = "# case "


@dataclass(frozen=True, kw_only=True)
class Case:
    """text: one program, and a schedule of it or none. tables: name -> [ranks][...] of integers.

    seed: of the inputs and of the delays. features: what it was drawn with, to count by. sms, programs: of the target.
    nodes: that its ranks fill. routing: of index tensors.
    """

    text: str
    dims: dict[str, Any]
    ranks: int
    dtype: str = "f32"
    tables: dict[str, Any] = field(default_factory=dict[str, Any])
    seed: int = 0
    sms: int = 4
    programs: int = 2
    routing: str = "uniform"
    features: tuple[str, ...] = ()
    nodes: int = 1

    def __str__(self) -> str:
        """The text that `read` takes; numbers that JSON lacks are written as Python's JSON does (NaN, Infinity)."""
        given = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "text"}
        return HEAD + json.dumps(given) + "\n" + self.text

    def but(self, text: str) -> Case:
        """The same with another text."""
        return replace(self, text=text)


def read(text: str) -> Case:
    """A case from its text; lines of remarks before it are skipped."""
    head, _, rest = text[text.index(HEAD) :].partition("\n")
    given: dict[str, Any] = json.loads(head.removeprefix(HEAD))
    given["features"] = tuple(given["features"])
    return Case(text=rest, **given)
