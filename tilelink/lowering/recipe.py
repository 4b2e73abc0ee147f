"""Recipes of lowered programs: all that one was made from, as plain data. Who has it makes the same one again."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tilelink.ir.printer import print_program
from tilelink.lowering.bound import Bound
from tilelink.lowering.listing import listing
from tilelink.target import Target


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The arguments of binding, and the order of copy engines, which is decided of a plan (planning/queue_order.py).

    program, schedule: their texts. numbers: its dimensions and parameters. listing: a hash of the lowered program, by
    which a version that makes another one of the same recipe is known.
    """

    program: str
    schedule: str
    numbers: Mapping[str, Any]
    ranks: int
    nodes: int
    dtype: str
    dialect: str
    target: Target
    own_copies_first: bool
    waits_aside: bool
    listing: str

    @classmethod
    def of(cls, bound: Bound) -> Recipe:
        """Return the recipe of a lowered program to which nothing was done but what binding and planning do."""
        return cls(
            program=print_program(bound.source),
            schedule=str(bound.schedule),
            numbers=bound.numbers,
            ranks=bound.ranks,
            nodes=bound.nodes,
            dtype=bound.dtype,
            dialect=bound.capabilities.dialect,
            target=bound.target,
            own_copies_first=any(kernel.own_copies_first for kernel in bound.kernels),
            waits_aside=any(kernel.waits_aside for kernel in bound.kernels),
            listing=hash_of(bound),
        )


def hash_of(bound: Bound) -> str:
    """Return a hash of the text of a lowered program."""
    return hashlib.blake2b(listing(bound).encode(), digest_size=8).hexdigest()
