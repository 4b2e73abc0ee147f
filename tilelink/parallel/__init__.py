"""Tensor parallelism for models of torch, whose products communicate while they multiply.

    from tilelink.parallel import ColwiseParallel, RowwiseParallel  # in place of torch.distributed.tensor.parallel

    parallelize_module(block, mesh["tp"], {"w1": ColwiseParallel(input_layouts=Shard(1)), ...})

`Colwise`, `Rowwise`, `GatedMLP`, `SequenceParallel` and `PrepareModuleInput` are styles for `parallelize_module`.
Those that torch has too take the same arguments and have the same meaning, and go by torch's names as well. Parameters
are DTensors of the same placements, so that checkpoints, gradient clipping and FSDP2 work as with torch's styles.
`ContextParallel` is a style for attention whose rows are spread over ranks, `Experts` for a layer of experts.
`explain` says what communicates with each product, and what was left to torch and why.

`Overlap` is a pass of torch.compile for models without these styles: collectives next to products become operators.
"""

from tilelink.parallel.context import ContextParallel
from tilelink.parallel.overlap import Overlap
from tilelink.parallel.styles import (
    Colwise,
    Experts,
    GatedMLP,
    PrepareModuleInput,
    Rowwise,
    SequenceParallel,
    explain,
)

ColwiseParallel = Colwise
RowwiseParallel = Rowwise

__all__ = [
    "Colwise", "ColwiseParallel", "ContextParallel", "Experts", "Rowwise", "RowwiseParallel", "GatedMLP",
    "SequenceParallel", "PrepareModuleInput", "explain", "Overlap",
]  # fmt: skip
