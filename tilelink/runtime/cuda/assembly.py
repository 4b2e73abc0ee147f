"""Generated modules compiled for a GPU that need not be present."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tilelink.errors import SettingsError
from tilelink.settings import settings
from tilelink.target import Target


@dataclass(frozen=True, kw_only=True)
class KernelSource:
    """A kernel of a generated module. types: of its run-time parameters, in Triton's notation; others are None."""

    name: str
    types: Mapping[str, str]
    warps: int
    stages: int
    libraries: Mapping[str, str] = field(default_factory=dict[str, str])
    """Bitcode that it is linked with, name -> file."""


def assemble(source: Path, kernels: Sequence[KernelSource], target: Target) -> str:
    """Return the assembly of all kernels, one after the other. Raises SettingsError if TRITON_INTERPRET is set.

    Before that of a kernel for NVIDIA is a comment with what its binary takes. Registers that are spilled to memory are
    a warning.
    """
    if settings().interpret:
        raise SettingsError("Triton interprets kernels in this process", hint="unset TRITON_INTERPRET to compile")
    from tilelink.generated import load_module

    module = load_module(source)
    return "\n".join(_compiled(getattr(module, one.name), one, target) for one in kernels)


def _compiled(function: Any, kernel: KernelSource, target: Target) -> str:
    from tilelink.runtime.cuda.compile_offline import compile_source, resources

    absent = dict.fromkeys(name for name in function.arg_names if name not in kernel.types)
    begin = time.perf_counter()
    compiled = compile_source(
        function, kernel.types, absent, target, num_warps=kernel.warps, num_stages=kernel.stages,
        libraries=kernel.libraries,
    )  # fmt: skip
    if target.kind == "hip":
        return compiled.asm["amdgcn"]
    seconds = time.perf_counter() - begin
    return f"{_summary(kernel.name, resources(compiled), compiled.metadata, seconds)}\n{compiled.asm['ptx']}"


def _summary(name: str, found: Mapping[str, int], metadata: Any, seconds: float) -> str:
    """Return the comment on what a kernel's binary takes. found: as `resources` returns it."""
    parts = [
        f"{32 * metadata.num_warps} threads of {found['REG']} registers", f"{metadata.shared:,} bytes of shared memory",
        f"compiled in {seconds:.1f} s",
    ]  # fmt: skip
    spilled = (
        f"\n// warning: {name} keeps {found['STACK']} bytes of a thread's registers in memory, which is slow"
        "\n//   remedy: smaller tiles, more warps (num_warps 8), or warps with roles where a stage can have them"
        if found["STACK"]
        else ""
    )
    return f"// {name}: {', '.join(parts)}{spilled}"
