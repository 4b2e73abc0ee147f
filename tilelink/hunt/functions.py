"""Calls of an operator that chooses by itself and that no model predicts: GPUs alone rate them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from tilelink.errors import SearchError
from tilelink.hunt.anomaly import Feature, Rated
from tilelink.hunt.programs import DTYPE, LAUNCH, RANKS, Vary
from tilelink.ops.drawn import DRAWN

OPS = "ops."
"""Before the name of such an operator, of which the library may have a file, too."""
CHOICE = "the choice"


@dataclass(frozen=True, kw_only=True)
class Functions:
    """A function of `tilelink.ops` and the sizes of its calls, by their names in `ops/drawn.py`."""

    function: str
    vary: Vary = field(default_factory=Vary)
    sizes: Mapping[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])

    @property
    def name(self) -> str:
        return f"{OPS}{self.function}"

    @property
    def features(self) -> tuple[Feature, ...]:
        """Sizes, ranks, element type and launch. Raises SearchError for sizes that the operator has not."""
        return self._features

    @cached_property
    def _features(self) -> tuple[Feature, ...]:
        usual = DRAWN[self.function].sizes
        if unknown := self.sizes.keys() - usual.keys():
            raise SearchError(f"{self.name} has no size {min(unknown)!r}", hint=f"it has {', '.join(usual)}")
        found = [
            Feature(name=name, labels=tuple(map(str, values)), ordered=True, plain=len(values) // 2)
            for name, values in {**usual, **{name: tuple(sorted(own)) for name, own in self.sizes.items()}}.items()
        ]
        found += [Feature(name=RANKS, labels=tuple(map(str, self.vary.ranks)), ordered=True)]
        return (*found, Feature(name=DTYPE, labels=self.vary.dtypes), Feature(name=LAUNCH, labels=self.vary.launches))

    def said(self, choices: Sequence[int]) -> dict[str, str]:
        return {one.name: one.labels[choice] for one, choice in zip(self.features, choices, strict=True)}

    def command(self, choices: Sequence[int]) -> str:
        said = self.said(choices)
        sizes = " ".join(f"{name}={said[name]}" for name in DRAWN[self.function].sizes)
        parts = f"tilelink hunt {self.name} --exact --ranks {said[RANKS]} --set {sizes}"
        return f"{parts} --dtype {said[DTYPE]} --launch {said[LAUNCH]}"

    def rated(self, choices: Sequence[int], *, every: bool = False) -> Rated:
        raise SearchError(f"no model predicts calls of {self.name}", hint="give --measure, where there are GPUs")

    def calls(self, choices: Sequence[int], like: Mapping[str, Any]) -> dict[str, Callable[[], Any]]:
        """Return implementation -> its call on drawn tensors; that which a call chooses first. like: as in `Drawn`."""
        said, drawn = self.said(choices), DRAWN[self.function]
        sizes = {name: int(said[name]) for name in drawn.sizes}
        operands, options = drawn.draw(sizes, int(said[RANKS]), like)
        schedules = {CHOICE: None, **{way: way for way in drawn.ways}}
        return {
            name: lambda schedule=schedule: drawn.call(*operands, **options, schedule=schedule)
            for name, schedule in schedules.items()
        }
