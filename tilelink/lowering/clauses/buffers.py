"""`buffers n`: the number of launches of a program that may be in flight."""

from __future__ import annotations

from tilelink.errors import ScheduleError
from tilelink.ir.program import Program, Tensor
from tilelink.ir.typing import Typing
from tilelink.lowering.clauses.clause import Clause, Numbers, TensorChoices, count, ratio
from tilelink.scheduling.words import SchedulePart


def _apart(one: int | None, other: int | None, _: Numbers, __: int) -> float:
    return ratio(one, other)


def _labels(_: Program, __: Typing, tensor: Tensor, ___: Numbers, ____: int) -> dict[str, int | None]:
    return {"2": 2, "1": 1} if tensor.symmetric and not tensor.in_place else {}


def _check(program: Program, part: SchedulePart) -> None:
    tensor = program.tensor(part.name)
    if not tensor.symmetric:
        message = f"buffers {part[BUFFERS]} of {tensor.name}, which no peer reaches"
        hint = "take `buffers` away: launches of one rank follow one another; symmetric tensors have buffers"
        raise ScheduleError(message, location=part.at("buffers"), related=tensor.location, hint=hint)
    if tensor.in_place:
        message = f"buffers {part[BUFFERS]} of {tensor.name}, which a launch has from the one before"
        hint = "take `buffers` away: what is kept between launches is in one place"
        raise ScheduleError(message, location=part.at("buffers"), related=tensor.location, hint=hint)


BUFFERS: Clause[int | None] = count(
    "buffers", "a tensor has at least one buffer", of="tensor", check=_check, apart=_apart,
    tensor_choices=TensorChoices(name="buffers", labels=_labels),
    manual="number of launches that may use a symmetric tensor before its memory is reused",
)  # fmt: skip
