"""Random inputs for a program, and the error of its outputs against the reference."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import torch

from tilelink.dtypes import DTYPES
from tilelink.errors import BindingError
from tilelink.ir.program import Attend, Cast, Program, Store, Tensor, Transfer
from tilelink.ir.scalar import Scalar
from tilelink.ir.typing import ELEMENT, infer
from tilelink.ir.visitor import statements, value_of, values
from tilelink.reference.dtypes import converted
from tilelink.reference.memory import has
from tilelink.reference.routing import Routing, draw_indices, replicated_entries
from tilelink.reference.run import Outputs
from tilelink.reference.scalars import Numbers, extent

Dims = Numbers


def random_tables(program: Program, *, ranks: int, dims: Dims, seed: int = 0) -> dict[str, torch.Tensor]:
    """Return name -> int32 tensor [ranks, *shape] for every table of a program, with values in [0, bound)."""
    generator = torch.Generator().manual_seed(seed)
    tables: dict[str, torch.Tensor] = {}
    for tensor in program.tensors:
        if tensor.space == "table":
            bound = extent(tensor.bound, dims, ranks) if tensor.bound is not None else 1
            shape = (ranks, *_shape(tensor, dims, ranks))
            tables[tensor.name] = torch.randint(0, bound, shape, generator=generator, dtype=torch.int32)
    return tables


def random_inputs(
    program: Program, *, ranks: int, dims: Dims, dtype: str, launches: int, seed: int = 0, routing: str = "uniform"
) -> list[list[dict[str, torch.Tensor]]]:
    """Return [launch][rank][name]: normal numbers, small integers or booleans, for all inputs except tables.

    An input with a range has values of that. Index tensors keep the promises of their declarations; routing says which
    kind of entries they have (reference/routing.py). Raises BindingError for a range whose ends are the wrong way
    round, and if there are no such entries.
    """
    generator, wanted = torch.Generator().manual_seed(seed), Routing.parse(routing)

    def numbers(tensor: Tensor) -> torch.Tensor:
        shape = _shape(tensor, dims, ranks)
        dtype_of, kind = tensor.dtype or dtype, DTYPES[tensor.dtype or dtype]
        if tensor.low is not None and tensor.high is not None:
            return between(_end(tensor.low, dims, ranks), _end(tensor.high, dims, ranks), tensor, shape)
        if kind.is_floating_point:
            return converted(torch.randn(shape, generator=generator), dtype_of)
        low, high = {"bool": (0, 2), "u8": (0, 17)}.get(dtype_of, (-8, 9))
        return torch.randint(low, high, shape, generator=generator, dtype=torch.int32).to(kind)

    def between(low: float, high: float, tensor: Tensor, shape: tuple[int, ...]) -> torch.Tensor:
        if low > high:
            hint = "the largest value comes after `to`"
            raise BindingError(f"{tensor.name} is from {low} to {high}", location=tensor.location, hint=hint)
        kind = DTYPES[tensor.dtype or dtype]
        if kind.is_floating_point:
            return converted(low + (high - low) * torch.rand(shape, generator=generator), tensor.dtype or dtype)
        return torch.randint(int(low), int(high) + 1, shape, generator=generator, dtype=torch.int64).to(kind)

    def drawn(rank: int, alike: dict[str, np.ndarray]) -> dict[str, torch.Tensor]:
        indices = draw_indices(
            program, rank=rank, ranks=ranks, dims=dims, routing=wanted, generator=generator, replicated=alike
        )  # fmt: skip
        alike |= replicated_entries(program, indices)
        here = [tensor for tensor in inputs if has(program, tensor, rank, dims, ranks)]
        return {t.name: numbers(t) if t.bound is None else indices[t.name] for t in here}

    inputs = [tensor for tensor in program.tensors if tensor.is_given]
    return [_of_ranks(drawn, ranks) for _ in range(launches)]


def _of_ranks(
    drawn: Callable[[int, dict[str, np.ndarray]], dict[str, torch.Tensor]], ranks: int
) -> list[dict[str, torch.Tensor]]:
    """Return what is drawn for each rank; it takes and extends the entries that ranks have alike."""
    alike: dict[str, np.ndarray] = {}
    return [drawn(rank, alike) for rank in range(ranks)]


def compared(
    outputs: Sequence[Mapping[str, torch.Tensor]], expected: Sequence[Mapping[str, torch.Tensor]], name: str
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Return an output of all ranks that have it and what is expected of it, with 0 for elements that are undefined.

    expected: as the reference returns it, with masks of what is defined.
    """
    there = [wanted for wanted in expected if name in wanted]
    pairs = [(own[name], wanted[name]) for own, wanted in zip(outputs, expected, strict=True) if name in wanted]
    masks = [wanted.defined.get(name) if isinstance(wanted, Outputs) else None for wanted in there]
    sides = [
        (own, wanted) if mask is None else tuple(torch.where(mask.to(one.device), one, 0) for one in (own, wanted))
        for (own, wanted), mask in zip(pairs, masks, strict=True)
    ]
    return [own for own, _ in sides], [wanted for _, wanted in sides]


