# pyright: basic
"""The form of a call of a user's operator: the program after its choices, its sizes and its element types."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from tilelink.dtypes import DTYPES
from tilelink.errors import DtypeError
from tilelink.frontend.variants import Template
from tilelink.ir.program import Program, Tensor
from tilelink.ir.solve import extent, solve
from tilelink.ops.signature import Call, Signature

ELEMENTS = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32}
"""Types that elements of a program's tensors may have where none is declared."""
NAMES = {kind: name for name, kind in DTYPES.items()}


@dataclass(frozen=True, kw_only=True)
class Specialization:
    """The program of a call, after its choices and without the inputs that it leaves out, with all sizes.

    dims: dimensions and parameters. dtype: of tensors that declare none. outputs: their shapes and types, by name.
    """

    program: Program
    dims: Mapping[str, Any]
    dtype: str
    outputs: Mapping[str, tuple[tuple[Any, ...], torch.dtype]]


class Specializations:
    """The forms of an operator's calls."""

    def __init__(self, program: Program, signature: Signature, tables: Mapping[str, Any], dtype: str | None) -> None:
        """tables, dtype: as `tilelink.op` takes them."""
        self._program, self._signature, self._tables, self._dtype = program, signature, tables, dtype
        self._programs: dict[Any, Program] = {}

    def of(self, call: Call, ranks: int) -> Specialization:
        """Return the program of a call with its sizes, which may be symbolic.

        Raises ShapeError, DtypeError or BindingError for tensors that do not fit it or each other.
        """
        program = self._chosen(call)
        dtype = self._element_type(program, call)
        sizes: dict[str, Any] = {name: list(tensor.shape) for name, tensor in call.tensors.items()}
        sizes |= {name: np.shape(table)[1:] for name, table in self._tables.items()}
        dims = solve(program, sizes, call.numbers, ranks).dims
        outputs = {
            one.name: (tuple(extent(size, dims, ranks) for size in one.shape), DTYPES[one.dtype or dtype])
            for one in program.tensors
            if one.space == "out"
        }
        return Specialization(program=program, dims=dims, dtype=dtype, outputs=outputs)

    def _chosen(self, call: Call) -> Program:
        """Return the variant of the program that a call asks for."""
        given = tuple(sorted(self._signature.optional & call.tensors.keys()))
        key = (given, tuple(call.choices.items()))
        if key not in self._programs:
            choices: dict[str, Any] = {**dict.fromkeys(given, True), **call.choices}
            template = self._program.template
            made = self._program
            if choices and isinstance(template, Template):
                made = template.variant(self._program, self._program.name, choices)
            self._programs[key] = made
        return self._programs[key]

    def _element_type(self, program: Program, call: Call) -> str:
        """Return the type of tensors that declare none. Raises DtypeError for inputs of other types than declared."""
        found, told = self._dtype, "dtype="
        for name, tensor in call.tensors.items():
            declared = program.tensor(name)
            own = NAMES.get(tensor.dtype, "")
            if declared.dtype is not None:
                if own != declared.dtype:
                    raise self._wrong_type(declared, tensor, f"it is declared {declared.dtype}")
                continue
            if own not in ELEMENTS:
                raise self._wrong_type(declared, tensor, f"it may be {', '.join(ELEMENTS)}")
            if found is not None and own != found:
                hint = f"{told} says {found}; inputs that declare no type have one type"
                raise self._wrong_type(declared, tensor, hint)
            found, told = own, told if found is not None else name
        if found is None and any(one.dtype is None and one.space != "table" for one in program.tensors):
            open_ones = [one for one in program.tensors if one.dtype is None and one.space != "table"]
            hint = f"no input tells it: tilelink.op({program.name}, ..., dtype='bf16')"
            message = f"the element type of {open_ones[0].name} of {program.name} is not known"
            raise DtypeError(message, location=open_ones[0].location, hint=hint)
        return found or "f32"

    def _wrong_type(self, declared: Tensor, tensor: torch.Tensor, hint: str) -> DtypeError:
        message = f"{declared.name} of {self._program.name} is {name_of_type(tensor.dtype)}"
        return DtypeError(message, location=declared.location, hint=hint)


def name_of_type(dtype: torch.dtype) -> str:
    """Return a type as programs write it, or as torch does if they have none like it."""
    return NAMES.get(dtype) or str(dtype).removeprefix("torch.")
