"""The program with which `tilelink doctor` tests CPU ranks and pairs of GPUs."""

PROBE = """
program probe(M, d: i32):
    x : in [M]
    y : out symmetric [M]

    comm send(i: M):
        tile_push_data(y[i] @ (rank + d), x[i])
        producer_tile_notify(y[i] @ (rank + d))

schedule copy_engine for probe:
    send on copy_engine, tile(i=1048576)
    y channel(i=1048576)

schedule sm for probe:
    send on sm(8), tile(i=4096)
    y channel(i=1048576)
"""
