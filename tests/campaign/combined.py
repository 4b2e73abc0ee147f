"""Mutants of programs that combine what is new: the cases of `python -m tests.campaign --combined`.

Slots with counted ranges and with tensors in place, additions along counted ranges, caches at places that a launch
decides, groups of ranks with both, segments, slices and integers of 8 bits. A mutant leaves out a line or a signal,
names another rank, kind of signal or entry, or adds where the program stores. Schedules take tiles by counters, and
give steps few slots. Each is refused, or right.
"""

from __future__ import annotations

import random
import re

from tests.campaign.case import Case
from tests.campaign.launches import CHANGES, Lines, body
from tests.compiler.library import by_name
from tilelink import compiler
from tilelink.errors import TileLinkError
from tilelink.ir.program import Program
from tilelink.ir.scalar import Param
from tilelink.ir.typing import infer

PROGRAMS = (
    """
program slots_counted(L = 4, M = 6, N = 4):
    n : in [L] <= M
    ns : symmetric [L, ranks] <= M
    x : in [L, M, N]
    h : symmetric [L, ranks, M, N]
    y : out [L, ranks, M[: ns], N]
    comm tell(l: L, p: ranks):
        tile_push_data(ns[l, rank] @ p, n[l])
        producer_tile_notify(ns[l, rank] @ p)
    comm send(l: L by 1, p: ranks, i: M[: n[l]]):
        tile_push_data(h[l, rank, i, :] @ p, x[l, i, :])
        producer_tile_notify(h[l, rank, i, :] @ p)
    compute take(l: L by 1, s: ranks, i: M[: ns[l, s]], j: N):
        consumer_tile_wait(ns[l, s])
        consumer_tile_wait(h[l, s, i, j])
        y[l, s, i, j] = h[l, s, i, j]
schedule s for slots_counted:
    tell on sm(1)
    send on sm(1), tile(i=4)
    take on sm(1), tile(i=4)
    h slots(l=2)
""",
    """
program slots_inout(L = 4, M = 6, N = 4):
    x : in [L, M, N]
    h : symmetric [L, M, N]
    c : inout [M, N]
    comm send(l: L by 1, i: M):
        tile_push_data(h[l, i, :] @ (rank + 1), x[l, i, :])
        producer_tile_notify(h[l, i, :] @ (rank + 1))
    compute add(l: L by 1, i: M, j: N):
        consumer_tile_wait(h[l, i, j])
        if l >= 1:
            peer_tile_wait(h[l - 1, i, j])
        c[i, j] = c[i, j] * 0.5 + h[l, i, j]
        peer_tile_notify(h[l, i, j])
schedule s for slots_inout:
    send on sm(1), tile(i=4)
    add on sm(2), tile(i=4)
    h slots(l=2)
""",
    """
program adds_counted(M = 6, N = 4, T = 10):
    n : in [] <= T
    r : in [T] < M
    x : in [T, N]
    g : symmetric [ranks, T, N]
    ns : symmetric [ranks] <= T
    rs : symmetric [ranks, T] < M
    h : inout [M, N] f32 sum
    y : out [M, N]
    comm tell(p: ranks):
        tile_push_data(ns[rank] @ p, n)
        tile_push_data(rs[rank, :] @ p, r[:])
        producer_tile_notify(ns[rank] @ p)
        producer_tile_notify(rs[rank, :] @ p)
    comm send(p: ranks, t: T[: n]):
        tile_push_data(g[rank, t, :] @ p, x[t, :])
        producer_tile_notify(g[rank, t, :] @ p)
    compute add(s: ranks, t: T[: ns[s]], j: N):
        consumer_tile_wait(ns[s])
        consumer_tile_wait(rs[s, :])
        consumer_tile_wait(g[s, t, j])
        h[rs[s, t], j] += g[s, t, j]
        producer_tile_notify(h[:, j])
    compute k(i: M, j: N):
        consumer_tile_wait(h[:, j])
        y[i, j] = h[i, j]
schedule s for adds_counted:
    send on sm(1), tile(t=3)
    add tile(t=2, j=2), dynamic, on sm(2)
    k tile(i=3, j=2), on sm(1)
""",
    """
program cache(B = 4, S = 6, D = 4):
    k : in [B, D]
    at : in [B] < S
    slot : in [B] < 5 distinct
    cache : inout [5, S, D]
    seen : inout [B] i32
    part : symmetric [ranks, B, D]
    y : out [B, D]
    compute append(b: B by 1):
        cache[slot[b], at[b], :] = k[b, :]
        producer_tile_notify(cache[:, :, :])
    compute sums(b: B by 1, p: ranks):
        consumer_tile_wait(cache[:, :, :])
        tile_push_data(part[rank, b, :] @ p, sum(cache[slot[b], :, :], axis=0))
        producer_tile_notify(part[rank, b, :] @ p)
    compute total(b: B, d: D):
        v = zeros(f32)
        for (s: ranks):
            consumer_tile_wait(part[s, b, d])
            v += part[s, b, d]
        y[b, d] = v
    compute count(b: B):
        seen[b] = seen[b] + 1
schedule s for cache:
    append dynamic
    sums dynamic, on sm(2)
""",
    """
program group(M = 6, N = 4, A: i32 = 1) over a = ranks[0 : A], b = ranks[A :]:
    n : in [b] <= M on a
    ns : symmetric [a] <= M on b
    x : in [b, M, N] on a
    h : symmetric [a, M, N] on b
    c : inout [M, N] f32 sum on b
    y : out [a, M[: ns], N] on b
    comm tell(q: b) on a:
        tile_push_data(ns[rank.a] @ b[q], n[q])
        producer_tile_notify(ns[rank.a] @ b[q])
    comm send(q: b) on a:
        for (k: M[: n[q]] by 1):
            tile_push_data(h[rank.a, k, :] @ b[q], x[q, k, :])
        producer_tile_notify(h[rank.a, :, :] @ b[q])
    compute take(s: a, j: N) on b:
        consumer_tile_wait(ns[s])
        consumer_tile_wait(h[s, :, j])
        for (i: M[: ns[s]] by 1):
            y[s, i, j] = h[s, i, j]
            c[i, j] += h[s, i, j]
schedule s for group:
    send dynamic, on sm(2)
    take tile(j=2), on sm(2)
""",
    """
program ring(L = 5, M = 4, N = 4):
    x : in [M, N]
    h : symmetric [L, M, N]
    y : out [L, M, N]
    comm first(i: M):
        tile_push_data(h[0, i, :] @ (rank + 1), x[i, :])
        producer_tile_notify(h[0, i, :] @ (rank + 1))
    compute hop(l: L by 1, i: M):
        consumer_tile_wait(h[l, i, :])
        if l < L - 1:
            tile_push_data(h[l + 1, i, :] @ (rank + 1), h[l, i, :] + 1.0)
            producer_tile_notify(h[l + 1, i, :] @ (rank + 1))
        y[l, i, :] = h[l, i, :]
schedule s for ring:
    first on sm(1)
    hop on sm(1)
    h slots(l=2)
""",
    """
program segments(E = 3, T = 9, M = 6, N = 4):
    x : in [M, N]
    w : in [E, N]
    rows : in [T] < ranks * M
    starts : in [E + 1] <= T offsets
    xs : symmetric [ranks * M, N]
    t1 : local [E] <= T
    acc : inout [T, N]
    y : out [T[: starts[E]], N]
    comm gather(p: ranks, i: M):
        tile_push_data(xs[rank * M + i, :] @ p, x[i, :])
        producer_tile_notify(xs[rank * M + i, :] @ p)
    compute lens(e: E by 1):
        t1[e] = starts[e + 1] - starts[e]
        producer_tile_notify(t1[e])
    compute product(e: E, r: T[starts[e] : starts[e + 1]], j: N):
        consumer_tile_wait(t1[e])
        consumer_tile_wait(xs[rows[r], :])
        y[r, j] = xs[rows[r], j] * w[e, j] * t1[e]
        acc[r, j] = acc[r, j] + 1.0
schedule s for segments:
    product tile(r=2, j=2), dynamic
""",
    """
program places(B = 4, P = 6, D = 4, Q = 2):
    q : in [B] <= P - Q
    src : in [B] < ranks
    x : in symmetric [P, D]
    z : local [B, Q, D]
    c : inout [P, D]
    own : in [] <= P - Q
    y : out [B, Q, D]
    comm fetch(b: B by 1):
        tile_pull_data(z[b, :, :], x[q[b] : q[b] + Q, :] @ src[b])
        producer_tile_notify(z[b, :, :])
    compute put(d: D):
        c[own : own + Q, d] = x[own : own + Q, d]
        producer_tile_notify(c[:, d])
    compute get(b: B by 1, d: D):
        consumer_tile_wait(z[b, :, d])
        consumer_tile_wait(c[:, d])
        y[b, :, d] = z[b, :, d] + c[q[b] : q[b] + Q, d]
schedule s for places:
    fetch dynamic, on sm(1)
""",
    """
program quant(M = 6, KB = 2, B = 4, N = 4):
    x : in [M, KB, B]
    n : in [] <= M
    q : symmetric [KB, M, B] i8
    u : symmetric [KB, M] f32
    nn : symmetric [] <= M
    cnt : inout [M] i64
    y : out [M[: nn], KB, B] within 0.02
    comm tell():
        tile_push_data(nn[] @ (rank + 1), n)
        producer_tile_notify(nn @ (rank + 1))
    comm quantise(i: M[: n], k: KB by 1):
        scale = maximum(max(abs(x[i, k, :]), axis=1), 1e-12) / 127.0
        tile_push_data(q[k, i, :] @ (rank + 1), i8(x[i, k, :] / scale[:, None]))
        tile_push_data(u[k, i] @ (rank + 1), scale)
        producer_tile_notify(q[k, i, :] @ (rank + 1))
    compute product(i: M[: nn], k: KB by 1):
        consumer_tile_wait(nn)
        consumer_tile_wait(q[k, i, :])
        y[i, k, :] = f32(q[k, i, :]) * u[k, i][:, None]
    compute c(i: M):
        cnt[i] = cnt[i] + 3
schedule s for quant:
    quantise tile(i=2), on sm(1)
    product tile(i=4), dynamic, on sm(1)
""",
)
"""Each with a schedule that fits."""


