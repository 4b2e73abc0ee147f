"""Programs that are timed to measure a node: each exposes one of the machine's numbers."""

from __future__ import annotations

PRODUCT_TILES: tuple[tuple[int, int, int, int], ...] = (
    (128, 256, 8, 4), (256, 128, 8, 4), (128, 128, 8, 4), (64, 256, 4, 4), (64, 128, 4, 4),
)  # fmt: skip
"""Rows, columns, warps and pipeline stages of the measured products, which are those that schedules use."""
WAVES_AND_INNER: tuple[tuple[int, int], ...] = ((2, 2048), (2, 6144), (6, 2048))
"""Tiles per SM, and the inner extent, chosen to separate the main loop, a tile's overhead and the start."""
MOVERS = (8, 64)
"""Programs that move data: few enough for each to reach its own rate, and enough to saturate the link."""
MOVED_ROWS = (8192, 16384)
MOVED_COLUMNS = 4096
"""Columns of 16-bit elements: 64 and 128 MiB in total, whose difference excludes the cost of a launch."""
HOPS = (8, 72)
HOP_ELEMENTS = 256
CHAINS = (1, 5)
"""Numbers of kernels of one stream."""
FLAT_TILE, FLAT_INNER, FLAT_WAVES = (128, 256, 8, 4), 2048, (2, 6)
"""Tile, inner extent and waves of the products that are compared with and without a flattened loop."""
ROLES_TILE, ROLES = (128, 256, 8, 4), ", roles(consumers=2, buffers=4)"
"""Tile of the products that are compared with and without roles, and the clause; sizes are those of FLAT."""
BULK_SMS, BULK_PROGRAMS = 4, 4
"""SMs whose programs copy by TMA, few enough not to saturate the link, and programs on each of them."""
BULK_ROWS, BULK_COLUMNS = (32, 128), 512
"""Rows and columns of their tiles: 32 KiB, bound by a box's latency, and 128 KiB, bound by the rate of an SM."""

PRODUCT = """
program product(M, N, K):
    x : in [M, K]
    w : in [N, K]
    y : out [M, N]

    compute gemm(i: M, j: N):
        y[i, j] = dot(x[i, :], w[j, :].T)

schedule measured for product:
    gemm on sm, tile(i={rows}, j={columns}, k=64), order(group(i, 8)), num_warps {warps}, num_stages {stages}{more}
"""
PUSH = """
program push(M, K):
    x : in [M, K]
    y : out symmetric [M, K]

    comm send(i: M):
        tile_push_data(y[i, :] @ (rank + 1), x[i, :])
        producer_tile_notify(y[i, :] @ (rank + 1))

schedule measured for push:
    send on sm({programs}), tile(i=64), num_warps 16
    y channel(i=65536), buffers 1
"""
BULK = """
program push(M, K):
    x : in [M, K]
    y : out symmetric [M, K]

    comm send(i: M, j: K):
        tile_push_data(y[i, j] @ (rank + 1), x[i, j])
        producer_tile_notify(y[i, j] @ (rank + 1))

schedule measured for push:
    send on sm({sms}), tile(i={rows}, j={columns}), tma_copy {programs}
    y channel(i=65536, j=65536), buffers 1
"""
PULL = """
program pull(M, K):
    x : in symmetric [M, K]
    y : out [M, K]

    comm fetch(i: M):
        tile_pull_data(y[i, :], x[i, :] @ (rank + 1))

schedule measured for pull:
    fetch on sm({programs}), tile(i=64), num_warps 16
    x buffers 1
"""
HOP = """
program hops(S, M):
    x : in [M]
    z : symmetric [S, M]
    y : out [M]

    comm hand(s: S, i: M):
        if s == 0:
            tile_push_data(z[s, i] @ (rank + 1), x[i])
        else:
            peer_tile_wait(z[s - 1, i])
            tile_push_data(z[s, i] @ (rank + 1), z[s - 1, i])
        peer_tile_notify(z[s, i] @ (rank + 1))

    compute last(i: M):
        peer_tile_wait(z[S - 1, i])
        y[i] = z[S - 1, i]

schedule measured for hops:
    hand on sm(1), tile(i=256)
    last on sm(1), tile(i=256)
    z channel(i=256)
"""


def chain(kernels: int) -> str:
    """Return a program of one-tile kernels that run one after the other, each on the output of the previous one."""
    names = ["x", *(f"b{n}" for n in range(1, kernels)), "y"]
    spaces = ["in", *["local"] * (kernels - 1), "out"]
    lines = ["program chain(M):", *(f"    {name} : {space} [M]" for name, space in zip(names, spaces, strict=True))]
    for n in range(kernels):
        before, after = names[n], names[n + 1]
        lines += ["", f"    compute step{n}(i: M):"]
        lines += [f"        consumer_tile_wait({before}[i])"] if n else []
        lines += [f"        {after}[i] = {before}[i]"]
        lines += [f"        producer_tile_notify({after}[i])"] if n < kernels - 1 else []
    lines += ["", "schedule measured for chain:", *(f"    step{n} on sm, tile(i=256)" for n in range(kernels))]
    return "\n".join(lines) + "\n"


def product_sizes(sms: int, rows: int, columns: int, waves: int) -> tuple[int, int]:
    """Return M and N of a product that gives every SM `waves` tiles, as nearly square as the number of SMs allows."""
    across = max(n for n in range(1, int(sms**0.5) + 1) if sms % n == 0)
    return rows * waves * (sms // across), columns * across
