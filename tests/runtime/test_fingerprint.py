"""What ranks compare before they launch anything together: with other counters or tables they would wait for ever."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tilelink import compiler
from tilelink.artifact import Artifact
from tilelink.compiler.cuda import gpu_artifact
from tilelink.errors import RankError
from tilelink.runtime.cuda import device

SENT = compiler.parse("""
program sent(B, M):
    to : table [B] < ranks
    x  : in [B, M]
    y  : out symmetric [B, M]

    comm go(b: B):
        tile_push_data(y[b, :] @ to[b], x[b, :])
        peer_tile_notify(y[b, :] @ to[b])
""").program()
SWAPPED, KEPT = [[1, 1], [0, 0]], [[0, 0], [1, 1]]
CROSSED, STRAIGHT = [[0, 1], [1, 0]], [[1, 0], [0, 1]]


def program(to: list[list[int]], m: int = 64, dtype: Any = np.int64) -> Artifact:
    tables = {"to": np.array(to, dtype)}
    plan = compiler.plan(SENT, ranks=2, dims={"B": 2, "M": m}, dtype="bf16", target="sm_90", tables=tables)
    return gpu_artifact(plan, tables)


def test_the_same_is_the_same_however_its_tables_are_held() -> None:
    assert program(CROSSED).fingerprint == program(CROSSED, dtype=np.int32).fingerprint
    assert 0 <= program(CROSSED).fingerprint < 2**60


def test_other_tables_and_counters_of_one_module_are_told_apart() -> None:
    made = [program(to) for to in (CROSSED, STRAIGHT, SWAPPED, KEPT)]
    assert len({one.source for one in made}) == 1
    assert len({one.fingerprint for one in made}) == len(made)
    first = made[0]
    grids = tuple(replace(grid, thresholds=grid.thresholds + 1) for grid in first.grids)
    assert replace(first, grids=grids).fingerprint != first.fingerprint


def test_other_modules_are_told_apart() -> None:
    one = program(CROSSED)
    assert program(CROSSED, m=128).fingerprint != one.fingerprint
    assert replace(one, source="tilelink_0").fingerprint != one.fingerprint
    assert replace(one, spans=7).fingerprint != one.fingerprint


def test_ranks_that_differ_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = program(CROSSED), program(STRAIGHT)
    agree: Any = device.agree
    monkeypatch.setattr(device, "of_all", lambda own, group, device: [own, one.fingerprint])
    monkeypatch.setattr(device.dist, "get_rank", lambda group: 0)
    agree(one.fingerprint, None, None)
    with pytest.raises(RankError, match="rank 0 and rank 1 compile different programs") as caught:
        agree(other.fingerprint, None, None)
    assert caught.value.hint is not None and "tables" in caught.value.hint
