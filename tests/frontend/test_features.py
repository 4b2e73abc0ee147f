# pyright: basic
"""Every feature of the language in both front ends: it parses, checks, prints, and gives the same program."""

from __future__ import annotations

import pytest

import tilelink
from tests.frontend.random_programs import as_python, as_text
from tests.frontend.test_round_trip import decorated
from tilelink import compiler
from tilelink.frontend.checker import check
from tilelink.frontend.parser import parse_text
from tilelink.ir.printer import print_program
from tilelink.ir.program import Program

HEAD = """\
program p(M, N, K, scale: f32, causal: bool, shift: i32):
    x    : in [M, K]
    w    : in [N, K] DTYPE
    g    : in symmetric [ranks, M, N]
    rows : table [M] < M
    own  : table [M] < ranks
    c    : local [M, N] f32
    h    : symmetric [ranks, M, N]
    s    : symmetric [ranks, M, K]
    y    : out [M, N]
"""
PYTHON = """\
@tilelink.program
def p(M, N, K, scale: float, causal: bool, shift: int):
    x = tilelink.input(M, K)
    w = tilelink.input(N, K, dtype='DTYPE')
    g = tilelink.input(ranks, M, N, symmetric=True)
    rows = tilelink.table(M, bound=M)
    own = tilelink.table(M, bound=ranks)
    c = tilelink.local(M, N, dtype='f32')
    h = tilelink.symmetric(ranks, M, N)
    s = tilelink.symmetric(ranks, M, K)
    y = tilelink.output(M, N)
"""
Stage = tuple[str, str, list[str]]


def values(text: str) -> list[Stage]:
    return [("compute", "i: M, j: N", [f"y[i, j] = {text}"])]


