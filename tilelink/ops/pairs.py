"""A product by torch and its communication by a generated kernel, one after the other."""

from __future__ import annotations

from typing import Any

import torch

from tilelink.ops import unfused


class Pair:
    """An operator by a program that only communicates: before the product if rows are gathered, else after it.

    The product is written into the input buffer of the kernel, into its first rows if the kernel sums more rows.
    """

    def __init__(self, kernel: Any, gathers: bool, activation: str) -> None:
        """kernel: takes x and returns y, as the collective of the operator has them, in two or three dimensions."""
        self._kernel, self._gathers, self._activation = kernel, gathers, activation

    def __call__(self, x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        if self._gathers:
            gathered = _flat(self._kernel({"x": x})["y"])
            y = torch.mm(gathered, w.t()) if bias is None else torch.addmm(bias, gathered, w.t())
            return unfused.follow(y, None, self._activation)
        product = self._kernel.buffer("x")
        torch.mm(x, w.t(), out=_rows(product, x.shape[0]))
        y = _rows(self._kernel({"x": product})["y"], x.shape[0])
        return unfused.follow(y, bias, self._activation)


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.flatten(0, -2)


def _rows(tensor: torch.Tensor, count: int) -> torch.Tensor:
    """Return the first `count` rows, or all if there are fewer."""
    rows = _flat(tensor)
    return rows if rows.shape[0] <= count else rows[:count]
