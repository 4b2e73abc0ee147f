"""Rule 7: warps with roles keep the order of their program, and each buffer between them is full when it is read.

The other rules take the plan's order: a program executes the statements of a tile, then those of the next. Roles
execute them beside each other (tilelink/lowering/clauses/roles.py). This rule shows that nobody can tell: roles may
divide the statements of a tile, no tile loads what a tile of the kernel writes, and the rings between roles are right
(verifier/rings.py), with buffers of the sizes that the tiles have.
"""

from __future__ import annotations

from collections.abc import Iterator

from tilelink.errors import RolesError, VerificationError
from tilelink.ir.program import ITEM_BYTES, Read, Transpose, Value
from tilelink.lowering.bound import Bound, BoundStage
from tilelink.lowering.clauses.roles import conflict, product_of, roles_reason, stage_body
from tilelink.lowering.rings import EXPECT, LOAD, Roles, fit_together
from tilelink.planning.plan import Plan
from tilelink.verifier.rings import wrong

SM_REGISTERS = 65536


def roles(plan: Plan) -> Iterator[VerificationError]:
    """Yield refusals of stages whose warps have roles that they cannot have."""
    bound = plan.bound
    for stage in bound.stages.values():
        if stage.roles is not None and stage.total:
            reason = _reason(bound, stage, stage.roles)
            if reason is not None:
                hint = "the pass `roles` makes rings without this mistake: tilelink show FILE --after roles"
                yield RolesError(f"{stage.name}: {reason}", location=stage.stage.location, hint=hint)


def _reason(bound: Bound, stage: BoundStage, found: Roles) -> str | None:
    if not bound.capabilities.roles:
        return f"dialect {bound.capabilities.dialect} has no roles of warps on {bound.target}"
    kernel = bound.kernel_of[stage.name]
    for loop in kernel.loops:
        other = bound.stages[loop.stages[0]].roles
        if len(loop.stages) > 1 or loop.width is not None or other is None or not fit_together(found, other):
            return "another stage in its kernel has no roles that fit together with its own"
    reason = roles_reason(stage_body(stage)) or conflict(bound, kernel, stage)
    return reason or _sizes(bound, stage, found) or _rings(bound, stage, found)


def _sizes(bound: Bound, stage: BoundStage, found: Roles) -> str | None:
    """Return which number of the roles is not that of the tiles, or None."""
    dot = product_of(stage)
    axes = bound.typing.stage(stage.name).type_of(dot).axes
    rows, columns = (stage.tiles[str(axis.index)] for axis in axes)
    block = bound.contraction_block(stage.name)
    left, right = (ITEM_BYTES[bound.tensors[_operand(one)].dtype] for one in (dot.left, dot.right))
    loads = {step.what: step.number for step in found.operands.writer.steps if step.word == LOAD}
    expected = sum(step.number for step in found.operands.writer.steps if step.word == EXPECT)
    threads = 4 * 32 * (found.consumers + 1)
    held = 4 * 32 * (found.consumers * found.registers[0] + found.registers[1])
    for wrong_one, what in (
        (found.rows * found.consumers != rows, f"its consumers multiply {found.rows} rows each, of {rows}"),
        (found.columns != columns, f"its consumers multiply {found.columns} columns, of {columns}"),
        (found.block != block, f"its buffers have {found.block} contracted elements, and a step {block}"),
        (
            loads != {"left": rows * block * left, "right": columns * block * right} or expected != sum(loads.values()),
            f"its loads are {loads}, of which a barrier expects {expected} bytes",
        ),
        (
            found.operands.reader.groups != found.consumers or found.results.reader.groups != 1,
            f"{found.consumers} consumers are not those of its rings",
        ),
        (found.columns % found.pieces != 0, f"{found.pieces} pieces of {found.columns} columns"),
        (held > SM_REGISTERS // threads // 8 * 8 * threads, f"its warps take {held} registers"),
    ):
        if wrong_one:
            return what
    return None


def _operand(value: Value) -> str:
    inner = value.value if isinstance(value, Transpose) else value
    assert isinstance(inner, Read)
    return inner.region.tensor


def _rings(bound: Bound, stage: BoundStage, found: Roles) -> str | None:
    """Return what may go wrong in a ring, or None. A tile reads one buffer of operands for each step of its product."""
    inner = bound.tensors[_operand(product_of(stage).left)].shape[-1]
    for ring, steps in ((found.operands, -(-inner // found.block)), (found.results, found.pieces)):
        if (reason := wrong(ring, steps)) is not None:
            return f"in the ring of {ring.name}, {reason}"
    return None
