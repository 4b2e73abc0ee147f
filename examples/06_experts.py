"""A layer of experts on several ranks: rows go to the ranks of their experts and come back, another way in every call.

One kernel is compiled. How many rows go where is in tensors that each call brings.
"""

import torch

import tilelink
from tilelink.language import (
    Dim,
    Index,
    by,
    consumer_tile_wait,
    f32,
    producer_tile_notify,
    rank,
    ranks,
    silu,
    tile_push_data,
    tiles,
    zeros,
)

RANKS, ROWS, WIDTH, ROOM, COPIES = 3, 32, 16, 24, 2


@tilelink.program
def experts(M: Dim, H: Dim, C: Dim, k: Dim) -> None:  # C: room for what one rank sends to another
    x = tilelink.input(M, H)
    count = tilelink.input(ranks, at_most=C)  # how many of this rank's rows go to rank p
    rows = tilelink.input(ranks, C, bound=M)  # which
    owner = tilelink.input(M, k, bound=ranks)  # where copy q of row i went,
    slot = tilelink.input(M, k, bound=count[owner])  # and its place there
    weight = tilelink.input(M, k, dtype="f32")
    n = tilelink.symmetric(ranks, at_most=C)
    got = tilelink.symmetric(ranks, C, H)
    back = tilelink.symmetric(ranks, C, H)
    y = tilelink.output(M, H)

    @tilelink.comm
    def tell(p: Index = ranks) -> None:
        tile_push_data(n[rank] @ p, count[p])
        producer_tile_notify(n[rank] @ p)

    @tilelink.comm
    def dispatch(p: Index = ranks, c: Index = C) -> None:
        c = C[: count[p]]
        tile_push_data(got[rank, c, :] @ p, x[rows[p, c], :])
        producer_tile_notify(got[rank, c, :] @ p)

    @tilelink.compute
    def work(s: Index = ranks, c: Index = C) -> None:
        c = C[: n[s]]
        consumer_tile_wait(n[s])
        consumer_tile_wait(got[s, c, :])
        tile_push_data(back[rank, c, :] @ s, silu(got[s, c, :]))
        producer_tile_notify(back[rank, c, :] @ s)

    @tilelink.compute
    def combine(i: Index = by(M, 1)) -> None:
        total = zeros(f32)
        for q in tiles(k):
            consumer_tile_wait(back[owner[i, q], slot[i, q], :])
            total += weight[i, q] * back[owner[i, q], slot[i, q], :]
        y[i, :] = total


def routed(favourite: int | None, chance: torch.Generator) -> dict[str, torch.Tensor]:
    """Send each row to some ranks, at random, or mainly to a favourite, as long as there is room."""
    owner = torch.zeros(ROWS, COPIES, dtype=torch.int32)
    slot = torch.zeros(ROWS, COPIES, dtype=torch.int32)
    rows = torch.zeros(RANKS, ROOM, dtype=torch.int32)
    count = torch.zeros(RANKS, dtype=torch.int32)
    for i in range(ROWS):
        order = torch.randperm(RANKS, generator=chance).tolist()
        if favourite is not None:
            order = [favourite, *(p for p in order if p != favourite)]
        for q in range(COPIES):
            p = next(p for p in (*order[q:], *order) if count[p] < ROOM)
            owner[i, q], slot[i, q], rows[p, count[p]] = p, count[p], i
            count[p] += 1
    weight = torch.rand(ROWS, COPIES, generator=chance)
    x = torch.randn(ROWS, WIDTH, generator=chance)
    return {"x": x, "count": count, "rows": rows, "owner": owner, "slot": slot, "weight": weight}


def main() -> None:
    dims = {"M": ROWS, "H": WIDTH, "C": ROOM, "k": COPIES}
    kernel = tilelink.compile(experts, ranks=RANKS, dims=dims)
    chance = torch.Generator().manual_seed(0)
    for favourite in (None, 0, 2):
        inputs = [routed(favourite, chance) for _ in range(RANKS)]
        outputs = kernel(inputs)
        wanted = [own["weight"].sum(1, keepdim=True) * torch.nn.functional.silu(own["x"]) for own in inputs]
        worst = max(float((out["y"] - one).abs().max()) for out, one in zip(outputs, wanted, strict=True))
        print(f"rows to each rank {[own['count'].tolist() for own in inputs]}: largest error {worst:.1e}")
        assert worst < 1e-5


if __name__ == "__main__":
    main()
