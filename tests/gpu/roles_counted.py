# pyright: basic
"""Kernels whose warps have roles, of which a launch decides where the rows of tiles end, on one GPU.

    python -m tests.gpu.roles_counted [CHECK ...]

One kernel computes the rows of every launch, and writes no other row. A kernel that hangs ends the process.
"""

from __future__ import annotations

import random
import sys
from functools import partial
from itertools import pairwise
from typing import Any

import torch

from benchmarks.measure import ALLOWED, relative_error
from benchmarks.roles import ALWAYS_SET, Alone
from tests.gpu.checks import run_checks
from tilelink import compiler
from tilelink.compiler.cuda import gpu_artifact

TEXT = """program experts(T, N, K, E):
    starts : in  [E + 1] <= T offsets
    x      : in  [T[: starts[E]], K]
    w      : in  [E, {weights}]
    bias   : in  [E, N]
    z      : in  [T[: starts[E]], N]
    y      : out [T[: starts[E]], N]{dtype}

    compute product(e: E, r: T[starts[e] : starts[e + 1]], j: N):
        y[r, j] = silu(dot(x[r, :], {right}) + bias[e, j][None, :]){more}

schedule one for experts:
    product on sm, tile(r={rows}, j={columns}, k=64), order({order}), roles({roles})
"""
FORMS: dict[str, dict[str, Any]] = {
    "rows of experts": {},
    "a tile that is added": {"more": " + z[r, j]"},
    "columns that are cut": {"N": 1000, "more": " + z[r, j]"},
    "experts inside of columns": {"order": "j, e, r"},
    "one expert": {"E": 1},
    "many experts": {"E": 100, "T": 8192},
    "three consumers": {"rows": 192, "columns": 128, "roles": "consumers=3, buffers=4"},
    "more rows": {"rows": 256, "columns": 128, "roles": "consumers=2, buffers=3"},
    "long results": {"dtype": " f32"},
    "an N-major operand": {"n_major": True},
    "columns that are cut of an N-major operand": {"n_major": True, "N": 1000, "columns": 128, "more": " + z[r, j]"},
}
LAUNCHES = 12


class Case:
    """A form with its tensors and its kernel."""

    def __init__(
        self, *, T: int = 4096, N: int = 1024, K: int = 512, E: int = 16, rows: int = 128, columns: int = 256,
        order: str = "e, group(r, 4), j", roles: str = "consumers=2, buffers=4", dtype: str = "", more: str = "",
        n_major: bool = False,
    ) -> None:  # fmt: skip
        weights, right = ("K, N", "w[e, :, j]") if n_major else ("N, K", "w[e, j, :].T")
        text = TEXT.format(
            rows=rows, columns=columns, order=order, roles=roles, dtype=dtype, more=more, weights=weights, right=right
        )
        module = compiler.parse(text, "experts.tl")
        sizes = {"T": T, "N": N, "K": K, "E": E}
        plan = compiler.plan(
            module.program(), module.schedules[0], ranks=2, dims=sizes, dtype="bf16", target="sm_90"
        )  # fmt: skip
        found = plan.bound.stages["product"].roles
        assert found is not None and found.cut
        self.T, self.E, self.adds = T, E, bool(more)
        torch.manual_seed(1)
        self.starts = torch.zeros(E + 1, dtype=torch.int32, device="cuda")
        self.x, self.z = self.numbers(T, K), self.numbers(T, N)
        self.w, self.bias = self.numbers(E, N, K) * 0.05, self.numbers(E, N)
        self.y = torch.empty(T, N, dtype=torch.float32 if dtype else torch.bfloat16, device="cuda")
        artifact = gpu_artifact(plan)
        pad = torch.full((artifact.pad_size,), ALWAYS_SET, dtype=torch.int32, device="cuda")
        given = {name: getattr(self, name) for name in ("starts", "x", "w", "bias", "z", "y")}
        if n_major:
            given["w"] = self.w.transpose(1, 2).contiguous()
        self.kernel = Alone(artifact, given, pad, "product")

    def numbers(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, dtype=torch.bfloat16, device="cuda")

    def launch(self, starts: list[int]) -> None:
        """Launch with these rows of experts, and check what is written."""
        self.starts.copy_(torch.tensor(starts, dtype=torch.int32))
        self.y.fill_(float("nan"))
        self.kernel()
        torch.cuda.synchronize()
        last = starts[-1]
        assert torch.isnan(self.y[last:]).all(), f"rows beyond {last} are written, of {starts}"
        wanted = torch.empty(last, self.y.shape[1], device="cuda")
        for e, (first, end) in enumerate(pairwise(starts)):
            product = self.x[first:end].float() @ self.w[e].float().t() + self.bias[e].float()
            wanted[first:end] = torch.nn.functional.silu(product) + (self.z[first:end].float() if self.adds else 0.0)
        assert not last or torch.isfinite(self.y[:last]).all(), f"some rows are not written, of {starts}"
        error = float(relative_error(self.y[:last].float(), wanted)) if last else 0.0
        assert error < ALLOWED, f"off by {error:.1e}, of {starts}"
        for first, end in pairwise(starts):  # an error of few rows is small beside all of them
            if end > first:
                own = float(relative_error(self.y[end - 1].float(), wanted[end - 1]))
                assert own < 2 * ALLOWED, f"the last row {end - 1} is off by {own:.1e}, of {starts}"


def routings(T: int, E: int, drawn: random.Random) -> list[list[int]]:
    """Return offsets of experts' rows: no rows, all to one, all alike, one row each, full tiles, and by chance."""
    whole = [min(T, 128 * e) for e in range(E + 1)]
    found = [[0] * (E + 1), [0] + [T] * E, [0] * E + [T], [T * e // E for e in range(E + 1)], list(range(E + 1)), whole]
    while len(found) < LAUNCHES:
        found.append([0, *sorted(drawn.randrange(T + 1) for _ in range(E))])
    return found


def check_form(form: str) -> None:
    """One kernel computes the rows of every launch, and writes no other row."""
    case = Case(**FORMS[form])
    for starts in routings(case.T, case.E, random.Random(form)):
        case.launch(starts)


if __name__ == "__main__":
    sys.exit(run_checks((form, partial(check_form, form)) for form in FORMS))
