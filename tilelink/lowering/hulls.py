"""The values that integer expressions may have in a launch: smallest and largest, for every row of a plan.

An entry of an index tensor may be any integer within the bound of the tensor, because kernels clamp it. So a rule that
holds for all values between the smallest and the largest one holds for whatever a launch brings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tilelink.ir.intervals import MAX_INT32, MIN_INT32, Range
from tilelink.ir.scalar import Binary, Choose, Compare, Env, Index, Int, Logic, Lookup, Rank, Scalar, evaluate, walk

Hull = tuple[Any, Any]
"""The smallest and the largest value: ints, or arrays with a row for each execution."""
NEGATED = {"<": ">=", "<=": ">", ">": "<=", ">=": "<", "==": "!=", "!=": "=="}
"""Comparison -> the one that holds where it does not."""


def hull(expr: Scalar, env: Env, entries: Mapping[str, Range]) -> Hull:
    """Return the smallest and the largest value that an expression may have.

    entries: index tensor -> the smallest and the largest of its entries.
    """
    if not unknown(expr, env):
        value = evaluate(expr, env)
        return value, value
    match expr:
        case Lookup(table=table):
            return entries[table]
        case Choose(values=values):
            return min(values), max(values)
        case Binary(op=op, left=left, right=right):
            return _arithmetic(op, hull(left, env, entries), hull(right, env, entries))
        case Compare() | Logic():
            return truth(expr, env, entries)
        case _:
            raise TypeError(f"not a scalar expression: {expr!r}")


def unknown(expr: Scalar, env: Env) -> bool:
    """True if an expression reads an entry that is known only in a launch. A simulation knows them all."""
    match expr:
        case Int() | Index() | Rank():  # most expressions are one of these, or a sum of them
            return False
        case Binary(left=left, right=right):
            return unknown(left, env) or unknown(right, env)
        case _:
            return any(isinstance(e, Lookup) and e.launch and e.table not in env.tables for e in walk(expr))


def truth(expr: Scalar, env: Env, entries: Mapping[str, Range]) -> Hull:
    """Return whether a condition surely holds, and whether it may hold."""
    if not unknown(expr, env):
        value = np.asarray(evaluate(expr, env), dtype=bool)
        return value, value
    match expr:
        case Logic(op="not", args=(inner,)):
            surely, may = truth(inner, env, entries)
            return np.logical_not(may), np.logical_not(surely)
        case Logic(op=op, args=args):
            parts = [truth(one, env, entries) for one in args]
            combine = np.logical_and.reduce if op == "and" else np.logical_or.reduce
            surely, may = (np.broadcast_arrays(*ends) for ends in zip(*parts, strict=True))  # axes of 1 too
            return combine(surely), combine(may)
        case Compare(op=op, left=left, right=right):
            a, b = hull(left, env, entries), hull(right, env, entries)
            return _surely(op, a, b), np.logical_not(_surely(NEGATED[op], a, b))
        case _:
            low, high = hull(expr, env, entries)
            return np.asarray((low > 0) | (high < 0)), np.asarray((low != 0) | (high != 0))


def _surely(op: str, a: Hull, b: Hull) -> Any:
    match op:
        case "<":
            return np.asarray(a[1] < b[0])
        case "<=":
            return np.asarray(a[1] <= b[0])
        case ">":
            return np.asarray(a[0] > b[1])
        case ">=":
            return np.asarray(a[0] >= b[1])
        case "==":
            return np.asarray((a[0] == a[1]) & (b[0] == b[1]) & (a[0] == b[0]))
        case _:
            return np.asarray((a[1] < b[0]) | (a[0] > b[1]))


def _arithmetic(op: str, a: Hull, b: Hull) -> Hull:
    match op:
        case "+":
            return a[0] + b[0], a[1] + b[1]
        case "-":
            return a[0] - b[1], a[1] - b[0]
        case "min" | "max":
            pick: Callable[[Any, Any], Any] = np.minimum if op == "min" else np.maximum
            return pick(a[0], b[0]), pick(a[1], b[1])
        case "*":
            ends = [x * y for x in a for y in b]
            return np.minimum.reduce(np.broadcast_arrays(*ends)), np.maximum.reduce(np.broadcast_arrays(*ends))
        case "//" | "%" if np.all(np.asarray(b[0]) == np.asarray(b[1])) and np.all(np.asarray(b[0]) > 0):
            low, high = a[0] // b[0], a[1] // b[0]
            if op == "//":
                return low, high
            together = np.asarray(low == high)
            return np.where(together, a[0] % b[0], 0), np.where(together, a[1] % b[0], b[0] - 1)
        case _:
            return MIN_INT32, MAX_INT32
