"""A product by torch and its communication by a generated kernel, one after the other."""

from __future__ import annotations

from typing import Any

import torch

from tilelink.ops import unfused


class Pair:
    """An operator by a program that only communicates: before the product where rows are gathered, else behind it.

    The product goes straight into the memory that peers read.
    """

    def __init__(self, kernel: Any, gathers: bool, activation: str) -> None:
        """kernel: takes x and returns y, as the collective of the operator has them, in two or three dimensions."""
        self._kernel, self._gathers, self._activation = kernel, gathers, activation

    def __call__(self, x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        if self._gathers:
            y = torch.mm(_flat(self._kernel({"x": x})["y"]), w.t())
        else:
            product = self._kernel.buffer("x")
            torch.mm(x, w.t(), out=_flat(product))
            y = _flat(self._kernel({"x": product})["y"])
        return unfused.follow(y, bias, self._activation)


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.flatten(0, -2)
