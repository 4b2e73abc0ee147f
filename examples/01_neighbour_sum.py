"""A pattern of one's own in a few lines: every rank adds its left neighbour's rows to its own."""

import torch

import tilelink


@tilelink.program
def neighbour_sum(M, N):  # pyright: ignore
    x = tilelink.input(M, N)
    left = tilelink.symmetric(M, N)
    y = tilelink.output(M, N)

    @tilelink.comm
    def send(i: M):  # pyright: ignore
        tile_push_data(left[i, :] @ (rank + 1), x[i, :])  # noqa: F821
        producer_tile_notify(left[i, :] @ (rank + 1))  # noqa: F821

    @tilelink.compute
    def add(i: M, j: N):  # pyright: ignore
        consumer_tile_wait(left[i, :])  # noqa: F821
        y[i, j] = x[i, j] + left[i, j]


if __name__ == "__main__":
    schedule = tilelink.schedule(neighbour_sum).tile("send", i=32).tile("add", i=16, j=32)
    kernel = tilelink.compile(neighbour_sum, schedule, ranks=3, dims={"M": 50, "N": 40})
    inputs = [{"x": torch.randn(50, 40)} for _ in range(3)]
    outputs = kernel(inputs)
    worst = max(float((outputs[r]["y"] - (inputs[r]["x"] + inputs[r - 1]["x"])).abs().max()) for r in range(3))
    print(f"largest error over 3 ranks: {worst}")
    assert worst == 0.0
