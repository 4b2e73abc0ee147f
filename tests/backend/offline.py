# pyright: basic
"""Generated modules compiled for processors that need not be there."""

from __future__ import annotations

from typing import Any

from tilelink.backend import store
from tilelink.backend.context import Emitted, signature
from tilelink.lowering.bind import Bound
from tilelink.runtime.cuda.compile_offline import compile_source


def compile_all(bound: Bound, result: Emitted) -> list[Any]:
    """Each tile kernel as Triton's CompiledKernel."""
    module = store.load(store.save(result.text))
    return [
        compile_source(
            getattr(module, kernel.name), signature(kernel, bound), {"debug_block": None}, bound.target,
            num_warps=kernel.num_warps, num_stages=kernel.num_stages,
        )
        for kernel in result.kernels
    ]  # fmt: skip
