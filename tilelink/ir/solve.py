"""Dimensions of a program from the sizes of its tensors: a declared extent and a size are an equation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tilelink.errors import BindingError, Location, ShapeError
from tilelink.ir.printer import print_scalar
from tilelink.ir.program import Program, Tensor
from tilelink.ir.scalar import Binary, Env, Param, Scalar, evaluate, walk

GIVEN = "the call"
"""The source of a dimension that follows from no tensor's size."""

Sizes = Sequence[Any]
"""Sizes of a tensor: integers, or torch's symbolic ones."""


@dataclass(frozen=True, kw_only=True)
class Solved:
    """Dimensions, and for each the tensor that gives it, or GIVEN."""

    dims: Mapping[str, Any]
    given_by: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class _Equation:
    """extent = size: axis `axis` of a tensor."""

    tensor: Tensor
    axis: int
    extent: Scalar
    size: Any


def solve(program: Program, sizes: Mapping[str, Sizes], given: Mapping[str, Any], ranks: int) -> Solved:
    """Return the dimensions of a program whose tensors have these sizes.

    sizes: tensor -> the sizes of its axes, of some of the program's tensors. given: dimensions and parameters that are
    known already. An extent tells a dimension if it is the only unknown one in it, stands there once, and is combined
    with others by + - * alone.

    Raises ShapeError for a tensor with another number of axes, for a size that no dimension gives, and for tensors that
    disagree. Raises BindingError for a dimension that no tensor tells.
    """
    equations = list(_equations(program, sizes))
    known: dict[str, Any] = dict(given)
    given_by = {name: GIVEN for name in known}
    progress = True
    while progress:
        progress = False
        for one in equations:
            unknown = [part.name for part in walk(one.extent) if isinstance(part, Param) and part.name not in known]
            if len(unknown) == 1 and (found := _inverse(one.extent, one.size, one, program, known, ranks)) is not None:
                known[unknown[0]], given_by[unknown[0]] = found, one.tensor.name
                progress = True
    for one in equations:
        _check(one, program, Solved(dims=known, given_by=given_by), sizes, ranks)
    _require_all(program, known, equations)
    return Solved(dims=known, given_by=given_by)


def extent(expr: Scalar, dims: Mapping[str, Any], ranks: int) -> Any:
    """Return the size that an extent has with these dimensions, which may be symbolic."""
    return evaluate(expr, Env(rank=0, ranks=ranks, params=dims, indices={}))


def shape_text(tensor: Tensor) -> str:
    """Return a declared shape as it is written: `[ranks, M, K]`."""
    return f"[{', '.join(map(print_scalar, tensor.shape))}]"


def _equations(program: Program, sizes: Mapping[str, Sizes]) -> Iterable[_Equation]:
    for name, own in sizes.items():
        tensor = program.tensor(name)
        if len(own) != len(tensor.shape):
            message = f"{name} of {program.name} is {list(own)}, with {len(own)} axes"
            raise ShapeError(message, location=tensor.location, hint=f"it is declared {shape_text(tensor)}")
        for axis, (wanted, size) in enumerate(zip(tensor.shape, own, strict=True)):
            yield _Equation(tensor=tensor, axis=axis, extent=wanted, size=size)


def _inverse(expr: Scalar, size: Any, of: _Equation, program: Program, known: Mapping[str, Any], ranks: int) -> Any:
    """Return the value of the only unknown dimension with which an expression is `size`, or None if there are others.

    Raises ShapeError if there is none.
    """
    match expr:
        case Param():
            return size
        case Binary(op=op, left=left, right=right) if op in ("+", "-", "*"):
            on_left = _unknown(left, known)
            if on_left and _unknown(right, known):
                return None
            other = extent(right if on_left else left, known, ranks)
            inner = left if on_left else right
            if op == "+":
                rest = size - other
            elif op == "-":
                rest = size + other if on_left else other - size
            elif other == 0:
                return None
            elif size % other != 0:
                name = next(part.name for part in walk(of.extent) if isinstance(part, Param) and part.name not in known)
                message = f"axis {of.axis} of {of.tensor.name} of {program.name} is {of.size}, on {ranks} ranks"
                hint = f"it is declared {print_scalar(of.extent)}, which is {of.size} for no {name}"
                raise ShapeError(message, location=of.tensor.location, hint=hint)
            else:
                rest = size // other
            return _inverse(inner, rest, of, program, known, ranks)
        case _:
            return None


def _unknown(expr: Scalar, known: Mapping[str, Any]) -> bool:
    return any(isinstance(part, Param) and part.name not in known for part in walk(expr))


def _check(one: _Equation, program: Program, found: Solved, sizes: Mapping[str, Sizes], ranks: int) -> None:
    """Raise ShapeError if the dimensions do not give an extent its size."""
    if _unknown(one.extent, found.dims):
        return
    wanted = extent(one.extent, found.dims, ranks)
    if wanted == one.size:
        return
    names = list(dict.fromkeys(part.name for part in walk(one.extent) if isinstance(part, Param)))
    others = [name for name in dict.fromkeys(found.given_by[name] for name in names) if name != one.tensor.name]
    related = next((program.tensor(name).location for name in others if name != GIVEN), None)
    if isinstance(one.extent, Param) and others:
        message = f"{names[0]} of {program.name} is {wanted} in {others[0]} and {one.size} in {one.tensor.name}"
    else:
        message = f"axis {one.axis} of {one.tensor.name} of {program.name} is {one.size}, not {wanted}"
    values = ", ".join(f"{name} is {found.dims[name]} in {found.given_by[name]}" for name in names)
    declared = [_declared(program, name, sizes) for name in (*others, one.tensor.name) if name != GIVEN]
    hint = "; ".join([*([values] if not isinstance(one.extent, Param) and values else []), *declared])
    raise ShapeError(message, location=one.tensor.location, related=related, hint=hint)


def _declared(program: Program, name: str, sizes: Mapping[str, Sizes]) -> str:
    return f"{name} is {list(sizes[name])}, declared {shape_text(program.tensor(name))}"


def _require_all(program: Program, known: Mapping[str, Any], equations: Sequence[_Equation]) -> None:
    for param in program.params:
        if param.name in known:
            continue
        what = "dimension" if param.kind == "dim" else "parameter"
        example = {"f32": "0.5", "bool": "True"}.get(param.kind, "64")
        naming = [one for one in equations if _unknown(one.extent, known) and _mentions(one.extent, param.name)]
        why = "no tensor that is given has it" if param.kind == "dim" else f"it is a number of kind {param.kind}"
        if naming:
            why = f"{naming[0].tensor.name} is declared {shape_text(naming[0].tensor)}, which does not tell it"
        message = f"{what} {param.name!r} of {program.name} is not known: {why}"
        location: Location | None = param.location or program.location
        raise BindingError(message, location=location, hint=f"give it in the call: {param.name}={example}")


def _mentions(expr: Scalar, name: str) -> bool:
    return any(isinstance(part, Param) and part.name == name for part in walk(expr))
