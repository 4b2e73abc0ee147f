"""Checks that an operator's tensors and activation fit each other, before anything is sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf

import torch

from tilelink.errors import BindingError, DtypeError, ShapeError, UnknownNameError
from tilelink.ops.custom import is_dense
from tilelink.ops.operators import Operator
from tilelink.ops.unfused import ACTIVATIONS
from tilelink.runtime.cuda.operands import overlapping


def check_epilogue(op: str, x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None, activation: str) -> None:
    """Raise UnknownNameError, DtypeError or ShapeError for what cannot follow a product of x and w."""
    check_activation(activation)
    if bias is not None:
        check_kind(op, "bias", bias, x)
        _check_shape(op, "bias", bias, list(w.shape[:1]))


def check_followed(
    op: str, x: torch.Tensor, shape: Sequence[int], residual: torch.Tensor | None, norm: torch.Tensor | None,
    eps: float,
) -> None:  # fmt: skip
    """Raise DtypeError, ShapeError or BindingError for what cannot follow a sum of a shape."""
    check_eps(op, eps)
    if norm is not None and len(shape) != 2:
        raise ShapeError(f"the sum of {op} is {list(shape)}", hint="a norm is taken of [M, N]")
    for name, tensor, fitting in (("residual", residual, shape), ("norm", norm, shape[-1:])):
        if tensor is not None:
            check_kind(op, name, tensor, x)
            _check_shape(op, name, tensor, list(fitting))


def check_activation(activation: str) -> None:
    if activation and activation not in ACTIVATIONS:
        raise UnknownNameError(f"no activation {activation!r}", hint=f"there are {', '.join(ACTIVATIONS)}")


def check_tensor(op: str, name: str, given: object) -> None:
    """Raise DtypeError for an operand that is no tensor, or no dense one."""
    if not isinstance(given, torch.Tensor):
        raise DtypeError(f"{name} of {op} is a {type(given).__name__}", hint="operands are torch tensors")
    if not is_dense(given):
        kind = "a nested tensor" if given.is_nested else f"{given.layout}"
        raise DtypeError(f"{name} of {op} is {kind}", hint="operands are dense: give it to_dense(), or padded")


def check_floating(name: str, dtype: torch.dtype) -> None:
    """Raise DtypeError for what is no number to add up: an integer, a complex one, or of 8 bits."""
    if not dtype.is_floating_point or dtype.itemsize == 1:
        raise DtypeError(f"{name} is {dtype}", hint="give it in torch.bfloat16 or a wider floating type")


def check_eps(op: str, eps: float) -> None:
    """Raise BindingError for what cannot be added to a mean of squares before its root is taken."""
    if not isinstance(eps, float | int) or not 0 <= eps < inf:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise BindingError(f"eps of {op} is {eps!r}", hint="it is a number of Python, from 0 on")


def check_kind(op: str, name: str, tensor: torch.Tensor, x: torch.Tensor) -> None:
    check_tensor(op, name, tensor)
    if tensor.dtype != x.dtype or tensor.device != x.device:
        message = f"{name} of {op} is {tensor.dtype} on {tensor.device}, x {x.dtype} on {x.device}"
        raise DtypeError(message, hint="operands have one dtype and lie on one device")


def check_operands(operator: Operator, given: Mapping[str, torch.Tensor]) -> None:
    """Raise ShapeError or DtypeError for operands that do not fit each other."""
    op, x = operator.name, given["x"]
    if x.dim() != 2 if operator.weights else x.dim() < 1:
        raise ShapeError(f"x of {op} is {list(x.shape)}", hint="products take x as [rows, K]")
    for name, tensor in given.items():
        check_kind(op, name, tensor, x)
        if not tensor.numel():
            hint = "operands have elements: if there are none, leave the call out on all ranks"
            raise ShapeError(f"{name} of {op} is empty: {list(tensor.shape)}", hint=hint)
    sizes: dict[str, int] = {}
    for operand in operator.operands:
        if operand.dims is not None and operand.name in given:
            tensor, known = given[operand.name], [sizes.get(dim, dim) for dim in operand.dims]
            for dim, size in zip(operand.dims, tensor.shape, strict=False):
                sizes.setdefault(dim, size)
            _check_shape(op, operand.name, tensor, [sizes.get(dim, dim) for dim in operand.dims], known, x)


def check_scattered(operator: Operator, x: torch.Tensor, ranks: int) -> None:
    """Raise ShapeError for rows that ranks do not divide, where each gets some."""
    if operator.scatters and x.shape[0] % ranks:
        message = f"x of {operator.name} has {x.shape[0]} rows for {ranks} ranks"
        raise ShapeError(message, hint="every rank gets as many rows")


def check_out(op: str, out: Mapping[str, torch.Tensor], shapes: Sequence[Sequence[int]], x: torch.Tensor) -> None:
    """Raise BindingError, ShapeError or DtypeError for tensors that cannot take the results of an operator."""
    for (name, tensor), shape in zip(out.items(), shapes, strict=True):
        _check_shape(op, f"out {name}", tensor, list(shape))
        check_kind(op, f"out {name}", tensor, x)
        if not tensor.is_contiguous():
            raise BindingError(f"out {name} of {op} is not contiguous", hint="kernels write whole rows into it")


def check_out_apart(op: str, out: Mapping[str, torch.Tensor], given: Mapping[str, torch.Tensor]) -> None:
    """Raise BindingError for a result that shares memory with an operand, or with another result."""
    results = {f"out {name}": tensor for name, tensor in out.items()}
    if found := overlapping(results, {f"operand {name}": tensor for name, tensor in given.items()}):
        hint = "give it memory of its own: operands are read while results are written"
        raise BindingError(f"{found[0]} of {op} shares memory with {found[1]}", hint=hint)


def _check_shape(
    op: str, name: str, tensor: torch.Tensor, fitting: Sequence[int | str],
    known: Sequence[int | str] | None = None, x: torch.Tensor | None = None,
) -> None:  # fmt: skip
    """known: the sizes that other operands say, with names for the others. x: the first operand, for the text."""
    if list(tensor.shape) != fitting:
        shown = f"[{', '.join(map(str, known or fitting))}]"
        hint = f"next to the others it is {shown}"
        if x is not None and x is not tensor:
            hint = f"next to x, which is {list(x.shape)}, it is {shown}"
        raise ShapeError(f"{name} of {op} is {list(tensor.shape)}", hint=hint)
