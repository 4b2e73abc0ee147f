# pyright: basic
"""Keys by which Triton's cache finds a compiled kernel, the same in every process."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any

from triton.runtime.jit import JITCallable


def settled(function: Any) -> Any:
    """Return a `@triton.jit` function after Triton has hashed all functions that it calls, and then itself.

    Triton (3.6 and 3.7, `DependenciesFinder._update_hash`) hashes a function together with the constants of those that
    it calls, but leaves out the constants of a function that it had not hashed before. The hash would depend on what
    else the process has compiled, and a kernel that another process compiled would not be found.
    """
    _settle(function, set())
    return function


def _settle(function: Any, begun: set[int]) -> None:
    if id(function) in begun:
        return
    begun.add(id(function))
    for one in _callees(function):
        _settle(one, begun)
    function.cache_key  # noqa: B018 - Triton keeps it


def _callees(function: Any) -> Iterator[Any]:
    """Yield the functions that a function may call.

    They are all objects with a name that it uses, in its module or in one that this imports.
    """
    names, here = function.fn.__code__.co_names, function.fn.__globals__
    for namespace in (here, *(vars(here[n]) for n in names if isinstance(here.get(n), ModuleType))):
        yield from (namespace[n] for n in names if isinstance(namespace.get(n), JITCallable))
