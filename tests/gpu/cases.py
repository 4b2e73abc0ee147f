# pyright: basic
"""The cases of tests on GPUs: sizes, kernels that a pool compiled ahead, inputs, and what should come out."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
import torch.distributed as dist

from tests.compiler.library import cases, fitted, groups
from tests.gpu.lockstep import Checks, on_all
from tilelink import compiler
from tilelink.ir.program import Program, Store
from tilelink.ir.visitor import reads, statements
from tilelink.lowering.clauses.backfill import BACKFILL
from tilelink.lowering.clauses.split_k_tail import SPLIT_K_TAIL
from tilelink.reference.run import Outputs
from tilelink.reference.trial import compared, random_inputs
from tilelink.runtime.cuda.device import current_target
from tilelink.runtime.cuda.kernel import GpuKernel
from tilelink.scheduling.schedule import Schedule
from tilelink.tuning.prepare import Point, prepare_shares, program_of

TOLERANCE = 1e-2  # |out - ref| / |ref| for bf16 (Frobenius)
EVEN = (512, 768, 640, 384)
PREPARE_S = 150

Case = tuple[Program, Schedule | None]


def dims_of(program: Program, sizes: tuple[int, ...]) -> dict[str, Any]:
    """The sizes in turn, for the dimensions of a program; counts, as of layers or of experts a row, as their examples.

    A program with index tensors gets multiples of its examples, since its rows, groups and places go together.
    """
    dims: dict[str, Any] = {p.name: p.example for p in program.params if p.kind == "dim"}
    counts = {name: value for name, value in dims.items() if value is not None and value < 8}
    if any(t.bound is not None for t in program.tensors):
        times = 8 - sizes[0] // 8 % 8
        values: dict[str, Any] = {name: value * times for name, value in dims.items()}
    else:
        values = {name: sizes[k % len(sizes)] for k, name in enumerate(dims)}
    values |= {p.name: {"f32": 0.5, "bool": True}[p.kind] for p in program.params if p.kind in ("f32", "bool")}
    return {**values, **counts, **groups(program, dist.get_world_size())}


def uneven(seed: int) -> tuple[int, ...]:
    """Sizes that no tile divides; multiples of 8, as rows of bf16 that descriptors take must be."""
    chance = random.Random(seed)
    return tuple(8 * chance.randint(3, 80) for _ in range(4))


def uneven_dims(case: Case, seed: int) -> dict[str, Any]:
    """The sizes of a case that no tile divides, as far as its schedule allows them."""
    return fitted(case, dims_of(case[0], uneven(seed)))


def remembers(program: Program) -> bool:
    """True if what a launch computes depends on those before it, by a tensor that is kept."""
    kept = {t.name for t in program.tensors if t.space == "kept"}
    stores = [s for stage in program.stages for s in statements(stage.body) if isinstance(s, Store)]
    return any(
        s.region.tensor in kept and (s.adds or s.region.tensor in {r.tensor for r in reads(s.value)}) for s in stores
    )


# Compiled ahead ----------------------------------------------------------------------------------------------


def point(case: Case, dims: Mapping[str, Any], *, trace: bool = False, **more: Any) -> Point:
    """A case as the ranks run it; more: other fields."""
    options: dict[str, Any] = {"deadlines": (True,) if trace else (False, True), "dtype": "bf16", **more}
    options.setdefault("target", current_target())
    return Point(
        program=case[0], schedule=case[1], dims=dims, ranks=dist.get_world_size(), trace=trace, **options
    )  # fmt: skip


def even_points() -> list[Point]:
    """With the sizes that most scenarios use, so that they share kernels."""
    return [point(case, dims_of(case[0], EVEN)) for case in cases()]


def uneven_points() -> list[Point]:
    return [point(case, uneven_dims(case, number), deadlines=(False,)) for number, case in enumerate(cases())]


def traced_points() -> list[Point]:
    return [point(case, dims_of(case[0], EVEN), trace=True) for case in cases()]


def tails() -> list[tuple[Case, dict[str, Any]]]:
    """The cases that divide or fill the last round of their tiles, with sizes that leave some over behind it."""
    every = ((case, case[1].stages) for case in cases() if case[1])
    found = (_left_over(case) for case, parts in every if any(part[SPLIT_K_TAIL] or part[BACKFILL] for part in parts))
    return [one for one in found if one is not None]


def _left_over(case: Case) -> tuple[Case, dict[str, Any]] | None:
    for columns in range(256, 8192, 264):
        dims = dims_of(case[0], (1000, columns, 1032))
        stages = compiler.bound(
            *case, ranks=dist.get_world_size(), dims=dims, dtype="bf16", target=current_target()
        ).stages  # fmt: skip
        for name in stages:
            for ending in ("_parts", "_rest"):
                if name.endswith(ending) and stages[name.removesuffix(ending)].total:
                    return case, dims
    return None


def tail_points() -> list[Point]:
    return [point(case, dims, deadlines=(False,)) for case, dims in tails()]


def prepare(points: Sequence[Point]) -> None:
    """Compiles by all cores of the host what is not there yet. Collective. What fails fails again where it is used."""
    assert dist.group.WORLD is not None
    reasons = prepare_shares(points, dist.group.WORLD, seconds=PREPARE_S)
    if dist.get_rank() == 0:
        for one, reason in zip(points, reasons, strict=True):
            if reason:
                print(f"not ready: {one.program.name} {dict(one.dims)}: {reason}", flush=True)


def built(one: Point, deadline_s: float | None = None) -> GpuKernel:
    """The kernel of a point. Collective. Raises CaseError on all ranks where one cannot make it."""
    program = on_all(lambda: program_of(one))
    group = dist.group.WORLD
    assert group is not None
    return on_all(lambda: GpuKernel(program, group, deadline_s))


# Inputs and outputs ------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Trial:
    """Inputs of this rank and what should come out of them, by launch: on the host, as [launch][name]."""

    inputs: list[dict[str, torch.Tensor]]
    expected: list[Outputs]

    def given(self, launch: int) -> dict[str, torch.Tensor]:
        return {name: value.cuda() for name, value in self.inputs[launch].items()}

    def verify(self, launch: int, outputs: Mapping[str, torch.Tensor], checks: Checks, note: str) -> None:
        for name in self.expected[launch]:
            (found,), (expected,) = compared([outputs], [self.expected[launch]], name)
            error = float((found.cpu().float() - expected).norm() / expected.norm())
            checks.expect(error < TOLERANCE, f"{note}: {name} is off by {error:.2e}")


def trial(case: Case, dims: Mapping[str, Any], launches: int) -> Trial:
    """Every rank knows all inputs, so each computes what it should get."""
    return _trial(case[0], tuple(sorted(dims.items())), launches)


@lru_cache(maxsize=2)
def _trial(program: Program, dims: tuple[tuple[str, Any], ...], launches: int) -> Trial:
    """Kept for the other schedules of the program, which are its next cases."""
    return trial_for((program, None), dict(dims), dist.get_rank(), dist.get_world_size(), launches=launches)


def trial_for(
    case: Case, dims: Mapping[str, Any], rank: int, ranks: int,
    change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]] = dict, launches: int = 1,
) -> Trial:  # fmt: skip
    """That of any rank of so many; change: what is made of every rank's inputs before."""
    drawn = random_inputs(case[0], ranks=ranks, dims=dict(dims), dtype="bf16", launches=launches, seed=0)
    inputs = [[change(dict(own)) for own in one] for one in drawn]
    launches_of_all: list[list[Outputs]] = []
    for one in inputs:
        kept = [own.kept for own in launches_of_all[-1]] if launches_of_all else None
        launches_of_all.append(compiler.reference(case[0], one, dims=dict(dims), dtype="bf16", kept=kept))
    every = [one[rank] for one in launches_of_all]
    expected = [Outputs({name: value.float() for name, value in one.items()}, one.defined) for one in every]
    return Trial(inputs=[one[rank] for one in inputs], expected=expected)
