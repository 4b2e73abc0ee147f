"""A bound program as text: the program in the language, and its kernels as comments below it."""

from __future__ import annotations

from collections.abc import Iterator

from tilelink.ir.printer import print_program, print_scalar
from tilelink.lowering.bound import Bound, BoundStage, Kernel, Loop


def listing(bound: Bound) -> str:
    """The program with all numbers in place, which can be parsed again, and what runs its tiles in which order."""
    lines = [print_program(bound.program).rstrip(), "", f"# {bound.ranks} ranks, {bound.target}"]
    lines[-1] += f", launches by {bound.protocol.name}" if bound.kernels else ", no kernels yet"
    for kernel in bound.kernels:
        lines += [f"# {line}" for line in _kernel(bound, kernel)]
    for name, stage in bound.stages.items():
        if name not in bound.kernel_of:
            lines += [f"# {line}" for line in _stage(stage)]
    return "\n".join(lines) + "\n"


def _kernel(bound: Bound, kernel: Kernel) -> Iterator[str]:
    where = "the copy engine" if kernel.on_copy_engine else f"stream {kernel.stream}"
    said = [f"{kernel.programs} programs", f"{kernel.warps} warps", f"{kernel.stages} stages"]
    if kernel.reuse_lag:
        said.append(f"waits until peers have finished launch e - {kernel.reuse_lag}")
    if kernel.needs_entry:
        said.append("waits until peers have entered launch e")
    yield f"kernel {kernel.name} on {where}: {', '.join(said)}"
    for loop in kernel.loops:
        yield f"    for tile in range({bound.stages[loop.stages[0]].total}){_programs(loop, kernel)}:"
        for name in loop.stages:
            yield from (f"        {line}" for line in _stage(bound.stages[name]))


def _programs(loop: Loop, kernel: Kernel) -> str:
    if loop.width:
        return f" by programs {loop.begin} to {loop.begin + loop.width - 1}"
    first = loop.first % kernel.programs
    return f" from program {first} on" if first else ""


def _stage(stage: BoundStage) -> Iterator[str]:
    sizes = ", ".join(f"{index}={size}" for index, size in stage.tiles.items() if index not in stage.scalar_indices)
    said = [f"tile({sizes})"] if sizes else []
    said += [word for word, on in (("flatten", stage.flat), ("defer_notify", stage.given_in is not None)) if on]
    if stage.tma_copy is not None:
        said.append(
            f"boxes of {' x '.join(map(str, stage.tma_copy.box))}, {stage.tma_copy.buffers} of a program at a time"
        )
    yield f"{stage.name}: {', '.join(said)}" if said else f"{stage.name}:"
    for index, expr in stage.order.items():
        yield f"    {index} = {print_scalar(expr)}"
