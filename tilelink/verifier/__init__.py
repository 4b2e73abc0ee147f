"""The verifier: eleven rules over a plan, each a function that yields refusals. A plan runs only if none refuses it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import chain, islice

import numpy as np

from tilelink.errors import VerificationError
from tilelink.planning.any_program import together
from tilelink.planning.plan import Plan
from tilelink.planning.steps import in_memory
from tilelink.verifier.accounting import accounting
from tilelink.verifier.coverage import coverage
from tilelink.verifier.engine_counters import engine_counters
from tilelink.verifier.loads_ahead import loads_ahead
from tilelink.verifier.network import network
from tilelink.verifier.ordering import Orders, exclusive_writes, ordering
from tilelink.verifier.progress import progress
from tilelink.verifier.reuse import reuse
from tilelink.verifier.roles import roles
from tilelink.verifier.steps import steps
from tilelink.verifier.tiles import tiles
from tilelink.verifier.turns import in_turn
from tilelink.verifier.words import words

Rule = Callable[[Plan, Orders], Iterator[VerificationError]]
RULES: dict[str, Rule] = {
    "tiles": lambda plan, _: tiles(plan),
    "coverage": lambda plan, _: coverage(plan),
    "network": lambda plan, _: network(plan),
    "words": lambda plan, _: words(plan),
    "accounting": lambda plan, _: chain(accounting(plan), engine_counters(plan)),
    "progress": lambda plan, _: iter(()) if in_turn(plan) else progress(together(plan)),
    "ordering": lambda plan, order: chain(ordering(plan, order), _in_program_order(plan)),
    "exclusive_writes": exclusive_writes,
    "steps": steps,
    "reuse": lambda _, order: reuse(in_memory(order.planned.plan), order.planned),
    "roles": lambda plan, order: chain(roles(plan.bound), loads_ahead(plan, order)),
}
"""In the order in which they are checked: a later rule may assume what the earlier ones proved."""
BY_CUTOFF: Mapping[str, Rule] = {
    name: RULES[name]
    for name in ("tiles", "coverage", "network", "words", "accounting", "progress", "ordering", "exclusive_writes",
                 "steps", "reuse", "roles")
}  # fmt: skip
"""The rules that few blocks of a program answer for all of it (cutoff.py): they look at one event or at two, or have a
proof of their own there. With any other rule the whole program is asked."""


def _in_program_order(plan: Plan) -> Iterator[VerificationError]:
    """Yield refusals of a plan that only copies which overtake others make safe: its order is not the program's."""
    if len(plan.overtaking):
        queued = replace(plan, overtaking=np.zeros(0, np.int64))
        yield from ordering(queued, Orders(queued))


def rules(plan: Plan) -> Iterator[tuple[str, Iterator[VerificationError]]]:
    """Yield each rule with its refusals."""
    order = Orders(plan)
    for name, rule in RULES.items():
        yield name, rule(plan, order)


def refusals(plan: Plan, limit: int = 10, on_rule: Callable[[str], None] | None = None) -> list[VerificationError]:
    """Return up to `limit` refusals of the first rule that the plan breaks; an empty list for a safe plan.

    on_rule: called with the name of each rule before it is checked.
    """
    for name, of_rule in rules(plan):
        if on_rule is not None:
            on_rule(name)
        errors = list(islice(of_rule, limit))
        if errors:
            return errors
    return []


def verify(plan: Plan, on_rule: Callable[[str], None] | None = None) -> None:
    """Raise VerificationError, the first refusal, if the plan breaks a rule. on_rule: as for `refusals`."""
    errors = refusals(plan, limit=1, on_rule=on_rule)
    if errors:
        raise errors[0]
