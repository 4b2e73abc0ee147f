# pyright: basic
"""What tests of the operators do on CPU ranks: `python -m tests.unit.ops_scenarios NAME ...`, with torch's variables.

Generated kernels need GPUs; here the meaning of their programs stands in for them, so that all that lies between an
operator and its kernel is tested: which program and schedule, shapes, caching, gradients, tracing.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import re
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.autograd import forward_ad
from torch.nn.functional import gelu, silu

import tilelink
from tilelink import compiler, ops
from tilelink.errors import (
    BindingError,
    DeadlineError,
    DtypeError,
    RankError,
    ShapeError,
    TileLinkError,
    UnknownNameError,
)
from tilelink.ops import calls, consensus, groups, nodes, registered
from tilelink.ops import unfused as unfused_ways
from tilelink.ops.operators import OPERATORS, RECORDS, add
from tilelink.settings import override
from tilelink.target import H200
from tilelink.tuning import Database, Record, algorithms, key_of

MS, N, K = 6, 10, 8
ALLOWED = {torch.float32: 1e-5, torch.bfloat16: 1.5e-2}

SUMS = "all_reduce_two_shot_pushed:more"

Tensor = torch.Tensor
Call = tuple[Callable[..., Any], tuple[Tensor, ...], dict[str, Any]]


class Meaning:
    """Stands in for a compiled kernel: gathers all ranks' inputs and takes what the program means."""

    made: list[tuple[str, str]] = []  # noqa: RUF012  (counted over the whole scenario)
    given: list[Tensor] = []  # noqa: RUF012
    into: list[Tensor] = []  # noqa: RUF012
    """Tensors that results were written into."""

    def __init__(
        self, program: Any, schedule: Any, *, ranks: int, dims: Any, dtype: str, device: str, group: Any, nodes: int,
        target: Any, tables: Any,
    ):  # fmt: skip
        self.nodes, self.dims = nodes, dims
        self._program, self._dims, self._dtype, self._group = program, dims, dtype, group
        Meaning.made.append((program.name, schedule.name))
        assert device == "cuda" and target is None and not tables
        assert ranks == group.size()

    def buffer(self, name: str) -> Tensor:
        """Where the input of the next launch may be put."""
        shape = compiler.bound(
            self._program, None, ranks=self._group.size(), dims=self._dims, dtype=self._dtype
        ).tensors[name].shape  # fmt: skip
        Meaning.given.append(torch.full(shape, torch.nan, dtype=torch.bfloat16))
        return Meaning.given[-1]

    def __call__(self, inputs: Mapping[str, Tensor], out: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
        every: list[Any] = [None] * self._group.size()
        dist.all_gather_object(every, dict(inputs), group=self._group)
        made = compiler.reference(self._program, every, dims=self._dims, dtype=self._dtype)[self._group.rank()]
        for name, tensor in (out or {}).items():
            assert tensor.shape == made[name].shape
            made[name] = tensor.copy_(made[name])
            Meaning.into.append(tensor)
        return made


def every(*shape: int, seed: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """A tensor of each rank."""
    chance = torch.Generator().manual_seed(seed)
    return [torch.randn(*shape, generator=chance).to(dtype) for _ in range(dist.get_world_size())]


def near(result: Tensor, expected: Tensor, note: str = "") -> None:
    error = (result.float() - expected.float()).norm() / expected.float().norm()
    assert result.shape == expected.shape, note
    assert error < ALLOWED[result.dtype], f"{note}: off by {error:.2e}"


def results(dtype: torch.dtype, way: str | None) -> None:
    """All operators against plain torch, on all ranks' tensors."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    xs, ws, us = every(MS, K, seed=1, dtype=dtype), every(N, K, seed=2, dtype=dtype), every(N, K, seed=3, dtype=dtype)
    bs = every(N, seed=4, dtype=dtype)
    x, w, u, b, wide = xs[rank], ws[rank], us[rank], bs[rank], [t.float() for t in (ws[rank], us[rank], bs[rank])]
    z = torch.cat(xs).float() @ wide[0].T
    for bias, activation in ((None, None), (b, None), (None, "silu"), (None, "gelu"), (b, "silu"), (b, "gelu")):
        expected = z + (wide[2] if bias is not None else 0)
        expected = {"silu": silu, "gelu": gelu}.get(activation or "", lambda t: t)(expected)
        y = ops.ag_gemm(x, w, bias=bias, activation=activation, schedule=way)
        near(y, expected, f"ag_gemm {activation}")
    near(ops.ag_gemm_gated(x, w, u, schedule=way), silu(z) * (torch.cat(xs).float() @ wide[1].T), "gated")
    long = every(ranks * MS, K, seed=5, dtype=dtype)
    total = torch.stack([a.float() @ c.float().T for a, c in zip(long, ws, strict=True)]).sum(0)
    own = total[rank * MS :][:MS]
    for bias, activation in ((None, None), (b, None), (None, "silu"), (b, "gelu")):
        follow = {"silu": silu, "gelu": gelu}.get(activation or "", lambda t: t)
        added = wide[2] if bias is not None else torch.zeros(N)
        given: Any = {"bias": bias, "activation": activation, "schedule": way}
        near(ops.gemm_rs(long[rank], w, **given), follow(own + added), f"gemm_rs {activation}")
        given["bias"] = bs[0] if bias is not None else None  # the same on all ranks
        first = bs[0].float() if bias is not None else 0
        near(ops.gemm_ar(long[rank], w, **given), follow(total + first), "gemm_ar")
        near(ops.gemm_ar(long[rank], w, **given, f32_sums=True), follow(total + first), "gemm_ar f32")
        added_on = follow(total + first) + 1
        one, norm = torch.ones(ranks * MS, N, dtype=dtype), bs[1] if len(bs) > 1 else bs[0]
        near(ops.gemm_ar(long[rank], w, **given, residual=one), added_on, "gemm_ar with a residual")
        normed, y = ops.gemm_ar(long[rank], w, **given, residual=one, norm=norm, eps=0.5)
        near(y, added_on, "the sum that has a norm")
        near(normed, torch.nn.functional.rms_norm(added_on, (N,), norm.float(), 0.5), "its norm")
        given["bias"] = bias
        near(ops.gemm_rs(long[rank], w, **given, f32_sums=True), follow(own + added), f"gemm_rs f32 {activation}")
    near(ops.all_gather(x, schedule=way), torch.cat(xs), "all_gather")
    near(ops.reduce_scatter(long[rank], schedule=way), torch.stack(long).float().sum(0)[rank * MS :][:MS], "scatter")
    total = torch.stack(long).float().sum(0)
    near(ops.all_reduce(long[rank], schedule=way), total, "all_reduce")
    one, norm = torch.ones(ranks * MS, K, dtype=dtype), torch.arange(K).to(dtype)
    near(ops.all_reduce(long[rank], residual=one, schedule=way), total + 1, "all_reduce with a residual")
    normed, y = ops.all_reduce(long[rank], residual=one, norm=norm, eps=0.5, schedule=way)
    near(y, total + 1, "the sum that has a norm")
    near(normed, torch.nn.functional.rms_norm(total + 1, (K,), norm.float(), 0.5), "its norm")
    normed, y = ops.all_reduce(long[rank], norm=norm, eps=0.5, schedule=way)
    near(y, total, "the sum that has a norm and no residual")
    near(normed, torch.nn.functional.rms_norm(total, (K,), norm.float(), 0.5), "its norm")


def between_nodes() -> None:
    """A group that spans nodes runs the program that is asked for, in two levels too, and else no kernel of its own."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    x, w = every(MS, K, seed=1, dtype=torch.bfloat16)[rank], torch.ones(N, K).bfloat16()
    made: list[Meaning] = []

    def compiled(*what: Any, **where: Any) -> Meaning:
        made.append(Meaning(*what, **where))
        return made[-1]

    with pytest.MonkeyPatch.context() as patch, override(node_ranks=1):
        patch.setattr(calls.compiler, "compile", compiled)
        ops.clear()
        plain = ops.ag_gemm(x, w)
        assert not made
        for name in ("h200", "two_level_ag_gemm:copy_sms"):
            near(ops.ag_gemm(x, w, schedule=name), plain, name)
        assert [one.nodes for one in made] == [ranks, ranks]
        assert made[1].dims["g"] == 1
    ops.clear()


def rounded_once() -> None:
    """With f32 sums the result is that of all ranks' products rounded once; else every rank's is rounded."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    longs, ws = (every(n, 256, seed=n, dtype=torch.bfloat16) for n in (64 * ranks, 48))
    total = torch.stack([a.float() @ c.float().T for a, c in zip(longs, ws, strict=True)]).sum(0)
    own = total[rank * 64 :][:64]
    for way in ("unfused", "h200"):
        for function, expected in ((ops.gemm_rs, own), (ops.gemm_ar, total)):
            once, twice = (function(longs[rank], ws[rank], schedule=way, f32_sums=f32) for f32 in (True, False))
            differing = [(y != expected.bfloat16()).float().mean().item() for y in (once, twice)]
            assert differing[0] < 0.01 < 0.1 < differing[1], (way, function, differing)


def unfused() -> None:
    results(torch.float32, "unfused")
    results(torch.bfloat16, "unfused")
    results(torch.float32, None)
    rank = dist.get_rank()
    odd = every(5, 2, 3, seed=7)
    assert torch.equal(ops.all_gather(odd[rank]), torch.cat(odd))
    near(ops.all_reduce(odd[rank]), torch.stack(odd).sum(0))
    assert ops.gemm_ar(torch.ones(3, 4), torch.ones(2, 4)).tolist() == [[8.0, 8.0]] * 3  # rows that ranks do not divide


def fused() -> None:
    """Every operator by the program that the library has for it; nothing is compiled twice."""
    results(torch.bfloat16, "h200")
    found = list(Meaning.made)
    programs = {variant: name for one in RECORDS for variant, name in one.programs.items()}
    plain = [one for one in RECORDS if not one.name.endswith(("_residual", "_norm"))]  # those follow sums
    asked = {name for one in plain for name in one.programs.values()}
    asked -= {programs["gathered"]}  # of gradients
    assert {name for name, _ in found} == asked
    assert {schedule for _, schedule in found} == {"h200"}
    results(torch.bfloat16, "h200")
    assert Meaning.made == found
    x, w = every(MS, K, seed=1, dtype=torch.bfloat16)[dist.get_rank()], torch.ones(N, K).bfloat16()
    module = tilelink.load("ag_gemm")
    own = module.schedule("copy_sms", module.program("ag_gemm"))
    for way in (own, str(own), "ag_gemm:copy_sms", own):
        ops.ag_gemm(x, w, schedule=way)
    assert Meaning.made[len(found) :] == [("ag_gemm", "copy_sms")]
    long = torch.ones(2 * MS, K).bfloat16()
    ops.gemm_rs(long, w, schedule="gemm_rs_ring:ring")
    assert Meaning.made[-1] == ("gemm_rs_ring", "ring")
    for rows in (1, 3, 9):  # 3 and 9 are rounded up, and so are those of the residual
        given, one = torch.ones(rows, K).bfloat16(), torch.ones(rows, N).bfloat16()
        assert ops.gemm_ar(given, w, schedule="gemm_ar_one_shot:h200").tolist() == [[16.0] * N] * rows
        y = ops.gemm_ar(given, w, residual=one, schedule="gemm_ar_one_shot_residual:h200")
        assert y.tolist() == [[17.0] * N] * rows
        norm = torch.full((N,), 2.0).bfloat16()
        normed, y = ops.gemm_ar(given, w, residual=one, norm=norm, eps=0, schedule="gemm_ar_one_shot_norm:h200")
        assert y.tolist() == [[17.0] * N] * rows and normed.tolist() == [[2.0] * N] * rows
        assert Meaning.made[-1] == ("gemm_ar_one_shot_norm", "h200")
        y = ops.all_reduce(one, residual=one, schedule="all_reduce_one_shot_residual:h200_words")
        assert y.tolist() == [[3.0] * N] * rows and y.stride() == (N, 1)
        normed, y = ops.all_reduce(one, residual=one, norm=norm, eps=0, schedule="all_reduce_one_shot_norm:h200")
        assert y.tolist() == [[3.0] * N] * rows and normed.tolist() == [[2.0] * N] * rows
        assert Meaning.made[-1] == ("all_reduce_one_shot_norm", "h200")
    ops.all_gather(torch.ones(4, 2, 3).bfloat16(), schedule="h200")
    assert ops.all_gather(torch.ones(4, 2, 3).bfloat16(), schedule="h200").shape == (8, 2, 3)
    ops.clear()
    ops.ag_gemm(x, w, schedule=own)
    assert Meaning.made[-1] == ("ag_gemm", "copy_sms")
    assert ops.gemm_ar(torch.ones(3, K).bfloat16(), w, schedule="h200").tolist() == [[16.0] * N] * 3
    with pytest.raises(DtypeError, match="bf16 and f16"):
        ops.ag_gemm(x.float(), w.float(), schedule="h200")
    with pytest.raises(UnknownNameError, match="copy_sms"):
        ops.ag_gemm(x, w, schedule="nothing")


def into() -> None:
    """Results in given tensors: written by the kernel itself where it has their rows, else copied."""
    x, w = (every(*shape, seed=1, dtype=torch.bfloat16)[dist.get_rank()] for shape in ((16, K), (N, K)))
    few, b, one = x[:12], torch.arange(N).bfloat16(), torch.ones(12, N).bfloat16()  # kernels have 16 rows for 12
    followed: Any = {"residual": one, "norm": b, "eps": 0.5}
    words, norm = "all_reduce_one_shot_pushed:words", "all_reduce_one_shot_norm:h200"
    straight: list[Call] = [
        (ops.ag_gemm, (x, w), {"schedule": "h200"}),
        (ops.gemm_rs, (x, w), {"schedule": "h200"}),
        (ops.gemm_rs, (x, w), {"schedule": "reduce_scatter_pushed:more"}),
        (ops.gemm_ar, (x, w), {"schedule": "h200"}),
        (ops.gemm_ar, (x, w), {"schedule": SUMS}),
        (ops.gemm_ar, (x, w), {"schedule": "h200", "f32_sums": True}),
        (ops.all_reduce, (x,), {"schedule": words}),
        (ops.all_reduce, (x,), {"schedule": norm, "residual": x, "norm": x[0]}),
    ]
    copied: list[Call] = [
        (ops.ag_gemm, (x, w), {"schedule": "all_gather_kept:more"}),
        (ops.ag_gemm, (x, w), {"schedule": "all_gather_kept:more", "bias": b}),
        *[(op, (few, w), {"schedule": "h200"}) for op in (ops.ag_gemm, ops.gemm_rs, ops.gemm_ar)],
        (ops.gemm_ar, (x, w), {"schedule": SUMS, "bias": b}),
        (ops.gemm_ar, (x, w), {"schedule": "h200", "f32_sums": True, "bias": b}),
        (ops.gemm_ar, (few, w), followed),
        (ops.gemm_ar, (few, w), {"residual": one}),
        (ops.gemm_ar, (few, w), {"norm": b}),
        (ops.all_reduce, (few,), {"schedule": words}),
        (ops.all_reduce, (one,), {"schedule": norm, **followed}),
        *[(op, (x, w), {"schedule": "unfused"}) for op in (ops.ag_gemm, ops.gemm_rs, ops.gemm_ar)],
        (ops.all_reduce, (x,), {"schedule": "unfused"}),
    ]
    for op, operands, options in (*straight, *copied):
        expected = op(*operands, **options)
        results = expected if isinstance(expected, tuple) else (expected,)
        out = tuple(torch.full_like(y, torch.nan) for y in results)
        Meaning.into.clear()
        given: Any = out if len(out) > 1 else next(iter(out))
        assert op(*operands, **options, out=given) is given
        assert all(torch.equal(*pair) for pair in zip(out, results, strict=True)), (op, options)
        written = {t.data_ptr() for t in Meaning.into}
        is_straight = any(options is one for *_, one in straight)
        assert written == ({t.data_ptr() for t in out} if is_straight else set()), options


def into_compiled() -> None:
    """The same under torch.compile, where the tensors are arguments that are written."""
    x, w, one = torch.randn(MS, K), torch.randn(N, K), torch.ones(MS, N)

    def function(x: Tensor, y: Tensor, h: Tensor, total: Tensor) -> Tensor:
        ops.gemm_ar(x, w, out=y)
        ops.all_reduce(y * 2, residual=one, norm=one[0], out=(h, total))
        return y + 1

    found = []
    for run in (torch.compile(function, backend="aot_eager", fullgraph=True), function):
        out = [torch.empty(MS, N) for _ in range(3)]
        out.append(run(x, *out))
        found.append(out)
    for mine, theirs in zip(*found, strict=True):
        near(mine, theirs)
    name = dist.group.WORLD.group_name  # type: ignore[union-attr]
    arguments = (x, w, None, "", name, "", torch.empty(MS, N))
    tests = ("test_schema", "test_faketensor")
    torch.library.opcheck(torch.ops.tilelink.gemm_ar_out.default, arguments, test_utils=tests)


def into_mistakes() -> None:
    x, w, y = torch.ones(MS, K), torch.ones(N, K), torch.zeros(MS, N)
    square = torch.ones(K, K)
    for out, error, message in (
        (torch.zeros(MS, N + 1), ShapeError, r"out y of gemm_ar is \[6, 11\]"),
        (y.bfloat16(), DtypeError, r"out y of gemm_ar is torch\.bfloat16"),
        (torch.zeros(N, MS).T, BindingError, "out y of gemm_ar is not contiguous"),
        ((y, y), BindingError, "out of gemm_ar has 2 tensors for 1 results"),
        (3, BindingError, "out y of gemm_ar is a int"),
        (y.clone().requires_grad_(), BindingError, "a gradient is needed"),
    ):
        with pytest.raises(error, match=message):
            ops.gemm_ar(x, w, out=out)  # type: ignore[arg-type]
    with pytest.raises(BindingError, match="out y of gemm_ar shares memory with operand x"):
        ops.gemm_ar(x, square, out=x)
    with pytest.raises(BindingError, match="out y of all_reduce shares memory with operand x"):
        ops.all_reduce(x[:4], out=x[2:])
    with pytest.raises(BindingError, match=r"out of all_reduce_norm has 1 tensors for 2 results"):
        ops.all_reduce(x, norm=x[0], out=x)
    with pytest.raises(BindingError, match="out y of all_reduce_norm shares memory with out h"):
        ops.all_reduce(x, residual=x, norm=x[0], out=(square[:MS], square[1 : MS + 1]))
    with pytest.raises(BindingError, match="out y of all_reduce_norm shares memory with out h"):
        ops.all_reduce(x, norm=x[0], out=(square[:MS], square[1 : MS + 1]))
    with pytest.raises(BindingError, match="gemm_rs of a number of rows has no `out`"):
        ops.gemm_rs(x, w, rows=3, out=y)
    with pytest.raises(BindingError, match="a gradient is needed"):
        ops.all_reduce(x.clone().requires_grad_(), norm=x[0], out=(square[:MS], torch.ones(MS, K)))
    assert y.tolist() == [[0.0] * N] * MS


def quantised(*shape: int, seed: int) -> Tensor:
    """What a rank has, as 8-bit floats."""
    return every(*shape, seed=seed)[dist.get_rank()].to(torch.float8_e4m3fn)


def scaled(traced: bool = False) -> None:
    """Products of 8-bit floats, with a scale for each row or one for all, which differs from rank to rank."""
    rank, ranks, rows, n, k = dist.get_rank(), dist.get_world_size(), 6, 32, 48
    x, w = quantised(rows, k, seed=1), quantised(n, k, seed=2)
    chance = torch.Generator().manual_seed(5 + rank)
    of_rows = torch.rand(rows, 1, generator=chance) + 0.5, torch.rand(1, n, generator=chance) + 0.5
    of_all = torch.tensor(0.5 + rank), torch.tensor(0.25)
    b, one, norm = torch.arange(n).bfloat16(), torch.ones(rows, n).bfloat16(), torch.full((n,), 2.0).bfloat16()
    for scale_a, scale_b in (of_rows, of_all, (of_all[0][None, None], of_all[1].reshape(1))):
        given: Any = {"scale_a": scale_a, "scale_b": scale_b}
        xs: list[Any] = [None] * ranks
        dist.all_gather_object(xs, x.float() * scale_a)
        wide = w.float() * scale_b.expand(1, n).T
        total = (x.float() * scale_a) @ wide.T
        dist.all_reduce(total)

        def ours(x: Tensor, given: Any = given) -> dict[str, Any]:
            y = torch.empty(rows, n).bfloat16()
            return {
                "ag": ops.ag_gemm(x, w, **given), "ag, bias": ops.ag_gemm(x, w, **given, bias=b, activation="silu"),
                "rs": ops.gemm_rs(x, w, **given), "rs, bias": ops.gemm_rs(x, w, **given, bias=b),
                "ar": ops.gemm_ar(x, w, **given, out=y), "out": y,
                "ar, bias": ops.gemm_ar(x, w, **given, bias=b, activation="gelu"),
                "residual": ops.gemm_ar(x, w, **given, residual=one),
                "norm": ops.gemm_ar(x, w, **given, residual=one, norm=norm, eps=0.5),
            }  # fmt: skip

        function: Any = torch.compile(ours, fullgraph=True, backend="aot_eager") if traced else ours
        made, z, own = function(x), torch.cat(xs) @ wide.T, slice(rank * rows // ranks, (rank + 1) * rows // ranks)
        wanted = {
            "ag": z, "ag, bias": silu(z + b), "rs": total[own], "rs, bias": total[own] + b, "ar": total, "out": total,
            "ar, bias": gelu(total + b), "residual": total + 1,
        }  # fmt: skip
        for name, value in wanted.items():
            near(made[name], value, name)
        near(made["norm"][0], torch.nn.functional.rms_norm(total + 1, (n,), norm.float(), 0.5), "norm")
        near(made["norm"][1], total + 1, "its sum")


def scaled_compiled() -> None:
    scaled(traced=True)


def scaled_mistakes() -> None:
    x, w, a, b = quantised(4, 32, seed=1), quantised(16, 32, seed=2), torch.ones(4, 1), torch.ones(1, 16)
    for given, options, error, message in (
        ((x, w), {"scale_a": a}, BindingError, "lacks a scale"),
        ((x, w), {}, BindingError, "gemm_rs of torch.float8_e4m3fn and torch.float8_e4m3fn lacks a scale"),
        ((x.float(), w), {"scale_a": a, "scale_b": b}, DtypeError, r"x of gemm_rs is torch\.float32"),
        ((x, w), {"scale_a": a.double(), "scale_b": b}, DtypeError, r"scale_a of gemm_rs is torch\.float64"),
        ((x, w[:, :16]), {"scale_a": a, "scale_b": b}, ShapeError, r"x and w of gemm_rs are \[4, 32\] and \[16, 16\]"),
        ((x, w[:8]), {"scale_a": a, "scale_b": b[:, :8]}, ShapeError, r"w of gemm_rs is \[8, 32\]"),
        ((x, w), {"scale_a": a, "scale_b": b[:, :1]}, ShapeError, r"are \[4, 1\] and \[1, 1\]"),
        ((x, w), {"scale_a": a, "scale_b": b, "rows": 3}, BindingError, "gemm_rs with scales has no rows"),
        ((x, w), {"scale_a": a, "scale_b": b, "f32_sums": True}, BindingError, "with scales has no f32_sums"),
        ((x, w), {"scale_a": a, "scale_b": b, "bias": b[0]}, DtypeError, r"bias of gemm_rs is torch\.float32"),
        ((x, w), {"scale_a": a, "scale_b": b, "bias": a.bfloat16()}, ShapeError, r"bias of gemm_rs is \[4, 1\]"),
        ((x, w), {"scale_a": a, "scale_b": b, "activation": "relu"}, UnknownNameError, "no activation 'relu'"),
        ((x, w), {"scale_a": a.clone().requires_grad_(), "scale_b": b}, BindingError, "with scales has no gradients"),
    ):  # fmt: skip
        with pytest.raises(error, match=message):
            ops.gemm_rs(*given, **options)  # type: ignore[arg-type]


def followed_mistakes() -> None:
    """What does not fit a sum is refused whatever way the call takes, and not broadcast."""
    for rows, bias in ((4, None), (4, torch.ones(16).bfloat16()), (2048, None)):
        x, w, y, norm = torch.ones(rows, 32), torch.ones(16, 32), torch.ones(rows, 16), torch.ones(16)
        x, w, y, norm = (one.bfloat16() for one in (x, w, y, norm))
        f8, one = (x.to(torch.float8_e4m3fn), w.to(torch.float8_e4m3fn)), torch.ones(1)
        calls_of_sums: list[Callable[..., Any]] = [
            partial(ops.gemm_ar, x, w, bias=bias), partial(ops.all_reduce, y),
            partial(ops.gemm_ar, *f8, bias=bias, scale_a=one, scale_b=one),
        ]  # fmt: skip
        for call in calls_of_sums:
            for options, error, message in (
                ({"residual": y[:1]}, ShapeError, r"residual of \w+ is \[1, 16\]"),
                ({"residual": y[0], "norm": norm}, ShapeError, r"residual of \w+ is \[16\]"),
                ({"residual": y.float()}, DtypeError, r"residual of \w+ is torch\.float32"),
                ({"norm": y}, ShapeError, r"norm of \w+ is \[\d+, 16\]"),
                ({"norm": norm[1:]}, ShapeError, r"norm of \w+ is \[15\]"),
                ({"residual": y, "norm": norm.float()}, DtypeError, r"norm of \w+ is torch\.float32"),
            ):
                with pytest.raises(error, match=message):
                    call(**options)
    for odd in (w[0], w[None]):
        with pytest.raises(ShapeError):
            ops.gemm_ar(x, odd, residual=y)
    with pytest.raises(ShapeError, match=r"the sum of all_reduce is \[1, 2048, 16\]"):
        ops.all_reduce(y[None], residual=y[None], norm=norm)
    listed: Any = [torch.empty_like(y), torch.empty_like(y)]
    made = ops.all_reduce(y, residual=y, norm=norm, out=listed)
    assert made[1] is listed[1] and made[1][0, 0] == dist.get_world_size() + 1


def paired() -> None:
    """torch's product beside a program that only communicates."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    w, b = every(N, K, seed=2, dtype=torch.bfloat16)[rank], torch.arange(N).bfloat16()
    short, long = (every(rows, K, seed=1, dtype=torch.bfloat16)[rank] for rows in (MS, MS * ranks))
    ways = [("ag_gemm", "all_gather:h200"), ("gemm_rs", "reduce_scatter:h200")]
    ways += [("gemm_ar", f"all_reduce_{name}:few") for name in ("one_shot", "two_shot", "two_shot_kept")]
    ways += [(one.name, schedule) for one in RECORDS if one.small and one.weights for schedule in one.small.schedules]
    for op, way in ways:
        function, x = getattr(ops, op), short if op == "ag_gemm" else long
        for options in ({}, {"bias": b}, {"bias": b, "activation": "silu"}):
            near(function(x, w, **options, schedule=way), function(x, w, **options, schedule="unfused"), way)
        assert ":".join(Meaning.made[-1]) == way
        if op != "ag_gemm":
            parts = Meaning.given[-1].view(ranks if op == "gemm_rs" else 1, -1, N)
            assert torch.equal(parts[:, : len(x) // len(parts)].flatten(0, 1), x @ w.T)
    made = len(Meaning.made)
    for rows in (1, 3, 8, 9, 16):  # rounded up to 2, 4, 8 and 16
        x = every(rows, K, seed=rows, dtype=torch.bfloat16)[rank]
        y = ops.gemm_ar(x, w, schedule=SUMS)
        assert y.shape == (rows, N) and y.is_contiguous()
        near(y, ops.gemm_ar(x, w, schedule="unfused"), f"{rows} rows")
    assert len(Meaning.made) == made + 3, "12 rows had been summed before as 16"
    ops.clear()
    ops.gemm_ar(x, w, schedule=SUMS)
    assert len(Meaning.made) == made + 4
    with pytest.raises(UnknownNameError, match="all_gather does not compute ag_gemm_gated"):
        ops.ag_gemm_gated(short, w, w, schedule="all_gather:h200")


def any_rows() -> None:
    """Calls with any number of rows share the kernels of some, with gradients too; nobody sees what is left over."""
    with pytest.MonkeyPatch.context() as patch:  # as if this were a GPU, for calls that name no schedule
        patch.setattr(calls, "able", lambda x: x.dtype is torch.bfloat16)
        patch.setattr(calls, "current_target", lambda: H200)
        patch.setattr(consensus, "here", lambda: ("NVIDIA H200", "these"))
        ops.clear()
        for op in NAMES:
            rows_that_change(op, "h200")
        for op in ("ag_gemm", "gemm_rs", "gemm_ar"):
            rows_that_change(op, None)
            gradients_of_rows_that_change(op)
    with pytest.raises(UnknownNameError, match="no operator 'gemm'"):
        ops.kernel_rows("gemm", 8)
    ops.clear()


def rooms() -> None:
    """Kernels that have room for several numbers of rows: few, which no call sees; it gets just its rows."""
    rank, made = dist.get_rank(), len(Meaning.made)
    xs, w = every(70, 16, seed=1, dtype=torch.bfloat16), every(24, 16, seed=2, dtype=torch.bfloat16)[rank]
    x, residual = xs[rank], torch.randn(70, 24, generator=torch.Generator().manual_seed(3)).bfloat16()
    for count in (1, 5, 32, 33, 64, 40, 70):
        plain = ops.gemm_ar(x[:count], w, schedule="unfused")
        near(ops.gemm_ar(x[:count], w, schedule="gemm_ar_batch:small"), plain, f"{count} rows")
        near(ops.gemm_ar(x[:count].clone(), w, activation="silu", schedule="gemm_ar_batch:small"), silu(plain))
        y = ops.gemm_ar(x[:count], w, residual=residual[:count], schedule="gemm_ar_batch_residual:small")
        near(y, plain + residual[:count], f"{count} rows and a residual")
    assert Meaning.made[made:] == [("gemm_ar_batch", "small"), ("gemm_ar_batch_residual", "small")] * 3
    with pytest.raises(UnknownNameError, match="ag_gemm_batch does not compute ag_gemm"):
        ops.ag_gemm(x, w, schedule="ag_gemm_batch:h200")


def apart() -> None:
    """What follows a sum is part of its kernel if one is chosen for both; else the kernels of each are taken."""
    rank = dist.get_rank()
    xs, w = every(300, 16, seed=1, dtype=torch.bfloat16), every(24, 16, seed=2, dtype=torch.bfloat16)[rank]
    x, residual = xs[rank], torch.randn(300, 24, generator=torch.Generator().manual_seed(3)).bfloat16()
    norm = torch.rand(24, generator=torch.Generator().manual_seed(4)).bfloat16()
    few, more = "h200_words_32x32", ("all_reduce_one_shot_pushed", "few")
    with pytest.MonkeyPatch.context() as patch:  # as if this were a GPU
        patch.setattr(calls, "able", lambda x: x.dtype is torch.bfloat16)
        patch.setattr(calls, "current_target", lambda: H200)
        patch.setattr(consensus, "here", lambda: ("NVIDIA H200", "these"))
        for rows, of_residual, of_norm in (
            (8, [("gemm_ar_one_shot_residual", few)], [("gemm_ar_one_shot_norm", few)]),
            (300, [more], [("add_norm", "h200")]),  # the kernel of the sum is there
        ):
            given, one = x[:rows], residual[:rows]
            total = ops.gemm_ar(given, w, schedule="unfused") + one
            made = len(Meaning.made)
            near(ops.gemm_ar(given, w, residual=one), total, f"{rows} rows and a residual")
            assert Meaning.made[made:] == of_residual
            h, y = ops.gemm_ar(given, w, residual=one, norm=norm, eps=0.5)
            near(y, total, f"{rows} rows before a norm")
            near(h, torch.nn.functional.rms_norm(total, (24,), norm, 0.5), f"the norm of {rows} rows")
            assert Meaning.made[made + 1 :] == of_norm
        made = len(Meaning.made)
        for way in ("all_reduce_two_shot_pushed:more", "unfused"):
            ops.gemm_ar(x, w, residual=residual, norm=norm, eps=0.5, schedule=way)
        assert Meaning.made[made:] == [("all_reduce_two_shot_pushed", "more")], "what is named is that of the sum"


def prepared() -> None:
    """Kernels of many calls are made at once, those that are missing alone; nothing is computed before."""
    rank = dist.get_rank()
    x, w = every(64, 16, seed=1, dtype=torch.bfloat16)[rank], every(24, 16, seed=2, dtype=torch.bfloat16)[rank]
    way, told, made = "gemm_ar_one_shot:small", list[str](), len(Meaning.made)
    norm, shapes = torch.ones(24, dtype=torch.bfloat16), list[Any]()

    def several() -> None:
        """A model: an operator takes what another one returns, and one returns several results."""
        residual = x[:8, :1].expand(8, 24)
        h, y = ops.gemm_ar(x[:8], w, residual=residual, norm=norm, schedule="gemm_ar_one_shot_norm:small")
        shapes.append((h.shape, ops.all_gather(y, schedule="all_gather:direct").shape))

    calls_of = [partial(ops.gemm_ar, x[:rows], w, schedule=way) for rows in (1, 2, 40, 40)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calls, "current_target", lambda *_: H200)
        found = ops.prepare([*calls_of, several], report=told.append)
        assert found.kernels == 5 == len(Meaning.made) - made and shapes == [((8, 24), (16, 24))] * 2
        assert told[0] == "5 kernels to make for 5 calls" and told[-1].startswith("5 of 5 kernels, "), told
        assert ops.prepare([*calls_of, several]).kernels == 0
        near(calls_of[2](), ops.gemm_ar(x[:40], w, schedule="unfused"))
        assert len(Meaning.made) == made + 5
        with pytest.raises(BindingError, match="call 1 is a Tensor, which cannot be called"):
            ops.prepare([calls_of[0], x])  # type: ignore[list-item]
        with pytest.raises(ShapeError, match=r"w of gemm_ar is \[16, 24\]"):
            ops.prepare([partial(ops.gemm_ar, x, w.T.contiguous())])
        ops.gemm_ar(x[:48], w, schedule=way)  # a refused call leaves nothing that collects
        assert len(Meaning.made) == made + 6
        patch.setattr(torch.cuda, "is_available", lambda: True)
        patch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        with pytest.raises(RankError, match="which no CUDA graph holds"):
            ops.prepare(calls_of)


def rows_that_change(op: str, way: str | None) -> None:
    """All rows up to some by the kernels of few, the rest of whose input is NaN."""
    rank, columns, most = dist.get_rank(), 16, 3
    w, b = every(columns, K, seed=2, dtype=torch.bfloat16)[rank], torch.linspace(-1, 1, columns).bfloat16()
    step = dist.get_world_size() if op.startswith(("gemm_rs", "reduce_scatter")) else 1
    for rows in ops.kernel_rows(op, most * step):
        _ours(op, torch.ones(rows, K).bfloat16(), w, b, way)
    made = len(Meaning.made)
    wide = every(most * step + 40, K, seed=1, dtype=torch.bfloat16)[rank]
    wide[most * step :] = torch.nan
    for x in (wide[: most * step], wide[: most * step].clone()):  # with memory behind, and without
        y, expected = (_ours(op, x, w, b, one) for one in (way, "unfused"))
        assert y.is_contiguous()
        near(y, expected, f"{op} by {way}")
    assert made and len(Meaning.made) == made, f"{op} by {way}"


def gradients_of_rows_that_change(op: str) -> None:
    """Gradients are products and collectives of as many rows, and share kernels too."""
    rank, ranks, made = dist.get_rank(), dist.get_world_size(), 0
    w = every(16, K, seed=2, dtype=torch.bfloat16)[rank]
    for rows in (6, 5):
        x = every(rows * (ranks if op == "gemm_rs" else 1), K, seed=1, dtype=torch.bfloat16)[rank].requires_grad_()
        found: list[Any] = []
        for way in (None, "unfused"):
            x.grad = None
            getattr(ops, op)(x, w, schedule=way).float().square().sum().backward()
            found.append(x.grad)
        near(found[0], found[1], f"gradient of {op}, {rows} rows")
        assert made in (0, len(Meaning.made))
        made = len(Meaning.made)


def added() -> None:
    """A record is all that an operator needs: it is checked, chosen, run, traced and differentiated."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    parts = replace(OPERATORS["gemm_rs"], name="gemm_rs_by_parts", programs={"": "gemm_rs_scatter"})
    add(parts)
    registered.register(parts)
    longs, ws = every(ranks * MS, K, seed=1, dtype=torch.bfloat16), every(N, K, seed=2, dtype=torch.bfloat16)
    own = torch.stack([a.float() @ c.float().T for a, c in zip(longs, ws, strict=True)]).sum(0)[rank * MS :][:MS]
    group = dist.group.WORLD
    assert group is not None
    for way in ("unfused", "h200"):
        y = calls.run(parts.name, (longs[rank], ws[rank], None), "silu", group, way)
        near(y, silu(own), way)
    assert Meaning.made == [("gemm_rs_scatter", "h200")]
    assert ops.choose(parts.name, 8192, 4096, 4096, ranks) == "h200"
    with pytest.raises(UnknownNameError, match="gemm_rs_by_parts with bias"):
        calls.run(parts.name, (longs[rank], ws[rank], torch.ones(N).bfloat16()), "", group, "h200")
    with pytest.raises(ShapeError, match=r"w of gemm_rs_by_parts is \[10, 7\]"):
        calls.run(parts.name, (longs[rank], torch.ones(N, 7).bfloat16(), None), "", group, "unfused")

    def traced(x: Tensor, w: Tensor) -> Tensor:
        return torch.ops.tilelink.gemm_rs_by_parts(x, w, None, "", group.group_name, "unfused")

    found = {}
    for name, function in (("ours", traced), ("theirs", lambda x, w: ops.gemm_rs(x, w, schedule="unfused"))):
        x, w = longs[rank].clone().requires_grad_(), ws[rank].clone().requires_grad_()
        torch.compile(function, backend="aot_eager", fullgraph=True)(x, w).square().sum().backward()
        found[name] = x.grad, w.grad
    for mine, theirs in zip(*found.values(), strict=True):
        assert torch.equal(mine, theirs)


def chosen() -> None:
    """All ranks take what rank 0's database says, which others cannot read; clear() has it read again."""
    spoken = Spoken()
    logging.getLogger("tilelink.ops").addHandler(spoken)
    logging.getLogger("tilelink.ops").setLevel(logging.INFO)
    module, rank, ranks = tilelink.load("gemm_rs"), dist.get_rank(), dist.get_world_size()
    program = module.program("gemm_rs_scatter")
    key = key_of(algorithms(module.programs, program), dims={"Ms": MS, "N": N, "K": K}, dtype="bf16", ranks=ranks,
                 gpu="NVIDIA H200", versions="these")  # fmt: skip
    found = Record(key=key, program=program.name, schedule=str(module.schedule("epilogue", program)), seconds=1e-4)
    with override(cache=Path(tempfile.mkdtemp())):
        if rank == 0:
            Database().store(found)
        long, w = torch.ones(ranks * MS, K).bfloat16(), torch.ones(N, K).bfloat16()
        for _ in range(2):
            assert ops.gemm_rs(long, w).tolist() == [[float(ranks * K)] * N] * MS
        assert Meaning.made == [("gemm_rs_scatter", "epilogue")]
        near(ops.ag_gemm(long, w), torch.ones(ranks * ranks * MS, N) * K)
        assert Meaning.made[1:] == [("all_gather_kept", "more")] and len(spoken.lines) == (rank == 0)  # not fused
        ops.ag_gemm(long, w)
        assert len(spoken.lines) == (rank == 0)
        if rank == 0:
            Database().store(replace(found, program="", schedule="unfused", seconds=5e-5))
        ops.clear()
        ops.gemm_rs(long, w)
        assert len(Meaning.made) == 2
        ops.clear()
        nodes.socket.gethostname = lambda: f"host {rank}"
        near(ops.ag_gemm(long, w), torch.ones(ranks * ranks * MS, N) * K)
        assert len(Meaning.made) == 2, "nothing of the library's own between hosts"
        ops.clear()
        torch.cuda.is_available = lambda: True
        torch.cuda.is_current_stream_capturing = lambda: True
        with pytest.raises(RankError, match="once before the capture"):
            ops.gemm_rs(long, w)
        ops.gemm_rs(long, w, schedule="unfused")


class Spoken(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def regrouped() -> None:
    """A group that comes after a destroyed one and has its name is not taken for it."""
    shared: list[Any] = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(shared)
    first, sums = dist.group.WORLD, SUMS
    assert first is not None
    for swapped in (False, True):
        rank, world = dist.get_rank(), dist.group.WORLD
        assert world is not None
        assert world.group_name == first.group_name
        consensus.here = lambda rank=rank, swapped=swapped: (f"GPU of {rank}, {swapped}", "these")
        assert consensus.consensus(world).gpu == f"GPU of 0, {swapped}"
        xs = every(MS, K, seed=1, dtype=torch.bfloat16)
        for group in (None, world, world.group_name):
            assert torch.equal(ops.all_gather(xs[rank], group=group), torch.cat(xs))
        near(ops.gemm_ar(xs[rank], torch.eye(K).bfloat16(), schedule=sums), torch.stack(xs).float().sum(0), "sum")
        assert len(Meaning.made) == 1 + swapped
        if not swapped:
            dist.barrier()
            dist.destroy_process_group()
            with pytest.raises(RankError, match="no process group"):
                ops.all_gather(xs[rank], group=first.group_name)
            dist.init_process_group("gloo", init_method=f"file://{shared[0]}/met", rank=1 - rank, world_size=2)
    with pytest.raises(RankError, match="any more"):
        ops.all_gather(xs[rank], group=first)


def mistakes() -> None:
    x, w = torch.ones(MS, K), torch.ones(N, K)
    with pytest.raises(ShapeError, match=r"w of ag_gemm is \[10, 7\]"):
        ops.ag_gemm(x, torch.ones(N, 7))
    with pytest.raises(ShapeError, match=r"bias of gemm_ar is \[9\]"):
        ops.gemm_ar(x, w, bias=torch.ones(9))
    with pytest.raises(ShapeError, match="w_up of ag_gemm_gated"):
        ops.ag_gemm_gated(x, w, torch.ones(N + 1, K))
    with pytest.raises(ShapeError, match="products take x as"):
        ops.gemm_rs(torch.ones(2, MS, K), w)
    with pytest.raises(ShapeError, match="7 rows for 2 ranks"):
        ops.gemm_rs(torch.ones(7, K), w)
    with pytest.raises(ShapeError, match="empty"):
        ops.ag_gemm(torch.ones(0, K), w)
    with pytest.raises(DtypeError, match=r"w of ag_gemm is torch\.float16"):
        ops.ag_gemm(x, w.half())
    ops.ag_gemm(x, w)
    with pytest.raises(DtypeError, match=r"w of ag_gemm is torch\.float32 on meta"):
        ops.ag_gemm(x, w.to("meta"))  # of a shape and dtype that were called before
    with pytest.raises(UnknownNameError, match="silu, gelu"):
        ops.ag_gemm(x, w, activation="tanh")
    graded = w.clone().requires_grad_()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(unfused_ways, "_scatter", lambda *_, **__: pytest.fail("something was sent"))
        patch.setattr(dist, "all_reduce", lambda *_, **__: pytest.fail("something was sent"))
        for weight, f32 in ((w, False), (w, True), (graded, False), (graded, True)):
            what_follows(x, weight, f32)


def batches() -> None:
    """Any number of rows that all ranks have alike, by a program for it and unfused, however it is given."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    x, parts, w = (one[rank] for one in (every(MS, K, seed=1), every(ranks * MS, K, seed=2), every(N, K, seed=3)))
    gathered, scattered = ops.ag_gemm(x, w).view(ranks, MS, N), ops.gemm_rs(parts, w)
    for way in (None, "small", "unfused"):
        assert ops.ag_gemm(x, w, rows=0, schedule=way).shape == (ranks, 0, N)
        for rows in (1, 4, MS):
            near(ops.ag_gemm(x, w, rows=rows, schedule=way), gathered[:, :rows], f"{rows} rows by {way}")
            near(ops.gemm_rs(parts, w, rows=rows, schedule=way), scattered[:rows], f"{rows} rows by {way}")
            told = torch.tensor(rows, dtype=torch.int32)
            found = ops.ag_gemm(x, w, rows=told, schedule=way), ops.gemm_rs(parts, w, rows=told, schedule=way)
            assert found[0].shape == gathered.shape and found[1].shape == scattered.shape
            near(found[0][:, :rows], gathered[:, :rows], f"{rows} rows by {way}, on the device")
            near(found[1][:rows], scattered[:rows], f"{rows} rows by {way}, on the device")
    bias = torch.ones(N)
    followed = ops.ag_gemm(x, w, bias=bias, activation="silu", rows=3, schedule="small")
    near(followed, silu(gathered[:, :3] + bias), "with what follows")
    near(ops.ag_gemm(x, w, rows=np.int64(3)), gathered[:, :3], "an integer of numpy")
    wrong = (MS + 1, "is 7"), (-1, "is -1"), (torch.ones(1), "float32"), (2.5, "is 2.5"), (True, "True"), ("3", "'3'")
    for rows, message in wrong:
        with pytest.raises(BindingError, match=message):
            ops.ag_gemm(x, w, rows=rows)  # type: ignore[arg-type]
    with pytest.raises(BindingError, match="no gradients"):
        ops.gemm_rs(parts, w.clone().requires_grad_(), rows=2)
    with pytest.raises(BindingError, match="no sums in f32"):
        ops.gemm_rs(parts, w, rows=2, f32_sums=True)
    with pytest.raises(UnknownNameError):
        ops.ag_gemm(x, w, rows=2, schedule="smal")
    ops.clear()


def uneven() -> None:
    """Rows that differ between ranks are told on all of them, and the group goes on."""
    rank = dist.get_rank()
    x, w = torch.ones(MS + rank, K), torch.ones(N, K)
    for function in (ops.ag_gemm, ops.gemm_ar, ops.gemm_rs):
        with pytest.raises(ShapeError, match=f"x of {function.__name__} has 6 rows on rank 0; 7 rows on rank 1"):
            function(x, w)
    with pytest.raises(ShapeError, match=r"has 6 rows of \[8\] on rank 0; 7 rows of \[8\] on rank 1") as caught:
        ops.all_reduce(x)
    assert "pad to the largest" in str(caught.value.hint)
    assert torch.equal(ops.ag_gemm(x[:MS], w), torch.full((2 * MS, N), float(K)))
    wide = torch.ones(N + rank, K)  # columns of a product may differ, and each rank compares as often as the others
    assert ops.ag_gemm(x[:MS], wide).shape == ops.ag_gemm(x[:MS], wide).shape == (2 * MS, N + rank)


def uneven_later() -> None:
    """So are rows that differ after calls that were alike, and another operator in place of one."""
    rank = dist.get_rank()
    x, w = torch.ones(2 * MS, K), torch.ones(N, K)
    known = {function: function(x, w) for function in (ops.ag_gemm, ops.gemm_ar, ops.gemm_rs)}
    for function, y in known.items():
        with pytest.raises(ShapeError, match=f"x of {function.__name__} has 10 rows on rank 0; 12 rows on rank 1"):
            function(x[: 2 * (MS - 1 + rank)], w)
        assert torch.equal(function(x, w), y)  # and the group goes on
    names = ("gemm_ar", "gemm_rs")
    with pytest.raises(ShapeError, match=f"rank {rank} calls {names[rank]}, and rank {1 - rank} calls"):
        getattr(ops, names[rank])(x, w)
    q = torch.ones(1, 2, 8, 4)
    ops.attention(q, q, q, is_causal=True)
    with pytest.raises(ShapeError, match=f"rank {rank} calls attention with keys "):
        ops.attention(*[q[:, :, : 8 - 4 * rank]] * 3, is_causal=True)
    with pytest.raises(ShapeError, match=f"rank {rank} calls {('attention', 'gemm_ar')[rank]}, and rank"):
        ops.gemm_ar(x, w) if rank else ops.attention(q, q, q, is_causal=True)
    program = tilelink.load("ag_gemm").program("ag_gemm")
    assert torch.equal(tilelink.op(program)(x, w).flatten(0, -2), known[ops.ag_gemm])
    with pytest.raises(ShapeError, match=f"rank {rank} calls {('ag_gemm', 'gemm_ar')[rank]}, and rank"):
        ops.gemm_ar(x, w) if rank else tilelink.op(program)(x, w)


def absent() -> None:
    """A rank whose peers make no call ends at its deadline, also where it waits for keys of the next rank."""
    rank = dist.get_rank()
    group, transfers = (cast(dist.ProcessGroup, dist.new_group()) for _ in range(2))
    options: Any = group._get_backend(torch.device("cpu")).options  # type: ignore[attr-defined]
    before = options._timeout
    with override(deadline=1.0):
        if rank == 0:
            with pytest.raises(DeadlineError, match=r"rank 0 calls gemm_ar, and another rank makes no call in 1\.0 s"):
                ops.gemm_ar(torch.ones(MS, K), torch.ones(N, K), group=group)
            pending = [dist.irecv(torch.ones(1), 1, transfers)]
            with pytest.raises(DeadlineError, match=r"a transfer did not end in 1\.0 s"):
                groups.wait_for(pending, torch.ones(1))
    assert options._timeout == before  # the group is its user's
    dist.barrier()


def alone() -> None:
    """Where calls are compared once, as on GPUs, a rank that compares alone takes part in no collective."""
    rank = dist.get_rank()
    x, w = torch.ones(MS, K), torch.ones(N, K)
    each = consensus.compares_each
    consensus.compares_each = lambda device: False
    ops.gemm_ar(x, w)
    with override(deadline=2.0):
        if rank:  # refuses at once, whatever the other one does
            with pytest.raises(ShapeError, match="K of ag_gemm is 8 in x and 7 in w"):
                tilelink.op(tilelink.load("ag_gemm").program())(x, w[:, :-1])
        total = torch.ones(1)
        dist.all_reduce(total)
        assert total.item() == 2
        if rank == 0:
            with pytest.raises(RankError, match=r"rank 1 cannot make the call of gemm_ar that this rank makes"):
                ops.gemm_ar(x[:2], w)
        else:  # a call that the other one does not make
            with pytest.raises(DeadlineError, match=r"rank 1 calls gemm_rs, and another rank makes no call in 2\.0 s"):
                ops.gemm_rs(x, w)
        dist.all_reduce(total)
        assert total.item() == 4
        if rank == 0:
            with pytest.raises(ShapeError, match=r"rank 0 calls gemm_ar, and rank 1 calls gemm_rs"):
                ops.gemm_ar(x[:2], w)
        assert torch.equal(ops.gemm_ar(x[:4], w), torch.full((4, N), float(2 * K)))
    consensus.compares_each = each


def unlike() -> None:
    """First calls that differ between ranks in more than rows are told on all of them, and the group goes on."""
    rank = dist.get_rank()
    x, w = torch.ones(MS, K), torch.ones(N, K)
    other = 1 - rank
    kinds, sums = (torch.float16, torch.bfloat16), (N, N + 1)
    with pytest.raises(ShapeError, match=f"calls gemm_ar with {kinds[rank]}, and rank {other} with {kinds[other]}"):
        ops.gemm_ar(x.to(kinds[rank]), w.to(kinds[rank]))
    with pytest.raises(ShapeError, match=f"with {sums[rank]} columns, and rank {other} with {sums[other]} columns"):
        ops.gemm_ar(x, torch.ones(sums[rank], K))
    names = ("gemm_ar", "gemm_rs")
    with pytest.raises(ShapeError, match=f"rank {rank} calls {names[rank]}, and rank {other} calls {names[other]}"):
        getattr(ops, names[rank])(x, w)
    assert torch.equal(ops.gemm_ar(x, w), torch.full((MS, N), float(2 * K)))


def unlike_weights() -> None:
    """A rank whose weight does not fit tells the others, which would wait for its product."""
    own, x, w = dist.get_rank() == 0, torch.ones(MS, K), torch.ones(N, K)
    for call in (ops.gemm_ar, ops.gemm_rs, ops.ag_gemm, partial(ops.gemm_ar, f32_sums=True)):
        for weight in (torch.ones(N, K + 1), torch.ones(N, K).half()):
            with pytest.raises(TileLinkError if own else RankError, match="w of" if own else "rank 0 cannot make"):
                call(x, weight if own else w)
    assert torch.equal(ops.gemm_ar(x, w), torch.full((MS, N), float(2 * K)))


def no_tensors() -> None:
    """What is no tensor is refused by its name."""
    x, w, f8 = torch.ones(4, 32).bfloat16(), torch.ones(16, 32).bfloat16(), quantised(4, 32, seed=1)
    y, nothing, number, flag = torch.ones(4, 16).bfloat16(), cast(Any, None), cast(Any, 1.0), cast(Any, True)
    for call, error, message in (
        (partial(ops.gemm_ar, x, w, residual=number), DtypeError, "residual of gemm_ar is a float"),
        (partial(ops.gemm_ar, x, w, residual=y, norm=flag), DtypeError, "norm of gemm_ar is a bool"),
        (partial(ops.gemm_ar, x, nothing), DtypeError, "w of gemm_ar is a NoneType"),
        (partial(ops.gemm_rs, f8, f8, scale_a=number, scale_b=number), DtypeError, "scale_a of gemm_rs is a float"),
        (partial(ops.gemm_ar, x, w, residual=y, norm=w[0, :16], eps=float("nan")), BindingError, "eps of gemm_ar"),
        (partial(ops.all_reduce, y, residual=y, norm=w[0, :16], eps=-1e-5), BindingError, "eps of all_reduce"),
        (partial(ops.gemm_ar, x, w.T), ShapeError, r"w of gemm_ar is \[32, 16\]"),
    ):
        with pytest.raises(error, match=message) as caught:
            call()
    assert caught.value.hint == "next to x, which is [4, 32], it is [N, 32]"
    one = torch.ones(1, 1)
    y = ops.gemm_ar(f8, quantised(16, 32, seed=2), scale_a=one.expand(4, 1), scale_b=one.expand(1, 16))
    assert y.shape == (4, 16)


def what_follows(x: Tensor, w: Tensor, f32: bool) -> None:
    """A mistake in what follows a product is told before the product."""
    for function in (ops.gemm_ar, ops.gemm_rs):
        name = function.__name__
        for shape in ([1], [4, 1], [5, 1, 1], [N + 1]):
            with pytest.raises(ShapeError, match=re.escape(f"bias of {name} is {shape}")):
                function(x, w, bias=torch.ones(shape), f32_sums=f32)
        with pytest.raises(DtypeError, match=rf"bias of {name} is torch\.float64"):
            function(x, w, bias=torch.ones(N).double(), f32_sums=f32)
        with pytest.raises(DtypeError, match=rf"bias of {name} is .* on meta"):
            function(x, w, bias=torch.ones(N, device="meta"), f32_sums=f32)
        with pytest.raises(UnknownNameError, match="silu, gelu"):
            function(x, w, activation="relu", f32_sums=f32)


def _whole(op: str, xs: list[Tensor], ws: list[Tensor], bs: list[Tensor]) -> list[Tensor]:
    """All ranks' results by plain torch."""
    if op.startswith("ag_gemm"):
        full = torch.cat(xs)
        if op == "ag_gemm_gated":
            return [silu(full @ w.T) * (full @ (w * 2 + 1).T) for w in ws]
        return [silu(full @ w.T + b) for w, b in zip(ws, bs, strict=True)]
    if op == "all_gather":
        return [torch.cat(xs)] * len(xs)
    total = torch.stack([x @ w.T for x, w in zip(xs, ws, strict=True)]).sum(0)
    shares = list(total.chunk(len(xs)))
    if op in ("all_reduce", "reduce_scatter"):
        total = torch.stack(xs).sum(0)
        return [total] * len(xs) if op == "all_reduce" else list(total.chunk(len(xs)))
    return [(share if op.startswith("gemm_rs") else total) + b for share, b in zip(shares, bs, strict=True)]


def _ours(op: str, x: Tensor, w: Tensor, b: Tensor, way: str | None) -> Tensor:
    match op:
        case "ag_gemm":
            return ops.ag_gemm(x, w, bias=b, activation="silu", schedule=way)
        case "ag_gemm_gated":
            return ops.ag_gemm_gated(x, w, w * 2 + 1, schedule=way)
        case "gemm_rs" | "gemm_ar":
            return getattr(ops, op)(x, w, bias=b, schedule=way)
        case "gemm_rs_f32" | "gemm_ar_f32":
            return getattr(ops, op.removesuffix("_f32"))(x, w, bias=b, schedule=way, f32_sums=True)
        case _:
            return getattr(ops, op)(x, schedule=way)


PRODUCTS = ("ag_gemm", "ag_gemm_gated", "gemm_rs", "gemm_ar", "gemm_rs_f32", "gemm_ar_f32")
NAMES = (*PRODUCTS, "all_gather", "reduce_scatter", "all_reduce")


def gradients(traced: bool = False, way: str | None = None) -> None:
    """The gradients of the sum of all ranks' losses, against autograd over all ranks' tensors at once."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    for op in NAMES:
        gathers = op.startswith(("ag_", "all_gather"))
        rows = MS if gathers else MS * ranks
        xs, ws, bs = every(rows, K, seed=1), every(N, K, seed=2), every(N, seed=3)
        for one in (xs, ws, bs):
            for t in one:
                t.requires_grad_(True)
        wholes = _whole(op, xs, ws, bs)
        weights = [torch.randn(y.shape, generator=torch.Generator().manual_seed(9 + r)) for r, y in enumerate(wholes)]
        torch.stack([(y * c).sum() for y, c in zip(wholes, weights, strict=True)]).sum().backward()
        own = [t[rank].detach().clone().requires_grad_(True) for t in (xs, ws, bs)]

        def loss(x: Tensor, w: Tensor, b: Tensor, op: str = op, c: Tensor = weights[rank]) -> tuple[Tensor, Tensor]:
            y = _ours(op, x, w, b, way)
            return y, (y * c).sum()

        torch._dynamo.reset()  # every operator is a compilation of its own, and there is a limit for one function
        function: Any = torch.compile(loss, backend="aot_eager", fullgraph=True) if traced else loss
        y, value = function(*own)
        near(y.detach(), wholes[rank].detach(), op)
        value.backward()
        for name, mine, reference in zip("xwb", own, (xs, ws, bs), strict=True):
            expected = reference[rank].grad
            assert (mine.grad is None) == (expected is None), f"{op} {name}"
            if expected is not None:
                near(mine.grad, expected, f"gradient of {op} for {name}")  # type: ignore[arg-type]


def compiled() -> None:
    """torch.compile sees whole graphs, with gradients and without, for groups given in each way."""
    gradients(traced=True)
    x, w = torch.randn(MS, K), torch.randn(N, K)
    world = dist.group.WORLD
    assert world is not None
    for group in (None, world.group_name, world):
        function = torch.compile(lambda x, w, group=group: ops.ag_gemm(x, w, group=group) * 2, fullgraph=True,
                                 backend="aot_eager")  # fmt: skip
        near(function(x, w), ops.ag_gemm(x, w) * 2)
    torch._dynamo.reset()
    shapes = torch.compile(lambda x, w: ops.gemm_rs(x, w), fullgraph=True, backend="aot_eager", dynamic=True)
    for rows in (4, 6, 10):
        near(shapes(torch.ones(rows, K), w), ops.gemm_rs(torch.ones(rows, K), w))
    torch._dynamo.reset()
    norm, one = torch.rand(K), torch.ones(MS, K)

    def followed(x: Tensor) -> tuple[Tensor, ...]:
        y = ops.all_reduce(x, residual=one)
        return (*ops.all_reduce(x.T.contiguous().T, residual=y, norm=norm, eps=0.5), y)

    traced: Any = torch.compile(followed, fullgraph=True, backend="aot_eager")
    for made, expected in zip(traced(x), followed(x), strict=True):
        near(made, expected)
        assert made.stride() == expected.stride() == (K, 1)
    found: list[Any] = []
    for function in (traced, followed):
        given = x.clone().requires_grad_()
        function(given)[0].square().sum().backward()
        found.append(given.grad)
    near(*found)


def partial_gradients() -> None:
    """Only what needs a gradient gets one."""
    ranks = dist.get_world_size()
    for op in ("ag_gemm", "gemm_rs", "gemm_ar"):
        for needs in ((True, False), (False, True)):
            x = torch.randn(MS if op == "ag_gemm" else MS * ranks, K, requires_grad=needs[0])
            w = torch.randn(N, K, requires_grad=needs[1])
            getattr(ops, op)(x, w).sum().backward()
            assert (x.grad is not None, w.grad is not None) == needs


def tangents() -> None:
    """Derivatives in forward mode are refused by each kind of operator; in such a mode others are computed."""
    x, w = torch.ones(4, 8), torch.ones(4, 8)
    own, rows = tilelink.op(tilelink.load("ag_gemm").program()), torch.ones(1, 2, 4, 8)
    expert = torch.zeros(4, 1, dtype=torch.int64), torch.ones(4, 1), torch.ones(1, 6, 8), torch.ones(1, 8, 3)
    calls: tuple[Callable[[Tensor], Any], ...] = (
        partial(ops.ag_gemm, w=w), ops.all_reduce, partial(ops.ag_gemm, w=w, rows=2), lambda x: own(x, w),
        lambda x: ops.expert_parallel(x, *expert), lambda x: ops.all_reduce(x, out=torch.empty(4, 8)),
    )  # fmt: skip
    for call in calls:
        with pytest.raises(BindingError, match="no derivatives in forward mode"):
            torch.func.jvp(call, (x,), (x,))
    for method in ("all_gather", "ring", "ulysses"):
        with forward_ad.dual_level():
            assert ops.attention(rows, rows, rows, method=method).shape == rows.shape
            dual: Any = forward_ad.make_dual(rows, rows)
            with pytest.raises(BindingError, match="attention has no derivatives in forward mode"):
                ops.attention(dual, dual, dual, method=method)
            with pytest.raises(BindingError, match="attention has no derivatives in forward mode"):
                ops.attention(dual, dual, rows.clone().requires_grad_(), method=method)


def checks() -> None:
    """torch's own tests of custom operators: schemas, shapes, registration of gradients."""
    name, x, w, b = dist.group.WORLD.group_name, torch.randn(MS, K), torch.randn(N, K), torch.randn(N)  # type: ignore[union-attr]
    long = torch.randn(2 * MS, K)
    for op, arguments in {
        "ag_gemm": (x, w, b, "", name, ""), "gemm_rs": (long, w, None, "", name, ""),
        "gemm_ar": (x, w, b, "", name, ""),
        "ag_gemm_gated": (x, w, w, name, ""), "ag_gemm_gathered": (x, w, name, "unfused"), "all_gather": (x, name, ""),
        "reduce_scatter": (long, name, ""), "all_reduce": (x, name, ""), "all_reduce_residual": (x, x, name, ""),
        "all_reduce_norm": (x, x, x[0], 0.5, name, ""),
    }.items():  # fmt: skip
        tests = ("test_schema", "test_faketensor", "test_autograd_registration")
        torch.library.opcheck(getattr(torch.ops.tilelink, op).default, arguments, test_utils=tests)


def layers() -> None:
    """The layers of the example train as plain ones do."""
    path = Path(__file__).parents[2] / "examples" / "03_tensor_parallel_mlp.py"
    spec = importlib.util.spec_from_file_location("layers", path)
    assert spec
    assert spec.loader
    example: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    example.ROWS, example.HIDDEN, example.INNER = 64, 16, 32
    x, target, up, down = example.data(torch.device("cpu"), torch.float32)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    first, second = example.ColumnParallelLinear(up), example.RowParallelLinear(down)
    spread = torch.nn.Sequential(first, torch.nn.GELU(), second)
    ours = example.train(spread, x.chunk(ranks)[rank], target.chunk(ranks)[rank], rows_spread=True)
    theirs = example.train(example.plain(up, down), x, target, rows_spread=False)
    assert ours == pytest.approx(theirs, rel=1e-5)
    assert ours[1] < ours[0]


def main(scenarios: Mapping[str, Any], names: list[str], before: Callable[[str], None]) -> None:
    """Runs scenarios one after the other, each with operators that have compiled nothing, up to the first failure.

    before: called before each.
    """
    dist.init_process_group("gloo")
    status = 0
    for name in names:
        ops.clear()
        before(name)
        try:
            scenarios[name]()
            dist.barrier()
        except BaseException:
            print(f"in the scenario {name}:\n{traceback.format_exc()}", file=sys.stderr)
            status = 1
            break
    sys.stderr.flush()
    os._exit(status)


def stand_in(name: str) -> None:
    """What a scenario needs in place of GPUs; it stays for those after it."""
    Meaning.made.clear()
    kernels = {"fused", "chosen", "into", "paired", "rounded_once", "any_rows", "added", "regrouped", "prepared"}
    if name in {*kernels, "rooms", "apart"}:
        calls.compiler.compile = Meaning  # type: ignore[assignment]
    if name == "chosen":  # as if this were a GPU
        calls.able = lambda x: x.dtype is torch.bfloat16
        calls.current_target = lambda: H200
        consensus.here = lambda: ("NVIDIA H200", "these")


def run(names: list[str]) -> None:
    main(globals(), names, stand_in)


if __name__ == "__main__":
    run(sys.argv[1:])
