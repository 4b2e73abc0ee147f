"""`low_latency`: which tensors have a low-latency protocol, as NCCL's LL: each word carries data and its own flag."""

from __future__ import annotations

from math import prod

from tilelink.errors import ScheduleError
from tilelink.ir.program import Program, Tensor
from tilelink.ir.typing import Typing
from tilelink.lowering.bound import Bound
from tilelink.lowering.clauses.clause import Clause, Numbers, Place, TensorChoices, switch
from tilelink.lowering.low_latency import may_have_words, may_travel, with_words
from tilelink.lowering.transform import number_of
from tilelink.scheduling.words import Part

FEW_ELEMENTS = 16384
"""Largest number of elements of a tensor for which a search tries words: with more, twice the bytes cost more than the
fences and signals that they save."""


def _apply(bound: Bound) -> Bound:
    if not bound.capabilities.low_latency:
        return bound
    return with_words(
        bound, {part.name: part.at("low_latency") for part in bound.schedule.tensors if part[LOW_LATENCY]}
    )


def _labels(program: Program, _: Typing, tensor: Tensor, dims: Numbers, ranks: int) -> dict[str, bool]:
    few = prod(number_of(n, dims, ranks) for n in tensor.shape) <= FEW_ELEMENTS
    return {"signals": False, "words": True} if few and may_have_words(program, tensor) else {}


def _check(program: Program, part: Part) -> None:
    tensor = program.tensor(part.name)
    if may_travel(tensor):
        return
    kind = "an index tensor" if tensor.bound is not None else "declared sum" if tensor.sums else tensor.space
    what = kind if tensor.shape else "a single element"
    message = f"{tensor.name}, which is {what}, cannot have `low_latency`"
    hint = "words carry what is pushed to a symmetric tensor and read there: push it to one, and store what is read"
    raise ScheduleError(message, location=part.at("low_latency"), related=tensor.location, hint=hint)


LOW_LATENCY: Clause[bool] = switch(
    "low_latency",
    of="tensor",
    check=_check,
    apply=_apply,
    place=Place.BEFORE_TRANSPORT,  # which asks for plain pushes, and before waits sink into products
    tensor_choices=TensorChoices(name="low_latency", labels=_labels),
    manual=(
        "what is pushed to the tensor travels as words of 32 bits of data and 32 bits of flag, each stored at once; "
        "the reads after a wait poll the words themselves, see [low latency](#low-latency). It saves a fence and a "
        "signal, and takes twice the bytes: for messages of some kilobytes. For symmetric tensors that are written by "
        "pushes alone, each of which its own tile notifies, and read after waits of the same tile; on one node, from "
        "stages on SMs. No effect on AMD and with dialect triton_dist"
    ),
)
