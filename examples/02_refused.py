"""What a mistake looks like: without the wait nothing orders the read after the neighbour's write."""

import tilelink

TEXT = """
program careless(M, N):
    x    : in        [M, N]
    left : symmetric [M, N]
    y    : out       [M, N]

    comm send(i: M):
        tile_push_data(left[i, :] @ (rank + 1), x[i, :])
        producer_tile_notify(left[i, :] @ (rank + 1))

    compute add(i: M, j: N):
        y[i, j] = x[i, j] + left[i, j]
"""

if __name__ == "__main__":
    careless = tilelink.parse(TEXT, "careless.tl").program()
    try:
        tilelink.plan(careless, ranks=3, dims={"M": 50, "N": 40})
    except tilelink.TileLinkError as refusal:
        print(refusal)
    linked = tilelink.link(careless)
    tilelink.plan(linked, ranks=3, dims={"M": 50, "N": 40})
    print("\nlink() put the wait in, and the plan is safe:\n")
    print(linked)
