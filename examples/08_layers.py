"""Layers whose weights are spread over the ranks and gathered one layer ahead, in memory for two layers of many.

The program is written as if memory had room for all layers. The schedule says that it has room for two: the compiler
puts in the signals by which readers free a layer, and the waits for them.
"""

import torch

import tilelink

TEXT = """
program layers(L, M, Ds):
    x       : in        [M, ranks * Ds]
    shard   : in        [L, Ds, ranks * Ds]           # my rows of the weights of each layer
    weights : symmetric [L, ranks, Ds, ranks * Ds]    # whole layers, as they are gathered
    h       : local     [L, M, ranks * Ds]
    y       : out       [M, ranks * Ds]

    comm gather(l: L, q: ranks, j: Ds):
        tile_push_data(weights[l, rank, j, :] @ q, shard[l, j, :])
        producer_tile_notify(weights[l, rank, j, :] @ q)

    compute layer(l: L by 1, i: M, q: ranks, j: Ds):
        let before = h[l - 1, i, :]
        let rows = weights[l, q, j, :]
        consumer_tile_wait(rows)
        if l == 0:
            product = dot(x[i, :], rows.T)
        else:
            peer_tile_wait(before)
            product = dot(before, rows.T)
        if l == L - 1:
            y[i, q * Ds + j] = relu(product)
        else:
            h[l, i, q * Ds + j] = relu(product)
            peer_tile_notify(h[l, i, q * Ds + j])

schedule all for layers:
    gather on sm(2), order(l, q = rank step +1, j)
    layer  on sm, order(l, q = rank step +1, i, j)

schedule two for layers like all:
    weights slots(l=2), buffers 1
"""
RANKS, LAYERS, ROWS, WIDTH = 2, 5, 24, 16


def main() -> None:
    program = tilelink.parse(TEXT, "layers.tl").program()
    dims = {"L": LAYERS, "M": ROWS, "Ds": WIDTH}
    weights = torch.randn(LAYERS, RANKS * WIDTH, RANKS * WIDTH) / 4
    inputs = [
        {"x": torch.randn(ROWS, RANKS * WIDTH), "shard": weights[:, rank * WIDTH : (rank + 1) * WIDTH].contiguous()}
        for rank in range(RANKS)
    ]
    for name in ("all", "two"):
        outputs = tilelink.compile(program, name, ranks=RANKS, dims=dims)(inputs)
        worst = 0.0
        for own, made in zip(inputs, outputs, strict=True):
            wanted = own["x"]
            for layer in weights:
                wanted = torch.relu(wanted @ layer.T)
            worst = max(worst, float((made["y"] - wanted).abs().max()))
        print(f"{name}: largest error after {LAYERS} layers on {RANKS} ranks: {worst:.1e}")
        assert worst < 1e-3


if __name__ == "__main__":
    main()
