"""How many launches of a program may be in flight: `buffers n`."""

from __future__ import annotations

from tilelink.schedule.clauses.clause import Clause, Numbers, count, ratio


def _apart(one: int | None, other: int | None, _: Numbers, __: int) -> float:
    return ratio(one, other)


BUFFERS: Clause[int | None] = count(
    "buffers", "a tensor has at least one buffer", of="tensor", apart=_apart,
    manual="how many launches may use a symmetric tensor before its memory is used again",
)  # fmt: skip
