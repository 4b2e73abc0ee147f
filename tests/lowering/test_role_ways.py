"""The table of what stages with roles cannot do: each row stands in the manual, and refusals name the way round."""

from __future__ import annotations

from pathlib import Path

import pytest

import tilelink
from tilelink import compiler
from tilelink.errors import ScheduleError
from tilelink.lowering.role_ways import WAYS, ways_round

PAGE = Path(__file__).parents[2] / "docs" / "language.md"
HEAD = """program p(M = 512, K = 256, N = 256, T = 512, E = 2, C = 256, L = 4, D = 128):
    x      : in        [M, K]
    w      : in        [N, K]
    v      : in        [N, K]
    ws     : in        [L, N, K]
    rows   : in        [T] < M
    n      : in        [ranks] <= C
    u      : in        [M, L] f32
    xl     : in        [L, M, K]
    begin  : in        [M] i32 from 0 to 100
    told   : symmetric [ranks] <= C
    xs     : symmetric [M, K]
    q      : in        [M, D]
    qs     : in        [L, M, D]
    ks     : in        [L, D, D]
    vs     : in        [L, D, D]
"""
ATTEND = """        state = online_softmax(f32)
        for (t: L):
            state = attend(state, q[i, :], ks[t, :, :], vs[t, :, :], 0.1{mask})
"""
SENT = "    comm send(i: M):\n        tile_push_data(xs[i, :] @ (rank + 1), x[i, :])\n"
SUMS = """    y : out [M, N]
    compute f(i: M, j: N):
        total = zeros(f32)
        for (l: L by 1):
"""
PROGRAMS = {
    "gathers rows": "    y : out [T, N]\n    compute f(i: T, j: N):\n        y[i, j] = dot(x[rows[i], :], w[j, :].T)\n",
    "waits for places": "    y : out [T, N]\n" + SENT
    + "    compute f(i: T, j: N):\n        y[i, j] = dot(xs[rows[i], :], w[j, :].T)\n",
    "looks up, in a loop": "    y : out [M, D]\n    comm tell(p: ranks):\n"
    + "        tile_push_data(told[rank] @ p, n[p])\n    compute f(i: M):\n"
    + ATTEND.format(mask="").replace("q[i, :]", "qs[min(told[0], L - 1), i, :]")
    + "        y[i, :] = finish(state)\n",
    "has `if rank": "    y : out [M, N]\n" + SENT + "    compute f(i: M, j: N):\n        if rank == 0:\n"
    + "            y[i, j] = dot(x[i, :], w[j, :].T)\n        else:\n            y[i, j] = dot(xs[i, :], w[j, :].T)\n",
    "computes in a loop": "    y : out [M, D]\n    compute f(i: M):\n"
    + ATTEND.format(mask=", pos(D)[None, :] >= sum(x[i, :], axis=1)[:, None]")
    + "        y[i, :] = finish(state)\n",
    "leaves out iterations": "    y : out [M, D]\n    compute f(i: M):\n"
    + ATTEND.format(mask="").replace("state = attend", "if t != 1:\n                state = attend")
    + "        y[i, :] = finish(state)\n",
    "scales products": SUMS
    + "            total += dot(xl[l, i, :], ws[l, j, :].T) * u[i, l][:, None]\n        y[i, j] = total\n",
    "adds more": "    y : out [M, D]\n    compute f(i: M):\n        acc = zeros(f32)\n        for (t: L):\n"
    + "            acc += dot(dot(q[i, :], ks[t, :, :].T), vs[t, :, :]) * 2.0\n        y[i, :] = acc\n",
    "multiplies three": "    y : out [M, N]\n    compute f(i: M, j: N):\n"
    + "        y[i, j] = dot(x[i, :], w[j, :].T) + dot(x[i, :], v[j, :].T) + dot(x[i, :], ws[0, j, :].T)\n",
}  # fmt: skip


def test_each_row_stands_in_the_manual() -> None:
    lines = PAGE.read_text().splitlines()
    for way in WAYS:
        assert f"| {way.stage} | {way.because} | {way.instead} |" in lines


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_refusal_names_the_way_round(name: str) -> None:
    tiles = "tile(i=128)" if "compute f(i: M):" in PROGRAMS[name] else "tile(i=128, j=128, k=64)"
    schedule = f"schedule s for p:\n    f on sm, {tiles}, roles(consumers=2, buffers=3)\n"
    used = "\n".join(line for line in HEAD.splitlines() if " : " not in line or f"{line.split()[0]}[" in PROGRAMS[name])
    program = tilelink.parse(f"{used}\n{PROGRAMS[name]}").program()
    dims = {one.name: one.example for one in program.params if one.example is not None}
    with pytest.raises(ScheduleError, match="f cannot have roles") as caught:
        module = tilelink.parse(f"{used}\n{PROGRAMS[name]}{schedule}")
        compiler.bound(module.program(), "s", ranks=2, dims=dims, target="sm_90", dtype="bf16")
    (way,) = (one for one in WAYS if one.stage.startswith(name))
    assert caught.value.hint is not None and f"if it {way.stage}: {way.instead}" in caught.value.hint, str(caught.value)


def test_a_reason_of_sizes_has_no_way_but_other_sizes() -> None:
    assert not ways_round("rows of x are not multiples of 16 bytes")
