"""Random inputs for a program, and how far outputs are from its meaning."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tilelink.ir.program import Program, Tensor
from tilelink.reference.scalars import Numbers, extent

DTYPES: dict[str, torch.dtype] = {
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f32": torch.float32,
    "i32": torch.int32,
    "bool": torch.bool,
}

Dims = Numbers


def random_tables(program: Program, *, ranks: int, dims: Dims, seed: int = 0) -> dict[str, torch.Tensor]:
    """name -> int32 [ranks, *shape] for every table of a program, with values within its bound."""
    generator = torch.Generator().manual_seed(seed)
    tables: dict[str, torch.Tensor] = {}
    for tensor in program.tensors:
        if tensor.space == "table":
            bound = extent(tensor.bound, dims, ranks) if tensor.bound is not None else 1
            shape = (ranks, *_shape(tensor, dims, ranks))
            tables[tensor.name] = torch.randint(0, bound, shape, generator=generator, dtype=torch.int32)
    return tables


def random_inputs(
    program: Program, *, ranks: int, dims: Dims, dtype: str, launches: int, seed: int = 0
) -> list[list[dict[str, torch.Tensor]]]:
    """[launch][rank][name]: normal numbers, small integers, or booleans. Tables are not among them."""
    generator = torch.Generator().manual_seed(seed)

    def values(tensor: Tensor) -> torch.Tensor:
        shape = _shape(tensor, dims, ranks)
        kind = DTYPES[tensor.dtype or dtype]
        if kind.is_floating_point:
            return torch.randn(shape, generator=generator).to(kind)
        low, high = (0, 2) if kind is torch.bool else (-8, 9)
        return torch.randint(low, high, shape, generator=generator, dtype=torch.int32).to(kind)

    inputs = [tensor for tensor in program.tensors if tensor.space == "in"]
    return [[{t.name: values(t) for t in inputs} for _ in range(ranks)] for _ in range(launches)]


def relative_error(outputs: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> float:
    """max |out - ref| / max |ref| over all ranks' copies of an output; infinity where something is no number."""
    worst, largest = 0.0, 0.0
    for out, ref in zip(outputs, expected, strict=True):
        difference = (out.double() - ref.double()).abs()
        if not bool(difference.isfinite().all()):
            return float("inf")
        worst = max(worst, float(difference.max()))
        largest = max(largest, float(ref.double().abs().max()))
    if worst == 0.0:
        return 0.0
    return worst / largest if largest else float("inf")


def no_number(outputs: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> str | None:
    """Where outputs or what was expected are not finite first, and on which side; None where both are everywhere."""
    for rank, (out, ref) in enumerate(zip(outputs, expected, strict=True)):
        odd = ~(out.double().isfinite() & ref.double().isfinite())
        if bool(odd.any()):
            at = tuple(odd.nonzero()[0].tolist())
            a, b = float(out[at]), float(ref[at])
            place = f"{list(at)} of rank {rank} is {a:g} in the output and {b:g} in the reference"
            return f"{place}, the first of {int(odd.sum()):,} such places of this rank"
    return None


def _shape(tensor: Tensor, dims: Dims, ranks: int) -> tuple[int, ...]:
    return tuple(extent(size, dims, ranks) for size in tensor.shape)