def relative_error(outputs: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> float:
    """Return max |out - ref| / max |ref| over an output of all ranks; infinity if a difference is not finite."""
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


def rounding_error(program: Program, dtype: str, launches: Sequence[Sequence[Outputs]]) -> float:
    """Return how far correct results may be apart, relative to the largest.

    Roundings differ from launch to launch or from schedule to schedule:

    * A value that is rounded to a narrower type than `dtype` may lie close to the middle of two numbers of that type.
      An error of the sum that it comes from then decides which of them it becomes. So may the weights of attention,
      which are rounded to the type of the values.
    * Values that are added to a tensor come in any order. Each addition rounds to the element type of the sum, by half
      a unit in the last place at most. Of n additions of random values the roundings add up to some sqrt(n) of that, in
      either of the two orders.

    launches: what the reference returned for each of them. A tensor that is kept has the roundings of all.
    """
    own = torch.finfo(DTYPES[dtype]).eps
    units = [torch.finfo(kind).eps for kind in _rounded_to(program, dtype)]
    worst = max([unit for unit in units if unit > own], default=0.0)
    for tensor in program.tensors:
        if tensor.sums:
            counts = [max((one.added.get(tensor.name, 0) for one in every), default=0) for every in launches]
            count = sum(counts) if tensor.space == "kept" else max(counts, default=0)
            worst = max(worst, torch.finfo(DTYPES[tensor.dtype or dtype]).eps * count**0.5)
    return worst


def _rounded_to(program: Program, dtype: str) -> Iterator[torch.dtype]:
    """Yield the floating-point types of all that a program writes or converts to, and of values of attention."""
    typing = infer(program)
    for stage in program.stages:
        for statement in statements(stage.body):
            if isinstance(statement, Store | Transfer):
                region = statement.region if isinstance(statement, Store) else statement.target
                kind = DTYPES[program.tensor(region.tensor).dtype or dtype]
                if kind.is_floating_point:
                    yield kind
            value = value_of(statement)
            for part in values(value) if value is not None else ():
                if isinstance(part, Attend | Cast):
                    of = part.v if isinstance(part, Attend) else part
                    name = typing.stage(stage.name).type_of(of).dtype
                    kind = DTYPES[dtype if name == ELEMENT else name]
                    if kind.is_floating_point:
                        yield kind


def no_number(outputs: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> str | None:
    """Describe the first element that is not finite in the outputs or in the reference; None if all are finite."""
    for rank, (out, ref) in enumerate(zip(outputs, expected, strict=True)):
        not_finite = ~(out.double().isfinite() & ref.double().isfinite())
        if bool(not_finite.any()):
            at = tuple(not_finite.nonzero()[0].tolist())
            a, b = float(out[at]), float(ref[at])
            element = f"{list(at)} of rank {rank} is {a:g} in the output and {b:g} in the reference"
            return f"{element}, the first of {int(not_finite.sum()):,} such elements of this rank"
    return None


def _end(value: Scalar | float, dims: Dims, ranks: int) -> float:
    return extent(value, dims, ranks) if isinstance(value, Scalar) else value


def _shape(tensor: Tensor, dims: Dims, ranks: int) -> tuple[int, ...]:
    return tuple(extent(size, dims, ranks) for size in tensor.shape)
