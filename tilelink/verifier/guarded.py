"""Accesses of which a launch decides a part: what decides it, where it ends, and both as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tilelink.errors import VerificationError
from tilelink.facts.regions import Ended, Guard
from tilelink.ir.printer import print_scalar
from tilelink.ir.scalar import Binary, Coordinate, Int, Lookup, Param, Rank, Scalar, binary, const, rewrite, walk
from tilelink.lowering.bound import BoundTensor
from tilelink.lowering.columns import Ints
from tilelink.lowering.stored_entries import named_entry
from tilelink.planning.plan import Plan
from tilelink.verifier.refusal import refuse


def guard_of(plan: Plan, row: int) -> Guard:
    """Return what a launch decides of an access."""
    return plan.guards.of(int(plan.accesses.guard[row]))


def within_parts(plan: Plan, rows: Ints, hi: Ints) -> Ints:
    """Return the ends of accesses, [rows, dims], without elements that no launch has in the parts that they name."""
    numbers, own = np.unique(plan.accesses.guard[rows], return_inverse=True)
    most = np.full((len(numbers), hi.shape[1]), np.iinfo(np.int64).max)
    for at, number in enumerate(numbers.tolist()):
        for part in plan.guards.of(number):
            if isinstance(part, Ended):
                most[at, part.dim] = min(most[at, part.dim], max(0, plan.guards.bounds.of(part.stop)[1]))
    return np.minimum(hi, most[own])


def stop_of(plan: Plan, row: int, tensor: BoundTensor, dim: int, end: Scalar) -> Scalar:
    """Return up to where a tensor is defined or given, where an access is: ends are clamped, as those of ranges are."""
    return plan.guards.resolve(binary("min", end_at(plan, row, end), const(tensor.shape[dim])))


def end_at(plan: Plan, row: int, end: Scalar) -> Scalar:
    """Return an end of a range with the indices that it names where an access is."""
    a = plan.accesses
    return end_there(plan, end, int(a.peer[row]), a.lo[row].tolist(), a.hi[row].tolist())


def end_there(plan: Plan, end: Scalar, rank: int, lo: Sequence[int], hi: Sequence[int]) -> Scalar:
    """Return what is defined on a rank, where a box is: by its coordinates along dimensions with one element."""

    def change(expr: Scalar) -> Scalar | None:
        match expr:
            case Rank():
                return Int(value=rank)
            case Coordinate(dim=dim):
                return Int(value=lo[dim]) if hi[dim] == lo[dim] + 1 else None
            case Lookup(coords=coords):
                inner = tuple(rewrite(c, change) for c in coords if isinstance(c, Scalar))
                return replace(expr, coords=(Int(value=rank), *inner))
            case _:
                return plan.bound.number(expr)

    return rewrite(end, change)


def said(plan: Plan, expr: Scalar) -> str:
    """Return an expression of a guard as text: an entry with the rank that holds it, without its clamp to its bound."""

    def unclamped(part: Scalar) -> Scalar:
        match part:
            case (
                Binary(op="min" | "max" as op, left=Int(value=end), right=inner)
                | Binary(op="min" | "max" as op, left=inner, right=Int(value=end))
            ):
                entry = unclamped(inner)
                ends = plan.bound.entries.get(named_entry(entry)[0]) if isinstance(entry, Lookup) else None
                return entry if ends is not None and end == ends[op == "min"] else part
            case _:
                return part

    def change(part: Scalar) -> Scalar | None:
        match part:
            case Binary(op="min" | "max") if isinstance(entry := unclamped(part), Lookup):
                return change(entry)
            case Lookup(coords=(Int(), *_)):
                name, coords = named_entry(part)
                inner = tuple(rewrite(c, change) for c in coords if isinstance(c, Scalar))
                return replace(part, table=name, coords=inner) if inner else Param(name=name)
            case _:
                return None

    ranks = {e.coords[0].value for e in walk(expr) if isinstance(e, Lookup) and isinstance(e.coords[0], Int)}
    text = print_scalar(rewrite(expr, change))
    return f"{text} of rank {', '.join(map(str, sorted(ranks)))}" if ranks else text


def refused(plan: Plan, kind: type[VerificationError], row: int, message: str, hint: str) -> VerificationError:
    a = plan.accesses
    return refuse(kind, plan, message, task=int(a.task[row]), statement=int(a.statement[row]), hint=hint)
