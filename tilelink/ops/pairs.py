"""A product by torch and its communication by a generated kernel, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from tilelink.ops import unfused
from tilelink.ops.rows import Rows

Direct = Callable[[Sequence[Any]], list[torch.Tensor] | None]
"""Launches of a kernel by place (`GpuKernel.direct`): tensors -> new outputs, or None for a launch that it leaves."""


class Pair:
    """An operator by a program that only communicates: before the product if rows are gathered, else after it.

    The product is written into the input buffer of the kernel. If the kernel moves more rows, those of each rank are
    copied there, and those of a sum are its first ones.
    """

    def __init__(
        self, kernel: Any, gathers: bool, activation: str, rows: Rows, direct: Direct | None
    ) -> None:  # fmt: skip
        """kernel: takes x and returns y, as the collective of the operator has them, in two or three dimensions.

        direct: launches of the kernel by place, where rows fit.
        """
        self._kernel, self._gathers, self._activation = kernel, gathers, activation
        self._rows, self._direct = rows, direct

    def __call__(
        self, x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None = None, out: tuple[torch.Tensor, ...] = ()
    ) -> torch.Tensor:
        """out: where the result is written if nothing follows the last of both, else it is a new tensor."""
        rows, direct = self._rows, self._direct
        into = out[0] if out and bias is None and not self._activation else None
        if self._gathers:
            made = None if direct is None else direct((x,))
            gathered = made[0] if made is not None else self._taken(self._kernel({"x": rows.given(x)})["y"])
            y = torch.mm(gathered, w.t(), out=into) if bias is None else torch.addmm(bias, gathered, w.t())
            return unfused.follow(y, None, self._activation)
        if direct is not None and into is None:
            product = torch.nn.functional.linear(x, w)
            made = direct((product,))
            if made is None:
                made = [_flat(self._kernel({"x": product.view(self._kernel.artifact.tensor("x").shape)})["y"])]
            return unfused.follow(made[0], bias, self._activation)
        product = self._kernel.buffer("x")
        flat = _flat(product)
        if rows.fit or rows.parts == 1:
            torch.mm(x, w.t(), out=flat[: x.shape[0]])
        else:
            rows.place(torch.mm(x, w.t()), flat)
        if into is not None and rows.fit:
            shape = product.shape if rows.parts == 1 else product.shape[1:]
            return _flat(self._kernel({"x": product}, {"y": into.view(shape)})["y"])
        y = self._taken(self._kernel({"x": product})["y"])
        return unfused.follow(y, bias, self._activation)

    def _taken(self, made: torch.Tensor) -> torch.Tensor:
        return _flat(made) if self._rows.fit else self._rows.taken(made, made.shape[-1:])


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.dim() == 2 else tensor.flatten(0, -2)
