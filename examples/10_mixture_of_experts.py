"""A mixture of experts over ranks, trained beside plain torch: losses differ as two orders of sums in plain torch do.

torchrun --nproc-per-node 2 examples/10_mixture_of_experts.py

Without torchrun it starts two ranks on the CPU by itself.
"""

import os
import socket
import sys
from copy import deepcopy

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import parallelize_module

from tilelink import ops
from tilelink.parallel import Experts

GPU = torch.cuda.is_available()
ROWS, HIDDEN, INNER, EXPERTS, CHOICES, LAYERS = (1024, 256, 128, 16, 4, 2) if GPU else (48, 32, 16, 4, 2, 1)
STEPS, RATE = 200, 2.0 if GPU else 0.1


class Chosen(nn.Module):
    """Experts as models of torch have them, of tokens [M, H], the numbers of their experts and their weights [M, k]."""

    backwards = False  # the order in which experts are added up

    def __init__(self) -> None:
        super().__init__()
        self.gate_up_proj = nn.Parameter(torch.randn(EXPERTS, 2 * INNER, HIDDEN) * HIDDEN**-0.5)
        self.down_proj = nn.Parameter(torch.randn(EXPERTS, HIDDEN, INNER) * INNER**-0.5)

    def forward(self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        y = torch.zeros_like(x)
        for e in reversed(range(EXPERTS)) if self.backwards else range(EXPERTS):
            gate, up = nn.functional.linear(x, self.gate_up_proj[e]).chunk(2, -1)
            mine = nn.functional.linear(nn.functional.silu(gate) * up, self.down_proj[e])
            y = y + torch.where(ids == e, weights, 0.0).sum(-1, keepdim=True) * mine
        return y


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.router, self.experts = nn.RMSNorm(HIDDEN), nn.Linear(HIDDEN, EXPERTS, bias=False), Chosen()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm(x)
        weights, ids = self.router(h).float().softmax(-1).topk(CHOICES)
        return x + self.experts(h, ids, weights / weights.sum(-1, keepdim=True))


def train(model: nn.Module, x: torch.Tensor, target: torch.Tensor, count: int, parts: int, spread: bool) -> list[float]:
    """The losses of all steps, each the mean over all tokens, of which there are `count`. parts: of a step's tokens."""
    losses: list[float] = []
    for _ in range(STEPS):
        total = torch.zeros((), device=x.device)
        for own, wanted in zip(x.chunk(parts), target.chunk(parts), strict=True):
            with torch.autocast(x.device.type, torch.bfloat16, enabled=GPU):
                loss = (model(own) - wanted).float().square().sum() / (count * HIDDEN)
            loss.backward()
            total += loss.detach()
        if spread:
            dist.all_reduce(total)
        with torch.no_grad():
            for weight in model.parameters():
                assert weight.grad is not None
                if spread and not isinstance(weight, DTensor):
                    dist.all_reduce(weight.grad)  # each rank has other tokens; those of experts are summed already
                weight -= RATE * weight.grad
                weight.grad = None
        losses.append(total.item())
    return losses


def apart(one: list[float], other: list[float]) -> float:
    """How far losses are apart: the mean over steps, relative to the loss."""
    return sum(abs(a - b) / b for a, b in zip(one, other, strict=True)) / STEPS


def trained(mesh: DeviceMesh, seed: int) -> tuple[list[float], ...]:
    """The losses of plain torch, of plain torch with its sums in another order, and of experts over the ranks."""
    ranks, rank = mesh.size(), mesh.get_rank()
    torch.manual_seed(seed)
    plain = nn.Sequential(*(Layer() for _ in range(LAYERS))).to(mesh.device_type)
    turned, ours = deepcopy(plain), deepcopy(plain)
    x, target = (torch.randn(ranks * ROWS, HIDDEN).to(mesh.device_type) for _ in range(2))
    for layer in turned:
        layer.experts.backwards = True  # type: ignore[union-attr]

    parallelize_module(ours, mesh, {"*.experts": Experts()})

    first = train(plain, x, target, len(x), 1, spread=False)
    second = train(turned, x.flip(0), target.flip(0), len(x), ranks, spread=False)
    return first, second, train(ours, x.chunk(ranks)[rank], target.chunk(ranks)[rank], len(x), 1, spread=True)


def distances(first: list[float], second: list[float], found: list[float]) -> tuple[float, float]:
    """How far plain losses are apart by the order of sums alone, and those of the ranks from the nearer plain ones."""
    return apart(second, first), min(apart(found, first), apart(found, second))


def main(rank: int, ranks: int) -> None:
    """One rank."""
    device = torch.device("cuda", rank) if GPU else torch.device("cpu")
    if GPU:
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)
    dist.init_process_group("nccl" if GPU else "gloo", rank=rank, world_size=ranks, device_id=device if GPU else None)
    mesh = init_device_mesh(device.type, (ranks,), mesh_dim_names=("ep",))
    first, second, found = trained(mesh["ep"], 0)
    orders, distance = distances(first, second, found)
    if rank == 0:
        print(f"from {first[0]:.6f} {STEPS} steps over {ranks} ranks lead to {found[-1]:.6f}, plain {first[-1]:.6f}")
        print(f"losses of two orders of sums differ by {orders:.1e} in the mean, these by {distance:.1e}")
        print("the same losses" if distance <= 2 * orders else "the losses differ")
    ops.clear()
    dist.destroy_process_group()
    assert distance <= 2 * orders and found[-1] < 0.9 * found[0]


if __name__ == "__main__":
    if "LOCAL_RANK" in os.environ:
        main(int(os.environ["LOCAL_RANK"]), int(os.environ["WORLD_SIZE"]))
    elif GPU:
        print("with GPUs: torchrun --nproc-per-node 2 examples/10_mixture_of_experts.py")
    else:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(probe.getsockname()[1])}
        torch.multiprocessing.spawn(main, args=(2,), nprocs=2)  # type: ignore[no-untyped-call]
    sys.exit(0)
