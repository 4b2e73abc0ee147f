"""Generated modules compiled for a GPU that need not be there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilelink.errors import SettingsError
from tilelink.settings import settings
from tilelink.target import Target

_POINTERS = {"f16": "*fp16", "bf16": "*bf16", "f32": "*fp32", "i32": "*i32", "bool": "*i1"}
_TYPES = {
    "peers": "*i64",
    "signals": "*i32",
    "signal_table": "*i64",
    "thresholds": "*i32",
    "epoch": "*i64",
    "edge": "*i64",
    "rank": "i32",
    "first_program": "i32",
    "num_programs": "i32",
}


@dataclass(frozen=True, kw_only=True)
class KernelSource:
    """A kernel of a generated module: the kinds of its parameters, with the element type of tensors.

    The type of a descriptor has its box behind it: "bf16[128, 64]".
    """

    name: str
    args: tuple[tuple[str, str], ...]
    warps: int
    stages: int


def assemble(source: Path, kernels: Sequence[KernelSource], target: Target) -> str:
    """The assembly of all kernels, one after the other. Raises SettingsError where TRITON_INTERPRET is set."""
    if settings().interpret:
        raise SettingsError("Triton interprets kernels in this process", hint="unset TRITON_INTERPRET to compile")
    from tilelink.runtime.modules import load_module

    module = load_module(source)
    return "\n".join(_compiled(getattr(module, one.name), one, target) for one in kernels)


def _compiled(function: Any, kernel: KernelSource, target: Target) -> str:
    from tilelink.runtime.compile_offline import compile_source

    signature: dict[str, str] = {}
    for name, (kind, dtype) in zip(function.arg_names, kernel.args, strict=True):
        if kind != "watch":
            signature[name] = _type(kind, dtype)
    watch = [n for n, (kind, _) in zip(function.arg_names, kernel.args, strict=True) if kind == "watch"]
    compiled = compile_source(
        function, signature, dict.fromkeys(watch), target, num_warps=kernel.warps, num_stages=kernel.stages
    )
    return compiled.asm["amdgcn" if target.kind == "hip" else "ptx"]


def _type(kind: str, dtype: str) -> str:
    if kind == "descriptor":
        element, _, box = dtype.partition("[")
        return f"tensordesc<{_POINTERS[element][1:]}[{box}>"
    return _POINTERS[dtype] if kind == "tensor" else _TYPES[kind]
