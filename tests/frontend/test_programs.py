# pyright: basic, reportUndefinedVariable=false, reportInvalidTypeForm=false
# ruff: noqa: F821 - the bodies of programs are read, not run
"""Programs as text and as Python functions: the same IR, which survives printing."""

from __future__ import annotations

import pytest

import tilelink
from tilelink.frontend.parser import parse_text
from tilelink.ir.printer import print_program
from tilelink.ir.program import Program
from tilelink.ir.typing import infer

ATTENTION = """
program attention(S, H, D, scale: f32, causal: bool):
    q  : in symmetric [H, S, D]
    ks : symmetric [ranks, H, S, D]
    vs : symmetric [ranks, H, S, D]
    o  : out [H, S, D] f32

    compute attn(h: H, i: S):
        state = online_softmax(f32)
        for (s: ranks, j: S):
            consumer_tile_wait(ks[s, h, j, :])
            consumer_tile_wait(vs[s, h, j])
            state = attend(state, q[h, i, :], ks[s, h, j, :], vs[s, h, j, :], scale, causal)
        o[h, i, :] = finish(state)
"""

ODDS = """
program odds(M, N, B, n: i32):
    x     : in [M, N]
    rows  : table [B, M] < M
    owner : table [B] < ranks
    xs    : symmetric [ranks, M, N] bf16
    y     : out [B, M, N]

    comm move(b: B, i: M):
        if owner[b] == rank + 1 and not (b < 2 or b >= n % 3):
            tile_push_data(xs[-b, i, :] @ ((rank - b) * 2 % ranks), x[i, :])
            rank_notify(xs[rank, i] @ owner[b])
        else:
            rank_copy_data(xs[rank, 2 + i, :], x[i, :])

    compute sums(b: B, i: M):
        rank_wait(xs[owner[b]])
        t = -xs[owner[b], rows[b, :], :] * 2.5 - (x[i, :] - 1e-3)
        u = max(t, 0.0) + where(t > 1, exp(t), silu(t))[:, None, None] / 2
        v = sum(t, axis=1)[:, None] + call math.gelu(t, x[i, :]).T.to(f16)
        y[b, i, :] = f32(v) + full(-1.5, f32)
"""


def library() -> list[Program]:
    from tilelink.compiler import library

    return [program for module in library() for program in module.programs]


@pytest.mark.parametrize("program", library(), ids=lambda p: p.name)
def test_library_programs_survive_printing(program: Program) -> None:
    assert parse_text(print_program(program)).programs == (program,)
    assert str(program) == print_program(program)


@pytest.mark.parametrize("text", [ATTENTION, ODDS], ids=["attention", "odds"])
def test_unusual_programs_survive_printing(text: str) -> None:
    (program,) = parse_text(text).programs
    assert parse_text(print_program(program)).programs == (program,)


def test_indices_used_as_numbers_and_batch_axes_are_numbers() -> None:
    typing = infer(parse_text(ATTENTION).programs[0])
    assert typing.scalar_indices("attn") == {"h", "s"}
    assert str(typing.stage("attn").locals["state"]) == "state[i, :D]"


@tilelink.program
def ring(Ms, N, K):
    """The same as the library's ring."""
    x = tilelink.input(ranks, Ms, K)
    w = tilelink.input(N, K)
    h = tilelink.symmetric(ranks, Ms, N)
    y = tilelink.output(Ms, N)

    @tilelink.compute
    def gemm(s: ranks, i: Ms, j: N):
        acc = dot(x[s, i, :], w[j, :].T)
        if rank != s + 1:
            peer_tile_wait(h[s, i, j])
            acc += h[s, i, j]
        if rank != s:
            tile_push_data(h[s, i, j] @ (rank + 1), acc)
            peer_tile_notify(h[s, i, j] @ (rank + 1))
        else:
            y[i, j] = acc


@tilelink.program
def attention(S, H, D, scale: f32, causal: bool):
    q = tilelink.input(H, S, D, symmetric=True)
    ks = tilelink.symmetric(ranks, H, S, D)
    vs = tilelink.symmetric(ranks, H, S, D)
    o = tilelink.output(H, S, D, dtype="f32")

    @tilelink.compute
    def attn(h: H, i: S):
        state = online_softmax(f32)
        for s, j in tiles(ranks, S):
            consumer_tile_wait(ks[s, h, j, :])
            consumer_tile_wait(vs[s, h, j])
            state = attend(state, q[h, i, :], ks[s, h, j, :], vs[s, h, j, :], scale, causal)
        o[h, i, :] = finish(state)


def test_both_front_ends_build_the_same_program() -> None:
    from dataclasses import replace

    (text,) = (p for p in library() if p.name == "gemm_rs_ring")
    assert replace(ring, name=text.name) == text
    assert parse_text(ATTENTION).programs == (attention,)


def test_locations_of_the_python_front_end_point_into_the_file() -> None:
    place = ring.stages[0].body[0].location
    assert place is not None
    assert place.file.endswith("test_programs.py")
    assert "acc = dot(x[s, i, :], w[j, :].T)" in place.render()


def test_an_index_over_ranks_is_a_number_with_and_without_by_1() -> None:
    text = (
        "program p(M):\n    x : in [ranks, M]\n    y : out [M]\n    compute f(i: M):\n        total = zeros(f32)\n"
        "        for (q: ranks by 1):\n            total += x[q, i]\n        y[i] = total\n"
    )
    (program,) = parse_text(text, "p.tl").programs
    assert (program,) == parse_text(print_program(program), "p.tl").programs
    assert (program,) == parse_text(text.replace(" by 1", ""), "p.tl").programs
