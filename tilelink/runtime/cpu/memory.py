"""The memory of CPU ranks: an arena that all their processes share, and what kernels are passed of it."""

from __future__ import annotations

from typing import Any

import torch

from tilelink.runtime.cpu.arena import Arena, size_for
from tilelink.runtime.job import GridLayout, Layout, TensorLayout, poison


class Memory:
    """Tensors, signal pads and tables of all ranks, and room for the outputs of `launches` launches.

    Everything that kernels may write holds poison, counters hold 0.
    """

    def __init__(self, layout: Layout, launches: int) -> None:
        self.layout = layout
        ranks = range(layout.ranks)
        outputs = [t for t in layout.tensors if t.space == "out"]
        wanted = [((t.slots, *t.shape), t.torch_dtype) for t in layout.tensors] + [((layout.pad_size,), torch.int32)]
        wanted += [((launches, *t.shape), t.torch_dtype) for t in outputs]
        arena = Arena(size_for(wanted) * layout.ranks)
        self.tensors = [{t.name: _poisoned(arena, t, t.slots) for t in layout.tensors} for _ in ranks]
        self.results = [{t.name: _poisoned(arena, t, launches) for t in outputs} for _ in ranks]
        self.pads = [arena.allocate((layout.pad_size,), torch.int32) for _ in ranks]
        names = [t.name for t in layout.tensors if t.symmetric]
        self._tables = {n: _addresses([own[n] for own in self.tensors]) for n in names}
        self._signal_table = _addresses(self.pads)
        self._thresholds = {(g.tensor, g.kind): _rows(g) for g in layout.grids}

    def argument(self, kind: str, name: str, rank: int) -> Any:
        """What a kernel of `rank` is passed for a parameter of this kind; see `Emitted` for the kinds."""
        match kind:
            case "tensor":
                return self.tensors[rank][name]
            case "peers":
                return self._tables[name]
            case "signals":
                return self.pads[rank]
            case "signal_table":
                return self._signal_table
            case "thresholds":
                tensor, _, family = name.rpartition("_")
                return self._thresholds[(tensor, family)][rank]
            case "rank":
                return rank
            case "watch":
                return None
            case _:
                raise KeyError(f"kernels take no argument {kind!r}")


def _poisoned(arena: Arena, tensor: TensorLayout, copies: int) -> torch.Tensor:
    memory = arena.allocate((copies, *tensor.shape), tensor.torch_dtype)
    poison(memory)
    return memory


def _addresses(tensors: list[torch.Tensor]) -> torch.Tensor:
    return torch.tensor([t.data_ptr() for t in tensors], dtype=torch.int64)


def _rows(grid: GridLayout) -> list[torch.Tensor]:
    return [torch.tensor(row.tolist(), dtype=torch.int32) for row in grid.thresholds]
