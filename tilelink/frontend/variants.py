"""Variants of programs: element types, functions and optional inputs that are chosen before a program is built.

A program may have parameters that are element types or functions, and inputs that may be left out. The program itself
has their defaults; `program silu_product = product(activation=silu, bias)` is another program, with others. A variant
of a variant keeps the choices that it does not make itself.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from tilelink.errors import BindingError, Location, ParseError, UnknownNameError, did_you_mean, public
from tilelink.frontend.syntax import ParamSyntax, ProgramSyntax, Source, TensorSyntax, VariantSyntax
from tilelink.ir.parameters import holds_f32, rounded
from tilelink.ir.program import DTYPES, ELEMENTWISE, INTEGERS, Program
from tilelink.ir.words import DOTTED, NAME
from tilelink.scheduling.schedule import Schedule

PARSED = "variants are made of programs that were parsed, from text or from a Python function"
OPEN = ("dtype", "function")
"""Kinds of parameters that are chosen before the program is built."""
IDENTITY = "identity"
"""The function that returns its argument: the default of a function parameter."""

Choice = str | bool
"""The name of an element type or of a function; True for an optional input that is given, False for one left out."""


@dataclass(frozen=True, kw_only=True)
class Choices:
    """The choices that make a variant of a program.

    given: the choices themselves, without defaults. dtypes: parameter -> element type, None for that of the program.
    functions: parameter -> function. left_out: inputs that are left out, with the constants in their place.
    """

    given: Mapping[str, Choice] = field(default_factory=dict[str, Choice])
    dtypes: Mapping[str, str | None] = field(default_factory=dict[str, str | None])
    functions: Mapping[str, str] = field(default_factory=dict[str, str])
    left_out: Mapping[str, float | int] = field(default_factory=dict[str, float | int])


def choices_of(syntax: ProgramSyntax, given: Mapping[str, Choice], location: Location | None) -> Choices:
    """Return what is chosen for all that a program leaves open. place: of the choices that are given.

    Raises UnknownNameError for a choice that the program does not have, ParseError for one that does not fit.
    """
    params = {one.name: one for one in syntax.params if is_open(one)}
    optional = {one.name: one for one in syntax.tensors if one.default is not None}
    known = [*params, *optional]
    for name in given:
        if name not in known:
            what = f"it has {', '.join(known)}" if known else "it has no parameter of kind dtype or function, no in = 0"
            hint = did_you_mean(name, known, what)
            raise UnknownNameError(f"{syntax.name} leaves no {name!r} open", location=location, hint=hint)
    dtypes: dict[str, str | None] = {}
    functions: dict[str, str] = {}
    for name, param in params.items():
        own = syntax.source.location(param.node)
        value, where = (given[name], location or own) if name in given else (param.default, own)
        if param.kind == "dtype":
            dtypes[name] = None if value is None else _dtype(name, value, where)
        else:
            functions[name] = IDENTITY if value is None else _function(name, value, where)
    left_out = {
        name: _element(_constant(tensor, syntax.source), dtypes.get(tensor.dtype or "", tensor.dtype), tensor, syntax)
        for name, tensor in optional.items()
        if not _given(name, given, location)
    }
    return Choices(given=dict(given), dtypes=dtypes, functions=functions, left_out=left_out)


def _dtype(name: str, value: Choice, location: Location) -> str:
    if value not in DTYPES:
        hint = did_you_mean(str(value), DTYPES, f"one of {', '.join(DTYPES)}")
        raise ParseError(f"{name} is an element type, not {value}", location=location, hint=hint)
    return str(value)


def _function(name: str, value: Choice, location: Location) -> str:
    text = str(value)
    if isinstance(value, bool) or (text not in (IDENTITY, *ELEMENTWISE) and "." not in text):
        functions = [one for one, count in ELEMENTWISE.items() if NAME.fullmatch(one) and count == 1 and one != "neg"]
        others = f"one of {IDENTITY}, {', '.join(functions)}, or module.function"
        hint = did_you_mean(text, functions, others)
        raise ParseError(f"{name} is a function, not {value}", location=location, hint=hint)
    if DOTTED.fullmatch(text) is None:
        raise ParseError(f"{text!r} is not the name of a function", location=location, hint="module.function")
    return text


def _given(name: str, given: Mapping[str, Choice], location: Location | None) -> bool:
    value = given.get(name, False)
    if not isinstance(value, bool):
        hint = f"{name} for an input that is given, {name}=False for one that is left out"
        raise ParseError(f"{name} is an input, not {value}", location=location, hint=hint)
    return value


def _constant(tensor: TensorSyntax, source: Source) -> float | int:
    """Return the number that stands for an input that is left out."""
    location, hint = source.location(tensor.node), f"{tensor.name} : in [N] = 0"
    if tensor.space != "in" or tensor.symmetric:
        raise ParseError("only an input of the own rank may be left out", location=location, hint=hint)
    match tensor.default:
        case ast.Constant(value=bool()):
            pass
        case ast.Constant(value=int() | float() as number):
            return number
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
            return -number
        case _:
            pass
    raise ParseError("a number stands for an input that is left out", location=location, hint=hint)


def _element(number: float | int, dtype: str | None, tensor: TensorSyntax, syntax: ProgramSyntax) -> float | int:
    """Return the number as an element of the input has it. Raises ParseError if none can be that number.

    Arithmetic with it is then that of elements: 100000 in place of an f32 is no integer, whose square would overflow.
    """
    if dtype == "bool":
        fits, made = number in (0, 1), bool(number)
    elif dtype in INTEGERS:
        fits, made = isinstance(number, int) and number in INTEGERS[dtype], number
    else:
        fits, made = holds_f32(number), 0.0
        if fits:
            made = rounded(number, dtype or "f32")
            fits = math.isfinite(made)
    if not fits:
        location, name = syntax.source.location(tensor.node), dtype or "f32"
        hint = f"a number that an {name} holds" if dtype != "bool" else "0 or 1"
        raise ParseError(f"{tensor.name} cannot be {number}: its elements are {name}", location=location, hint=hint)
    return made


Build = Callable[[ProgramSyntax, Choices], Program]


@dataclass(frozen=True, kw_only=True)
class Template:
    """The syntax that a program was built of, to build variants of it."""

    syntax: ProgramSyntax
    build: Build
    choices: Choices

    def variant(
        self, program: Program, name: str, given: Mapping[str, Choice], location: Location | None = None
    ) -> Program:
        """Return the variant of a program with other choices: those given, and its own for what is not given.

        Raises what `choices_of` and building raise.
        Raises BindingError for a program that was changed after it was built: the change would be lost.
        """
        if self.build(self.syntax, self.choices) != program:
            hint = "make the variant first, then link or change it"
            raise BindingError(f"{program.name} is no longer what was written", location=location, hint=hint)
        all_given = {**self.choices.given, **given}
        made = self.build(replace(self.syntax, name=name), choices_of(self.syntax, all_given, location))
        own = tuple(replace(one, program=name) for one in program.schedules if isinstance(one, Schedule))
        return replace(made, schedules=own, location=location or made.location)


@public
def variant(program: Program, name: str, **choices: Choice) -> Program:
    """Return a variant of a program: `variant(product, "silu_product", activation="silu", bias=True)`.

    It has the program's schedules, by their names.
    choices: for a parameter of kind dtype the name of an element type; for one of kind function the name of an
    elementwise function, "identity", or "module.function"; for an optional input True if it is given. What is not
    chosen is as in `program`. Raises UnknownNameError or ParseError for choices that do not fit, BindingError for a
    program that was built by hand or changed since it was parsed.
    """
    if NAME.fullmatch(name) is None:
        raise ParseError(f"{name!r} is not a name", hint="letters, digits and _")
    if not isinstance(program.template, Template):
        raise BindingError(f"{program.name} was not parsed", hint=PARSED)
    return program.template.variant(program, name, choices)


def open_names(program: Program) -> dict[str, str]:
    """Return what can be chosen for a program: name -> "dtype", "function" or "input"."""
    if not isinstance(program.template, Template):
        return {}
    syntax = program.template.syntax
    found = {one.name: one.kind for one in syntax.params if is_open(one)}
    return found | {one.name: "input" for one in syntax.tensors if one.default is not None}


Elsewhere = Callable[[str], Program | None]
"""A program of another file by its name, or None."""


def variant_of(syntax: VariantSyntax, programs: Mapping[str, Program], elsewhere: Elsewhere) -> Program:
    """Return the program that `program NAME = BASE(choices)` declares. programs: those before it in its file.

    Raises UnknownNameError for a base that there is not, and what `variant` raises.
    """
    location = syntax.source.location(syntax.node)
    base = programs.get(syntax.base) or elsewhere(syntax.base)
    if base is None:
        hint = did_you_mean(syntax.base, programs, f"the programs before it are {', '.join(programs) or 'none'}")
        raise UnknownNameError(f"no program {syntax.base!r} before it", location=location, hint=hint)
    given: dict[str, Choice] = {}
    for name, value in syntax.choices:
        if name in given:
            raise ParseError(f"{name} is chosen twice", location=location, hint="choose it once")
        given[name] = value
    if not isinstance(base.template, Template):
        raise BindingError(f"{base.name} was not parsed", location=location, hint=PARSED)
    return base.template.variant(base, syntax.name, given, location)


def is_open(param: ParamSyntax) -> bool:
    """True if a parameter is chosen before the program is built."""
    return param.kind in OPEN