def combined_case(number: int) -> Case:
    """The case of a number: always the same one."""
    rng = random.Random(number)
    programs = {text.partition("(")[0].split()[-1]: text for text in PROGRAMS}
    text, _, schedule = programs[by_name(programs, number)].strip().partition("\nschedule ")
    program = compiler.parse(text + "\n").program()
    lines: Lines = list(text.splitlines())
    changes = [rng.choice((*CHANGES, *MORE)) for _ in range(rng.choice((0, 1, 1, 1, 2)))]
    for change in changes:
        lines = change(rng, lines) if body(lines) else lines
    said: Lines = ["schedule " + schedule] if rng.random() < 0.35 else _drawn(rng, program)
    return Case(
        text="\n".join([*lines, "", *said]) + "\n",
        dims={one.name: one.example for one in program.params},
        ranks=rng.choice((2, 3, 3, 4)),
        seed=number,
        sms=rng.choice((2, 4, 8)),
        programs=rng.choice((1, 2)),
        routing=rng.choice(("uniform", "uniform", "one", "empty", "full", "zeros")),
        features=(f"of {program.name}", *(change.__name__.strip("_") for change in changes)),
    )


def _drawn(rng: random.Random, program: Program) -> Lines:
    """A schedule with random resources, tiles and orders, counters of tiles, slots and buffers."""
    said: Lines = []
    typing = infer(program)
    for stage in program.stages:
        cut = [d.name for d in stage.indices if d.name not in typing.scalar_indices(stage.name)]
        tiles = [f"{name}={rng.choice((1, 2, 4, 8))}" for name in cut if rng.random() < 0.7]
        parts = [f"on sm({rng.choice((1, 2, 3))})"] if rng.random() < 0.6 else []
        parts += [f"tile({', '.join(tiles)})"] if tiles else []
        parts += ["dynamic"] if rng.random() < 0.35 else []
        if rng.random() < 0.3 and len(stage.indices) > 1:
            names = [d.name for d in stage.indices]
            rng.shuffle(names)
            parts.append(f"order({', '.join(names)})")
        said += [f"    {stage.name} {', '.join(parts)}"] if parts else []
    for tensor in program.tensors:
        if tensor.space in ("local", "symmetric") and tensor.shape[:1] == (Param(name="L"),) and rng.random() < 0.5:
            said.append(f"    {tensor.name} slots(l={rng.choice((1, 2, 2, 3))})")
        elif tensor.symmetric and rng.random() < 0.3:
            said.append(f"    {tensor.name} buffers {rng.choice((1, 2, 3))}")
    schedule = [f"schedule drawn for {program.name}:", *said] if said else []
    try:
        compiler.parse("\n".join([str(program), "", *schedule]) + "\n")
    except TileLinkError:
        return []
    return schedule


