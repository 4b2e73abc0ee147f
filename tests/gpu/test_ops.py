# pyright: basic
"""Operators on GPUs: `torchrun ... -m tests.gpu.test_ops SCENARIO` is a rank of them; exit status 0 if all is well."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.gpu.ranks import run_scenarios, torchrun
from tilelink import ops

ALLOWED = 1e-2
HOST_US = 40.0
SIZES = ((512, 768, 640), (136, 200, 264))  # rows of a rank, N, K; the second is divided by no tile

Tensor = torch.Tensor
Call = Callable[..., Tensor]


def random(*shape: int, dtype: torch.dtype = torch.bfloat16, scale: float = 1.0) -> Tensor:
    return torch.randn(*shape, device="cuda").mul_(scale).to(dtype)


def near(result: Tensor, expected: Tensor, note: str) -> None:
    error = float((result.float() - expected.float()).norm() / expected.float().norm())
    assert result.shape == expected.shape, f"{note}: {list(result.shape)}, not {list(expected.shape)}"
    assert error < ALLOWED, f"rank {dist.get_rank()}: {note} is off by {error:.2e}"


def every_call(
    dtype: torch.dtype, rows: int, N: int, K: int
) -> list[tuple[str, Call, tuple[Tensor, ...], dict[str, Any]]]:
    """(name, operator, operands, options) of each operator with what may follow its product."""
    ranks = dist.get_world_size()
    short, long = random(rows, K, dtype=dtype), random(ranks * rows, K, dtype=dtype)
    w, u = random(N, K, dtype=dtype, scale=0.05), random(N, K, dtype=dtype, scale=0.05)
    bias = torch.linspace(-1, 1, N, device="cuda").to(dtype)
    found: list[tuple[str, Call, tuple[Tensor, ...], dict[str, Any]]] = [
        ("ag_gemm", ops.ag_gemm, (short, w), {"bias": b, "activation": activation})
        for b in (None, bias)
        for activation in (None, "silu", "gelu")
    ]
    found.append(("ag_gemm_gated", ops.ag_gemm_gated, (short, w, u), {}))
    found += [(f.__name__, f, (long, w), {"bias": b}) for f in (ops.gemm_rs, ops.gemm_ar) for b in (None, bias)]
    found += [(f.__name__, f, (long, w), {"f32_sums": True}) for f in (ops.gemm_rs, ops.gemm_ar)]
    found += [("all_gather", ops.all_gather, (short,), {}), ("reduce_scatter", ops.reduce_scatter, (long,), {})]
    return [*found, ("all_reduce", ops.all_reduce, (long,), {})]


def numerics() -> None:
    """Generated kernels against the unfused way, launches back to back, both dtypes, sizes even and uneven."""
    for dtype, sizes in ((torch.bfloat16, SIZES[0]), (torch.bfloat16, SIZES[1]), (torch.float16, SIZES[1])):
        for name, function, operands, options in every_call(dtype, *sizes):
            expected = function(*operands, **options, schedule="unfused")
            found = [function(*operands, **options, schedule="h200") for _ in range(4)]
            for launch, result in enumerate(found):
                near(result, expected, f"{name} {list(options)} {sizes} {dtype} launch {launch}")
    ops.clear()


def any_size() -> None:
    """Whatever the sizes, an operator works without being told how."""
    for sizes in ((1, 1, 1), (3, 5, 7), (2049, 33, 65), (1024, 1000, 999)):
        for name, function, operands, options in every_call(torch.bfloat16, *sizes):
            near(
                function(*operands, **options),
                function(*operands, **options, schedule="unfused"),
                f"{name} {sizes}",
            )
    ops.clear()


def gradients() -> None:
    """Gradients by generated kernels against the unfused way; sizes for which the operator chooses a kernel."""
    ranks = dist.get_world_size()
    rows, N, K = 4096 // ranks, 512, 384
    for name in ("ag_gemm", "ag_gemm_gated", "gemm_rs", "gemm_ar"):
        x = random(rows if name.startswith("ag") else rows * ranks, K)
        weights = [random(N, K, scale=0.05) for _ in range(2 if name.endswith("gated") else 1)]
        made: dict[str | None, list[Tensor]] = {}
        seed = None
        for way in (None, "unfused"):
            own = [t.clone().requires_grad_(True) for t in (x, *weights)]
            y = getattr(ops, name)(*own, schedule=way)
            seed = random(*y.shape) if seed is None else seed
            y.backward(seed)
            made[way] = [y.detach(), *(t.grad for t in own if t.grad is not None)]
        for at, (mine, expected) in enumerate(zip(made[None], made["unfused"], strict=True)):
            near(mine, expected, f"{name} number {at}")
    ops.clear()


def graphs() -> None:
    """A captured operator, replayed with changing inputs."""
    x, w = random(1024, 512), random(768, 512, scale=0.05)
    for _ in range(3):
        ops.ag_gemm(x, w, schedule="h200")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        y = ops.ag_gemm(x, w, schedule="h200")
    for replay in range(50):
        x.normal_()
        graph.replay()
        near(y.clone(), ops.ag_gemm(x, w, schedule="unfused"), f"replay {replay}")
    ops.clear()


def compiled() -> None:
    """torch.compile with its own code generator, in whole graphs."""
    ranks = dist.get_world_size()
    x, w, down = random(2048 // ranks, 512), random(768, 512, scale=0.05), random(512, 768, scale=0.05)

    def mlp(x: Tensor, w: Tensor, down: Tensor) -> Tensor:
        return ops.gemm_rs(torch.nn.functional.silu(ops.ag_gemm(x, w)), down) + x

    near(torch.compile(mlp, fullgraph=True)(x, w, down), mlp(x, w, down), "an MLP")
    ops.clear()


def host_cost() -> None:
    """Microseconds of the host for a warm call."""
    ranks = dist.get_world_size()
    x, long, w = random(2048 // ranks, 1024), random(2048, 1024), random(1024, 1024)
    found: dict[str, float] = {}
    for name, operand in (("ag_gemm", x), ("gemm_rs", long)):
        function, spent = getattr(ops, name), list[float]()
        for _ in range(60):
            torch.cuda.synchronize()
            dist.barrier(device_ids=[torch.cuda.current_device()])
            begin = time.perf_counter()
            function(operand, w, schedule="h200")
            spent.append((time.perf_counter() - begin) * 1e6)
        found[name] = statistics.median(spent[10:])
        print(f"rank {dist.get_rank()}: {name} takes {found[name]:.1f} us of the host", flush=True)
    assert max(found.values()) < HOST_US, found
    ops.clear()


# Starting ranks -----------------------------------------------------------------------------------------------

SCENARIOS = ("numerics", "any_size", "gradients", "graphs", "compiled", "host_cost")


@pytest.mark.gpus2
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_on_two_gpus(scenario: str) -> None:
    torchrun(2, "-m", "tests.gpu.test_ops", scenario)


@pytest.mark.gpus4
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_on_four_gpus(scenario: str) -> None:
    torchrun(4, "-m", "tests.gpu.test_ops", scenario)


@pytest.mark.gpus8
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_on_eight_gpus(scenario: str) -> None:
    torchrun(8, "-m", "tests.gpu.test_ops", scenario)


@pytest.mark.gpus2
def test_the_layers_of_the_example_train_as_plain_ones() -> None:
    assert "the same losses" in torchrun(2, "examples/03_tensor_parallel_mlp.py").stdout


@pytest.mark.gpus2
def test_a_benchmark_runs(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    command = ("--op", "ag_gemm", "--shapes", "mlp-1@2048", "--samples", "3", "--warmups", "1", "--out", str(out))
    said = torchrun(2, "benchmarks/tp.py", *command).stdout
    assert "ag_gemm:h200" in said
    assert '"ended_early": null' in out.read_text()


if __name__ == "__main__":
    run_scenarios(globals(), sys.argv[1:])
