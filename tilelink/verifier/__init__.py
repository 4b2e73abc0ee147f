"""The verifier: seven rules over a plan, each a function that yields refusals. A plan runs only if none refuses it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice

from tilelink.errors import VerificationError
from tilelink.planning.plan import Plan
from tilelink.verifier.accounting import accounting
from tilelink.verifier.coverage import coverage
from tilelink.verifier.ordering import exclusive_writes, ordering
from tilelink.verifier.progress import progress
from tilelink.verifier.reuse import reuse
from tilelink.verifier.roles import roles

Rule = Callable[[Plan], Iterator[VerificationError]]
RULES: tuple[Rule, ...] = (coverage, accounting, progress, ordering, exclusive_writes, reuse, roles)
"""In the order in which they are checked: a later rule may assume what the earlier ones proved."""


def refusals(plan: Plan, limit: int = 10) -> list[VerificationError]:
    """Return up to `limit` refusals of the first rule that the plan breaks; an empty list for a safe plan."""
    for rule in RULES:
        errors = list(islice(rule(plan), limit))
        if errors:
            return errors
    return []


def verify(plan: Plan) -> None:
    """Raises VerificationError, the first refusal, if the plan breaks a rule."""
    errors = refusals(plan, limit=1)
    if errors:
        raise errors[0]
