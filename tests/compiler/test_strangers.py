"""Programs that the library does not have run as they are: exchanges, pulls, attention, rows chosen by numbers."""

from __future__ import annotations

from itertools import cycle
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.tiers import thorough
from tilelink.cli import app

FOLDER = Path(__file__).with_name("strangers")
SIZES = {
    "a2a": ("M=37", "N=20"),
    "halo": ("M=33", "N=20"),
    "attn": ("S=40", "H=2", "D=24", "scale=0.3", "causal=true"),
    "one_hot": ("E=3", "C=20", "T=70", "K=40"),
    "parts": ("P=5", "M=40", "N=30"),
    "moe": ("M=40", "B=6", "T=20", "K=48", "E=3", "N=36"),
}


@thorough(unless=lambda name: name in ("halo", "moe"))
@pytest.mark.parametrize(("name", "ranks"), list(zip(sorted(SIZES), cycle((4, 5)), strict=False)))
def test_matches_the_reference(name: str, ranks: int) -> None:
    sets = [word for size in SIZES[name] for word in ("--set", size)]
    done = CliRunner().invoke(app, ["run", str(FOLDER / f"{name}.tl"), "--ranks", str(ranks), "--repeat", "2", *sets])
    assert done.exit_code == 0, done.output
    assert " ok " in done.output
