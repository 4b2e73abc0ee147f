# pyright: basic
"""Triton's interpreter, prepared once in a process whose forks run kernels, instead of in each of them."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import triton.language as tl
from triton._C.libtriton import interpreter as _interpreter
from triton.runtime import interpreter
from triton.runtime.interpreter import InterpretedFunction, TensorHandle, interpreter_builder

from tilelink import device
from tilelink.runtime.cpu import host_signals


class _Kept:
    """A patch of the language that Triton does not undo after a kernel, because the next one needs it again."""

    def restore(self) -> None:
        pass


def prepare() -> None:
    """Prepare the interpreter and the device library for all kernels of this process, which only runs kernels.

    At each call of a function Triton looks for the functions of its language and replaces them by interpreted ones. In
    a small kernel this takes a quarter of the time.
    """
    options = interpreter_builder.options
    if getattr(options, "sanitize_overflow", False):
        # With it each sum of integers is also computed in 64 bits, for an assertion that the interpreter never makes.
        interpreter_builder.options = replace(options, sanitize_overflow=False)
    if not isinstance(interpreter_builder.create_atomic_rmw, _Atomics):
        builder: Any = interpreter_builder
        builder.create_atomic_rmw = _Atomics(builder.create_atomic_rmw)
    if not isinstance(interpreter._get_np_dtype, ArrayTypes):
        interpreter._get_np_dtype = ArrayTypes(interpreter._get_np_dtype)
    first = not isinstance(tl.core._unwrap_if_constexpr, Unwrap)
    if first:
        tl.core._unwrap_if_constexpr = Unwrap(tl.core._unwrap_if_constexpr)
        tl.tensor.__init__ = like_others(tl.tensor.__init__)
        tl.block_type.__init__ = of_known_shapes(tl.block_type.__init__)
    interpreter._patch_lang(SimpleNamespace(__globals__={"tl": tl, "core": tl.core}))
    interpreter._patch_lang = lambda _: _Kept()
    if first:
        for name, operation in _OPERATIONS.items():
            setattr(tl.tensor, name, of_integers(getattr(tl.tensor, name), operation))
        tl.tensor.__add__ = of_places(tl.tensor.__add__)
    for one in pkgutil.iter_modules(device.__path__, f"{device.__name__}."):
        rewrite(importlib.import_module(one.name))
    rewrite(host_signals)


@dataclass(frozen=True)
class ArrayTypes:
    """The type of an array by that of a tensor: the interpreter's function, which makes a table of all at each call.

    It is asked at every operation. The name of a scalar type, or of a pointer, says all of it.
    """

    of: Callable[[Any], Any]
    known: dict[str, Any] = field(default_factory=dict)

    def __call__(self, dtype: Any) -> Any:
        name = dtype.scalar.name
        if name not in self.known:
            self.known[name] = self.of(dtype)
        return self.known[name]


@dataclass(frozen=True)
class Unwrap:
    """The value of a constant: the interpreter's function, which looks for lists and tuples first.

    It is asked of every argument of an operation and of every size of a shape. Most are tensors and numbers.
    """

    of: Callable[[Any], Any]

    def __call__(self, o: Any) -> Any:
        kind = type(o)
        if kind is tl.constexpr:
            return o.value
        return o if kind in _PLAIN else self.of(o)


_PLAIN = frozenset({int, bool, float, str, type(None), tl.tensor, tl.dtype, tl.pointer_type, tl.block_type})
"""Types of what is no constant and has none in it."""


def like_others(make: Callable[..., None]) -> Callable[..., None]:
    """Return the initialisation of tl.tensor, `make`, that gives a tensor what another one of its type has.

    Every operation makes a tensor, and with it constants for its shape.
    """
    known: dict[str, dict[str, Any]] = {}

    def init(self: Any, handle: Any, type: Any) -> None:
        if type.name in known:
            self.__dict__.update(known[type.name], handle=handle, type=type, dtype=type.scalar)
            return
        make(self, handle, type)
        known[type.name] = {n: v for n, v in self.__dict__.items() if n not in ("handle", "type", "dtype")}

    return init


def of_known_shapes(make: Callable[..., None]) -> Callable[..., None]:
    """Return the initialisation of tl.block_type, `make`, that checks and names the type of a shape once."""
    known: dict[tuple[Any, ...], dict[str, Any]] = {}

    def init(self: Any, element_ty: Any, shape: Any) -> None:
        sizes = [one.value if type(one) is tl.constexpr else one for one in shape]
        key = (type(shape), element_ty.name, *sizes)
        if {*map(type, sizes)} != {int}:  # 4.0 is the same key as 4, and no size
            make(self, element_ty, shape)
        elif key in known:
            self.__dict__.update(known[key], element_ty=element_ty)
        else:
            make(self, element_ty, shape)
            known[key] = dict(self.__dict__)

    return init


def _quotient(a: Any, b: Any) -> Any:
    """A quotient that is rounded to zero."""
    return (a - np.fmod(a, b)) // b


_OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "__add__": np.add, "__radd__": np.add, "__sub__": np.subtract, "__rsub__": lambda a, b: np.subtract(b, a),
    "__mul__": np.multiply, "__rmul__": np.multiply, "__floordiv__": _quotient, "__mod__": np.fmod,
    "__lt__": np.less, "__le__": np.less_equal, "__gt__": np.greater, "__ge__": np.greater_equal,
    "__eq__": np.equal, "__ne__": np.not_equal,
}  # fmt: skip
"""Operators of tl.tensor, and what they are on arrays of signed integers of one type."""
_SIGNED = {"int32": 1 << 31, "int64": 1 << 63}


def of_integers(operator: Callable[..., Any], operation: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    """Return an operator of tl.tensor, `operator`, that computes with two integers of one type at once.

    The second one may be a constant. In most kernels these are the most of all operations, each of which makes a tensor
    of the constant, looks for the type of the result, casts both to it, and spreads a scalar over the other's shape.
    """

    def call(self: Any, other: Any, **options: Any) -> Any:
        kind, of = self.type, self.dtype.name
        if options or of not in _SIGNED:
            return operator(self, other, **options)
        if type(other) is int and -_SIGNED[of] <= other < _SIGNED[of]:
            data = operation(self.handle.data, other)
        elif type(other) is tl.tensor and other.dtype.name == of and (shape := _joined(kind, other.type)) is not None:
            kind, data = shape, operation(self.handle.data, other.handle.data)
        else:
            return operator(self, other)
        if data.dtype == bool:
            return tl.tensor(TensorHandle(data, self.dtype), kind.with_element_ty(tl.int1))
        return tl.tensor(TensorHandle(data.astype(of, copy=False), self.dtype), kind)

    return call


def of_places(operator: Callable[..., Any]) -> Callable[..., Any]:
    """Return the sum of tl.tensor, `operator`, that adds to a pointer a signed integer at once, a constant or not."""

    def call(self: Any, other: Any, **options: Any) -> Any:
        if options or not self.dtype.is_ptr():
            return operator(self, other, **options)
        width = max(1, self.dtype.element_ty.primitive_bitwidth // 8)
        kind: Any = self.type
        if type(other) is int and -_SIGNED["int64"] <= other < _SIGNED["int64"]:
            offset = np.uint64(width * other % (1 << 64))
        elif type(other) is tl.tensor and other.dtype.name in _SIGNED:
            joined = _joined(kind, other.type)
            if joined is None:
                return operator(self, other)
            kind, offset = joined.with_element_ty(self.dtype), width * other.handle.data.astype(np.uint64)
        else:
            return operator(self, other)
        return tl.tensor(TensorHandle(self.handle.data + offset, self.handle.dtype), kind)

    return call


def _joined(a: Any, b: Any) -> Any:
    """Return a type of the shape that an operation on two types has, as arrays are spread over each other; or None."""
    if not a.is_block():
        return b
    if not b.is_block():
        return a
    own, theirs = a.get_block_shapes(), b.get_block_shapes()
    if own == theirs:
        return a
    if len(own) != len(theirs) or any(x != y and 1 not in (x, y) for x, y in zip(own, theirs, strict=True)):
        return None
    return tl.block_type(a.element_ty, [max(x, y) for x, y in zip(own, theirs, strict=True)])


def rewrite(module: ModuleType) -> None:
    """Rewrite the functions of a module for the interpreter."""
    for value in list(vars(module).values()):  # rewriting adds names to the module
        if isinstance(value, InterpretedFunction):
            value.rewrite()


@dataclass(frozen=True)
class _Atomics:
    """An atomic operation of the interpreter, whose addresses, values and masks have all their elements in memory.

    It takes the elements of arrays one after the other from the first one on, also where an array is a view in which
    one element stands for several, as a mask that is broadcast is. Additions of floats of 16 bits are this module's:
    the interpreter has none of bf16, and its own of f16 lose what another process adds at the same time.
    """

    operation: Callable[..., Any]

    def __call__(self, rmwOp: Any, ptr: Any, val: Any, mask: Any, sem: Any, scope: Any) -> Any:
        if rmwOp == interpreter._ir.ATOMIC_OP.FADD and val.dtype.scalar in _FLOATS_OF_16_BITS:
            return _add(_whole(ptr), _whole(val), _whole(mask), interpreter_builder.ir_sem_to_interpreter_sem[sem])
        return self.operation(rmwOp, _whole(ptr), _whole(val), _whole(mask), sem, scope)


_FLOATS_OF_16_BITS = (tl.float16, tl.bfloat16)


@np.errstate(over="ignore", invalid="ignore")  # infinities and NaN are values as on a processor
def _add(ptr: Any, val: Any, mask: Any, sem: Any) -> Any:
    """Add floats of 16 bits to memory, each at once and rounded to nearest even. Returns what was there before.

    An element is exchanged for its sum if it still holds what the sum was made of; else it is tried again with what it
    holds now. An attempt fails only where another addition has succeeded, or in the first one, which only guesses.
    """
    wide, narrow = (_half, _half_bits) if val.dtype.scalar == tl.float16 else (_brain, _brain_bits)
    there = mask.data.astype(bool)
    places, terms = ptr.data[there], wide(val.data[there].view(np.uint16))
    found, left = np.zeros(len(places), np.uint16), np.arange(len(places))
    while left.size:
        expected = found[left]
        found[left] = _interpreter.atomic_cas(places[left], expected, narrow(wide(expected) + terms[left]), sem)
        left = left[found[left] != expected]
    before = np.zeros(val.data.shape, np.uint16)
    before[there] = found
    return TensorHandle(before.view(val.data.dtype), val.dtype.scalar)


def _half(bits: np.ndarray) -> np.ndarray:
    return bits.view(np.float16).astype(np.float32)


def _half_bits(values: np.ndarray) -> np.ndarray:
    return values.astype(np.float16).view(np.uint16)


def _brain(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def _brain_bits(values: np.ndarray) -> np.ndarray:
    """A sum of two bf16 in f32, rounded once more here, is the one that is rounded once: f32 has bits enough."""
    bits = values.view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(values), 0x7FFF, rounded).astype(np.uint16)


def _whole(handle: Any) -> Any:
    return handle if handle.data.flags.c_contiguous else TensorHandle(np.copy(handle.data, order="C"), handle.dtype)
