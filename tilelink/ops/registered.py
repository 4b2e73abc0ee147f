# pyright: basic
"""The operators as torch sees them: custom operators with shapes for tracing and with gradients.

All is made from the operators' records. Groups go by their names, activations and schedules by "" if there is none.
"""

from __future__ import annotations

from typing import Any

from torch.distributed import ProcessGroup

from tilelink.errors import BindingError
from tilelink.ops import calls
from tilelink.ops.calls import Implementation, Operands
from tilelink.ops.custom import Declaration, declare, declare_into, is_direct, schedule_text
from tilelink.ops.groups import group_named, name_of
from tilelink.ops.operators import OPERATORS, UNFUSED, Operator

_registered: dict[str, tuple[Any, Any]] = {}


def call(
    op: str, operands: Operands, members: ProcessGroup | str, schedule: Implementation, *, activation: str = "",
    numbers: tuple[float, ...] = (), out: tuple[Any, ...] = (),
) -> Any:  # fmt: skip
    """Call an operator, directly where nothing else need see the call; out: as of `calls.run`."""
    if is_direct((*operands, *out)):
        return calls.run(op, operands, activation, members, schedule, numbers, out)
    between = (activation,) if OPERATORS[op].activation else numbers
    new, into = _registered[op]
    return (into if out else new)(*operands, *between, name_of(members), schedule_text(schedule), *out)


def register(operator: Operator) -> None:
    """Declares an operator to torch as `tilelink::NAME`, and as `tilelink::NAME_out` with tensors for its results."""
    count = len(operator.operands)

    def run(*arguments: Any, out: tuple[Any, ...] = ()) -> Any:
        activation = arguments[count] if operator.activation else ""
        *others, group, schedule = arguments
        numbers = tuple(others[len(others) - len(operator.numbers) :])
        return calls.run(operator.name, arguments[:count], activation, group, schedule or None, numbers, out)

    def shapes(*arguments: Any) -> Any:
        given = {one.name: tensor for one, tensor in zip(operator.operands, arguments, strict=False)}
        return operator.empty(given, group_named(arguments[-2]).size())

    def keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        *others, ctx.group, schedule = inputs
        if operator.activation and others[count]:
            hint = "tilelink.ops takes it outside"
            raise BindingError("an activation inside the operator has no gradient", hint=hint)
        if operator.weights:
            ctx.save_for_backward(*others[: 1 + len(operator.weights)])
        ctx.implementation = UNFUSED if schedule == UNFUSED else ""

    def backward(ctx: Any, dy: Any) -> tuple[Any, ...]:
        assert operator.gradient is not None
        others = 3 if operator.activation else 2
        return (*operator.gradient(ctx, dy)[:count], *[None] * others)

    one = Declaration(
        name=f"tilelink::{operator.name}", schema=operator.schema(), run=run, shapes=shapes, keep=keep,
        backward=backward if operator.gradient is not None else None,
    )  # fmt: skip
    _registered[operator.name] = declare(one), declare_into(one, [output.name for output in operator.outputs])


for _operator in OPERATORS.values():
    register(_operator)
