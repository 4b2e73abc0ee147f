# pyright: basic
"""Triton's interpreter, prepared once in a process whose forks run kernels, instead of in each of them."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.interpreter import InterpretedFunction, TensorHandle, interpreter_builder

from tilelink import device
from tilelink.runtime.cpu import host_signals


class _Kept:
    """What Triton restores after a kernel: nothing, because the next one needs it again."""

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
    interpreter._patch_lang(SimpleNamespace(__globals__={"tl": tl, "core": tl.core}))
    interpreter._patch_lang = lambda _: _Kept()
    for one in pkgutil.iter_modules(device.__path__, f"{device.__name__}."):
        rewrite(importlib.import_module(one.name))
    rewrite(host_signals)


def rewrite(module: ModuleType) -> None:
    """Rewrite the functions of a module for the interpreter."""
    for value in list(vars(module).values()):  # rewriting adds names to the module
        if isinstance(value, InterpretedFunction):
            value.rewrite()


@dataclass(frozen=True)
class _Atomics:
    """An atomic operation of the interpreter, whose addresses, values and masks have all their elements in memory.

    It takes the elements of arrays one after the other from the first one on, also where an array is a view in which
    one element stands for several, as a mask that is broadcast is.
    """

    operation: Callable[..., Any]

    def __call__(self, rmwOp: Any, ptr: Any, val: Any, mask: Any, sem: Any, scope: Any) -> Any:
        return self.operation(rmwOp, _whole(ptr), _whole(val), _whole(mask), sem, scope)


def _whole(handle: Any) -> Any:
    return handle if handle.data.flags.c_contiguous else TensorHandle(np.copy(handle.data, order="C"), handle.dtype)
