"""Rule `progress` where a rank has many times as many programs as fit it: its time grows with their number."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from tilelink import compiler
from tilelink.planning.plan import make_plan
from tilelink.target import target
from tilelink.verifier import refusals
from tilelink.verifier.progress import _Run

TEXT = """program gathered(M, N):
    x  : in        [M, N]
    xs : symmetric [ranks, M, N]
    y  : out       [ranks, M, N]

    comm gather(p: ranks, i: M):
        tile_push_data(xs[rank, i, :] @ p, x[i, :])
        producer_tile_notify(xs[rank, i, :] @ p)

    compute take(s: ranks, i: M):
        consumer_tile_wait(xs[s, i, :])
        y[s, i, :] = xs[s, i, :] * 2.0

schedule one for gathered:
    gather on copy_engine, tile(i=16)
    take on sm, tile(i=16), program_per_tile
    xs channel(i=16), buffers 2
"""


def test_a_program_that_ends_makes_the_rule_look_at_the_next_one_and_not_at_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks, started = Counter[int](), _Run._started

    def counted(run: _Run, worker: int) -> bool:
        looks[worker] += 1
        return started(run, worker)

    monkeypatch.setattr(_Run, "_started", counted)
    module = compiler.parse(TEXT, "gathered.tl")
    machine = replace(target("sm_90"), sms=4)
    sizes = {"M": 1600, "N": 64}
    made = compiler.bound(module.program(), module.schedules[0], ranks=2, dims=sizes, dtype="f32", target=machine)
    programs = made.ranks * sum(kernel.programs for kernel in made.kernels)
    assert made.kernel_of["take"].programs == 200
    assert refusals(make_plan(made)) == []
    assert sum(looks.values()) < 4 * programs
