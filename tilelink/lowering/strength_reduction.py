"""Strength reduction of what consumers compute in a loop that carries a state (lowering/carried.py).

Exponentials are powers of two, which an SM computes in one instruction, with one multiplication and addition before
it. The largest of products with a number is the product with the largest, rows are divided by one number with one
division, and a number is added to a vector before that becomes a tile.

before: state_new = maximum(state_top, max(scores * 0.125, axis=1))
        state_weights = exp(scores * 0.125 - state_new[:, None])
        o[i, :] = state / total[:, None]
after:  state_new = maximum(state_top, max(scores, axis=1) * 0.125)
        state_weights = exp2(scores * 0.1803368801111204 - (state_new * 1.4426950408889634)[:, None])
        o[i, :] = state * (1.0 / total)[:, None]
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from tilelink.ir.program import Apply, Expand, Literal, Reduce, Value
from tilelink.ir.typing import StageTyping
from tilelink.ir.visitor import map_value, map_values
from tilelink.lowering.bound import Bound, with_bodies
from tilelink.lowering.carried import ROWS, number_of

LOG2E = 1 / math.log(2)


def reduced(bound: Bound, name: str) -> Bound:
    """Return the bound program with a stage whose values take fewer instructions."""
    values = _Values(typing=bound.typing.stage(name))
    return with_bodies(bound, {name: map_values(bound.stages[name].stage.body, values.change)})


@dataclass(frozen=True, kw_only=True)
class _Values:
    """typing: that of the values before."""

    typing: StageTyping

    def of(self, value: Value) -> Value:
        return map_value(value, self.change)

    def change(self, value: Value) -> Value | None:
        """Return what stands for a value, or None for the value itself, of whose operands others may stand."""
        match value:
            case Apply(op="exp", args=(power,)) if self.typing.type_of(value).axes:
                return replace(value, op="exp2", args=(self._times(power, LOG2E),))
            case Apply(op="div", args=(one, Expand(value=divisor, pattern=pattern) as rows)) if pattern == ROWS:
                by = Apply(op="div", args=(Literal(value=1.0), self.of(divisor)), location=value.location)
                return replace(value, op="mul", args=(self.of(one), replace(rows, value=by)))
            case Apply(args=(Expand() as vector, other)) if not self.typing.type_of(other).axes:
                return replace(vector, value=self.of(replace(value, args=(vector.value, other))))
            case Apply(args=(other, Expand() as vector)) if not self.typing.type_of(other).axes:
                return replace(vector, value=self.of(replace(value, args=(other, vector.value))))
            case Reduce(op="max" | "min", value=Apply(op="mul", args=(one, other))):
                for factor, rest in ((one, other), (other, one)):
                    number = number_of(factor) or 0.0
                    if number > 0 and (number_of(rest) or 0.0) <= 0:
                        found = replace(value, value=self.of(rest))
                        return Apply(op="mul", args=(found, Literal(value=number)), location=value.location)
                return None
            case _:
                return None

    def _times(self, value: Value, factor: float) -> Value:
        """Return a value times a number, which is multiplied with the numbers in it."""
        if (number := number_of(value)) is not None:
            return Literal(value=number * factor, location=value.location)
        match value:
            case Apply(op="sub" | "add", args=(a, b)):
                return replace(value, args=(self._times(a, factor), self._times(b, factor)))
            case Apply(op="mul", args=(a, b)) if (number := number_of(b)) is not None:
                return self._times(a, factor * number)
            case Apply(op="mul", args=(a, b)) if (number := number_of(a)) is not None:
                return self._times(b, factor * number)
            case Expand(value=inner, pattern=pattern) if pattern == ROWS:
                return replace(value, value=self._times(inner, factor))
            case _:
                return Apply(op="mul", args=(self.of(value), Literal(value=factor)), location=value.location)
