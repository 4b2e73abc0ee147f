"""The k most likely tokens of a vocabulary that is spread over the ranks: sorted here, sent, and merged by a sort.

Positions that a sort computes are index tensors, through which later stages gather; results are scattered to the places
that the caller gives.
"""

import torch

import tilelink
from tilelink.language import (
    Dim,
    Index,
    argsort,
    by,
    consumer_tile_wait,
    producer_tile_notify,
    rank,
    ranks,
    tile_push_data,
)

RANKS, ROWS, TOKENS, BEST = 3, 5, 20, 4


@tilelink.program
def top_tokens(B: Dim, V: Dim, k: Dim) -> None:
    logits = tilelink.input(B, V)  # of this rank's V tokens
    slot = tilelink.input(B, bound=B, distinct=True)  # where the caller wants the result of each sequence
    order = tilelink.local(B, V, bound=V)  # tokens of this rank, the most likely first
    score = tilelink.symmetric(B, ranks * k)  # what every rank sent: the k largest of its own,
    number = tilelink.symmetric(B, ranks * k, dtype="i32")  # and which tokens they are
    place = tilelink.local(B, ranks * k, bound=ranks * k)  # where the largest of all are among these
    best = tilelink.output(B, k)
    which = tilelink.output(B, k, dtype="i32")

    @tilelink.compute
    def rate(b: Index = by(B, 1)) -> None:
        order[b, :] = argsort(-logits[b, :], axis=0)
        producer_tile_notify(order[b, :])

    @tilelink.comm
    def send(p: Index = ranks, b: Index = by(B, 1), q: Index = k) -> None:
        consumer_tile_wait(order[b, :])
        tile_push_data(score[b, rank * k + q] @ p, logits[b, order[b, 0 + q]])  # the first k, gathered
        tile_push_data(number[b, rank * k + q] @ p, order[b, 0 + q] + rank * V)
        producer_tile_notify(score[b, rank * k + q] @ p)  # of both: their stores come before it

    @tilelink.compute
    def merge(b: Index = by(B, 1)) -> None:
        consumer_tile_wait(score[b, :])
        place[b, :] = argsort(-score[b, :], axis=0)
        producer_tile_notify(place[b, :])

    @tilelink.compute
    def take(b: Index = by(B, 1), q: Index = k) -> None:
        consumer_tile_wait(place[b, :])
        best[slot[b], q] = score[b, place[b, 0 + q]]  # scattered: no two sequences have one slot
        which[slot[b], q] = number[b, place[b, 0 + q]]


def main() -> None:
    kernel = tilelink.compile(top_tokens, ranks=RANKS, dims={"B": ROWS, "V": TOKENS, "k": BEST})
    logits = torch.randn(ROWS, RANKS * TOKENS)
    slot = torch.randperm(ROWS).int()
    share = [logits[:, rank * TOKENS : (rank + 1) * TOKENS].contiguous() for rank in range(RANKS)]
    outputs = kernel([{"logits": own, "slot": slot} for own in share])
    wanted = torch.topk(logits, BEST)
    for made in outputs:
        assert torch.equal(made["best"][slot.long()], wanted.values)
        assert torch.equal(made["which"][slot.long()], wanted.indices.int())
    print(f"the {BEST} best of {RANKS * TOKENS} tokens on every rank, first row: {wanted.indices[0].tolist()}")


if __name__ == "__main__":
    main()
