"""A program of one's own in a torch model: rows that mix with those of the rank before, trained beside a plain model.

torchrun --nproc-per-node 2 examples/05_your_kernel.py

Without torchrun it starts two ranks on the CPU by itself.
"""

import os
import socket
import sys

import torch
import torch.distributed as dist
from torch import nn

import tilelink

ROWS, WIDTH = 256, 64  # of each rank
STEPS, RATE, ALLOWED = 3, 0.5, 2e-2

MODULE = tilelink.parse("""
program mixed(Ms, K):
    x    : in        [Ms, K]
    keep : in        [K]
    take : in        [K]
    left : symmetric [Ms, K]
    y    : out       [Ms, K]
    xs   : out       [Ms, K]

    comm send(i: Ms):
        tile_push_data(left[i, :] @ (rank + 1), x[i, :])
        producer_tile_notify(left[i, :] @ (rank + 1))

    compute mix(i: Ms, j: K):
        consumer_tile_wait(left[i, j])
        y[i, j] = x[i, j] * keep[j] + left[i, j] * take[j]
        xs[i, j] = left[i, j]

program unmixed(Ms, K):
    dy   : in        [Ms, K]
    keep : in        [K]
    take : in        [K]
    back : symmetric [Ms, K]
    dx   : out       [Ms, K]

    comm send(i: Ms):
        tile_push_data(back[i, :] @ (rank - 1), dy[i, :] * take[:])
        producer_tile_notify(back[i, :] @ (rank - 1))

    compute add(i: Ms, j: K):
        consumer_tile_wait(back[i, j])
        dx[i, j] = dy[i, j] * keep[j] + back[i, j]
""")


def factors(dy: torch.Tensor, x: torch.Tensor, xs: torch.Tensor) -> dict[str, torch.Tensor]:
    """The gradients of both factors of the own rows."""
    return {"dkeep": (dy * x).sum(0), "dtake": (dy * xs).sum(0)}


mixed = tilelink.op(MODULE.program("mixed"), backward=(MODULE.program("unmixed"), factors))


class Mix(nn.Module):
    """Mixes rows with those of the rank before; both factors are the same on all ranks."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__()
        self.keep = nn.Parameter(torch.full((WIDTH,), 0.75, device=device, dtype=dtype))
        self.take = nn.Parameter(torch.full((WIDTH,), 0.25, device=device, dtype=dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return mixed(x, self.keep, self.take).y


class Plain(Mix):
    """The same for the rows of all ranks at once."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.keep + x.roll(ROWS, 0) * self.take


def train(model: nn.Module, x: torch.Tensor, target: torch.Tensor, count: int, *, spread: bool) -> list[float]:
    """The losses of a few steps; the loss is a mean over the rows of all ranks, of which there are `count`."""
    losses: list[float] = []
    for _ in range(STEPS):
        loss = (model(torch.tanh(model(x))) - target).float().square().sum() / count
        loss.backward()
        with torch.no_grad():
            for factor in model.parameters():
                assert factor.grad is not None
                if spread:
                    dist.all_reduce(factor.grad)
                factor -= RATE * factor.grad
                factor.grad = None
            if spread:
                dist.all_reduce(loss)
        losses.append(loss.item())
    return losses


def main(rank: int, ranks: int) -> None:
    """One rank."""
    gpu = torch.cuda.is_available()
    device, dtype = (torch.device("cuda", rank), torch.bfloat16) if gpu else (torch.device("cpu"), torch.float32)
    if gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if gpu else "gloo", rank=rank, world_size=ranks, device_id=device if gpu else None)
    chance = torch.Generator().manual_seed(0)
    x, target = (torch.randn(ranks * ROWS, WIDTH, generator=chance).to(device, dtype) for _ in range(2))
    own = train(Mix(device, dtype), x.chunk(ranks)[rank], target.chunk(ranks)[rank], ranks * ROWS, spread=True)
    theirs = train(Plain(device, dtype), x, target, ranks * ROWS, spread=False)
    worst = max(abs(a - b) / b for a, b in zip(own, theirs, strict=True))
    said = [f"over {ranks} ranks {own}, plain {theirs}", "the same losses" if worst < ALLOWED else "the losses differ"]
    if gpu:
        factor = torch.ones(WIDTH, device=device, dtype=dtype)
        said.append(str(mixed.bench(x.chunk(ranks)[rank], factor, factor)))
    if rank == 0:
        print("\n".join(said))
    tilelink.ops.clear()
    dist.destroy_process_group()
    assert worst < ALLOWED and own[-1] < own[0]


if __name__ == "__main__":
    if "LOCAL_RANK" in os.environ:
        main(int(os.environ["LOCAL_RANK"]), int(os.environ["WORLD_SIZE"]))
    elif torch.cuda.is_available():
        print("with GPUs: torchrun --nproc-per-node 2 examples/05_your_kernel.py")
    else:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(probe.getsockname()[1])}
        torch.multiprocessing.spawn(main, args=(2,), nprocs=2)  # type: ignore[no-untyped-call]
    sys.exit(0)
