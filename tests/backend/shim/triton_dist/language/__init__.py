"""`triton_dist.language`: rank, num_ranks, symm_at, wait (for equality), consume_token, notify (signals of 64 bits)."""

from tilelink.device.mode import INTERPRETED

if INTERPRETED:
    from triton_dist.language.interpreted import consume_token, notify, num_ranks, place, rank, read, symm_at, wait
else:
    from triton_dist.language.compiled import consume_token, notify, num_ranks, rank, symm_at, wait

    place = read = None

__all__ = ["rank", "num_ranks", "symm_at", "wait", "consume_token", "notify", "place", "read"]
