# pyright: basic
"""Where the choices of a mixture of experts go: by expert, and those of an expert in their own order."""

from __future__ import annotations

from operator import index
from typing import NamedTuple, SupportsIndex

import torch

from tilelink.errors import BindingError, DtypeError, public

Tensor = torch.Tensor


class Routing(NamedTuple):
    """Choices by expert, int32 and on the device of the ids. T: the number of ids.

    counts [experts]: choices of each expert. starts [experts + 1]: where the choices of each begin; the last one is
    the number of choices of any. order [T]: the choice at each place, those of no expert last. place, of the shape of
    the ids: where each choice is.
    """

    counts: Tensor
    starts: Tensor
    order: Tensor
    place: Tensor


@public
def by_expert(ids: Tensor, experts: int, *, first: int = 0) -> Routing:
    """Sort the ids of chosen experts, [tokens, k] or any other shape, int32 or int64.

        routing = tilelink.routing.by_expert(ids, 128)
        rows = x[routing.order // ids.shape[1]]     # tokens, expert by expert; each ends at starts[1:]

    Only experts first, ..., first + experts - 1 count; -1, and what else is not among them, is no expert. The sort is
    stable, the same in every call and on every device, and the host does not wait for it.

    Raises DtypeError for ids of another type, BindingError for no experts, and for what is no number of them.
    """
    if not isinstance(ids, torch.Tensor) or ids.dtype not in (torch.int32, torch.int64):
        kind = ids.dtype if isinstance(ids, torch.Tensor) else type(ids).__name__
        raise DtypeError(f"ids of experts are {kind}", hint="they are torch.int32 or torch.int64")
    for name, number, least in (("experts", experts, 1), ("first", first, 0)):
        if not isinstance(number, SupportsIndex) or not least <= index(number) < 2**31:
            raise BindingError(f"{name} of by_expert is {number!r}", hint=f"an integer from {least} on, as i32 has it")
    local = ids.flatten() - first
    kind = torch.uint8 if experts < 256 else torch.int32  # a byte is sorted in one pass
    bucket = torch.where((local >= 0) & (local < experts), local, experts).to(kind)
    keys, order = torch.sort(bucket, stable=True)
    starts = torch.searchsorted(keys, torch.arange(experts + 1, device=ids.device, dtype=kind), out_int32=True)
    places = torch.arange(order.numel(), device=ids.device, dtype=torch.int32)
    place = torch.empty_like(places).scatter_(0, order, places)
    return Routing(starts.diff(), starts, order.int(), place.view(ids.shape))
