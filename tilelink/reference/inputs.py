"""Random inputs of one launch, including tables, scaled so that matrix products of them are of order one."""

from __future__ import annotations

import torch

from tilelink.ir.program import Program
from tilelink.reference import trial
from tilelink.reference.dtypes import named_dtype


def random_inputs(
    program: Program,
    dims: trial.Dims,
    ranks: int,
    dtype: str | torch.dtype,
    seed: int = 0,
    *,
    routing: str = "uniform",
) -> list[dict[str, torch.Tensor]]:
    """Return [rank][name]: every `in` tensor and every table, drawn independently for each rank.

    Tensors of two or more dimensions are normal numbers times (last extent) ** -1/4, so that a sum of products along
    that dimension has standard deviation one. Table entries are uniform in [0, bound). Index tensors keep the promises
    of their declarations. routing: the kind of their entries, `uniform`, `zipf:1.2`, `one`, `empty`, `full` or `zeros`.
    """
    (launch,) = trial.random_inputs(
        program, ranks=ranks, dims=dims, dtype=named_dtype(dtype), launches=1, seed=seed, routing=routing
    )
    tables = trial.random_tables(program, ranks=ranks, dims=dims, seed=seed)
    return [
        {name: _scaled(tensor) for name, tensor in tensors.items()}
        | {name: table[rank] for name, table in tables.items()}
        for rank, tensors in enumerate(launch)
    ]


def _scaled(tensor: torch.Tensor) -> torch.Tensor:
    return tensor * tensor.shape[-1] ** -0.25 if tensor.is_floating_point() and tensor.ndim > 1 else tensor
