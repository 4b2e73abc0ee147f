"""A program on CPU tensors of a process group: its reference result, on the inputs of all ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

from tilelink import compiler
from tilelink.errors import BindingError, DtypeError
from tilelink.ops.consensus import CallKind, agree
from tilelink.runtime.cuda.operands import check_apart

if TYPE_CHECKING:
    from tilelink.ir.program import Program
    from tilelink.scheduling.schedule import Schedule

Tensors = Mapping[str, torch.Tensor]


_SENT_AS_BYTES = (torch.float8_e4m3fn, torch.float8_e5m2)
"""Types that torch cannot pickle for other ranks."""


class ReferenceLaunch:
    """Stands for a kernel where there is no GPU: every rank has the inputs of all, and computes what it gets of them.

    The program with its schedule is verified first, as before a kernel.
    """

    def __init__(
        self, program: Program, schedule: Schedule | None, *, dims: compiler.Dims, dtype: str,
        tables: Mapping[str, Any], group: ProcessGroup, same: CallKind,
    ) -> None:  # fmt: skip
        """same: what all ranks give alike, in every launch."""
        compiler.plan(program, schedule, ranks=group.size(), dims=dims, dtype=dtype, tables=tables)
        self._program, self._dims, self._dtype, self._group, self._same = program, dims, dtype, group, same
        self._in_place = tuple(one.name for one in program.tensors if one.space == "inout")
        self._tables = {name: torch.as_tensor(value).int() for name, value in tables.items()}

    def __call__(self, inputs: Tensors, out: Tensors | None = None) -> dict[str, torch.Tensor]:
        """Compute the outputs of this rank, and what tensors are afterwards that it changes in place. Collective.

        Raises ShapeError if the ranks make different calls, BindingError for outputs that share memory with others,
        DtypeError for a tensor elsewhere.
        """
        for name, value in {**inputs, **(out or {})}.items():
            if value.device.type != "cpu":
                raise DtypeError(f"{name} of {self._program.name} lies on {value.device}", hint="others are on the CPU")
        in_place = {name: inputs[name].detach() for name in self._in_place}
        own = {name: value.detach().contiguous() for name, value in inputs.items()}
        for name, value in in_place.items():
            if not value.is_contiguous():
                hint = "give it contiguous: its elements are changed where they are"
                raise BindingError(f"{name} of {self._program.name} is not contiguous", hint=hint)
        if out or in_place:
            read = {name: value for name, value in own.items() if name not in in_place}
            check_apart({**in_place, **(out or {})}, read, torch.empty(0))
        bytes_of = {name: one.view(torch.uint8) for name, one in own.items() if one.dtype in _SENT_AS_BYTES}
        agree(self._same, self._group, torch.device("cpu"))
        every: list[Any] = [{**own, **bytes_of}]
        if self._group.size() > 1:
            every *= self._group.size()
            dist.all_gather_object(every, {**own, **bytes_of}, group=self._group)
        complete = [
            {
                **given,
                **{name: given[name].view(own[name].dtype) for name in bytes_of},
                **{name: table[rank] for name, table in self._tables.items()},
            }
            for rank, given in enumerate(every)
        ]
        made = compiler.reference(self._program, complete, dims=self._dims, dtype=self._dtype)[self._group.rank()]
        for name, value in {**in_place, **(out or {})}.items():
            value.copy_(made[name])
        return {**made, **{name: inputs[name] for name in in_place}, **(out or {})}
