# pyright: basic
"""Tensor parallelism by `tilelink.parallel`, on CPU ranks beside torch's own."""

from __future__ import annotations

import pytest

from tests.tiers import thorough
from tests.unit.two_ranks import run_on_ranks

SCENARIOS = {
    "losses": (2, ("losses", "gathered_once", "in_other_modes", "without_gradients", "differentiated_twice")),
    "edges": (2, ("spread_rows", "spread_in_parts", "layouts", "gated", "gated_columns", "mixed", "meshes", "saved")),
    "checks": (2, ("compared", "mistakes", "explained", "dtensors", "other_meshes", "styled_twice")),
    "experts": (2, ("experts",)),
    "experts of three": (3, ("experts",)),
    "joined": (2, ("joined", "reasons", "bounded")),
    "four ranks": (4, ("sharded_twice",)),
    "losses of four": (4, ("losses",)),
    "dtensors of three": (3, ("dtensors",)),
    "compiled": (2, ("compiled",)),
}
"""Numbers of ranks, and what they do."""


@thorough(unless=lambda kind: kind not in ("compiled", "experts of three", "dtensors of three", "losses of four"))
@pytest.mark.parametrize("kind", SCENARIOS)
def test_on_ranks(kind: str) -> None:
    ranks, scenarios = SCENARIOS[kind]
    run_on_ranks("tests.parallel.scenarios", scenarios, ranks)
