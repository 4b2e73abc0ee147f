"""The listing of a stage with roles says which role executes each wait and notify, and the emitted kernel does that."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.compiler.library import Case, cases, fitted, has_roles, name, wide
from tests.tiers import one_in, thorough
from tilelink import compiler
from tilelink.backend.emit import emit
from tilelink.ir.program import Notify, Wait
from tilelink.ir.visitor import statements
from tilelink.lowering.bound import Bound
from tilelink.lowering.listing import listing
from tilelink.lowering.rings import CONSUMER, LOADER, STORER

SIGNAL = re.compile(r"(?:consumer_tile_wait|peer_tile_wait|producer_tile_notify|peer_tile_notify)\(.*\)")
ROLES = (LOADER, CONSUMER, STORER)


def in_listing(bound: Bound) -> Iterator[tuple[str, str]]:
    """Pairs of a role and a wait or a notify, from the comments of the listing."""
    for line in listing(bound).splitlines():
        text, beside, role = line.strip().partition("  # ")
        if beside and SIGNAL.fullmatch(text):
            yield role, text


def in_source(source: str) -> Iterator[tuple[str, str]]:
    """The same from the comments in the functions of a kernel."""
    role = ""
    for line in re.sub(r"\n *#     ", " ", source).splitlines():  # long comments go on in further lines
        if function := re.match(r"def (\w+)\(", line):
            role = next((r for r in ROLES if function[1].endswith(f"_{r}")), "")
        elif role and line.lstrip().startswith("#") and (signal := SIGNAL.search(line)):
            yield role, signal[0]


@thorough(unless=lambda case, ranks: ranks == 2 or one_in(8, name(case)))
@pytest.mark.parametrize("ranks", [2, 8])
@pytest.mark.parametrize("case", [case for case in cases() if has_roles(case)], ids=name)
def test_the_listing_and_the_kernel_agree_on_who_executes_a_signal(case: Case, ranks: int) -> None:
    program, schedule = case
    sizes = fitted(case, wide(program, ranks))
    plan = compiler.plan(program, schedule, ranks=ranks, dims=sizes, dtype="bf16", target="sm_90")
    said = set(in_listing(plan.bound))
    assert said == set(in_source(emit(plan.bound, plan.thresholds).text))
    body = [s for stage in plan.bound.stages.values() if stage.roles for s in statements(stage.stage.body)]
    assert bool(said) == any(isinstance(s, Wait | Notify) for s in body)
