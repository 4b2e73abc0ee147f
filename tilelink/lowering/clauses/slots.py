"""`slots(l=2)`: the number of steps of a tensor that memory holds at a time."""

from __future__ import annotations

from operator import or_

from tilelink.errors import ScheduleError, TileSizeError, did_you_mean
from tilelink.ir.program import Program, Stage, Tensor, Whole
from tilelink.ir.scalar import Ranks, Scalar, at_launch, indices_in, is_gather
from tilelink.ir.typing import Typing
from tilelink.ir.visitor import stage_regions
from tilelink.lowering.clauses.channel import dims_called, names_of
from tilelink.lowering.clauses.clause import Clause, Numbers, TensorChoices, ratio
from tilelink.lowering.transform import number_of
from tilelink.scheduling.words import SchedulePart, Sizes, check_sizes, inner_sizes, read_sizes, show_sizes

SEARCHED = (2, 3)
"""Steps of a tensor that memory holds at a time, if a search does not keep all of them."""


def _show(sizes: Sizes) -> str:
    return f"slots({show_sizes(sizes)})"


def _valid(owner: str, sizes: Sizes) -> None:
    check_sizes(owner, sizes)
    if len(sizes) > 1:
        raise ScheduleError(f"slots of two dimensions of {owner}", hint="a tensor has one dimension of steps")


def _check(program: Program, part: SchedulePart) -> None:
    tensor = program.tensor(part.name)
    ((key, number),) = part[SLOTS]
    location = part.at("slots")
    if tensor.space not in ("local", "symmetric") or tensor.bound is not None:
        kind = "an index tensor" if tensor.bound is not None else "a table" if tensor.known_early else tensor.space
        message = f"slots({key}={number}) of {tensor.name}, which is {kind}"
        hint = "local and symmetric tensors have slots: what else there is of a step stays for the whole launch"
        raise ScheduleError(message, location=location, related=tensor.location, hint=hint)
    if not dims_called(program, tensor, key):
        names = names_of(program, tensor)
        message = f"slots({key}={number}): {tensor.name} has no dimension {key!r}"
        hint = did_you_mean(key, names, f"its dimensions, and indices along them, are {', '.join(names)}")
        raise TileSizeError(message, location=part.at(f"slots.{key}"), hint=hint)


def _apart(one: Sizes, other: Sizes, _: Numbers, __: int) -> float:
    """Return how many times one number of slots must be doubled to give the other; 1 if only one of them is there."""
    if one and other:
        return ratio(one[0][1], other[0][1])
    return float(one != other)


def _labels(program: Program, typing: Typing, tensor: Tensor, dims: Numbers, ranks: int) -> dict[str, Sizes]:
    """Return memory for all steps, or for a few of them, if the tensor has a dimension of more steps."""
    key = _steps_of(program, typing, tensor)
    if key is None:
        return {}
    steps = number_of(tensor.shape[dims_called(program, tensor, key)[0]], dims, ranks)
    return {"all": (), **{str(n): ((key, n),) for n in SEARCHED if n < steps}}


def _steps_of(program: Program, typing: Typing, tensor: Tensor) -> str | None:
    """Return the name of a dimension of steps of a tensor in schedules, or None.

    It is a dimension, not over the ranks, in which each access names one step by an index of a stage.
    """
    if tensor.space not in ("local", "symmetric") or tensor.bound is not None:
        return None
    every = [(stage, region) for stage in program.stages for region in stage_regions(stage)]
    own = [(stage, region) for stage, region in every if region.tensor == tensor.name]
    for name in names_of(program, tensor):
        dims = dims_called(program, tensor, name)
        if not dims or isinstance(tensor.shape[dims[0]], Ranks):
            continue
        known = [(stage, _step_indices(region.coords[dims[0]], stage)) for stage, region in own]
        single = [names <= typing.scalar_indices(stage.name) for stage, names in known]
        moved = [stage.kind == "comm" for stage, _ in known]  # whose tiles may have one element as well
        if all(names for _, names in known) and any(single) and all(map(or_, single, moved)):
            return name.lower() if dims_called(program, tensor, name.lower()) == dims else name
    return None


def _step_indices(coord: Scalar | Whole, stage: Stage) -> set[str]:
    """Return the indices that a coordinate names, if an index of the domain is among them and no launch decides it."""
    if not isinstance(coord, Scalar) or is_gather(coord) or at_launch(coord):
        return set()
    named = indices_in(coord)
    return named if named & {decl.name for decl in stage.indices if not decl.over_ranks} else set()


SLOTS: Clause[Sizes] = Clause(
    name="slots",
    of="tensor",
    default=(),
    rules={"slots": '"slots" "(" size ")"'},
    syntax="slots(..)",
    called="slots(...)",
    read=read_sizes,
    show=_show,
    valid=_valid,
    inner=inner_sizes,
    check=_check,
    apart=_apart,
    tensor_choices=TensorChoices(name="slots", labels=_labels),
    written="`slots(l=2)`",
    manual=(
        "number of steps along a dimension that memory holds at a time; the dimension is named as in `channel`. Step l "
        "is in slot l % 2, and its writer waits until step l - 2 has been read, see [slots](#slots). For local "
        "and symmetric tensors, if each access names one step. No effect if there are no more steps than slots"
    ),
)
