"""Lowered programs as text, which has all of them: tests read it back as an equal program (tests/lowered).

The text begins with `lowered for N ranks:` and what binding and the passes decided. It ends with the program itself in
the language. A line of the first part has a kind, a name and properties: `word`, `word value`, `word(name=value, ...)`
or `word[value, ...]`. Properties that have their usual value are left out; those of kernels and stages are their fields
(tilelink/lowering/properties.py). A stage whose warps have roles has lines for
the rings between them (tilelink/lowering/rings.py), and a comment beside each wait and notify says which role executes
it. A loop with compact numbers has three lines (lowering/compact.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields
from typing import Any

from tilelink.ir.mapping import ChannelGrid
from tilelink.ir.printer import print_program, print_scalar
from tilelink.ir.program import Notify, Stage, Statement, Wait
from tilelink.ir.scalar import Scalar
from tilelink.lowering.bound import Bound, BoundTensor, Boxes, Loop
from tilelink.lowering.properties import said
from tilelink.lowering.rings import Ring, Roles
from tilelink.lowering.role_bodies import role_of
from tilelink.target import Target

ALWAYS, NEVER = "always", "never"


def listing(bound: Bound) -> str:
    """Return the text of a bound program, without the program and the schedule that it comes from."""
    nodes = f" on {bound.nodes} nodes" if bound.nodes > 1 else ""
    lines = [f"lowered for {bound.ranks} ranks{nodes}:"]
    lines += [f"    {line}" for line in _lines(bound)]
    return "\n".join(lines) + "\n\n" + print_program(bound.program, lambda stage, one: _role(bound, stage, one))


def _role(bound: Bound, stage: Stage, statement: Statement) -> str:
    own = bound.stages[stage.name]
    return role_of(bound, own, statement) if own.rings and isinstance(statement, Wait | Notify) else ""


def _lines(bound: Bound) -> Iterator[str]:
    yield f"target {bound.target.name}: {_joined(_target(bound.target))}"
    launch = [f"protocol {bound.protocol.name}", *_said("many_threads", bound.many_threads)]
    launch += _said(f"dialect {bound.capabilities.dialect}", bound.capabilities.dialect != "triton")
    launch += _said("reuse_wait off", not bound.schedule.reuse_wait)
    yield f"launch: {_joined(launch)}"
    yield f"sizes: {_joined([f'dtype {bound.dtype}', _named('numbers', bound.numbers)])}"
    pad = [f"entered {bound.entered_base}", f"finished {bound.finished_base}", f"size {bound.pad_size}"]
    yield f"signal_pad: {_joined(pad)}"
    for tensor in bound.tensors.values():
        yield f"tensor {tensor.name}: {_joined(_tensor(tensor))}"
    for grid in bound.channels.values():
        yield f"channel {grid.tensor} {grid.kind}: {_joined(_channel(grid))}"
    for kernel in bound.kernels:
        yield f"kernel {kernel.name}: {_joined(said(kernel))}"
        for loop in kernel.loops:
            yield f"    {_loop(bound, loop)}"
            yield from (f"        {line}" for line in _compact(loop))
    for stage in bound.stages.values():
        yield f"stage {stage.name}: {_joined(said(stage, _OTHERS))}"
        yield from _said(f"    {stage.nest}", stage.nest is not None)
        yield from (f"    {index} = {print_scalar(expr)}" for index, expr in stage.order.items())
        for ring in stage.rings.values():
            yield from (f"    {line}" for line in _ring(ring))
        for mask in stage.masks:
            yield f"    mask {mask.statement}: first {_when(mask.first)}; further {_when(mask.further)}"


def _target(target: Target) -> Iterator[str]:
    for field in fields(target):
        value = getattr(target, field.name)
        if field.name != "name" and value != field.default:
            yield f"{field.name} {value}"


def _tensor(tensor: BoundTensor) -> Iterator[str]:
    yield f"number {tensor.number}"
    yield f"dtype {tensor.dtype}"
    yield _list("shape", tensor.shape)
    if tensor.steps is not None:
        yield _list("memory", tensor.memory)
    yield f"buffers {tensor.buffers}"
    yield from _said(f"packed {tensor.packed}", tensor.packed != 0)
    if tensor.swept_by is not None:
        yield f"swept_by {tensor.swept_by}"
    if tensor.credits is not None:
        yield f"credits {tensor.credits}"
    yield from _said(_list("members", tensor.members or ()), tensor.members is not None)
    yield from _said("fragments", tensor.fragments)


def _channel(grid: ChannelGrid) -> Iterator[str]:
    yield f"base {grid.base}"
    yield _list("counts", grid.counts)
    yield _list("sizes", grid.sizes)
    yield f"buffers {grid.buffers}"


def _loop(bound: Bound, loop: Loop) -> str:
    text = f"for tile in range({bound.stages[loop.stages[0]].total}): {', '.join(loop.stages)}"
    where = [*_said(f"first {loop.first}", loop.first != 0), *_said(f"begin {loop.begin}", loop.begin != 0)]
    where += _said(f"width {loop.width}", loop.width is not None)
    where += _said(f"each {loop.each}", loop.each is not None)
    return f"{text}; {_joined(where)}" if where else text


def _compact(loop: Loop) -> Iterator[str]:
    """The lines of compact numbers: below the loop whose tiles have them."""
    if loop.compact is not None:
        own = loop.compact
        sizes = [f"index {own.index}", f"segments {own.segments}", f"size {own.size}", f"across {own.across}"]
        yield f"compact: {_joined(sizes)}"
        yield f"    there = {print_scalar(own.there)}"
        yield f"    tile = {print_scalar(own.tile)}"


def _boxes(boxes: Boxes) -> str:
    rows, columns = boxes.box
    sizes = {"programs": boxes.programs, "rows": boxes.rows, "columns": boxes.columns}
    return _named("tma_copy", {**sizes, "box_rows": rows, "box_columns": columns, "buffers": boxes.buffers})


def _roles(roles: Roles) -> str:
    own, others = roles.registers
    return _named("roles", {**roles.numbered, "registers": own, "other_registers": others})


_OTHERS: Mapping[str, Callable[[Any], str]] = {"resource": str, "tma_copy": _boxes, "roles": _roles}
"""Field of a stage -> its text, for fields that no form of properties is for."""


def _ring(ring: Ring) -> Iterator[str]:
    """The lines of a ring: its buffers, the arrivals that each of its barriers counts, and the steps of its roles."""
    barriers = [f"{name} {arrivals}" for name, arrivals in ring.barriers]
    yield f"ring {ring.name}: {_joined([f'buffers {ring.buffers}', *barriers])}"
    for role in (ring.writer, ring.reader):
        several = f" x{role.groups}" if role.groups > 1 else ""
        for when, steps in (("first", role.first), ("", role.steps), ("last", role.last)):
            if steps is not None:
                yield f"    {' '.join(filter(None, (role.name + several, when)))}: {'; '.join(map(str, steps))}"
        if role.further:
            yield f"    {role.name}{several} {role.further} further: {'; '.join(map(str, role.after))}"


def _when(condition: Scalar | bool) -> str:
    if isinstance(condition, bool):
        return ALWAYS if condition else NEVER
    return f"if {print_scalar(condition)}"


def _said(text: str, holds: bool) -> list[str]:
    return [text] if holds else []


def _list(word: str, values: Iterable[object]) -> str:
    return f"{word}[{', '.join(map(str, values))}]"


def _named(word: str, values: Mapping[str, object]) -> str:
    return f"{word}({', '.join(f'{name}={value}' for name, value in values.items())})"


def _joined(properties: Iterable[str]) -> str:
    return ", ".join(properties)