SEND = ["tile_push_data(h[rank, i, :] @ p, g[rank, i, :])", "producer_tile_notify(h[rank, i, :] @ p)"]
FEATURES: dict[str, list[Stage]] = {
    "rank arithmetic": [
        ("comm", "p: ranks, i: M", [line.replace("@ p", "@ ((rank - p * 2 + shift) % ranks ^ 1)") for line in SEND]),
        ("compute", "i: M, j: N", ["consumer_tile_wait(h[rank - 1, i, j])", "y[i, j] = h[rank - 1, i, j]"]),
    ],
    "several stages": [
        ("comm", "p: ranks, i: M", SEND),
        ("compute", "i: M, j: N", ["consumer_tile_wait(h[:, i, j])", "c[i, j] = sum(h[:, i, j], axis=0)",
                                   "producer_tile_notify(c[i, j])"]),
        ("compute", "i: M, j: N", ["consumer_tile_wait(c[i, j])", "y[i, j] = c[i, j]"]),
    ],
    "if on ranks and tile indices": [
        ("compute", "i: M, j: N, p: ranks", [
            "if p == rank and not (i < 2 or j >= shift):", "    y[i, j] = 1.0",
            "else:", "    if p == rank:", "        y[i, j] = 2.0",
        ]),
    ],
    "a reduction loop with waits": [
        ("comm", "p: ranks, i: M", ["tile_push_data(s[rank, i, :] @ p, x[i, :])",
                                    "producer_tile_notify(s[rank, i, :] @ p)"]),
        ("compute", "i: M, j: N", ["acc = zeros(f32)", "FOR p: ranks", "    consumer_tile_wait(s[p, i, :])",
                                   "    acc += dot(s[p, i, :], w[j, :].T)", "y[i, j] = acc"]),
    ],
    "accumulators": [
        ("compute", "i: M, j: N", ["acc = full(1.5, f32)", "top = x[i, :]", "FOR p: ranks; q: ranks",
                                   "    acc += g[p, i, j] * g[q, i, j]", "    acc -= 1.0", "acc *= scale", "acc /= 2",
                                   "y[i, j] = acc + max(top, axis=1)[:, None]"]),
    ],
    "functions": values(
        "exp(silu(gelu(relu(rsqrt(sqrt(log(abs(sigmoid(tanh(dot(x[i, :], w[j, :].T)))))))))))"
    ),
    "where, maximum, minimum": values("where(g[0, i, j] > 0.0, maximum(g[0, i, j], scale), min(g[1, i, j], 2.0))"),
    "conditions of values": values("where(not (g[0, i, j] <= 0.5) and causal, 1.0, 0.0)"),
    "casts": values("f32(f16(g[0, i, j])) + bf16(g[1, i, j]) + g[2, i, j].to(f32)"),
    "sum and max": values("(sum(x[i, :], axis=1) + max(x[i, :], axis=-1) - min(x[i, :], axis=1))[:, None]"),
    "a product of products": values("dot(x[i, :], (w[j, :] * scale).T) * 0.5 - g[rank, i, j] / 3"),
    "numbers and positions": values("where(pos(i)[:, None] >= pos(j) + rank * M, scale * shift + rank, -1.5e-3)"),
    "positions along a size": values("sum(where(pos(N + 1)[None, :] > pos(j)[:, None], 1, 0), axis=1) * g[0, i, j]"),
    "tables": values("g[own[i], rows[i], j] + where(rows[i] < shift, 1.0, 0.0)"),
    "rows of a table": [
        ("compute", "b: M, j: N", ["y[b, j] = g[own[b], rows[b], j] * f32(rows[b])"]),
    ],
    "online softmax": [
        ("compute", "i: M, d: 1", [
            "state = online_softmax(f32)", "FOR p: ranks; k: M", "    if p <= rank:",
            "        state = attend(state, g[rank, i, :], g[p, k, :], g[p, k, :], scale, causal)",
            "y[i, :] = finish(state)",
        ]),
    ],
    "a mask of one's own": [
        ("compute", "i: M, d: 1", [
            "state = online_softmax(f32)", "FOR k: M",
            "    state = attend(state, x[i, :], x[k, :], g[0, k, :], 0.125, pos(i)[:, None] >= pos(k))",
            "y[i, :] = finish(state)",
        ]),
    ],
    "a user's function": values("CALL<tests.frontend.test_features.decorated>(g[0, i, j], scale) + 1.0"),
    "pulls": [
        ("comm", "p: ranks, i: M", ["tile_pull_data(h[p, i, :], g[p, i, :] @ p)", "producer_tile_notify(h[p, i, :])"]),
        ("compute", "i: M, j: N", ["consumer_tile_wait(h[:, i, j])", "y[i, j] = h[rank, i, j]"]),
    ],
    "reads of peers": values("g[0, i, j] @ (rank + 1) + g[1, i, j]"),
    "host primitives": [
        ("comm", "p: ranks", ["rank_copy_data(h[rank] @ p, g[p])", "rank_notify(h[rank] @ p)"]),
        ("compute", "i: M, j: N", ["rank_wait(h[:])", "y[i, j] = sum(h[:, i, j], axis=0)"]),
    ],
    "peers": [
        ("compute", "i: M, j: N, p: ranks", [
            "if p != rank:", "    tile_push_data(h[rank, i, j] @ p, g[p, i, j] * 2)",
            "    peer_tile_notify(h[rank, i, j] @ p)", "else:", "    y[i, j] = 1.0",
        ]),
        ("compute", "i: M, j: N, p: ranks", ["if p != rank:", "    peer_tile_wait(h[p, i, j])"]),
    ],
    "shifted tiles": [
        ("compute", "i: M, j: N", ["c[i, j] = g[0, i, j]", "y[0 + i, j] = c[i, shift - shift + j]"]),
    ],
}  # fmt: skip


def in_text(stages: list[Stage], dtype: str) -> Program:
    lines = [HEAD.replace("DTYPE", dtype)]
    for number, (kind, domain, body) in enumerate(stages):
        lines += [f"    {kind} f{number}({domain}):\n", *(f"        {as_text(line)}\n" for line in body)]
    return parse_text("".join(lines), "features.tl").programs[0]


def in_python(stages: list[Stage], dtype: str, folder) -> Program:
    lines = [PYTHON.replace("DTYPE", dtype)]
    for number, (kind, domain, body) in enumerate(stages):
        lines += [f"\n    @tilelink.{kind}\n    def f{number}({domain}):\n"]
        lines += [f"        {as_python(line)}\n" for line in body]
    return decorated("".join(lines), folder)


@pytest.mark.parametrize("feature", FEATURES)
def test_it_parses_checks_and_prints(feature: str, tmp_path) -> None:
    for dtype in ("f16", "bf16", "f32") if feature in ("functions", "casts") else ("f16",):
        program = in_text(FEATURES[feature], dtype)
        assert tilelink.check(program) is program
        assert parse_text(print_program(program)).programs == (program,)
        assert in_python(FEATURES[feature], dtype, tmp_path) == program


def test_the_library_checks() -> None:
    programs = [p for module in compiler.library() for p in module.programs]
    assert programs
    for program in programs:
        assert check(program) is program
