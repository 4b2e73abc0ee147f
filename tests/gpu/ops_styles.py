# pyright: basic
"""Styles of `parallelize_module` on every GPU rank: results and gradients beside those of torch's styles."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

from benchmarks.models import SMALL, Way, angles_of
from tests.gpu.lockstep import Checks, together
from tilelink import parallel

ROWS, FEW = 4096, 16
SIZES = {**SMALL, "layers": 2}
ALLOWED = 3e-2  # of bf16 through two blocks and back, whose sums have other orders
WAYS = ("TileLink", "TileLink, compiled", "TileLink by Overlap, compiled")


def styles() -> None:
    """Forward and backward, eager and compiled, with rows that are divided among the ranks and that all have."""
    mesh = init_device_mesh("cuda", (dist.get_world_size(),), mesh_dim_names=("tp",))
    angles = angles_of(ROWS, SIZES["hidden"] // SIZES["heads"], "cuda")
    torch.manual_seed(5)
    whole = torch.randn(1, ROWS, SIZES["hidden"], device="cuda").bfloat16()
    mine = whole.chunk(mesh.size(), 1)[mesh.get_local_rank()]

    def made(name: str, spread: bool) -> tuple[list[torch.Tensor], list[str], Way]:
        way, x = Way(name, mesh, spread, SIZES), (mine if spread else whole).clone().requires_grad_()
        for _ in range(2):  # the second by the graphs that the first compiled
            x.grad = None
            for one in way.model.parameters():
                one.grad = None
            y = way.model(x, angles)
            y.float().square().mean().backward()
        named = dict(way.model.named_parameters())
        gradients = [_whole(one.grad) for one in named.values()]
        return [y.detach(), _whole(x.grad), *gradients], ["y", "x", *named], way

    def body(case: tuple[str, bool], checks: Checks) -> None:
        name, spread = case
        ours, names, way = made(name, spread)
        for one, expected, what in zip(ours, references[spread], names, strict=True):
            near(one, expected, checks, f"{name}, {'own' if spread else 'all'} rows, {what}")
        if way.overlap is not None:
            left = [str(pair) for pair in way.overlap.pairs if not pair.operator]
            checks.expect(bool(way.overlap.pairs) and not left, f"pairs: {left or 'none'}")
        elif name == "TileLink":
            checks.expect(not any("unfused" in line for line in parallel.explain(way.model)), "explained as unfused")

    references = {spread: made("NCCL", spread)[0] for spread in (True, False)}
    together([(name, spread) for name in WAYS for spread in (True, False)], body, str)


def reduce_overhead() -> None:
    """Few rows in the CUDA graphs of torch.compile."""
    mesh = init_device_mesh("cuda", (dist.get_world_size(),), mesh_dim_names=("tp",))
    angles, chance = angles_of(1, SIZES["hidden"] // SIZES["heads"], "cuda"), torch.Generator("cuda").manual_seed(3)

    def body(rows: int, checks: Checks) -> None:
        ours, theirs = (Way(name, mesh, False, SIZES).model for name in ("TileLink", "NCCL"))
        with torch.no_grad():  # kernels keep memory, which is not to lie in the pool of the graphs
            ours(torch.zeros(rows, 1, SIZES["hidden"], device="cuda").bfloat16(), angles)
        graphed: Any = torch.compile(ours, mode="reduce-overhead", fullgraph=True, dynamic=False)
        with torch.no_grad():
            for number in range(5):
                x = torch.randn(rows, 1, SIZES["hidden"], device="cuda", generator=chance).bfloat16()
                near(graphed(x, angles).clone(), theirs(x, angles), checks, f"call {number} of {rows} rows")

    together([FEW], body, str)


def near(one: torch.Tensor, other: torch.Tensor, checks: Checks, note: str) -> None:
    error = float((one.float() - other.float()).norm() / other.float().norm())
    checks.expect(error < ALLOWED, f"{note} is off by {error:.2e}")


def _whole(one: Any) -> torch.Tensor:
    return one.full_tensor() if isinstance(one, DTensor) else one
