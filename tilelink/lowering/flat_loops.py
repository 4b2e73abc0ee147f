"""When a flattened loop, which begins the next tile before it has finished the current one, cannot be observed.

- A tile begins with its product, and only waits stand before it. Only these waits and the loads of the product's
  operands move before the end of the previous tile.
- If there are such waits, no statement in the loop notifies. Otherwise a program could wait for data that a peer sends
  only after a notify, and that notify would now come after the wait.
- No value leaves a condition: the Triton pass that merges two loops into one loses the results of such an `if`.
- The operands are loaded from memory that is never written during the launch, or is written only by other kernels, or
  is waited for and not written by the tiles of the loop. A tile may then load, without a wait, no data that the
  previous tile stored.
"""

from __future__ import annotations

from collections.abc import Iterator

from tilelink.ir.products import products
from tilelink.ir.program import Assign, For, Full, If, Local, Notify, Region, Statement, Wait
from tilelink.ir.visitor import reads, statements, value_of, values
from tilelink.lowering.bound import Bound, BoundStage, Kernel, KernelKind, Loop
from tilelink.lowering.role_statements import stage_body
from tilelink.lowering.sink_waits import sliced_product
from tilelink.lowering.transform import stage_writes


def unobservable_reason(bound: Bound, kernel: Kernel, loop: Loop, stage: BoundStage) -> str | None:
    """Return why the loop that begins with a stage cannot be flattened without that being observed, or None.

    The pass asks it of the stages that were written, and the rule `tiles` of those that run.
    """
    if kernel.on_copy_engine or loop.stages[0] != stage.name:
        return "it has no tiles of its own on SMs"
    if stage.kind is KernelKind.ROLES:
        return "its warps have roles"
    together = tuple(s for name in loop.stages for s in _whole(bound.stages[name]))
    if reason := flat_reason(together):
        return reason
    here, everywhere = (
        {r.tensor for name in names for r in stage_writes(bound.stages[name].stage)}
        for names in (loop.stages, kernel.stage_names)
    )
    awaited = {wait.region.tensor for wait in _leading_waits(together)}
    for region in _operands(together):
        constant = bound.tensors[region.tensor].decl.space in ("in", "table")
        if not constant and region.tensor in here:
            return f"it multiplies {region.tensor}, which its own tiles write"
        if not constant and region.tensor in everywhere - awaited:
            return f"it multiplies {region.tensor}, which its own kernel writes"
    return None


def _whole(stage: BoundStage) -> tuple[Statement, ...]:
    """Return the statements of a tile; a product of slices is one product, without the zeros that it begins with."""
    body = stage_body(stage)
    if not any(sliced_product(stage, statement) is not None for statement in stage.stage.body):
        return body
    return tuple(s for s in body if not (isinstance(s, Assign) and isinstance(s.value, Full)))


def flat_reason(body: tuple[Statement, ...]) -> str | None:
    """Return why the statements of a tile do not allow a flattened loop over such tiles, or None."""
    waits = _leading_waits(body)
    if not products(body[len(waits) : len(waits) + 1]):
        inside = any(isinstance(s, For) and products(statements(s.body)) for s in body)
        return "its product is in a loop of the tile" if inside else "its tiles do not begin with a product"
    if len(products(statements(body))) > 1:
        return "its tiles have more than one product"
    if any(isinstance(s, For) for s in body):
        return "it has a loop after its product"
    if any(_yields(body, at) for at in range(len(body))):
        return "it uses what a condition after its product computes, which Triton cannot compile in a flat loop"
    if waits and any(isinstance(s, Notify) for s in statements(body)):
        return "it waits before its product and notifies after it: the next tile's wait would come before the notify"
    return None


def _yields(body: tuple[Statement, ...], at: int) -> bool:
    """True if a statement of a body is a condition that computes something used after it."""
    statement = body[at]
    if not isinstance(statement, If):
        return False
    computed = {s.name for s in statements((statement,)) if isinstance(s, Assign)}
    later = (value_of(s) for s in statements(body[at + 1 :]))
    return any(
        isinstance(v, Local) and v.name in computed for value in later if value is not None for v in values(value)
    )


def _leading_waits(body: tuple[Statement, ...]) -> list[Wait]:
    """Return the waits at the beginning of a tile."""
    waits: list[Wait] = []
    for statement in body:
        if not isinstance(statement, Wait):
            break
        waits.append(statement)
    return waits


def _operands(body: tuple[Statement, ...]) -> Iterator[Region]:
    """Yield the regions that the product of a body multiplies."""
    for dot in products(statements(body)):
        yield from reads(dot.left)
        yield from reads(dot.right)
