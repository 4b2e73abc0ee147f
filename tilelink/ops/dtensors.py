# pyright: basic
"""DTensors as operands: an operator knows how each of its operands is spread, and so how its result is."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import torch
from torch.autograd.function import once_differentiable

from tilelink.errors import BindingError, ShapeError
from tilelink.ops.groups import group_of, members_of, name_of

SUMMED, WHOLE = "summed", "whole"
"""How a tensor lies over ranks, if not along a dimension: its values are to be added up, or all ranks have all."""
Placed = int | str
Function = TypeVar("Function", bound=Callable[..., Any])


def spread(result: Placed, **operands: Placed) -> Callable[[Function], Function]:
    """Let an operator take DTensors: operands and the result are spread along these dimensions of one mesh.

    Tensors that all ranks have are divided first, which communicates nothing. The group is that of the mesh. Gradients
    are those of DTensors. The operator raises BindingError for DTensors that are spread in another way, for some
    operands that are DTensors and others that are not, and for options that are tensors.
    """

    def wrapped(operator: Function) -> Function:
        signature = inspect.signature(operator)

        @wraps(operator)
        def call(*args: Any, **named: Any) -> Any:
            module = sys.modules.get("torch.distributed.tensor")  # not loaded: there are none
            if module is not None:
                dtensor = module.DTensor
                for one in (*args, *named.values()):
                    if isinstance(one, dtensor):
                        return _placed(operator, signature.bind(*args, **named).arguments, operands, result)
            return operator(*args, **named)

        return call  # type: ignore[return-value]

    return wrapped


def _placed(operator: Any, given: dict[str, Any], operands: dict[str, Placed], result: Placed) -> Any:
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

    op = operator.__name__
    options = {name: one for name, one in given.items() if name not in operands}
    if tensors := [name for name, one in options.items() if isinstance(one, torch.Tensor)]:
        hint = f"take it after {op}, or give it to_local() of all operands"
        raise BindingError(f"{op} of DTensors has {' and '.join(tensors)}", hint=hint)
    plain = [name for name in operands if not isinstance(given[name], DTensor)]
    if plain:
        hint = "make it a DTensor by DTensor.from_local or distribute_tensor, or give to_local() of the others"
        raise BindingError(f"{' and '.join(plain)} of {op} is no DTensor, and others are", hint=hint)
    mesh = given[next(iter(operands))].device_mesh
    group = group_of(mesh)
    others = [name for name in operands if given[name].device_mesh != mesh]
    named = options.get("group")
    if others or (named is not None and name_of(members_of(named)) != group.group_name):
        where = f"{others[0]} of {op} is" if others else f"the group of {op} is not that of its DTensors, which are"
        raise BindingError(f"{where} on another mesh", hint="one mesh, and `group` left out")

    kinds = {SUMMED: Partial(), WHOLE: Replicate()}
    local = {}
    for name, placed in operands.items():
        one, wanted = given[name], kinds[placed] if isinstance(placed, str) else Shard(placed)
        (found,) = one.placements
        if found != wanted and not (isinstance(found, Replicate) and isinstance(wanted, Shard)):
            hint = f"give {name}.redistribute(placements=[{wanted!r}])"
            raise BindingError(f"{name} of {op} is {found!r}, and it takes {wanted!r}", hint=hint)
        if isinstance(placed, int) and (placed >= one.dim() or one.shape[placed] % mesh.size()):
            what = f"{name} of {op} is {list(one.shape)}, and is spread along dimension {placed} on {mesh.size()} ranks"
            raise ShapeError(what, hint="pad it to a multiple of the ranks")
        local[name] = (one if found == wanted else one.redistribute(placements=(wanted,))).to_local()

    made = operator(**local, **{**options, "group": group})
    if result == WHOLE and torch.is_grad_enabled():
        # An operator's gradients are those of the sum of all ranks' losses, and a DTensor has one loss.
        made = _OneLoss.apply(made, mesh.size())
    placement = kinds[result] if isinstance(result, str) else Shard(result)
    return DTensor.from_local(made, mesh, (placement,), run_check=False)


class _OneLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y: torch.Tensor, ranks: int) -> torch.Tensor:
        ctx.ranks = ranks
        return y.view_as(y)

    @staticmethod
    @once_differentiable  # of what is divided again, another time, no gradient would be that of one loss
    def backward(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor, None]:  # type: ignore[override]
        return dy / ctx.ranks, None
