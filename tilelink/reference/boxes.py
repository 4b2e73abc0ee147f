"""Boxes of tensors: per dimension a slice, a point (whose axis is dropped), or an array of positions in any order."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

Coordinate = slice | int | np.ndarray
Coordinates = tuple[Coordinate, ...]


def inside(parts: Coordinates, shape: tuple[int, ...]) -> bool:
    """True if every element of a box lies in a tensor of the given shape."""
    return all(map(_within, parts, shape))


def _within(part: Coordinate, size: int) -> bool:
    if isinstance(part, np.ndarray):
        return bool(((part >= 0) & (part < size)).all())
    first, last = _ends(part)
    return first >= last or 0 <= first <= last <= size


def clipped(part: Coordinate, size: int) -> Coordinate:
    """Return what a coordinate names of a dimension."""
    if isinstance(part, np.ndarray):
        return part[(part >= 0) & (part < size)]
    first, last = _ends(part)
    return slice(min(max(0, first), size), min(max(0, last), size))


def index(parts: Coordinates) -> tuple[Any, ...]:
    """Return a box that lies inside a tensor as an index of arrays and tensors that keeps every axis."""
    if not any(isinstance(p, np.ndarray) for p in parts):
        return tuple(slice(*_ends(p)) for p in parts if not isinstance(p, np.ndarray))
    return np.ix_(*map(_positions, parts))


def read(tensor: torch.Tensor, parts: Coordinates) -> torch.Tensor:
    """Return a copy of a box that lies inside the tensor; points have no axis in it."""
    return tensor[_of_tensor(index(parts))].clone().reshape(_extents(parts))


def write(tensor: torch.Tensor, parts: Coordinates, value: torch.Tensor) -> None:
    """Broadcast a value to a box that lies inside the tensor, and round it to the tensor's dtype."""
    tile = value.to(tensor.dtype).expand(_extents(parts))
    tensor[_of_tensor(index(parts))] = tile.reshape([_size(p) for p in parts])


def add(tensor: torch.Tensor, parts: Coordinates, value: torch.Tensor) -> None:
    """Broadcast a value to a box that lies inside the tensor and add it, to an element as often as the box names it."""
    tile = value.to(tensor.dtype).expand(_extents(parts))
    where = np.ix_(*map(_positions, parts))
    own = tuple(torch.as_tensor(p).long() for p in where)
    tensor.index_put_(own, tile.reshape([_size(p) for p in parts]), accumulate=True)


def _ends(part: slice | int) -> tuple[int, int]:
    return (part.start, part.stop) if isinstance(part, slice) else (part, part + 1)


def _positions(part: Coordinate) -> np.ndarray:
    return part if isinstance(part, np.ndarray) else np.arange(*_ends(part))


def _extents(parts: Coordinates) -> list[int]:
    return [_size(p) for p in parts if not isinstance(p, int)]


def _size(part: Coordinate) -> int:
    if isinstance(part, np.ndarray):
        return len(part)
    first, last = _ends(part)
    return max(0, last - first)


def _of_tensor(index: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(torch.as_tensor(p).long() if isinstance(p, np.ndarray) else p for p in index)
