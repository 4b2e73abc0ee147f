"""Programs whose integers come with a launch, the values that a launch brings, and what each must compute with them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch

import tilelink

Tensors = dict[str, torch.Tensor]
Sizes = Mapping[str, Any]

SMALL = """
program scatter(T = 20, N = 8):
    place : in  [T] < T distinct
    x     : in  [T, N]
    y     : out [T, N]
    compute f(r: T, j: N):
        y[place[r], j] = x[r, j] * 2.0

program scatter_rows(T = 20, N = 8):
    place : in  [T] < T distinct
    x     : in  [T, N]
    y     : out [T, N]
    compute f(r: T by 1, j: N):
        y[place[r], j] = x[r, j] * 2.0

program part(M = 20, N = 8):
    n : in  [] <= M
    a : in  [] <= M
    x : in  [M, N]
    y : out [M[: n], N]
    z : out [N]
    compute f(i: M[: n], j: N):
        y[i, j] = x[i, j] + 1.0
    compute g(j: N):
        s = zeros(f32)
        for (i: M[a : n] by 1):
            s += x[i, j]
        z[j] = s

program pull(M = 12, N = 8):
    src : in [M] < ranks
    row : in [M] < M
    x   : in symmetric [M, N]
    y   : out [M, N]
    comm f(i: M by 1):
        tile_pull_data(y[i, :], x[row[i], :] @ src[i])

program positions(E = 3, T = 24):
    starts : in  [E + 1] <= T offsets
    y      : out [T[: starts[E]]] i32
    compute f(e: E, r: T[starts[e] : starts[e + 1]]):
        y[r] = pos(r) * 10 + e

program computed(M = 16, N = 8, T = 5):
    n : in    [] <= M
    k : local [T] <= M
    x : in    [M, N]
    y : out   [T, N]
    compute make(t: T):
        k[t] = n
        producer_tile_notify(k[t])
    compute use(t: T by 1, j: N):
        consumer_tile_wait(k[t])
        acc = zeros(f32)
        for (i: M[: k[t]] by 1):
            acc += x[i, j] * t
        y[t, j] = acc

program sums(M = 37, N = 8, K = 20, E = 3):
    n      : in  [] <= M
    starts : in  [E + 1] <= M offsets
    x      : in  [M[: n], N]
    w      : in  [K, M]
    v      : in  [M, N]
    y      : out [N]
    z      : out [K, N]
    u      : out [E, N]
    t      : out [N]
    compute squares(j: N):
        s = zeros(f32)
        for (i: M[: n]):
            s += sum(x[i, j] * x[i, j] + 1.0, axis=0)
        y[j] = s
    compute product(k: K, j: N):
        acc = zeros(f32)
        for (i: M[: n]):
            acc += dot(w[k, i], x[i, j])
        z[k, j] = acc
    compute segments(e: E by 1, j: N):
        acc = zeros(f32)
        for (i: M[starts[e] : starts[e + 1]]):
            acc += sum(v[i, j], axis=0)
        u[e, j] = acc
    compute largest(j: N):
        m = full(-100.0, f32)
        for (i: M[: n]):
            m = maximum(m, max(x[i, j], axis=0))
        t[j] = m

program choose(M = 16, N = 8):
    f : in [M] < 2
    x : in [M, N]
    y : out [M, N]
    compute g(i: M by 1, j: N):
        v = x[i, j]
        if f[i] == 1:
            v = v * 2.0
        y[i, j] = v

