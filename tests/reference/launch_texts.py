"""Programs with integers of the launch, and what they compute, written with plain loops over torch tensors."""

from __future__ import annotations

import torch

from tilelink.reference.run import Outputs

Tensors = list[dict[str, torch.Tensor]]

ROWS = """
program rows(Ms = 40, N = 24, K = 16):
    m  : in        [] <= Ms
    x  : in        [Ms, K]
    w  : in        [N, K]
    ms : symmetric [ranks] <= Ms
    xs : symmetric [ranks, Ms, K]
    y  : out       [ranks, Ms[:ms], N]

    comm tell(p: ranks):
        tile_push_data(ms[rank] @ p, m)
        producer_tile_notify(ms[rank] @ p)
    comm gather(p: ranks, i: Ms[:m]):
        tile_push_data(xs[rank, i, :] @ p, x[i, :])
        producer_tile_notify(xs[rank, i, :] @ p)
    compute gemm(s: ranks, i: Ms[: ms[s]], j: N):
        consumer_tile_wait(ms[s])
        consumer_tile_wait(xs[s, i, :])
        y[s, i, j] = dot(xs[s, i, :], w[j, :].T)
"""

MOE = """
program moe(Ms = 32, K = 16, N = 24, E = 4, T = 48):
    x      : in        [Ms, K]
    w      : in        [E, N, K]
    rows   : in        [T] < ranks * Ms
    starts : in        [E + 1] <= T offsets
    xs     : symmetric [ranks * Ms, K]
    y      : out       [T[: starts[E]], N]

    comm gather(p: ranks, i: Ms):
        tile_push_data(xs[rank * Ms + i, :] @ p, x[i, :])
        producer_tile_notify(xs[rank * Ms + i, :] @ p)
    compute experts(e: E, r: T[starts[e] : starts[e + 1]], j: N):
        consumer_tile_wait(xs[rows[r], :])
        y[r, j] = dot(xs[rows[r], :], w[e, j, :].T)
"""

EXPERTS = """
program experts(M = 32, H = 16, C = 24, k = 2):
    x      : in        [M, H]
    count  : in        [ranks] <= C
    to     : in        [ranks, C] < M
    owner  : in        [M, k] < ranks
    slot   : in        [M, k] < count[owner]
    weight : in        [M, k] f32
    n      : symmetric [ranks] <= C
    got    : symmetric [ranks, C, H]
    back   : symmetric [ranks, C, H]
    y      : out       [M, H]

    comm tell(p: ranks):
        tile_push_data(n[rank] @ p, count[p])
        producer_tile_notify(n[rank] @ p)
    comm dispatch(p: ranks, c: C[: count[p]]):
        tile_push_data(got[rank, c, :] @ p, x[to[p, c], :])
        producer_tile_notify(got[rank, c, :] @ p)
    compute work(s: ranks, c: C[: n[s]]):
        consumer_tile_wait(n[s])
        consumer_tile_wait(got[s, c, :])
        tile_push_data(back[rank, c, :] @ s, silu(got[s, c, :]))
        producer_tile_notify(back[rank, c, :] @ s)
    compute combine(i: M by 1):
        total = zeros(f32)
        for (q: k):
            consumer_tile_wait(back[owner[i, q], slot[i, q], :])
            total += weight[i, q] * back[owner[i, q], slot[i, q], :]
        y[i, :] = total
"""

SIZES = {"rows": (ROWS, {"Ms": 7, "N": 5, "K": 3}), "moe": (MOE, {"Ms": 6, "K": 3, "N": 4, "E": 5, "T": 11})}
SIZES["experts"] = (EXPERTS, {"M": 6, "H": 4, "C": 5, "k": 2})
ONES = {name: (text, dict.fromkeys(dims, 1)) for name, (text, dims) in SIZES.items()}


def same(name: str, given: Tensors, found: list[Outputs]) -> None:
    """Assert that outputs are what plain loops compute, and undefined beyond."""
    {"rows": _same_rows, "moe": _same_moe, "experts": _same_experts}[name](given, found)


def _same_rows(given: Tensors, found: list[Outputs]) -> None:
    for own, out in zip(given, found, strict=True):
        for s, other in enumerate(given):
            m = int(other["m"])
            torch.testing.assert_close(out["y"][s, :m], other["x"][:m] @ own["w"].T)
            assert out["y"][s, m:].isnan().all()
            assert out.defined["y"][s, :m].all() and not out.defined["y"][s, m:].any()


def _same_moe(given: Tensors, found: list[Outputs]) -> None:
    xs = torch.cat([own["x"] for own in given])
    for own, out in zip(given, found, strict=True):
        starts = own["starts"].tolist()
        for e in range(len(starts) - 1):
            for r in range(starts[e], starts[e + 1]):
                torch.testing.assert_close(out["y"][r], own["w"][e] @ xs[own["rows"][r]])
        assert out["y"][starts[-1] :].isnan().all()
        assert out.defined["y"][: starts[-1]].all() and not out.defined["y"][starts[-1] :].any()


def _same_experts(given: Tensors, found: list[Outputs]) -> None:
    silu = torch.nn.functional.silu
    for own, out in zip(given, found, strict=True):
        rows = own["x"][own["to"][own["owner"].long(), own["slot"].long()].long()]
        torch.testing.assert_close(out["y"], (own["weight"][:, :, None] * silu(rows)).sum(1))
        assert not out.defined
