# pyright: basic
"""Forms of kernels whose warps have roles, and what must hold of each on one GPU.

    python -m tests.gpu.roles_forms [FORM ...]

Each kernel is that of rank 0 of two, with all its signals set. A kernel that hangs ends the process.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

from benchmarks.measure import ALLOWED, relative_error
from benchmarks.roles import ALWAYS_SET, Alone
from tests.gpu.checks import run_checks
from tilelink import compiler
from tilelink.artifact import Artifact
from tilelink.compiler.cuda import gpu_artifact

TEXT = """program relay(M, N, K):
    x : in        [M, K]
    w : in        [N, K]
    u : in        [N, K]
    bias : in     [N]
    r : in        [M, N]
    g : symmetric [2, M, N]
    h : symmetric [2, M, K]
    c : local     [2, M, N]{dtype}
    y : out       [M, N]

    comm send(i: M):
        tile_push_data(h[1, i, :] @ (rank + 1), x[i, :])
        producer_tile_notify(h[1, i, :] @ (rank + 1))

    comm more(i: M, j: N):
        tile_push_data(g[1, i, j] @ (rank + 1), r[i, j])
        producer_tile_notify(g[1, i, j] @ (rank + 1))

    compute gemm(i: M, j: N):
        consumer_tile_wait(h[1, i, :])
{begin}        c[1, i, j] = {value}
        producer_tile_notify(c[1, i, j])

    compute keep(i: M, j: N):
        consumer_tile_wait(c[1, i, j])
        y[i, j] = c[1, i, j]

schedule one for relay:
    send on copy_engine, tile(i={rows})
    gemm on sm, tile(i={i}, j={j}, k={k}), order(group(i, 4)), roles({roles}){more}
    keep on sm(1), tile(i={i}, j={j})
    more on copy_engine, tile(i={rows}, j={j})
    h channel(i={rows}), buffers 2
    g channel(i={rows}, j={j}), buffers 2
