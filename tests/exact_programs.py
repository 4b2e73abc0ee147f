"""Programs whose outputs are known bit by bit, with their inputs, for CPU ranks and for GPUs.

Selecting, sorting, operations of integers, and sums to which several programs add.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

Tensors = dict[str, torch.Tensor]

SELECT = """
program select(M, N):
    x : in [M, N] f32
    a : in [M, N] i32
    b : in [M, N] i32
    p : in [M, N] bool
    top   : out [M] i32
    least : out [N] i32
    some  : out [M] bool
    every : out [N] bool
    sums  : out [M, N] f32
    down  : out [M, N] i32
    whole : out [M, N] i32
    bits  : out [M, N] i32
    both  : out [M, N] bool

    compute rows(i: M):
        top[i] = argmax(x[i, :], axis=1)
        some[i] = any(x[i, :] > 2.0, axis=1)
        sums[i, :] = cumsum(x[i, :], axis=1)
        whole[i, :] = (a[i, :] // b[i, :]) * 7 + a[i, :] % b[i, :]
        bits[i, :] = (a[i, :] & b[i, :] | 5 ^ a[i, :]) + (a[i, :] << b[i, :]) - (a[i, :] >> b[i, :])
        both[i, :] = p[i, :] & (x[i, :] > 0.0) | p[i, :] ^ (x[i, :] < 1.0)

    compute columns(j: N):
        least[j] = argmin(x[:, j] * 2.0, axis=0)
        every[j] = all(a[:, j] > 0 or p[:, j], axis=0)
        down[:, j] = cumsum(p[:, j], axis=0) + cumsum(a[:, j], axis=0)

schedule blocks for select:
    rows tile(i=8)
    columns tile(j=8)
"""

ORDER = """
program order(M, N):
    x : in [M, N] f32
    h : in [M, N] f16
    a : in [M, N] i32
    w : in [M, N] i64
    p : in [M, N] bool
    c : in [4, M, 2] i32
    up    : out [M, N] f32
    place : out [M, N] i32
    halves : out [M, N] f16
    fall  : out [M, N] i32
    long  : out [M, N] i64
    first : out [M, N] i32
    ints  : out [M, N] i32
    down  : out [M, N] i32
    line  : out [M] i32
    cube  : out [4, M, 2] i32

    compute rows(i: M):
        up[i, :] = sort(x[i, :], axis=1)
        place[i, :] = argsort(x[i, :], axis=1)
        halves[i, :] = sort(h[i, :], axis=-1)
        fall[i, :] = argsort(-a[i, :], axis=1)
        long[i, :] = sort(w[i, :], axis=1)
        first[i, :] = argsort(p[i, :], axis=-1)

    compute columns(j: N):
        ints[:, j] = sort(a[:, j], axis=0)
        down[:, j] = argsort(a[:, j], axis=0)

    compute others():
        line[:] = argsort(a[:, 0], axis=0)
        cube[:, :, :] = argsort(c[:, :, :], axis=1) + sort(c[:, :, :], axis=0)

schedule blocks for order:
    rows tile(i=4)
    columns tile(j=4)
"""

ADDED_TO = """
program p(M, N, T):
    v     : in    [T, M, N] f32
    x     : inout [M, N] f32 sum
    total : kept  [M, N] f32 sum
    compute add(t: T by 1, i: M, j: N):
        x[i, j] += v[t, i, j]
        total[i, j] += v[t, i, j] * 0.5
schedule several for p:
    add tile(i=8, j=32), on sm(4)
"""


# Selecting -----------------------------------------------------------------------------------------------------------


def select_inputs(M: int, N: int) -> Tensors:
    """Inputs of SELECT, with many equal elements, the ends of i32, and divisors of 0."""
    chance = torch.Generator().manual_seed(M)
    x = torch.randint(-3, 3, (M, N), generator=chance).float()
    a, b = (torch.randint(-40, 40, (M, N), generator=chance, dtype=torch.int32) for _ in range(2))
    a[0, 0], b[0, :2] = -(2**31) + 1, 0
    return {"x": x, "a": a, "b": b, "p": torch.rand(M, N, generator=chance) > 0.3}


def selected(given: Tensors) -> Tensors:
    """What SELECT computes. Its sums of small integers are exact in f32, in whatever order."""
    x, a, p = given["x"], given["a"], given["p"]
    na, nb = (given[name].long().numpy() for name in ("a", "b"))
    safe = nb + (nb == 0)
    quotient, remainder = (na // safe) * (nb != 0), (na % safe) * (nb != 0)
    shift = nb & 31
    return {
        "top": torch.from_numpy(x.numpy().argmax(1)), "least": torch.from_numpy(x.numpy().argmin(0)),
        "some": (x > 2).any(1), "every": ((a > 0) | p).all(0), "sums": x.cumsum(1),
        "down": (p.int().cumsum(0) + a.cumsum(0)).int(), "whole": _wrapped(quotient * 7 + remainder),
        "bits": _wrapped((na & nb | 5 ^ na) + _wrapped(na << shift).numpy() - (na >> shift)),
        "both": p & (x > 0) | p ^ (x < 1),
    }  # fmt: skip


def _wrapped(value: Any) -> torch.Tensor:
    """Integers modulo 2**32, as i32."""
    return torch.from_numpy((value + 2**31) % 2**32 - 2**31)


# Sorting -------------------------------------------------------------------------------------------------------------


def order_inputs(M: int = 5, N: int = 13) -> Tensors:
    """Inputs of ORDER, with NaN and both zeros, the ends of integers, and equal elements."""
    chance = torch.Generator().manual_seed(1)
    x = torch.randint(-3, 3, (M, N), generator=chance).float()
    x[0, 1], x[1, 2], x[2, 0], x[4, 4] = torch.nan, torch.inf, -torch.inf, -torch.nan
    x[3, :3] = torch.tensor([0.0, -0.0, 0.0])
    a = torch.randint(-5, 5, (M, N), generator=chance, dtype=torch.int32)
    a[0, 0], a[1, 0] = 2**31 - 1, -(2**31) + 1
    w = torch.randint(-(2**60), 2**60, (M, N), generator=chance)
    w[0, 0], w[0, 1] = 2**63 - 1, -(2**63)
    p = torch.rand(M, N, generator=chance) > 0.5
    c = torch.randint(0, 3, (4, M, 2), generator=chance, dtype=torch.int32)
    return {"x": x, "h": x.half(), "a": a, "w": w, "p": p, "c": c}


def ordered(given: Tensors) -> Tensors:
    """What ORDER computes, as torch does, with equal elements in their order."""
    x, a, w, p, c = (given[name] for name in "xawpc")
    return {
        "up": x.sort(dim=1, stable=True).values, "place": x.sort(dim=1, stable=True).indices,
        "halves": x.half().sort(dim=1, stable=True).values,
        "fall": (-a.long()).sort(dim=1, stable=True).indices, "long": w.sort(1).values,
        "first": p.int().sort(dim=1, stable=True).indices, "ints": a.sort(0).values,
        "down": a.sort(dim=0, stable=True).indices, "line": a[:, 0].sort(stable=True).indices,
        "cube": c.sort(dim=1, stable=True).indices + c.sort(0).values,
    }  # fmt: skip


# Adding --------------------------------------------------------------------------------------------------------------


def added_inputs(T: int, M: int, N: int, dtype: torch.dtype, seed: int = 0) -> Tensors:
    """Inputs of ADDED_TO: small integers, so that sums of 16 bits are exact in whatever order."""
    chance = torch.Generator().manual_seed(seed)
    v = torch.randint(-4, 5, (T, M, N), generator=chance).float()
    return {"v": v, "x": torch.randint(-8, 9, (M, N), generator=chance).to(dtype)}


def added(given: Tensors) -> Tensors:
    """What the first launch of ADDED_TO makes of its tensor in place."""
    return {"x": given["x"].float() + given["v"].sum(0)}


@dataclass(frozen=True, kw_only=True)
class Exact:
    """A program with a schedule (None: the built-in one), sizes, inputs of a rank, and what should come out of them."""

    text: str
    schedule: str | None
    dims: Mapping[str, int]
    given: Tensors
    wanted: Tensors

    def __str__(self) -> str:
        kinds = sorted({str(value.dtype).removeprefix("torch.") for value in self.given.values()})
        return f"{self.text.split()[1]}, {self.schedule or 'default'}, {' '.join(kinds)}"


def examples(seed: int) -> list[Exact]:
    """Every program with each of its schedules; the sums in each type. seed: of the rank."""
    found: list[Exact] = []
    for way in (None, "blocks"):
        given, dims = select_inputs(37, 200), {"M": 37, "N": 200}
        found.append(Exact(text=SELECT, schedule=way, dims=dims, given=given, wanted=selected(given)))
        given, dims = order_inputs(5, 13), {"M": 5, "N": 13}
        found.append(Exact(text=ORDER, schedule=way, dims=dims, given=given, wanted=ordered(given)))
    for name, dtype in (("bf16", torch.bfloat16), ("f16", torch.float16), ("f32", torch.float32)):
        text, dims = ADDED_TO.replace(" f32 sum", f" {name} sum"), {"M": 64, "N": 256, "T": 128}
        for way in (None, "several"):
            given = added_inputs(128, 64, 256, dtype, seed)
            found.append(Exact(text=text, schedule=way, dims=dims, given=given, wanted=added(given)))
    return found


def differences(found: Mapping[str, torch.Tensor], wanted: Tensors) -> Iterator[str]:
    """Yield the names of outputs that differ. NaN is NaN, and zeros have their signs."""
    for name, value in wanted.items():
        mine = found[name].cpu()
        one, other = mine.double(), value.double()
        integers = not (mine.is_floating_point() or value.is_floating_point())
        same = mine.long() == value.long() if integers else (one == other) | (one.isnan() & other.isnan())
        zeros = other == 0  # of both signs, each in its place: 1 / v tells them apart
        if mine.shape != value.shape or not same.all() or (one[zeros].signbit() != other[zeros].signbit()).any():
            yield name
