"""Evaluation of tile values on torch tensors, in float64."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import torch

from tilelink.errors import BindingError, UnknownNameError, foreign
from tilelink.ir.program import (
    BITWISE,
    INTEGER_OPS,
    INTEGERS,
    Apply,
    Attend,
    Cast,
    Dot,
    Expand,
    Finish,
    FromScalar,
    Full,
    Literal,
    Local,
    Positions,
    Read,
    Reduce,
    Region,
    Scan,
    SoftmaxInit,
    Transpose,
    UserCall,
    Value,
    WholePositions,
)
from tilelink.ir.scalar import Scalar
from tilelink.ir.typing import COMPARISONS, ELEMENT, StageTyping, product_dtype, sum_dtype
from tilelink.reference.dtypes import converted, single, wide

ORACLES: dict[str, Callable[..., torch.Tensor]] = {}
"""Name of a user's function -> its equivalent on torch tensors."""

_UNARY: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "neg": torch.neg,
    "not": torch.logical_not,
    "exp": torch.exp,
    "exp2": torch.exp2,
    "log": torch.log,
    "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt,
    "abs": torch.abs,
    "silu": torch.nn.functional.silu,
    "gelu": torch.nn.functional.gelu,
    "relu": torch.relu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
}
_BINARY: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "eq": torch.eq,
    "ne": torch.ne,
    "lt": torch.lt,
    "le": torch.le,
    "gt": torch.gt,
    "ge": torch.ge,
    "and": torch.logical_and,
    "or": torch.logical_or,
}

_BITS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "floordiv": torch.floor_divide,
    "mod": torch.remainder,
    "bitand": torch.bitwise_and,
    "bitor": torch.bitwise_or,
    "bitxor": torch.bitwise_xor,
    "shl": torch.bitwise_left_shift,
    "shr": torch.bitwise_right_shift,
}


def oracle(name: str, function: Callable[..., torch.Tensor]) -> None:
    """Register the reference implementation of `call name(...)`: a function of torch tensors.

    Its arguments are float64, int32, int64 or bool.

    The called function itself cannot run here: it is Triton code. It is called per tile, whereas the oracle gets whole
    extents.
    """
    ORACLES[name] = function


@dataclass(frozen=True, kw_only=True)
class Softmax:
    """An online-softmax state: running maximum [m, 1], sum [m, 1] and weighted values [m, e]; None before any keys."""

    parts: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None = None


@dataclass(kw_only=True)
class Evaluator:
    """Evaluator of the values of one task. number: evaluates scalars; read: fetches regions.

    positions: the element positions of an index's tile. element: the dtype of tensors that declare none.
    """

    typing: StageTyping
    element: str
    number: Callable[[Scalar], Any]
    read: Callable[[Region], torch.Tensor]
    positions: Callable[[str], torch.Tensor]
    locals: dict[str, Any] = field(default_factory=dict[str, Any])

    def __call__(self, value: Value) -> Any:
        """Return the value: a float64, int32, int64 or bool tensor, or a softmax state.

        Raises UnknownNameError if a name has no value yet.
        """
        match value:
            case Read(region=region):
                return wide(self.read(region))
            case Local(name=name):
                if name not in self.locals:
                    hint = "assign it before the loop"
                    raise UnknownNameError(
                        f"{name} has no value yet in this iteration", location=value.location, hint=hint
                    )
                return self.locals[name]
            case Literal(value=number):
                return _number(number)
            case FromScalar(scalar=scalar):
                return _number(self.number(scalar))
            case Full(value=number, dtype=dtype):
                return _number((bool if dtype == "bool" else int if dtype in INTEGERS else float)(number))
            case Apply(op=op, args=args):
                return _apply(op, [self(a) for a in args])
            case Cast(value=inner, dtype=dtype):
                return wide(converted(self(inner), dtype))
            case Positions(index=index):
                return self.positions(index).int()
            case WholePositions(dim=dim):
                return torch.arange(int(self.number(dim)), dtype=torch.int32)
            case _:
                return self._shaped(value)

    def _shaped(self, value: Value) -> Any:
        match value:
            case Dot(left=left, right=right):
                product = torch.matmul(*self._factors(left, right))
                return product.int() if sum_dtype(*self._dtypes(left, right)) == "i32" else product
            case Transpose(value=inner):
                return self(inner).transpose(-1, -2)
            case Reduce(op=op, value=inner, axis=axis):
                return _reduced(op, self(inner), axis)
            case Scan(op=op, value=inner, axis=axis):
                tile = self(inner)
                tile = tile.int() if tile.dtype == torch.bool else tile
                if op == "cumsum":
                    return tile.cumsum(axis, dtype=_summed(tile))
                found, places = tile.sort(dim=axis, stable=True)
                return found if op == "sort" else places.int()
            case Expand(value=inner, pattern=pattern):
                return self(inner)[tuple(slice(None) if kept else None for kept in pattern)]
            case SoftmaxInit():
                return Softmax()
            case Attend():
                return self._attend(value)
            case Finish(state=state):
                parts = self(state).parts
                if parts is None:
                    return torch.zeros((), dtype=torch.float64)
                _, total, result = parts
                return result / torch.where(total > 0, total, torch.ones_like(total))
            case UserCall(function=function, args=args):
                return _called(function, value, [self(a) for a in args])
            case _:
                raise TypeError(f"unknown value {type(value).__name__}")

    def _factors(self, left: Value, right: Value) -> list[torch.Tensor]:
        """The operands of a product, rounded to their common dtype."""
        dtype = product_dtype(*self._dtypes(left, right))
        return [converted(self(value), dtype).double() for value in (left, right)]

    def _dtypes(self, *operands: Value) -> list[str]:
        names = [self.typing.type_of(value).dtype for value in operands]
        return [self.element if name == ELEMENT else name for name in names]

    def _attend(self, value: Attend) -> Softmax:
        q, k = self._factors(value.q, value.k)
        v, scale = self(value.v), self(value.scale)
        scores = torch.matmul(q, k.transpose(-1, -2)) * scale
        if value.mask is not None:
            scores = torch.where(self(value.mask).bool(), scores, torch.full_like(scores, -torch.inf))
        top = scores.amax(-1, keepdim=True)
        old = self(value.state).parts
        largest = top if old is None else torch.maximum(top, old[0])
        shift = torch.where(torch.isinf(largest), torch.zeros_like(largest), largest)
        weight = torch.exp(scores - shift)
        total, result = weight.sum(-1, keepdim=True), torch.matmul(weight, v)
        if old is not None:
            keep = torch.exp(old[0] - shift)
            total, result = total + old[1] * keep, result + old[2] * keep
        return Softmax(parts=(largest, total, result))