"""
DOT = "dot(h[1, i, :], w[j, :].T)"
OTHER = "dot(h[1, i, :], u[j, :].T)"
LATER = f"acc = {DOT}\n", "consumer_tile_wait(g[1, i, j])\n"
"""A product, and a wait for what is added to it."""
TWO = "consumers=2, buffers=4"
SPLIT: dict[str, Any] = {"M": 128 * 34, "K": 4096, "more": ", split_k_tail 4"}
FORMS: dict[str, dict[str, Any]] = {
    "two consumers": {},
    "one product in flight": {"roles": f"{TWO}, in_flight=1"},
    "three buffers": {"roles": "consumers=2, buffers=3"},
    "two buffers": {"roles": "consumers=2, buffers=2"},
    "three consumers": {"i": 192, "j": 128, "roles": "consumers=3, buffers=4", "M": 1536, "rows": 192},
    "more rows": {"i": 256, "j": 128, "roles": "consumers=2, buffers=3", "rows": 256},
    "few columns": {"j": 32, "roles": "consumers=2, buffers=6"},
    "short blocks": {"k": 32, "roles": "consumers=2, buffers=6"},
    "long blocks": {"k": 128, "roles": "consumers=2, buffers=2"},
    "one block": {"K": 64},
    "blocks that are cut": {"K": 328},
    "columns that are cut": {"N": 1000},
    "computed results": {"value": f"silu({DOT} * 0.5) + 1.0"},
    "a bias": {"value": f"gelu({DOT} + bias[j])", "N": 1000},
    "long results": {"dtype": " f32"},
    "two products": {"value": f"silu({DOT}) * {OTHER}", "j": 128},
    "two products, halved tiles": {
        "value": f"silu({DOT}) * {OTHER}",
        "j": 128,
        "M": 128 * 35,
        "N": 512,
        "more": ", halve_tail",
    },
    "two products with a bias": {"value": f"relu({DOT} + bias[j]) + {OTHER}", "j": 128, "N": 1000},
    "halved tiles": {"M": 128 * 35, "N": 1024, "more": ", halve_tail"},
    "halved tiles that are cut": {"M": 128 * 35, "N": 1000, "more": ", halve_tail"},
    "a tile that is added": {"value": f"relu({DOT} + bias[j]) + r[i, j]", "N": 1000},
    "a wait after the product": {"begin": LATER, "value": "acc + g[1, i, j]"},
    "a wait after the product, tiles that are cut": {"begin": LATER, "value": "acc + g[1, i, j] + r[i, j]", "N": 1000},
    "a wait after the product, halved tiles": {
        "begin": LATER,
        "value": "acc * 0.5 + g[1, i, j]",
        "M": 128 * 35,
        "more": ", halve_tail",
    },
    "a split tail": SPLIT,
    "a split tail of tiles that are cut": SPLIT | {"value": f"gelu({DOT} + bias[j])", "N": 1000},
    "a split tail, and a wait after the product": SPLIT | {"begin": LATER, "value": "acc * 0.5 + g[1, i, j]"},
    "a split tail of f32 results": SPLIT | {"dtype": " f32"},
    "a split tail of three consumers": SPLIT
    | {"i": 192, "j": 128, "roles": "consumers=3, buffers=4", "M": 192 * 17, "rows": 192},
    "a split tail in many parts": SPLIT | {"M": 1280, "N": 512, "K": 8192, "more": ", split_k_tail 8"},
    "many tiles": {"M": 8192, "N": 4096, "K": 1024},
}


class Case:
    """A form with its tensors and its kernel."""

    def __init__(
        self, *, value: str = DOT, begin: tuple[str, ...] = (), i: int = 128, j: int = 256, k: int = 64,
        roles: str = TWO, more: str = "",
        dtype: str = "", M: int = 1280, N: int = 1024, K: int = 512, rows: int = 128,
    ) -> None:  # fmt: skip
        lines = "".join(f"        {line}" for line in begin)
        text = TEXT.format(value=value, begin=lines, i=i, j=j, k=k, roles=roles, more=more, dtype=dtype, rows=rows)
        module = compiler.parse(text, "relay.tl")
        plan = compiler.plan(
            module.program(), module.schedules[0], ranks=2, dims={"M": M, "N": N, "K": K}, dtype="bf16", target="sm_90"
        )
        assert plan.bound.stages["gemm"].roles is not None
        assert ("gemm_sums" in plan.bound.stages) == ("split_k_tail" in more)
        self.artifact: Artifact = gpu_artifact(plan)
        torch.manual_seed(1)
        self.h = torch.randn(2, 2, M, K, dtype=torch.bfloat16, device="cuda")
        self.w = torch.randn(N, K, dtype=torch.bfloat16, device="cuda") * 0.05
        self.u = torch.randn(N, K, dtype=torch.bfloat16, device="cuda") * 0.05
        self.bias = torch.randn(N, dtype=torch.bfloat16, device="cuda")
        self.r = torch.randn(M, N, dtype=torch.bfloat16, device="cuda")
        self.g = torch.randn(2, 2, M, N, dtype=torch.bfloat16, device="cuda")
        wide = torch.float32 if dtype else torch.bfloat16
        self.c = torch.full((2, M, N), float("nan"), dtype=wide, device="cuda")
        self.pad = torch.full((self.artifact.pad_size,), ALWAYS_SET, dtype=torch.int32, device="cuda")
        given = {"h": self.h, "w": self.w, "u": self.u, "bias": self.bias, "c": self.c, "r": self.r, "g": self.g}
        self.kernel = Alone(self.artifact, given, self.pad)

    def wanted(self, value: str) -> torch.Tensor:
        product = self.h[0, 1].float() @ self.w.float().t()
        if "acc" in value:
            sums = product * (0.5 if "0.5" in value else 1.0) + self.g[0, 1].float()
            return sums + self.r.float() if "r[" in value else sums
        if "r[" in value:
            return torch.relu(product + self.bias.float()) + self.r.float()
        if OTHER in value:
            other = self.h[0, 1].float() @ self.u.float().t()
            bias = self.bias.float()
            return torch.relu(product + bias) + other if "relu" in value else torch.nn.functional.silu(product) * other
        if "silu" in value:
            return torch.nn.functional.silu(product * 0.5) + 1.0
        if "gelu" in value:
            return torch.nn.functional.gelu(product + self.bias.float())
        return product


def check_form(form: str) -> None:
    """The form computes what is meant, and writes nothing else."""
    case = Case(**FORMS[form])
    for _ in range(3):
        case.c.fill_(float("nan"))
        case.kernel()
        torch.cuda.synchronize()
        error = float(relative_error(case.c[1].float(), case.wanted(FORMS[form].get("value", DOT))))
        assert error < ALLOWED, f"the result is off by {error:.1e}"
        assert torch.isnan(case.c[0]).all(), "it writes into another shard"
    first = case.c.clone()
    case.kernel()
    assert torch.equal(first[1], case.c[1]), "two launches differ"


def check_notifies() -> None:
    """Every counter of the results has its notifies when the kernel has ended, and none more."""
    case = Case(M=8192, N=4096, K=512)
    (grid,) = (one for one in case.artifact.grids if one.tensor == "c")
    for launch in range(1, 4):
        case.pad[grid.base : grid.base + grid.count] = 0
        case.kernel()
        torch.cuda.synchronize()
        found = case.pad[grid.base : grid.base + grid.count].cpu()
        assert torch.equal(found, torch.from_numpy(grid.thresholds[0]).to(torch.int32)), f"in launch {launch}"


def check_late_rows(launches: int = 100) -> None:
    """A kernel waits for rows that arrive while it runs, in any order."""
    case = Case(M=4096, N=2048, K=1024)
    later, arrived = case.h[0, 1].cpu().pin_memory(), torch.full((1,), ALWAYS_SET, dtype=torch.int32).pin_memory()
    (grid,) = (one for one in case.artifact.grids if one.tensor == "h")
    first = grid.base + grid.count // 2  # of the second shard
    wanted, aside = case.wanted(DOT), torch.cuda.Stream()
    for launch in range(launches):
        case.h[0, 1].zero_()
        case.c.fill_(float("nan"))
        case.pad[grid.base : grid.base + grid.count] = 0
        torch.cuda.synchronize()
        case.kernel()
        with torch.cuda.stream(aside):  # nothing is allocated here: that would wait for the kernel
            for number in range(32):
                at = (number * 5 + launch) % 32
                rows = slice(at * 128, (at + 1) * 128)
                case.h[0, 1, rows].copy_(later[rows], non_blocking=True)
                case.pad[first + at : first + at + 1].copy_(arrived, non_blocking=True)
        torch.cuda.synchronize()
        error = float(relative_error(case.c[1].float(), wanted))
        assert error < ALLOWED, f"off by {error:.1e} in launch {launch}"


def check_late_addends(launches: int = 100) -> None:
    """Consumers wait for tiles that arrive while the kernel runs, in any order."""
    case = Case(M=4096, N=2048, K=1024, begin=LATER, value="acc + g[1, i, j]")
    later, arrived = case.g[0, 1].cpu().pin_memory(), torch.full((8,), ALWAYS_SET, dtype=torch.int32).pin_memory()
    (grid,) = (one for one in case.artifact.grids if one.tensor == "g")
    first = grid.base + grid.count // 2  # of the second shard
    wanted, aside = case.wanted("acc + g[1, i, j]"), torch.cuda.Stream()
    for launch in range(launches):
        case.g[0, 1].zero_()
        case.c.fill_(float("nan"))
        case.pad[grid.base : grid.base + grid.count] = 0
        torch.cuda.synchronize()
        case.kernel()
        with torch.cuda.stream(aside):
            for number in range(32):
                at = (number * 5 + launch) % 32
                rows = slice(at * 128, (at + 1) * 128)
                case.g[0, 1, rows].copy_(later[rows], non_blocking=True)
                case.pad[first + at * 8 : first + (at + 1) * 8].copy_(arrived, non_blocking=True)
        torch.cuda.synchronize()
        error = float(relative_error(case.c[1].float(), wanted))
        assert error < ALLOWED, f"off by {error:.1e} in launch {launch}"


def main() -> int:
    checks: list[tuple[str, Any]] = [(form, lambda form=form: check_form(form)) for form in FORMS]
    checks += [("notifies", check_notifies), ("late rows", check_late_rows), ("late addends", check_late_addends)]
    return run_checks(checks)


if __name__ == "__main__":
    sys.exit(main())
