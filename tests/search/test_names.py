# pyright: basic
"""Tiles of products and attention are searched whatever their dimensions and indices are called."""

from random import Random

import pytest

from tilelink import compiler
from tilelink.lowering.clauses.tile import TILE
from tilelink.search import Space
from tilelink.target import target

LOOP = """
program loop(M, N, D):
    x : in [M, D]
    w : in [N, D]
    y : out [M, N]

    compute mul(r: M, c: N):
        acc = zeros(f32)
        for (d: D):
            acc += dot(x[r, d], w[c, d].T)
        y[r, c] = acc
"""
SOFTMAX = """
program softmax(S, T, D):
    q : in [S, D]
    k : in [T, D]
    v : in [T, D]
    y : out [S, D]

    compute attention(a: S):
        total = zeros(f32)
        acc = zeros(f32)
        for (t: T):
            p = exp(dot(q[a, :], k[t, :].T))
            total += sum(p, axis=1)
            acc += dot(p, v[t, :])
        y[a, :] = acc / total[:, None]
"""
ATTEND = """
program attend(S, T, D):
    q : in [S, D]
    k : in [T, D]
    v : in [T, D]
    y : out [S, D]

    compute attention(a: S):
        state = online_softmax(f32)
        for (t: T):
            state = attend(state, q[a, :], k[t, :], v[t, :], 0.1)
        y[a, :] = finish(state)
"""
WHOLE = LOOP.replace("        acc = zeros(f32)\n        for (d: D):\n            acc += dot(x[r, d], w[c, d].T)\n", "")
WHOLE = WHOLE.replace("= acc", "= dot(x[r, :], w[c, :].T)").replace("D]", "Ks]").replace("N, D)", "N, Ks)")


@pytest.mark.parametrize(
    ("text", "tiles"),
    [
        (LOOP, {"r", "c", "d"}),
        (WHOLE, {"r", "c", "ks"}),
        (SOFTMAX, {"a", "t", "d"}),
        (ATTEND, {"a", "t"}),
        (WHOLE.replace("Ks", "R"), {"r", "c"}),  # r is the index: the dimension has no name of its own
    ],
)
@pytest.mark.parametrize("machine", ["cpu", "sm_90"])
def test_tiles_have_the_names_of_the_stage(text: str, tiles: set[str], machine: str) -> None:
    program = compiler.parse(text).programs[0]
    # A tile of attention keeps all of D in registers.
    dims = {p.name: 64 if text is ATTEND and p.name == "D" else 512 for p in program.params}
    space = Space.of([program], dims=dims, ranks=1, target=target(machine))
    (stage,) = program.stages
    (knob,) = (knob for knob in space.knobs[0] if knob.name == f"{stage.name} tile")
    assert len(knob.labels) > 2
    for _ in range(4):
        point = space.random(Random(1))
        assert {name for name, _ in space.schedule(point).stage(stage.name)[TILE]} == tiles
    planned = [space.plan(space.random(Random(number))) for number in range(6)]
    assert any(planned) and "TileSizeError" not in space.refused
