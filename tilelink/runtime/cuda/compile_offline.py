# pyright: basic
"""Compilation of kernels for a GPU that need not be present, to PTX or AMD assembly and to the binary."""

import re
import subprocess
import tempfile
from collections.abc import Collection, Mapping
from typing import Any

import triton
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from tilelink.errors import BindingError, SettingsError, UnknownTargetError
from tilelink.runtime.cuda.assembler import assembling
from tilelink.runtime.cuda.keys import settled
from tilelink.target import Target
from tilelink.target import target as named_target


def compile_source(
    kernel: Any,
    signature: Mapping[str, str],
    constexprs: Mapping[str, Any],
    target: str | Target,
    *,
    num_warps: int = 4,
    num_stages: int = 3,
    aligned: Collection[str] | None = None,
    libraries: Mapping[str, str] | None = None,
) -> Any:
    """Compile a `@triton.jit` function and return Triton's CompiledKernel.

    signature: the type of each run-time parameter in Triton's notation: "i32", "i64", "fp32", pointers "*bf16",
        host descriptors "tensordesc<bf16[128,64]>", in Gluon with the layout of boxes after the size.
    constexprs: the values of all others, None included.
    libraries: bitcode to link, name -> file.
    aligned: the parameters that are multiples of 16 (bytes, for pointers); default: every pointer.

    Of the result, `.asm["ptx"]` or `.asm["amdgcn"]` is the text and `.metadata.shared` the bytes of shared memory.
    Raises UnknownTargetError for an unknown target or one that interprets, SettingsError if TRITON_INTERPRET was set
    when Triton was imported, BindingError for a parameter without a type or value, or if ptxas fails.
    """
    machine = named_target(target) if isinstance(target, str) else target
    if machine.kind == "cpu":
        raise UnknownTargetError(f"kernels are interpreted on {machine}, not compiled", hint="compile for sm_90, say")
    if not isinstance(kernel, triton.JITFunction):
        hint = "unset TRITON_INTERPRET to compile"
        raise SettingsError(f"Triton interprets {kernel.__name__} in this process", hint=hint)
    types = _full_signature(kernel.arg_names, signature, constexprs)
    if aligned is None:
        aligned = [name for name, kind in types.items() if kind.startswith("*")]
    attributes = {(kernel.arg_names.index(name),): [["tt.divisibility", 16]] for name in aligned}
    source = _language(kernel)(fn=settled(kernel), signature=types, constexprs=dict(constexprs), attrs=attributes)
    gpu = GPUTarget(machine.kind, machine.architecture, machine.warp_size)
    # Otherwise each sum of integers is traced in 64 bits, too, for an assertion that is made in debugging alone.
    options: dict[str, Any] = {"num_warps": num_warps, "num_stages": num_stages, "sanitize_overflow": False}
    if libraries:
        options["extern_libs"] = dict(libraries)
    with assembling(kernel.__name__):
        return triton.compile(source, target=gpu, options=options)


def resources(compiled: Any) -> dict[str, int]:
    """Return what a binary for NVIDIA takes, as cuobjdump says: REG registers of a thread, STACK bytes of its memory.

    The registers are those before roles of warps change them. Spilled registers are in the stack.
    """
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        command = [knobs.nvidia.cuobjdump.path, "--dump-resource-usage", file.name]
        found = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    return {name: int(value) for name, value in re.findall(r"\b(REG|STACK|LOCAL):(\d+)", found)}


def _language(kernel: Any) -> Any:
    """Return the source class for a Triton function or a Gluon function."""
    if not kernel.is_gluon():
        return ASTSource
    from triton.experimental.gluon._runtime import GluonASTSource  # Triton has no public name for it

    return GluonASTSource


def _full_signature(
    names: Collection[str], signature: Mapping[str, str], constexprs: Mapping[str, Any]
) -> dict[str, str]:
    """Return every parameter's type in order, "constexpr" for those that have a value."""
    unknown = sorted((signature.keys() | constexprs.keys()) - set(names))
    missing = sorted(set(names) - signature.keys() - constexprs.keys())
    if unknown or missing:
        message = f"parameters without a type or value: {missing}; types of no parameter: {unknown}"
        raise BindingError(message, hint="name each parameter in `signature`, or in `constexprs` with its value")
    return {name: "constexpr" if name in constexprs else signature[name] for name in names}