def _signals(lines: Lines) -> list[int]:
    return [n for n in body(lines) if re.search(r"_(?:wait|notify)\(", lines[n])]


def _no_signal(rng: random.Random, lines: Lines) -> Lines:
    at = rng.choice(_signals(lines) or body(lines))
    return lines[:at] + lines[at + 1 :]


def _other_kind(rng: random.Random, lines: Lines) -> Lines:
    at = rng.choice(_signals(lines) or body(lines))
    pairs = (("consumer_tile_wait", "peer_tile_wait"), ("producer_tile_notify", "peer_tile_notify"))
    one, other = next((p for p in pairs if p[0] in lines[at]), ("peer_tile_wait", "consumer_tile_wait"))
    return [*lines[:at], lines[at].replace(one, other), *lines[at + 1 :]]


def _other_peer(rng: random.Random, lines: Lines) -> Lines:
    places = [n for n in body(lines) if "@" in lines[n]]
    if not places:
        return lines
    at, peer = rng.choice(places), rng.choice(("rank", "(rank + 1)", "(rank - 1)", "0"))
    return [*lines[:at], re.sub(r"@ (?:\([^)]*\)|\w+(?:\[\w+\])?)", f"@ {peer}", lines[at], count=1), *lines[at + 1 :]]


def _add(rng: random.Random, lines: Lines) -> Lines:
    """Add where the program stores, or store where it adds."""
    places = [n for n in body(lines) if "] = " in lines[n] or "] += " in lines[n]]
    if not places:
        return lines
    at = rng.choice(places)
    one, other = ("] += ", "] = ") if "] += " in lines[at] else ("] = ", "] += ")
    return [*lines[:at], lines[at].replace(one, other, 1), *lines[at + 1 :]]


MORE = (_no_signal, _no_signal, _other_kind, _other_peer, _other_peer, _add)
