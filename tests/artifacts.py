"""Artifacts that tests put together by hand."""

from __future__ import annotations

from typing import Any

from tilelink.artifact import Artifact, KernelSpec, LaunchProtocol, TensorSpec

EMPTY = Artifact(
    program="p", target="cpu", source="tilelink_0", dialect="triton", ranks=1, nodes=1, tensors=(), grids=(),
    pad_size=2, entered_base=0, finished_base=1, stages=(), pulls=frozenset(), kernels=(), copy_programs=(), tables={},
    protocol=LaunchProtocol.HELPER_KERNELS, lag=0, reuse_wait=True, spans=0, free_waits=False, own_copies_first=True,
)  # fmt: skip
"""One of nothing, to replace the fields of that matter."""


def kernel(name: str, **fields: Any) -> KernelSpec:
    """A kernel of one program on the caller's stream, unless the fields say otherwise."""
    usual: dict[str, Any] = {
        "stream": "main", "position": 0, "track": 0, "needs_entry": False, "programs": 1, "num_warps": 4,
        "num_stages": 2,
    }  # fmt: skip
    return KernelSpec(name=name, **{**usual, **fields})


def tensor(name: str, **fields: Any) -> TensorSpec:
    """A local tensor of four elements, unless the fields say otherwise."""
    usual: dict[str, Any] = {
        "number": 0, "space": "local", "symmetric": False, "shape": (4,), "dtype": "f32", "buffers": 1,
    }  # fmt: skip
    return TensorSpec(name=name, **{**usual, **fields})
