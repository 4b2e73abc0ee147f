# pyright: basic
"""Gradients of an operator of one's own: by other operators, or by functions, that take what they need by its name.

The gradient of a tensor has its name after a `d`: a backward program of `y = f(x, w)` takes some of x, w, y and dy, and
gives dx, dw or both. A function takes the same names, and returns the gradients in a dict.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from tilelink.errors import BindingError
from tilelink.ir.scalar import Param, walk
from tilelink.ops.signature import Signature

GROUP, NEEDS = "group", "needs"
"""Parameters of a function besides tensors, numbers and choices: the group's name, and the names of the inputs whose
gradients are needed."""


class Operator(Protocol):
    """An operator that gives gradients."""

    @property
    def signature(self) -> Signature: ...

    @property
    def program(self) -> Any: ...

    def __call__(self, *tensors: Any, **named: Any) -> Any: ...


Function = Callable[..., Mapping[str, torch.Tensor | None]]


@dataclass(frozen=True, kw_only=True)
class GradientSource:
    """One source of gradients.

    takes: the names of its arguments. gives: the inputs whose gradients it returns; None if only a call tells. run:
    takes the arguments by name and returns gradients, by the names of inputs after a `d`.
    """

    takes: tuple[str, ...]
    gives: tuple[str, ...] | None
    run: Callable[..., Mapping[str, Any]]


def parts_of(backward: Sequence[Operator | Function], of: Signature) -> tuple[GradientSource, ...]:
    """Return the sources of the gradients of an operator. Raises BindingError for one that does not fit it."""
    found = tuple(
        _by_operator(one, of) if hasattr(one, "signature") else _by_function(one, of)  # type: ignore[arg-type]
        for one in backward
    )
    given = [name for part in found for name in part.gives or ()]
    if twice := [name for name in given if given.count(name) > 1]:
        raise BindingError(f"d{twice[0]} of {of.name} is given twice", hint="by one of its backward operators")
    return found


def gradients(
    parts: Sequence[GradientSource],
    of: Signature,
    known: Mapping[str, Any],
    needed: Collection[str],
    shapes: Mapping[str, Any],
) -> dict[str, torch.Tensor | None]:
    """Return input -> gradient for the inputs that need one.

    known: values of all that parts take. shapes: of the inputs. Raises BindingError for a gradient that no part gives,
    or of another shape.
    """
    found: dict[str, torch.Tensor | None] = {}
    for part in parts:
        if part.gives is not None and not set(part.gives) & set(needed):
            continue
        made = part.run(**{name: known[name] for name in part.takes})
        if not isinstance(made, Mapping):
            what = f"the backward function of {of.name} returned a {type(made).__name__}"
            raise BindingError(what, hint=f"a dict of gradients: {{'d{of.inputs[0]}': ...}}")
        names = {f"d{name}": name for name in of.inputs}
        if unknown := [name for name in made if name not in names]:
            hint = f"gradients of inputs are {', '.join(names)}"
            raise BindingError(f"the backward of {of.name} gives {unknown[0]!r}", hint=hint)
        found |= {names[name]: value for name, value in made.items()}
    for name in needed:
        if name not in found:
            hint = f"return 'd{name}' from it (None for a gradient that is zero), or detach {name}"
            raise BindingError(f"the backward of {of.name} gives no d{name}", hint=hint)
        value = found[name]
        if value is not None and value.shape != shapes[name]:
            what = f"d{name} of {of.name} is {list(value.shape)}, and {name} is {list(shapes[name])}"
            raise BindingError(what, hint="a gradient has the shape of its tensor")
    return {name: found[name] for name in needed}


def _by_operator(operator: Operator, of: Signature) -> GradientSource:
    own, program = operator.signature, operator.program
    sources = (*of.inputs, *of.outputs, *(f"d{name}" for name in of.outputs))
    for name in own.inputs:
        if name not in sources and name not in own.optional:
            hint = f"a backward program of {of.name} takes some of {', '.join(sources)}"
            raise BindingError(f"{own.name} takes {name!r}", location=program.tensor(name).location, hint=hint)
    names = {f"d{name}": name for name in of.inputs}
    for name in own.outputs:
        if name not in names:
            hint = f"a backward program of {of.name} gives some of {', '.join(names)}"
            raise BindingError(f"{own.name} gives {name!r}", location=program.tensor(name).location, hint=hint)
    told = {
        part.name
        for one in program.tensors if one.space == "in"
        for size in one.shape for part in walk(size) if isinstance(part, Param)
    }  # fmt: skip
    shared = [name for name in own.numbers if name in of.numbers and name not in told]
    shared += [name for name in own.choices if name in of.choices]
    takes = (*(name for name in own.inputs if name in sources), *shared, GROUP)

    def run(**values: Any) -> Mapping[str, Any]:
        made = operator(**{name: value for name, value in values.items() if value is not None})
        return dict(zip(own.outputs, made if len(own.outputs) > 1 else (made,), strict=True))

    return GradientSource(takes=takes, gives=tuple(names[name] for name in own.outputs), run=run)


def _by_function(function: Function, of: Signature) -> GradientSource:
    if not callable(function):
        hint = "a function of tensors that returns a dict, a program, an operator, or several of them in a tuple"
        raise BindingError(f"backward of {of.name} is a {type(function).__name__}", hint=hint)
    known = (*of.names, *of.outputs, *(f"d{name}" for name in of.outputs), GROUP, NEEDS)
    parameters = inspect.signature(function).parameters
    for name, parameter in parameters.items():
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            hint = f"it takes what it needs by name: def backward({', '.join(f'd{one}' for one in of.outputs)}, ...)"
            raise BindingError(f"the backward function of {of.name} takes {parameter}", hint=hint)
        if name not in known and parameter.default is parameter.empty:
            hint = f"it may take {', '.join(known)}"
            raise BindingError(f"the backward function of {of.name} takes {name!r}", hint=hint)
    return GradientSource(takes=tuple(name for name in parameters if name in known), gives=None, run=function)
