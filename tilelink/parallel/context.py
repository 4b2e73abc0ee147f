# pyright: basic
"""A style for modules whose rows are spread over ranks: their attention sees the keys of all ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.parallel import ParallelStyle
from torch.nn.functional import multi_head_attention_forward, scaled_dot_product_attention
from torch.overrides import TorchFunctionMode

from tilelink import ops
from tilelink.errors import BindingError
from tilelink.ops.context_parallel import GATHER, check_method
from tilelink.ops.groups import group_of
from tilelink.parallel.styles import as_autocast, joined
from tilelink.scheduling.schedule import Schedule


class ContextParallel(ParallelStyle):
    """Attention of a module over a mesh of ranks, each of which has some rows of every sequence.

        parallelize_module(block, mesh["cp"], {"attention": ContextParallel()})

    Calls of `torch.nn.functional.scaled_dot_product_attention` in the module become `tilelink.ops.attention`: with
    is_causal=True rows are in zigzag (`tilelink.ops.zigzag`), as torch's own context_parallel balances them, and so are
    positions that the module adds. Parameters stay as they are. Modules in it may be checkpointed; a checkpoint of a
    function that is no module's forward is computed again without this style.

    Raises RankError for a mesh of several dimensions, and where the module is called, BindingError for attention with a
    mask or a dropout and for torch.nn.MultiheadAttention, and what `ops.attention` raises.
    """

    def __init__(self, method: str = GATHER, gradients: Schedule | str | None = None) -> None:
        """method, gradients: as `tilelink.ops.attention` takes them. Raises UnknownNameError for another method."""
        super().__init__()
        check_method(method)
        self._ways = {"method": method, "gradients": gradients}

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        chosen: Any = {"group": group_of(device_mesh).group_name, **self._ways}
        # those within it too: backward may call one of them alone, to compute a checkpoint again
        own: list[Any] = [one for one in module.modules() if one is module or not _is_of_torch(one)]
        for one in own:
            if not isinstance(one, _Attends):
                one.__class__ = joined(_Attends, type(one))
                one._own_forward = vars(one).pop("forward", None)  # of a tool that has replaced it
            one._attends_by = chosen
        return module


def _is_of_torch(module: nn.Module) -> bool:
    """True for layers that call no attention; `_Spread` refuses the only ones that do."""
    return getattr(type(module).forward, "__module__", "").startswith("torch.")


class _Attends:
    """A module whose attention sees the keys of all ranks: a class, so that copies call their own forward."""

    _attends_by: dict[str, Any]
    _own_forward: Callable[..., Any] | None

    def forward(self, *args: Any, **named: Any) -> Any:
        inner: Any = self._own_forward or super().forward  # type: ignore[misc]
        with _Spread(self._attends_by):
            return inner(*args, **named)


class _Spread(TorchFunctionMode):
    """Attention to keys of all ranks of a group, in place of that to own keys."""

    def __init__(self, chosen: Mapping[str, Any]) -> None:
        super().__init__()
        self._chosen = chosen

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is multi_head_attention_forward:  # what it calls, a mode does not see
            hint = "call scaled_dot_product_attention in a module of your own"
            raise BindingError("torch.nn.MultiheadAttention attends to own rows alone", hint=hint)
        if func is not scaled_dot_product_attention:
            return func(*args, **(kwargs or {}))
        return _attention(self._chosen, *args, **(kwargs or {}))


def _attention(
    chosen: Mapping[str, Any], query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
    attn_mask: torch.Tensor | None = None, dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:  # fmt: skip
    if attn_mask is not None or dropout_p:
        what = "a mask" if attn_mask is not None else "a dropout"
        hint = "is_causal=True, or no mask: keys of other ranks have no place in one"
        raise BindingError(f"attention over ranks has {what}", hint=hint)
    query, key, value = as_autocast(query, key, value)
    return ops.attention(query, key, value, is_causal=is_causal, scale=scale, **chosen)