def _called(function: str, value: UserCall, tiles: list[torch.Tensor]) -> torch.Tensor:
    """The result of a user's function on copies of tiles.

    Raises BindingError if its oracle fails or does not return a tensor of the first tile's shape.
    """
    with foreign(f"the meaning of call {function} failed", BindingError, hint="mend what its module gives as oracle"):
        result: Any = _oracle_of(function, value)(*(tile.clone() for tile in tiles))
    wanted = tiles[0].shape if tiles else torch.Size()
    if not isinstance(result, torch.Tensor) or result.shape != wanted:
        what = f"{list(result.shape)}" if isinstance(result, torch.Tensor) else f"a {type(result).__name__}"
        hint = "an oracle returns a tensor of the first argument's shape"
        message = f"the meaning of call {function} is {what} and not {list(wanted)}"
        raise BindingError(message, location=value.location, hint=hint)
    return result.double()  # a call has dtype f32


def _oracle_of(function: str, value: UserCall) -> Callable[..., torch.Tensor]:
    """The oracle of a user's function. The module of the function is imported, since it may register the oracle.

    Raises BindingError if there is none.
    """
    if function not in ORACLES:
        with foreign(f"the module of call {function} failed", BindingError), suppress(ImportError):
            import_module(function.rpartition(".")[0])
    if function not in ORACLES:
        hint = f"in its module, tilelink.reference.oracle({function!r}, function of torch tensors)"
        raise BindingError(f"no meaning for call {function}", location=value.location, hint=hint)
    return ORACLES[function]


def _reduced(op: str, tile: torch.Tensor, axis: int) -> torch.Tensor:
    """A reduction of a tile over one axis, which is removed."""
    if op in ("any", "all"):
        return getattr(tile.bool(), op)(axis)
    tile = tile.double() if tile.dtype == torch.bool else tile
    if op in ("argmax", "argmin"):
        best = getattr(tile, f"a{op[3:]}")(axis, keepdim=True)
        before = (tile == best).int().cumsum(axis).eq(0).int().sum(axis, dtype=torch.int32)  # those before the first
        return before.clamp(max=max(tile.shape[axis] - 1, 0))  # NaN equals nothing
    return tile.sum(axis, dtype=_summed(tile)) if op == "sum" else getattr(tile, f"a{op}")(axis)


def _apply(op: str, args: list[torch.Tensor]) -> torch.Tensor:
    if op == "where":
        chosen = args[1:]
        return torch.where(args[0].bool(), *([single(a) for a in chosen] if _mixed(chosen) else chosen))
    if op in INTEGER_OPS:
        return _of_integers(op, args)
    if op not in COMPARISONS:
        args = [a.int() if a.dtype == torch.bool else a for a in args]
    if op == "div" or (op in _UNARY and op not in ("neg", "not", "abs")) or _mixed(args):
        args = [single(a) for a in args]
    if len(args) == 1:
        return _UNARY[op](args[0])
    return _BINARY[op](args[0], args[1])


def _of_integers(op: str, args: list[torch.Tensor]) -> torch.Tensor:
    """An operation of integers. Without a quotient, where a divisor is 0, the result is 0."""
    if op in BITWISE and all(a.dtype == torch.bool for a in args):
        return _BITS[op](args[0], args[1])
    kind = torch.int64 if torch.int64 in {a.dtype for a in args} else torch.int32
    left, right = (a.to(kind) for a in args)
    if op in BITWISE:
        return _BITS[op](left, right)
    if op in ("shl", "shr"):
        return _BITS[op](left, right & (torch.iinfo(kind).bits - 1))
    divisor = torch.where(right == 0, torch.ones_like(right), right)
    return torch.where(right == 0, torch.zeros_like(left), _BITS[op](left, divisor))


def _mixed(args: list[torch.Tensor]) -> bool:
    """True if some tensors are integers and some are floating point."""
    return len({a.is_floating_point() for a in args}) > 1


def _number(number: float | int | bool) -> torch.Tensor:
    """A number as a tensor without axes; an integer becomes int32, or int64 if it is beyond that."""
    if type(number) is int:
        return torch.tensor(number, dtype=torch.int32 if number in INTEGERS["i32"] else torch.int64)
    return wide(torch.tensor(number))


def _summed(tensor: torch.Tensor) -> torch.dtype | None:
    """The dtype argument of a sum: torch sums int32 in int64 by default, the language in int32."""
    return torch.int32 if tensor.dtype == torch.int32 else None
