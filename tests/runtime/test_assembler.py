# pyright: basic
"""Kernels that ptxas refuses."""

from __future__ import annotations

import pytest
from triton.runtime.errors import PTXASError

from tests.backend.offline import compile_all
from tilelink import compiler
from tilelink.backend.emit import emit
from tilelink.errors import BindingError
from tilelink.planning.plan import make_plan
from tilelink.runtime.cuda.assembler import assembling

TEXT = """program product(M, N, K):
    x : in  [M, K]
    w : in  [N, K]
    y : out [M, N]

    compute gemm(i: M, j: N):
        y[i, j] = dot(x[i, :], w[j, :].T)

schedule wide for product:
    gemm on sm, tile(i=256, j=256, k=32), num_warps 16, num_stages 2
"""


def test_a_kernel_with_too_few_registers_is_refused_with_the_reason() -> None:
    module = compiler.parse(TEXT)
    sizes = {"M": 256, "N": 256, "K": 64}
    made = compiler.bound(module.program(), module.schedules[0], ranks=1, dims=sizes, dtype="bf16", target="sm_90")
    with pytest.raises(BindingError, match="ptxas cannot assemble kernel gemm: Insufficient registers") as found:
        compile_all(made, emit(made, make_plan(made).thresholds))
    assert "smaller tiles" in str(found.value)


@pytest.mark.parametrize(("said", "reason"), [
    ("ptxas fatal   : Value 'sm_103a' is not defined for option 'gpu-name'", "Value 'sm_103a' is not defined"),
    ("ptxas /tmp/a.ptx, line 5; fatal   : Unsupported .version 9.0; current version is '8.8'\nptxas fatal   : aborted",
     "Unsupported .version 9.0"),
])  # fmt: skip
def test_other_failures_have_another_hint(said: str, reason: str) -> None:
    with pytest.raises(BindingError, match=f"cannot assemble kernel gemm: {reason}") as found, assembling("gemm"):
        raise PTXASError(f"Internal Triton PTX codegen error\n`ptxas` stderr:\n{said}\n\nRepro command: ptxas")
    assert "which ptxas" in str(found.value) and "tiles" not in str(found.value)
