"""An MLP whose weights are spread over GPUs, trained beside the same MLP on every GPU: the losses are the same.

torchrun --nproc-per-node 2 examples/03_tensor_parallel_mlp.py
"""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn

from tilelink import ops

ROWS, HIDDEN, INNER = 4096, 512, 2048  # rows of all ranks together
STEPS, RATE = 2, 2.0
ALLOWED = 1e-3  # a loss may differ by so much of itself, in bf16


class ColumnParallelLinear(nn.Module):
    """Takes the own rows, gives all rows and the own columns: y = all x W^T, W [out / ranks, in]."""

    def __init__(self, weight: torch.Tensor, schedule: str | None = None) -> None:
        """weight: the whole one [out, in], the same on all ranks."""
        super().__init__()
        self.weight = nn.Parameter(weight.chunk(dist.get_world_size(), 0)[dist.get_rank()].clone())
        self.schedule = schedule

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return ops.ag_gemm(x, self.weight, schedule=self.schedule)


class RowParallelLinear(nn.Module):
    """Takes all rows and the own columns, gives the own rows: y = own rows of the sum of x W^T, W [out, in / ranks]."""

    def __init__(self, weight: torch.Tensor, schedule: str | None = None) -> None:
        """weight: the whole one [out, in], the same on all ranks."""
        super().__init__()
        self.weight = nn.Parameter(weight.chunk(dist.get_world_size(), 1)[dist.get_rank()].contiguous())
        self.schedule = schedule

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return ops.gemm_rs(x, self.weight, schedule=self.schedule)


def data(device: torch.device, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    """Rows, what they should become, and both weights: the same on all ranks."""
    chance = torch.Generator().manual_seed(0)
    shapes = ((ROWS, HIDDEN), (ROWS, HIDDEN), (INNER, HIDDEN), (HIDDEN, INNER))
    scales = (1.0, 1.0, HIDDEN**-0.5, INNER**-0.5)
    made = (torch.randn(*shape, generator=chance) * scale for shape, scale in zip(shapes, scales, strict=True))
    return tuple(t.to(device, dtype) for t in made)


def train(model: nn.Module, x: torch.Tensor, target: torch.Tensor, *, rows_spread: bool) -> list[float]:
    """The losses of a few steps; the loss is a mean over all rows, wherever they lie."""
    losses: list[float] = []
    for _ in range(STEPS):
        loss = (model(x) - target).float().square().sum() / (ROWS * HIDDEN)
        loss.backward()
        with torch.no_grad():
            for weight in model.parameters():
                weight -= RATE * weight.grad  # type: ignore[operator]
                weight.grad = None
            if rows_spread:
                dist.all_reduce(loss)
        losses.append(loss.item())
    return losses


def plain(up: torch.Tensor, down: torch.Tensor) -> nn.Module:
    first, second = nn.Linear(HIDDEN, INNER, bias=False), nn.Linear(INNER, HIDDEN, bias=False)
    first.weight, second.weight = nn.Parameter(up.clone()), nn.Parameter(down.clone())
    return nn.Sequential(first, nn.GELU(), second)


def main() -> int:
    if "LOCAL_RANK" not in os.environ or torch.cuda.device_count() < 2:
        print("This example trains on two or more GPUs, and there is nothing to train on here. With GPUs:")
        print("    torchrun --nproc-per-node 2 examples/03_tensor_parallel_mlp.py")
        return 0
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    x, target, up, down = data(device, torch.bfloat16)
    spread = nn.Sequential(ColumnParallelLinear(up), nn.GELU(), RowParallelLinear(down))
    ours = train(spread, x.chunk(ranks)[rank], target.chunk(ranks)[rank], rows_spread=True)
    theirs = train(plain(up, down), x, target, rows_spread=False)
    worst = max(abs(a - b) / b for a, b in zip(ours, theirs, strict=True))
    if rank == 0:
        print(f"over {ranks} GPUs {ours}, plain {theirs}")
        print("the same losses" if worst < ALLOWED else "the losses differ")
    ops.clear()
    dist.destroy_process_group()
    return 0 if worst < ALLOWED and ours[-1] < ours[0] else 1


if __name__ == "__main__":
    sys.exit(main())
