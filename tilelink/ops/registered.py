# pyright: basic
"""The operators as torch sees them: custom operators with shapes for tracing and with gradients.

All is made from the operators' records. Groups go by their names, activations and schedules by "" if there is none.
"""

from typing import Any

from tilelink.errors import BindingError
from tilelink.ops import calls
from tilelink.ops.custom import Declaration, declare
from tilelink.ops.groups import group_named
from tilelink.ops.operators import OPERATORS, UNFUSED, Operator

_registered: dict[str, Any] = {}
_into: dict[str, Any] = {}


def call(op: str, *arguments: Any) -> Any:
    """Calls the custom operator: operands, an activation or numbers if it takes any, the group's name, the schedule."""
    return _registered[op](*arguments)


def call_into(op: str, arguments: tuple[Any, ...], out: tuple[Any, ...]) -> None:
    """Calls the custom operator that writes its results into tensors. arguments: as `call` takes them."""
    _into[op](*arguments, *out)


def register(operator: Operator) -> None:
    """Declares an operator to torch as `tilelink::NAME`, and as `tilelink::NAME_out` with tensors for its results."""
    count, results = len(operator.operands), len(operator.outputs)

    def run(*arguments: Any, out: tuple[Any, ...] = ()) -> Any:
        activation = arguments[count] if operator.activation else ""
        *others, group, schedule = arguments
        numbers = tuple(others[len(others) - len(operator.numbers) :])
        return calls.run(operator.name, arguments[:count], activation, group, schedule or None, numbers, out)

    def run_into(*arguments: Any) -> None:
        run(*arguments[:-results], out=arguments[-results:])

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

    _registered[operator.name] = declare(
        Declaration(
            name=f"tilelink::{operator.name}", schema=operator.schema(), run=run, shapes=shapes, keep=keep,
            backward=backward if operator.gradient is not None else None,
        )
    )  # fmt: skip
    _into[operator.name] = declare(
        Declaration(
            name=f"tilelink::{operator.name}_out", schema=operator.schema(into=True), run=run_into,
            shapes=lambda *_: None, writes=tuple(one.name for one in operator.outputs),
        )
    )  # fmt: skip


for _operator in OPERATORS.values():
    register(_operator)
