"""Programs with tensors that are kept between launches, of their own rank and reached by peers."""

from __future__ import annotations

RUNNING = """
program p(M, N):
    x    : in   [M, N]
    mean : kept [M, N] f32
    n    : kept [] i32
    y    : out  [M, N]
    z    : out  [M, N]
    compute old(i: M, j: N):
        z[i, j] = mean[i, j]
        producer_tile_notify(mean[i, j])
    compute change(i: M, j: N):
        consumer_tile_wait(mean[i, j])
        mean[i, j] = mean[i, j] * 0.5 + x[i, j]
        y[i, j] = mean[i, j]
    compute count():
        n[] = n[] + 1
"""
APPENDED = """
program p(M, N, T):
    slot : in   [T] < M distinct
    k    : in   [T, N]
    q    : in   [T, N]
    keys : kept [M, N]
    y    : out  [T, M]
    compute append(t: T):
        keys[slot[t], :] = k[t, :]
        producer_tile_notify(keys[:, :])
    compute scores(t: T, m: M):
        consumer_tile_wait(keys[m, :])
        y[t, m] = dot(q[t, :], keys[m, :].T)
"""
ADDED = """
program p(M, N, T):
    row   : in   [T] < M
    v     : in   [T, N]
    total : kept [M, N] f32 sum
    y     : out  [M, N]
    compute scatter(t: T, j: N):
        total[row[t], j] += v[t, j]
        producer_tile_notify(total[:, j])
    compute take(i: M, j: N):
        consumer_tile_wait(total[i, j])
        y[i, j] = total[i, j]
"""
LAST = """
program p(M, N):
    x    : in             [M, N]
    last : kept symmetric [M, N]
    y    : out            [M, N]
    compute take(i: M, j: N):
        y[i, j] = last[i, j]
        producer_tile_notify(last[i, j] @ (rank - 1))
    comm send(i: M):
        consumer_tile_wait(last[i, :])
        tile_push_data(last[i, :] @ (rank + 1), x[i, :])
"""
RELAYED = """
program p(M, N):
    x    : in             [M, N]
    last : kept symmetric [M, N]
    y    : out            [M, N]
    compute take(i: M, j: N):
        y[i, j] = last[i, j]
        peer_tile_notify(last[i, j])
    comm free(i: M):
        peer_tile_wait(last[i, :])
        producer_tile_notify(last[i, :] @ (rank - 1))
    comm send(i: M):
        consumer_tile_wait(last[i, :])
        tile_push_data(last[i, :] @ (rank + 1), x[i, :])
"""
PULLED = """
program p(M, N):
    x : in             [M, N]
    h : kept symmetric [M, N]
    y : out            [M, N]
    comm fetch(i: M):
        tile_pull_data(y[i, :], h[i, :] @ (rank + 1))
        producer_tile_notify(h[i, :] @ (rank + 1))
    compute change(i: M, j: N):
        consumer_tile_wait(h[i, j])
        h[i, j] = h[i, j] * 0.5 + x[i, j]
"""
TOLD = """
program p(N):
    mine  : kept           [N] i32
    every : kept symmetric [ranks, N] i32
    y     : out            [ranks, N] i32
    z     : out            [ranks, N] i32
    compute before(s: ranks, j: N):
        z[s, j] = every[s, j]
        rank_notify(every[rank, j] @ s)
    compute count(j: N):
        n = mine[j] + 1 + rank
        mine[j] = n
        rank_wait(every[:, j])
        for (p: ranks):
            tile_push_data(every[rank, j] @ p, n)
            producer_tile_notify(every[rank, j] @ p)
    compute after(s: ranks, j: N):
        consumer_tile_wait(every[s, j])
        y[s, j] = every[s, j]
"""
OF_ITS_RANK = {"running": RUNNING, "appended": APPENDED, "added": ADDED}
SHARED = {"last": LAST, "relayed": RELAYED, "pulled": PULLED, "told": TOLD}
SIZES = {"M": 12, "N": 8, "T": 5}
