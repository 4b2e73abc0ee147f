# pyright: basic
"""Custom operators of torch: how this package declares them, and which calls need them.

`tilelink.ops` and `tilelink.op` both declare their operators here. Groups go by their names, schedules by their texts.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.autograd.function import once_differentiable

from tilelink.errors import BindingError
from tilelink.scheduling.schedule import Schedule

_PLAIN = (torch.Tensor, torch.nn.Parameter)


@dataclass(frozen=True, kw_only=True)
class Declaration:
    """A custom operator.

    name: "namespace::name". schema: its arguments and results, as torch writes them. run: computes it. shapes: returns
    empty results, for tracing. writes: the names of the arguments that it writes. keep, backward: what autograd keeps
    of a call, and the gradients of all arguments; None if it has none.
    """

    name: str
    schema: str
    run: Callable[..., Any]
    shapes: Callable[..., Any]
    writes: tuple[str, ...] = ()
    keep: Callable[..., None] | None = None
    backward: Callable[..., Any] | None = None


def declare(one: Declaration) -> Callable[..., Any]:
    """Declare an operator to torch, and return what calls it: directly where nothing else need see the call."""
    places = tensors_of(one)
    declared = torch.library.custom_op(one.name, one.run, mutates_args=one.writes, schema=one.schema)
    declared.register_fake(one.shapes)
    if one.backward is not None:
        declared.register_autograd(one.backward, setup_context=one.keep)

    def call(*arguments: Any) -> Any:
        if is_direct([arguments[place] for place in places]):
            return one.run(*arguments)
        refuse_dtensors(one.name.partition("::")[2], arguments)
        refuse_tangents(one.name.partition("::")[2], arguments)
        return declared(*arguments)

    return call


def declare_into(one: Declaration, results: Sequence[str]) -> Callable[..., None]:
    """Declare an operator as NAME_out, which writes its results into tensors, its last arguments. one.run takes `out`.

    Return what calls it, directly where nothing else need see the call.
    """
    count, given = len(results), one.schema.rpartition(" -> ")[0].removesuffix(")")
    marked = [f"Tensor(r{number}!) {name}" for number, name in enumerate(results)]

    def run(*arguments: Any) -> None:
        one.run(*arguments[:-count], out=arguments[-count:])

    def shapes(*arguments: Any) -> None:
        one.shapes(*arguments[:-count])  # or it raises

    into = Declaration(
        name=f"{one.name}_out", schema=f"{', '.join((given, *marked))}) -> ()", run=run, shapes=shapes,
        writes=(*one.writes, *results),
    )  # fmt: skip
    return declare(into)


def tensors_of(one: Declaration) -> list[int]:
    """Return which arguments of an operator are tensors."""
    return [place for place, each in enumerate(one.schema.partition(" -> ")[0].split(", ")) if "Tensor" in each]


def refuse_dtensors(name: str, arguments: Iterable[Any]) -> None:
    """Raise BindingError for a DTensor: an operator that takes them is given what each rank has of them."""
    module = sys.modules.get("torch.distributed.tensor")  # if it is not loaded, there are none
    if module is not None and any(isinstance(given, module.DTensor) for given in arguments):
        hint = "give it to_local() of all of them, laid as the operator says what each rank has"
        raise BindingError(f"{name} is given a DTensor", hint=hint)


def refuse_tangents(name: str, arguments: Iterable[Any]) -> None:
    """Raise BindingError for a tensor with a tangent, which torch's operators of this kind would lose."""
    if forward_ad._current_level < 0:
        return
    if any(isinstance(one, torch.Tensor) and forward_ad.unpack_dual(one).tangent is not None for one in arguments):
        raise BindingError(f"{name} has no derivatives in forward mode", hint="take gradients by backward")


def declare_graded(
    forward: Declaration, gradients: Declaration, kept: Callable[[Any, Any], tuple[tuple[Any, ...], tuple[Any, ...]]]
) -> Callable[..., Any]:
    """Declare an operator whose first result alone others depend on, and the operator of its gradients.

    kept: (arguments, results) -> the tensors and the other values that `gradients` takes after the gradient of that
    result. It returns the gradients of the first arguments; the others have none.
    """
    of_gradients = declare(gradients)

    def keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
        tensors, ctx.numbers = kept(inputs, output)
        ctx.set_materialize_grads(False)  # of results that nothing depends on they would be zeros as large as those
        ctx.count = len(inputs)
        ctx.save_for_backward(*tensors)

    def backward(ctx: Any, given: torch.Tensor, *_: Any, run: Callable[..., Any] = of_gradients) -> tuple[Any, ...]:
        made = run(given, *ctx.saved_tensors, *ctx.numbers)
        return *made, *[None] * (ctx.count - len(made))

    class Eager(torch.autograd.Function):
        """The same for calls that nothing traces: an operator of torch takes 0.1 ms longer."""

        @staticmethod
        def forward(ctx: Any, *inputs: Any) -> Any:
            made = forward.run(*inputs)
            keep(ctx, inputs, made)
            ctx.mark_non_differentiable(*made[1:])
            return made

        @staticmethod
        @once_differentiable
        def backward(ctx: Any, given: torch.Tensor, *_: Any) -> Any:
            return backward(ctx, given, run=gradients.run)

    traced, places = declare(replace(forward, keep=keep, backward=backward)), tensors_of(forward)

    def call(*arguments: Any) -> Any:
        if is_direct([arguments[place] for place in places]):
            return forward.run(*arguments)
        refuse_tangents(forward.name.partition("::")[2], arguments)
        return (traced if _is_traced(arguments) else Eager.apply)(*arguments)

    return call


def _is_traced(arguments: Iterable[Any]) -> bool:
    """True if torch has to see an operator: calls are compiled, or a mode or a transform of functions sees them."""
    if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack():
        return True
    if torch._C._are_functorch_transforms_active():
        return True
    return any(isinstance(one, torch.Tensor) and type(one) not in _PLAIN for one in arguments)


def is_direct(operands: Iterable[torch.Tensor | None]) -> bool:
    """True if only the kernel need see a call: no tracing, no gradients. That saves torch's dispatch."""
    if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack() or forward_ad._current_level >= 0:
        return False
    graded, strided = torch.is_grad_enabled(), torch.strided
    for one in operands:  # a generator, and a call of is_dense, take longer than what they look at
        if one is not None and (
            type(one) not in _PLAIN or (graded and one.requires_grad) or one.layout is not strided or one.is_nested
        ):
            return False
    return True


def is_dense(tensor: torch.Tensor) -> bool:
    """True if a tensor has an element at each place of its shape, as kernels take it."""
    return tensor.layout is torch.strided and not tensor.is_nested


def is_differentiated(operands: Iterable[torch.Tensor | None]) -> bool:
    """True if a call needs gradients."""
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in operands)


def schedule_text(schedule: Schedule | str | None) -> str:
    """A schedule as the custom operators take it, "" for None; calls with equal texts share a kernel."""
    return str(schedule) if isinstance(schedule, Schedule) else schedule or ""
