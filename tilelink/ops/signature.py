"""A program as a function of tensors: what it takes and gives, by name and as torch.library writes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tilelink.errors import BindingError
from tilelink.frontend.variants import Template, open_names
from tilelink.ir.program import Program
from tilelink.ops.partial_inputs import PartialInputs

WORDS = ("out", "group", "schedule", "backward", "tables", "dtype")
"""Keywords of `tilelink.op` and of a call, which no tensor or parameter can have as its name."""
NUMBERS = {"dim": "SymInt", "i32": "int", "f32": "float", "bool": "bool"}
"""Kind of a parameter -> its type for torch."""


@dataclass(frozen=True, kw_only=True)
class Signature:
    """The inputs and outputs of a program.

    inputs: tensors in the order of their declarations. optional: those that may be left out. in_place: those that a
    call reads and writes in place. numbers: the kinds of dimensions and parameters. choices: parameters that are
    functions or element types. The arguments of its custom operator are, in this order: inputs, numbers, choices, the
    group's name and the schedule's text.
    """

    name: str
    inputs: tuple[str, ...]
    optional: frozenset[str]
    in_place: tuple[str, ...]
    outputs: tuple[str, ...]
    numbers: Mapping[str, str]
    choices: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all arguments that a call may give by keyword."""
        return (*self.inputs, *self.numbers, *self.choices)

    @property
    def results(self) -> tuple[str, ...]:
        """The results of a call: the outputs, or the tensors that it changes in place if there is none."""
        return self.outputs or self.in_place

    @property
    def takes(self) -> str:
        """The inputs, as an error lists them."""
        return ", ".join(f"{one} (may be left out)" if one in self.optional else one for one in self.inputs) or "none"

    def schema(self) -> str:
        """Return the schema for torch.library."""
        marks = {name: f"(a{number}!)" for number, name in enumerate(self.in_place)}
        arguments = [f"Tensor{marks.get(name, '')}{'?' * (name in self.optional)} {name}" for name in self.inputs]
        arguments += [f"{NUMBERS[kind]}? {name}" for name, kind in self.numbers.items()]
        arguments += [f"str? {name}" for name in self.choices]
        arguments += ["str group", "str schedule"]
        if not self.outputs:
            return f"({', '.join(arguments)}) -> ()"
        made = ", ".join("Tensor" for _ in self.outputs)
        return f"({', '.join(arguments)}) -> {made if len(self.outputs) == 1 else f'({made})'}"

    def call(self, arguments: Sequence[Any]) -> Call:
        """Return the call that the arguments of the custom operator are."""
        given = dict(zip(self.names, arguments, strict=False))

        def part(names: Sequence[str]) -> dict[str, Any]:
            return {name: given[name] for name in names if given[name] is not None}

        return Call(tensors=part(self.inputs), numbers=part(tuple(self.numbers)), choices=part(self.choices))


@dataclass(frozen=True, kw_only=True)
class Call:
    """Arguments of a call by name, without those that are not given."""

    tensors: Mapping[str, Any]
    numbers: Mapping[str, Any]
    choices: Mapping[str, str]


def signature_of(program: Program) -> Signature:
    """Return what a program takes and gives.

    An input that may be left out is one with a constant in its place, unless the program has already chosen it. Raise
    BindingError for a program without outputs, or with a name that calls use themselves.
    """
    template = program.template if isinstance(program.template, Template) else None
    chosen = template.choices.given if template else {}
    optional: set[str] = set()
    inputs = [one.name for one in program.tensors if one.is_given]
    if template:
        open_inputs = {one.name for one in template.syntax.tensors if one.default is not None} - chosen.keys()
        optional = open_inputs
        declared = [one.name for one in template.syntax.tensors if one.space in ("in", "inout")]
        inputs = [name for name in declared if name in open_inputs or name in inputs]
    counts = PartialInputs(program).counts  # last, for calls may leave them out
    inputs = [*(name for name in inputs if name not in counts), *(name for name in inputs if name in counts)]
    found = Signature(
        name=program.name,
        inputs=tuple(inputs),
        optional=frozenset(optional),
        in_place=tuple(one.name for one in program.tensors if one.space == "inout"),
        outputs=tuple(one.name for one in program.tensors if one.space == "out"),
        numbers={one.name: one.kind for one in program.params},
        choices=tuple(name for name, kind in open_names(program).items() if kind != "input"),
    )
    if not found.results:
        raise BindingError(f"{program.name} has no output", location=program.location, hint="y : out [M, N]")
    if reserved := [name for name in found.names if name in WORDS]:
        what = f"{reserved[0]} of {program.name} is a keyword of the calls of operators"
        raise BindingError(what, location=program.location, hint="give it another name in the program")
    return found