program ends(M = 20, N = 8, C = 12):
    m : in    [] <= C
    n : in    [] <= M
    t : local [] <= M
    x : in    [M, N]
    v : in    [M[: 2 * n], N]
    c : local [M, N]
    y : out   [M[: m], N]
    z : out   [M[: n + n], N]
    u : out   [M[: n // 2], N]
    w : out   [M[: t], N]
    compute half():
        t[] = (n + 3) // 2 - 1
        producer_tile_notify(t)
    compute f(i: M[: m], j: N):
        y[i, j] = x[i, j]
    compute g(i: M[: n * 2], j: N):
        z[i, j] = v[i, j] * 2.0
        c[i, j] = v[i, j]
        producer_tile_notify(c[i, j])
    compute h(i: M[: n // 2], j: N):
        consumer_tile_wait(c[i, j])
        u[i, j] = c[i, j] * 3.0
    compute k(i: M[: (1 + n) // 2], j: N):
        w[i, j] = x[i, j] * 4.0

program told(M = 20, N = 8):
    n  : in        [] <= M
    f  : in        [M] i32
    a  : local     [] <= M
    ns : symmetric [ranks] <= M
    ks : symmetric [ranks] <= M
    x  : in        [M, N]
    xs : symmetric [ranks, M, N]
    vs : symmetric [ranks, M, N]
    y  : out       [ranks, M[: ns], N]
    z  : out       [ranks, M[: ks], N]
    comm tell():
        k = sum(where(f[:] > 0, 1, 0), axis=0)
        a = k
        producer_tile_notify(a)
        for (p: ranks):
            tile_push_data(ks[rank] @ p, k)
            tile_push_data(ns[rank] @ p, n // 2)
            producer_tile_notify(ks[rank] @ p)
            producer_tile_notify(ns[rank] @ p)
    comm send(p: ranks, i: M[: n // 2]):
        tile_push_data(xs[rank, i, :] @ p, x[i, :])
        producer_tile_notify(xs[rank, i, :] @ p)
    comm found(p: ranks, i: M[: a]):
        consumer_tile_wait(a)
        tile_push_data(vs[rank, i, :] @ p, x[i, :] * 2.0)
        producer_tile_notify(vs[rank, i, :] @ p)
    compute take(s: ranks, i: M[: ns[s]], j: N):
        consumer_tile_wait(ns[s])
        consumer_tile_wait(xs[s, i, j])
        y[s, i, j] = xs[s, i, j]
    compute keep(s: ranks, i: M[: ks[s]], j: N):
        consumer_tile_wait(ks[s])
        consumer_tile_wait(vs[s, i, j])
        z[s, i, j] = vs[s, i, j]

program exchange(C = 12, N = 4):
    number : in        [ranks, ranks] <= C replicated
    x      : in        [ranks, C, N]
    xs     : symmetric [ranks, C, N]
    y      : out       [ranks, N]
    comm send(p: ranks, c: C[: number[rank, p]]):
        tile_push_data(xs[rank, c, :] @ p, x[p, c, :])
        producer_tile_notify(xs[rank, c, :] @ p)
    compute take(s: ranks, j: N):
        acc = zeros(f32)
        for (c: C[: number[s, rank]] by 1):
            consumer_tile_wait(xs[s, c, :])
            acc += xs[s, c, j]
        y[s, j] = acc

program alike(M = 12, N = 4, E = 2):
    ids   : in        [M] i32 from 0 to 1
    every : symmetric [ranks, M] i32
    mine  : local     [E] <= M
    n     : local     [ranks, E] <= M
    x     : in        [M, N]
    xs    : symmetric [ranks, E, M, N]
    y     : out       [ranks, E, M[: n], N]
    comm share(p: ranks, i: M):
        tile_push_data(every[rank, i] @ p, ids[i])
        producer_tile_notify(every[rank, i] @ p)
    compute own(e: E by 1):
        mine[e] = sum(where(ids[:] == e, 1, 0), axis=0)
        producer_tile_notify(mine[e])
    compute others(s: ranks):
        consumer_tile_wait(every[s, :])
        here = every[s, :]
        n[s, :] = sum(where(here[:, None] == pos(E)[None, :], 1, 0), axis=0)
        producer_tile_notify(n[s, :])
    comm send(p: ranks, e: E by 1, i: M[: mine[e]]):
        consumer_tile_wait(mine[e])
        tile_push_data(xs[rank, e, i, :] @ p, x[i, :])
        producer_tile_notify(xs[rank, e, i, :] @ p)
    compute take(s: ranks, e: E by 1, i: M[: n[s, e]], j: N):
        consumer_tile_wait(n[s, :])
        consumer_tile_wait(xs[s, e, i, j])
        y[s, e, i, j] = xs[s, e, i, j]
"""

KINDS = ("uniform", "one", "none", "full", "single")
"""Routings: evenly, all to one, nothing, all that there is room for, one row alone."""


def counts(kind: str, number: int, most: int) -> torch.Tensor:
    """Return how many rows each of `number` receivers gets, at most `most` each."""
    match kind:
        case "uniform":
            return torch.randint(0, most + 1, (number,), dtype=torch.int32)
        case "one":
            result = torch.zeros(number, dtype=torch.int32)
            result[torch.randint(0, number, ())] = most
            return result
        case "none":
            return torch.zeros(number, dtype=torch.int32)
        case "full":
            return torch.full((number,), most, dtype=torch.int32)
        case _:
            result = torch.zeros(number, dtype=torch.int32)
            result[torch.randint(0, number, ())] = 1
            return result


def integer(value: int) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.int32)


@dataclass(frozen=True, kw_only=True)
class Example:
    """A program with what it takes and what it computes.

    inputs: (kind of routing, sizes, ranks) -> the inputs of a rank. expected: (inputs of all ranks, rank, sizes) -> for
    each output pairs of an index and the values there; the rest is undefined.
    """

    program: tilelink.Program
    inputs: Callable[[str, Sizes, int], Tensors]
    expected: Callable[[list[Tensors], int, Sizes], dict[str, list[tuple[object, torch.Tensor]]]]
    tiles: Mapping[str, Mapping[str, int]]
    """Small tiles, by stage."""
    kinds: tuple[str, ...] = KINDS

    @property
    def sizes(self) -> dict[str, Any]:
        return {one.name: one.example for one in self.program.params}

    @property
    def schedules(self) -> list[tilelink.Schedule | None]:
        small = tilelink.schedule(self.program)
        for stage, tiles in self.tiles.items():
            small = small.tile(stage, **tiles)
        return [None, small]


def drawn(example: Example, kind: str, ranks: int) -> list[Tensors]:
    """Return inputs of all ranks for a launch of an example."""
    every = [example.inputs(kind, example.sizes, ranks) for _ in range(ranks)]
    return replicated(example.program, every)


def replicated(program: tilelink.Program, every: list[Tensors]) -> list[Tensors]:
    """Return the inputs of all ranks, with those of rank 0 for index tensors of which all have the same."""
    alike = {t.name: every[0][t.name] for t in program.tensors if "replicated" in t.properties}
    return [own | alike for own in every]


def _batch_parts(kind: str, d: Sizes, ranks: int) -> Tensors:
    return _rows_inputs(kind, d, ranks) | {"x": torch.randn(ranks, d["Ms"], d["K"])}


def _sums_of_batch(every: list[Tensors], rank: int, d: Sizes) -> dict[str, list[tuple[object, torch.Tensor]]]:
    rows = int(every[rank]["m"])
    return {"y": [(slice(0, rows), sum((one["x"][rank, :rows] @ one["w"].T for one in every), torch.zeros(())))]}


def _exchange_inputs(kind: str, d: Sizes, ranks: int) -> Tensors:
    number = torch.stack([counts(kind, ranks, d["C"]) for _ in range(ranks)]).int()
    return {"number": number, "x": torch.randn(ranks, d["C"], d["N"])}


def _exchange_expected(every: list[Tensors], rank: int, d: Sizes) -> dict[str, list[tuple[object, torch.Tensor]]]:
    rows = every[rank]["number"][:, rank].tolist()
    return {"y": [(s, every[s]["x"][rank, :n].sum(0)) for s, n in enumerate(rows)]}


def _rows_inputs(kind: str, d: Sizes, ranks: int) -> Tensors:
    return {"m": counts(kind, 1, d["Ms"])[0], "x": torch.randn(d["Ms"], d["K"]), "w": torch.randn(d["N"], d["K"])}


def _rows_expected(every: list[Tensors], rank: int, d: Sizes) -> dict[str, list[tuple[object, torch.Tensor]]]:
    w = every[rank]["w"]
    return {"y": [((s, slice(0, int(one["m"]))), one["x"][: one["m"]] @ w.T) for s, one in enumerate(every)]}


def _grouped_inputs(kind: str, d: Sizes, ranks: int) -> Tensors:
    sizes = counts(kind, d["E"], d["T"] // d["E"] if kind != "one" else d["T"])
    starts = torch.cat([torch.zeros(1), sizes.cumsum(0)]).int()
    rows = torch.randint(0, ranks * d["Ms"], (d["T"],), dtype=torch.int32)
    x, w = torch.randn(d["Ms"], d["K"]), torch.randn(d["E"], d["N"], d["K"])
    return {"x": x, "w": w, "rows": rows, "starts": starts}


def _grouped_expected(every: list[Tensors], rank: int, d: Sizes) -> dict[str, list[tuple[object, torch.Tensor]]]:
    own, xs = every[rank], torch.cat([one["x"] for one in every])
    ends = own["starts"].tolist()
    parts = [(slice(a, b), e) for e, (a, b) in enumerate(pairwise(ends))]
    return {"y": [(part, xs[own["rows"][part].long()] @ own["w"][e].T) for part, e in parts]}


def _experts_inputs(kind: str, d: Sizes, ranks: int) -> Tensors:
    count = counts("full" if kind == "none" else kind, ranks, d["C"])
    if not count.any():
        count[0] = 1
    somewhere = torch.nonzero(count).flatten()
    owner = somewhere[torch.randint(0, len(somewhere), (d["M"], d["k"]))].int()
    slot = (torch.rand(d["M"], d["k"]) * count[owner.long()]).int()
    rows = torch.randint(0, d["M"], (ranks, d["C"]), dtype=torch.int32)
    weight = torch.randn(d["M"], d["k"])
    return {
        "x": torch.randn(d["M"], d["H"]),
        "count": count,
        "rows": rows,
        "owner": owner,
        "slot": slot,
        "weight": weight,
    }


def _experts_expected(every: list[Tensors], rank: int, d: Sizes) -> dict[str, list[tuple[object, torch.Tensor]]]:
    own = every[rank]
    back = torch.nn.functional.silu(own["x"][own["rows"].long()])
    result = back[own["owner"].long(), own["slot"].long()]
    return {"y": [(slice(None), (own["weight"][:, :, None] * result).sum(1))]}


def _few_inputs(kind: str, d: Sizes, ranks: int) -> Tensors:
    """As above, with several experts on a rank. Their weights are those of all ranks."""
    every = _experts_inputs(kind, d, ranks * d["E"])
    place = every.pop("owner")
    shape = (ranks, d["E"], -1)
    own = {"count": every["count"].reshape(shape[:2]), "rows": every["rows"].reshape(shape)}
    places = {"owner": place // d["E"], "expert": place % d["E"]}
    torch.manual_seed(5)
    weights = {"up": torch.randn(d["E"], d["F"], d["H"]), "down": torch.randn(d["E"], d["H"], d["F"])}
    torch.seed()
    return {**every, **own, **places, **weights}


def _few_expected(every: list[Tensors], rank: int, d: Sizes) -> dict[str, list[tuple[object, torch.Tensor]]]:
    own = every[rank]
    sent = own["x"][own["rows"].long()]
    hidden = torch.nn.functional.silu(torch.einsum("pech,efh->pecf", sent, own["up"]))
    back = torch.einsum("pecf,ehf->pech", hidden, own["down"])
    result = back[own["owner"].long(), own["expert"].long(), own["slot"].long()]
    return {"y": [(slice(None), (own["weight"][:, :, None] * result).sum(1))]}


def _layer_inputs(kind: str, d: Sizes, ranks: int) -> Tensors:
    """Choices of experts of all ranks, or of none. An expert may be chosen twice, and numbers of no rank are none."""
    shape, number = (d["M"], d["k"]), ranks * d["E"]
    ids = torch.randint(-1, number + 1, shape, dtype=torch.int32)
    match kind:
        case "one":
            ids = torch.full(shape, number - 1, dtype=torch.int32)
        case "none":
            ids = torch.full(shape, -1, dtype=torch.int32)
        case "full":
            ids = (torch.arange(d["M"] * d["k"], dtype=torch.int32) % number).reshape(shape)
        case "single":
            ids = torch.where(torch.arange(d["M"] * d["k"]).reshape(shape) == 3, 1, -1).int()
        case _:
            pass
    w13, w2 = torch.randn(d["E"], 2, d["I"], d["H"]), torch.randn(d["E"], d["H"], d["I"])
    return {"x": torch.randn(d["M"], d["H"]), "ids": ids, "weight": torch.randn(shape), "w13": w13 / 4, "w2": w2 / 4}


def _layer_expected(every: list[Tensors], rank: int, d: Sizes) -> dict[str, list[tuple[object, torch.Tensor]]]:
    own, w13, w2 = every[rank], torch.cat([one["w13"] for one in every]), torch.cat([one["w2"] for one in every])
    gate, up = torch.einsum("mh,ecih->cemi", own["x"], w13)
    back = torch.einsum("emi,ehi->emh", torch.nn.functional.silu(gate) * up, w2)
    chosen = torch.stack([own["ids"] == e for e in range(len(w13))])  # [experts, M, k]
    return {"y": [(slice(None), ((chosen * own["weight"]).sum(2)[:, :, None] * back).sum(0))]}


def _gated_inputs(kind: str, d: Sizes, ranks: int) -> Tensors:
    """Scores that send all rows to as few ranks as copies ("one"), to all ranks alike, or anywhere."""
    scores = torch.randn(d["M"], ranks)
    if kind in ("one", "single"):
        scores[:, : d["k"]] += 100.0
    if kind == "full":
        scores = torch.nn.functional.one_hot(torch.arange(d["M"]) % ranks, ranks).float()
    return {"scores": scores, "x": torch.randn(d["M"], d["H"])}


def _gated_expected(every: list[Tensors], rank: int, d: Sizes) -> dict[str, list[tuple[object, torch.Tensor]]]:
    weight = torch.sort(every[rank]["scores"], dim=1, descending=True).values[:, : d["k"]].sum(1)
    return {"y": [(slice(None), weight[:, None] * torch.nn.functional.silu(every[rank]["x"]))]}


def _decode_inputs(kind: str, d: Sizes, ranks: int) -> Tensors:
    torch.manual_seed(7)  # queries and counts are the same on all ranks
    q = torch.randn(d["B"], d["H"], d["G"], d["D"])
    held = [counts(kind, d["B"], d["S"] * d["T"]) for _ in range(ranks)]
    count = torch.stack(held) if kind != "none" else torch.ones(ranks, d["B"], dtype=torch.int32)
    torch.seed()
    shape = (d["P"], d["T"], d["H"], d["D"])
    pages = torch.randint(0, d["P"], (d["B"], d["S"]), dtype=torch.int32)
    return {"q": q, "keys": torch.randn(shape), "vals": torch.randn(shape), "pages": pages, "count": count}


def _decode_expected(every: list[Tensors], rank: int, d: Sizes) -> dict[str, list[tuple[object, torch.Tensor]]]:
    found: list[tuple[object, torch.Tensor]] = []
    for b in range(d["B"]):
        for h in range(d["H"]):

            def held(name: str, b: int = b, h: int = h) -> torch.Tensor:
                pages = [one[name][one["pages"][b].long(), :, h].reshape(-1, d["D"]) for one in every]
                return torch.cat([page[: every[0]["count"][r, b]] for r, page in enumerate(pages)])

            keys, values = held("keys"), held("vals")
            if len(keys):
                weights = torch.softmax(every[rank]["q"][b, h] @ keys.T * 0.25, dim=1)
                found.append(((b, h), weights @ values))
    return {"y": found}


def _parts_inputs(kind: str, d: Sizes, ranks: int) -> Tensors:
    made = _decode_inputs(kind, d, ranks)
    return made | {"count": counts(kind, d["B"], d["S"] * d["T"])}


def _parts_expected(every: list[Tensors], rank: int, d: Sizes) -> dict[str, list[tuple[object, torch.Tensor]]]:
    held = torch.stack([one["count"] for one in every])
    found = _decode_expected([one | {"count": held} for one in every], rank, d)
    made = {"o": found["y"], "lse": list[tuple[object, torch.Tensor]]()}
    for b in range(d["B"]):
        for h in range(d["H"]):
            keys = torch.cat([
                one["keys"][one["pages"][b].long(), :, h].reshape(-1, d["D"])[: one["count"][b]] for one in every
            ])  # fmt: skip
            made["lse"].append(((b, h), torch.logsumexp(every[rank]["q"][b, h] @ keys.T * 0.25, dim=1)))
            if not len(keys):
                made["o"].append(((b, h), torch.zeros(d["G"], d["D"])))
    return made


def _scatter_inputs(kind: str, d: Sizes, ranks: int) -> Tensors:
    return {"place": torch.randperm(d["T"]).int(), "x": torch.randn(d["T"], d["N"])}


def _scatter_expected(every: list[Tensors], rank: int, d: Sizes) -> dict[str, list[tuple[object, torch.Tensor]]]:
    own = every[rank]
    return {"y": [(own["place"].long(), own["x"] * 2.0)]}


def _part_inputs(kind: str, d: Sizes, ranks: int) -> Tensors:
    return {"n": counts(kind, 1, d["M"])[0], "a": counts("uniform", 1, d["M"])[0], "x": torch.randn(d["M"], d["N"])}


def _part_expected(every: list[Tensors], rank: int, d: Sizes) -> dict[str, list[tuple[object, torch.Tensor]]]:
    own = every[rank]
    n, a = int(own["n"]), int(own["a"])
    return {"y": [(slice(0, n), own["x"][:n] + 1.0)], "z": [(slice(None), own["x"][a : max(a, n)].sum(0))]}


def _pull_inputs(kind: str, d: Sizes, ranks: int) -> Tensors:
    src = torch.randint(0, ranks, (d["M"],), dtype=torch.int32) if kind != "one" else torch.zeros(d["M"]).int()
    return {"src": src, "row": torch.randint(0, d["M"], (d["M"],), dtype=torch.int32), "x": torch.randn(d["M"], d["N"])}


def _pull_expected(every: list[Tensors], rank: int, d: Sizes) -> dict[str, list[tuple[object, torch.Tensor]]]:
    own = every[rank]
    return {"y": [(slice(None), torch.stack([one["x"] for one in every])[own["src"].long(), own["row"].long()])]}


def _positions_inputs(kind: str, d: Sizes, ranks: int) -> Tensors:
    sizes = counts(kind, d["E"], d["T"] // d["E"] if kind != "one" else d["T"])
    return {"starts": torch.cat([torch.zeros(1), sizes.cumsum(0)]).int()}


def _positions_expected(every: list[Tensors], rank: int, d: Sizes) -> dict[str, list[tuple[object, torch.Tensor]]]:
    ends = every[rank]["starts"].tolist()
    parts = [(a, b, e) for e, (a, b) in enumerate(pairwise(ends))]
    return {"y": [(slice(a, b), (torch.arange(a, b) * 10 + e).int()) for a, b, e in parts]}


def _computed_inputs(kind: str, d: Sizes, ranks: int) -> Tensors:
    return {"n": counts(kind, 1, d["M"])[0], "x": torch.randn(d["M"], d["N"])}


def _computed_expected(every: list[Tensors], rank: int, d: Sizes) -> dict[str, list[tuple[object, torch.Tensor]]]:
    own = every[rank]
    return {"y": [(slice(None), torch.arange(d["T"])[:, None] * own["x"][: own["n"]].sum(0)[None, :])]}


def _sums_inputs(kind: str, d: Sizes, ranks: int) -> Tensors:
    n = counts(kind, 1, d["M"])[0]
    x = torch.randn(d["M"], d["N"])
    x[n:] = torch.nan
    segments = counts(kind, d["E"], d["M"] // d["E"])
    starts = torch.cat([torch.zeros(1, dtype=torch.int32), segments.cumsum(0).int()])
    return {"n": n, "starts": starts, "x": x, "w": torch.randn(d["K"], d["M"]), "v": torch.randn(d["M"], d["N"])}


def _sums_expected(every: list[Tensors], rank: int, d: Sizes) -> dict[str, list[tuple[object, torch.Tensor]]]:
    own = every[rank]
    x, ends = own["x"][: own["n"]], own["starts"].tolist()
    largest = torch.cat([x, torch.full((1, d["N"]), -100.0)]).amax(0)
    return {
        "y": [(slice(None), (x * x + 1.0).sum(0))],
        "z": [(slice(None), own["w"][:, : own["n"]] @ x)],
        "u": [(e, own["v"][a:b].sum(0)) for e, (a, b) in enumerate(pairwise(ends))],
        "t": [(slice(None), largest)],
    }


def _choose_inputs(kind: str, d: Sizes, ranks: int) -> Tensors:
    return {"f": torch.randint(0, 2, (d["M"],), dtype=torch.int32), "x": torch.randn(d["M"], d["N"])}


def _choose_expected(every: list[Tensors], rank: int, d: Sizes) -> dict[str, list[tuple[object, torch.Tensor]]]:
    own = every[rank]
    return {"y": [(slice(None), own["x"] * (1 + own["f"][:, None]))]}


def _ends_inputs(kind: str, d: Sizes, ranks: int) -> Tensors:
    m, n = counts(kind, 1, d["C"])[0], counts(kind, 1, d["M"] // 2)[0]
    return {"m": m, "n": n, "x": torch.randn(d["M"], d["N"]), "v": torch.randn(d["M"], d["N"])}


def _ends_expected(every: list[Tensors], rank: int, d: Sizes) -> dict[str, list[tuple[object, torch.Tensor]]]:
    own = every[rank]
    m, n = int(own["m"]), int(own["n"])
    ends = {"y": ("x", m, 1.0), "z": ("v", 2 * n, 2.0), "u": ("v", n // 2, 3.0), "w": ("x", (n + 1) // 2, 4.0)}
    return {name: [(slice(0, end), own[of][:end] * by)] for name, (of, end, by) in ends.items()}


def _told_inputs(kind: str, d: Sizes, ranks: int) -> Tensors:
    f = (torch.randperm(d["M"]) < counts(kind, 1, d["M"])[0]).int()
    return {"n": counts(kind, 1, d["M"])[0], "f": f, "x": torch.randn(d["M"], d["N"])}


def _told_expected(every: list[Tensors], rank: int, d: Sizes) -> dict[str, list[tuple[object, torch.Tensor]]]:
    halves = [int(one["n"]) // 2 for one in every]
    found = [int(one["f"].sum()) for one in every]
    return {
        "y": [((s, slice(0, n)), one["x"][:n]) for s, (one, n) in enumerate(zip(every, halves, strict=True))],
        "z": [((s, slice(0, n)), one["x"][:n] * 2.0) for s, (one, n) in enumerate(zip(every, found, strict=True))],
    }


def _alike_inputs(kind: str, d: Sizes, ranks: int) -> Tensors:
    ids = (torch.randperm(d["M"]) < counts(kind, 1, d["M"])[0]).int()
    return {"ids": ids, "x": torch.randn(d["M"], d["N"])}


def _alike_expected(every: list[Tensors], rank: int, d: Sizes) -> dict[str, list[tuple[object, torch.Tensor]]]:
    found = [(s, e, one, int((one["ids"] == e).sum())) for s, one in enumerate(every) for e in range(d["E"])]
    return {"y": [((s, e, slice(0, n)), one["x"][:n]) for s, e, one, n in found]}


def examples() -> dict[str, Example]:
    """Return the programs of the library and those above, by name."""
    small = tilelink.parse(SMALL)

    def of(name: str, inputs: object, expected: object, **tiles: Mapping[str, int]) -> Example:
        program = small.program(name) if name in {p.name for p in small.programs} else tilelink.load(name).program(name)
        return Example(program=program, inputs=inputs, expected=expected, tiles=tiles)  # type: ignore[arg-type]

    every = (
        of("ag_gemm_rows", _rows_inputs, _rows_expected, gather={"i": 16}, gemm={"i": 16, "j": 16}),
        of(
            "ag_gemm_batch",
            _rows_inputs,
            _rows_expected,
            gather={"i": 16},
            own={"i": 16, "j": 16},
            gemm={"i": 16, "j": 16},
        ),
        of("gemm_rs_batch", _batch_parts, _sums_of_batch, gemm={"i": 16, "j": 16}, reduce={"i": 8, "j": 8}),
        of("grouped_gemm", _grouped_inputs, _grouped_expected, gather={"i": 8}, product={"r": 16, "j": 16}),
        of("expert_parallel", _experts_inputs, _experts_expected, dispatch={"c": 8}, work={"c": 8}),
        of("low_latency_experts", _few_inputs, _few_expected, dispatch={"c": 8}, widen={"c": 16, "f": 16}),
        of("moe_decode", _layer_inputs, _layer_expected, send={"i": 4}, widen={"c": 16, "f": 16}, narrow={"c": 16}),
        of("gated_expert_parallel", _gated_inputs, _gated_expected, dispatch={"c": 8}, work={"c": 8}),
        of("paged_decode", _decode_inputs, _decode_expected, own={"j": 16}),
        of(
            "decode_attention", _parts_inputs, _parts_expected, own={"j": 16}, combine={"l": 2, "g": 16}, merge={"g": 8}
        ),
        of("decode_attention_whole", _parts_inputs, _parts_expected, own={"j": 16}, merge={"g": 8}),
        of("scatter", _scatter_inputs, _scatter_expected, f={"r": 8, "j": 4}),
        of("scatter_rows", _scatter_inputs, _scatter_expected, f={"j": 4}),
        of("part", _part_inputs, _part_expected, f={"i": 4}, g={"j": 4}),
        of("pull", _pull_inputs, _pull_expected),
        of("positions", _positions_inputs, _positions_expected, f={"r": 4}),
        of("computed", _computed_inputs, _computed_expected, use={"j": 4}),
        of(
            "sums",
            _sums_inputs,
            _sums_expected,
            squares={"i": 16, "j": 4},
            product={"k": 16, "j": 8, "i": 16},
            segments={"i": 8, "j": 4},
            largest={"i": 8},
        ),
        of("choose", _choose_inputs, _choose_expected, g={"j": 4}),
        of("ends", _ends_inputs, _ends_expected, f={"i": 8, "j": 4}, g={"i": 4}, h={"i": 8}, k={"i": 4}),
        of("told", _told_inputs, _told_expected, send={"i": 8}, found={"i": 4}, take={"i": 8}, keep={"j": 4}),
        of("exchange", _exchange_inputs, _exchange_expected, send={"c": 4}, take={"j": 4}),
        of("alike", _alike_inputs, _alike_expected, share={"i": 8}, send={"i": 8}, take={"i": 8}),
    )
    return {one.program.name: one for one in every}


def wrong(
    outputs: Mapping[str, torch.Tensor],
    expected: Mapping[str, list[tuple[object, torch.Tensor]]],
    atol: float = 2e-3,
) -> list[str]:
    """Return the outputs that differ from what is expected, each with its index."""
    return [
        f"{name}[{index}]"
        for name, parts in expected.items()
        for index, values in parts
        if not torch.allclose(outputs[name][index].float(), values.float(), atol=atol, rtol=1e-3)  # type: ignore[index]
    ]
