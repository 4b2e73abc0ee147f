"""Programs of one's own for tests of `tilelink.op`, on CPU ranks and on GPUs."""

from __future__ import annotations

import torch

import tilelink
from tilelink import compiler
from tilelink.language import Dim, Index

Tensor = torch.Tensor

TEXT = """
program neighbour_product(Ms, N, K, scale: f32, activation: function, sums: dtype):
    x    : in        [Ms, K]
    w    : in        [N, K]
    bias : in        [N] = 0
    left : symmetric [Ms, K]
    y    : out       [Ms, N] sums
    xs   : out       [Ms, K]

    comm send(i: Ms):
        tile_push_data(left[i, :] @ (rank + 1), x[i, :])
        producer_tile_notify(left[i, :] @ (rank + 1))

    compute gemm(i: Ms, j: N):
        consumer_tile_wait(left[i, :])
        y[i, j] = activation(dot(left[i, :], w[j, :].T) * scale + bias[j])

    compute keep(i: Ms, k: K):
        consumer_tile_wait(left[i, k])
        xs[i, k] = left[i, k]

schedule fine for neighbour_product:
    send tile(i=4)
    gemm tile(i=4, j=4)

schedule gpu for neighbour_product:
    send on copy_engine, tile(i=256)
    gemm tile(i=128, j=128, k=64), order(group(i, 8)), num_warps 8, num_stages 3
    keep tile(i=64, k=128)
    left channel(i=256)

program send_back(Ms, N, K, scale: f32):
    dy   : in        [Ms, N]
    dxs  : in        [Ms, K]
    w    : in        [N, K]
    back : symmetric [Ms, K]
    dx   : out       [Ms, K]

    compute gemm(i: Ms, k: K):
        tile_push_data(back[i, k] @ (rank - 1), dot(dy[i, :], w[:, k]) * scale + dxs[i, k])
        producer_tile_notify(back[i, k] @ (rank - 1))

    compute take(i: Ms, k: K):
        consumer_tile_wait(back[i, k])
        dx[i, k] = back[i, k]

program shuffled(B, M):
    x     : in symmetric [B, M]
    owner : table [B] < ranks
    y     : out [B, M]

    comm fetch(b: B by 1, i: M):
        tile_pull_data(y[b, i], x[b, i] @ owner[b])

program counted(M, value: i32):
    x : in  [M] i32
    y : out [M]

    compute fill(i: M):
        y[i] = x[i] + value

program relu_backward(M, N):
    dz : in  [M, N]
    x  : in  [M, N]
    dx : out [M, N]

    compute fill(i: M, j: N):
        dx[i, j] = dz[i, j] + x[i, j]
"""
MODULE = compiler.parse(TEXT, "own.tl")
FORWARD, SEND_BACK = MODULE.program("neighbour_product"), MODULE.program("send_back")


def weight_gradient(dy: Tensor, xs: Tensor, scale: float) -> dict[str, Tensor]:
    return {"dw": dy.T @ xs * scale}


@tilelink.program
def doubled(M: Dim) -> None:
    x = tilelink.input(M)
    y = tilelink.output(M)

    @tilelink.compute
    def twice(i: Index = M) -> None:
        y[i] = x[i] * 2.0
