"""A pattern of one's own in a few lines: every rank adds its left neighbour's rows to its own."""

import torch

import tilelink
from tilelink.language import Dim, Index, consumer_tile_wait, producer_tile_notify, rank, tile_push_data


@tilelink.program
def neighbour_sum(M: Dim, N: Dim) -> None:
    x = tilelink.input(M, N)
    left = tilelink.symmetric(M, N)
    y = tilelink.output(M, N)

    @tilelink.comm
    def send(i: Index = M) -> None:
        tile_push_data(left[i, :] @ (rank + 1), x[i, :])
        producer_tile_notify(left[i, :] @ (rank + 1))

    @tilelink.compute
    def add(i: Index = M, j: Index = N) -> None:
        consumer_tile_wait(left[i, :])
        y[i, j] = x[i, j] + left[i, j]


if __name__ == "__main__":
    schedule = tilelink.schedule(neighbour_sum).tile("send", i=32).tile("add", i=16, j=32)
    kernel = tilelink.compile(neighbour_sum, schedule, ranks=3, dims={"M": 50, "N": 40})
    inputs = [{"x": torch.randn(50, 40)} for _ in range(3)]
    outputs = kernel(inputs)
    worst = max(float((outputs[r]["y"] - (inputs[r]["x"] + inputs[r - 1]["x"])).abs().max()) for r in range(3))
    print(f"largest error over 3 ranks: {worst}")
    assert worst == 0.0
