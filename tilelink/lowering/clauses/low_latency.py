"""`low_latency`: which tensors have a low-latency protocol, as NCCL's LL: each word carries data and its own flag."""

from __future__ import annotations

from tilelink.errors import ScheduleError
from tilelink.ir.program import Program, Tensor
from tilelink.lowering.clauses.clause import switch
from tilelink.scheduling.words import Part


def may_travel(tensor: Tensor) -> bool:
    """True if words can carry a tensor, as far as its declaration says."""
    return tensor.space == "symmetric" and tensor.bound is None and not tensor.sums and bool(tensor.shape)


def _check(program: Program, part: Part) -> None:
    tensor = program.tensor(part.name)
    if may_travel(tensor):
        return
    kind = "an index tensor" if tensor.bound is not None else "declared sum" if tensor.sums else tensor.space
    what = kind if tensor.shape else "a single element"
    message = f"{tensor.name}, which is {what}, cannot have `low_latency`"
    hint = "words carry what is pushed to a symmetric tensor and read there: push it to one, and store what is read"
    raise ScheduleError(message, location=part.at("low_latency"), related=tensor.location, hint=hint)


LOW_LATENCY = switch(
    "low_latency",
    of="tensor",
    check=_check,
    manual=(
        "what is pushed to the tensor travels as words of 32 bits of data and 32 bits of flag, each stored at once; "
        "the reads after a wait poll the words themselves, see [low latency](#low-latency). It saves a fence and a "
        "signal, and takes twice the bytes: for messages of some kilobytes. For symmetric tensors that are written by "
        "pushes alone, each of which its own tile notifies, and read after waits of the same tile; on one node, from "
        "stages on SMs. No effect on AMD and with dialect triton_dist"
    ),
)
