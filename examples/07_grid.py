"""Ranks in a grid: rows of data-parallel replicas, each of them two tensor-parallel ranks that add up small products.

The sums of a row of the grid are a few kilobytes, so one schedule sends them as words of data and flag (`low_latency`):
the program stays as it is, and so do its results.
"""

import torch

import tilelink
from tilelink.language import (
    Dim,
    Index,
    consumer_tile_wait,
    dot,
    f32,
    let,
    producer_tile_notify,
    rank,
    tile_push_data,
    tiles,
    zeros,
)

REPLICAS, PARTS, ROWS, WIDTH, INNER = 2, 2, 8, 64, 32


@tilelink.program
def projection(M: Dim, N: Dim, K: Dim) -> None:  # the second product of a layer, and its sum over a row of the grid
    _replica, tp = tilelink.grid(None, 2)  # rank = replica * 2 + tp
    h = tilelink.input(M, K)  # K is this rank's share of the inner dimension
    w = tilelink.input(N, K)
    parts = tilelink.symmetric(tp, M, N)  # what each rank of my row has
    y = tilelink.output(M, N)

    @tilelink.compute
    def product(i: Index = M, j: Index = N) -> None:
        part = dot(h[i, :], w[j, :].T)
        for q in tiles(tp):
            there = let(parts[tp, i, j] @ rank(tp=q))  # at place q of my row
            tile_push_data(there, part)
            producer_tile_notify(there)

    @tilelink.compute
    def add(i: Index = M, j: Index = N) -> None:
        consumer_tile_wait(parts[:, i, j])
        total = zeros(f32)
        for q in tiles(tp):
            total += parts[q, i, j]
        y[i, j] = total


def main() -> None:
    counted = tilelink.schedule(projection).tile("product", i=8, j=32).tile("add", i=8, j=32)
    words = counted.low_latency("parts").buffers("parts", 2).without_reuse_wait()
    ranks, dims = REPLICAS * PARTS, {"M": ROWS, "N": WIDTH, "K": INNER}
    h = torch.randn(REPLICAS, ROWS, PARTS * INNER)
    w = torch.randn(WIDTH, PARTS * INNER)
    share = [slice(tp * INNER, (tp + 1) * INNER) for tp in range(PARTS)]
    inputs = [{"h": h[r // PARTS][:, share[r % PARTS]], "w": w[:, share[r % PARTS]]} for r in range(ranks)]
    for name, schedule in (("counters", counted), ("words", words)):
        kernel = tilelink.compile(projection, schedule, ranks=ranks, dims=dims)
        outputs = kernel(inputs)
        worst = max(float((outputs[r]["y"] - h[r // PARTS] @ w.T).abs().max()) for r in range(ranks))
        print(f"{name}: largest error over {REPLICAS} rows of {PARTS} ranks: {worst:.1e}")
        assert worst < 1e-4


if __name__ == "__main__":
    main()
