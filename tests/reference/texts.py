"""Programs for the tests of the reference, and functions that run them."""

import torch

from tilelink.frontend.parser import parse_text
from tilelink.ir.program import Program
from tilelink.reference import random_inputs, run
from tilelink.reference.run import Outputs

Tensors = list[dict[str, torch.Tensor]]

ALL_GATHER = """
program all_gather(M, N):
    x  : in        [M, N]
    xs : out symmetric [ranks, M, N]
    comm gather(p: ranks, i: M):
        tile_push_data(xs[rank, i, :] @ p, x[i, :])
"""

RING = """
program gemm_rs_ring(Ms, N, K):
    x : in        [ranks, Ms, K]
    w : in        [N, K]
    h : symmetric [ranks, Ms, N]
    y : out       [Ms, N]
    compute gemm(s: ranks, i: Ms, j: N):
        acc = dot(x[s, i, :], w[j, :].T)
        if rank != s + 1:
            peer_tile_wait(h[s, i, j])
            acc += h[s, i, j]
        if rank != s:
            tile_push_data(h[s, i, j] @ (rank + 1), acc)
            peer_tile_notify(h[s, i, j] @ (rank + 1))
        else:
            y[i, j] = acc
"""

SCATTER = """
program gemm_rs_scatter(Ms, N, K):
    x     : in        [ranks, Ms, K]
    w     : in        [N, K]
    c     : local     [ranks, Ms, N]
    parts : symmetric [ranks, Ms, N]
    y     : out       [Ms, N]
    compute reduce(i: Ms, j: N):
        consumer_tile_wait(parts[:, i, j])
        y[i, j] = sum(parts[:, i, j], axis=0)
    comm scatter(s: ranks, i: Ms, j: N):
        consumer_tile_wait(c[s, i, j])
        tile_push_data(parts[rank, i, j] @ s, c[s, i, j])
        producer_tile_notify(parts[rank, i, j] @ s)
    compute gemm(s: ranks, i: Ms, j: N):
        c[s, i, j] = dot(x[s, i, :], w[j, :].T)
        producer_tile_notify(c[s, i, j])
"""

ATTENTION = """
program attention(H, S, D, scale: f32, causal: bool):
    q  : in        [H, S, D]
    k  : in        [H, S, D]
    v  : in        [H, S, D]
    ks : symmetric [ranks, H, S, D]
    vs : symmetric [ranks, H, S, D]
    o  : out       [H, S, D]
    compute attn(h: H, i: S):
        state = online_softmax(f32)
        for (s: ranks, j: S):
            consumer_tile_wait(ks[s, h, j, :])
            consumer_tile_wait(vs[s, h, j, :])
            state = attend(state, q[h, i, :], ks[s, h, j, :], vs[s, h, j, :], scale, causal)
        o[h, i, :] = finish(state)
    comm gather(p: ranks, h: H, j: S):
        tile_push_data(ks[rank, h, j, :] @ p, k[h, j, :])
        tile_push_data(vs[rank, h, j, :] @ p, v[h, j, :])
        producer_tile_notify(ks[rank, h, j, :] @ p)
        producer_tile_notify(vs[rank, h, j, :] @ p)
"""


def program(text: str) -> Program:
    return parse_text(text, "test.tl").programs[0]


def outputs(
    text: str, ranks: int, dims: dict[str, int | float | bool], dtype: torch.dtype = torch.float32
) -> tuple[Tensors, list[Outputs]]:
    """Return random inputs and the outputs of the program."""
    given = random_inputs(program(text), dims, ranks, dtype, seed=ranks)
    return given, run(program(text), given, dims=dims, ranks=ranks, dtype=dtype)


def one(text: str, dims: dict[str, int | float | bool], **tensors: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the outputs of a program on one rank."""
    return run(program(text), [tensors], dims)[0]
